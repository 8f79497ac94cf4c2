//! Sum, mean and maximum over any axes.
//!
//! The axes are brought into the form `(outer, axis, inner)`: a view where the reduced axes neighbour each other, a copy
//! otherwise. Rows (`inner` 1) are reduced by a work-group each; columns are walked by vectors of neighbours.

use super::prelude::*;

static KERNEL: Kernel =
    Kernel::new("reduce", include_str!("reduce.cl")).tune(&[("WG", &[256, 64, 128]), ("VW", &[4])]).tune_cpu(&[("VW", &[0])]);

/// Rows longer than this are split where there are too few of them to fill a device.
const SPLIT: usize = 16 << 10;

fn reduce(op: &'static str, x: &Tensor, axes: &[usize], keep: bool) -> Result<Tensor> {
    let dims = x.dims();
    let size = |axes: &[usize]| axes.iter().map(|a| dims[*a]).product::<usize>();
    let kept: Vec<usize> = (0..dims.len()).filter(|a| !axes.contains(a)).collect();
    let out: Vec<usize> = (0..dims.len()).filter(|a| keep || kept.contains(a)).map(|a| if kept.contains(&a) { dims[a] } else { 1 }).collect();
    let neighbours = axes.windows(2).all(|w| w[1] == w[0] + 1);
    let (x, outer, inner) = match (axes.first(), axes.last()) {
        (Some(first), Some(last)) if neighbours && x.is_contiguous() => {
            (x.contiguous()?, dims[..*first].iter().product(), dims[last + 1..].iter().product())
        }
        _ => (x.permute(&[kept.as_slice(), axes].concat())?.contiguous()?, size(&kept), 1),
    };
    let y = rows(op, &x, outer, size(axes), inner)?;
    y.reshape(out)
}

/// `(outer, axis, inner)` → `(outer, inner)`.
fn rows(op: &'static str, x: &Tensor, outer: usize, axis: usize, inner: usize) -> Result<Tensor> {
    let split = if inner == 1 { axis / SPLIT } else { axis / 256 };
    let wide = outer * inner.div_ceil(8) < 4 * x.device().capabilities().compute_units as usize;
    if wide && split > 1 && x.dtype() == DType::F32 && axis.is_multiple_of(split) {
        // Two passes in a fixed order: parts of the axis first, then their results.
        let part = rows(op, x, outer * split, axis / split, inner)?;
        return rows(op, &part, outer, split, inner);
    }
    let y = Tensor::empty(x.device(), [outer, inner], x.dtype())?;
    if y.count() == 0 {
        return Ok(y);
    }
    let (entry, groups) = if inner == 1 { ("reduce_rows", [outer, 1, 1]) } else { ("reduce_columns", [0, 0, 1]) };
    let wg = Tuning::value(x.device(), &KERNEL, 0, "WG");
    let lanes = Tuning::value(x.device(), &KERNEL, 0, "VW");
    let groups = if inner == 1 { groups } else { [inner.div_ceil(lanes * wg), outer, 1] };
    let launch = KERNEL.launch(entry).define("DTYPE", x.dtype().code()).define("OP", op);
    launch.groups3(groups).read(x).write(&y).scalar(axis).scalar(inner).run()?;
    Ok(y)
}

fn axes_of(op: &str, x: &Tensor, axes: &[isize]) -> Result<Vec<usize>> {
    let mut out = axes.iter().map(|a| x.shape().axis(op, *a)).collect::<Result<Vec<_>>>()?;
    out.sort_unstable();
    if out.windows(2).any(|w| w[0] == w[1]) {
        return Err(Error::shape(format!("{op}: axes {axes:?} name one axis twice")));
    }
    Ok(out)
}

/// Shape with the reduced axes as ones: what a gradient broadcasts back from.
fn kept_shape(x: &Shape, axes: &[usize]) -> Shape {
    x.dims().iter().enumerate().map(|(i, n)| if axes.contains(&i) { 1 } else { *n }).collect::<Vec<_>>().into()
}

fn reference(x: &Array, axes: &[usize], keep: bool, start: f64, f: fn(f64, f64) -> f64) -> Array {
    let kept = kept_shape(&x.shape, axes);
    let strides = kept.strides();
    let mut out = Array::from_fn(kept.clone(), |_| start);
    for (i, v) in x.data.iter().enumerate() {
        let at = unravel(i, &x.shape);
        let to: usize = (0..at.len()).filter(|d| !axes.contains(d)).map(|d| at[d] * strides[d]).sum();
        out.data[to] = f(out.data[to], *v);
    }
    if !keep {
        let dims: Vec<usize> = (0..x.shape.rank()).filter(|a| !axes.contains(a)).map(|a| x.shape.dims()[a]).collect();
        out.shape = dims.into();
    }
    out
}

/// Sum over axes, accumulated in f32.
#[derive(Clone)]
pub struct Sum {
    axes: Vec<usize>,
    keep: bool,
}

impl Op<1> for Sum {
    const NAME: &'static str = "sum";
    type Saved = ();
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, ())> {
        check::float("sum", "x", x)?;
        Ok((reduce("SUM", x, &self.axes, self.keep)?, ()))
    }
    fn backward(&self, [x]: [&Tensor; 1], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(dy.reshape(kept_shape(x.shape(), &self.axes))?.expand(x.shape())?)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        reference(x, &self.axes, self.keep, 0.0, |a, b| a + b)
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize], axes: &[usize], keep| {
            Sample::new(Self { axes: axes.to_vec(), keep }, [Input::normal(shape)]).sums(axes.iter().map(|a| shape[*a]).product())
        };
        vec![
            sample(&[3, 37], &[1], false).bench(&[&[4096, 4096]]),
            sample(&[5, 19], &[0], true).bench(&[&[4096, 4096]]),
            sample(&[2, 3, 4, 5], &[0, 2], false),
            sample(&[2, 3, 4], &[1, 2], true),
            sample(&[2, 700, 3], &[1], false),
            sample(&[6], &[0], false),
            sample(&[1], &[0], false),
            sample(&[0, 4], &[0], false),
            sample(&[4, 0], &[0], false),
        ]
    }
}

/// Maximum over axes. Ties share the gradient evenly, as PyTorch's `amax` does.
#[derive(Clone)]
pub struct Max {
    axes: Vec<usize>,
    keep: bool,
}

impl Op<1> for Max {
    const NAME: &'static str = "max";
    type Saved = Tensor;
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, Tensor)> {
        check::float("max", "x", x)?;
        if self.axes.iter().any(|a| x.dims()[*a] == 0) && kept_shape(x.shape(), &self.axes).count() > 0 {
            return Err(Error::shape(format!("max: nothing to take the maximum of in shape {}", x.shape())));
        }
        let y = reduce("MAX", x, &self.axes, self.keep)?;
        let kept = y.reshape(kept_shape(x.shape(), &self.axes))?;
        Ok((y, kept))
    }
    fn backward(&self, [x]: [&Tensor; 1], y: &Tensor, dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let ties = map("x0 == x1 ? (FV)(1.0f) : (FV)(0.0f)", &[x, y], &[], x.shape(), DType::F32)?;
        let count = reduce("SUM", &ties, &self.axes, true)?;
        let dy = dy.reshape(y.shape())?;
        Ok([Some(map("x0 * x1 / x2", &[&ties, &dy, &count], &[], x.shape(), x.dtype())?)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        reference(x, &self.axes, self.keep, f64::NEG_INFINITY, f64::max)
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize], axes: &[usize]| {
            Sample::new(Self { axes: axes.to_vec(), keep: false }, [Input::distinct(shape)])
        };
        vec![sample(&[3, 37], &[1]), sample(&[5, 19], &[0]), sample(&[2, 3, 4], &[0, 2]), sample(&[1], &[0]), sample(&[0, 3], &[1])]
    }
}

/// Reductions as methods. Negative axes count from the end; no axes means all.
impl Tensor {
    /// Sum over `axes`, which stay as size 1 when `keep`.
    pub fn sum(&self, axes: &[isize], keep: bool) -> Result<Self> {
        let axes = if axes.is_empty() { (0..self.shape().rank()).collect() } else { axes_of("sum", self, axes)? };
        if axes.is_empty() {
            return Ok(self.clone());
        }
        Sum { axes, keep }.apply([self])
    }
    /// Mean over `axes`.
    pub fn mean(&self, axes: &[isize], keep: bool) -> Result<Self> {
        let sum = self.sum(axes, keep)?;
        let n = self.count() / sum.count().max(1);
        sum.div_scalar(n as f32)
    }
    /// Maximum over `axes`.
    pub fn max(&self, axes: &[isize], keep: bool) -> Result<Self> {
        let axes = if axes.is_empty() { (0..self.shape().rank()).collect() } else { axes_of("max", self, axes)? };
        if axes.is_empty() {
            return Ok(self.clone());
        }
        Max { axes, keep }.apply([self])
    }
    /// Sums away the axes that broadcasting added or repeated to get here from `shape`.
    pub fn sum_to(&self, shape: &Shape) -> Result<Self> {
        if shape == self.shape() {
            return Ok(self.clone());
        }
        let new = self.shape().rank() - shape.rank();
        let repeated = |i: &usize| *i < new || shape.dims()[i - new] != self.dims()[*i];
        let axes: Vec<usize> = (0..self.shape().rank()).filter(repeated).collect();
        Sum { axes, keep: true }.apply([self])?.reshape(shape)
    }
    /// Whether no element is a NaN or infinity. Waits for the device.
    pub fn all_finite(&self) -> Result<bool> {
        if self.count() == 0 {
            return Ok(true);
        }
        let bad = map("(fabs(x0) <= FLT_MAX) ? (FV)(0.0f) : (FV)(1.0f)", &[self], &[], self.shape(), DType::F32)?;
        Ok(bad.max(&[], false)?.item()? == 0.0)
    }
}
