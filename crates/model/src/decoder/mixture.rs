//! Sparse mixture of experts, as a replacement of the MLP.

use super::config::{DecoderConfig, MoeConfig};
use super::lister::parameter;
use crate::layers::in_layer;
use crate::params::Params;
use netcl_tensor::ops::balance_loss::balance_loss;
use netcl_tensor::ops::experts::{ExpertMap, experts, experts_of_blocks};
use netcl_tensor::ops::gated::Gate;
use netcl_tensor::ops::join::cat;
use netcl_tensor::ops::matmul::linear;
use netcl_tensor::ops::route::route;
use netcl_tensor::quant::Blocks;
use netcl_tensor::{Error, Result, Tensor};

/// Router and experts.
#[derive(Clone)]
pub(super) struct Mixture {
    /// Router (E, C).
    router: Tensor,
    /// Gate and up projections of all experts (E, 2H, C).
    gate_up: Stored,
    /// Down projections of all experts (E, C, H).
    down: Stored,
    config: MoeConfig,
    gate: Gate,
    /// Dropout site.
    pub(super) site: u64,
}

/// The matrices of all experts.
#[derive(Clone)]
enum Stored {
    Dense(Tensor),
    Blocks(Blocks),
}

impl Stored {
    fn new(params: &Params, name: &str) -> Result<Self> {
        match params.blocks(name) {
            Some([one]) => Ok(Self::Blocks(one.clone())),
            Some(_) => Err(Error::internal(format!("decoder: {name} of several matrices"))),
            None => parameter(params, name).map(Self::Dense),
        }
    }
    fn map(&self) -> ExpertMap<'_> {
        match self {
            Self::Dense(w) => ExpertMap::Dense(w),
            Self::Blocks(w) => ExpertMap::Blocks(w),
        }
    }
}

impl Mixture {
    /// Returns the mixture of the layer whose parameter names begin with `place`; `None` for a dense layer.
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
        let gate =
            gate.ok_or_else(|| Error::unsupported("experts with the activation tanh are not supported"))?;
        let name = |name: &str| format!("{place}{}.{name}", names.folder);
        let router = parameter(params, &name("gate.weight"))?;
        let of = |map: &str| Stored::new(params, &name(map));
        let (gate_up, down) = (of("experts.gate_up_proj")?, of("experts.down_proj")?);
        Ok(Some(Self { router, gate_up, down, config: moe, gate, site }))
    }

    /// Takes x `(.., C)` → weighted sum of the chosen experts `(.., C)`, and the router's logits `(.., E)`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let MoeConfig { top_k, renormalise, .. } = self.config;
        let mixed = || {
            let logits = linear(x, &self.router.transpose(0, 1)?, None)?;
            let (weights, ids) = route(&logits, top_k, renormalise)?;
            let y = match [&self.gate_up, &self.down] {
                [Stored::Dense(gate_up), Stored::Dense(down)] => {
                    experts(x, &ids, &weights, [gate_up, down], self.gate)?
                }
                maps => experts_of_blocks(x, &ids, &weights, maps.map(Stored::map), self.gate)?,
            };
            Ok((y, logits))
        };
        mixed().map_err(|e| in_layer(e, &self.router))
    }
}

/// Returns the balance loss times its factor, from the `logits` `(.., E)` of each sparse layer. `None` if the model has none, or without gradients:
/// it is a training objective and not part of the evaluated loss.
pub(super) fn balance(config: &DecoderConfig, logits: &[Tensor]) -> Result<Option<Tensor>> {
    let Some(moe) = config.mlp.moe.filter(|moe| moe.balance) else { return Ok(None) };
    if !logits.iter().any(Tensor::requires_grad) {
        return Ok(None);
    }
    let logits: Vec<&Tensor> = logits.iter().collect();
    balance_loss(&cat(&logits, 0)?, moe.top_k)?.mul_scalar(moe.balance_factor).map(Some)
}
