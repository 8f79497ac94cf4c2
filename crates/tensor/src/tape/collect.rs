//! Gradients that leaves, and tensors that were asked to, collect. Each owns its memory: writing to one changes nothing else.

use super::{accumulate, give, rollback};
use crate::ops::copied;
use crate::{DType, Result, Tensor};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

impl Tensor {
    /// Asks that the gradient of a tensor that is no leaf be kept too.
    pub fn retain_grad(&self) {
        if let Some(a) = &self.0.autograd {
            a.retain.store(true, Ordering::Relaxed);
        }
    }
    /// Whether its gradient is kept.
    pub(crate) fn retains_grad(&self) -> bool {
        self.0.autograd.as_ref().is_some_and(|a| a.retain.load(Ordering::Relaxed))
    }
    /// The gradient collected so far.
    pub fn grad(&self) -> Option<Self> {
        self.0.autograd.as_ref().and_then(|a| a.grad.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
    /// Replaces or, with `None`, forgets the gradient.
    pub fn set_grad(&self, grad: Option<Self>) {
        if let Some(a) = &self.0.autograd {
            rollback::changing(self);
            *a.grad.lock().unwrap_or_else(PoisonError::into_inner) = grad;
        }
    }
}

/// Gradients of leaves that something else still has the memory of. At the end of the walk most are the only owner.
#[derive(Default)]
pub(super) struct Shared(Vec<(Tensor, Tensor)>);

impl Shared {
    /// A gradient reaches a leaf.
    pub fn arrive(&mut self, leaf: &Tensor, grad: Tensor) -> Result<()> {
        // Leaves without a name are those of an operation that walks back through what it computed again.
        if leaf.name().is_some()
            && let Some(take) = give::taker()
        {
            return take(leaf, grad);
        }
        let grad = match self.0.iter().position(|(other, _)| Arc::ptr_eq(&other.0, &leaf.0)) {
            Some(at) => self.0.swap_remove(at).1.add(&grad)?,
            None => grad,
        };
        if is_own(&grad) || leaf.grad().is_some() {
            return keep(leaf, grad).map(drop);
        }
        self.0.push((leaf.clone(), grad));
        Ok(())
    }
    /// The walk is done.
    pub fn settle(self) -> Result<()> {
        self.0.into_iter().try_for_each(|(leaf, grad)| keep(&leaf, grad).map(drop))
    }
}

/// Adds to the collected gradient of a leaf or a tensor that was asked to retain it; gives `grad` back for those who go on with it.
///
/// The lock is held from reading what was collected to writing the sum, so that threads that walk back to one leaf at the same time
/// lose nothing.
pub(crate) fn keep(tensor: &Tensor, grad: Tensor) -> Result<Tensor> {
    let Some(autograd) = &tensor.0.autograd else { return Ok(grad) };
    if !autograd.retain.load(Ordering::Relaxed) {
        return Ok(grad);
    }
    rollback::changing(tensor);
    let mut collected = autograd.grad.lock().unwrap_or_else(PoisonError::into_inner);
    let sum = match collected.as_ref() {
        Some(before) => accumulate::sum(tensor, before, &grad)?,
        None if is_own(&grad) => grad.clone(),
        None => copied(&grad)?,
    };
    debug_assert!(sum.dtype() == tensor.dtype() || sum.dtype() == DType::F32);
    *collected = Some(sum);
    Ok(grad)
}

/// Whether nothing else has its memory and the elements lie in order.
fn is_own(grad: &Tensor) -> bool {
    grad.is_contiguous() && Arc::strong_count(&grad.0) == 1 && grad.0.buffer.is_unshared()
}
