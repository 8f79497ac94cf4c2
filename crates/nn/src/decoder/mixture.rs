//! Sparse mixture of experts, as a replacement of the MLP.

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

/// Router and experts.
#[derive(Clone)]
pub(super) struct Mixture {
    /// Router (E, C).
    router: Tensor,
    /// Gate and up projections of all experts (E, 2H, C).
    gate_up: Tensor,
    /// Down projections of all experts (E, C, H).
    down: Tensor,
    config: MoeConfig,
    gate: Gate,
    /// Dropout site.
    pub(super) site: u64,
}

impl Mixture {
    /// The mixture of the layer whose parameter names begin with `place`; `None` for a dense layer.
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

    /// x `(.., C)` → weighted sum of the chosen experts `(.., C)`, and the router's logits `(.., E)`.
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

/// The balance loss times its factor, from the `logits` `(.., E)` of each sparse layer. `None` if the model has none, or without gradients: it is
/// a training objective and not part of the evaluated loss.
pub(super) fn balance(config: &DecoderConfig, logits: &[Tensor]) -> Result<Option<Tensor>> {
    let Some(moe) = config.mlp.moe.filter(|moe| moe.balance) else { return Ok(None) };
    if !logits.iter().any(Tensor::requires_grad) {
        return Ok(None);
    }
    let logits: Vec<&Tensor> = logits.iter().collect();
    balance_loss(&cat(&logits, 0)?, moe.top_k)?.mul_scalar(moe.balance_factor).map(Some)
}
