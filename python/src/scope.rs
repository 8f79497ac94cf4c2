//! Memory that is freed where a block of Python ends, also where names still refer to it.

use crate::edge::run;
use netcl::device::{Buffer, WeakBuffer};
use netcl::prelude::Tensor;
use netcl::tensor::Lazy;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// What a scope has to free.
struct Frame {
    /// Buffers of this number and above were made within it.
    first: u64,
    made: Vec<WeakBuffer>,
    /// Buffers that outlive it.
    kept: Vec<WeakBuffer>,
    /// How many there are when those that are gone are left out next.
    sift_at: usize,
}

thread_local! {
    /// Scopes of this thread, the innermost last.
    static SCOPES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

impl Frame {
    fn note(&mut self, tensor: &Tensor) {
        let buffer = tensor.storage().whole();
        // A view of memory that was there before is not the scope's.
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

/// A tensor that Python gets.
pub fn note(tensor: &Tensor) {
    SCOPES.with_borrow_mut(|scopes| {
        if let Some(frame) = scopes.last_mut() {
            frame.note(tensor);
        }
    });
}

/// A gradient that Python sees: the scope's only where its tensor is.
pub fn note_gradient(of: &Tensor, gradient: &Tensor) {
    SCOPES.with_borrow_mut(|scopes| {
        if let Some(frame) = scopes.last_mut().filter(|frame| of.storage().number() >= frame.first) {
            frame.note(gradient);
        }
    });
}

/// Tensors that Python gets in this thread are noted from now on. How many scopes there are.
#[pyfunction]
fn enter_scope() -> usize {
    let frame = Frame { first: Buffer::next_number(), made: Vec::new(), kept: Vec::new(), sift_at: 64 };
    SCOPES.with_borrow_mut(|scopes| {
        scopes.push(frame);
        scopes.len()
    })
}

/// Frees what was noted and is still referred to. How many buffers that were.
#[pyfunction]
fn exit_scope(py: Python<'_>, depth: usize) -> PyResult<usize> {
    let frame = SCOPES.with_borrow_mut(|scopes| match scopes.len() == depth {
        true => scopes.pop(),
        false => None,
    });
    let frame = frame
        .ok_or_else(|| PyRuntimeError::new_err("a scope ends in another thread or order than it began"))?;
    // Ops of a lazy scope that wait may read what is freed here.
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

/// A tensor outlives the innermost scope; the next one around it frees it.
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
