//! The transformer block with normalisation before each part (GPT-2).

use super::{Conv1D, LayerNorm, Mode, MultiHeadAttention, dropout};
use crate::config::Recompute;
use crate::params::Params;
use netcl_tensor::ops::feed_forward::{feed_forward, feed_forward_again};
use netcl_tensor::tape::{checkpoint, layer};
use netcl_tensor::{Result, Tensor};

/// Two linear maps around a GELU.
#[derive(Clone)]
pub struct Mlp {
    c_fc: Conv1D,
    c_proj: Conv1D,
    site: u64,
}

impl Mlp {
    /// `width → 4 width → width`.
    pub fn new(
        params: &mut Params,
        name: &str,
        width: usize,
        bias: bool,
        proj_std: f32,
        site: u64,
    ) -> Result<Self> {
        let c_fc = Conv1D::new(params, &format!("{name}.c_fc"), [width, 4 * width], bias, 0.02)?;
        let c_proj = Conv1D::new(params, &format!("{name}.c_proj"), [4 * width, width], bias, proj_std)?;
        Ok(Self { c_fc, c_proj, site })
    }
    /// x `(.., C)` → `(.., C)`.
    pub fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let before = self.c_fc.forward(x)?; // (.., 4C)
        let mut hidden = before.gelu_tanh()?;
        if mode.recompute >= Recompute::Gelu {
            let before = before.detach();
            hidden = hidden.made_again_by(move || before.gelu_tanh());
        }
        dropout(&self.c_proj.forward(&hidden)?, mode, self.site)
    }
    /// `residual + forward(x)`.
    pub fn forward_add(&self, residual: &Tensor, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        match (self.c_fc.parts(), self.c_proj.parts()) {
            ((w1, Some(b1)), (w2, Some(b2))) if mode.dropout <= 0.0 => {
                let maps = [w1, b1, w2, b2];
                match mode.recompute >= Recompute::Gelu {
                    true => feed_forward_again(residual, x, maps),
                    false => feed_forward(residual, x, maps),
                }
            }
            _ => residual.add(&self.forward(x, mode)?),
        }
    }
}

/// `x + attention(norm(x))`, then `x + mlp(norm(x))`.
#[derive(Clone)]
pub struct TransformerBlock {
    ln_1: LayerNorm,
    attn: MultiHeadAttention,
    ln_2: LayerNorm,
    mlp: Mlp,
    /// Its number, from 1.
    number: u32,
}

/// What the blocks of a model share.
#[derive(Clone, Copy, Debug)]
pub struct BlockOptions {
    /// Width C.
    pub width: usize,
    /// Heads.
    pub heads: usize,
    /// Whether linear maps and norms have biases.
    pub bias: bool,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Standard deviation of the projections back into the residual stream.
    pub proj_std: f32,
}

impl TransformerBlock {
    /// The `index`-th block of a model.
    pub fn new(params: &mut Params, name: &str, options: BlockOptions, index: usize) -> Result<Self> {
        let BlockOptions { width, heads, bias, eps, proj_std } = options;
        // Sites 0 to 3 belong to the embedding; each block has four.
        let site = 4 + 4 * index as u64;
        Ok(Self {
            ln_1: LayerNorm::new(params, &format!("{name}.ln_1"), width, bias, eps)?,
            attn: MultiHeadAttention::new(
                params,
                &format!("{name}.attn"),
                width,
                heads,
                bias,
                proj_std,
                site,
            )?,
            ln_2: LayerNorm::new(params, &format!("{name}.ln_2"), width, bias, eps)?,
            mlp: Mlp::new(params, &format!("{name}.mlp"), width, bias, proj_std, site + 3)?,
            number: index as u32 + 1,
        })
    }
    /// x `(B, T, C)` → `(B, T, C)`.
    pub fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        if mode.recompute < Recompute::Block {
            return layer(self.number, || self.run(x, mode));
        }
        let (block, counter) = (self.clone(), mode.counter.cloned());
        let Mode { dropout, seed, pass, .. } = mode;
        let run = move |x: &Tensor| {
            let counter = counter.as_ref();
            // Within the block everything is kept while its own backward runs.
            block.run(x, Mode { dropout, seed, pass, counter, recompute: Recompute::None })
        };
        layer(self.number, || checkpoint("transformer_block", x, run))
    }

    fn run(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let norm = |norm: &LayerNorm, x: &Tensor| match mode.recompute >= Recompute::Norm {
            true => norm.forward_residual_again(x),
            false => norm.forward_residual(x),
        };
        let (x, normed) = norm(&self.ln_1, x)?;
        let x = self.attn.forward_add(&x, &normed, mode)?;
        let (x, normed) = norm(&self.ln_2, &x)?;
        self.mlp.forward_add(&x, &normed, mode)
    }
}
