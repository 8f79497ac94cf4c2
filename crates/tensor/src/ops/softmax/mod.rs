//! Softmax and its logarithm, computed row by row in one kernel.

use super::prelude::*;
use netcl_kernel::Launch;

static KERNEL: Kernel =
    Kernel::new("softmax", cl_file!("softmax.cl")).tune(&[("VW", &[4])]).tune_cpu(&[("VW", &[0])]);

/// Maximum 16-byte vectors of a row that a work-item may keep in registers.
const HELD: usize = 4;

/// Starts a launch over rows of `n` elements of x.
fn launch(entry: &'static str, x: &Tensor, rows: usize, n: usize) -> Launch<'static> {
    let launch = KERNEL.launch(entry).define("DTYPE", x.dtype().code());
    let group = row_group(&KERNEL, x.device(), n);
    let launch = vectors_of_16_bytes(launch.define("WG", group).groups(rows), x, n);
    let held = (n * x.dtype().size()).div_ceil(16).div_ceil(group);
    match has_vectors_of_16_bytes(x, n) && held <= HELD {
        true => launch.define("HELD", held),
        false => launch,
    }
}

/// Runs one of the forward kernels over rows of the last axis: x `(.., N)` → `(.., N)`.
fn forward(entry: &'static str, x: &Tensor) -> Result<(Tensor, Tensor)> {
    check::float(entry.trim_end_matches("_fwd"), "x", x)?;
    let x = x.contiguous()?;
    let (rows, n) = x.shape().rows_cols(); // x seen as (R, N)
    let y = x.empty_like()?;
    if y.count() > 0 {
        launch(entry, &x, rows, n).read(&x).write(&y).scalar(n).run()?;
    }
    Ok((y.clone(), y))
}

fn backward(entry: &'static str, y: &Tensor, dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
    let dy = dy.contiguous()?;
    let (rows, n) = y.shape().rows_cols();
    let dx = y.empty_like()?;
    if dx.count() > 0 {
        launch(entry, y, rows, n).read(y).read(&dy).write(&dx).scalar(n).run()?;
    }
    Ok([Some(dx)])
}

/// Builds a sample with rows of large values, in every storage type.
fn far<O>(op: O, x: SampleInput) -> Sample<O, 1> {
    Sample::new(op, [x]).extreme().step(1e-3).in_order()
}

/// Operation `exp(x) / sum(exp(x))` over the last axis.
#[derive(Clone)]
pub struct Softmax;

impl Op<1> for Softmax {
    const NAME: &'static str = "softmax";
    type Saved = Tensor;
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, Tensor)> {
        forward("softmax_fwd", x)
    }
    fn term(&self, [x]: [&Tensor; 1]) -> Result<Option<Term>> {
        check::float("softmax", "x", x)?;
        Ok((x.shape().rank() > 0 && x.count() > 0).then_some(Term::Softmax))
    }
    fn backward(&self, [_]: [&Tensor; 1], y: &Tensor, dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        backward("softmax_bwd", y, dy)
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        LogSoftmax.reference([x]).map(f64::exp)
    }
    fn calls() -> Vec<Call> {
        let doc = "`exp(x) / sum(exp(x))` over an axis; a negative one counts from the end. A row of only -infinity gives NaN.";
        let call = Call::new(Self::NAME, doc).inputs(&["x"]).default("axis", -1);
        vec![call.run(|a| a.inputs::<1>()?[0].softmax(a.get("axis")?))]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize]| Sample::new(Self, [SampleInput::normal(shape)]);
        vec![
            sample(&[3, 65]).bench(&[&[16_384, 1024]]),
            sample(&[2, 2, 9]),
            sample(&[1, 304]).light(),
            sample(&[1]).light(),
            sample(&[0, 4]).light(),
            Sample::new(Self, [SampleInput::uniform(&[4, 37], -300.0, 300.0)]).named("large").light(),
            far(Self, SampleInput::uniform(&[3, 65], -1e4, 1e4)),
            far(Self, SampleInput::shifted(&[3, 65], -1e4)).named("far from zero"),
        ]
    }
}

/// Operation `x - log(sum(exp(x)))` over the last axis.
#[derive(Clone)]
pub struct LogSoftmax;

impl Op<1> for LogSoftmax {
    const NAME: &'static str = "log_softmax";
    type Saved = Tensor;
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, Tensor)> {
        forward("log_softmax_fwd", x)
    }
    fn term(&self, [x]: [&Tensor; 1]) -> Result<Option<Term>> {
        check::float("log_softmax", "x", x)?;
        Ok((x.shape().rank() > 0 && x.count() > 0).then_some(Term::LogSoftmax))
    }
    fn backward(&self, [_]: [&Tensor; 1], y: &Tensor, dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        backward("log_softmax_bwd", y, dy)
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        let mut out = Array::zeros(x.shape.clone());
        for (r, row) in x.rows().enumerate() {
            let top = row.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
            let rest = row.iter().map(|v| (v - top).exp()).sum::<f64>().ln();
            for (i, v) in row.iter().enumerate() {
                out.data[r * row.len() + i] = v - top - rest;
            }
        }
        out
    }
    fn calls() -> Vec<Call> {
        let doc = "`x - log(sum(exp(x)))` over an axis, which keeps digits that softmax and log would lose.";
        let call = Call::new(Self::NAME, doc).inputs(&["x"]).default("axis", -1);
        vec![call.run(|a| a.inputs::<1>()?[0].log_softmax(a.get("axis")?))]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize]| Sample::new(Self, [SampleInput::normal(shape)]);
        vec![
            sample(&[3, 65]).bench(&[&[16_384, 1024]]),
            sample(&[2, 300]).light(),
            far(Self, SampleInput::uniform(&[3, 65], -1e4, 1e4)),
            far(Self, SampleInput::shifted(&[3, 65], -1e4)).named("far from zero"),
            sample(&[1]).light(),
            sample(&[0, 4]).light(),
        ]
    }
}

/// Applies a row operation over any axis, which is temporarily moved to the end.
fn over(axis: isize, name: &str, x: &Tensor, op: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let axis = x.shape().axis(name, axis)?.cast_signed();
    if axis.cast_unsigned() + 1 == x.shape().rank() {
        return op(x);
    }
    op(&x.transpose(axis, -1)?)?.transpose(axis, -1)
}

impl Tensor {
    /// Computes `exp(x) / sum(exp(x))` over `axis`; a negative axis counts from the end. A row of only -infinity gives NaN.
    pub fn softmax(&self, axis: isize) -> Result<Self> {
        over(axis, "softmax", self, |x| Softmax.apply([x]))
    }
    /// Computes `x - log(sum(exp(x)))` over `axis`, which keeps digits that `softmax` followed by `log` would lose.
    pub fn log_softmax(&self, axis: isize) -> Result<Self> {
        over(axis, "log_softmax", self, |x| LogSoftmax.apply([x]))
    }
}
