//! Hooks on gradients, and gradients that are returned instead of collected.

use super::collect::is_own;
use super::{eagerly, no_grad, settle, walk, with_gradient_sink};
use crate::ops::copied;
use crate::tensor::autograd::Hook;
use crate::{Error, Result, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

impl Tensor {
    /// Registers a hook and returns its number, or `None` if the tensor does not have a gradient. A backward calls it once, with the sum of
    /// the gradients of all uses of the tensor. The hook of a tensor that a scope fused into one kernel is not called.
    pub fn add_hook(&self, hook: Hook) -> Option<u64> {
        let autograd = self.0.autograd.as_ref()?;
        Some(autograd.hooks.add(hook))
    }
    /// Removes the hook with this number.
    pub fn remove_hook(&self, number: u64) {
        if let Some(autograd) = &self.0.autograd {
            autograd.hooks.remove(number);
        }
    }
    /// Returns whether it has hooks.
    pub(super) fn is_hooked(&self) -> bool {
        self.0.autograd.as_ref().is_some_and(|a| !a.hooks.all().is_empty())
    }
    /// Returns the gradient after the tensor's hooks.
    pub(super) fn hooked(&self, grad: Tensor) -> Result<Tensor> {
        let Some(autograd) = &self.0.autograd else { return Ok(grad) };
        autograd.hooks.all().into_iter().try_fold(grad, |grad, hook| match hook(&grad)? {
            None => Ok(grad),
            Some(new) if new.shape() == grad.shape() && new.dtype() == grad.dtype() => Ok(new),
            Some(new) => Err(Error::shape(format!(
                "backward: a hook returned a gradient of shape {} and type {}, expected {} and {}",
                new.shape(),
                new.dtype(),
                grad.shape(),
                grad.dtype()
            ))),
        })
    }
}

/// Results of operations whose gradients [`gradients`] returns: node, index, and the gradient.
#[derive(Default)]
pub(super) struct Wanted(Vec<((u64, usize), Option<Tensor>)>);

impl Wanted {
    /// Notes the gradient of a result, if it is wanted.
    pub fn see(&mut self, at: (u64, usize), dy: &Tensor) -> Result<()> {
        for (_, found) in self.0.iter_mut().filter(|(wanted, _)| *wanted == at) {
            *found = Some(copied(dy)?);
        }
        Ok(())
    }
}

/// Sums of the gradients of leaves.
type Sums = Arc<Mutex<Vec<(Tensor, Tensor)>>>;

fn add(sums: &Sums, leaf: &Tensor, grad: Tensor) -> Result<()> {
    let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
    match sums.iter_mut().find(|(other, _)| Arc::ptr_eq(&other.0, &leaf.0)) {
        Some((_, sum)) => *sum = sum.add(&grad)?,
        None => sums.push((leaf.clone(), grad)),
    }
    Ok(())
}

/// Computes the gradients of `outputs`, pairs of a tensor and its gradient, for `inputs`, and returns them. Leaves do not collect them. The
/// result is `None` for an input that no output depends on.
///
/// # Errors
/// `Shape` if a pair differs in shape; errors of a backward.
pub fn gradients(outputs: &[(&Tensor, &Tensor)], inputs: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
    if let Some((y, dy)) = outputs.iter().find(|(y, dy)| y.shape() != dy.shape()) {
        return Err(Error::shape(format!(
            "grad: a gradient has shape {}, expected {}",
            dy.shape(),
            y.shape()
        )));
    }
    settle()?;
    let mut wanted = Wanted::default();
    for x in inputs {
        let Some(autograd) = &x.0.autograd else { continue };
        if let Some(node) = &autograd.node {
            wanted.0.push(((node.done()?.number, autograd.slot), None));
        }
    }
    let sums = Sums::default();
    let sink = Arc::clone(&sums);
    with_gradient_sink(Arc::new(move |leaf, grad| add(&sink, leaf, grad)), || {
        eagerly(|| no_grad(|| walk(outputs, &mut wanted)))
    })?;
    let mut made = wanted.0.into_iter();
    let sums = std::mem::take(&mut *sums.lock().unwrap_or_else(PoisonError::into_inner));
    no_grad(|| {
        inputs
            .iter()
            .map(|x| match &x.0.autograd {
                Some(autograd) if autograd.node.is_some() => Ok(made.next().and_then(|(_, grad)| grad)),
                _ => match sums.iter().find(|(leaf, _)| Arc::ptr_eq(&leaf.0, &x.0)) {
                    Some((leaf, grad)) => {
                        let grad = leaf.hooked(grad.clone())?;
                        if is_own(&grad) { Ok(Some(grad)) } else { copied(&grad).map(Some) }
                    }
                    None => Ok(None),
                },
            })
            .collect()
    })
}
