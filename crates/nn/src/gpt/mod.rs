//! GPT-2 (Radford et al. 2019): token and position embeddings, blocks, a final norm and a head tied to the token table.
//!
//! Parameters have the names and layouts of the Hugging Face checkpoints, so that weights move both ways unchanged.

mod config;
mod fields;
mod files;

pub use config::{GptConfig, Variant};
pub use files::{config_json, generation_config_json};

use crate::checkpoint::{Planned, TensorData, TensorView};
use crate::layers::{BlockOptions, Embedding, LayerNorm, Mode, TransformerBlock, dropout};
use crate::params::Params;
use netcl_tensor::ops::linear_cross_entropy::{LinearCrossEntropy, linear_cross_entropy};
use netcl_tensor::ops::matmul::matmul;
use netcl_tensor::{DType, Device, Error, Result, Tensor};

/// A GPT on a device.
pub struct Gpt {
    /// Its shape.
    pub config: GptConfig,
    params: Params,
    wte: Embedding,
    wpe: Embedding,
    blocks: Vec<TransformerBlock>,
    ln_f: LayerNorm,
    /// The head, where it is not the token table.
    lm_head: Option<Embedding>,
    /// 0, 1, …: uploaded once, because a captured step uploads nothing.
    positions: Tensor,
}

impl Gpt {
    /// A new model, initialised as GPT-2: normal with standard deviation 0.02, and 0.02 / sqrt(2 layers) for the
    /// projections into the residual stream.
    ///
    /// # Errors
    /// `Shape` for sizes that cannot be; `Memory` when the device cannot hold the weights, before anything is allocated.
    pub fn new(device: &Device, config: GptConfig, dtype: DType, seed: u64) -> Result<Self> {
        config.validate().map_err(|e| e.context("gpt"))?;
        config.check_memory(device, dtype)?;
        let (params, (wte, wpe, blocks, ln_f, lm_head)) = Params::build(device, dtype, seed, |p| {
            let wte = Embedding::new(p, "transformer.wte", config.vocab, config.width, 0.02)?;
            let wpe = Embedding::new(p, "transformer.wpe", config.context, config.width, 0.02)?;
            let options = BlockOptions {
                width: config.width,
                heads: config.heads,
                bias: config.bias,
                eps: config.eps,
                inner: config.inner(),
                activation: config.variant.activation,
                scale: None,
                proj_std: 0.02 / (2.0 * config.layers as f32).sqrt(),
            };
            let blocks: Vec<TransformerBlock> = (0..config.layers)
                .map(|i| {
                    let scale = config.variant.attention_scale(i, config.width / config.heads);
                    TransformerBlock::new(
                        p,
                        &format!("transformer.h.{i}"),
                        BlockOptions { scale, ..options },
                        i,
                    )
                })
                .collect::<Result<_>>()?;
            let ln_f = LayerNorm::new(p, "transformer.ln_f", config.width, config.bias, config.eps)?;
            let lm_head = match config.variant.tied {
                true => None,
                false => Some(Embedding::new(p, "lm_head", config.vocab, config.width, 0.02)?),
            };
            Ok((wte, wpe, blocks, ln_f, lm_head))
        })?;
        let positions: Vec<u32> = (0..config.context as u32).collect();
        let positions = Tensor::from_u32(device, [config.context], &positions)?;
        Ok(Self { config, params, wte, wpe, blocks, ln_f, lm_head, positions })
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
        matmul(&self.hidden(ids, mode)?, &self.head().transpose(0, 1)?)
    }

    /// What the last hidden states are multiplied with, `(V, C)`.
    fn head(&self) -> &Tensor {
        self.lm_head.as_ref().unwrap_or(&self.wte).weight()
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
        linear_cross_entropy(&x, self.head(), targets, LinearCrossEntropy::default())
    }

    /// The weights as they are written to `model.safetensors`. Where the model has no biases, zeros are written, because
    /// the format has them.
    pub fn state(&self) -> Result<Vec<TensorData>> {
        self.planned_state().iter().map(Planned::take).collect()
    }

    /// The same, left on the device until they are asked for.
    pub fn planned_state(&self) -> Vec<Planned<'static>> {
        files::state(self)
    }

    /// Takes weights over, by name, with or without the prefix `transformer.`.
    ///
    /// # Errors
    /// `Format` for a tensor that is missing, of another shape or of a type that is no float, and for one that the model has no
    /// place for; the message names it, and nothing was taken over.
    pub fn load_state(&self, tensors: &[TensorData]) -> Result<()> {
        let views: Vec<TensorView<'_>> = tensors.iter().map(TensorData::view).collect();
        self.load_views(&views)
    }

    /// The same from tensors that lie elsewhere, as in a mapped file.
    pub fn load_views(&self, tensors: &[TensorView<'_>]) -> Result<()> {
        let matched = self.config.match_tensors(tensors)?;
        let all = self.params.list().iter().zip(matched);
        all.into_iter().try_for_each(|(parameter, view)| parameter.set_f32(&view.floats()?))
    }
}

#[cfg(test)]
mod family_tests;
#[cfg(test)]
mod tests;
