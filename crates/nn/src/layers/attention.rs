//! Causal multi-head self-attention from one packed projection.

use super::{Conv1D, Mode, dropout};
use crate::params::Params;
use netcl_tensor::ops::attention::{AttentionOptions, attention_qkv};
use netcl_tensor::{Result, Tensor};

/// GPT-2's attention: `c_attn` makes queries, keys and values at once, `c_proj` mixes the heads' results.
#[derive(Clone)]
pub struct MultiHeadAttention {
    c_attn: Conv1D,
    c_proj: Conv1D,
    heads: usize,
    /// On the scores; `1/√(head size)` where absent.
    scale: Option<f32>,
    /// First of the three dropout sites this layer owns.
    site: u64,
}

impl MultiHeadAttention {
    /// `heads` divides `width`. The output projection starts with standard deviation `proj_std`.
    pub fn new(
        params: &mut Params,
        name: &str,
        width: usize,
        heads: usize,
        bias: bool,
        proj_std: f32,
        site: u64,
    ) -> Result<Self> {
        let c_attn = Conv1D::new(params, &format!("{name}.c_attn"), [width, 3 * width], bias, 0.02)?;
        let c_proj = Conv1D::new(params, &format!("{name}.c_proj"), [width, width], bias, proj_std)?;
        Ok(Self { c_attn, c_proj, heads, scale: None, site })
    }
    /// With another factor on the scores; `None` is the usual one.
    #[must_use]
    pub fn scale(mut self, scale: Option<f32>) -> Self {
        self.scale = scale;
        self
    }
    /// x `(B, T, C)` → `(B, T, C)`.
    pub fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        dropout(&self.c_proj.forward(&self.heads(x, mode)?)?, mode, self.site + 1)
    }
    /// `residual + forward(x)`.
    pub fn forward_add(&self, residual: &Tensor, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        match mode.dropout > 0.0 {
            true => residual.add(&self.forward(x, mode)?),
            false => self.c_proj.forward_add(residual, &self.heads(x, mode)?),
        }
    }
    fn heads(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let qkv = self.c_attn.forward(x)?; // (B, T, 3C)
        let drop = (mode.dropout > 0.0).then(|| mode.mask(self.site));
        let options = AttentionOptions { scale: self.scale, dropout: drop, ..AttentionOptions::causal() };
        attention_qkv(&qkv, self.heads, self.heads, options) // (B, T, C)
    }
}
