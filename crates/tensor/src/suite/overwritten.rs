//! Overwrites each input and each result between forward and backward. The backward must refuse, or give gradients with unchanged bits because it
//! does not read the tensor.

use super::Sample;
use super::compare::{same_bits, upload_like};
use crate::array::Array;
use crate::ops::MultiOp;
use crate::{Error, Result, Tensor, tape};

/// Checks this; `expected` has the gradients without overwriting, from `dys`.
pub(super) fn check<O: MultiOp<N, M>, const N: usize, const M: usize>(
    sample: &Sample<O, N>,
    inputs: &[Tensor],
    dys: &[Array; M],
    expected: &[Option<Tensor>],
) -> Result<()> {
    if !inputs.iter().any(Tensor::requires_grad) {
        return Ok(());
    }
    let values = inputs.iter().map(Tensor::to_bytes).collect::<Result<Vec<_>>>()?;
    for which in 0..N + M {
        inputs.iter().for_each(|t| t.set_grad(None));
        let ys = sample.op.clone().apply(std::array::from_fn(|i| &inputs[i]))?;
        let placed = upload_like(&ys, dys)?;
        let (what, target) = match inputs.get(which) {
            Some(input) => (format!("input {which}"), input),
            None => (format!("result {}", which - N), &ys[which - N]),
        };
        target.device().fill(target.storage(), &[0xA5])?;
        let outcome = tape::backward_all(&ys.iter().zip(&placed).collect::<Vec<_>>());
        for (input, bytes) in inputs.iter().zip(&values) {
            input.set_bytes(bytes)?;
        }
        match outcome {
            Ok(()) => same_gradients(inputs, expected)
                .map_err(|e| e.context(format!("{what} was overwritten before the backward"))),
            Err(e) if e.message().contains("was overwritten after the forward") => Ok(()),
            Err(e) => Err(e.context(format!("the backward after {what} was overwritten"))),
        }?;
    }
    inputs.iter().for_each(|t| t.set_grad(None));
    Ok(())
}

fn same_gradients(inputs: &[Tensor], expected: &[Option<Tensor>]) -> Result<()> {
    for (i, (input, expected)) in inputs.iter().zip(expected).enumerate() {
        match (input.grad(), expected) {
            (Some(grad), Some(expected)) => same_bits(&format!("gradient {i}"), &grad, expected)?,
            (None, None) => {}
            _ => return Err(Error::internal(format!("gradient {i} exists in only one of two runs"))),
        }
    }
    Ok(())
}
