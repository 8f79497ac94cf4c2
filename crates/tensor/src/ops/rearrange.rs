//! Rearrangements composed of other operations: index selection, flip, roll, padding, resizing, one-hot rows.

use super::embedding::embedding;
use super::join::cat;
use super::matmul::matmul;
use super::prelude::*;

/// Selects elements `ids` (u32 or i32, `(M)`) of an axis, in their order; an invalid index gives NaN. The gradients of elements that are selected
/// several times are added in a fixed order.
///
/// # Errors
/// `Shape` if the axis does not exist or the indices do not have one axis; `DType`.
pub fn index_select(x: &Tensor, axis: isize, ids: &Tensor) -> Result<Tensor> {
    check::float("index_select", "x", x)?;
    let axis = x.shape().axis("index_select", axis)?;
    let [picked] = *ids.dims() else {
        return Err(Error::shape(format!("index_select: ids have shape {}, expected one axis", ids.shape())));
    };
    let front: Vec<usize> =
        std::iter::once(axis).chain((0..x.shape().rank()).filter(|a| *a != axis)).collect();
    let moved = x.permute(&front)?;
    let mut dims = moved.dims().to_vec();
    let others: usize = dims[1..].iter().product();
    let rows = embedding(&moved.reshape([dims[0], others])?, ids)?;
    dims[0] = picked;
    let mut back = vec![0; front.len()];
    front.iter().enumerate().for_each(|(i, a)| back[*a] = i);
    rows.reshape(dims)?.permute(&back)
}

fn picked(x: &Tensor, axis: usize, ids: impl Iterator<Item = usize>) -> Result<Tensor> {
    let ids: Vec<u32> = ids.map(|i| u32::try_from(i).unwrap_or(u32::MAX)).collect();
    index_select(x, axis.cast_signed(), &Tensor::from_u32(x.device(), [ids.len()], &ids)?)
}

/// Reverses the elements of axes.
///
/// # Errors
/// `Shape` if an axis does not exist; `DType` if x does not have a float type.
pub fn flip(x: &Tensor, axes: &[isize]) -> Result<Tensor> {
    axes.iter().try_fold(x.clone(), |x, axis| {
        let axis = x.shape().axis("flip", *axis)?;
        let size = x.dims()[axis];
        picked(&x, axis, (0..size).rev())
    })
}

/// Moves the elements of an axis by `shift`; elements that leave it reappear at the other end.
///
/// # Errors
/// `Shape` if the axis does not exist.
pub fn roll(x: &Tensor, shift: i64, axis: isize) -> Result<Tensor> {
    let axis = x.shape().axis("roll", axis)?;
    let size = x.dims()[axis];
    let shift = usize::try_from(shift.rem_euclid((size.max(1)) as i64)).unwrap_or(0);
    if shift == 0 {
        return Ok(x.clone());
    }
    let axis = axis.cast_signed();
    cat(&[&x.slice(axis, size - shift..size)?, &x.slice(axis, 0..size - shift)?], axis)
}

/// Values of the padding around a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Padding {
    /// A constant.
    Constant(f32),
    /// The elements mirrored at the first and the last one, which are not repeated.
    Reflect,
    /// The first and the last element.
    Replicate,
}

/// Pads the last axes: `amounts` has two numbers per axis, before and after, starting with the last axis, as in PyTorch's `pad`.
///
/// # Errors
/// `Shape` for more axes than x has, an odd number of amounts, or more mirrored elements than an axis has.
pub fn pad(x: &Tensor, amounts: &[usize], padding: Padding) -> Result<Tensor> {
    let axes = amounts.len() / 2;
    if !amounts.len().is_multiple_of(2) || axes > x.shape().rank() {
        return Err(Error::shape(format!(
            "pad: amounts {amounts:?} for x {}, expected two for each of its last axes",
            x.shape()
        )));
    }
    let mut padded = x.clone();
    for (i, pair) in amounts.chunks_exact(2).enumerate().filter(|(_, pair)| *pair != [0, 0]) {
        let axis = x.shape().rank() - 1 - i;
        let ([before, after], size) = ([pair[0], pair[1]], x.dims()[axis]);
        let least = match padding {
            Padding::Constant(_) => 0,
            Padding::Reflect => before.max(after) + 1,
            Padding::Replicate => 1,
        };
        if size < least {
            return Err(Error::shape(format!(
                "pad: amounts {pair:?} of axis {axis} of x {}, expected at least {} elements there",
                x.shape(),
                counted(least, "element")
            )));
        }
        let last = size.saturating_sub(1);
        padded = match padding {
            Padding::Constant(value) => surrounded(&padded, axis, [before, after], value)?,
            Padding::Reflect => picked(
                &padded,
                axis,
                (0..before + size + after).map(|i| last - last.abs_diff(i.abs_diff(before))),
            )?,
            Padding::Replicate => {
                picked(&padded, axis, (0..before + size + after).map(|i| i.saturating_sub(before).min(last)))?
            }
        };
    }
    Ok(padded)
}

fn surrounded(x: &Tensor, axis: usize, [before, after]: [usize; 2], value: f32) -> Result<Tensor> {
    let filled = |size: usize| {
        let mut dims = x.dims().to_vec();
        dims[axis] = size;
        Tensor::full(x.device(), dims, value, x.dtype())
    };
    let (before, after) = (filled(before)?, filled(after)?);
    let parts: Vec<&Tensor> = [&before, x, &after].into_iter().filter(|part| part.dims()[axis] > 0).collect();
    if parts.len() == 1 { Ok(parts[0].clone()) } else { cat(&parts, axis.cast_signed()) }
}

/// Returns one-hot rows: ids of any shape, u32 or i32, below `classes` → f32 with a further axis of `classes`: 1 at the id, otherwise 0.
///
/// # Errors
/// `DType` if ids are not integers; those of the device.
pub fn one_hot(ids: &Tensor, classes: usize) -> Result<Tensor> {
    check::indices("one_hot", "ids", ids)?;
    let classes =
        u32::try_from(classes).map_err(|_| Error::shape("one_hot: more classes than u32 can count"))?;
    let attributes = || vec![("classes", Value::Int(classes.into()))];
    observe::noted("one_hot", &[ids], attributes, || {
        let numbers = Tensor::arange(ids.device(), 0..classes)?;
        let shape: Vec<usize> = ids.dims().iter().copied().chain([numbers.count()]).collect();
        let behind = crate::no_grad(|| ids.unsqueeze(ids.shape().rank()))?;
        let equal = "x0 == x1 ? (FV)(1.0f) : (FV)(0.0f)";
        crate::no_grad(|| map(equal, &[&behind, &numbers], &[], &shape.into(), DType::F32))
    })
}

/// Returns the upper triangle of the last two axes: 0 where `column < row + diagonal`.
///
/// # Errors
/// `Shape` for fewer than two axes.
pub fn triu(x: &Tensor, diagonal: i32) -> Result<Tensor> {
    x.sub(&x.tril(diagonal.saturating_sub(1)).map_err(|e| e.context("triu"))?)
}

/// Interpolation of a resized image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// The nearest source pixel, at the start of the result's pixel.
    Nearest,
    /// Between the nearest two pixels per axis, as if pixels were squares (PyTorch's `align_corners=False`).
    Bilinear,
    /// The same as if pixels were the corners of a grid (`align_corners=True`).
    BilinearCorners,
}

/// Resizes the last two axes of x `(.., H, W)` to `size`. Bilinear results are computed in f32 by two products with the weights.
///
/// # Errors
/// `Shape` for fewer than two axes or sizes of 0.
pub fn interpolate(x: &Tensor, size: [usize; 2], how: Resize) -> Result<Tensor> {
    check::float("interpolate", "x", x)?;
    let [.., height, width] = *x.dims() else {
        return Err(Error::shape(format!("interpolate: x has shape {}, expected (.., H, W)", x.shape())));
    };
    if [height, width].contains(&0) || size.contains(&0) {
        return Err(Error::shape(format!(
            "interpolate: x {} to {size:?}, expected at least one pixel",
            x.shape()
        )));
    }
    let rank = x.shape().rank();
    if how == Resize::Nearest {
        let nearest = |from: usize, to: usize| (0..to).map(move |i| i * from / to);
        let y = picked(x, rank - 2, nearest(height, size[0]))?;
        return picked(&y, rank - 1, nearest(width, size[1]));
    }
    let wide = x.to_dtype(DType::F32)?;
    let down = weights(x.device(), height, size[0], how)?; // (H', H)
    let across = weights(x.device(), width, size[1], how)?.transpose(0, 1)?; // (W, W')
    matmul(&down, &matmul(&wide, &across)?)?.to_dtype(x.dtype())
}

/// Returns the weights of `from` pixels in each of `to` pixels, f32 `(to, from)`.
fn weights(device: &Device, from: usize, to: usize, how: Resize) -> Result<Tensor> {
    let mut rows = vec![0.0f32; from * to];
    for i in 0..to {
        let at = match how {
            Resize::BilinearCorners if to > 1 => i as f64 * (from - 1) as f64 / (to - 1) as f64,
            Resize::BilinearCorners => 0.0,
            _ => ((i as f64 + 0.5) * from as f64 / to as f64 - 0.5).max(0.0),
        };
        let low = (at as usize).min(from - 1);
        let share = (at - low as f64).min(1.0);
        rows[i * from + low] += (1.0 - share) as f32;
        rows[i * from + (low + 1).min(from - 1)] += share as f32;
    }
    Tensor::from_f32(device, [to, from], &rows, DType::F32)
}

/// Returns the calls of these functions.
pub(super) fn calls() -> Vec<Call> {
    let take = |name, doc| Call::new(name, doc).inputs(&["x"]);
    vec![
        Call::new("index_select", "Selects elements `ids` `(M)` of an axis, in their order; an invalid index gives NaN.")
            .inputs(&["x", "ids"])
            .default("axis", 0)
            .run(|a| a.inputs().and_then(|[x, ids]| index_select(x, a.get("axis")?, ids))),
        take("flip", "Reverses the elements of axes.")
            .required("axes", AttributeKind::Ints)
            .run(|a| flip(a.inputs::<1>()?[0], &a.get::<Vec<_>>("axes")?)),
        take("roll", "Moves the elements of an axis by `shift`; elements that leave it reappear at the other end.")
            .required("shift", AttributeKind::Int)
            .default("axis", -1)
            .run(|a| roll(a.inputs::<1>()?[0], a.get("shift")?, a.get("axis")?)),
        take("pad", "Pads the last axes: two amounts per axis, before and after, starting with the last axis. The padding is `value`, or the \
                     elements of x mirrored at its ends (`reflect`), or its first and last element (`replicate`).")
            .required("amounts", AttributeKind::Ints)
            .default("value", 0.0)
            .choice("mode", &["constant", "reflect", "replicate"])
            .run(|a| {
                let padding = match a.get::<String>("mode")?.as_str() {
                    "reflect" => Padding::Reflect,
                    "replicate" => Padding::Replicate,
                    _ => Padding::Constant(a.get("value")?),
                };
                pad(a.inputs::<1>()?[0], &a.get::<Vec<_>>("amounts")?, padding)
            }),
        Call::new("one_hot", "One-hot rows: numbers below `classes`, of any shape → f32 with a further axis of `classes`: 1 at the number, \
                              otherwise 0.")
            .inputs(&["ids"])
            .required("classes", AttributeKind::Int)
            .run(|a| one_hot(a.inputs::<1>()?[0], a.get("classes")?)),
        take("triu", "The upper triangle of the last two axes: 0 where `column < row + diagonal`.")
            .default("diagonal", 0)
            .run(|a| triu(a.inputs::<1>()?[0], a.get("diagonal")?)),
        take("interpolate", "Resizes the last two axes `(.., H, W)` to `size`, by the nearest pixel or between the nearest two pixels per axis. \
                             With `align_corners`, pixels are the corners of a grid.")
            .required("size", AttributeKind::Ints)
            .choice("mode", &["nearest", "bilinear"])
            .default("align_corners", false)
            .run(|a| {
                let how = match (a.get::<String>("mode")?.as_str(), a.get("align_corners")?) {
                    ("nearest", _) => Resize::Nearest,
                    (_, true) => Resize::BilinearCorners,
                    (_, false) => Resize::Bilinear,
                };
                interpolate(a.inputs::<1>()?[0], a.pair("size")?, how)
            }),
    ]
}
