//! Checks that calling an op by its name gives the same results as the op itself.

use super::compare::{same_bits, upload_like};
use super::subject::Trial;
use crate::array::Array;
use crate::ops::find;
use crate::{Error, Result, Tensor, no_grad, tape};

/// Compares results and gradients bit by bit. A call may have one result more or fewer than its op; the others are in the same order.
pub fn check(
    sample: &Trial,
    inputs: &[Tensor],
    (ys, grads, dys): (&[Tensor], &[Option<Tensor>], &[Array]),
) -> Result<()> {
    let (op, name) = (&sample.op, sample.op.called());
    // Prefers the op's own call to one of the same name in the list, because an op of another crate may have any name.
    let call = match op.calls().into_iter().find(|call| call.name == name) {
        Some(call) => call,
        None => find(name)?.clone(),
    };
    let attributes = op.attributes();
    let run = || call.invoke(&op.given(inputs), &attributes);
    // A call without gradients may be rejected if a gradient could be needed.
    if grads.iter().all(Option::is_none) {
        return same_results(name, ys, &no_grad(run)?);
    }
    let (again, again_grads) = forward_backward(inputs, dys, run)?;
    same_results(name, ys, &again)?;
    for (expected, grad) in grads.iter().zip(&again_grads) {
        match (expected, grad) {
            (Some(expected), Some(grad)) => same_bits("a gradient of the call by name", expected, grad)?,
            (None, None) => {}
            _ => {
                return Err(Error::internal(format!(
                    "{name}: called by name, different inputs have gradients"
                )));
            }
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
            false => Err(Error::internal(format!(
                "{name}: called by name, the result is {other:?}, expected {y:?}"
            ))),
        };
        let mut last = Err(Error::internal(format!("{name}: called by name, the result {y:?} is missing")));
        let found = left.any(|other| {
            last = same(other);
            last.is_ok()
        });
        if !found {
            return last;
        }
    }
    match fewer.is_empty() {
        true => Err(Error::internal(format!("{name}: called by name, it gave no result"))),
        false => Ok(()),
    }
}

/// Computes the results of `run` and the gradients of the inputs, from gradients of its first results.
fn forward_backward(
    inputs: &[Tensor],
    dys: &[Array],
    run: impl FnOnce() -> Result<Vec<Tensor>>,
) -> Result<(Vec<Tensor>, Vec<Option<Tensor>>)> {
    inputs.iter().for_each(|t| t.set_grad(None));
    let ys = run()?;
    let differentiable: Vec<Tensor> = ys.iter().filter(|y| y.requires_grad()).cloned().collect();
    let placed = upload_like(&differentiable, dys)?;
    tape::backward_all(&differentiable.iter().zip(&placed).collect::<Vec<_>>())?;
    Ok((ys.iter().map(Tensor::detach).collect(), inputs.iter().map(Tensor::grad).collect()))
}
