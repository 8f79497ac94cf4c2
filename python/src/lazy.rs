//! Blocks of Python whose operations wait for others and become one kernel with them.

use crate::edge::run;
use netcl::prelude::Error;
use netcl::tensor::Lazy;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::mem::ManuallyDrop;

thread_local! {
    /// Scopes of this thread, the innermost last. One that never ends, as in a generator that is not run to its end, is not ended with
    /// the thread either: what it would put back is gone then.
    static SCOPES: RefCell<Vec<ManuallyDrop<Lazy>>> = const { RefCell::new(Vec::new()) };
}

/// Operations of this thread wait from now on. How many scopes there are.
#[pyfunction]
fn enter_lazy(py: Python<'_>, explain: bool) -> PyResult<usize> {
    run(py, move || {
        let scope = if explain { Lazy::start_explained() } else { Lazy::start() };
        Ok(SCOPES.with_borrow_mut(|scopes| {
            scopes.push(ManuallyDrop::new(scope));
            scopes.len()
        }))
    })
}

/// Computes what waits and ends the scope. Its trees and kernels as text, where that was asked for.
#[pyfunction]
fn exit_lazy(py: Python<'_>, depth: usize) -> PyResult<String> {
    run(py, move || {
        let scope = SCOPES.with_borrow_mut(|scopes| if scopes.len() == depth { scopes.pop() } else { None });
        let order = || Error::unsupported("a fused block ends in another thread or order than it began");
        ManuallyDrop::into_inner(scope.ok_or_else(order)?).explained()
    })
}

/// Computes what waits in this thread.
#[pyfunction]
fn settle_lazy(py: Python<'_>) -> PyResult<()> {
    run(py, Lazy::settle)
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(enter_lazy, m)?)?;
    m.add_function(wrap_pyfunction!(exit_lazy, m)?)?;
    m.add_function(wrap_pyfunction!(settle_lazy, m)?)
}
