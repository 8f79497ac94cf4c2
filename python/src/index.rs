//! Indexing as in NumPy: integers, slices with steps, `None`, `...`, integer arrays and masks. Gradients flow through all of them. The
//! number of elements that a mask selects is only known on the host, so masks wait for the device.

use crate::convert::Sizes;
use crate::edge::run;
use crate::observation;
use crate::tensor::{Given, PyTensor};
use crate::views::{gather, shaped, stepped};
use netcl::prelude::{DType, Error, Result, Tensor};
use netcl::tensor::ops::map::{map_typed, map_typed_into};
use netcl::tensor::ops::rearrange::flip;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PyInt, PyList, PySlice, PyTuple};

/// A part of an index.
pub enum Part {
    /// One element of an axis. The axis is removed.
    At(isize),
    /// `start:stop:step` along an axis, as given.
    Range([Option<isize>; 3]),
    /// A new axis of size 1.
    New,
    /// All axes that the other parts do not use (`...`).
    Rest,
    /// Elements of an axis by indices on the host: the shape of the indices, and the indices.
    Numbers(Vec<usize>, Vec<i64>),
    /// Elements of an axis by a tensor of indices.
    Tensor(Tensor),
    /// Elements of as many axes as the mask has: its shape, and the flat indices of its set elements in order.
    Mask(Vec<usize>, Vec<i64>),
}

fn part(object: &Bound<'_, PyAny>) -> PyResult<Part> {
    if object.is_none() {
        return Ok(Part::New);
    }
    if object.is_instance_of::<PyEllipsis>() {
        return Ok(Part::Rest);
    }
    if object.is_instance_of::<PyBool>() {
        return Ok(Part::Mask(Vec::new(), if object.extract()? { vec![0] } else { Vec::new() }));
    }
    if object.is_instance_of::<PyInt>() {
        return Ok(Part::At(object.extract()?));
    }
    if let Ok(slice) = object.cast::<PySlice>() {
        let of = |name: &str| slice.getattr(name)?.extract::<Option<isize>>();
        return Ok(Part::Range([of("start")?, of("stop")?, of("step")?]));
    }
    if let Ok(tensor) = object.extract::<PyRef<'_, PyTensor>>() {
        return Ok(Part::Tensor(tensor.inner.clone()));
    }
    if object.hasattr("tolist")? {
        return numbers(&object.call_method0("tolist")?);
    }
    if object.is_instance_of::<PyList>() {
        return numbers(object);
    }
    if object.hasattr("__index__")? {
        return Ok(Part::At(object.call_method0("__index__")?.extract()?));
    }
    Err(PyTypeError::new_err(format!("index: {} cannot be used as an index", object.get_type().name()?)))
}

/// Parses nested lists of integers or Booleans.
fn numbers(object: &Bound<'_, PyAny>) -> PyResult<Part> {
    if let Some((dims, set)) = truths(object) {
        return Ok(Part::Mask(dims, set));
    }
    fn walk(
        object: &Bound<'_, PyAny>,
        depth: usize,
        dims: &mut Vec<usize>,
        out: &mut Vec<i64>,
    ) -> PyResult<()> {
        let Ok(list) = object.cast::<PyList>() else {
            if object.is_instance_of::<PyBool>() || depth != dims.len() {
                return Err(PyTypeError::new_err("index: expected integers in lists of equal length"));
            }
            out.push(object.extract()?);
            return Ok(());
        };
        if depth == dims.len() && out.is_empty() {
            dims.push(list.len());
        }
        if dims.get(depth) != Some(&list.len()) {
            return Err(PyTypeError::new_err("index: expected integers in lists of equal length"));
        }
        list.iter().try_for_each(|item| walk(&item, depth + 1, dims, out))
    }
    let (mut dims, mut out) = (Vec::new(), Vec::new());
    walk(object, 0, &mut dims, &mut out)?;
    Ok(Part::Numbers(dims, out))
}

/// Returns the shape of nested lists of Booleans, and the flat indices of the true ones. Returns `None` for other elements or empty lists.
fn truths(object: &Bound<'_, PyAny>) -> Option<(Vec<usize>, Vec<i64>)> {
    fn walk(
        object: &Bound<'_, PyAny>,
        depth: usize,
        dims: &mut Vec<usize>,
        out: &mut Vec<bool>,
    ) -> Option<()> {
        if let Ok(list) = object.cast::<PyList>() {
            if depth == dims.len() && out.is_empty() {
                dims.push(list.len());
            }
            let fits = dims.get(depth) == Some(&list.len());
            return list.iter().try_for_each(|item| walk(&item, depth + 1, dims, out)).filter(|()| fits);
        }
        let value = object.is_instance_of::<PyBool>() && depth == dims.len();
        out.push(object.extract().ok().filter(|_| value)?);
        Some(())
    }
    let (mut dims, mut out) = (Vec::new(), Vec::new());
    walk(object, 0, &mut dims, &mut out).filter(|()| !out.is_empty())?;
    Some((dims, set(out)))
}

/// Returns the indices of the set elements.
fn set(mask: impl IntoIterator<Item = bool>) -> Vec<i64> {
    mask.into_iter().zip(0..).filter(|(on, _)| *on).map(|(_, i)| i).collect()
}

/// Reads masks from the device.
fn read_masks(parts: Vec<Part>) -> Result<Vec<Part>> {
    parts
        .into_iter()
        .map(|part| match part {
            Part::Tensor(mask) if mask.dtype() == DType::Bool => {
                Ok(Part::Mask(mask.dims().to_vec(), set(mask.to_u32()?.into_iter().map(|w| w != 0))))
            }
            other => Ok(other),
        })
        .collect()
}

/// Parses the expression between the brackets.
fn parts(index: &Bound<'_, PyAny>) -> PyResult<Vec<Part>> {
    match index.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().map(|object| part(&object)).collect(),
        Err(_) => Ok(vec![part(index)?]),
    }
}

/// Returns the number of the tensor's axes that a part uses.
fn takes(part: &Part) -> usize {
    match part {
        Part::Mask(dims, _) => dims.len(),
        _ => usize::from(!matches!(part, Part::New | Part::Rest)),
    }
}

/// Returns start, step and count of a slice of an axis of size n, as `slice.indices(n)` does.
fn range([start, stop, step]: [Option<isize>; 3], n: usize) -> Result<(usize, isize, usize)> {
    let (n, step) = (n.cast_signed(), step.unwrap_or(1));
    if step == 0 {
        return Err(Error::format("index: the step of a slice must not be 0"));
    }
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let place = |at: Option<isize>, default: isize| {
        at.map_or(default, |at| (if at < 0 { at.saturating_add(n) } else { at }).clamp(low, high))
    };
    let (start, stop) = match step > 0 {
        true => (place(start, 0), place(stop, n)),
        false => (place(start, n - 1), place(stop, -1)),
    };
    let length = if step > 0 { stop - start } else { start - stop };
    let count = if length > 0 { (length - 1) / step.abs() + 1 } else { 0 };
    Ok((start.max(0).cast_unsigned(), step, count.cast_unsigned()))
}

/// Adds `n` to negative indices.
fn from_the_end(numbers: &Tensor, n: usize) -> Result<Tensor> {
    if numbers.dtype() != DType::I32 {
        return Ok(numbers.clone());
    }
    map_typed(&format!("x0 < 0 ? x0 + {n} : x0"), &[numbers], &[], numbers.shape(), DType::I32)
}

/// Returns the indices of a part on the host. Each must be within an axis of size n.
fn on_host(part: &Part, n: usize, axis: usize) -> Result<(Vec<usize>, Vec<usize>)> {
    let (dims, numbers) = match part {
        Part::Numbers(dims, numbers) => (dims.clone(), numbers.clone()),
        Part::Mask(_, numbers) => (vec![numbers.len()], numbers.clone()),
        Part::Tensor(tensor) => {
            let words = tensor.to_u32()?;
            let signed = tensor.dtype() == DType::I32;
            let number = |w: u32| if signed { i64::from(w.cast_signed()) } else { i64::from(w) };
            (tensor.dims().to_vec(), words.into_iter().map(number).collect())
        }
        _ => return Err(Error::internal("index: expected a part with indices")),
    };
    let within = |number: &i64| {
        let at = if *number < 0 { number + n as i64 } else { *number };
        usize::try_from(at).ok().filter(|at| *at < n).ok_or_else(|| {
            Error::format(format!("index: {number} is out of bounds for axis {axis} of size {n}"))
        })
    };
    Ok((dims, numbers.iter().map(within).collect::<Result<_>>()?))
}

/// Combines several index arrays on adjacent axes into one array over these axes. The arrays are broadcast against each other.
fn combined(parts: &[Part], x: &Tensor, axis: usize) -> Result<Tensor> {
    let (mut shape, mut flat) = (netcl::prelude::Shape::from(Vec::new()), vec![0usize]);
    for (i, part) in parts.iter().enumerate() {
        let n = x.dims()[axis + i];
        let (dims, numbers) = on_host(part, n, axis + i)?;
        let dims = netcl::prelude::Shape::from(dims);
        let wide = shape.broadcast(&dims, "index")?;
        let spread = |from: &netcl::prelude::Shape, values: &[usize]| -> Result<Vec<usize>> {
            let layout = netcl::tensor::Layout::contiguous(from.clone()).expand(&wide);
            let layout = layout
                .ok_or_else(|| Error::internal("index: index arrays that were checked do not broadcast"))?;
            let at = |i: usize| netcl::tensor::array::unravel(i, &wide);
            let place = |i| at(i).iter().zip(&layout.strides).map(|(a, s)| a * s).sum::<usize>();
            Ok((0..wide.count()).map(|i| values[place(i)]).collect())
        };
        let (before, numbers) = (spread(&shape, &flat)?, spread(&dims, &numbers)?);
        flat = before.iter().zip(&numbers).map(|(before, number)| before * n + number).collect();
        shape = wide;
    }
    let words = flat.iter().map(|n| u32::try_from(*n)).collect::<std::result::Result<Vec<_>, _>>();
    let words = words.map_err(|_| {
        Error::unsupported("index: a mask or index array selects from more than 2^32 elements")
    })?;
    Tensor::from_u32(x.device(), shape, &words)
}

/// Converts an index of an axis. Negative indices count from the end.
fn place(at: isize, x: &Tensor, axis: usize) -> Result<usize> {
    let n = x.dims()[axis];
    let place = if at < 0 { at + n.cast_signed() } else { at };
    usize::try_from(place)
        .ok()
        .filter(|place| *place < n)
        .ok_or_else(|| Error::format(format!("index: {at} is out of bounds for axis {axis} of size {n}")))
}

/// Takes the elements that a mask selects from the axes starting at `axis`; the result has them along one axis.
fn masked_rows(x: &Tensor, axis: usize, mask: &[usize], set: &[i64]) -> Result<Tensor> {
    let mut dims = x.dims().to_vec();
    let masked = dims.get(axis..axis + mask.len()).unwrap_or_default();
    if masked != mask {
        return Err(Error::format(format!(
            "index: a mask of shape {mask:?} does not match the axes of sizes {masked:?} of a tensor of shape {}",
            x.shape()
        )));
    }
    dims.splice(axis..axis + mask.len(), [mask.iter().product()]);
    let numbers: Vec<u32> = set.iter().map(|n| *n as u32).collect();
    gather(&x.reshape(dims)?, axis, &Tensor::from_u32(x.device(), [numbers.len()], &numbers)?)
}

/// Returns the same elements in another shape: a view, if the strides allow one, so that a write to it changes `x`. A graph of operations has
/// only reshape.
fn arranged(x: &Tensor, dims: Vec<usize>) -> Result<Tensor> {
    if !x.is_contiguous()
        && x.count() > 0
        && !observation::is_on()
        && let Some(view) = shaped(x, dims.clone())?
    {
        return Ok(view);
    }
    x.reshape(dims)
}

/// Computes `x[index]`.
fn taken(x: &Tensor, parts: Vec<Part>) -> Result<Tensor> {
    let parts = read_masks(parts)?;
    let used: usize = parts.iter().map(takes).sum();
    let rank = x.shape().rank();
    if used > rank {
        return Err(Error::format(format!("index: got {used} indices for a tensor of shape {}", x.shape())));
    }
    if parts.iter().filter(|part| matches!(part, Part::Rest)).count() > 1 {
        return Err(Error::format("index: more than one ellipsis"));
    }
    let arrays = |part: &Part| matches!(part, Part::Numbers(..) | Part::Tensor(_) | Part::Mask(..));
    let (mut y, mut axis, mut open) = (x.clone(), 0, parts.as_slice());
    while let Some((part, rest)) = open.split_first() {
        let several = open.iter().take_while(|part| arrays(part)).count();
        if several > 0 && open[several..].iter().any(arrays) {
            return Err(Error::unsupported("index: integer arrays must be on adjacent axes"));
        }
        open = rest;
        match part {
            Part::New => {
                let mut dims = y.dims().to_vec();
                dims.insert(axis, 1);
                (y, axis) = (arranged(&y, dims)?, axis + 1);
            }
            Part::Rest => axis += rank - used,
            Part::At(at) => {
                let place = place(*at, &y, axis)?;
                let mut dims = y.dims().to_vec();
                dims.remove(axis);
                y = arranged(&y.slice(axis.cast_signed(), place..place + 1)?, dims)?;
            }
            Part::Range(given) => {
                y = stepped(&y, axis, range(*given, y.dims()[axis])?)?;
                axis += 1;
            }
            // A captured step cannot read indices, so they are not checked.
            Part::Tensor(numbers) if several == 1 && y.dtype().is_float() && y.device().is_capturing() => {
                y = gather(&y, axis, &from_the_end(numbers, y.dims()[axis])?)?;
                axis += numbers.shape().rank();
            }
            Part::Mask(mask, set) if several == 1 => {
                y = masked_rows(&y, axis, mask, set)?;
                axis += 1;
            }
            Part::Numbers(..) | Part::Tensor(_) | Part::Mask(..) => {
                let at = parts.len() - rest.len() - 1;
                if parts[at..at + several].iter().any(|part| takes(part) != 1) {
                    return Err(Error::unsupported(
                        "index: a mask of several axes cannot be combined with other index arrays",
                    ));
                }
                let numbers = combined(&parts[at..at + several], &y, axis)?;
                let mut dims = y.dims().to_vec();
                let size = dims[axis..axis + several].iter().product();
                dims.splice(axis..axis + several, [size]);
                y = gather(&y.reshape(dims)?, axis, &numbers)?;
                axis += numbers.shape().rank();
                open = &parts[at + several..];
            }
        }
    }
    Ok(y)
}

/// Raises errors about an index as `IndexError`, which also ends iteration.
fn out_of_bounds(py: Python<'_>, error: PyErr) -> PyErr {
    let converted = || -> PyResult<PyErr> {
        let errors = py.import("netcl.errors")?;
        if !error.is_instance(py, &errors.getattr("FormatError")?) {
            return Ok(error.clone_ref(py));
        }
        let words = error.value(py).str()?;
        Ok(PyErr::from_value(errors.getattr("IndexOutOfBounds")?.call1((words,))?))
    };
    converted().unwrap_or(error)
}

/// Returns the view that parts without arrays select, and its axes with reversed elements.
fn viewed(x: &Tensor, parts: &[Part]) -> Result<(Tensor, Vec<isize>)> {
    let used: usize = parts.iter().map(takes).sum();
    let rank = x.shape().rank();
    if used > rank {
        return Err(Error::format(format!("index: got {used} indices for a tensor of shape {}", x.shape())));
    }
    if parts.iter().filter(|part| matches!(part, Part::Rest)).count() > 1 {
        return Err(Error::format("index: more than one ellipsis"));
    }
    // Indexed axes are removed last, so that each view keeps the earlier axes. `from` maps the result's axes to the view's axes.
    let mut y = x.detach();
    let mut axis = 0;
    let mut from = Vec::new();
    let mut reversed = Vec::new();
    for part in parts {
        match part {
            Part::New => from.push(None),
            Part::Rest => {
                from.extend((axis..axis + rank - used).map(Some));
                axis += rank - used;
            }
            Part::At(at) => {
                y = y.every(axis, place(*at, &y, axis)?, 1, 1)?;
                axis += 1;
            }
            Part::Range(given) => {
                let (start, step, count) = range(*given, y.dims()[axis])?;
                let apart = step.unsigned_abs();
                if step < 0 {
                    reversed.push(from.len().cast_signed());
                }
                let start = if step < 0 && count > 0 { start - (count - 1) * apart } else { start };
                y = y.every(axis, start, apart, count)?;
                from.push(Some(axis));
                axis += 1;
            }
            _ => {
                return Err(Error::unsupported(
                    "index: assignment through arrays of indices is not supported; use where",
                ));
            }
        }
    }
    from.extend((axis..rank).map(Some));
    let (sizes, steps) = (y.dims().to_vec(), y.layout().strides.clone());
    let dims: Vec<usize> = from.iter().map(|a| a.map_or(1, |a| sizes[a])).collect();
    let strides = from.iter().map(|a| a.map_or(0, |a| steps[a])).collect();
    Ok((y.as_strided(dims, strides)?, reversed))
}

/// Computes `x[index] = values`.
fn put(x: &Tensor, parts: Vec<Part>, values: &Tensor) -> Result<()> {
    let values = values.detach();
    if let [Part::Tensor(mask)] = parts.as_slice()
        && mask.dtype() == DType::Bool
        && (values.count() == 1 || values.shape().rank() == 0)
    {
        return masked(x, mask, &values);
    }
    let (view, reversed) = viewed(x, &parts)?;
    let values = match reversed.is_empty() {
        true => values,
        false => flip(&values.expand(view.dims())?, &reversed)?,
    };
    view.assign(&values)
}

/// Writes one value to all elements that the mask selects. The mask covers the first axes.
fn masked(x: &Tensor, mask: &Tensor, value: &Tensor) -> Result<()> {
    let rank = x.shape().rank();
    if x.dims().get(..mask.shape().rank()) != Some(mask.dims()) {
        return Err(Error::format(format!(
            "index: a mask of shape {} does not match a tensor of shape {}",
            mask.shape(),
            x.shape()
        )));
    }
    let mut dims = mask.dims().to_vec();
    dims.resize(rank, 1);
    let (mask, value) = (mask.reshape(dims)?, value.reshape(Vec::new())?.to_dtype(x.dtype())?);
    map_typed_into("x0 ? x1 : x2", &[&mask, &value, x], &[], x)
}

#[pymethods]
impl PyTensor {
    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        py: Python<'py>,
        index: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let given = Given::of(&[slf.as_any()])?;
        let (x, parts) = (slf.try_borrow()?.inner.clone(), parts(index)?);
        given.result(py, run(py, move || taken(&x, parts)).map_err(|e| out_of_bounds(py, e))?)
    }
    /// Returns a tensor with elements as a view of another shape with as many elements, or `None` if its strides do not allow one.
    fn _view<'py>(slf: &Bound<'py, Self>, shape: Sizes) -> PyResult<Option<Bound<'py, PyAny>>> {
        let given = Given::of(&[slf.as_any()])?;
        let x = slf.try_borrow()?.inner.clone();
        let made = run(slf.py(), move || shaped(&x, shape.0))?;
        made.map(|made| given.result(slf.py(), made)).transpose()
    }
    /// Overwrites the elements that integers, slices, `None`, `...` or one mask select with values on the same device. This is not recorded
    /// on the tape.
    fn _put(&self, py: Python<'_>, index: &Bound<'_, PyAny>, values: PyRef<'_, Self>) -> PyResult<()> {
        let (x, parts, values) = (self.inner.clone(), parts(index)?, values.inner.clone());
        run(py, move || put(&x, parts, &values)).map_err(|e| out_of_bounds(py, e))
    }
    fn __len__(&self) -> PyResult<usize> {
        let first = self.inner.dims().first().copied();
        first.ok_or_else(|| PyTypeError::new_err("cannot take len() of a tensor without axes"))
    }
}
