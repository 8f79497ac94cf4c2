//! Linear maps with blocks whose input is rounded to bytes.

use super::{Activations, Blocks, FORMATS, Format};
use crate::ops::fused_linear::{
    FusedOps, PreNorm, fused_linear, fused_linear_of_blocks, fused_linear_of_parts,
};
use crate::ops::gated::Gate;
use crate::ops::join::cat;
use crate::random::Generator;
use crate::suite::test_device;
use crate::{DType, Device, Tensor};

fn formats() -> impl Iterator<Item = &'static Format> {
    FORMATS.into_iter().filter(|f| f.on_devices())
}

/// Returns a row length of whole blocks; for small blocks, an odd number of them.
fn length(format: &Format, blocks: usize) -> usize {
    if format.block == 32 { 32 * (2 * blocks + 1) } else { 256 * blocks }
}

/// A matrix of normal values as blocks, and its elements.
struct Case {
    blocks: Blocks,
    bytes: Vec<u8>,
    w: Vec<f32>,
    dense: Tensor,
}

fn case(device: &Device, format: &'static Format, dims: [usize; 2]) -> Case {
    let mut generator = Generator::new(u64::from(format.number));
    let values =
        Tensor::normal(device, dims, 0.0, 1.0, DType::F32, &mut generator).unwrap().to_vec().unwrap();
    let mut bytes = vec![0; format.size(values.len()).unwrap()];
    format.quantise(&values, dims[1], None, &mut bytes).unwrap();
    let w = format.dequantised(&bytes, values.len()).unwrap();
    let dense = Tensor::from_f32(device, dims, &w, DType::F32).unwrap().transpose(0, 1).unwrap();
    let blocks = Blocks::with_activations(device, format, dims, &bytes, Activations::Int8).unwrap();
    Case { blocks, bytes, w, dense }
}

fn normal(device: &Device, dims: &[usize], seed: u64) -> Tensor {
    Tensor::normal(device, dims, 0.0, 1.0, DType::F32, &mut Generator::new(seed)).unwrap()
}

/// Creates rows whose groups are codes times a power of two, including the code 127, so that rounding does not change them.
fn codes(rows: usize, k: usize) -> Vec<f32> {
    (0..rows * k)
        .map(|i| {
            let code = if i % 32 == 9 { 127.0 } else { ((i * 7919 + i / 32 * 31) % 255) as f32 - 127.0 };
            code * [0.5, 0.03125, 4.0][i / 32 % 3]
        })
        .collect()
}

#[test]
fn the_bytes_and_the_elements_are_the_files() {
    let device = test_device().unwrap();
    for format in formats() {
        let dims = [37, length(format, 2)];
        let Case { blocks, bytes, w, .. } = case(&device, format, dims);
        assert!(blocks.to_bytes().unwrap() == bytes, "{format}");
        // Rows are padded to whole panels if panels are used.
        let rows = if device.capabilities().is_cpu() { 48 } else { 37 };
        assert_eq!(blocks.bytes(), (rows * bytes.len() / 37).next_multiple_of(4), "{format}");
        for (got, expected) in blocks.dense(DType::F32).unwrap().to_vec().unwrap().iter().zip(&w) {
            assert!(
                (got - expected).abs() <= 1e-6 * (1.0 + expected.abs()),
                "{format}: {got}, expected {expected}"
            );
        }
    }
}

#[test]
fn rows_are_looked_up_by_number() {
    let device = test_device().unwrap();
    for format in formats() {
        let (rows, k) = (37, length(format, 2));
        let Case { blocks, bytes, w, .. } = case(&device, format, [rows, k]);
        let plain = Blocks::new(&device, format, [rows, k], &bytes).unwrap();
        let numbers = [36, 0, 17, 37, 36, u32::MAX];
        let ids = Tensor::from_u32(&device, [9], &[&[5, 6, 7], &numbers[..]].concat()).unwrap();
        let ids = ids.slice(0, 3..9).unwrap().reshape([2, 3]).unwrap();
        for blocks in [blocks, plain] {
            let y = blocks.gather(&ids, 0.5, DType::F32).unwrap();
            assert_eq!(y.dims(), [2, 3, k]);
            for (got, id) in y.to_vec().unwrap().chunks(k).zip(numbers) {
                match w.chunks(k).nth(id as usize) {
                    Some(row) => assert!(
                        got.iter().zip(row).all(|(a, b)| (a - 0.5 * b).abs() <= 1e-6 * (1.0 + b.abs()))
                    ),
                    None => assert!(got.iter().all(|v| v.is_nan()), "{format}: row {id}"),
                }
            }
        }
    }
    let ids = Tensor::from_f32(&device, [1], &[0.0], DType::F32).unwrap();
    let blocks = case(&device, Format::named("Q4_0").unwrap(), [2, 32]).blocks;
    assert!(blocks.gather(&ids, 1.0, DType::F32).unwrap_err().message().contains("expected u32"));
}

/// If rounding does not change the activations, products are exact, except for the few roundings in a sum of groups.
#[test]
fn codes_by_codes_are_exact() {
    let device = test_device().unwrap();
    for format in formats() {
        for (n, blocks, rows) in [(70, 2, 1), (33, 1, 3), (130, 4, 8), (16, 1, 2), (5, 3, 20)] {
            let k = length(format, blocks);
            let Case { blocks, w, .. } = case(&device, format, [n, k]);
            let x = codes(rows, k);
            let input = Tensor::from_f32(&device, [rows, k], &x, DType::F32).unwrap();
            let y = fused_linear_of_blocks(&input, &blocks, FusedOps::default()).unwrap().to_vec().unwrap();
            for (i, got) in y.iter().enumerate() {
                let terms = x[i / n * k..][..k].iter().zip(&w[i % n * k..][..k]);
                let terms: Vec<f64> = terms.map(|(x, w)| f64::from(*x) * f64::from(*w)).collect();
                let (sum, size) = (terms.iter().sum::<f64>(), terms.iter().map(|t| t.abs()).sum::<f64>());
                // The product of a minimum may be as large as the product of a code.
                let error = (f64::from(*got) - sum).abs();
                assert!(
                    error <= 1e-6 * size,
                    "{format} ({n}, {k}), {rows} rows: element {i} is {got}, expected {sum}"
                );
            }
        }
    }
}

#[test]
fn what_stands_around_a_map_is_computed() {
    let device = test_device().unwrap();
    for (format, n) in formats().zip([70, 33, 48, 130].into_iter().cycle()) {
        let k = length(format, 2);
        let Case { blocks, dense, .. } = case(&device, format, [2 * n, k]);
        let bias = normal(&device, &[2 * n], 3);
        // The number of rows is a define, like in the tests of dense maps.
        let all: &[usize] = if format.name == "Q4_K" { &[1, 2, 8, 11] } else { &[1] };
        for rows in all {
            let x = Tensor::from_f32(&device, [*rows, k], &codes(*rows, k), DType::F32).unwrap();
            let x = x.mul_scalar(0.015625).unwrap();
            let residual = normal(&device, &[*rows, n], 4);
            for gated in [false, true] {
                let around = FusedOps {
                    bias: Some(&bias),
                    activation: Some((Gate::Silu, gated)),
                    residual: gated.then_some(&residual),
                    ..FusedOps::default()
                };
                let expected = fused_linear(&x, &dense, around).unwrap().to_vec().unwrap();
                let got = fused_linear_of_blocks(&x, &blocks, around).unwrap().to_vec().unwrap();
                let largest = expected.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
                for (a, b) in got.iter().zip(&expected) {
                    assert!(
                        (a - b).abs() <= 2e-6 * largest,
                        "{format}, {rows} rows, gated {gated}: {a}, expected {b}"
                    );
                }
            }
        }
    }
}

/// An element of a group is off by at most half a step, which is max / 254. The bound of the sum assumes that all errors have the signs of
/// the weights.
#[test]
fn rounding_is_within_its_bound() {
    let device = test_device().unwrap();
    for (format, rows) in formats().zip([1, 4, 13].into_iter().cycle()) {
        // On other devices, more rows are multiplied as floats.
        let rows = if device.capabilities().is_cpu() { rows } else { rows.min(8) };
        let (n, k) = (49, length(format, 3));
        let Case { blocks, w, dense, .. } = case(&device, format, [n, k]);
        let (x, gamma) = (normal(&device, &[rows, k], 1), normal(&device, &[k], 2));
        let norm = PreNorm { gamma: &gamma, beta: None, unit_offset: false, eps: 1e-5 };
        for norm in [None, Some(norm), Some(PreNorm { beta: Some(&gamma), ..norm })] {
            let around = FusedOps { norm, ..FusedOps::default() };
            let exact = fused_linear(&x, &dense, around).unwrap().to_vec().unwrap();
            let got = fused_linear_of_blocks(&x, &blocks, around).unwrap().to_vec().unwrap();
            // The values before rounding: the norm, through an identity map.
            let one: Vec<f32> = (0..k * k).map(|i| if i / k == i % k { 1.0 } else { 0.0 }).collect();
            let identity = Tensor::from_f32(&device, [k, k], &one, DType::F32).unwrap();
            let read = fused_linear(&x, &identity, around).unwrap().to_vec().unwrap();
            let mut worst = 0.0_f32;
            for (i, (got, exact)) in got.iter().zip(&exact).enumerate() {
                let (x, w) = (&read[i / n * k..][..k], &w[i % n * k..][..k]);
                let off = |(x, w): (&[f32], &[f32])| {
                    let most = x.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
                    most / 254.0 * w.iter().map(|w| w.abs()).sum::<f32>()
                };
                let bound: f32 = x.chunks(32).zip(w.chunks(32)).map(off).sum();
                let size: f32 = x.iter().zip(w).map(|(x, w)| (x * w).abs()).sum();
                let error = (got - exact).abs();
                assert!(
                    error <= bound + 1e-5 * size,
                    "{format}: element {i} is {got}, expected {exact} within {bound}"
                );
                worst = worst.max(error / bound);
            }
            assert!(worst > 1e-3, "{format}: nothing was rounded");
        }
    }
}

#[test]
fn a_row_is_the_same_alone_and_among_others() {
    let device = test_device().unwrap();
    for (name, rows) in [("Q4_0", 19), ("Q6_K", 8), ("Q4_K", 9)] {
        let format = Format::named(name).unwrap();
        // Few at a time if the device does not support more.
        let rows = if device.capabilities().is_cpu() { rows } else { 8 };
        let (n, k) = (75, 512);
        let blocks = case(&device, format, [n, k]).blocks;
        let x = normal(&device, &[rows, k], 7);
        let all = fused_linear_of_blocks(&x, &blocks, FusedOps::default()).unwrap().to_vec().unwrap();
        for row in [0, 3, rows - 1] {
            let one = x.slice(0, row..row + 1).unwrap();
            let one = fused_linear_of_blocks(&one, &blocks, FusedOps::default()).unwrap().to_vec().unwrap();
            assert!(all[row * n..][..n] == one, "{name}, row {row}");
        }
    }
}

#[test]
fn parts_lie_side_by_side() {
    let device = test_device().unwrap();
    let parts: Vec<Blocks> = [("Q4_K", 40), ("Q6_K", 16), ("Q8_0", 7)]
        .into_iter()
        .map(|(name, n)| case(&device, Format::named(name).unwrap(), [n, 256]).blocks)
        .collect();
    let (gamma, bias) = (normal(&device, &[256], 2), normal(&device, &[63], 3));
    let norm = Some(PreNorm { gamma: &gamma, beta: None, unit_offset: true, eps: 1e-5 });
    for rows in [1, 5, 21] {
        let x = normal(&device, &[1, rows, 256], 8);
        let got =
            fused_linear_of_parts(&x, &parts, FusedOps { norm, bias: Some(&bias), ..FusedOps::default() });
        let mut at = 0;
        let each = parts.iter().map(|part| {
            let bias = bias.slice(0, at..at + part.dims()[0]).unwrap();
            at += part.dims()[0];
            fused_linear_of_blocks(&x, part, FusedOps { norm, bias: Some(&bias), ..FusedOps::default() })
                .unwrap()
        });
        let each: Vec<Tensor> = each.collect();
        let expected = cat(&each.iter().collect::<Vec<_>>(), -1).unwrap();
        let got = got.unwrap();
        assert_eq!(got.dims(), [1, rows, 63]);
        assert!(got.to_vec().unwrap() == expected.to_vec().unwrap(), "{rows} rows");
    }
}

#[test]
fn what_is_not_finite_is_seen_and_what_is_tiny_is_zero() {
    let device = test_device().unwrap();
    for name in ["Q8_0", "Q4_K"] {
        let (n, k) = (20, 256);
        let blocks = case(&device, Format::named(name).unwrap(), [n, k]).blocks;
        let mut x = vec![1.0; 5 * k];
        (x[40], x[k + 255], x[2 * k]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        x[3 * k..4 * k].fill(0.0);
        x[4 * k..].fill(1e-38);
        let x = Tensor::from_f32(&device, [5, k], &x, DType::F32).unwrap();
        let y = fused_linear_of_blocks(&x, &blocks, FusedOps::default()).unwrap().to_vec().unwrap();
        assert!(y[..3 * n].iter().all(|v| v.is_nan()), "{name}: {y:?}");
        assert!(y[3 * n..].iter().all(|v| *v == 0.0), "{name}: {y:?}");
    }
}

#[test]
fn inputs_and_results_of_16_bits() {
    let device = test_device().unwrap();
    for dtype in [DType::F16, DType::Bf16] {
        let Case { blocks, dense, .. } = case(&device, Format::named("Q5_K").unwrap(), [50, 256]);
        let x =
            Tensor::from_f32(&device, [3, 256], &codes(3, 256), dtype).unwrap().mul_scalar(0.015625).unwrap();
        let got = fused_linear_of_blocks(&x, &blocks, FusedOps::default()).unwrap();
        assert_eq!(got.dtype(), dtype);
        let x = x.to_dtype(DType::F32).unwrap();
        let expected = fused_linear(&x, &dense, FusedOps::default()).unwrap().to_dtype(dtype).unwrap();
        for (a, b) in got.to_vec().unwrap().iter().zip(expected.to_vec().unwrap()) {
            assert!((a - b).abs() <= 0.01 * (1.0 + b.abs()), "{dtype}: {a}, expected {b}");
        }
    }
}

/// Rows in planes give the same results as rows in the file's order: all elements, rows by index, and products of few rows with all
/// surrounding operations.
#[test]
fn planes_are_what_rows_of_the_file_are() {
    let device = test_device().unwrap();
    let [n, k] = [37, 768];
    let mut formats = 0;
    for format in FORMATS.into_iter().filter(|format| format.has_planes(k)) {
        let mut from = Generator::new(3);
        let values = from.normal(n * k, 0.0, 1.0);
        let mut bytes = vec![0; format.size(n * k).unwrap()];
        format.quantise(&values, k, None, &mut bytes).unwrap();
        let planes = Blocks::of_planes(&device, format, [n, k], &bytes).unwrap();
        let file = Blocks::with_activations(&device, format, [n, k], &bytes, Activations::Int8).unwrap();
        assert!(planes.to_bytes().unwrap() == bytes, "{format}");
        let same = |a: &Tensor, b: &Tensor, bound: f32, what: &str| {
            let (a, b) = (a.to_vec().unwrap(), b.to_vec().unwrap());
            let most = b.iter().fold(0f32, |most, v| most.max(v.abs()));
            let off = a.iter().zip(&b).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(a.len() == b.len() && off <= bound * most, "{format} {what}: {off} of {most}");
        };
        let mut exact = vec![0.0; n * k];
        format.dequantise(&bytes, &mut exact).unwrap();
        let exact = Tensor::from_f32(&device, [n, k], &exact, DType::F32).unwrap();
        same(&planes.dense(DType::F32).unwrap(), &exact, 1e-6, "dense");
        same(&planes.dense(DType::Bf16).unwrap(), &exact, 1.0 / 256.0, "dense in bf16");
        let ids = Tensor::from_u32(&device, [3], &[36, 0, 17]).unwrap();
        let (a, b) = (planes.gather(&ids, 2.0, DType::F32), file.gather(&ids, 2.0, DType::F32));
        same(&a.unwrap(), &b.unwrap(), 1e-6, "gather");
        let outside = Tensor::from_u32(&device, [1], &[37]).unwrap();
        assert!(
            planes.gather(&outside, 1.0, DType::F32).unwrap().to_vec().unwrap().iter().all(|v| v.is_nan())
        );
        for m in [2, 9] {
            let x = Tensor::normal(&device, [m, k], 0.0, 1.0, DType::F32, &mut from).unwrap();
            let [a, b] =
                [&planes, &file].map(|w| fused_linear_of_blocks(&x, w, FusedOps::default()).unwrap());
            // Here, more than 8 rows are multiplied by dense copies, and on CPUs with rounded activations.
            same(&a, &b, if m > 8 { 2e-2 } else { 1e-5 }, "product");
        }
        formats += 1;
    }
    assert_eq!(formats, 8);
}
