//! The same with a quantized weight, which is frozen: some of its rows are dense at a time.

use super::{LinearCrossEntropy, linear_cross_entropy, rows_of};
use crate::ops::cross_entropy::Reduction;
use crate::ops::matmul::{Epilogue, MatmulProblem, Matrix, accumulate, product};
use crate::ops::prelude::*;
use crate::ops::view::place;
use crate::quant::Blocks;
use crate::tape;
use netcl_device::Capabilities;
use std::ops::Range;

/// Share of the device's memory that a dense part of the weight may take.
const DENSE_SHARE: usize = 64;
/// Minimum rows of such a part.
const MIN_DENSE_ROWS: usize = 256;

/// Computes [`linear_cross_entropy`] of x `(.., C)`, quantized rows `(V, C)` and targets `(..)`. Only x has a gradient. At most a 64th of the device's
/// memory is taken by dequantized rows; a weight that is smaller is dequantized at once.
///
/// # Errors
/// Same as [`linear_cross_entropy`].
pub fn linear_cross_entropy_of_blocks(
    x: &Tensor,
    weight: &Blocks,
    targets: &Tensor,
    options: LinearCrossEntropy,
) -> Result<Tensor> {
    let [v, c] = weight.dims();
    let rows = rows_of_head(x.device().capabilities(), [v, c], x.dtype());
    if rows >= v
        || options.reduction == Reduction::None
        || x.shape().last() != c
        || options.label_smoothing > 0.0
    {
        return linear_cross_entropy(x, &weight.dense(x.dtype())?, targets, options);
    }
    in_parts(x, weight, targets, (options, rows))
}

/// Returns the rows of a quantized weight `(V, C)` that [`linear_cross_entropy_of_blocks`] dequantizes at a time.
pub fn rows_of_head(device: &Capabilities, [v, c]: [usize; 2], dtype: DType) -> usize {
    let memory = usize::try_from(device.global_mem).unwrap_or(usize::MAX);
    let fit = memory / DENSE_SHARE / c.saturating_mul(dtype.size()).max(1);
    v.min(1 << fit.max(MIN_DENSE_ROWS).ilog2())
}

/// Does the same with at most `part` dense rows.
fn in_parts(
    x: &Tensor,
    weight: &Blocks,
    targets: &Tensor,
    (options, part): (LinearCrossEntropy, usize),
) -> Result<Tensor> {
    let op = LinearCrossEntropy::NAME;
    check::indices(op, "targets", targets)?;
    let ((rows, c), [v, _]) = (x.shape().rows_cols(), weight.dims());
    if targets.count() != rows {
        return Err(Error::shape(format!("{op}: targets has shape {}, x {}", targets.shape(), x.shape())));
    }
    let options = LinearCrossEntropy { gradients: tape::records(&[x]), ..options };
    let (device, loss) = (x.device(), x.empty_f32([rows])?);
    let targets = targets.contiguous()?.reshape([rows])?;
    let flat = x.detach().contiguous()?.reshape([rows, c])?;
    let dx = if options.gradients { Some(flat.empty_like()?) } else { None };
    let one = dx.as_ref().map(|_| Tensor::ones(device, [1], DType::F32)).transpose()?;
    let chunk = options.rows(device.capabilities(), v, x.dtype());
    for first in (0..rows).step_by(chunk) {
        let n = chunk.min(rows - first);
        let some = flat.slice(0, first..first + n)?;
        let logits = Tensor::empty(device, [n, v], x.dtype())?;
        for range in parts(v, part) {
            let w = Matrix::of(op, "weight", &dense(weight, &range, x.dtype())?)?;
            place(
                &product(Matrix::rows_of(&some)?, w.transposed(), &Epilogue::NONE)?,
                &logits,
                1,
                range.start,
            )?;
        }
        options.loss().over_logits(
            &logits,
            &rows_of(&targets, first, n)?,
            &rows_of(&loss, first, n)?,
            one.as_ref(),
            v,
        )?;
        let Some(dx) = &dx else { continue };
        // The parts' products are summed in f32.
        let sum = Tensor::empty(device, [n, c], DType::F32)?;
        for range in parts(v, part) {
            let w = Matrix::of(op, "weight", &dense(weight, &range, x.dtype())?)?;
            let dlogits = logits.slice(1, range.clone())?.contiguous()?;
            accumulate(&sum, &MatmulProblem::new(Matrix::rows_of(&dlogits)?, w, &[])?, range.start == 0)?;
        }
        place(&sum.to_dtype(x.dtype())?, dx, 0, first)?;
    }
    let (y, scale) = match options.reduction {
        Reduction::Mean => options.loss().mean(&loss, &targets, x.dtype())?,
        _ => (loss.sum(&[], false)?.reshape([])?, Tensor::ones(device, [1], DType::F32)?),
    };
    tape::record("linear_cross_entropy_of_blocks", &[x], y, move |inputs, dy| {
        let (Some(dx), Some(x)) = (&dx, inputs.first()) else { return Ok(vec![None]) };
        let factor = map("x0 * x1", &[&scale, dy], &[], scale.shape(), DType::F32)?;
        Ok(vec![Some(
            map("x0 * x1", &[dx, &factor], &[], dx.shape(), x.dtype())?.reshape(x.shape().clone())?,
        )])
    })
}

fn parts(v: usize, part: usize) -> impl Iterator<Item = Range<usize>> {
    (0..v).step_by(part).map(move |first| first..v.min(first + part))
}

/// Dequantizes rows.
fn dense(weight: &Blocks, rows: &Range<usize>, dtype: DType) -> Result<Tensor> {
    let number = |row: usize| u32::try_from(row).map_err(|_| Error::shape(format!("row {row} of a weight")));
    let ids = Tensor::arange(weight.words().device(), number(rows.start)?..number(rows.end)?)?;
    weight.gather(&ids, 1.0, dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant;
    use crate::suite::test_device;

    /// Loss and gradient are those of the whole dequantized weight.
    #[test]
    fn parts_of_the_weight_give_the_loss_and_gradient_of_the_whole() {
        let device = test_device().unwrap();
        let values = |n: usize, by: f32| (0..n).map(|i| (i as f32 * by).sin()).collect::<Vec<f32>>();
        let format = quant::Format::named("Q8_0").unwrap();
        let (rows, v, c) = (300, 70, 32);
        let mut bytes = vec![0; format.size(v * c).unwrap()];
        format.quantise(&values(v * c, 0.37), c, None, &mut bytes).unwrap();
        let weight = Blocks::new(&device, format, [v, c], &bytes).unwrap();
        let targets: Vec<u32> = (0..rows as u32).map(|i| i * 7 % 70).collect();
        let targets = Tensor::from_u32(&device, [2, rows / 2], &targets).unwrap();
        for reduction in [Reduction::Mean, Reduction::Sum] {
            let options = LinearCrossEntropy { chunk: Some(256), ..LinearCrossEntropy::with(reduction) };
            let step = |part: Option<usize>| {
                let x =
                    Tensor::from_f32(&device, [2, rows / 2, c], &values(rows * c, 0.11), DType::F32).unwrap();
                let x = x.parameter("x");
                let loss = match part {
                    Some(part) => in_parts(&x, &weight, &targets, (options, part)).unwrap(),
                    None => linear_cross_entropy_of_blocks(&x, &weight, &targets, options).unwrap(),
                };
                loss.mul_scalar(0.5).unwrap().backward().unwrap();
                (loss.to_vec().unwrap()[0], x.grad().unwrap().to_vec().unwrap())
            };
            let (loss, gradient) = step(None);
            for part in [32, 64] {
                let (found, dx) = step(Some(part));
                assert!((found / loss - 1.0).abs() < 1e-6, "{found} {loss}");
                let largest = gradient.iter().fold(0f32, |most, g| most.max(g.abs()));
                let far = dx.iter().zip(&gradient).find(|(f, e)| (*f - *e).abs() > 1e-6 * largest.max(1e-3));
                assert!(far.is_none(), "{far:?}");
            }
        }
    }
}
