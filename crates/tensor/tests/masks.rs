//! Masks consist of bytes. Masks of any length and at any byte offset work with all operations that use them, and adjacent bytes stay
//! unchanged.

#![allow(clippy::unwrap_used, clippy::panic)] // a test

use netcl_device::Settings;
use netcl_tensor::expr::fuse;
use netcl_tensor::graph::Graph;
use netcl_tensor::lazy;
use netcl_tensor::ops::join::{cat, stack};
use netcl_tensor::ops::map::{Number, map_typed};
use netcl_tensor::ops::rearrange::{Padding, pad, roll};
use netcl_tensor::ops::reduce::{Fold, fold};
use netcl_tensor::suite::test_device;
use netcl_tensor::{DType, Device, ErrorKind, Result, Tensor};

const SIZES: [usize; 10] = [1, 2, 3, 5, 8, 15, 33, 64, 131, 1027];
const OFFSETS: [usize; 4] = [0, 1, 3, 8];

/// Returns the test device, the simulated GPU, and the test device with guard zones around every buffer.
fn devices() -> [Device; 3] {
    let name = std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into());
    let bounds = Settings { debug: vec!["bounds".into()], ..Settings::from_env() };
    [
        test_device().unwrap(),
        Device::open("sim", &Settings::default()).unwrap(),
        Device::open(&name, &bounds).unwrap(),
    ]
}

fn bit(i: usize) -> u8 {
    u8::from((i * 7 + i / 5) % 3 == 1)
}

fn bits(n: usize) -> Vec<u8> {
    (0..n).map(bit).collect()
}

/// Returns `n` bits that start at element `offset` of a longer tensor, and that tensor.
fn at(device: &Device, n: usize, offset: usize) -> (Tensor, Tensor) {
    let mut all = vec![1; n + offset + 3];
    all[offset..offset + n].copy_from_slice(&bits(n));
    let whole = Tensor::from_bytes(device, [all.len()], &all, DType::Bool).unwrap();
    (whole.slice(0, offset..offset + n).unwrap(), whole)
}

fn every(mut check: impl FnMut(&Device, usize, usize)) {
    for device in devices() {
        for n in SIZES {
            OFFSETS.iter().for_each(|offset| check(&device, n, *offset));
        }
    }
}

fn bytes(x: Result<Tensor>) -> Vec<u8> {
    let x = x.unwrap();
    assert_eq!(x.dtype(), DType::Bool);
    x.to_bytes().unwrap()
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i % 5) as f32 - 2.0).collect()
}

#[test]
fn the_host_writes_and_reads_bytes() {
    every(|device, n, offset| {
        let (view, whole) = at(device, n, offset);
        let expected = bits(n);
        assert_eq!(bytes(Ok(view.clone())), expected);
        let words: Vec<u32> = expected.iter().map(|b| (*b).into()).collect();
        assert_eq!(view.to_u32().unwrap(), words);
        assert_eq!(view.to_vec().unwrap(), words.iter().map(|w| *w as f32).collect::<Vec<_>>());
        // Nonzero bytes become 1, and adjacent bytes stay unchanged.
        let other: Vec<u8> = (0..n).map(|i| if bit(i) == 0 { 0xF0 } else { 0 }).collect();
        view.set_bytes(&other).unwrap();
        let turned: Vec<u8> = expected.iter().map(|b| 1 - b).collect();
        let around = |inner: &[u8]| [&vec![1; offset][..], inner, &[1; 3]].concat();
        assert_eq!(bytes(Ok(whole.clone())), around(&turned));
        view.set_all(0.5).unwrap();
        assert_eq!(bytes(Ok(whole.clone())), around(&vec![1; n]));
        view.write_bytes(n / 2, &[0]).unwrap();
        let mut one = vec![1; n];
        one[n / 2] = 0;
        assert_eq!(bytes(Ok(whole)), around(&one));
        assert_eq!(bytes(Tensor::full(device, [n], 3.0, DType::Bool)), vec![1; n]);
        assert_eq!(bytes(Tensor::zeros(device, [n], DType::Bool)), vec![0; n]);
    });
}

#[test]
fn copies_and_writes_to_parts_touch_nothing_beside() {
    every(|device, n, offset| {
        let (view, whole) = at(device, n, offset);
        let expected = bits(n);
        let around = |inner: &[u8]| [&vec![1; offset][..], inner, &[1; 3]].concat();
        assert_eq!(bytes(view.contiguous()), expected);
        assert_eq!(
            bytes(cat(&[&view, &whole, &view], 0)),
            [&expected[..], &around(&expected), &expected].concat()
        );
        assert_eq!(bytes(stack(&[&view, &view], 0)), expected.repeat(2));
        let mut rolled = expected.clone();
        rolled.rotate_right(n / 2);
        assert_eq!(bytes(roll(&view, (n / 2) as i64, 0)), rolled);
        assert_eq!(
            bytes(pad(&view, &[1, 2], Padding::Constant(1.0))),
            [&[1][..], &expected, &[1, 1]].concat()
        );
        // Writes one value, and then other values, to the slice.
        let zero = Tensor::zeros(device, [], DType::Bool).unwrap();
        view.assign(&zero).unwrap();
        assert_eq!(bytes(Ok(whole.clone())), around(&vec![0; n]));
        view.assign(&Tensor::from_f32(device, [n], &numbers(n), DType::F32).unwrap()).unwrap();
        let set: Vec<u8> = numbers(n).iter().map(|v| u8::from(*v != 0.0)).collect();
        assert_eq!(bytes(Ok(whole.clone())), around(&set));
        whole
            .write_slice(0, offset, &Tensor::from_bytes(device, [n], &expected, DType::Bool).unwrap())
            .unwrap();
        assert_eq!(bytes(Ok(whole)), around(&expected));
    });
}

#[test]
fn views_of_two_axes_copy_and_join_by_bytes() {
    for device in devices() {
        for [rows, columns] in [[1, 3], [3, 5], [7, 33], [65, 67], [64, 128]] {
            for offset in OFFSETS {
                let (view, _) = at(&device, rows * columns, offset);
                let matrix = view.reshape([rows, columns]).unwrap();
                let of = |i: usize, j: usize| bit(i * columns + j);
                let turned: Vec<u8> = (0..rows * columns).map(|k| of(k % rows, k / rows)).collect();
                assert_eq!(bytes(matrix.transpose(0, 1)), turned);
                let part = matrix.slice(1, columns / 3..columns).unwrap();
                let width = columns - columns / 3;
                let expected: Vec<u8> =
                    (0..rows * width).map(|k| of(k / width, columns / 3 + k % width)).collect();
                assert_eq!(bytes(part.contiguous()), expected);
                let joined =
                    (0..rows).flat_map(|i| (0..columns).chain(columns / 3..columns).map(move |j| of(i, j)));
                assert_eq!(bytes(cat(&[&matrix, &part], 1)), joined.collect::<Vec<_>>());
                let column = matrix.slice(1, 0..1).unwrap().expand([rows, 3]).unwrap();
                let repeated: Vec<u8> = (0..rows * 3).map(|k| of(k / 3, 0)).collect();
                assert_eq!(bytes(column.contiguous()), repeated);
                let every = matrix.every(1, 0, 2, columns.div_ceil(2)).unwrap();
                let halves: Vec<u8> = (0..rows)
                    .flat_map(|i| (0..columns).step_by(2).map(move |j| (i, j)))
                    .map(|(i, j)| of(i, j))
                    .collect();
                assert_eq!(bytes(Ok(every)), halves);
            }
        }
    }
}

#[test]
fn operations_over_masks_are_exact() {
    every(|device, n, offset| {
        let (view, _) = at(device, n, offset);
        let (other, _) = at(device, n, (offset + 2) % 5);
        let (expected, host) = (bits(n), numbers(n));
        let zip = |f: fn(u8, u8) -> bool| -> Vec<u8> { expected.iter().map(|b| f(*b, *b).into()).collect() };
        assert_eq!(bytes(view.eq(&other)), zip(|a, b| a == b));
        assert_eq!(bytes(view.lt(&other)), zip(|a, b| a < b));
        for dtype in [DType::F32, DType::F16, DType::Bf16, DType::I32] {
            let x = Tensor::from_f32(device, [n], &host, dtype).unwrap();
            let zero = Tensor::zeros(device, [], dtype).unwrap();
            let below: Vec<u8> = host.iter().map(|v| u8::from(*v < 0.0)).collect();
            assert_eq!(bytes(x.lt(&zero)), below, "{dtype}");
            let chosen: Vec<f32> = host.iter().zip(&expected).map(|(v, b)| f32::from(*b) * v).collect();
            assert_eq!(view.where_cond(&x, &zero).unwrap().to_vec().unwrap(), chosen, "{dtype}");
            let filled: Vec<f32> =
                host.iter().zip(&expected).map(|(v, b)| if *b != 0 { 7.0 } else { *v }).collect();
            assert_eq!(x.masked_fill(&view, 7.0).unwrap().to_vec().unwrap(), filled, "{dtype}");
            let set: Vec<u8> = host.iter().map(|v| u8::from(*v != 0.0)).collect();
            assert_eq!(bytes(x.to_dtype(DType::Bool)), set, "{dtype}");
            let back: Vec<f32> = expected.iter().map(|b| f32::from(*b)).collect();
            assert_eq!(view.to_dtype(dtype).unwrap().to_vec().unwrap(), back, "{dtype}");
        }
        let turned = Tensor::full(device, [n], 1.0, DType::Bool).unwrap();
        let not: Vec<u8> = expected.iter().map(|b| 1 - b).collect();
        let zero = Tensor::zeros(device, [n], DType::Bool).unwrap();
        assert_eq!(bytes(view.where_cond(&zero, &turned)), not);
        assert_eq!(bytes(turned.masked_fill(&view, 0.0)), not);
        assert_eq!(
            bytes(map_typed("x0 || s0", &[&view], &[Number::Int(0)], view.shape(), DType::Bool)),
            expected
        );
        let any = |how, found: bool| assert_eq!(bytes(fold(how, &view, &[], false)), [u8::from(found)]);
        any(Fold::Any, expected.contains(&1));
        any(Fold::All, !expected.contains(&0));
        any(Fold::Max, expected.contains(&1));
        any(Fold::Min, !expected.contains(&0));
        let (sorted, places) = view.sort(0, false).unwrap();
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by_key(|i| expected[*i]);
        assert_eq!(bytes(Ok(sorted)), order.iter().map(|i| expected[*i]).collect::<Vec<_>>());
        assert_eq!(places.to_u32().unwrap(), order.iter().map(|i| *i as u32).collect::<Vec<_>>());
    });
}

#[test]
fn what_is_no_zero_sets_a_mask() {
    for device in devices() {
        let values = [0.0, -0.0, 0.25, f32::NAN, f32::INFINITY, -3.0, 1e-30];
        let set = [0, 0, 1, 1, 1, 1, 1];
        let x = Tensor::from_f32(&device, [7], &values, DType::F32).unwrap();
        assert_eq!(bytes(x.to_dtype(DType::Bool)), set);
        assert_eq!(
            bytes(fuse(&[&x], |t| t[0].to_dtype(DType::Bool)).and_then(|y| y.to_dtype(DType::Bool))),
            set
        );
        let words = Tensor::from_u32(&device, [3], &[256, 0, u32::MAX]).unwrap();
        assert_eq!(bytes(words.to_dtype(DType::Bool)), [1, 0, 1]);
        let mask = Tensor::from_bytes(&device, [3], &[1, 0, 1], DType::Bool).unwrap();
        assert_eq!(mask.bits_as(DType::U32).err().unwrap().kind(), ErrorKind::DType);
        assert_eq!(
            Tensor::from_bytes(&device, [3], &[0; 12], DType::Bool).err().unwrap().kind(),
            ErrorKind::Shape
        );
    }
}

/// Generated kernels load vectors if operands are aligned, and single elements if a mask is not.
#[test]
fn trees_over_masks_at_every_offset_agree() {
    for device in devices() {
        for dtype in [DType::F32, DType::Bf16] {
            for [rows, columns] in [[3, 5], [4, 32], [5, 64]] {
                for offset in OFFSETS {
                    let n = rows * columns;
                    let (view, _) = at(&device, n, offset);
                    let mask = view.reshape([rows, columns]).unwrap();
                    let x = Tensor::from_f32(&device, [rows, columns], &numbers(n), dtype).unwrap();
                    let y = fuse(&[&x, &mask], |t| t[0].masked_fill(&t[1], -4.0)?.mul(&t[0])?.add(&t[1]));
                    let of = |i: usize| {
                        let (v, m) = (numbers(n)[i], f32::from(bit(i)));
                        (if m == 0.0 { v } else { -4.0 }) * v + m
                    };
                    let expected: Vec<f32> = (0..n).map(of).collect();
                    assert_eq!(
                        y.unwrap().to_vec().unwrap(),
                        expected,
                        "{dtype} {rows} x {columns} at {offset}"
                    );
                    let sums = fuse(&[&x, &mask], |t| t[1].where_cond(&t[0], &t[1])?.sum(&[1])).unwrap();
                    let row = |r: usize| {
                        (0..columns)
                            .map(move |c| f32::from(bit(r * columns + c)) * numbers(n)[r * columns + c])
                    };
                    let expected: Vec<f32> = (0..rows).map(|r| row(r).sum()).collect();
                    assert_eq!(sums.to_vec().unwrap(), expected);
                    // A comparison that is also a result.
                    let (below, z) = lazy(|| {
                        let below = x.lt(&x.mul(&x)?)?;
                        let z = below.where_cond(&x, &x.add_scalar(1.0)?)?;
                        Ok((below, z))
                    })
                    .unwrap();
                    let less = |v: f32| v < v * v;
                    assert_eq!(
                        bytes(Ok(below)),
                        numbers(n).iter().map(|v| u8::from(less(*v))).collect::<Vec<_>>()
                    );
                    let expected: Vec<f32> =
                        numbers(n).iter().map(|v| if less(*v) { *v } else { v + 1.0 }).collect();
                    assert_eq!(z.to_vec().unwrap(), expected);
                }
            }
        }
    }
}

/// The memory of a captured step can contain masks of odd lengths next to each other.
#[test]
fn masks_of_odd_lengths_lie_in_a_graph() {
    for device in &devices()[..2] {
        let x = Tensor::from_f32(device, [131], &numbers(131), DType::F32).unwrap();
        let step = || {
            let parts = [1, 3, 5, 122].into_iter().scan(0, |at, n| {
                *at += n;
                Some(*at - n..*at)
            });
            let zero = Tensor::zeros(device, [], DType::F32)?;
            let masks = parts.map(|part| x.slice(0, part)?.gt(&zero)).collect::<Result<Vec<_>>>()?;
            cat(&masks.iter().collect::<Vec<_>>(), 0)
        };
        let (graph, mask) = Graph::capture(device, step).unwrap();
        let turned: Vec<f32> = numbers(131).iter().map(|v| -v).collect();
        x.set_f32(&turned).unwrap();
        graph.replay().unwrap();
        assert_eq!(bytes(Ok(mask)), turned.iter().map(|v| u8::from(*v > 0.0)).collect::<Vec<_>>());
    }
}
