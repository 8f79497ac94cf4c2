//! Restores earlier gradients after a failure.

use crate::Tensor;
use crate::tensor::Inner;
use crate::tensor::autograd::Autograd;
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::{PoisonError, Weak};

/// Changed gradients, each with its original value.
#[derive(Default)]
struct Changed {
    /// Tensors by identity. They are not kept alive, because a dropped tensor does not need its gradient.
    known: HashSet<usize>,
    before: Vec<(Weak<Inner>, Option<Tensor>)>,
}

thread_local! {
    /// Active rollbacks, the innermost last.
    static CHANGED: RefCell<Vec<Changed>> = const { RefCell::new(Vec::new()) };
}

/// Tracks this thread's changes to collected gradients from its start on. They are undone when it is dropped, also by a panic, unless
/// [`Rollback::accept`] was called. Sums in the memory of a gradient ([`super::accumulate_in_place`]) are not undone.
pub struct Rollback {
    depth: usize,
    /// Makes the rollback specific to its thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Rollback {
    /// Starts tracking changes.
    #[must_use]
    pub fn start() -> Self {
        let depth = CHANGED.with_borrow_mut(|all| {
            all.push(Changed::default());
            all.len()
        });
        Self { depth, _thread: std::marker::PhantomData }
    }

    /// Accepts the changes, unless an enclosing rollback undoes them.
    pub fn accept(self) {
        CHANGED.with_borrow_mut(|all| {
            let own = all.drain(self.depth.min(all.len() + 1) - 1..).collect::<Vec<_>>();
            let Some(outer) = all.last_mut() else { return };
            for (tensor, grad) in own.into_iter().flat_map(|changed| changed.before) {
                if outer.known.insert(tensor.as_ptr() as usize) {
                    outer.before.push((tensor, grad));
                }
            }
        });
    }
}

impl Drop for Rollback {
    fn drop(&mut self) {
        // Accepted changes leave nothing to undo.
        let own: Vec<Changed> = CHANGED.with_borrow_mut(|all| {
            let first = self.depth.min(all.len() + 1) - 1;
            all.drain(first..).collect()
        });
        for (tensor, grad) in own.into_iter().rev().flat_map(|changed| changed.before) {
            let tensor = tensor.upgrade();
            let autograd = tensor.as_ref().and_then(|inner| inner.autograd.as_ref());
            if let Some(Autograd { grad: place, .. }) = autograd {
                let replaced =
                    std::mem::replace(&mut *place.lock().unwrap_or_else(PoisonError::into_inner), grad);
                drop(replaced);
            }
        }
    }
}

/// Must be called before the collected gradient of `tensor` is replaced.
pub(super) fn changing(tensor: &Tensor) {
    CHANGED.with_borrow_mut(|all| {
        if let Some(changed) = all.last_mut()
            && changed.known.insert(std::sync::Arc::as_ptr(&tensor.0) as usize)
        {
            changed.before.push((std::sync::Arc::downgrade(&tensor.0), tensor.grad()));
        }
    });
}
