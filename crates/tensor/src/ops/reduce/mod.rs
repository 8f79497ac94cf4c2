//! Sum, mean and maximum over any axes.
//!
//! A tensor is reshaped to `(outer, axis, inner)`: as a view if the reduced axes are adjacent, otherwise as a copy. A work-group reduces each row
//! (`inner` 1); for columns, groups read whole pieces of rows. If this gives too few groups, the axis is divided into parts, and a second launch
//! reduces their results, which are f32 for every dtype.

mod fold;

pub use fold::{Fold, fold};

use super::elementwise::larger;
use super::prelude::*;

static KERNEL: Kernel = Kernel::new("reduce", cl_file!("reduce.cl"))
    .include(&[cl_file!("../include/vector16.cl")])
    .tune(&[("WG", &[128, 256, 64]), ("VW", &[4]), ("STREAMED", &[0]), ("ALIGNED", &[1, 0])])
    .tune_cpu(&[("WG", &[1]), ("VW", &[0]), ("STREAMED", &[1, 0]), ("ALIGNED", &[0])]);

/// Columns that one work-item streams; `COLUMNS` in the kernel.
const STREAMED_COLUMNS: usize = 2048;
/// Minimum elements of a part of an axis: with fewer, a second launch costs more than it gains.
const PART: usize = 8 << 10;

/// Maximum number of adjacent items along a row.
const ACROSS: usize = 32;

/// The reduction: `scale * op`, stored as `dtype`.
#[derive(Clone, Copy)]
struct Job {
    op: &'static str,
    dtype: DType,
    scale: f32,
}

fn reduce(job: Job, x: &Tensor, axes: &[usize], keep: bool) -> Result<Tensor> {
    let Slab { x, sizes, out } = Slab::of(x, axes, keep)?;
    slabs(job, &x, sizes)?.reshape(out)
}

/// A tensor in the form `(outer, axis, inner)`.
struct Slab {
    x: Tensor,
    sizes: [usize; 3],
    /// Shape of the result.
    out: Shape,
}

impl Slab {
    fn of(x: &Tensor, axes: &[usize], keep: bool) -> Result<Self> {
        let dims = x.dims();
        let size = |axes: &[usize]| axes.iter().map(|a| dims[*a]).product::<usize>();
        let kept: Vec<usize> = (0..dims.len()).filter(|a| !axes.contains(a)).collect();
        let out = kept_shape(&Shape::from(dims), axes);
        let out = if keep { out } else { kept.iter().map(|a| dims[*a]).collect::<Vec<_>>().into() };
        let neighbours = axes.windows(2).all(|w| w[1] == w[0] + 1);
        let (y, outer, inner) = match (axes.first(), axes.last()) {
            (Some(first), Some(last)) if neighbours && x.is_contiguous() => {
                (x.contiguous()?, dims[..*first].iter().product(), dims[last + 1..].iter().product())
            }
            _ => (x.permute(&[kept.as_slice(), axes].concat())?.contiguous()?, size(&kept), 1),
        };
        Ok(Self { x: y, sizes: [outer, size(axes), inner], out })
    }
}

/// Reduces x `(outer, axis, inner)` → `(outer, inner)`.
fn slabs(job: Job, x: &Tensor, [outer, axis, inner]: [usize; 3]) -> Result<Tensor> {
    let grid = Grid::new(x, inner, ACROSS);
    let groups = outer * grid.blocks;
    let wanted = sum_parts(x.device(), x.count());
    let longest = axis * inner.min(grid.columns()) / PART;
    if groups < wanted && longest > 1 {
        let per = axis.div_ceil(wanted.div_ceil(groups.max(1)).min(longest));
        let parts = axis.div_ceil(per);
        let part =
            grid.launch(Job { dtype: DType::F32, scale: 1.0, ..job }, x, [outer, axis, inner], parts, per)?;
        // Few rows: adjacent sectors of 32 bytes, so that all units have some.
        let narrow = Grid::new(&part, inner, if grid.aligned { 2 } else { ACROSS });
        return narrow.launch(job, &part, [outer, parts, inner], 1, parts);
    }
    grid.launch(job, x, [outer, axis, inner], 1, axis)
}

/// Kernel for slabs with rows of `inner` elements, and their division between groups.
struct Grid {
    entry: &'static str,
    local: [usize; 3],
    lanes: usize,
    /// Whether `reduce_columns` loads vectors of 16 bytes.
    aligned: bool,
    /// Groups along a row.
    blocks: usize,
}

impl Grid {
    fn new(x: &Tensor, inner: usize, across: usize) -> Self {
        let value = |name| Tuning::value(x.device(), &KERNEL, 0, name);
        let (wg, lanes, aligned) = (value("WG"), value("VW"), false);
        if inner == 1 {
            return Self { entry: "reduce_rows", local: [wg, 1, 1], lanes, aligned, blocks: 1 };
        }
        if value("STREAMED") == 1 {
            let blocks = inner.div_ceil(STREAMED_COLUMNS);
            return Self { entry: "reduce_streamed", local: [1, 1, 1], lanes, aligned, blocks };
        }
        let whole = 16 / x.dtype().size();
        let aligned = value("ALIGNED") == 1 && inner.is_multiple_of(whole);
        let lanes = if aligned { whole } else { lanes };
        let across = inner.div_ceil(lanes).next_power_of_two().min(across).min(wg);
        let blocks = inner.div_ceil(across * lanes);
        Self { entry: "reduce_columns", local: [across, wg / across, 1], lanes, aligned, blocks }
    }
    /// Returns the columns of one group.
    fn columns(&self) -> usize {
        if self.entry == "reduce_streamed" { STREAMED_COLUMNS } else { self.local[0] * self.lanes }
    }
    /// Runs one launch: `(outer, axis, inner)` → `(outer, parts, inner)`, with parts of `per` elements of the axis.
    fn launch(
        &self,
        job: Job,
        x: &Tensor,
        [outer, axis, inner]: [usize; 3],
        parts: usize,
        per: usize,
    ) -> Result<Tensor> {
        let y = Tensor::empty(x.device(), [outer, parts, inner], job.dtype)?;
        if y.count() == 0 {
            return Ok(y);
        }
        let launch =
            KERNEL.launch(self.entry).define("DTYPE", x.dtype().code()).define("OUT", job.dtype.code());
        let launch = launch.define("OP", job.op).define("VW", self.lanes).define("ALIGNED", self.aligned);
        let launch = launch.read(x).write(&y);
        if self.entry == "reduce_rows" {
            let rows = outer * parts;
            let launch = launch.groups(row_groups(x.device(), rows, per)).scalar(rows).scalar(axis);
            launch.scalar(parts).scalar(per).scalar(job.scale).run()?;
        } else {
            let launch =
                launch.local(self.local).groups(outer * parts * self.blocks).scalar(axis).scalar(inner);
            launch.scalar(parts).scalar(per).scalar(self.blocks).scalar(job.scale).run()?;
        }
        Ok(y)
    }
}

fn axes_of(op: &str, x: &Tensor, axes: &[isize]) -> Result<Vec<usize>> {
    let mut out = axes.iter().map(|a| x.shape().axis(op, *a)).collect::<Result<Vec<_>>>()?;
    out.sort_unstable();
    if out.windows(2).any(|w| w[0] == w[1]) {
        return Err(Error::shape(format!("{op}: axes {axes:?} name one axis twice")));
    }
    Ok(out)
}

/// Returns the shape with the reduced axes as ones, from which a gradient broadcasts back.
fn kept_shape(x: &Shape, axes: &[usize]) -> Shape {
    x.dims()
        .iter()
        .enumerate()
        .map(|(i, n)| if axes.contains(&i) { 1 } else { *n })
        .collect::<Vec<_>>()
        .into()
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
        let dims: Vec<usize> =
            (0..x.shape.rank()).filter(|a| !axes.contains(a)).map(|a| x.shape.dims()[a]).collect();
        out.shape = dims.into();
    }
    out
}

/// Returns whether these are the last axes: the kernel of an expression tree processes whole rows.
fn last(axes: &[usize], x: &Tensor) -> bool {
    axes.iter().copied().eq(x.shape().rank() - axes.len()..x.shape().rank())
}

/// Sum or mean over axes, accumulated in f32.
#[derive(Clone)]
pub struct Sum {
    pub(super) axes: Vec<usize>,
    pub(super) keep: bool,
    pub(super) mean: bool,
    /// Storage type of the result [default: the input's].
    pub(super) dtype: Option<DType>,
}

impl Sum {
    /// Returns the factor of the sum.
    fn scale(&self, x: &Shape) -> f64 {
        let n: usize = self.axes.iter().map(|a| x.dims()[*a]).product();
        if self.mean { 1.0 / n as f64 } else { 1.0 }
    }
}

impl Op<1> for Sum {
    const NAME: &'static str = "sum";
    type Saved = ();
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, ())> {
        check::float("sum", "x", x)?;
        let job =
            Job { op: "SUM", dtype: self.dtype.unwrap_or(x.dtype()), scale: self.scale(x.shape()) as f32 };
        Ok((reduce(job, x, &self.axes, self.keep)?, ()))
    }
    fn term(&self, [x]: [&Tensor; 1]) -> Result<Option<Term>> {
        check::float("sum", "x", x)?;
        let Self { axes, keep, mean, dtype } = self.clone();
        let dtype = dtype.unwrap_or(x.dtype());
        Ok(last(&axes, x).then_some(Term::Sum { axes, keep, mean, dtype }))
    }
    fn backward(&self, [x]: [&Tensor; 1], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let dy = if self.mean { dy.mul_scalar(self.scale(x.shape()) as f32)? } else { dy.clone() };
        Ok([Some(dy.to_dtype(x.dtype())?.reshape(kept_shape(x.shape(), &self.axes))?.expand(x.shape())?)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        let scale = self.scale(&x.shape);
        reference(x, &self.axes, self.keep, 0.0, |a, b| a + b).map(|v| v * scale)
    }
    fn called(&self) -> &'static str {
        match (self.mean, self.dtype) {
            (true, _) => "mean",
            (false, Some(DType::F32)) => "sum_f32",
            _ => Self::NAME,
        }
    }
    fn calls() -> Vec<Call> {
        vec![
            over_axes(
                "sum",
                "Sum over `axes`, by default all, which stay as size 1 with `keep`. Accumulated in f32.",
            )
            .run(|a| a.inputs::<1>()?[0].sum(&a.get::<Vec<_>>("axes")?, a.get("keep")?)),
            over_axes("sum_f32", "The sum, stored as f32 for every type of x.")
                .run(|a| a.inputs::<1>()?[0].sum_f32(&a.get::<Vec<_>>("axes")?, a.get("keep")?)),
            over_axes("mean", "Mean over `axes`, by default all, which stay as size 1 with `keep`.")
                .run(|a| a.inputs::<1>()?[0].mean(&a.get::<Vec<_>>("axes")?, a.get("keep")?)),
            Call::new("sum_to", "Sums over the axes that broadcasting from `shape` added or repeated.")
                .inputs(&["x"])
                .required("shape", AttributeKind::Ints)
                .run(|a| a.inputs::<1>()?[0].sum_to(&a.get::<Vec<usize>>("shape")?.into())),
        ]
    }
    fn attributes(&self) -> Attributes {
        vec![("axes", self.axes.as_slice().into()), ("keep", self.keep.into())]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let op = |axes: &[usize], keep| Self { axes: axes.to_vec(), keep, mean: false, dtype: None };
        let sample = |op: Self, shape: &[usize]| {
            let terms = op.axes.iter().map(|a| shape[*a]).product();
            Sample::new(op, [SampleInput::normal(shape)]).sums(terms)
        };
        vec![
            sample(op(&[1], false), &[3, 37]).bench(&[&[4096, 4096]]),
            sample(op(&[0], true), &[5, 19]).bench(&[&[4096, 4096]]),
            sample(Self { dtype: Some(DType::F32), ..op(&[0], false) }, &[9, 21]),
            sample(Self { mean: true, ..op(&[0, 2], false) }, &[2, 3, 4, 5]),
            sample(Self { mean: true, ..op(&[1, 2], true) }, &[2, 3, 4]).light(),
            Sample::new(op(&[1], false), [SampleInput::uniform(&[3, 37], -1e30, 3e30)])
                .sums(37)
                .extreme()
                .light(),
            sample(op(&[0], false), &[6]).light(),
            sample(op(&[0], false), &[1]).light(),
            sample(op(&[0], false), &[0, 4]).light(),
            sample(op(&[0], false), &[4, 0]).light(),
        ]
    }
}

/// Builds a call with the attributes of reductions.
fn over_axes(name: &'static str, doc: &'static str) -> Call {
    Call::new(name, doc).inputs(&["x"]).default("axes", []).default("keep", false)
}

/// Maximum over axes, NaN if an element is NaN. Ties share the gradient evenly, as in PyTorch's `amax`.
#[derive(Clone)]
pub struct Max {
    pub(super) axes: Vec<usize>,
    pub(super) keep: bool,
}

impl Op<1> for Max {
    const NAME: &'static str = "max";
    type Saved = Tensor;
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, Tensor)> {
        check::float("max", "x", x)?;
        if self.axes.iter().any(|a| x.dims()[*a] == 0) && kept_shape(x.shape(), &self.axes).count() > 0 {
            return Err(Error::shape(format!("max: cannot reduce an empty axis of shape {}", x.shape())));
        }
        let y = reduce(Job { op: "MAX", dtype: x.dtype(), scale: 1.0 }, x, &self.axes, self.keep)?;
        let kept = y.reshape(kept_shape(x.shape(), &self.axes))?;
        Ok((y, kept))
    }
    fn term(&self, [x]: [&Tensor; 1]) -> Result<Option<Term>> {
        check::float("max", "x", x)?;
        let Self { axes, keep } = self.clone();
        Ok((last(&axes, x) && x.count() > 0).then_some(Term::Max { axes, keep }))
    }
    fn backward(&self, [x]: [&Tensor; 1], y: &Tensor, dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let ties = map("x0 == x1 ? (FV)(1.0f) : (FV)(0.0f)", &[x, y], &[], x.shape(), DType::F32)?;
        let count = reduce(Job { op: "SUM", dtype: DType::F32, scale: 1.0 }, &ties, &self.axes, true)?;
        let dy = dy.reshape(y.shape())?;
        Ok([Some(map("x0 * x1 / x2", &[&ties, &dy, &count], &[], x.shape(), x.dtype())?)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        reference(x, &self.axes, self.keep, f64::NEG_INFINITY, larger)
    }
    fn calls() -> Vec<Call> {
        let doc = "Maximum over `axes`, by default all; NaN if an element is NaN. Ties share the gradient.";
        vec![
            over_axes("max", doc).run(|a| a.inputs::<1>()?[0].max(&a.get::<Vec<_>>("axes")?, a.get("keep")?)),
        ]
    }
    fn attributes(&self) -> Attributes {
        vec![("axes", self.axes.as_slice().into()), ("keep", self.keep.into())]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize], axes: &[usize]| {
            Sample::new(Self { axes: axes.to_vec(), keep: false }, [SampleInput::distinct(shape)])
        };
        vec![
            sample(&[3, 37], &[1]),
            sample(&[5, 19], &[0]),
            sample(&[2, 3, 4], &[0, 2]),
            Sample::new(Self { axes: vec![1], keep: false }, [SampleInput::uniform(&[3, 37], -3e38, -1e38)])
                .extreme()
                .light(),
            sample(&[1], &[0]),
            sample(&[0, 3], &[1]),
        ]
    }
}

/// Reductions as methods. Negative axes count from the end; an empty list means all axes.
impl Tensor {
    /// Returns the sum over `axes`, which stay as size 1 with `keep`. It is stored in this tensor's type and accumulated in f32. Sums of integers
    /// are exact, wrap, and do not have a gradient.
    pub fn sum(&self, axes: &[isize], keep: bool) -> Result<Self> {
        self.sum_as("sum", axes, keep, false, None)
    }
    /// Returns the same sum, stored as f32, for sums that f16 cannot hold or bf16 would round away.
    pub fn sum_f32(&self, axes: &[isize], keep: bool) -> Result<Self> {
        self.sum_as("sum_f32", axes, keep, false, Some(DType::F32))
    }
    /// Returns the same sum of floats, stored as `dtype`.
    pub(crate) fn sum_stored(&self, axes: &[isize], dtype: DType) -> Result<Self> {
        self.sum_as("sum", axes, false, false, Some(dtype))
    }
    /// Returns the mean over `axes`.
    pub fn mean(&self, axes: &[isize], keep: bool) -> Result<Self> {
        self.sum_as("mean", axes, keep, true, None)
    }
    fn sum_as(
        &self,
        name: &str,
        axes: &[isize],
        keep: bool,
        mean: bool,
        dtype: Option<DType>,
    ) -> Result<Self> {
        if !self.dtype().is_float() && !mean && dtype.is_none() {
            return fold(Fold::Sum, self, axes, keep);
        }
        check::float(name, "x", self)?;
        let axes =
            if axes.is_empty() { (0..self.shape().rank()).collect() } else { axes_of(name, self, axes)? };
        if axes.is_empty() {
            return self.to_dtype(dtype.unwrap_or(self.dtype()));
        }
        Sum { axes, keep, mean, dtype }.apply([self])
    }
    /// Returns the maximum over `axes`; NaN if an element is NaN. Maxima of integers do not have a gradient.
    pub fn max(&self, axes: &[isize], keep: bool) -> Result<Self> {
        if !self.dtype().is_float() {
            return fold(Fold::Max, self, axes, keep);
        }
        let axes =
            if axes.is_empty() { (0..self.shape().rank()).collect() } else { axes_of("max", self, axes)? };
        if axes.is_empty() {
            return Ok(self.clone());
        }
        Max { axes, keep }.apply([self])
    }
    /// Sums over the axes that broadcasting from `shape` added or repeated.
    pub fn sum_to(&self, shape: &Shape) -> Result<Self> {
        if shape == self.shape() {
            return Ok(self.clone());
        }
        let new = self.shape().rank() - shape.rank();
        let repeated = |i: &usize| *i < new || shape.dims()[i - new] != self.dims()[*i];
        let axes: Vec<usize> = (0..self.shape().rank()).filter(repeated).collect();
        Sum { axes, keep: true, mean: false, dtype: None }.apply([self])?.reshape(shape)
    }
    /// Returns whether all elements are finite. Waits for the device.
    pub fn all_finite(&self) -> Result<bool> {
        if self.count() == 0 {
            return Ok(true);
        }
        let bad =
            map("(fabs(x0) <= FLT_MAX) ? (FV)(0.0f) : (FV)(1.0f)", &[self], &[], self.shape(), DType::F32)?;
        Ok(bad.max(&[], false)?.item()? == 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i % 7) as f32 - 3.0).collect()
    }

    /// Tests 16-byte loads, which CPUs do not use by default: rows of whole vectors and others, axes in parts and whole.
    #[test]
    fn aligned_columns_give_exact_sums_of_integers() {
        let device = crate::suite::test_device().unwrap();
        let tuning = Tuning::of(&device);
        let params = [("WG", 64), ("VW", 4), ("STREAMED", 0), ("ALIGNED", 1)];
        tuning.try_out("reduce", 0, Some(params.map(|(name, value)| (name.into(), value)).into()));
        for (n, inner, dtype) in
            [(3, 8, DType::F16), (5000, 40, DType::Bf16), (70, 772, DType::F32), (9, 21, DType::Bf16)]
        {
            let data = small(n * inner);
            let mut expected = vec![0f32; inner];
            data.iter().enumerate().for_each(|(i, v)| expected[i % inner] += v);
            let x = Tensor::from_f32(&device, [n, inner], &data, dtype).unwrap();
            assert_eq!(x.sum_f32(&[0], false).unwrap().to_vec().unwrap(), expected, "{n} x {inner} {dtype}");
        }
        tuning.try_out("reduce", 0, None);
    }

    /// Tests that a NaN survives the maximum of vectors, lanes, items and parts, with every value of the kernel's parameters.
    #[test]
    fn a_nan_stays_in_a_maximum_wherever_it_is() {
        let sim = Device::open("sim", &netcl_device::Settings::default()).unwrap();
        for device in [crate::suite::test_device().unwrap(), sim] {
            let check = |context: &str| {
                for (n, inner) in [(69, 1), (11, 37), (30_000, 1)] {
                    let places = [0, 1, n / 2, n - 2, n - 1];
                    let mut data = vec![1.0; places.len() * n * inner];
                    for (slab, place) in places.into_iter().enumerate() {
                        data[(slab * n + place) * inner + slab % inner] = f32::NAN;
                    }
                    let x = Tensor::from_f32(&device, [places.len(), n, inner], &data, DType::F32).unwrap();
                    let y = x.max(&[1], false).unwrap().to_vec().unwrap();
                    for (i, got) in y.iter().enumerate() {
                        let expected = i % inner == i / inner % inner;
                        assert_eq!(got.is_nan(), expected, "{context}: {n} x {inner}: [{i}] is {got}");
                    }
                }
            };
            check("as it is");
            let tuning = Tuning::of(&device);
            let candidates = tuning.candidates("reduce");
            assert!(candidates.len() > 1);
            for params in candidates {
                tuning.try_out("reduce", 0, Some(params.clone()));
                check(&format!("{params:?}"));
            }
            tuning.try_out("reduce", 0, None);
        }
    }

    /// Tests long axes, which are divided into parts. They are too large for the suite's differences, so the sums are exact here.
    #[test]
    fn long_axes_in_parts_give_exact_sums_of_integers() {
        let device = crate::suite::test_device().unwrap();
        for (shape, axis) in
            [([3, 70_001, 1], 1), ([1, 9001, 21], 1), ([1, 201, 2100], 1), ([100_003, 1, 2], 0)]
        {
            let data = small(shape.iter().product());
            let [outer, n, inner] = if axis == 0 { [1, shape[0], shape[1] * shape[2]] } else { shape };
            let mut expected = vec![0f64; outer * inner];
            for (i, v) in data.iter().enumerate() {
                expected[i / (n * inner) * inner + i % inner] += f64::from(*v);
            }
            for dtype in [DType::F32, DType::Bf16] {
                let x = Tensor::from_f32(&device, shape, &data, dtype).unwrap();
                let y = x.sum_f32(&[axis], false).unwrap();
                assert_eq!(y.dtype(), DType::F32);
                let got: Vec<f64> = y.to_vec().unwrap().into_iter().map(f64::from).collect();
                assert_eq!(got, expected, "{shape:?} {dtype}");
            }
        }
    }
}
