//! A sparse mixture of experts in the place of an MLP.

use super::config::{DecoderConfig, MoeConfig};
use super::shapes::parameter;
use crate::layers::in_layer;
use crate::params::Params;
use netcl_tensor::ops::balance_loss::balance_loss;
use netcl_tensor::ops::experts::experts;
use netcl_tensor::ops::gated::Gate;
use netcl_tensor::ops::join::cat;
use netcl_tensor::ops::matmul::linear;
use netcl_tensor::ops::route::route;
use netcl_tensor::{Error, Result, Tensor};

/// A router and its experts.
#[derive(Clone)]
pub(super) struct Mixture {
    /// (E, C).
    router: Tensor,
    /// Gates and values of all experts (E, 2H, C).
    gate_up: Tensor,
    /// Their maps back (E, C, H).
    down: Tensor,
    config: MoeConfig,
    gate: Gate,
    /// Its dropout site.
    pub(super) site: u64,
}

impl Mixture {
    /// That of the layer whose names start with `place`; `None` for a dense layer.
    pub(super) fn new(
        params: &Params,
        config: &DecoderConfig,
        (index, place): (usize, &str),
        site: u64,
    ) -> Result<Option<Self>> {
        let (Some(moe), Some(names)) = (config.mlp.moe, config.family.names.experts) else { return Ok(None) };
        if !config.kind(index).sparse {
            return Ok(None);
        }
        let gate = config.mlp.activation.gate();
        let gate = gate.ok_or_else(|| Error::unsupported("experts whose activation is tanh"))?;
        let of = |name: &str| parameter(params, &format!("{place}{}.{name}", names.folder));
        let (router, gate_up, down) =
            (of("gate.weight")?, of("experts.gate_up_proj")?, of("experts.down_proj")?);
        Ok(Some(Self { router, gate_up, down, config: moe, gate, site }))
    }

    /// x `(.., C)` → what its experts make of each token, `(.., C)`, and the router's logits `(.., E)`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let MoeConfig { top_k, renormalise, .. } = self.config;
        let mixed = || {
            let logits = linear(x, &self.router.transpose(0, 1)?, None)?;
            let (weights, ids) = route(&logits, top_k, renormalise)?;
            let y = experts(x, &ids, &weights, [&self.gate_up, &self.down], self.gate)?;
            Ok((y, logits))
        };
        mixed().map_err(|e| in_layer(e, &self.router))
    }
}

/// The balance loss of all routers times its factor: of `logits` `(.., E)` of each sparse layer. `None` where the model has none, or where
/// no gradient is wanted: it is there to train by, and no part of how well text is predicted.
pub(super) fn balance(config: &DecoderConfig, logits: &[Tensor]) -> Result<Option<Tensor>> {
    let Some(moe) = config.mlp.moe.filter(|moe| moe.balance) else { return Ok(None) };
    if !logits.iter().any(Tensor::requires_grad) {
        return Ok(None);
    }
    let logits: Vec<&Tensor> = logits.iter().collect();
    balance_loss(&cat(&logits, 0)?, moe.top_k)?.mul_scalar(moe.balance_factor).map(Some)
}
