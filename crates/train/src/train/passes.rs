//! Forward and backward pass of a step, and the optimizer of a run.

use super::divided::Divided;
use super::rule::rule;
use super::sums::Sums;
use super::uploads::Inputs;
use crate::config::TrainConfig;
use crate::optim::{self, Optimizer, ParamGroup};
use netcl_model::layers::Mode;
use netcl_model::model::Model;
use netcl_tensor::tape::{accumulate_in_place, give_gradients, later_gradients_apart, replace_in_place};
use netcl_tensor::{Result, Tensor};

/// The optimizer as usual for GPTs: weight decay for matrices only, gradient clipping, and loss scaling for f16.
/// Of several parts of the parameters, that of one rank.
pub(super) fn optimizer(
    model: &dyn Model,
    config: &TrainConfig,
    parts: Option<Vec<optim::Part>>,
) -> Result<Optimizer> {
    let rule = rule(config);
    let groups = ParamGroup::gpt(&model.params().trained(), config.weight_decay);
    let mut optimizer = match parts {
        Some(parts) => {
            let mut optimizer = Optimizer::of_parts(rule, groups, config.dtype, parts)?;
            // The parameters of other ranks are written after each step.
            optimizer.owns_parameters();
            optimizer
        }
        None => Optimizer::for_storage(rule, groups, config.dtype)?,
    };
    optimizer.clip_grad_norm(config.clip);
    Ok(optimizer)
}

/// What of a step a forward and backward pass is.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub config: &'a TrainConfig,
    pub draws: &'a Tensor,
    /// Its rows' share of the rows of a batch.
    pub share: f32,
    /// Rows of the batch before its own.
    pub rows_before: usize,
    /// The tied table, and the accumulator for its embedding's gradient, where that is not added to the head's.
    pub apart: Option<(&'a Tensor, &'a Tensor)>,
}

/// Where gradients go.
#[derive(Clone, Copy)]
pub(super) enum Collect<'a> {
    /// New memory, or sums with what was collected.
    New,
    /// They are added to what is there, in its memory.
    Add,
    /// They replace what is there, in its memory.
    Replace,
    /// Each is given away as soon as it is there.
    Give(&'a Divided),
}

impl Collect<'_> {
    /// Into the accumulators, if there are some.
    pub fn into_sums(sums: Option<&Sums>) -> Self {
        match sums {
            Some(sums) if sums.are_added() => Self::Add,
            Some(_) => Self::Replace,
            None => Self::New,
        }
    }
}

/// Forward and backward pass of a batch. Gradients are added to those of earlier batches; returns the batch's contribution to the mean loss of
/// the step.
pub(super) fn gradients(
    model: &dyn Model,
    optimizer: &Optimizer,
    part: Part<'_>,
    (x, y): &Inputs,
    collect: Collect<'_>,
) -> Result<Tensor> {
    let Part { config, draws, share, rows_before, apart } = part;
    let mode = Mode {
        dropout: config.dropout as f32,
        seed: config.seed,
        pass: 0,
        counter: (config.dropout > 0.0).then_some(draws),
        recompute: config.recompute,
        rows_before,
    };
    let device = model.params().device();
    let tag = device.tag("activations");
    let mut loss = model.loss(x, y, mode)?;
    if config.grad_accum > 1 || share < 1.0 {
        loss = loss.mul_scalar(share / config.grad_accum as f32)?;
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
}

/// Runs `backward`, whose gradients go where `collect` says.
pub(super) fn collected(
    optimizer: &Optimizer,
    collect: Collect<'_>,
    backward: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let _tag = optimizer.params().next().map(|param| param.device().tag("gradients"));
    match collect {
        Collect::New => backward(),
        Collect::Give(to) => {
            to.restart();
            give_gradients(to.taker(), backward)
        }
        Collect::Add => accumulate_in_place(backward),
        Collect::Replace => {
            let params: Vec<Tensor> = optimizer.params().cloned().collect();
            replace_in_place(&params, backward)
        }
    }
}

/// Runs forward and backward of one sequence, to allocate what outlives a step; its gradients are discarded.
pub(super) fn warm(
    model: &dyn Model,
    optimizer: &Optimizer,
    part: Part<'_>,
    inputs: &Inputs,
    divided: Option<&Divided>,
) -> Result<Tensor> {
    // Copies of the rows, independent of the memory of the inputs.
    let row = |ids: &Tensor| {
        let bytes = ids.to_bytes()?;
        let one = bytes.len() / ids.dims()[0].max(1);
        Tensor::from_bytes(ids.device(), [1, part.config.context], &bytes[..one], ids.dtype())
    };
    gradients(
        model,
        optimizer,
        part,
        &(row(&inputs.0)?, row(&inputs.1)?),
        divided.map_or(Collect::New, Collect::Give),
    )
}
