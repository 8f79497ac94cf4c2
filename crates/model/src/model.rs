//! The interface of a language model for training, evaluation, checkpoints, generation and benchmarks.
//!
//! Trainer, evaluation, checkpoints, generation and benchmarks use only this trait. It has configuration, parameters by name, logits, loss and FLOPs.
//! It also has tensors in the layout of Hugging Face's files, and a text that is being continued.

use crate::checkpoint::{TensorToWrite, TensorView};
use crate::decoder::{DecoderConfig, FileFacts};
use crate::layers::Mode;
use crate::params::Params;
use netcl_tensor::ops::choose::{Chooser, NO_NUMBER, NONE_LEFT};
use netcl_tensor::{Error, Result, Tensor};
use serde_json::Value;
use std::any::Any;
use std::sync::Arc;

/// A language model on a device: B sequences of T token ids, vocabulary V.
pub trait Model: Send + Sync {
    /// Returns the model's configuration.
    fn config(&self) -> &DecoderConfig;
    /// Returns its parameters, by name.
    fn params(&self) -> &Params;

    /// Returns the trained table (V, C) that is both embedding and output head, if there is one. It receives two gradients: first that of the head,
    /// and at the end of the backward pass that of the embedding. The latter is zero except for the rows of the tokens.
    fn tied_embedding(&self) -> Option<&Tensor> {
        None
    }

    /// Takes ids `(B, T)` → logits `(B, T, V)`.
    ///
    /// # Errors
    /// `Shape` when T is longer than the context.
    fn forward(&self, ids: &Tensor, mode: Mode<'_>) -> Result<Tensor>;

    /// Returns the mean cross entropy of `targets (B, T)` after `ids (B, T)`, in nats per token: a scalar. Targets of −100 are ignored, also as the
    /// same bits in u32. With [`Mode::loss_weight`] it is the weighted sum. If gradients are recorded, a mixture of experts adds its balance loss,
    /// depending on its configuration.
    ///
    /// # Errors
    /// Same as [`forward`](Self::forward).
    fn loss(&self, ids: &Tensor, targets: &Tensor, mode: Mode<'_>) -> Result<Tensor>;

    /// Returns the negative log likelihood of each target `(B, T)` after `ids (B, T)`, in nats: f32 `(B, T)`, 0 for ignored targets. If gradients are
    /// recorded, also returns the balance loss of a mixture of experts, depending on its configuration.
    ///
    /// # Errors
    /// Same as [`forward`](Self::forward); `Unsupported` for models without this.
    fn token_losses(
        &self,
        ids: &Tensor,
        targets: &Tensor,
        mode: Mode<'_>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let _ = (ids, targets, mode);
        Err(Error::unsupported("this model does not compute a loss per token"))
    }

    /// Returns the floating-point operations of one training step (forward and backward) on `tokens` tokens in sequences of length `t`.
    fn flops(&self, tokens: usize, t: usize) -> f64 {
        self.config().flops(tokens, t)
    }

    /// Returns the weights under their names in Hugging Face files. Each is copied to the host when its bytes are requested.
    fn state(&self) -> Vec<TensorToWrite<'static>>;

    /// Loads weights, by those names.
    ///
    /// # Errors
    /// `Format` for a tensor that is missing, unknown, of another shape or not of a floating-point type; no weight is changed then.
    fn load_state(&self, tensors: &[TensorView<'_>]) -> Result<()>;

    /// Returns the content of the model's `config.json`.
    ///
    /// # Errors
    /// `Unsupported` for a configuration that the family's format cannot express.
    fn config_json(&self, facts: &FileFacts) -> Result<Value> {
        self.config().to_json(facts)
    }

    /// Starts the incremental processing of a text, for generation.
    ///
    /// # Errors
    /// `Memory` when the device does not have room for the key/value cache.
    fn continuation(&self) -> Result<Box<dyn Continuation + '_>>;

    /// Downcast hook for callers that need a concrete model type.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

/// Sampling of a text's tokens on the device.
pub struct Choice<'a> {
    /// Sampling rules on the device, for one text.
    pub by: &'a Arc<Chooser>,
    /// Random word for the n-th token from now on; n = 0 is the requested one. The same token of a text must always get the same word.
    pub word: &'a dyn Fn(usize) -> u32,
    /// Maximum number of tokens, including the requested one: no more are generated ahead.
    pub most: usize,
}

/// Checks a token that the device has sampled.
///
/// # Errors
/// `Launch` if the logits were not finite numbers, `Format` if no token was allowed.
pub fn check_token(token: u32) -> Result<u32> {
    match token {
        NO_NUMBER => Err(Error::launch(
            "the model's logits are not numbers: its weights are damaged, training diverged, or values exceeded the range of f16 (then use --dtype \
             bf16 or f32)",
        )),
        NONE_LEFT => Err(Error::format("no token is left to choose: all are forbidden")),
        token => Ok(token),
    }
}

/// Incremental processing of one text: the state that a model keeps of the tokens it has read (key/value cache).
pub trait Continuation {
    /// Returns the logits (V) for the token after `ids`. If `ids` begins with the tokens of an earlier call, only the new ones are computed. For a
    /// text longer than the context, only the last tokens are used.
    ///
    /// # Errors
    /// `Shape` for an empty text.
    fn logits_after(&mut self, ids: &[u32]) -> Result<Vec<f32>>;

    /// Reads `ids`, the start of a prompt of `length` tokens that is read in several parts, without logits.
    ///
    /// # Errors
    /// Same as [`logits_after`](Self::logits_after).
    fn begin(&mut self, ids: &[u32], length: usize) -> Result<()> {
        let _ = length;
        self.logits_after(ids).map(drop)
    }

    /// Returns true if a prompt of `length` tokens can continue after the tokens read so far. This is not possible if positions of longer texts have
    /// other rotary angles (LongRoPE): the whole prompt is then read again.
    fn keeps(&self, length: usize) -> bool {
        let _ = length;
        true
    }

    /// Returns the token after `ids`, sampled on the device, which generates further tokens ahead of requests. `None` if that is not possible, for
    /// example if the text fills the context: use [`logits_after`](Self::logits_after) then.
    ///
    /// # Errors
    /// Same as [`logits_after`](Self::logits_after); errors of [`check_token`].
    fn token_after(&mut self, ids: &[u32], choice: &Choice<'_>) -> Result<Option<u32>> {
        let _ = (ids, choice);
        Ok(None)
    }

    /// Returns the number of kernel launches for one more token, if the step is captured as a graph.
    fn launches(&self) -> Option<usize> {
        None
    }
}
