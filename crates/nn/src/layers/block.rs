//! The transformer block with normalisation before each part (GPT-2).

use super::{Conv1D, LayerNorm, Mode, MultiHeadAttention, dropout};
use crate::config::Recompute;
use crate::params::Params;
use netcl_tensor::ops::feed_forward::{feed_forward, feed_forward_again};
use netcl_tensor::tape::{checkpoint, layer};
use netcl_tensor::{Result, Tensor};

/// The function between an MLP's two maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// GELU by its approximation with tanh, GPT-2's.
    #[default]
    GeluTanh,
    /// GELU by the error function.
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// `x sigmoid(x)`, also called swish.
    Silu,
    /// Hyperbolic tangent.
    Tanh,
}

impl Activation {
    /// Of each element.
    pub fn apply(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::GeluTanh => x.gelu_tanh(),
            Self::Gelu => x.gelu(),
            Self::Relu => x.relu(),
            Self::Silu => x.silu(),
            Self::Tanh => x.tanh(),
        }
    }
}

/// Two linear maps around a GELU, or another function.
#[derive(Clone)]
pub struct Mlp {
    c_fc: Conv1D,
    c_proj: Conv1D,
    activation: Activation,
    site: u64,
}

impl Mlp {
    /// `width → inner → width`, with GPT-2's GELU between.
    pub fn new(
        params: &mut Params,
        name: &str,
        [width, inner]: [usize; 2],
        bias: bool,
        proj_std: f32,
        site: u64,
    ) -> Result<Self> {
        let c_fc = Conv1D::new(params, &format!("{name}.c_fc"), [width, inner], bias, 0.02)?;
        let c_proj = Conv1D::new(params, &format!("{name}.c_proj"), [inner, width], bias, proj_std)?;
        Ok(Self { c_fc, c_proj, activation: Activation::default(), site })
    }
    /// With another function between the maps.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }
    /// x `(.., C)` → `(.., C)`.
    pub fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let before = self.c_fc.forward(x)?; // (.., inner)
        let mut hidden = self.activation.apply(&before)?;
        if mode.recompute >= Recompute::Gelu {
            let activation = self.activation;
            hidden = hidden.made_again_by([&before], move |[before]| activation.apply(before));
        }
        dropout(&self.c_proj.forward(&hidden)?, mode, self.site)
    }
    /// `residual + forward(x)`.
    pub fn forward_add(&self, residual: &Tensor, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        match (self.c_fc.parts(), self.c_proj.parts()) {
            ((w1, Some(b1)), (w2, Some(b2)))
                if mode.dropout <= 0.0 && self.activation == Activation::GeluTanh =>
            {
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
    /// Width of the MLP.
    pub inner: usize,
    /// Between the MLP's maps.
    pub activation: Activation,
    /// Factor on attention's scores; `1/√(head size)` where absent.
    pub scale: Option<f32>,
    /// Standard deviation of the projections back into the residual stream.
    pub proj_std: f32,
}

impl TransformerBlock {
    /// The `index`-th block of a model.
    pub fn new(params: &mut Params, name: &str, options: BlockOptions, index: usize) -> Result<Self> {
        let BlockOptions { width, heads, bias, eps, inner, activation, scale, proj_std } = options;
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
            )?
            .scale(scale),
            ln_2: LayerNorm::new(params, &format!("{name}.ln_2"), width, bias, eps)?,
            mlp: Mlp::new(params, &format!("{name}.mlp"), [width, inner], bias, proj_std, site + 3)?
                .activation(activation),
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
