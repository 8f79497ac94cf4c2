//! Configuration of training runs: presets, `config.toml`, command-line flags, validation.
//!
//! Keys of the file are the long flags with `_` instead of `-`. Flags override the file, the file overrides the preset.

mod dtype;
mod file;
mod init;
mod paths;
mod presets;
mod resume;
mod stored;
mod validate;

pub(crate) use dtype::one as float_type;
pub use dtype::{DTYPES, storage_type};
pub(crate) use netcl_device::nearest;
pub use presets::{PRESETS, SIMULATED, models, usual as usual_preset};
pub use resume::{Change, Changes, RESUME};
pub(crate) use resume::{Differences, rate_change};
pub use stored::SETTINGS_COPY;

use crate::schedule::{LearningRate, Schedule};
pub use netcl_device::MatmulPrecision;
use netcl_device::{Error, Result};
use netcl_model::decoder::{DecoderConfig, Sizes};
use netcl_model::layers::Recompute;
use netcl_model::names::{by_name, name_of};
use netcl_tensor::DType;
use serde::{Deserialize, Serialize};
use std::{fmt, path::Path, str::FromStr};

/// Settings of a training run. Each field corresponds to the flag of the same name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// Preset of the settings that were not given.
    pub preset: String,
    /// Model folder to start from, with its tokenizer; if absent, weights are initialised randomly.
    #[serde(default)]
    pub init: Option<String>,
    /// Decoder family, by its `model_type`.
    #[serde(default = "gpt2")]
    pub family: String,
    /// Number of transformer blocks.
    pub layers: usize,
    /// Number of attention heads; must divide `width` unless `head_size` is given.
    pub heads: usize,
    /// Number of key/value heads; default: number of heads.
    #[serde(default)]
    pub kv_heads: Option<usize>,
    /// Head size; default: `width / heads`.
    #[serde(default)]
    pub head_size: Option<usize>,
    /// Width of the residual stream.
    pub width: usize,
    /// Width of the MLP's hidden layer; default by family.
    #[serde(default)]
    pub mlp: Option<usize>,
    /// Base of the rotary frequencies.
    #[serde(default)]
    pub rope_theta: Option<f64>,
    /// Whether the output head is tied to the token embedding.
    #[serde(default)]
    pub tied: Option<bool>,
    /// Patterns (`*`, `?`) of parameters that are frozen.
    #[serde(default)]
    pub freeze: Vec<String>,
    /// Context length in tokens.
    pub context: usize,
    /// Vocabulary size; default: that of the tokenizer, padded by [`padded_vocab`].
    #[serde(default)]
    pub vocab: Option<usize>,
    /// Dropout probability during training.
    pub dropout: f64,
    /// Whether linear and norm layers of GPT-2 have biases; fixed for other families.
    pub bias: bool,
    /// Training data: files, folders, patterns; default: the sources of the repository.
    pub data: Vec<String>,
    /// Encoding of text that is not UTF-8 and has no byte order mark.
    #[serde(default)]
    pub encoding: Option<String>,
    /// Whether files of records (JSON Lines, tables) are trained on as plain text. Absent in files of earlier versions.
    #[serde(default)]
    pub as_text: bool,
    /// Tokenizer: `char`, or the path of a `tokenizer.json`.
    pub tokenizer: String,
    /// Fraction of the tokens used for validation.
    pub val_split: f64,
    /// Highest learning rate.
    pub lr: f64,
    /// Learning rate at the end of the decay.
    pub min_lr: f64,
    /// Warm-up steps.
    pub warmup: u64,
    /// Schedule after the warm-up.
    pub schedule: Schedule,
    /// AdamW's weight decay, for matrices and embeddings.
    pub weight_decay: f64,
    /// AdamW's β₁ and β₂.
    pub betas: [f64; 2],
    /// AdamW's ε.
    pub eps: f64,
    /// Maximum global gradient norm (clipping); 0 disables clipping.
    pub clip: f64,
    /// Batch size: windows per forward pass.
    pub batch: usize,
    /// Gradient accumulation: forward passes per optimizer step.
    pub grad_accum: u32,
    /// Number of optimizer steps.
    pub steps: u64,
    /// Seed of initial weights, data order, dropout and samples.
    pub seed: u64,
    /// Steps between evaluations; 0: only after the last step.
    pub eval_every: u64,
    /// Batches per evaluation; 0: the whole validation part.
    pub eval_batches: usize,
    /// Steps between samples; 0: only after the last step.
    pub sample_every: u64,
    /// Steps between checkpoints; 0: only after the last step.
    pub checkpoint_every: u64,
    /// Number of checkpoints kept besides the best one.
    pub keep: usize,
    /// Storage type of weights and activations.
    #[serde(deserialize_with = "dtype::one")]
    pub dtype: DType,
    /// Precision of f32 matrix products.
    #[serde(default)]
    pub matmul_precision: MatmulPrecision,
    /// Device: `auto`, `sim`, `pocl:0`, or an index.
    pub device: String,
    /// Whether steps are captured as a graph and replayed. Absent in files of earlier versions.
    #[serde(default)]
    pub graph: GraphMode,
    /// Activations that the backward pass recomputes.
    #[serde(default)]
    pub recompute: Recompute,
    /// What several ranks divide among them: 0 nothing, 1 the optimizer's state, 2 gradients as well (stages of ZeRO).
    #[serde(default)]
    pub zero: u8,
    /// Stages of the pipeline: consecutive layers, each on a device of its own. 1: every device has the whole model. Absent in files of
    /// earlier versions.
    #[serde(default = "one")]
    pub pipeline: usize,
}

/// Partial settings, from a file or from flags.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // the fields of TrainConfig
pub struct Overlay {
    pub preset: Option<String>,
    pub init: Option<String>,
    pub family: Option<String>,
    pub layers: Option<usize>,
    pub heads: Option<usize>,
    pub kv_heads: Option<usize>,
    pub head_size: Option<usize>,
    pub width: Option<usize>,
    pub mlp: Option<usize>,
    pub rope_theta: Option<f64>,
    pub tied: Option<bool>,
    pub freeze: Option<Vec<String>>,
    pub context: Option<usize>,
    pub vocab: Option<usize>,
    pub dropout: Option<f64>,
    pub bias: Option<bool>,
    pub data: Option<Vec<String>>,
    pub encoding: Option<String>,
    pub as_text: Option<bool>,
    pub tokenizer: Option<String>,
    pub val_split: Option<f64>,
    pub lr: Option<f64>,
    pub min_lr: Option<f64>,
    pub warmup: Option<u64>,
    pub schedule: Option<Schedule>,
    pub weight_decay: Option<f64>,
    pub betas: Option<[f64; 2]>,
    pub eps: Option<f64>,
    pub clip: Option<f64>,
    pub batch: Option<usize>,
    pub grad_accum: Option<u32>,
    pub steps: Option<u64>,
    pub seed: Option<u64>,
    pub eval_every: Option<u64>,
    pub eval_batches: Option<usize>,
    pub sample_every: Option<u64>,
    pub checkpoint_every: Option<u64>,
    pub keep: Option<usize>,
    #[serde(default, deserialize_with = "dtype::maybe")]
    pub dtype: Option<DType>,
    pub matmul_precision: Option<MatmulPrecision>,
    pub device: Option<String>,
    pub graph: Option<GraphMode>,
    pub recompute: Option<Recompute>,
    pub zero: Option<u8>,
    pub pipeline: Option<usize>,
}

/// Vocabularies are padded to a multiple of this, so that matrix kernels compute the logits in whole blocks.
pub const VOCAB_MULTIPLE: usize = 64;
/// Smaller vocabularies are not padded: published results of character models are for the exact size.
pub const VOCAB_PADDED_FROM: usize = 1024;

/// Padded vocabulary size for `tokens` tokens. The model learns low probabilities for the padding ids, and they are never sampled.
pub fn padded_vocab(tokens: usize) -> usize {
    if tokens < VOCAB_PADDED_FROM { tokens } else { tokens.next_multiple_of(VOCAB_MULTIPLE) }
}

impl TrainConfig {
    /// The described model with a vocabulary of `vocab` tokens. (A model to start from is described by its own folder.)
    ///
    /// # Errors
    /// `Unsupported` for an unknown family, or a size that the family cannot set; `Shape` for inconsistent sizes.
    pub fn decoder(&self, vocab: usize) -> Result<DecoderConfig> {
        let Self { layers, heads, kv_heads, head_size, width, mlp, context, rope_theta, tied, .. } = *self;
        let sizes =
            Sizes { layers, heads, kv_heads, head_size, width, mlp, context, vocab, rope_theta, tied };
        let config = DecoderConfig::of(&self.family, &sizes)?;
        // In other families the biases are fixed.
        Ok(if self.family == "gpt2" { config.with_biases(self.bias) } else { config })
    }

    /// Tokens per optimizer step.
    pub fn tokens_a_step(&self) -> u64 {
        (self.batch as u64).saturating_mul(self.context as u64).saturating_mul(u64::from(self.grad_accum))
    }

    /// The learning rate schedule; the last step, which has the number `steps - 1`, has the lowest rate.
    pub fn learning_rate(&self) -> LearningRate {
        LearningRate {
            schedule: self.schedule,
            lr: self.lr,
            min_lr: self.min_lr,
            warmup: self.warmup,
            decay: self.steps.saturating_sub(1).max(1),
        }
    }

    /// The preset with this name. `Format` with the list of presets if it is unknown.
    pub fn preset(name: &str) -> Result<Self> {
        presets::of(name).ok_or_else(|| {
            Error::format(format!(
                "there is no preset `{name}`{}; the presets are {}",
                nearest(name, PRESETS).map(|near| format!(", did you mean `{near}`?")).unwrap_or_default(),
                PRESETS.join(", ")
            ))
        })
    }

    /// Combines preset, file and flags and validates the result. The preset is named by the flags, else by the file; default: `finetune` if
    /// training starts from a model, else `demo`. If not given, `min_lr` and `warmup` are reduced with a lower `lr` or fewer `steps`.
    ///
    /// # Errors
    /// `Format` for an invalid key or flag, or a size that contradicts the model to start from; `Io` if that cannot be read.
    pub fn resolve(file: Option<&Path>, flags: &Overlay) -> Result<Self> {
        Self::resolve_on(file, flags, false)
    }

    /// The same for a device that is known. On a simulated one the default is [`SIMULATED`], unless there is a file or training starts from a
    /// model.
    ///
    /// # Errors
    /// As [`TrainConfig::resolve`].
    pub fn resolve_on(file: Option<&Path>, flags: &Overlay, simulated: bool) -> Result<Self> {
        let simulated = simulated && file.is_none();
        let file = file.map_or_else(|| Ok(Overlay::default()), Overlay::read)?;
        let usual = presets::usual(flags.init.as_ref().or(file.init.as_ref()).is_some(), simulated);
        let name = flags.preset.as_deref().or(file.preset.as_deref()).unwrap_or(usual);
        let preset = Self::preset(name)?;
        // The file of a run is complete; the model it started from may not exist any more.
        let whole = file.layers.and(file.vocab).and(file.family.as_ref()).is_some() && flags.init.is_none();
        let mut config = flags.over(file.over(preset.clone())?)?;
        config.preset = name.to_owned();
        if let (Some(dir), false) = (config.init.clone(), whole) {
            let own = DecoderConfig::of_folder(Path::new(&dir))?;
            init::check(&own, &dir, &[&file, flags])?;
            init::take(&own, &dir, flags.context.or(file.context), &mut config)?;
        }
        if flags.min_lr.or(file.min_lr).is_none() && config.lr < preset.lr {
            config.min_lr = preset.min_lr / preset.lr * config.lr;
        }
        if flags.warmup.or(file.warmup).is_none() && config.steps < preset.steps {
            config.warmup = config.warmup.min(config.steps / 10);
        }
        config.validate()?;
        Ok(config)
    }
}

/// Family of files without one.
fn gpt2() -> String {
    "gpt2".into()
}

/// Stages of a run of files without their number.
fn one() -> usize {
    1
}

impl Overlay {
    /// `base` overridden by the settings present here.
    pub fn over(&self, base: TrainConfig) -> Result<TrainConfig> {
        let table = |e: toml::ser::Error| Error::internal(format!("settings as a table: {e}"));
        if let Some(message) = validate::too_large(self) {
            return Err(Error::format(message));
        }
        let mut all = toml::Table::try_from(base).map_err(table)?;
        all.extend(toml::Table::try_from(self).map_err(table)?);
        all.try_into().map_err(|e| Error::internal(format!("settings from a table: {e}")))
    }
}

/// Whether training steps are captured as a graph and replayed. The results are bit-identical.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphMode {
    /// If possible; otherwise a warning.
    #[default]
    Auto,
    /// Always; an error if it is not possible.
    On,
    /// Never.
    Off,
}

impl GraphMode {
    /// All values, with their names.
    pub const NAMES: [(&str, Self); 3] = [("auto", Self::Auto), ("on", Self::On), ("off", Self::Off)];
}

impl FromStr for GraphMode {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        by_name("graph", name, &Self::NAMES)
    }
}

impl fmt::Display for GraphMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(*self, &Self::NAMES))
    }
}

#[cfg(test)]
mod tests;
