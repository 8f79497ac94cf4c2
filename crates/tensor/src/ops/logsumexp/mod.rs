//! Logarithm of the sum of exponentials over an axis: the normalization of a softmax, and the term that a z-loss squares (PaLM, arXiv:2204.02311).

use super::prelude::*;
use crate::expr::{Expr, computed};

/// Operation of [`Tensor::logsumexp`] over the last axis.
///
/// Computed as m + log(sum(exp(x - m))) with m the row's maximum, so that no exponential overflows (Blanchard, Higham and Higham 2021, "Accurately
/// computing the log-sum-exp and softmax functions"). An infinite maximum is not subtracted: a row of only -infinity gives -infinity, one with
/// +infinity gives +infinity, and a NaN reaches the sum in either case. The gradient is a softmax, computed from m and the sum instead of the
/// result, which is rounded to the size of m. Both are generated kernels.
#[derive(Clone)]
pub struct LogSumExp;

/// Returns expressions of each row's logarithm of the sum, m, and 1 over the sum of exponentials.
fn rows([x]: &[Expr; 1]) -> Result<[Expr; 3]> {
    let top = x.max(&[-1])?;
    let finite = top.abs()?.lt(&top.number(f32::INFINITY))?;
    let top = finite.where_cond(&top, &top.number(0.0))?;
    let sum = x.sub(&top)?.exp()?.sum(&[-1])?;
    let inverse = sum.number(1.0).div(&sum)?;
    Ok([top.add(&sum.log()?)?, top, inverse])
}

impl Op<1> for LogSumExp {
    const NAME: &'static str = "logsumexp";
    /// Maximum and inverse sum of each row, f32.
    type Saved = [Tensor; 2];
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, [Tensor; 2])> {
        let outer = &x.dims()[..x.shape().rank() - 1];
        if x.shape().last() == 0 {
            let y = Tensor::full(x.device(), outer, f32::NEG_INFINITY, x.dtype())?;
            return Ok((y, [x.empty_f32([0])?, x.empty_f32([0])?]));
        }
        let [y, top, inverse] = computed(&[x], [x.dtype(), DType::F32, DType::F32], rows)?;
        Ok((y.reshape(outer)?, [top, inverse]))
    }
    fn backward(
        &self,
        [x]: [&Tensor; 1],
        [top, inverse]: &[Tensor; 2],
        dy: &Tensor,
    ) -> Result<[Option<Tensor>; 1]> {
        if x.count() == 0 {
            return Ok([Some(x.empty_like()?)]);
        }
        let dy = dy.reshape(top.dims())?;
        let [dx] = computed(&[x, top, inverse, &dy], [x.dtype()], |[x, top, inverse, dy]: &[Expr; 4]| {
            Ok([x.sub(top)?.exp()?.mul(&inverse.mul(dy)?)?])
        })?;
        Ok([Some(dx)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        let one = |row: &[f64]| {
            let top = row.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
            let top = if top.is_infinite() { 0.0 } else { top };
            top + row.iter().map(|v| (v - top).exp()).sum::<f64>().ln()
        };
        let dims = x.shape.dims();
        Array::new(dims[..dims.len() - 1].to_vec(), x.rows().map(one).collect())
    }
    fn calls() -> Vec<Call> {
        let doc = "`log(sum(exp(x)))` over an axis, which is removed. An empty axis, or only -infinity, gives -infinity.";
        let call = Call::new(Self::NAME, doc).inputs(&["x"]).default("axis", -1);
        vec![call.run(|a| a.inputs::<1>()?[0].logsumexp(a.get("axis")?))]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize]| Sample::new(Self, [SampleInput::normal(shape)]);
        let far = |x: SampleInput| Sample::new(Self, [x]).extreme().step(1e-3).in_order();
        vec![
            sample(&[3, 65]).bench(&[&[16_384, 1024]]),
            sample(&[2, 2, 9]),
            sample(&[1, 304]).light(),
            sample(&[1]).light(),
            sample(&[0, 4]).light(),
            Sample::new(Self, [SampleInput::uniform(&[4, 37], -300.0, 300.0)]).named("large").light(),
            far(SampleInput::uniform(&[3, 65], -1e4, 1e4)),
            far(SampleInput::shifted(&[3, 65], -1e4)).named("far from zero"),
        ]
    }
}

impl Tensor {
    /// Returns `log(sum(exp(x)))` over `axis`, which is removed; a negative axis counts from the end. An empty axis, or only -infinity, gives
    /// -infinity.
    ///
    /// # Errors
    /// `Shape` for an axis that x does not have; `DType` if x does not have a float type.
    pub fn logsumexp(&self, axis: isize) -> Result<Self> {
        check::float("logsumexp", "x", self)?;
        let axis = self.shape().axis("logsumexp", axis)?;
        let mut axes: Vec<usize> = (0..self.shape().rank()).filter(|a| *a != axis).collect();
        axes.push(axis);
        LogSumExp.apply([&self.permute(&axes)?])
    }
}
