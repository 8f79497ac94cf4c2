//! Tests beyond the samples: sizes of several blocks, in-place epilogues, messages.

use super::*;
use crate::suite::test_device;

pub(super) fn ramp(device: &Device, shape: [usize; 2], step: f32) -> (Tensor, Array) {
    let data: Vec<f32> = (0..shape[0] * shape[1]).map(|i| ((i as f32 * step) % 7.0 - 3.0) * 0.25).collect();
    let host = Array::new(shape, data.iter().map(|v| f64::from(*v)).collect());
    (Tensor::from_f32(device, shape, &data, DType::F32).unwrap(), host)
}

pub(super) fn near(got: &Tensor, expected: &Array, tolerance: f64) {
    assert_eq!(*got.shape(), expected.shape);
    let scale = expected.data.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    for (i, (g, e)) in got.to_vec().unwrap().iter().zip(&expected.data).enumerate() {
        assert!((f64::from(*g) - e).abs() <= tolerance * scale, "element {i}: {g}, expected {e}");
    }
}

/// Returns the rounding error of a sum of `terms`, which grows with the square root of the number of terms.
pub(super) fn rounding(dtype: DType, terms: usize) -> f64 {
    dtype.epsilon() * 2.0 * (terms as f64).sqrt()
}

/// Tests sizes derived from the device's own blocks. Simulators have small blocks, and need a second for half a million multiplications.
#[test]
fn sizes_of_several_blocks_in_every_layout_and_type() {
    let device = test_device().unwrap();
    let blocks = plan::CpuBlocks::of(&device, &algorithms::vector::VECTOR);
    // Two blocks and an edge, also for the 128 rows and columns of a GPU's tile.
    let [m, k, n] =
        [(blocks.mc, 139), (blocks.kc, 0), (blocks.nc, 139)].map(|(b, least)| (2 * b + 9).max(least));
    let transposed = |x: &Tensor| x.permute(&[1, 0]).unwrap().contiguous().unwrap().permute(&[1, 0]).unwrap();
    for (dims, dtypes) in [
        ([m, 22, 19], &DType::FLOATS[..]),
        ([7, k, 37], &DType::FLOATS[..]),
        ([13, 22, n], &DType::FLOATS[..]),
        ([m, k, n], &[DType::F32]),
    ] {
        let [m, k, n] = dims;
        let ((a, a_host), (b, b_host)) = (ramp(&device, [m, k], 0.37), ramp(&device, [k, n], 0.61));
        let expected = reference(&a_host, &b_host);
        for dtype in dtypes {
            let (a, b) = (a.to_dtype(*dtype).unwrap(), b.to_dtype(*dtype).unwrap());
            let tolerance = rounding(*dtype, k);
            near(&matmul(&a, &b).unwrap(), &expected, tolerance);
            near(&matmul(&transposed(&a), &transposed(&b)).unwrap(), &expected, tolerance);
            if dims.iter().any(|size| *size < 100) {
                near(&matmul(&a, &transposed(&b)).unwrap(), &expected, tolerance);
                near(&matmul(&transposed(&a), &b).unwrap(), &expected, tolerance);
            }
        }
    }
}

#[test]
fn the_gradient_of_a_bias_comes_with_the_weights_over_several_blocks() {
    let device = test_device().unwrap();
    let blocks = plan::CpuBlocks::of(&device, &algorithms::vector::VECTOR);
    let (rows, n) = (2 * blocks.kc + 9, blocks.nc + 109);
    let ((x, x_host), (dy, dy_host)) = (ramp(&device, [rows, 20], 0.37), ramp(&device, [rows, n], 0.61));
    for dtype in DType::FLOATS {
        let cast = |t: &Tensor| t.to_dtype(dtype).unwrap();
        let x = cast(&x).parameter("x");
        let w = Tensor::zeros(&device, [20, n], dtype).unwrap().parameter("w");
        let bias = Tensor::zeros(&device, [n], dtype).unwrap().parameter("bias");
        linear(&x, &w, Some(&bias)).unwrap().backward_with(&cast(&dy)).unwrap();
        let ones = Array::from_fn([1, rows], |_| 1.0);
        let sums = reference(&ones, &dy_host);
        near(&bias.grad().unwrap(), &Array::new([n], sums.data), rounding(dtype, rows));
        near(&w.grad().unwrap(), &reference(&x_host.permute(&[1, 0]), &dy_host), rounding(dtype, rows));
    }
}

#[test]
fn a_transposed_weight_gets_its_gradient() {
    let device = test_device().unwrap();
    let ((x, x_host), (dy, dy_host)) = (ramp(&device, [9, 6], 0.37), ramp(&device, [9, 5], 0.61));
    let table = Tensor::zeros(&device, [5, 6], DType::F32).unwrap().parameter("table");
    let bias = Tensor::zeros(&device, [5], DType::F32).unwrap().parameter("bias");
    linear(&x, &table.permute(&[1, 0]).unwrap(), Some(&bias)).unwrap().backward_with(&dy).unwrap();
    near(&table.grad().unwrap(), &reference(&dy_host.permute(&[1, 0]), &x_host), 1e-6);
    near(
        &bias.grad().unwrap(),
        &Array::new([5], reference(&Array::from_fn([1, 9], |_| 1.0), &dy_host).data),
        1e-6,
    );
}

#[test]
fn adds_into_c_with_a_factor() {
    let device = test_device().unwrap();
    let ((a, a_host), (b, b_host)) = (ramp(&device, [20, 600], 0.37), ramp(&device, [600, 24], 0.61));
    let expected = reference(&a_host, &b_host).map(|v| 3.0 - 0.5 * v);
    for dtype in DType::FLOATS {
        let c = Tensor::full(&device, [20, 24], 3.0, dtype).unwrap();
        let (a, b) = (a.to_dtype(dtype).unwrap(), b.to_dtype(dtype).unwrap());
        matmul_add(&c, &a, &b, -0.5).unwrap();
        near(&c, &expected, rounding(dtype, 600));
    }
    let c = Tensor::zeros(&device, [24, 20], DType::F32).unwrap();
    let message = matmul_add(&c.permute(&[1, 0]).unwrap(), &a, &b, 1.0).unwrap_err();
    assert!(message.message().contains("expected a contiguous [20, 24]"), "{message}");
}

#[test]
fn messages_name_the_axes() {
    let device = test_device().unwrap();
    let t = |dims: &[usize]| Tensor::zeros(&device, dims, DType::F32).unwrap();
    let said = |e: Result<Tensor>| e.unwrap_err().message().to_owned();
    assert_eq!(
        said(matmul(&t(&[2, 3]), &t(&[4, 5]))),
        "matmul: the last axis of a [2, 3] is 3, expected 4, the second-to-last axis of b [4, 5]"
    );
    assert!(
        said(matmul(&t(&[3]), &t(&[3, 5])))
            .starts_with("matmul: a has shape [3], expected at least two axes")
    );
    assert!(said(matmul(&t(&[2, 2, 3]), &t(&[3, 3, 5]))).contains("do not broadcast"));
    let half = t(&[3, 5]).to_dtype(DType::F16).unwrap();
    assert!(said(matmul(&t(&[2, 3]), &half)).contains("b is f16, but a is f32"));
    let (w, bias) = (t(&[3, 5]), t(&[4]));
    assert_eq!(
        said(linear(&t(&[2, 3]), &w, Some(&bias))),
        "linear: bias has shape [4], expected [5], the last axis of w [3, 5]"
    );
    assert!(said(linear(&t(&[2, 4]), &w, Some(&t(&[5])))).contains("expected 3, the first axis of w [3, 5]"));
}

/// Checks that kernels which a device does not prefer give the same results, such as GPU tiles on a CPU.
#[test]
fn tiles_agree_with_the_reference() {
    let device = test_device().unwrap();
    let tuning = Tuning::of(&device);
    let transposed = |x: &Tensor| x.permute(&[1, 0]).unwrap().contiguous().unwrap().permute(&[1, 0]).unwrap();
    let case = |variant: &str, [m, k, n]: [usize; 3], turn: [bool; 2], dtype: DType| {
        let ((a, a_host), (b, b_host)) = (ramp(&device, [m, k], 0.37), ramp(&device, [k, n], 0.61));
        let place = |x: &Tensor, turn| {
            let x = x.to_dtype(dtype).unwrap();
            if turn { transposed(&x) } else { x }
        };
        tuning.try_out("matmul", 0, Some([(variant.to_owned(), 1)].into()));
        let y = matmul(&place(&a, turn[0]), &place(&b, turn[1])).unwrap();
        near(&y, &reference(&a_host, &b_host), rounding(dtype, k));
        tuning.try_out("matmul", 0, None);
    };
    // Each case is a separate source, which a CPU driver takes seconds to compile. There are few tiles, so k is split.
    case("matmul_tile_small", [72, 140, 68], [false, true], DType::F32);
    case("matmul_tile_small", [61, 701, 50], [false, false], DType::F16);
    case("matmul_tile", [260, 68, 132], [true, true], DType::F32);
}
