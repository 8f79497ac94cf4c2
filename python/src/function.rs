//! Functions with a gradient, written in Python.

use crate::edge::{keep_exception, run, set_recording};
use crate::names::interned;
use crate::tensor::{Given, PyTensor};
use netcl::prelude::{Error, Result, Tensor};
use netcl::tensor::tape;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;

/// Calls a backward function written in Python.
fn called(backward: &Py<PyAny>, dys: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
    let run = |py: Python<'_>| -> PyResult<Vec<Option<Tensor>>> {
        let dys: Vec<_> = dys.iter().map(|dy| dy.clone().map(PyTensor::from)).collect();
        let grads = backward.bind(py).call1(PyTuple::new(py, dys)?)?;
        let grads: Vec<Option<PyRef<'_, PyTensor>>> = grads.extract()?;
        Ok(grads.into_iter().map(|grad| grad.map(|grad| grad.inner.clone())).collect())
    };
    Python::attach(|py| run(py).map_err(|e| keep_exception(py, e)))
}

/// Records results, computed off the tape, as the results of one function. `backward` receives their gradients, or `None`, and returns a
/// list of the inputs' gradients. Each result keeps its class.
#[pyfunction]
fn record<'py>(
    py: Python<'py>,
    name: &str,
    inputs: Vec<PyRef<'py, PyTensor>>,
    results: Vec<Bound<'py, PyTensor>>,
    backward: Py<PyAny>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let name = interned(name);
    let inputs: Vec<Tensor> = inputs.iter().map(|t| t.inner.clone()).collect();
    let (mut classes, mut tensors) = (Vec::new(), Vec::new());
    for y in results {
        classes.push(Given::of(&[y.as_any()])?);
        tensors.push(y.try_borrow()?.inner.clone());
    }
    let results = tensors;
    let made = run(py, move || {
        if results.is_empty() {
            return Err(Error::shape(format!("{name}: the function returned no results")));
        }
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        tape::function(name, &inputs, results, move |dys| called(&backward, dys))
    });
    classes.into_iter().zip(made?).map(|(class, y)| class.result(py, y)).collect()
}

/// Computes the gradients of `outputs`, whose own gradients are `grads`, for `inputs`. Leaves do not collect them. The result has `None` for
/// an input that no output depends on.
#[pyfunction]
fn gradients(
    py: Python<'_>,
    outputs: Vec<PyRef<'_, PyTensor>>,
    grads: Vec<PyRef<'_, PyTensor>>,
    inputs: Vec<PyRef<'_, PyTensor>>,
) -> PyResult<Vec<Option<PyTensor>>> {
    let all = |given: Vec<PyRef<'_, PyTensor>>| given.iter().map(|t| t.inner.clone()).collect::<Vec<_>>();
    let (outputs, grads, inputs) = (all(outputs), all(grads), all(inputs));
    let made = run(py, move || {
        let outputs: Vec<_> = outputs.iter().zip(&grads).collect();
        tape::gradients(&outputs, &inputs.iter().collect::<Vec<_>>())
    })?;
    Ok(made.into_iter().map(|grad| grad.map(PyTensor::from)).collect())
}

/// Registers a function that a backward calls with the gradient of `x`. A tensor that it returns replaces the gradient. Returns the number
/// of the hook, or `None` if `x` does not have a gradient.
#[pyfunction]
fn add_hook(x: PyRef<'_, PyTensor>, hook: Py<PyAny>) -> Option<u64> {
    let call = move |py: Python<'_>, dy: &Tensor| -> PyResult<Option<Tensor>> {
        let made = hook.bind(py).call1((PyTensor::from(dy.clone()),))?;
        let made: Option<PyRef<'_, PyTensor>> = made.extract()?;
        Ok(made.map(|made| made.inner.clone()))
    };
    x.inner.add_hook(Arc::new(move |dy| Python::attach(|py| call(py, dy).map_err(|e| keep_exception(py, e)))))
}

/// Calls a Python function with recording, also within a backward.
#[pyfunction]
fn with_recording<'py>(function: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let before = set_recording(true);
    let made = tape::recording(|| function.call0());
    set_recording(before);
    made
}

/// Removes the hook with this number.
#[pyfunction]
fn remove_hook(x: PyRef<'_, PyTensor>, number: u64) {
    x.inner.remove_hook(number);
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(gradients, m)?)?;
    m.add_function(wrap_pyfunction!(add_hook, m)?)?;
    m.add_function(wrap_pyfunction!(remove_hook, m)?)?;
    m.add_function(wrap_pyfunction!(with_recording, m)?)?;
    m.add_function(wrap_pyfunction!(record, m)?)
}
