//! Gradients collected by leaves and by tensors with `retain_grad`. Each owns its memory: writing to one changes nothing else.

use super::{accumulate, gradient_sink, rollback};
use crate::ops::copied;
use crate::{DType, Result, Tensor};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

impl Tensor {
    /// Requests that the gradient of a tensor that is not a leaf is kept too.
    pub fn retain_grad(&self) {
        if let Some(a) = &self.0.autograd {
            a.retain.store(true, Ordering::Relaxed);
        }
    }
    /// Returns whether its gradient is kept.
    pub(crate) fn retains_grad(&self) -> bool {
        self.0.autograd.as_ref().is_some_and(|a| a.retain.load(Ordering::Relaxed))
    }
    /// Returns the gradient collected so far.
    pub fn grad(&self) -> Option<Self> {
        self.0.autograd.as_ref().and_then(|a| a.grad.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
    /// Replaces the gradient, or clears it with `None`.
    pub fn set_grad(&self, grad: Option<Self>) {
        if let Some(a) = &self.0.autograd {
            rollback::changing(self);
            *a.grad.lock().unwrap_or_else(PoisonError::into_inner) = grad;
        }
    }
}

/// Gradients of leaves whose memory has other owners. At the end of the backward, most are the only owner.
#[derive(Default)]
pub(super) struct Shared(Vec<(Tensor, Tensor)>);

impl Shared {
    /// Processes a gradient of a leaf.
    pub fn arrive(&mut self, leaf: &Tensor, grad: Tensor) -> Result<()> {
        // Leaves without a name belong to an operation that runs a backward through recomputed values.
        if leaf.name().is_some()
            && let Some(take) = gradient_sink::gradient_sink()
        {
            return take(leaf, grad);
        }
        let grad = match self.0.iter().position(|(other, _)| Arc::ptr_eq(&other.0, &leaf.0)) {
            Some(at) => self.0.swap_remove(at).1.add(&grad)?,
            None => grad,
        };
        // Hooks of a leaf get the sum of all contributions.
        if !leaf.is_hooked() && (is_own(&grad) || leaf.grad().is_some()) {
            return keep(leaf, grad).map(drop);
        }
        self.0.push((leaf.clone(), grad));
        Ok(())
    }
    /// Completes the backward.
    pub fn settle(self) -> Result<()> {
        self.0.into_iter().try_for_each(|(leaf, grad)| {
            let grad = leaf.hooked(grad)?;
            keep(&leaf, grad).map(drop)
        })
    }
}

/// Adds to the collected gradient of a leaf or of a tensor with `retain_grad`. Returns `grad` for further use.
///
/// The lock is held from reading the collected gradient to writing the sum, so that concurrent backwards to one leaf lose nothing.
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

/// Returns whether a gradient is the only owner of its memory and contiguous.
pub(super) fn is_own(grad: &Tensor) -> bool {
    grad.is_contiguous() && Arc::strong_count(&grad.0) == 1 && grad.0.buffer.is_unshared()
}
