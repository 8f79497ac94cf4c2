//! Ops after a product become part of its kernel.

use super::{close, counted, tensor};
use crate::ops::conv::{Conv2dOptions, conv2d};
use crate::ops::matmul::linear;
use crate::suite::test_device;
use crate::{DType, Device, Result, Settings, Tensor, lazy};

/// Returns devices for two kinds of kernels: the CPU's kernel for products with expressions, which some CPUs would not choose for few rows, and the
/// portable GPU kernels with all checks of the simulated GPU.
fn devices() -> Vec<Device> {
    let own = test_device().unwrap();
    let mut settings = own.settings().clone();
    settings.prefer.push("matmul_vector".into());
    let own = Device::open(&own.capabilities().id, &settings).unwrap();
    let sim = |kernel: &str| {
        let mut settings = Settings { prefer: vec![kernel.into()], ..Settings::default() };
        settings.sim.check = vec!["all".into()];
        Device::open("sim", &settings).unwrap()
    };
    vec![own, sim("matmul_tile"), sim("matmul_tile_small")]
}

/// The test device chooses its kernel. If the kernel does not support expressions, they need one more launch.
#[test]
fn what_follows_a_product_of_any_kernel_agrees() {
    let device = test_device().unwrap();
    for sizes in [[12, 20, 64], [2, 700, 8]] {
        let (e, l) = (leaves(&device, sizes, DType::F32), leaves(&device, sizes, DType::F32));
        let product = |t: &[Tensor]| linear(&t[0], &t[1], Some(&t[2]));
        let (y, plain) = counted(&device, || product(&e).unwrap());
        let expected = TREES[2](&y, &e[3..]).unwrap();
        let (got, launches) = counted(&device, || lazy(|| TREES[2](&product(&l)?, &l[3..])).unwrap());
        assert!((plain..=plain + 1).contains(&launches), "{sizes:?}: {launches} for {plain}");
        close(&got, &expected);
    }
}

/// Returns the number of additional launches for an expression after a product: 0, except for GPUs that may use a vendor's kernel, which does
/// not support expressions. The simulated GPU of `sim:teaching` belongs to no vendor.
pub(super) fn without_expressions(device: &Device) -> u64 {
    let device = device.capabilities();
    u64::from(!device.is_cpu() && (!device.simulated || device.sm().is_some()))
}

type Tree = fn(&Tensor, &[Tensor]) -> Result<Tensor>;

/// Trees over a product and: a tensor of its shape, one with its columns, one with its rows, a scalar.
const TREES: [Tree; 5] = [
    |y, _| y.gelu(),
    |y, t| y.mul(&t[1])?.add(&t[0]),
    |y, t| y.add_scalar(0.25)?.silu()?.mul(&t[2])?.add(&y.tanh()?),
    |y, t| y.mul(&t[3])?.lt(&t[0])?.where_cond(y, &t[0]),
    |y, t| t[1].sub(y)?.clamp(-0.5, 0.5)?.mul_scalar(3.0),
];

fn leaves(device: &Device, [m, k, n]: [usize; 3], dtype: DType) -> Vec<Tensor> {
    let dims: [&[usize]; 7] = [&[2, m, k], &[k, n], &[n], &[2, m, n], &[n], &[2, m, 1], &[1]];
    let all = dims.iter().enumerate().map(|(i, dims)| tensor(device, dims, i as f32 * 0.3));
    all.map(|x| x.to_dtype(dtype).unwrap().parameter("x")).collect()
}

#[test]
fn what_follows_a_product_is_part_of_its_kernel() {
    for device in devices() {
        // Rows up to the edge of a tile and beyond it, and sums that tiles share.
        for sizes in [[12, 20, 64], [5, 7, 9], [2, 700, 8]] {
            for (at, tree) in TREES.iter().enumerate().filter(|(at, _)| sizes[1] < 100 || *at == 2) {
                let (e, l) = (leaves(&device, sizes, DType::F32), leaves(&device, sizes, DType::F32));
                let product = |t: &[Tensor]| linear(&t[0], &t[1], Some(&t[2]));
                let (y, plain) = counted(&device, || product(&e).unwrap());
                let expected = tree(&y, &e[3..]).unwrap();
                let dy = tensor(&device, expected.dims(), 2.0);
                expected.backward_with(&dy).unwrap();
                let (got, launches) = counted(&device, || lazy(|| tree(&product(&l)?, &l[3..])).unwrap());
                // A GPU that chooses its kernel itself may split a sum into parts; that kernel does not support expressions.
                let chooses =
                    !device.capabilities().is_cpu() && device.settings().prefer == ["matmul_vector"];
                let most = plain + without_expressions(&device).max(u64::from(chooses && sizes[1] > 100));
                assert!((plain..=most).contains(&launches), "tree {at} of {sizes:?}: {launches} for {plain}");
                close(&got, &expected);
                got.backward_with(&dy).unwrap();
                for (l, e) in l.iter().zip(&e) {
                    match (l.grad(), e.grad()) {
                        (Some(l), Some(e)) => close(&l, &e),
                        (l, e) => assert_eq!(l.is_some(), e.is_some()),
                    }
                }
            }
        }
    }
}

#[test]
fn narrow_results_are_rounded_once() {
    for device in devices() {
        for dtype in [DType::F16, DType::Bf16] {
            let narrow = leaves(&device, [6, 10, 33], dtype);
            let wide: Vec<Tensor> = narrow.iter().map(|x| x.to_dtype(DType::F32).unwrap()).collect();
            let run = |t: &[Tensor]| TREES[2](&linear(&t[0], &t[1], Some(&t[2]))?, &t[3..]);
            let (expected, got) = (run(&wide).unwrap(), lazy(|| run(&narrow)).unwrap());
            assert_eq!(got.dtype(), dtype);
            let allowed = 1.5 * dtype.epsilon() as f32;
            for (g, e) in got.to_vec().unwrap().iter().zip(expected.to_vec().unwrap()) {
                assert!((g - e).abs() <= allowed * e.abs().max(1.0), "{dtype}: {g}, expected {e}");
            }
        }
    }
}

#[test]
fn kept_products_and_values_come_from_the_same_launch() {
    let device = test_device().unwrap();
    let t = leaves(&device, [12, 20, 64], DType::F32);
    let ((y, a, b), launches) = counted(&device, || {
        lazy(|| {
            let y = t[0].matmul(&t[1])?;
            let a = y.add(&t[4])?;
            let b = a.relu()?.mul_scalar(2.0)?;
            Ok((y, a, b))
        })
        .unwrap()
    });
    assert_eq!(launches, 1);
    let [ey, ea] = [t[0].matmul(&t[1]).unwrap(), t[0].matmul(&t[1]).unwrap().add(&t[4]).unwrap()];
    close(&y, &ey);
    close(&a, &ea);
    close(&b, &ea.relu().unwrap().mul_scalar(2.0).unwrap());
    // A gate: two products, one of which has an epilogue.
    let gate = |t: &[Tensor]| t[0].matmul(&t[1])?.silu()?.mul(&linear(&t[0], &t[1], Some(&t[2]))?);
    let (got, launches) = counted(&device, || lazy(|| gate(&t)).unwrap());
    assert_eq!(launches, 2);
    close(&got, &gate(&t).unwrap());
    // Row reductions, and a product of a deferred input.
    let rows = |t: &[Tensor]| t[0].exp()?.matmul(&t[1])?.softmax(-1);
    let (got, launches) = counted(&device, || lazy(|| rows(&t)).unwrap());
    assert_eq!(launches, 3);
    close(&got, &rows(&t).unwrap());
    // Run a product without other ops.
    close(&lazy(|| t[0].matmul(&t[1])).unwrap(), &ey);
}

/// If a weight is overwritten before the backward, the backward fails, as for eager ops. A write before the product runs does not change the product.
#[test]
fn products_see_what_was_there_when_they_were_called() {
    let device = test_device().unwrap();
    let t = leaves(&device, [3, 4, 5], DType::F32);
    let expected = t[0].matmul(&t[1]).unwrap().gelu().unwrap();
    let y = lazy(|| {
        let y = t[0].matmul(&t[1])?;
        t[1].set_f32(&[0.0; 20])?;
        y.gelu()
    })
    .unwrap();
    close(&y, &expected);
    let e = y.sum(&[], false).unwrap().backward().unwrap_err();
    assert!(e.message().contains("backward of matmul: input 1 (x)"), "{e}");
}

/// A 16-bit product or convolution on tensor cores takes one launch with its expression, and rounds the sum and then the result.
#[test]
fn tensor_cores_take_expressions() {
    let device = test_device().unwrap();
    if device.capabilities().sm() != Some(90) {
        println!("skipped: {} does not support wgmma", device.capabilities().id);
        return;
    }
    let tree = |y: &Tensor, t: &[Tensor]| y.mul(&t[1])?.add(&t[0])?.relu()?.add_scalar(0.5);
    let wide = |x: &Tensor| x.to_dtype(DType::F32).unwrap();
    for dtype in [DType::Bf16, DType::F16] {
        let draw = |dims: &[usize], at: f32| tensor(&device, dims, at).to_dtype(dtype).unwrap();
        for [m, k, n] in [[300, 136, 264], [1030, 64, 72]] {
            let (x, w, bias) = (draw(&[m, k], 0.0), draw(&[k, n], 0.3), draw(&[n], 0.6));
            let others = [draw(&[m, n], 0.9), draw(&[n], 1.2)];
            let product = || linear(&x, &w, Some(&bias));
            // Both kernels are verified before their first use.
            lazy(|| tree(&product()?, &others)).unwrap();
            let (y, plain) = counted(&device, || product().unwrap());
            let (got, launches) = counted(&device, || lazy(|| tree(&product()?, &others)).unwrap());
            assert_eq!(launches, plain, "{m} x {k} x {n} {dtype}");
            let expected = tree(&wide(&y), &others.each_ref().map(wide)).unwrap();
            rounded_once(&got, &expected, dtype);
        }
        for (c, o, stride) in [(16, 24, 1), (72, 136, 2), (3, 32, 2)] {
            let lie = |x: Tensor| x.permute(&[0, 3, 1, 2]).unwrap();
            let (x, w) = (lie(draw(&[3, 15, 13, c], 0.0)), lie(draw(&[o, 3, 3, c], 0.3)));
            let options = Conv2dOptions::default().padding(1).stride(stride);
            let convolved = || conv2d(&x, &w, None, options);
            convolved().unwrap();
            let (y, plain) = counted(&device, || convolved().unwrap());
            let [n, _, height, width] = y.dims4().unwrap();
            let others = [lie(draw(&[n, height, width, o], 0.9)), draw(&[o, 1, 1], 1.2)];
            lazy(|| tree(&convolved()?, &others)).unwrap();
            let (got, launches) = counted(&device, || lazy(|| tree(&convolved()?, &others)).unwrap());
            assert_eq!(launches, plain, "{c} to {o} channels {dtype}");
            let expected = tree(&wide(&y), &others.each_ref().map(wide)).unwrap();
            rounded_once(&got, &expected, dtype);
        }
    }
}

/// Checks results against the expression in f32 of the rounded sum, rounded.
fn rounded_once(got: &Tensor, expected: &Tensor, dtype: DType) {
    assert_eq!(got.dtype(), dtype);
    for (at, (g, e)) in got.to_vec().unwrap().iter().zip(expected.to_vec().unwrap()).enumerate() {
        let allowed = 1.01 * dtype.epsilon() as f32 * e.abs().max(0.01);
        assert!((g - e).abs() <= allowed, "{dtype}, element {at}: {g}, expected {e}");
    }
}
