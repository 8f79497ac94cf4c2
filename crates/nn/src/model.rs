//! What training, evaluation, checkpoints, generation and benchmarks know of a model.

use crate::checkpoint::{Planned, TensorView};
use crate::decoder::{DecoderConfig, FileFacts};
use crate::layers::Mode;
use crate::params::Params;
use netcl_tensor::{Result, Tensor};
use serde_json::Value;

/// A language model on a device: B sequences of T token ids, vocabulary V.
pub trait Model: Send + Sync {
    /// What it is.
    fn config(&self) -> &DecoderConfig;
    /// Its parameters, by name.
    fn params(&self) -> &Params;

    /// ids `(B, T)` → logits `(B, T, V)`.
    ///
    /// # Errors
    /// `Shape` when T is longer than the context.
    fn forward(&self, ids: &Tensor, mode: Mode<'_>) -> Result<Tensor>;

    /// Mean cross entropy of `targets (B, T)` after `ids (B, T)`, in nats a token: a scalar. Where gradients are recorded, a mixture of
    /// experts adds its balance loss, if its configuration says so.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    fn loss(&self, ids: &Tensor, targets: &Tensor, mode: Mode<'_>) -> Result<Tensor>;

    /// Floating-point operations of one training step on `tokens` tokens in sequences of `t`.
    fn flops(&self, tokens: usize, t: usize) -> f64 {
        self.config().flops(tokens, t)
    }

    /// The weights under their names in Hugging Face's files, left on the device until they are asked for.
    fn state(&self) -> Vec<Planned<'static>>;

    /// Takes weights over, by those names.
    ///
    /// # Errors
    /// `Format` for a tensor that is missing, left over, of another shape or of a type that is no float; nothing is changed then.
    fn load_state(&self, tensors: &[TensorView<'_>]) -> Result<()>;

    /// Its `config.json`.
    ///
    /// # Errors
    /// `Unsupported` for a model that the files of its family cannot describe.
    fn config_json(&self, facts: &FileFacts) -> Result<Value> {
        self.config().to_json(facts)
    }

    /// A text that is to be continued.
    ///
    /// # Errors
    /// `Memory` when the device has no room for what it keeps.
    fn continuation(&self) -> Result<Box<dyn Continuation + '_>>;
}

/// A text being continued: what a model keeps of the tokens it has read.
pub trait Continuation {
    /// Logits (V) after all of `ids`. What earlier calls with a beginning of these `ids` have computed is not computed again. Of a text
    /// that is longer than the context, the last tokens are read alone.
    ///
    /// # Errors
    /// `Shape` for an empty text.
    fn logits_after(&mut self, ids: &[u32]) -> Result<Vec<f32>>;

    /// Launches that one more token takes, where it is made from a captured step.
    fn launches(&self) -> Option<usize> {
        None
    }
}
