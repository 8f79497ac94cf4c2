//! Views: other shapes over the same storage. Only `contiguous`, and `reshape` of a tensor that is not contiguous, copy.

use super::copy::{as_bits, copy};
use super::map::row_grid;
use super::prelude::*;
use std::ops::Range;

static PLACE: Kernel = Kernel::new("place", cl_file!("copy/place.cl"))
    .tune(&[("WG", &[128]), ("VW", &[4])])
    .tune_cpu(&[("VW", &[0])]);

/// Operation that keeps the elements in order and changes the shape.
#[derive(Clone)]
pub struct Reshape {
    pub(super) shape: Shape,
    /// Whether to copy even if a view is possible, so that kernels can bind the result from its first element.
    pub(super) dense: bool,
}

impl Op<1> for Reshape {
    const NAME: &'static str = "reshape";
    type Saved = ();
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, ())> {
        if x.count() != self.shape.count() {
            return Err(Error::shape(format!(
                "reshape: shape {} has {}, {} has {}",
                x.shape(),
                counted(x.count(), "element"),
                self.shape,
                self.shape.count()
            )));
        }
        let fits = if self.dense { x.is_dense() } else { x.is_contiguous() };
        let x = if fits { x.clone() } else { copy(x)? };
        let layout = Layout { offset: x.layout().offset, ..Layout::contiguous(self.shape.clone()) };
        Ok((x.with_layout(layout), ()))
    }
    fn backward(&self, [x]: [&Tensor; 1], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(dy.reshape(x.shape())?)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        Array::new(self.shape.clone(), x.data.clone())
    }
    fn calls() -> Vec<Call> {
        let axis = |name, doc| Call::new(name, doc).inputs(&["x"]).required("axis", AttributeKind::Int);
        vec![
            Call::new(
                "reshape",
                "The same elements in order in another shape; one size may be -1, which is inferred. Copies only if x is not contiguous.",
            )
            .inputs(&["x"])
            .required("shape", AttributeKind::Ints)
            .run(|a| {
                let [x] = a.inputs()?;
                x.reshape(inferred(x, &a.get::<Vec<i64>>("shape")?)?)
            }),
            Call::new("contiguous", "The same elements, contiguous and at an offset that every kernel can bind. Copies only if necessary.")
                .inputs(&["x"])
                .run(|a| a.inputs::<1>()?[0].contiguous()),
            axis("unsqueeze", "Inserts an axis of size 1 before `axis`; a negative one counts from after the last.").run(|a| {
                let [x] = a.inputs()?;
                x.unsqueeze(x.shape().new_axis("unsqueeze", a.get("axis")?)?)
            }),
            axis("squeeze", "Removes an axis of size 1; a negative one counts from the end.")
                .run(|a| a.inputs::<1>()?[0].squeeze(a.get("axis")?)),
        ]
    }
    fn attributes(&self) -> Attributes {
        vec![("shape", self.shape.dims().into())]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |from: &[usize], to: &[usize]| {
            Sample::new(Self { shape: to.into(), dense: false }, [SampleInput::normal(from)]).exact()
        };
        let far = Sample::new(
            Self { shape: [3, 4].into(), dense: false },
            [SampleInput::values(&[2, 6], FAR, None)],
        );
        vec![
            far.exact().extreme().pointwise().light(),
            sample(&[2, 6], &[3, 4]),
            sample(&[1], &[1, 1]),
            sample(&[0, 3], &[3, 0]),
            sample(&[1], &[]),
        ]
    }
}

/// Operation that reorders axes.
#[derive(Clone)]
pub struct Permute {
    pub(super) axes: Vec<usize>,
}

impl Op<1> for Permute {
    const NAME: &'static str = "permute";
    type Saved = ();
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, ())> {
        let mut seen = vec![false; x.shape().rank()];
        self.axes.iter().for_each(|a| {
            if let Some(s) = seen.get_mut(*a) {
                *s = true;
            }
        });
        if self.axes.len() != x.shape().rank() || seen.contains(&false) {
            return Err(Error::shape(format!(
                "permute: axes {:?} are not a permutation of the {} of {}",
                self.axes,
                counted(x.shape().rank(), "axis"),
                x.shape()
            )));
        }
        let pick = |from: &[usize]| self.axes.iter().map(|a| from[*a]).collect::<Vec<_>>();
        let layout = x.layout();
        let shape = Shape::from(pick(layout.shape.dims()));
        Ok((x.with_layout(Layout { shape, strides: pick(&layout.strides), offset: layout.offset }), ()))
    }
    fn backward(&self, [_]: [&Tensor; 1], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let mut inverse = vec![0; self.axes.len()];
        self.axes.iter().enumerate().for_each(|(i, a)| inverse[*a] = i);
        Ok([Some(dy.permute(&inverse)?)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        x.permute(&self.axes)
    }
    fn calls() -> Vec<Call> {
        vec![
            Call::new("permute", "Reorders the axes: axis i of the result is `axes[i]` of x. No copy.")
                .inputs(&["x"])
                .required("axes", AttributeKind::Ints)
                .run(|a| {
                    let ([x], axes) = (a.inputs()?, a.get::<Vec<isize>>("axes")?);
                    let axes = axes
                        .into_iter()
                        .map(|axis| x.shape().axis("permute", axis))
                        .collect::<Result<Vec<_>>>()?;
                    x.permute(&axes)
                }),
            Call::new("transpose", "Exchanges two axes; negative ones count from the end. No copy.")
                .inputs(&["x"])
                .default("a", -2)
                .default("b", -1)
                .run(|a| a.inputs::<1>()?[0].transpose(a.get("a")?, a.get("b")?)),
        ]
    }
    fn attributes(&self) -> Attributes {
        vec![("axes", self.axes.as_slice().into())]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |from: &[usize], axes: &[usize]| {
            Sample::new(Self { axes: axes.to_vec() }, [SampleInput::normal(from)]).exact()
        };
        let far = Sample::new(Self { axes: vec![2, 0, 1] }, [SampleInput::values(&[2, 3, 4], FAR, None)]);
        vec![
            far.exact().extreme().pointwise().light(),
            sample(&[2, 3, 4], &[2, 0, 1]),
            sample(&[1], &[0]),
            sample(&[0, 3], &[1, 0]),
            sample(&[2, 1, 3, 4], &[0, 2, 1, 3]),
        ]
    }
}

/// Operation that selects a range of one axis.
#[derive(Clone)]
pub struct Slice {
    pub(super) axis: usize,
    pub(super) range: Range<usize>,
}

impl Op<1> for Slice {
    const NAME: &'static str = "slice";
    type Saved = ();
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, ())> {
        let layout = x.layout();
        let size = layout.shape.dims()[self.axis];
        if self.range.start > self.range.end || self.range.end > size {
            return Err(Error::shape(format!(
                "slice: {:?} of axis {} of shape {}, which has size {size} there",
                self.range, self.axis, layout.shape
            )));
        }
        let mut dims = layout.shape.dims().to_vec();
        dims[self.axis] = self.range.len();
        let offset = layout.offset + self.range.start * layout.strides[self.axis];
        Ok((x.with_layout(Layout { shape: dims.into(), strides: layout.strides.clone(), offset }), ()))
    }
    fn backward(&self, [x]: [&Tensor; 1], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let dx = Tensor::zeros(x.device(), x.shape(), x.dtype())?;
        place(dy, &dx, self.axis, self.range.start)?;
        Ok([Some(dx)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        let mut dims = x.shape.dims().to_vec();
        dims[self.axis] = self.range.len();
        let (shape, strides) = (Shape::from(dims), x.shape.strides());
        Array::from_fn(shape.clone(), |i| {
            let mut at = unravel(i, &shape);
            at[self.axis] += self.range.start;
            x.data[at.iter().zip(&strides).map(|(a, s)| a * s).sum::<usize>()]
        })
    }
    fn calls() -> Vec<Call> {
        let call = Call::new(
            "slice",
            "Elements `start..end` of an axis; a negative axis counts from the end. No copy.",
        );
        let call = call.inputs(&["x"]).required("axis", AttributeKind::Int);
        vec![
            call.required("start", AttributeKind::Int)
                .required("end", AttributeKind::Int)
                .run(|a| a.inputs::<1>()?[0].slice(a.get("axis")?, a.get("start")?..a.get("end")?)),
        ]
    }
    fn attributes(&self) -> Attributes {
        vec![("axis", self.axis.into()), ("start", self.range.start.into()), ("end", self.range.end.into())]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize], axis, range| {
            Sample::new(Self { axis, range }, [SampleInput::normal(shape)]).exact()
        };
        let far = Sample::new(Self { axis: 1, range: 1..3 }, [SampleInput::values(&[4, 5], FAR, None)]);
        vec![
            far.exact().extreme().pointwise().light(),
            sample(&[4, 5], 1, 1..3),
            sample(&[4, 5, 3], 0, 2..4),
            sample(&[3, 40], 1, 7..36),
            sample(&[1], 0, 0..1),
            sample(&[4, 5], 1, 2..2),
            sample(&[0, 5], 1, 1..3),
        ]
    }
}

/// Returns a shape in which a size of -1 is replaced by the size that x leaves for it.
fn inferred(x: &Tensor, sizes: &[i64]) -> Result<Vec<usize>> {
    let known: usize = sizes.iter().filter_map(|n| usize::try_from(*n).ok()).product();
    let open = sizes.iter().filter(|n| **n == -1).count();
    let left = x.count().checked_div(known).filter(|left| open == 1 && left * known == x.count());
    let size = |n: &i64| usize::try_from(*n).ok().or(left.filter(|_| *n == -1));
    sizes.iter().map(size).collect::<Option<_>>().ok_or_else(|| {
        Error::shape(format!(
            "reshape: sizes {sizes:?}, expected the {} of x {}, with at most one -1",
            counted(x.count(), "element"),
            x.shape()
        ))
    })
}

/// Copies `part` into `whole`, a contiguous tensor, from index `start` of `axis` on.
pub(crate) fn place(part: &Tensor, whole: &Tensor, axis: usize, start: usize) -> Result<()> {
    let part = part.contiguous()?;
    let inner: usize = whole.dims()[axis + 1..].iter().product();
    let rows: usize = whole.dims()[..axis].iter().product();
    let (length, stride) = (part.dims()[axis] * inner, whole.dims()[axis] * inner);
    if length * rows == 0 {
        return Ok(());
    }
    if rows == 1 {
        // One run of elements is copied by an element-wise kernel, because some drivers copy with one thread.
        let piece = whole.slice(axis as isize, start..start + part.dims()[axis])?;
        return map_into("x0", &[&as_bits(&part)], &[], &as_bits(&piece));
    }
    let (from, to) = (as_bits(&part), as_bits(whole));
    let value = |name| Tuning::value(whole.device(), &PLACE, 0, name);
    let (local, groups) = row_grid(whole.device(), value("WG"), value("VW"), rows, length);
    let launch = PLACE.launch("place").define("DTYPE", from.dtype().code()).local(local).groups3(groups);
    let launch = launch.read(&from).write_base(&to).scalar(to.layout().offset + start * inner);
    launch.scalar(stride).scalar(length).scalar(rows).run()
}

/// Operation that repeats a tensor along axes of size 1 and along new leading axes.
#[derive(Clone)]
pub struct Expand {
    pub(super) shape: Shape,
}

impl Op<1> for Expand {
    const NAME: &'static str = "expand";
    type Saved = ();
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, ())> {
        let layout = x.layout().expand(&self.shape);
        let layout = layout.ok_or_else(|| {
            let why = match self.shape.count() > isize::MAX.cast_unsigned() {
                true => ", which has more elements than can be counted",
                false => "",
            };
            Error::shape(format!("expand: shape {} does not broadcast to {}{why}", x.shape(), self.shape))
        })?;
        Ok((x.with_layout(layout), ()))
    }
    fn backward(&self, [x]: [&Tensor; 1], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(dy.sum_to(x.shape())?)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        x.expand(&self.shape)
    }
    fn calls() -> Vec<Call> {
        let call = Call::new(
            "expand",
            "Repeats x along axes of size 1 and along new leading axes, like broadcasting. No copy.",
        );
        vec![
            call.inputs(&["x"])
                .required("shape", AttributeKind::Ints)
                .run(|a| a.inputs::<1>()?[0].expand(a.get::<Vec<usize>>("shape")?)),
        ]
    }
    fn attributes(&self) -> Attributes {
        vec![("shape", self.shape.dims().into())]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |from: &[usize], to: &[usize]| {
            Sample::new(Self { shape: to.into() }, [SampleInput::normal(from)])
        };
        let far = Sample::new(Self { shape: [2, 3, 4].into() }, [SampleInput::values(&[3, 1], FAR, None)]);
        vec![
            far.extreme().pointwise().light(),
            sample(&[3, 1], &[2, 3, 4]),
            sample(&[1], &[1]),
            sample(&[1, 3], &[0, 3]),
            sample(&[0, 3], &[2, 0, 3]),
            sample(&[], &[5]),
        ]
    }
}

/// Values up to f32's limits, for operations that only move elements.
pub(super) const FAR: &[f64] = &[3e38, -1e30, 1e-30, -3e38, 65_504.0];

/// Views as methods.
impl Tensor {
    /// Overwrites the elements from index `start` of `axis` on by those of `part`, which has this tensor's shape except along that axis. Not
    /// recorded on the tape.
    ///
    /// # Errors
    /// `Shape` if `part` does not fit, `DType` if it has a different type; `Unsupported` if this tensor is not contiguous.
    pub fn write_slice(&self, axis: usize, start: usize, part: &Self) -> Result<()> {
        let mut expected = self.dims().to_vec();
        if let (Some(size), Some(n)) = (expected.get_mut(axis), part.dims().get(axis)) {
            *size = *n;
        }
        let end = part.dims().get(axis).and_then(|n| start.checked_add(*n));
        if part.dims() != expected || end.is_none_or(|end| end > self.dims()[axis]) {
            return Err(Error::shape(format!(
                "write_slice: {} from {start} of axis {axis} on does not fit {}",
                part.shape(),
                self.shape()
            )));
        }
        if part.dtype() != self.dtype() {
            return Err(Error::dtype(format!(
                "write_slice: the part is {}, expected {}",
                part.dtype(),
                self.dtype()
            )));
        }
        if !self.is_contiguous() {
            return Err(Error::unsupported(
                "write_slice: the tensor is not contiguous; write to the one it is a view of",
            ));
        }
        crate::tape::no_grad(|| place(part, self, axis, start))
    }

    /// Returns the same elements in another shape with the same number of elements. Copies only if the tensor is not contiguous.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape == *self.shape() {
            return Ok(self.clone());
        }
        Reshape { shape, dense: false }.apply([self])
    }
    /// Returns the same elements, contiguous and at an offset that every kernel can bind. Copies only if necessary.
    pub fn contiguous(&self) -> Result<Self> {
        if self.is_dense() {
            return Ok(self.clone());
        }
        Reshape { shape: self.shape().clone(), dense: true }.apply([self])
    }
    /// Reorders the axes: axis `i` of the result is `axes[i]` of this tensor.
    pub fn permute(&self, axes: &[usize]) -> Result<Self> {
        Permute { axes: axes.to_vec() }.apply([self])
    }
    /// Exchanges two axes; negative ones count from the end.
    pub fn transpose(&self, a: isize, b: isize) -> Result<Self> {
        let (a, b) = (self.shape().axis("transpose", a)?, self.shape().axis("transpose", b)?);
        let mut axes: Vec<usize> = (0..self.shape().rank()).collect();
        axes.swap(a, b);
        self.permute(&axes)
    }
    /// Selects a range of one axis; a negative axis counts from the end.
    pub fn slice(&self, axis: isize, range: Range<usize>) -> Result<Self> {
        let axis = self.shape().axis("slice", axis)?;
        Slice { axis, range }.apply([self])
    }
    /// Repeats the tensor along axes of size 1 and along new leading axes, without a copy.
    pub fn expand(&self, shape: impl Into<Shape>) -> Result<Self> {
        Expand { shape: shape.into() }.apply([self])
    }
    /// Inserts an axis of size 1 before `axis`.
    pub fn unsqueeze(&self, axis: usize) -> Result<Self> {
        let mut dims = self.dims().to_vec();
        if axis > dims.len() {
            return Err(Error::shape(format!(
                "unsqueeze: axis {axis} of a tensor of shape {}",
                self.shape()
            )));
        }
        dims.insert(axis, 1);
        self.reshape(dims)
    }
    /// Removes an axis of size 1.
    pub fn squeeze(&self, axis: isize) -> Result<Self> {
        let axis = self.shape().axis("squeeze", axis)?;
        let mut dims = self.dims().to_vec();
        if dims.remove(axis) != 1 {
            return Err(Error::shape(format!(
                "squeeze: axis {axis} of shape {} is not of size 1",
                self.shape()
            )));
        }
        self.reshape(dims)
    }
}
