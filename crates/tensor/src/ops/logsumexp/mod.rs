//! Logarithm of the sum of exponentials over an axis: what normalises a softmax, and the term that a z-loss squares (PaLM,
//! arXiv:2204.02311).

use super::prelude::*;
use netcl_kernel::Launch;

static KERNEL: Kernel =
    Kernel::new("logsumexp", cl_file!("logsumexp.cl")).tune(&[("VW", &[4])]).tune_cpu(&[("VW", &[0])]);

/// See [`Tensor::logsumexp`]; over the last axis.
#[derive(Clone)]
pub struct LogSumExp;

/// A launch of one work-group for each of `rows` rows of `n` elements of x.
fn launch(entry: &'static str, x: &Tensor, rows: usize, n: usize) -> Launch<'static> {
    let group = row_group(&KERNEL, x.device(), n);
    let launch = KERNEL.launch(entry).define("DTYPE", x.dtype().code()).define("WG", group);
    vectors_of_16_bytes(launch.groups(rows), x, n)
}

impl Op<1> for LogSumExp {
    const NAME: &'static str = "logsumexp";
    /// Maximum and inverse sum of each row, (R, 2) f32.
    type Saved = Tensor;
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, Tensor)> {
        let x = x.contiguous()?;
        let (rows, n) = x.shape().rows_cols(); // x seen as (R, N)
        let outer = &x.dims()[..x.shape().rank() - 1];
        if n == 0 {
            let y = Tensor::full(x.device(), outer, f32::NEG_INFINITY, x.dtype())?;
            return Ok((y, x.empty_f32([0])?));
        }
        let (y, saved) = (Tensor::empty(x.device(), outer, x.dtype())?, x.empty_f32([rows, 2])?);
        if rows > 0 {
            launch("logsumexp_fwd", &x, rows, n).read(&x).write(&y).write(&saved).scalar(n).run()?;
        }
        Ok((y, saved))
    }
    fn backward(&self, [x]: [&Tensor; 1], saved: &Tensor, dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let (x, dy) = (x.contiguous()?, dy.contiguous()?);
        let (rows, n) = x.shape().rows_cols();
        let dx = x.empty_like()?;
        if dx.count() > 0 {
            launch("logsumexp_bwd", &x, rows, n).read(&x).read(saved).read(&dy).write(&dx).scalar(n).run()?;
        }
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
        let doc = "`log(sum(exp(x)))` over an axis, which the result lacks. Nothing, and -infinity alone, give -infinity.";
        let call = Call::new(Self::NAME, doc).inputs(&["x"]).default("axis", -1);
        vec![call.run(|a| a.inputs::<1>()?[0].logsumexp(a.get("axis")?))]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize]| Sample::new(Self, [Input::normal(shape)]);
        let far = |x: Input| Sample::new(Self, [x]).extreme().step(1e-3).in_order();
        vec![
            sample(&[3, 65]).bench(&[&[16_384, 1024]]),
            sample(&[2, 2, 9]),
            sample(&[1, 304]).light(),
            sample(&[1]).light(),
            sample(&[0, 4]).light(),
            Sample::new(Self, [Input::uniform(&[4, 37], -300.0, 300.0)]).named("large").light(),
            far(Input::uniform(&[3, 65], -1e4, 1e4)),
            far(Input::shifted(&[3, 65], -1e4)).named("far from zero"),
        ]
    }
}

impl Tensor {
    /// `log(sum(exp(x)))` over `axis`, which the result lacks; a negative one counts from the end. Nothing, and -infinity alone, give
    /// -infinity.
    ///
    /// # Errors
    /// `Shape` for an axis that x does not have; `DType` when x is not of floats.
    pub fn logsumexp(&self, axis: isize) -> Result<Self> {
        check::float("logsumexp", "x", self)?;
        let axis = self.shape().axis("logsumexp", axis)?;
        let mut axes: Vec<usize> = (0..self.shape().rank()).filter(|a| *a != axis).collect();
        axes.push(axis);
        LogSumExp.apply([&self.permute(&axes)?])
    }
}
