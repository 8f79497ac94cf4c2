//! Graphs of operations from a Python block: the operations that this thread calls between two points.

use crate::convert::dtype_name;
use crate::edge::run;
use crate::observation;
use crate::tensor::PyTensor;
use netcl::prelude::{Error, Tensor};
use netcl::tensor::Lazy;
use netcl::tensor::opgraph::{Observation, Source};
use netcl::tensor::ops::call::Value;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Name of an operation, values of its inputs, attributes, and values of its results with their places in the results of a call by name.
type Op<'py> = (&'static str, Vec<Option<usize>>, Bound<'py, PyDict>, Vec<(usize, usize)>);

/// Operations; values, each with whether it existed before; and values of the given tensors.
type Found<'py> = (Vec<Op<'py>>, Vec<(PyTensor, bool)>, Vec<Option<usize>>);

fn plain<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::None => py.None().into_bound(py),
        Value::Float(v) => v.into_pyobject(py)?.into_any(),
        Value::Int(v) => v.into_pyobject(py)?.into_any(),
        Value::Bool(v) => v.into_pyobject(py)?.to_owned().into_any(),
        Value::Ints(v) => PyTuple::new(py, v)?.into_any(),
        Value::Text(v) => v.into_pyobject(py)?.into_any(),
        Value::DType(v) => dtype_name(*v).into_pyobject(py)?.into_any(),
    })
}

/// Starts to observe this thread's operations.
#[pyfunction]
fn start_observing(py: Python<'_>) -> PyResult<()> {
    run(py, || {
        Lazy::settle()?;
        Observation::start().map(observation::set)
    })
}

/// Ends the observation. Returns the operations, their values, and the values of `tensors`. With `discard`, returns nothing.
#[pyfunction]
#[pyo3(signature = (tensors, discard=false))]
fn stop_observing<'py>(
    py: Python<'py>,
    tensors: Vec<PyRef<'_, PyTensor>>,
    discard: bool,
) -> PyResult<Option<Found<'py>>> {
    let tensors: Vec<Tensor> = tensors.iter().map(|x| x.inner.clone()).collect();
    let (observed, found) = run(py, || {
        let observation =
            observation::take().ok_or_else(|| Error::unsupported("this thread is not observed"))?;
        if discard {
            return Ok((None, Vec::new()));
        }
        let observed = observation.stop()?;
        let found = tensors.iter().map(|x| observed.find(x)).collect();
        Ok((Some(observed), found))
    })?;
    let Some(observed) = observed else { return Ok(None) };
    let op = |op: &netcl::tensor::opgraph::ObservedOp| -> PyResult<Op<'py>> {
        let attributes = PyDict::new(py);
        for (name, value) in &op.attributes {
            attributes.set_item(name, plain(py, value)?)?;
        }
        Ok((op.name, op.inputs.clone(), attributes, op.results.clone()))
    };
    let ops = observed.ops.iter().map(op).collect::<PyResult<Vec<_>>>()?;
    let values = observed.values.into_iter();
    let values = values.map(|(x, source)| (PyTensor::from(x), source == Source::Before)).collect();
    Ok(Some((ops, values, found)))
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(start_observing, m)?)?;
    m.add_function(wrap_pyfunction!(stop_observing, m)?)
}
