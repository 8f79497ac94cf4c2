//! Elementwise expressions and reductions without gradients, for functions implemented in Python, such as those of `netcl.array_api`.

use crate::convert::{DTypeLike, Ints};
use crate::edge::run;
use crate::names::interned;
use crate::tensor::{Given, PyTensor};
use netcl::prelude::{Error, Shape, Tensor};
use netcl::tensor::ops::map::{map_into, map_typed};
use netcl::tensor::ops::reduce::{Fold, fold};
use pyo3::prelude::*;

/// Computes a tensor of `dtype` from an expression in OpenCL C over `x0`, `x1`, …, which are broadcast against each other. In the
/// expression, floats of any storage type are `float`, integers keep their type, and a mask is the `int` 0 or 1.
#[pyfunction]
fn evaluate<'py>(
    py: Python<'py>,
    expression: String,
    inputs: Vec<Bound<'py, PyTensor>>,
    dtype: DTypeLike,
) -> PyResult<Bound<'py, PyAny>> {
    let (mut given, mut tensors) = (Given::default(), Vec::with_capacity(inputs.len()));
    for x in inputs {
        given.see(x.as_any())?;
        tensors.push(x.try_borrow()?.inner.clone());
    }
    let inputs: Vec<Tensor> = tensors;
    let made = run(py, move || {
        let refs: Vec<&Tensor> = inputs.iter().collect();
        let Some(first) = refs.first() else { return Err(Error::shape("evaluate: no tensors")) };
        if refs.iter().any(|x| !x.device().same(first.device())) {
            return Err(Error::device(
                "evaluate: tensors are on different devices; move one with .to(device)",
            ));
        }
        let start = Shape::default();
        let shape = refs.iter().try_fold(start, |shape, x| shape.broadcast(x.shape(), "broadcast"))?;
        map_typed(&expression, &refs, &[], &shape, dtype.0)
    })?;
    given.result(py, made)
}

/// Overwrites the floats of `y`, which is contiguous, with an expression in OpenCL C over floats `x0`, `x1`, …, which are broadcast to its
/// shape, and the numbers `s0`, `s1`, …. `y` may be one of the inputs. The process keeps the expression, so it must be one of few.
#[pyfunction]
fn evaluate_into(
    py: Python<'_>,
    expression: &str,
    inputs: Vec<PyRef<'_, PyTensor>>,
    numbers: Vec<f32>,
    y: PyRef<'_, PyTensor>,
) -> PyResult<()> {
    let (inputs, y): (Vec<Tensor>, _) = (inputs.iter().map(|x| x.inner.clone()).collect(), y.inner.clone());
    let expression = interned(expression);
    run(py, move || {
        let refs: Vec<&Tensor> = inputs.iter().collect();
        if refs.iter().any(|x| !x.device().same(y.device())) {
            return Err(Error::device(
                "evaluate: tensors are on different devices; move one with .to(device)",
            ));
        }
        if refs.iter().chain([&&y]).any(|x| !x.dtype().is_float()) {
            return Err(Error::dtype("evaluate: expected floats"));
        }
        map_into(expression, &refs, &numbers, &y)
    })
}

/// Reduces over the given axes, or over all axes: `sum`, `prod`, `max`, `min`, `any` or `all`, in the elements' own type. It does not have a
/// gradient.
#[pyfunction]
fn fold_axes<'py>(
    py: Python<'py>,
    how: &str,
    x: &Bound<'py, PyTensor>,
    axes: Ints,
    keep: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let given = Given::of(&[x.as_any()])?;
    let (x, how) = (x.try_borrow()?.inner.clone(), how.to_owned());
    let made = run(py, move || {
        let how = Fold::parse(&how).ok_or_else(|| Error::format(format!("no reduction {how:?}")))?;
        let axes: Vec<isize> = axes.0.iter().map(|a| *a as isize).collect();
        fold(how, &x, &axes, keep)
    })?;
    given.result(py, made)
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(evaluate, m)?)?;
    m.add_function(wrap_pyfunction!(evaluate_into, m)?)?;
    m.add_function(wrap_pyfunction!(fold_axes, m)?)
}
