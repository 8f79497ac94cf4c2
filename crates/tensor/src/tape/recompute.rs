//! Results that are made again in the backward pass instead of being kept: memory for time. The same launches make them, so
//! nothing changes but when memory is in use (Chen et al., "Training deep nets with sublinear memory cost", 2016).

use super::{RECORDING, Restore, record_all};
use crate::tensor::autograd::{Again, Autograd};
use crate::tensor::saved::{Saved, described};
use crate::{Result, Tensor};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// `f(x)`, of which the tape keeps x alone: the backward runs `f` again, with recording, and walks back through that.
///
/// Parameters that `f` uses collect their gradients as ever. Random numbers must come out the same a second time.
///
/// # Errors
/// Those of `f`.
pub fn checkpoint(
    name: &'static str,
    x: &Tensor,
    f: impl Fn(&Tensor) -> Result<Tensor> + Send + 'static,
) -> Result<Tensor> {
    let [y] = checkpoint_all(name, x, move |x| f(x).map(|y| [y]))?;
    Ok(y)
}

/// The same for an `f` of several results, whose backward runs once.
///
/// # Errors
/// Those of `f`.
pub fn checkpoint_all<const M: usize>(
    name: &'static str,
    x: &Tensor,
    f: impl Fn(&Tensor) -> Result<[Tensor; M]> + Send + 'static,
) -> Result<[Tensor; M]> {
    // Without a gradient for x there is no node that could call back.
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
        // A result that does not depend on the input, nor on a parameter, has no way back.
        let from = ys.iter().zip(dys).filter(|(y, _)| y.requires_grad());
        let from: Vec<_> = from.filter_map(|(y, dy)| Some((y, dy.as_ref()?))).collect();
        super::backward_all(&from)?;
        Ok(vec![leaf.grad()])
    })
}

impl Tensor {
    /// The same tensor, of which the tape keeps only how to make it again: `again` gives its elements from those of `sources`, off
    /// the tape. Where nothing is recorded the tensor stays as it is. Sources that were overwritten by then are an error.
    #[must_use]
    pub fn recomputed_by<const N: usize>(
        &self,
        sources: [&Self; N],
        again: impl Fn([&Self; N]) -> Result<Self> + Send + Sync + 'static,
    ) -> Self {
        let Some(Autograd { node: Some(node), .. }) = &self.0.autograd else { return self.clone() };
        let (op, saved) = (node.op, Saved::now(sources.into_iter()));
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

    /// `memory` in this tensor's place on the tape.
    fn on_tape(&self, memory: &Self, again: Option<Again>, given_up: bool) -> Self {
        let autograd = self.0.autograd.as_ref().map(|a| Autograd {
            node: a.node.clone(),
            slot: a.slot,
            name: a.name.clone(),
            grad: Mutex::new(None),
            retain: AtomicBool::new(false),
            again,
            given_up,
            frozen: a.frozen,
        });
        Self::from_parts(memory.storage().clone(), self.layout().clone(), self.dtype(), autograd)
    }

    /// This tensor's place on the tape, shape and type, without its memory.
    pub(crate) fn without_memory(&self) -> Result<Self> {
        Ok(self.on_tape(&Self::empty(self.device(), [0], self.dtype())?, None, false))
    }

    /// What a node keeps of an input: the tensor, or its place without the memory.
    pub(super) fn to_keep(&self) -> Result<Self> {
        match self.0.autograd.as_ref().and_then(|a| a.again.clone()) {
            Some(again) => {
                Ok(self.on_tape(&Self::empty(self.device(), [0], self.dtype())?, Some(again), true))
            }
            None => Ok(self.clone()),
        }
    }

    /// The tensor with its memory, made again if it was given up.
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

/// What `dy`, the gradient of `f` of `inputs`, gives those of them that want a gradient: `f` runs again, with recording, and is walked back.
/// For an op that computes in one launch what other ops compute in several, and has their gradient.
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
