//! Elementwise expressions and reductions without gradients, for functions implemented in Python, such as those of `netcl.array_api`.

use crate::convert::{DTypeLike, Ints};
use crate::edge::run;
use crate::tensor::PyTensor;
use netcl::prelude::{Error, Shape, Tensor};
use netcl::tensor::ops::map::map_typed;
use netcl::tensor::ops::reduce::{Fold, fold};
use pyo3::prelude::*;

/// Computes a tensor of `dtype` from an expression in OpenCL C over `x0`, `x1`, …, which are broadcast against each other. In the
/// expression, floats of any storage type are `float`, integers keep their type, and a mask is the `int` 0 or 1.
#[pyfunction]
fn evaluate(
    py: Python<'_>,
    expression: String,
    inputs: Vec<PyRef<'_, PyTensor>>,
    dtype: DTypeLike,
) -> PyResult<PyTensor> {
    let inputs: Vec<Tensor> = inputs.iter().map(|x| x.inner.clone()).collect();
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
    });
    made.map(PyTensor::from)
}

/// Reduces over the given axes, or over all axes: `sum`, `prod`, `max`, `min`, `any` or `all`, in the elements' own type. It does not have a
/// gradient.
#[pyfunction]
fn fold_axes(
    py: Python<'_>,
    how: &str,
    x: PyRef<'_, PyTensor>,
    axes: Ints,
    keep: bool,
) -> PyResult<PyTensor> {
    let (x, how) = (x.inner.clone(), how.to_owned());
    let made = run(py, move || {
        let how = Fold::parse(&how).ok_or_else(|| Error::format(format!("no reduction {how:?}")))?;
        let axes: Vec<isize> = axes.0.iter().map(|a| *a as isize).collect();
        fold(how, &x, &axes, keep)
    });
    made.map(PyTensor::from)
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(evaluate, m)?)?;
    m.add_function(wrap_pyfunction!(fold_axes, m)?)
}
