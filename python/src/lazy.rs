//! Python blocks whose operations are deferred and fused into common kernels.

use crate::edge::run;
use netcl::prelude::Error;
use netcl::tensor::Lazy;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::mem::ManuallyDrop;

thread_local! {
    /// Scopes of this thread, the innermost last. A scope that is never closed, such as in an unfinished generator, is not closed at the
    /// thread's end either: the state that it would restore no longer exists.
    static SCOPES: RefCell<Vec<ManuallyDrop<Lazy>>> = const { RefCell::new(Vec::new()) };
}

/// Starts deferring operations of this thread. Returns the number of open scopes.
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

/// Computes the deferred operations and closes the scope. Returns its expression trees and kernels as text if this was requested.
#[pyfunction]
fn exit_lazy(py: Python<'_>, depth: usize) -> PyResult<String> {
    run(py, move || {
        let scope = SCOPES.with_borrow_mut(|scopes| if scopes.len() == depth { scopes.pop() } else { None });
        let order = || {
            Error::unsupported(
                "a fused block must end in the thread where it began, and in reverse order of beginning",
            )
        };
        ManuallyDrop::into_inner(scope.ok_or_else(order)?).explained()
    })
}

/// Computes the deferred operations of this thread.
#[pyfunction]
fn settle_lazy(py: Python<'_>) -> PyResult<()> {
    run(py, Lazy::settle)
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(enter_lazy, m)?)?;
    m.add_function(wrap_pyfunction!(exit_lazy, m)?)?;
    m.add_function(wrap_pyfunction!(settle_lazy, m)?)
}
