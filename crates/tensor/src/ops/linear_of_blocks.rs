//! A linear map by quantized weights in training: the weights are frozen, and the gradient flows to the input (Dettmers et al. 2023, "QLoRA").
//!
//! Forward and backward dequantize each matrix into memory that is freed after the product, so that only one matrix is dense at a time.

use super::feed_forward::linear_residual;
use super::fused_linear::{FusedOps, fused_linear_of_blocks, fused_linear_of_parts};
use super::matmul::matmul;
use super::prelude::*;
use crate::quant::Blocks;
use crate::tape;

/// Computes `x wᵀ + bias` `(.., N)`: x `(.., K)`, w (N, K) as one or several matrices, one below the other, bias (N). The input has a gradient, the
/// weights and the bias do not.
///
/// # Errors
/// Errors of [`fused_linear_of_parts`]; `Shape` without a matrix.
pub fn linear_of_blocks(x: &Tensor, parts: &[Blocks], bias: Option<&Tensor>) -> Result<Tensor> {
    let around = FusedOps { bias, ..FusedOps::default() };
    let y = {
        let x = x.detach();
        match parts {
            [one] => fused_linear_of_blocks(&x, one, around),
            parts => fused_linear_of_parts(&x, parts, around),
        }
    }?;
    let parts = parts.to_vec();
    tape::record("linear_of_blocks", &[x], y, move |_, dy| Ok(vec![input_gradient(&parts, dy)?]))
}

/// Computes `dy w` `(.., K)` for dy `(.., N)`.
fn input_gradient(parts: &[Blocks], dy: &Tensor) -> Result<Option<Tensor>> {
    let (mut dx, mut at): (Option<Tensor>, usize) = (None, 0);
    for part in parts {
        let end = at + part.dims()[0];
        let dy = dy.slice(-1, at..end)?;
        let w = part.dense(dy.dtype())?;
        dx = Some(match &dx {
            None if dy.shape().rank() > 1 => matmul(&dy, &w)?,
            None => matmul(&dy.reshape([1, end - at])?, &w)?.reshape([w.shape().last()])?,
            Some(dx) => linear_residual(dx, &dy, &w)?,
        });
        at = end;
    }
    Ok(dx)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::join::cat;
    use crate::ops::matmul::linear;
    use crate::quant;
    use crate::suite::test_device;

    /// Result and gradient are those of the dequantized matrix.
    #[test]
    fn results_and_gradients_are_those_of_dense_weights() {
        let device = test_device().unwrap();
        let values = |n: usize, by: f32| (0..n).map(|i| (i as f32 * by).sin()).collect::<Vec<f32>>();
        let blocks = |rows: usize, format: &'static quant::Format| {
            let mut bytes = vec![0; format.size(rows * 64).unwrap()];
            format.quantise(&values(rows * 64, 0.37), 64, None, &mut bytes).unwrap();
            Blocks::new(&device, format, [rows, 64], &bytes).unwrap()
        };
        let named = |name: &str| *quant::FORMATS.iter().find(|format| format.name == name).unwrap();
        let two = [blocks(32, named("Q4_0")), blocks(16, named("Q8_0"))];
        for (parts, rows) in [(&two[..1], 3), (&two[..], 3), (&two[..], 40)] {
            let n: usize = parts.iter().map(|part| part.dims()[0]).sum();
            let dense: Vec<Tensor> = parts.iter().map(|part| part.dense(DType::F32).unwrap()).collect();
            let w = cat(&dense.iter().collect::<Vec<_>>(), 0).unwrap();
            let bias = Tensor::from_f32(&device, [n], &values(n, 0.2), DType::F32).unwrap();
            let input = || {
                Tensor::from_f32(&device, [2, rows, 64], &values(2 * rows * 64, 0.11), DType::F32)
                    .unwrap()
                    .parameter("x")
            };
            let dy =
                Tensor::from_f32(&device, [2, rows, n], &values(2 * rows * n, 0.07), DType::F32).unwrap();
            let (a, b) = (input(), input());
            let found = linear_of_blocks(&a, parts, Some(&bias)).unwrap();
            let expected = linear(&b, &w.transpose(0, 1).unwrap(), Some(&bias)).unwrap();
            found.backward_with(&dy).unwrap();
            expected.backward_with(&dy).unwrap();
            for (found, expected) in [(found, expected), (a.grad().unwrap(), b.grad().unwrap())] {
                assert_eq!(found.dims(), expected.dims());
                let (found, expected) = (found.to_vec().unwrap(), expected.to_vec().unwrap());
                for (found, expected) in found.iter().zip(expected) {
                    assert!((found - expected).abs() < 2e-5, "{found} {expected}");
                }
            }
        }
    }
}
