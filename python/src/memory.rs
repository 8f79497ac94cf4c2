//! Functions for a tensor's memory: keep it beyond a scope, or free it.

use crate::edge::run;
use crate::scope;
use crate::tensor::PyTensor;
use netcl::tensor::Lazy;
use pyo3::prelude::*;

/// The tensor outlives the innermost scope; the next one around it frees it.
#[pyfunction]
fn keep_in_scope(tensor: PyRef<'_, PyTensor>) {
    scope::keep(&tensor.inner);
}

/// Frees a tensor's memory, and with it that of its views, although names refer to it. Whether it could.
#[pyfunction]
fn free_memory(py: Python<'_>, tensor: PyRef<'_, PyTensor>) -> PyResult<bool> {
    run(py, Lazy::settle)?;
    Ok(tensor.inner.storage().release())
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(keep_in_scope, m)?)?;
    m.add_function(wrap_pyfunction!(free_memory, m)?)
}
