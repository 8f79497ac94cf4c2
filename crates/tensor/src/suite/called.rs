//! An operation called by name must give the same results as the operation itself.

use super::compare::{same_bits, upload_like};
use super::sample::Sample;
use crate::array::Array;
use crate::ops::{MultiOp, find};
use crate::{Error, Result, Tensor, no_grad, tape};

/// Compares results and gradients, bit for bit. A call may have one result more or fewer than its operation; the others have the same order.
pub fn check<O: MultiOp<N, M>, const N: usize, const M: usize>(
    sample: &Sample<O, N>,
    inputs: &[Tensor],
    (ys, grads, dys): (&[Tensor; M], &[Option<Tensor>], &[Array; M]),
) -> Result<()> {
    let (op, name) = (&sample.op, sample.op.called());
    // The operation's own call precedes one with the same name in the list, since an operation outside of this crate may have any name.
    let call = match O::calls().into_iter().find(|call| call.name == name) {
        Some(call) => call,
        None => find(name)?.clone(),
    };
    let attributes = op.attributes();
    let run = || call.invoke(&op.given(std::array::from_fn(|i| &inputs[i])), &attributes);
    // An operation without gradients may refuse to be called if a gradient could be needed.
    if grads.iter().all(Option::is_none) {
        return same_results(name, ys, &no_grad(run)?);
    }
    let (again, again_grads) = forward_backward(inputs, dys, run)?;
    same_results(name, ys, &again)?;
    for (expected, grad) in grads.iter().zip(&again_grads) {
        match (expected, grad) {
            (Some(expected), Some(grad)) => same_bits("a gradient of the call by name", expected, grad)?,
            (None, None) => {}
            _ => return Err(Error::internal(format!("{name}: called by name, wrong inputs have gradients"))),
        }
    }
    Ok(())
}

fn same_results(name: &str, op: &[Tensor], call: &[Tensor]) -> Result<()> {
    let (fewer, more) = if op.len() <= call.len() { (op, call) } else { (call, op) };
    let mut left = more.iter();
    for y in fewer {
        let same = |other: &Tensor| match (y.shape(), y.dtype()) == (other.shape(), other.dtype()) {
            true => same_bits("the call by name", y, other),
            false => Err(Error::internal(format!("{name}: called by name, {other:?} instead of {y:?}"))),
        };
        let mut last = Err(Error::internal(format!("{name}: called by name, it has no result like {y:?}")));
        let found = left.any(|other| {
            last = same(other);
            last.is_ok()
        });
        if !found {
            return last;
        }
    }
    match fewer.is_empty() {
        true => Err(Error::internal(format!("{name}: called by name, it has no result"))),
        false => Ok(()),
    }
}

/// Computes results of `run`, and gradients of the inputs from the `dys` of the first results.
fn forward_backward<const M: usize>(
    inputs: &[Tensor],
    dys: &[Array; M],
    run: impl FnOnce() -> Result<Vec<Tensor>>,
) -> Result<(Vec<Tensor>, Vec<Option<Tensor>>)> {
    inputs.iter().for_each(|t| t.set_grad(None));
    let ys = run()?;
    let differentiable: Vec<Tensor> = ys.iter().filter(|y| y.requires_grad()).cloned().collect();
    let placed = upload_like(&differentiable, dys)?;
    tape::backward_all(&differentiable.iter().zip(&placed).collect::<Vec<_>>())?;
    Ok((ys.iter().map(Tensor::detach).collect(), inputs.iter().map(Tensor::grad).collect()))
}
