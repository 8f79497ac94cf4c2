//! Products by quantized rows in planes on tensor cores, for few rows. Weights are converted to 16-bit floats in registers. Activations stay
//! unchanged.

use super::super::gemv::Stack;
use super::super::rows_mma::{
    CHUNK, LANES, MAX_ROWS, MODEL_OF_PLANES, MmaShape, MmaSizes, PLANES_ROWS, RowsOperands, of_sorted,
};
use super::{Algorithm, GemvInt8Request};
use crate::ops::prelude::*;
use crate::quant::BlockOrder;

pub(super) static ALGORITHM: Algorithm = Algorithm {
    kernel: &PLANES_ROWS,
    supports,
    models: &[&MODEL_OF_PLANES],
    estimate: |r| {
        let (p, parts) = (r.p, r.fused.parts());
        let sizes = MmaSizes { m: p.m, n: p.n / parts, k: p.k, parts, line: p.b.col_stride, planes: true };
        if let Some(Stack::Sorted { groups, .. }) = r.fused.stack {
            // No other algorithm supports this.
            return (0.0, of_sorted(r.device(), groups.rows, groups.experts, sizes));
        }
        MmaShape::of(r.device(), sizes).map_or((f64::INFINITY, None), |(micros, shape)| (micros, Some(shape)))
    },
    run: |r, shape| match shape {
        Some(shape) => run(r, *shape),
        None => Err(Algorithm::foreign(&PLANES_ROWS)),
    },
    self_test: None,
};

fn supports(r: &GemvInt8Request<'_>) -> Result<(), &'static str> {
    let a = &r.p.a;
    match () {
        () if r.stored.order != BlockOrder::Planes => Err("the matrix is not stored in planes"),
        () if !matches!(r.c.dtype(), DType::F16 | DType::Bf16) => Err("requires f16 or bf16 results"),
        () if r.fused.stack.is_none() && !(1..=MAX_ROWS).contains(&r.p.m) => {
            Err("requires 1 to 128 rows of A, or rows sorted by matrix")
        }
        () if r.p.batch() != 1 || r.columns() == 0 || r.p.k == 0 || !r.p.k.is_multiple_of(CHUNK) => {
            Err("requires a single non-empty product with k a multiple of 128")
        }
        () if r.fused.norm.is_some() => Err("does not support a fused norm"),
        () if matches!(r.fused.stack, Some(Stack::ByRow { .. })) => Err("one matrix per row"),
        () if a.col_stride != 1
            || !a.offset().is_multiple_of(LANES)
            || r.p.m > 1 && !a.row_stride.is_multiple_of(LANES) =>
        {
            Err("rows of A that do not start at multiples of 16 bytes")
        }
        () => Ok(()),
    }
}

fn run(r: &GemvInt8Request<'_>, shape: MmaShape) -> Result<()> {
    let GemvInt8Request { c, p, fused, stored, .. } = r;
    let c_strides = [r.row_stride, 1];
    RowsOperands { c, c_strides, p, fused, b_line: p.b.col_stride, b_offset: 0, format: Some(stored.format) }
        .run(shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::fused_linear::{FusedOps, PreNorm, fused_linear, fused_linear_of_blocks};
    use crate::ops::gated::Gate;
    use crate::quant::{Blocks, FORMATS};
    use crate::random::Generator;
    use crate::suite::test_device;

    /// Compares with the product by dense weights in f32, for every format, type and number of rows, and with all fused operations.
    #[test]
    fn rows_in_planes_by_tensor_cores() {
        let device = test_device().unwrap();
        if !PLANES_ROWS.runs_on(device.capabilities()) {
            println!("skipped: {} does not have tensor cores of sm_80", device.capabilities().id);
            return;
        }
        let mut generator = Generator::new(5);
        let mut normal = |dims: &[usize], scale: f32| {
            Tensor::normal(&device, dims, 0.0, scale, DType::F32, &mut generator).unwrap()
        };
        for (dtype, epsilon) in [(DType::F16, 2e-3), (DType::Bf16, 1.2e-2)] {
            for format in FORMATS.into_iter().filter(|f| f.has_planes(256)) {
                for ([n, k], rows) in [([70, 512], 1), ([33, 256], 3), ([200, 1280], 20), ([96, 2048], 70)] {
                    let values = normal(&[2 * n, k], 0.02).to_vec().unwrap();
                    let mut bytes = vec![0; format.size(values.len()).unwrap()];
                    format.quantise(&values, k, None, &mut bytes).unwrap();
                    let blocks = Blocks::of_planes(&device, format, [2 * n, k], &bytes).unwrap();
                    let dense = blocks.dense(DType::F32).unwrap().transpose(0, 1).unwrap();
                    let [x, gamma, bias, residual] = [&[rows, k][..], &[k], &[2 * n], &[rows, n]]
                        .map(|dims| normal(dims, 1.0).to_dtype(dtype).unwrap());
                    let norm = PreNorm { gamma: &gamma, beta: None, unit_offset: false, eps: 1e-5 };
                    let plain = FusedOps::default();
                    let all = FusedOps {
                        norm: Some(norm),
                        bias: Some(&bias),
                        activation: Some((Gate::Silu, true)),
                        residual: Some(&residual),
                    };
                    for (around, wide) in [(plain, 2), (all, 1)] {
                        let got = fused_linear_of_blocks(&x, &blocks, around).unwrap();
                        let f32_of = |t: &Tensor| t.to_dtype(DType::F32).unwrap();
                        let [x, gamma, bias, residual] = [&x, &gamma, &bias, &residual].map(f32_of);
                        let around = FusedOps {
                            norm: around.norm.map(|norm| PreNorm { gamma: &gamma, ..norm }),
                            bias: around.bias.map(|_| &bias),
                            residual: around.residual.map(|_| &residual),
                            ..around
                        };
                        let expected = fused_linear(&x, &dense, around).unwrap().to_vec().unwrap();
                        let size = expected.iter().fold(0.0f32, |most, v| most.max(v.abs()));
                        assert_eq!(got.dims(), [rows, wide * n]);
                        for (i, (got, expected)) in got.to_vec().unwrap().iter().zip(expected).enumerate() {
                            let what =
                                format!("{format} {dtype} ({n}, {k}), {rows} rows, {wide}: element {i}");
                            assert!(
                                (got - expected).abs() <= epsilon * size,
                                "{what} is {got}, expected {expected}"
                            );
                        }
                    }
                }
            }
        }
    }
}
