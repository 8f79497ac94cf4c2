//! Normalization over the last axis.

use super::in_layer;
use crate::params::{Init, Params};
use netcl_tensor::ops::{layer_norm::layer_norm, rms_norm::rms_norm};
use netcl_tensor::{Result, Tensor};

/// Layer normalization with weight and optional bias.
#[derive(Clone)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f32,
}

impl LayerNorm {
    /// Layer normalization of rows of length `n`. Without `bias` the shift is a constant zero without gradient.
    pub fn new(params: &mut Params, name: &str, n: usize, bias: bool, eps: f32) -> Result<Self> {
        let weight = params.make(&format!("{name}.weight"), [n], Init::Ones)?;
        let bias = if bias {
            params.make(&format!("{name}.bias"), [n], Init::Zeros)?
        } else {
            Tensor::zeros(params.device(), [n], params.dtype())?
        };
        Ok(Self { weight, bias, eps })
    }
    /// Takes x `(.., N)` → `(.., N)`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        layer_norm(x, &self.weight, &self.bias, self.eps).map_err(|e| in_layer(e, &self.weight))
    }
}

/// Root-mean-square normalization (Zhang and Sennrich 2019).
#[derive(Clone)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// Normalization of rows of length `n`.
    pub fn new(params: &mut Params, name: &str, n: usize, eps: f32) -> Result<Self> {
        Ok(Self { weight: params.make(&format!("{name}.weight"), [n], Init::Ones)?, eps })
    }
    /// Takes x `(.., N)` → `(.., N)`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        rms_norm(x, &self.weight, self.eps).map_err(|e| in_layer(e, &self.weight))
    }
}
