//! The optimizer that settings name.

use crate::config::TrainConfig;
use crate::optim::{Hyper, Optimizer, ParamGroup, ParameterPart, Rule};
use netcl_model::params::Params;
use netcl_tensor::Result;
use std::sync::Arc;

/// Returns the update rule of a run with these settings, for memory plans, ZeRO and the update.
pub(super) fn rule(config: &TrainConfig) -> Arc<dyn Rule> {
    let kind = config.optimizer.kind();
    let value = |hyper: &Hyper| match hyper.name {
        "beta1" => config.betas[0],
        "beta2" => config.betas[1],
        "eps" => config.eps,
        "momentum" => config.momentum,
        _ => hyper.default,
    };
    (kind.make)(&kind.hyper.iter().map(value).collect::<Vec<_>>())
}

/// Creates the usual optimizer for GPTs: weight decay for matrices only, gradient clipping, and loss scaling for f16. With `parts`, it updates one
/// rank's parts of the parameters.
pub(super) fn optimizer(
    params: &Params,
    config: &TrainConfig,
    parts: Option<Vec<ParameterPart>>,
) -> Result<Optimizer> {
    let rule = rule(config);
    let groups = ParamGroup::gpt(&params.trained(), config.weight_decay);
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
