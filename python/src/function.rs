//! Functions with a gradient, written in Python.

use crate::edge::{keep_exception, run};
use crate::names::interned;
use crate::tensor::{Given, PyTensor};
use netcl::prelude::{Error, Result, Tensor};
use netcl::tensor::tape;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

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

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(record, m)?)
}
