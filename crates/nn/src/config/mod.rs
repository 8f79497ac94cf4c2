//! Everything needed to repeat a run: presets, `config.toml`, flags, and what they must satisfy.
//!
//! Keys of the file are the long flags with `_` for `-`. A flag goes before the file, the file before the preset.

mod dtype;
mod file;
mod init;
mod paths;
mod presets;
mod resume;
mod validate;

pub use dtype::{DTYPES, storage_type};
pub(crate) use netcl_device::nearest;
pub use presets::{PRESETS, models};
pub use resume::{Change, Changes, RESUME};

use crate::decoder::{DecoderConfig, Sizes};
use crate::schedule::LearningRate;
pub use netcl_device::MatmulPrecision;
use netcl_device::{Error, Result};
use netcl_tensor::DType;
use serde::{Deserialize, Serialize};
use std::{fmt, path::Path, str::FromStr};

/// A training run. Fields are documented by their flags' names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// The preset that everything not said otherwise came from.
    pub preset: String,
    /// A model folder that training starts from, with its tokenizer; where absent, weights are drawn.
    #[serde(default)]
    pub init: Option<String>,
    /// The family of decoders, by its `model_type`.
    #[serde(default = "gpt2")]
    pub family: String,
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads; divides `width` unless `head_size` is given.
    pub heads: usize,
    /// Key and value heads; as many as heads where absent.
    #[serde(default)]
    pub kv_heads: Option<usize>,
    /// Width of a head.
    #[serde(default)]
    pub head_size: Option<usize>,
    /// Channels of the residual stream.
    pub width: usize,
    /// Channels of the MLP's hidden layer; as the family has it where absent.
    #[serde(default)]
    pub mlp: Option<usize>,
    /// Base of the rotary frequencies.
    #[serde(default)]
    pub rope_theta: Option<f64>,
    /// Whether the head is the token table.
    #[serde(default)]
    pub tied: Option<bool>,
    /// Names of parameters that stay as they are, with `*` and `?`.
    #[serde(default)]
    pub freeze: Vec<String>,
    /// Tokens of a window.
    pub context: usize,
    /// Size of the vocabulary; where absent, the tokenizer's as [`padded_vocab`] rounds it up.
    #[serde(default)]
    pub vocab: Option<usize>,
    /// Probability of dropping a value, in training.
    pub dropout: f64,
    /// Biases in linear and norm layers of GPT-2; other families have those that they have.
    pub bias: bool,
    /// Files, folders, patterns; the repository's own sources where empty.
    pub data: Vec<String>,
    /// Of text that is not UTF-8 and has no byte order mark.
    #[serde(default)]
    pub encoding: Option<String>,
    /// `char`, or the path of a `tokenizer.json`.
    pub tokenizer: String,
    /// Share of the tokens kept for validation.
    pub val_split: f64,
    /// Highest learning rate.
    pub lr: f64,
    /// Learning rate at the last step of a schedule that decays.
    pub min_lr: f64,
    /// Steps over which the learning rate rises from 0.
    pub warmup: u64,
    /// What the learning rate does after that.
    pub schedule: Schedule,
    /// AdamW's decay, for matrices and embeddings.
    pub weight_decay: f64,
    /// AdamW's averages.
    pub betas: [f64; 2],
    /// AdamW's term under the fraction.
    pub eps: f64,
    /// Largest norm of all gradients together; 0 turns clipping off.
    pub clip: f64,
    /// Windows of a forward pass.
    pub batch: usize,
    /// Forward passes of a step.
    pub grad_accum: u32,
    /// Optimizer steps.
    pub steps: u64,
    /// Of initial weights, order of data, dropout and samples.
    pub seed: u64,
    /// Steps between evaluations; 0 for none but the last.
    pub eval_every: u64,
    /// Batches of an evaluation; 0 for the whole validation part.
    pub eval_batches: usize,
    /// Steps between samples; 0 for none but the last.
    pub sample_every: u64,
    /// Steps between checkpoints; 0 for none but the last.
    pub checkpoint_every: u64,
    /// Checkpoints kept beside the best one.
    pub keep: usize,
    /// Storage of weights and activations.
    #[serde(deserialize_with = "dtype::one")]
    pub dtype: DType,
    /// What products of f32 may be rounded to.
    #[serde(default)]
    pub matmul_precision: MatmulPrecision,
    /// `auto`, `sim`, `pocl:0`, an index.
    pub device: String,
    /// Whether steps are captured once and replayed. Files of earlier versions do not say.
    #[serde(default)]
    pub graph: GraphMode,
    /// What the backward pass computes again instead of keeping it.
    #[serde(default)]
    pub recompute: Recompute,
}

/// Some of the settings: of a file, or of flags.
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
}

/// A vocabulary is rounded up to a multiple of this: matrix kernels then take the logits in whole blocks.
pub const VOCAB_MULTIPLE: usize = 64;
/// Smaller ones stay as they are: those of characters, whose recipes and published losses are for exactly as many.
pub const VOCAB_PADDED_FROM: usize = 1024;

/// The vocabulary of a model for `tokens` tokens. The ids beyond them are learnt to be unlikely and never drawn.
pub fn padded_vocab(tokens: usize) -> usize {
    if tokens < VOCAB_PADDED_FROM { tokens } else { tokens.next_multiple_of(VOCAB_MULTIPLE) }
}

impl TrainConfig {
    /// The model it describes, for a vocabulary of `vocab` tokens. One that training starts from is described by its own folder.
    ///
    /// # Errors
    /// `Unsupported` for another family, or a size that it does not have; `Shape` for sizes that do not fit each other.
    pub fn decoder(&self, vocab: usize) -> Result<DecoderConfig> {
        let Self { layers, heads, kv_heads, head_size, width, mlp, context, rope_theta, tied, .. } = *self;
        let sizes =
            Sizes { layers, heads, kv_heads, head_size, width, mlp, context, vocab, rope_theta, tied };
        let config = DecoderConfig::of(&self.family, &sizes)?;
        // Other families have biases at places of their own.
        Ok(if self.family == "gpt2" { config.with_biases(self.bias) } else { config })
    }

    /// Tokens of an optimizer step.
    pub fn tokens_a_step(&self) -> u64 {
        (self.batch as u64).saturating_mul(self.context as u64).saturating_mul(u64::from(self.grad_accum))
    }

    /// Its learning rate over the steps; a decay ends with the run.
    pub fn learning_rate(&self) -> LearningRate {
        LearningRate {
            schedule: self.schedule,
            lr: self.lr,
            min_lr: self.min_lr,
            warmup: self.warmup,
            decay: self.steps,
        }
    }

    /// The preset of that name. `Format` that lists the presets.
    pub fn preset(name: &str) -> Result<Self> {
        presets::of(name).ok_or_else(|| {
            Error::format(format!(
                "there is no preset `{name}`{}; the presets are {}",
                nearest(name, PRESETS).map(|near| format!(", did you mean `{near}`?")).unwrap_or_default(),
                PRESETS.join(", ")
            ))
        })
    }

    /// Preset, then file, then flags; the preset is named by flags, else by the file, else `finetune` where training starts from a
    /// model, else `demo`. Valid. A `min_lr` or `warmup` that the user did not set follows a lower `lr` or fewer `steps`.
    ///
    /// # Errors
    /// `Format` that names a key, a flag, or a size that the model to start from does not have; `Io` when that cannot be read.
    pub fn resolve(file: Option<&Path>, flags: &Overlay) -> Result<Self> {
        let file = file.map_or_else(|| Ok(Overlay::default()), Overlay::read)?;
        let starts = flags.init.as_ref().or(file.init.as_ref()).is_some();
        let usual = if starts { presets::FINETUNE } else { PRESETS[0] };
        let name = flags.preset.as_deref().or(file.preset.as_deref()).unwrap_or(usual);
        let preset = Self::preset(name)?;
        // A run's own file says everything; its model may be gone by now.
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

/// The family of files that name none.
fn gpt2() -> String {
    "gpt2".into()
}

impl Overlay {
    /// `base` with what is set here.
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

/// Learning rate after warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Stays at `lr`.
    Constant,
    /// Falls evenly to `min_lr`.
    Linear,
    /// Falls along half a cosine to `min_lr`.
    Cosine,
}

/// Whether training steps are captured once and replayed from then on. Both ways make the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphMode {
    /// Where it works; a warning where it does not.
    #[default]
    Auto,
    /// Yes; an error where it does not work.
    On,
    /// No.
    Off,
}

impl GraphMode {
    /// All of them, by name.
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

/// What the backward pass computes again instead of keeping it. Each saves more memory and costs more time than the one
/// before; all make the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing.
    #[default]
    None,
    /// Results of GELUs.
    Gelu,
    /// Those and the results of the norms within blocks.
    Norm,
    /// Everything within a block: its input is all that is kept.
    Block,
}

impl Recompute {
    /// All of them, by name.
    pub const NAMES: [(&str, Self); 4] =
        [("none", Self::None), ("gelu", Self::Gelu), ("norm", Self::Norm), ("block", Self::Block)];
}

impl FromStr for Recompute {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        by_name("recompute", name, &Self::NAMES)
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(*self, &Self::NAMES))
    }
}

impl Schedule {
    /// All of them, by name.
    pub const NAMES: [(&str, Self); 3] =
        [("constant", Self::Constant), ("linear", Self::Linear), ("cosine", Self::Cosine)];
}

impl FromStr for Schedule {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        by_name("schedule", name, &Self::NAMES)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(*self, &Self::NAMES))
    }
}

fn by_name<T: Copy>(what: &str, name: &str, all: &[(&str, T)]) -> Result<T> {
    let names = || all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let found = all.iter().find(|(known, _)| *known == name).map(|&(_, value)| value);
    found.ok_or_else(|| {
        let hint = netcl_device::did_you_mean(name, all.iter().map(|(name, _)| *name));
        Error::format(format!("--{what} {name} is unknown; it is one of {}{hint}", names()))
    })
}

fn name_of<T: PartialEq>(value: T, all: &[(&'static str, T)]) -> &'static str {
    all.iter().find(|(_, other)| *other == value).map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests;
