//! Activation checkpointing: results that are recomputed in the backward pass instead of being stored. The same launches compute them, so
//! only the memory use changes (Chen et al., "Training deep nets with sublinear memory cost", 2016).
//!
//! Instead of the result, the tape has a placeholder without memory. For a whole block it has the block's input and the function.

use super::{RECORDING, Restore, record_all};
use crate::tensor::autograd::{Again, Autograd};
use crate::tensor::saved::{SavedVersions, described};
use crate::{Result, Tensor};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Runs `f` with recording on this thread, also within a backward: for functions that compute a part of the forward again.
pub fn recording<R>(f: impl FnOnce() -> R) -> R {
    let _restore = Restore(&RECORDING, RECORDING.replace(true));
    f()
}

/// Computes `f(x)`, but keeps only x on the tape. The backward runs `f` again, with recording, and then its backward.
///
/// Parameters that `f` uses collect their gradients as usual. Random numbers must be the same in both runs.
///
/// # Errors
/// Errors of `f`.
pub fn checkpoint(
    name: &'static str,
    x: &Tensor,
    f: impl Fn(&Tensor) -> Result<Tensor> + Send + 'static,
) -> Result<Tensor> {
    let [y] = checkpoint_all(name, x, move |x| f(x).map(|y| [y]))?;
    Ok(y)
}

/// Like [`checkpoint`], for an `f` with several results, whose backward runs once.
///
/// # Errors
/// Errors of `f`.
pub fn checkpoint_all<const M: usize>(
    name: &'static str,
    x: &Tensor,
    f: impl Fn(&Tensor) -> Result<[Tensor; M]> + Send + 'static,
) -> Result<[Tensor; M]> {
    // Without a gradient for x, no node would call the recomputation.
    if !RECORDING.get() || !x.requires_grad() {
        return f(x);
    }
    let ys = super::no_grad(|| f(x))?;
    record_all(name, &[x], ys, move |inputs, dys| {
        let Some(x) = inputs.first() else { return Ok(Vec::new()) };
        let leaf = x.detach().leaf();
        let ys = {
            let _restore = Restore(&RECORDING, RECORDING.replace(true));
            f(&leaf)?
        };
        // A result that depends neither on the input nor on a parameter does not have a backward function.
        let from = ys.iter().zip(dys).filter(|(y, _)| y.requires_grad());
        let from: Vec<_> = from.filter_map(|(y, dy)| Some((y, dy.as_ref()?))).collect();
        super::backward_all(&from)?;
        Ok(vec![leaf.grad()])
    })
}

impl Tensor {
    /// Returns the same tensor, for which the tape keeps only the recomputation. `again` computes its elements from those of `sources`, off
    /// the tape. If nothing is recorded, the tensor is unchanged. If a source is overwritten before the recomputation, the backward fails.
    #[must_use]
    pub fn recomputed_by<const N: usize>(
        &self,
        sources: [&Self; N],
        again: impl Fn([&Self; N]) -> Result<Self> + Send + Sync + 'static,
    ) -> Self {
        let Some(Autograd { node: Some(node), .. }) = &self.0.autograd else { return self.clone() };
        let (op, saved) = (node.op, SavedVersions::now(sources.into_iter()));
        let sources = sources.map(Self::detach);
        let make = move || {
            let error = |i: usize| {
                let source: &Self = &sources[i.min(N - 1)];
                let form = (source.shape().clone(), source.dtype());
                format!("{op}, recomputed: {}", described(&format!("source {i}"), None, &form))
            };
            saved.clone().hold(|| again(sources.each_ref()), error)
        };
        self.on_tape(self, Some(Arc::new(make)), false)
    }

    /// Returns `memory` with this tensor's place on the tape.
    fn on_tape(&self, memory: &Self, again: Option<Again>, given_up: bool) -> Self {
        let autograd = self.0.autograd.as_ref().map(|a| Autograd {
            node: a.node.clone(),
            slot: a.slot,
            name: a.name.clone(),
            grad: Mutex::new(None),
            retain: AtomicBool::new(false),
            again,
            given_up,
            frozen: AtomicBool::new(a.frozen.load(Ordering::Relaxed)),
            hooks: a.hooks.clone(),
        });
        Self::from_parts(memory.storage().clone(), self.layout().clone(), self.dtype(), autograd)
    }

    /// Returns this tensor's place on the tape, shape and type, without its memory.
    pub(crate) fn without_memory(&self) -> Result<Self> {
        Ok(self.on_tape(&Self::empty(self.device(), [0], self.dtype())?, None, false))
    }

    /// Returns what a node keeps of an input: the tensor, or its place without the memory.
    pub(super) fn to_keep(&self) -> Result<Self> {
        match self.0.autograd.as_ref().and_then(|a| a.again.clone()) {
            Some(again) => {
                Ok(self.on_tape(&Self::empty(self.device(), [0], self.dtype())?, Some(again), true))
            }
            None => Ok(self.clone()),
        }
    }

    /// Returns the tensor with its memory, recomputed if necessary.
    pub(super) fn whole_again(&self) -> Result<Self> {
        match &self.0.autograd {
            Some(Autograd { given_up: true, again: Some(again), .. }) => {
                let made = again()?;
                debug_assert!(made.shape() == self.shape() && made.is_contiguous());
                Ok(self.on_tape(&made, None, false))
            }
            _ => Ok(self.clone()),
        }
    }
}

/// Computes the gradients of the `inputs` that need one from `dy`, the gradient of `f(inputs)`: runs `f` again, with recording, and its
/// backward. Meant for an op that computes in one launch what other ops compute in several, and that has their gradient.
pub(crate) fn gradients_of<const N: usize>(
    inputs: [&Tensor; N],
    dy: &Tensor,
    f: impl FnOnce([&Tensor; N]) -> Result<Tensor>,
) -> Result<[Option<Tensor>; N]> {
    let leaf = |x: &Tensor| match x.requires_grad() {
        true => x.detach().leaf(),
        false => x.detach(),
    };
    let leaves = inputs.map(leaf);
    let y = {
        let _restore = Restore(&RECORDING, RECORDING.replace(true));
        f(leaves.each_ref())?
    };
    if y.requires_grad() {
        y.backward_with(dy)?;
    }
    Ok(leaves.map(|leaf| leaf.grad()))
}
