//! Configuration of training runs: presets, `config.toml`, command-line flags, validation.
//!
//! Keys of the file are the long flags with `_` instead of `-`. Flags override the file, the file overrides the preset.

mod dtype;
mod file;
mod graph_mode;
mod init;
mod objective;
mod optimizer;
mod paths;
mod preference;
mod presets;
mod resume;
mod setting;
mod stored;
mod table;
mod train_on;
mod validate;
mod value;

pub(crate) use dtype::one as float_type;
pub use dtype::{DTYPES, storage_type};
pub use graph_mode::GraphMode;
pub(crate) use netcl_device::nearest;
pub use objective::ObjectiveName;
pub use optimizer::OptimizerName;
pub use preference::LossType;
pub use presets::{PRESETS, SIMULATED, models, usual as usual_preset};
pub use resume::{Changes, resume_rules};
pub(crate) use resume::{Differences, rate_change};
pub use setting::{Change, Check, Group, Setting, TaskKind};
pub use stored::SETTINGS_COPY;
pub use table::{Overlay, SETTINGS, TrainConfig, Unset, setting};
pub use train_on::TrainOn;
pub(crate) use value::too_large;
pub use value::{Given, Kind, Value};

use crate::schedule::LearningRate;
#[cfg(test)]
use crate::schedule::Schedule;
pub use netcl_device::MatmulPrecision;
use netcl_device::{Error, Result};
use netcl_model::decoder::{DecoderConfig, Sizes};
#[cfg(test)]
use netcl_model::layers::Recompute;
#[cfg(test)]
use netcl_tensor::DType;
use std::path::Path;

/// Vocabularies are padded to a multiple of this, so that matrix kernels compute the logits in whole blocks.
pub const VOCAB_MULTIPLE: usize = 64;
/// Smaller vocabularies are not padded: published results of character models are for the exact size.
pub const VOCAB_PADDED_FROM: usize = 1024;

/// Returns the padded vocabulary size for `tokens` tokens. The model learns low probabilities for the padding ids, and they are never sampled.
pub fn padded_vocab(tokens: usize) -> usize {
    if tokens < VOCAB_PADDED_FROM { tokens } else { tokens.next_multiple_of(VOCAB_MULTIPLE) }
}

impl TrainConfig {
    /// Returns the described model with a vocabulary of `vocab` tokens. (A model to start from is described by its own folder.)
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

    /// Returns the tokens per optimizer step.
    pub fn tokens_a_step(&self) -> u64 {
        (self.rows() as u64).saturating_mul(self.context as u64).saturating_mul(u64::from(self.grad_accum))
    }

    /// Returns the learning rate schedule; the last step, which has the number `steps - 1`, has the lowest rate.
    pub fn learning_rate(&self) -> LearningRate {
        LearningRate {
            schedule: self.schedule,
            lr: self.lr,
            min_lr: self.min_lr,
            warmup: self.warmup,
            decay: self.steps.saturating_sub(1).max(1),
        }
    }

    /// Returns the preset with this name. `Format` with the list of presets if it is unknown.
    pub fn preset(name: &str) -> Result<Self> {
        presets::of(name).ok_or_else(|| {
            Error::format(format!(
                "unknown preset `{name}`{}; the presets are {}",
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

    /// Does the same for a known device. On a simulated one the default preset is [`SIMULATED`], unless there is a file or training starts from a
    /// model.
    ///
    /// # Errors
    /// Errors of [`TrainConfig::resolve`].
    pub fn resolve_on(file: Option<&Path>, flags: &Overlay, simulated: bool) -> Result<Self> {
        let simulated = simulated && file.is_none();
        let file = file.map_or_else(|| Ok(Overlay::default()), Overlay::read)?;
        let starts = flags.init.as_ref().or(file.init.as_ref()).is_some();
        let usual = presets::usual(starts, flags.lora.as_ref().or(file.lora.as_ref()).is_some(), simulated);
        let name = flags.preset.as_deref().or(file.preset.as_deref()).unwrap_or(usual);
        let preset = Self::preset(name)?;
        let given = |overlay: &Overlay| (overlay.steps.is_some(), overlay.epochs.is_some());
        if given(flags) == (true, true) || (file.layers.is_none() && given(&file) == (true, true)) {
            return Err(Error::format(
                "--steps and --epochs both set the length of the run; omit one of them",
            ));
        }
        // The file of a run is complete; the model it started from may no longer exist.
        let whole = file.layers.and(file.vocab).and(file.family.as_ref()).is_some() && flags.init.is_none();
        let mut config = flags.over(file.over(preset.clone())?)?;
        config.preset = name.to_owned();
        match given(flags) {
            // The settings of a run have both.
            (true, _) => config.epochs = None,
            (false, false) => config.unset.steps = given(&file) == (false, false),
            (false, true) => {}
        }
        config.unset.warmup = flags.warmup.or(file.warmup).is_none();
        if let (Some(dir), false) = (config.init.clone(), whole) {
            let own = init::shape(Path::new(&dir), config.lora.is_some())?;
            init::check(&own, &dir, &[&file, flags])?;
            init::take(&own, &dir, flags.context.or(file.context), &mut config)?;
        }
        if flags.bias == Some(true) && config.family != "gpt2" {
            return Err(Error::format(format!(
                "--bias true is for --family gpt2; the biases of {} are fixed. Omit --bias",
                config.family
            )));
        }
        if let (Some(given), Some(dir)) = (flags.bias.filter(|given| *given != config.bias), &config.init) {
            return Err(Error::format(format!(
                "--bias {given}: the model of --init {dir} has {}, and training keeps its shape; omit --bias",
                config.bias
            )));
        }
        if config.objective.is_preference() && flags.lr.or(file.lr).is_none() {
            // TRL's rate; adapters take ten times that of weights.
            config.lr = if config.lora.is_some() { 1e-5 } else { 1e-6 };
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

#[cfg(test)]
mod tests;
