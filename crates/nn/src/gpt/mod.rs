//! GPT-2 (Radford et al. 2019): token and position embeddings, blocks, a final norm and a head tied to the token table.
//!
//! Parameters have the names and layouts of the Hugging Face checkpoints, so that weights move both ways unchanged.

mod files;

pub use files::{config_json, generation_config_json};

use crate::checkpoint::TensorData;
use crate::layers::{BlockOptions, Embedding, LayerNorm, Mode, TransformerBlock, dropout};
use crate::params::Params;
use netcl_tensor::ops::linear_cross_entropy::{LinearCrossEntropy, linear_cross_entropy};
use netcl_tensor::ops::matmul::matmul;
use netcl_tensor::{DType, Device, Error, Result, Tensor};

/// Shape of a GPT.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GptConfig {
    /// Blocks.
    pub layers: usize,
    /// Attention heads; divides `width`.
    pub heads: usize,
    /// Width C.
    pub width: usize,
    /// Longest sequence T.
    pub context: usize,
    /// Vocabulary V.
    pub vocab: usize,
    /// Whether linear maps and norms have biases.
    pub bias: bool,
    /// Epsilon of the norms.
    pub eps: f32,
}

impl GptConfig {
    /// Number of parameters; the tied head counts once. Shapes that no memory holds give `usize::MAX`.
    pub fn parameters(&self) -> usize {
        let (c, bias) = (self.width, usize::from(self.bias));
        let square = c.saturating_mul(c).saturating_mul(12);
        let block = square.saturating_add(c.saturating_mul(2 + 11 * bias));
        let tables = self.vocab.saturating_add(self.context).saturating_mul(c);
        let blocks = self.layers.saturating_mul(block);
        tables.saturating_add(blocks).saturating_add(c.saturating_mul(1 + bias))
    }

    /// Floating-point operations of one training step on `tokens` tokens in sequences of `t`: 6 per weight of a matrix
    /// product, and attention's products counted causal (half of all pairs).
    pub fn flops(&self, tokens: usize, t: usize) -> f64 {
        let c = self.width as f64;
        let weights = self.layers as f64 * 12.0 * c * c + self.vocab as f64 * c;
        let attention = self.layers as f64 * 6.0 * c * t as f64;
        tokens as f64 * (6.0 * weights + attention)
    }
}

/// A GPT on a device.
pub struct Gpt {
    /// Its shape.
    pub config: GptConfig,
    params: Params,
    wte: Embedding,
    wpe: Embedding,
    blocks: Vec<TransformerBlock>,
    ln_f: LayerNorm,
    /// 0, 1, …: uploaded once, because a captured step uploads nothing.
    positions: Tensor,
}

impl Gpt {
    /// A new model, initialised as GPT-2: normal with standard deviation 0.02, and 0.02 / sqrt(2 layers) for the
    /// projections into the residual stream.
    ///
    /// # Errors
    /// `Shape` when the heads do not divide the width.
    pub fn new(device: &Device, config: GptConfig, dtype: DType, seed: u64) -> Result<Self> {
        if config.heads == 0 || !config.width.is_multiple_of(config.heads) {
            return Err(Error::shape(format!(
                "gpt: {} heads do not divide a width of {}",
                config.heads, config.width
            )));
        }
        // Every start is aligned: room for that beside the elements.
        let room = config.parameters() + (16 * config.layers + 8) * crate::params::ALIGN;
        let mut params = Params::new(device, dtype, room, seed)?;
        let p = &mut params;
        let wte = Embedding::new(p, "transformer.wte", config.vocab, config.width, 0.02)?;
        let wpe = Embedding::new(p, "transformer.wpe", config.context, config.width, 0.02)?;
        let options = BlockOptions {
            width: config.width,
            heads: config.heads,
            bias: config.bias,
            eps: config.eps,
            proj_std: 0.02 / (2.0 * config.layers as f32).sqrt(),
        };
        let blocks = (0..config.layers)
            .map(|i| TransformerBlock::new(p, &format!("transformer.h.{i}"), options, i))
            .collect::<Result<_>>()?;
        let ln_f = LayerNorm::new(p, "transformer.ln_f", config.width, config.bias, config.eps)?;
        let positions: Vec<u32> = (0..config.context as u32).collect();
        let positions = Tensor::from_u32(device, [config.context], &positions)?;
        Ok(Self { config, params, wte, wpe, blocks, ln_f, positions })
    }

    /// Its parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// ids `(B, T)` → logits `(B, T, V)`.
    ///
    /// # Errors
    /// `Shape` when T is longer than the context.
    pub fn forward(&self, ids: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        matmul(&self.hidden(ids, mode)?, &self.wte.weight().transpose(0, 1)?)
    }

    /// ids `(B, T)` → what the head reads, `(B, T, C)`.
    fn hidden(&self, ids: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let [_, t] = ids.dims2().map_err(|e| e.context("gpt: ids"))?;
        if t > self.config.context {
            return Err(Error::shape(format!(
                "gpt: {t} tokens, the context is {}; keep the last ones",
                self.config.context
            )));
        }
        let positions = self.positions.slice(0, 0..t)?;
        let x = self.wte.forward(ids)?.add(&self.wpe.forward(&positions)?)?; // (B, T, C)
        let mut x = dropout(&x, mode, 0)?;
        for block in &self.blocks {
            x = block.forward(&x, mode)?;
        }
        self.ln_f.forward(&x)
    }

    /// Mean cross entropy of `targets (B, T)` after `ids (B, T)`: a scalar.
    pub fn loss(&self, ids: &Tensor, targets: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let x = self.hidden(ids, mode)?;
        // All logits at once would be the largest tensor of a step.
        linear_cross_entropy(&x, self.wte.weight(), targets, LinearCrossEntropy::default())
    }

    /// The weights as they are written to `model.safetensors`. Where the model has no biases, zeros are written, because
    /// the format has them.
    pub fn state(&self) -> Result<Vec<TensorData>> {
        files::state(self)
    }

    /// Takes weights over, by name, with or without the prefix `transformer.`.
    ///
    /// # Errors
    /// `Format` for a tensor that is missing, of another shape or of a type that is no float; the message names it.
    pub fn load_state(&self, tensors: &[TensorData]) -> Result<()> {
        files::load_state(self, tensors)
    }
}

#[cfg(test)]
mod tests;
