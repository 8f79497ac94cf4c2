//! Functions for a tensor's memory: keeping it beyond a scope, or freeing it.

use crate::edge::run;
use crate::scope;
use crate::tensor::PyTensor;
use netcl::tensor::Lazy;
use pyo3::prelude::*;

/// Excludes a tensor from the innermost scope. The enclosing scope frees it.
#[pyfunction]
fn keep_in_scope(tensor: PyRef<'_, PyTensor>) {
    scope::keep(&tensor.inner);
}

/// Frees the memory of a tensor and its views, even if names still refer to them. Returns whether it was freed.
#[pyfunction]
fn free_memory(py: Python<'_>, tensor: PyRef<'_, PyTensor>) -> PyResult<bool> {
    run(py, Lazy::settle)?;
    Ok(tensor.inner.storage().release())
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(keep_in_scope, m)?)?;
    m.add_function(wrap_pyfunction!(free_memory, m)?)
}
