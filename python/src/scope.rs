//! Memory that is freed at the end of a Python block, even if names still refer to it.
//!
//! A scope records the buffers of tensors that Python gets. At its end `Buffer::release` frees their memory, and every later command with
//! such a buffer is refused.

use crate::edge::run;
use netcl::device::{Buffer, WeakBuffer};
use netcl::prelude::Tensor;
use netcl::tensor::Lazy;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Buffers that a scope frees.
struct Frame {
    /// Buffers with this number or a higher one were created within the scope.
    first: u64,
    made: Vec<WeakBuffer>,
    /// Buffers that are excluded from the scope.
    kept: Vec<WeakBuffer>,
    /// Length of `made` at which freed buffers are removed from it next.
    sift_at: usize,
}

thread_local! {
    /// Scopes of this thread, the innermost last.
    static SCOPES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

impl Frame {
    fn note(&mut self, tensor: &Tensor) {
        let buffer = tensor.storage().whole();
        // A view of memory that existed before does not belong to the scope.
        if buffer.number() < self.first {
            return;
        }
        if self.made.len() >= self.sift_at {
            self.made.retain(|weak| weak.upgrade().is_some());
            self.sift_at = 64.max(2 * self.made.len());
        }
        self.made.push(buffer.weak());
    }
}

/// Adds a tensor that is passed to Python.
pub fn note(tensor: &Tensor) {
    SCOPES.with_borrow_mut(|scopes| {
        if let Some(frame) = scopes.last_mut() {
            frame.note(tensor);
        }
    });
}

/// Adds a gradient that is passed to Python, if its tensor belongs to the scope.
pub fn note_gradient(of: &Tensor, gradient: &Tensor) {
    SCOPES.with_borrow_mut(|scopes| {
        if let Some(frame) = scopes.last_mut().filter(|frame| of.storage().number() >= frame.first) {
            frame.note(gradient);
        }
    });
}

/// Starts recording the tensors that this thread passes to Python. Returns the number of open scopes.
#[pyfunction]
fn enter_scope() -> usize {
    let frame = Frame { first: Buffer::next_number(), made: Vec::new(), kept: Vec::new(), sift_at: 64 };
    SCOPES.with_borrow_mut(|scopes| {
        scopes.push(frame);
        scopes.len()
    })
}

/// Frees the recorded buffers that are still in use. Returns their number.
#[pyfunction]
fn exit_scope(py: Python<'_>, depth: usize) -> PyResult<usize> {
    let frame = SCOPES.with_borrow_mut(|scopes| match scopes.len() == depth {
        true => scopes.pop(),
        false => None,
    });
    let frame = frame.ok_or_else(|| {
        PyRuntimeError::new_err(
            "a scope must end in the thread where it began, and in reverse order of beginning",
        )
    })?;
    // Deferred operations of a lazy scope may read the memory that is freed here.
    let settled = run(py, Lazy::settle);
    let freed = py.detach(|| {
        let mut freed = BTreeSet::new();
        let kept: BTreeSet<u64> =
            frame.kept.iter().filter_map(WeakBuffer::upgrade).map(|buffer| buffer.number()).collect();
        for buffer in frame.made.iter().filter_map(WeakBuffer::upgrade) {
            if !kept.contains(&buffer.number()) && buffer.release() {
                freed.insert(buffer.number());
            }
        }
        freed.len()
    });
    settled.map(|()| freed)
}

/// Excludes a tensor from the innermost scope. The enclosing scope frees it.
pub fn keep(tensor: &Tensor) {
    SCOPES.with_borrow_mut(|scopes| {
        let Some((frame, outer)) = scopes.split_last_mut() else { return };
        let buffer = tensor.storage().whole();
        if buffer.number() < frame.first {
            return;
        }
        frame.kept.push(buffer.weak());
        if let Some(outer) = outer.last_mut() {
            outer.note(tensor);
        }
    });
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(enter_scope, m)?)?;
    m.add_function(wrap_pyfunction!(exit_scope, m)?)
}
