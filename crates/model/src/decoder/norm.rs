//! Norms of a decoder.

use super::config::{NormConfig, NormKind};
use super::lister::parameter;
use crate::params::Params;
use netcl_tensor::ops::layer_norm::layer_norm;
use netcl_tensor::ops::residual_norm::{residual_layer_norm, residual_rms_norm};
use netcl_tensor::ops::rms_norm::rms_norm;
use netcl_tensor::{Result, Tensor};

/// A layer norm or RMS norm, by configuration.
#[derive(Clone)]
pub(super) struct Norm {
    weight: Tensor,
    bias: Option<Tensor>,
    config: NormConfig,
}

impl Norm {
    pub(super) fn new(params: &Params, name: &str, config: NormConfig) -> Result<Self> {
        let weight = parameter(params, &format!("{name}.weight"))?;
        let bias = match config.kind {
            NormKind::Rms => None,
            NormKind::Layer if config.bias => Some(parameter(params, &format!("{name}.bias"))?),
            // The kernel needs a bias: a constant zero.
            NormKind::Layer => Some(Tensor::zeros(params.device(), weight.shape(), params.dtype())?),
        };
        Ok(Self { weight, bias, config })
    }
    pub(super) fn config(&self) -> NormConfig {
        self.config
    }
    /// Weight, and bias for a layer norm.
    pub(super) fn parts(&self) -> (&Tensor, Option<&Tensor>) {
        (&self.weight, self.bias.as_ref())
    }
    fn gain(&self) -> Result<Tensor> {
        if self.config.unit_offset { self.weight.add_scalar(1.0) } else { Ok(self.weight.clone()) }
    }
    /// Takes x `(.., N)` → `(.., N)`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.bias {
            Some(bias) => layer_norm(x, &self.gain()?, bias, self.config.eps),
            None => rms_norm(x, &self.gain()?, self.config.eps),
        }
    }
    /// x itself (for the residual stream) and its norm; the backward pass adds the gradients of both in one kernel. With `again` the norm is not
    /// kept but recomputed from x in the backward pass.
    pub(super) fn forward_residual(&self, x: &Tensor, again: bool) -> Result<(Tensor, Tensor)> {
        let (gain, eps) = (self.gain()?, self.config.eps);
        match &self.bias {
            Some(bias) => {
                let (x, y) = residual_layer_norm(x, &gain, bias, eps)?;
                let norm = move |[x, gain, bias]: [&Tensor; 3]| layer_norm(x, gain, bias, eps);
                let y = if again { y.recomputed_by([&x, &gain, bias], norm) } else { y };
                Ok((x, y))
            }
            None => {
                let (x, y) = residual_rms_norm(x, &gain, eps)?;
                let norm = move |[x, gain]: [&Tensor; 2]| rms_norm(x, gain, eps);
                let y = if again { y.recomputed_by([&x, &gain], norm) } else { y };
                Ok((x, y))
            }
        }
    }
}
