//! Activation checkpointing: results that are recomputed in the backward pass instead of being stored. The same launches compute them, so
//! only the memory use changes (Chen et al., "Training deep nets with sublinear memory cost", 2016).
//!
//! Instead of the result, the tape has a placeholder without memory. For a whole block it has the block's input and the function.

use super::{RECORDING, Restore, record_all};
use crate::tensor::autograd::{Again, Autograd};
use crate::tensor::saved::{SavedVersions, described};
use crate::{Error, Result, Tensor};
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

/// Does the same for an `f` that computes each row from the same row of x `(.., C)`. Forward and backward run it for at most `rows` rows at a time, so
/// that only one part's activations are in memory. Parameters that `f` uses sum the gradients of the parts.
///
/// # Errors
/// Errors of `f`; `Shape` if it changes the number of rows.
pub fn checkpoint_rows(
    name: &'static str,
    x: &Tensor,
    rows: usize,
    f: impl Fn(&Tensor) -> Result<Tensor> + Send + 'static,
) -> Result<Tensor> {
    let (all, _) = x.shape().rows_cols();
    if all <= rows || rows == 0 {
        return checkpoint(name, x, f);
    }
    let axes = x.dims().split_last().map_or(Vec::new(), |(_, outer)| outer.to_vec());
    let y = super::no_grad(|| by_rows(&x.detach(), rows, |part, _| f(part)))?;
    let columns = y.dims()[1];
    let y = y.reshape([&axes[..], &[columns]].concat())?;
    if !RECORDING.get() || !x.requires_grad() {
        return Ok(y);
    }
    let [y] = record_all(name, &[x], [y], move |inputs, dys| {
        let (Some(x), Some(Some(dy))) = (inputs.first(), dys.first()) else { return Ok(Vec::new()) };
        let dy = dy.detach().contiguous()?.reshape([all, columns])?;
        let dx = by_rows(&x.detach(), rows, |part, range| {
            let leaf = part.detach().leaf();
            let y = {
                let _restore = Restore(&RECORDING, RECORDING.replace(true));
                f(&leaf)?
            };
            y.backward_with(&dy.slice(0, range)?)?;
            leaf.grad().map_or_else(|| Tensor::zeros(part.device(), part.shape().clone(), part.dtype()), Ok)
        })?;
        Ok(vec![Some(dx.reshape(x.shape().clone())?)])
    })?;
    Ok(y)
}

/// Applies `f` to parts of at most `rows` rows of x, with the numbers of the rows → all results, (rows, columns).
fn by_rows(
    x: &Tensor,
    rows: usize,
    f: impl Fn(&Tensor, std::ops::Range<usize>) -> Result<Tensor>,
) -> Result<Tensor> {
    let (all, columns) = x.shape().rows_cols();
    let x = x.contiguous()?.reshape([all, columns])?;
    let mut whole: Option<Tensor> = None;
    for first in (0..all).step_by(rows) {
        let range = first..all.min(first + rows);
        let part = f(&x.slice(0, range.clone())?.contiguous()?, range.clone())?;
        let [n, columns] = part.dims2()?;
        if n != range.len() {
            return Err(Error::shape(format!("{n} rows were computed from {}", range.len())));
        }
        let whole = match &mut whole {
            Some(whole) => whole,
            none => none.insert(Tensor::empty(part.device(), [all, columns], part.dtype())?),
        };
        whole.write_slice(0, first, &part)?;
    }
    whole.ok_or_else(|| Error::internal("no rows"))
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
    pub(super) fn on_tape(&self, memory: &Self, again: Option<Again>, given_up: bool) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::suite::test_device;

    /// Parts of the rows give the results and gradients of all rows together.
    #[test]
    fn functions_of_rows_are_computed_in_parts() {
        let device = test_device().unwrap();
        let values = |n: usize, by: f32| (0..n).map(|i| (i as f32 * by).sin()).collect::<Vec<f32>>();
        let tensor = |dims: &[usize], by: f32| {
            Tensor::from_f32(&device, dims, &values(dims.iter().product(), by), DType::F32).unwrap()
        };
        let dy = tensor(&[2, 5, 4], 0.7);
        let step = |rows: Option<usize>| {
            let (x, w) = (tensor(&[2, 5, 3], 0.3).parameter("x"), tensor(&[3, 4], 0.11).parameter("w"));
            let inner = w.clone();
            let f = move |x: &Tensor| x.matmul(&inner)?.tanh();
            let y = match rows {
                Some(rows) => checkpoint_rows("rows", &x, rows, f).unwrap(),
                None => f(&x).unwrap(),
            };
            y.backward_with(&dy).unwrap();
            [y, x.grad().unwrap(), w.grad().unwrap()].map(|t| (t.dims().to_vec(), t.to_vec().unwrap()))
        };
        let expected = step(None);
        for rows in [1, 3, 4, 10] {
            for ((dims, found), (expected_dims, expected)) in step(Some(rows)).iter().zip(&expected) {
                assert_eq!(dims, expected_dims);
                let far = found.iter().zip(expected).find(|(f, e)| (*f - *e).abs() > 1e-6);
                assert!(far.is_none(), "{rows} rows: {far:?}");
            }
        }
        let wrong = checkpoint_rows("rows", &tensor(&[4, 3], 0.3), 2, |x| x.slice(0, 0..1)).unwrap_err();
        assert!(wrong.message().contains("1 rows were computed from 2"), "{wrong}");
    }
}
