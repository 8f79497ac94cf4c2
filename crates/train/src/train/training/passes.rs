//! The forward and backward pass of a batch.

use super::Objective;
use crate::optim::Optimizer;
use crate::train::divided::Divided;
use crate::train::statistics::Statistics;
use crate::train::sums::Sums;
use netcl_model::layers::{RankGroup as OverRanks, together};
use netcl_tensor::tape::{accumulate_in_place, later_gradients_apart, replace_in_place, with_gradient_sink};
use netcl_tensor::{Result, Tensor};
use std::sync::Arc;

/// The part of a step that a forward and backward pass computes.
#[derive(Clone, Copy)]
pub(in crate::train) struct StepSlice<'a> {
    /// Micro-batches of the step.
    pub micros: u32,
    /// Share of its rows in the rows of a batch.
    pub share: f32,
    /// Rows of the batch before its own.
    pub rows_before: usize,
    /// The tied table, and the accumulator for its embedding's gradient, if that is not added to the head's.
    pub apart: Option<(&'a Tensor, &'a Tensor)>,
    /// Sums over ranks within the pass.
    pub statistics: Option<&'a Arc<Statistics>>,
}

/// Destination of gradients.
#[derive(Clone, Copy)]
pub(in crate::train) enum Collect<'a> {
    /// New memory, or sums with gradients collected before.
    New,
    /// Added to the existing gradients, in their memory.
    Add,
    /// Replace the existing gradients, in their memory.
    Replace,
    /// Each is handed over as soon as it is computed.
    Give(&'a Divided),
}

impl Collect<'_> {
    /// Collects into the accumulators, if there are some.
    pub fn into_sums(sums: Option<&Sums>) -> Self {
        match sums {
            Some(sums) if sums.are_added() => Self::Add,
            Some(_) => Self::Replace,
            None => Self::New,
        }
    }
}

/// Runs the forward and backward pass of a batch. Gradients are added to those of earlier batches; returns the batch's contribution to the mean loss
/// of the step.
pub(in crate::train) fn gradients<T: Objective>(
    task: &T,
    optimizer: &Optimizer,
    part: StepSlice<'_>,
    inputs: &T::Inputs,
    collect: Collect<'_>,
) -> Result<Tensor> {
    let StepSlice { micros, share, rows_before, apart, statistics } = part;
    let device = task.params().device();
    let pass = || {
        let tag = device.tag("activations");
        let mut loss = task.loss(inputs, rows_before)?;
        if micros > 1 || share < 1.0 {
            loss = loss.mul_scalar(share / micros as f32)?;
        }
        drop(tag);
        let backward = || collected(optimizer, collect, || optimizer.backward(&loss));
        match apart {
            Some((table, later)) => {
                later_gradients_apart(table, later, matches!(collect, Collect::Replace), backward)?;
            }
            None => backward()?,
        }
        Ok(loss.detach())
    };
    match statistics {
        Some(own) => {
            own.begin();
            let ranks: Arc<dyn OverRanks> = own.clone();
            together(&ranks, pass)
        }
        None => pass(),
    }
}

/// Runs `backward`, whose gradients go to the destination `collect`.
pub(in crate::train) fn collected(
    optimizer: &Optimizer,
    collect: Collect<'_>,
    backward: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let _tag = optimizer.params().next().map(|param| param.device().tag("gradients"));
    match collect {
        Collect::New => backward(),
        Collect::Give(to) => {
            to.restart();
            with_gradient_sink(to.taker(), backward)
        }
        Collect::Add => accumulate_in_place(backward),
        Collect::Replace => {
            let params: Vec<Tensor> = optimizer.params().cloned().collect();
            replace_in_place(&params, backward)
        }
    }
}

/// Runs forward and backward of one row, to allocate what outlives a step. Its gradients are discarded, and state that it changes is restored.
pub(in crate::train) fn warm<T: Objective>(
    task: &T,
    optimizer: &Optimizer,
    part: StepSlice<'_>,
    inputs: &T::Inputs,
    divided: Option<&Divided>,
) -> Result<Tensor> {
    let kept: Vec<(Tensor, Vec<u8>)> =
        task.buffers().into_iter().map(|x| x.to_bytes().map(|bytes| (x, bytes))).collect::<Result<_>>()?;
    let one = task.one_row(inputs)?;
    let collect = divided.map_or(Collect::New, Collect::Give);
    let pass = || gradients(task, optimizer, part, &one, collect);
    let made = part.statistics.map_or_else(pass, |statistics| statistics.alone(pass));
    kept.iter().try_for_each(|(x, bytes)| x.write_bytes(0, bytes))?;
    made
}
