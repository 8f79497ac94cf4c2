//! Checkpoints of a run: what goes in, and how a run goes on from one.

use super::trainer::Trainer;
use crate::checkpoint::{Checkpoint, MODEL_FILE, Plan, Rng, STATE_FILE, State, WeightFiles};
use crate::data::Position;
use crate::decoder::Decoder;
use crate::generate::LanguageModel;
use crate::gpt::{Gpt, GptConfig, config_json, generation_config_json};
use crate::tokenizer::Tokenizer;
use netcl_tensor::{DType, Device, Error, Result};
use std::path::{Path, PathBuf};

impl Trainer {
    /// The checkpoint of the step just done. Its tensors are still on the device.
    pub(super) fn checkpoint(&self) -> Result<Plan<'static>> {
        let eos = self.tokenizer.as_ref().and_then(Tokenizer::eos);
        let params = self.model.params();
        let pretty = |value| {
            serde_json::to_vec_pretty(&value).map_err(|e| Error::internal(format!("config.json: {e}")))
        };
        let config = config_json(&self.model.config, params.dtype(), self.config.dropout, eos);
        let mut files = vec![
            ("config.json".to_string(), pretty(config)?),
            ("generation_config.json".to_string(), pretty(generation_config_json(eos))?),
        ];
        if let Some(tokenizer) = &self.tokenizer {
            files.extend(tokenizer.files()?);
        }
        let mut state = State::default();
        state.step = self.step;
        state.position = self.position;
        state.rng = Rng { seed: self.config.seed, counter: self.step * u64::from(self.config.grad_accum) };
        state.val_loss = self.val_loss;
        state.best_loss = self.best.map(|(loss, _)| loss);
        state.best_step = self.best.map(|(_, step)| step);
        let optimizer = self.optimizer.planned_state()?;
        Ok(Plan { state, model: self.model.planned_state(), optimizer, files })
    }

    /// Takes over a checkpoint's weights, moments and position.
    pub(super) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let state = &checkpoint.state;
        // Sealed, but another program can seal a file, too.
        let expected = Position { seed: self.config.seed, step: state.step, micro: 0 };
        if state.step > self.config.steps || state.position != expected {
            return Err(Error::format(format!(
                "{STATE_FILE} is of step {} and {:?}, expected {expected:?} and at most step {}",
                state.step, state.position, self.config.steps
            )));
        }
        self.model.load_state(&checkpoint.model)?;
        self.optimizer.load_state_dict(&checkpoint.optimizer)?;
        self.step = state.step;
        self.saved_step = state.step;
        self.position = state.position;
        if self.history.last().is_none_or(|m| m.step != state.step) {
            // The record of the steps is gone: as if all of them had been like the next.
            self.trained = state.step.saturating_mul(self.config.tokens_a_step());
        }
        self.val_loss = state.val_loss;
        self.best = state.best_loss.zip(state.best_step);
        Ok(())
    }
}

/// Opens a model folder in the Hugging Face layout, such as one of our checkpoints; a run folder stands for its best, or else
/// last, checkpoint.
///
/// # Errors
/// `Io` or `Format` that name the file that is missing or wrong.
pub fn model_from_dir(
    device: &Device,
    dir: &Path,
    dtype: Option<DType>,
) -> Result<(Gpt, Option<Tokenizer>, PathBuf)> {
    let dir = model_dir(dir)?;
    let path = dir.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io("reading", &path, &e))?;
    let json = serde_json::from_str(&text).map_err(|e| Error::format(format!("{}: {e}", path.display())))?;
    let config = GptConfig::from_json(&json).map_err(|e| e.context(dir.display()))?;
    let files = WeightFiles::open(&dir)?;
    let tensors = files.tensors();
    // Names, shapes and types first: nothing is allocated for a model that the file does not hold.
    let matched = config.match_tensors(&tensors).map_err(|e| e.context(dir.display()))?;
    let types: Vec<_> = matched.iter().map(|t| t.dtype).collect();
    let stored = match types.first() {
        Some(crate::checkpoint::Dtype::BF16) if types.iter().all(|t| *t == types[0]) => DType::Bf16,
        Some(crate::checkpoint::Dtype::F16) if types.iter().all(|t| *t == types[0]) => DType::F16,
        _ => DType::F32,
    };
    let gpt = Gpt::new(device, config, dtype.unwrap_or(stored), 0)?;
    gpt.load_views(&tensors).map_err(|e| e.context(dir.display()))?;
    let tokenizer =
        if dir.join(crate::tokenizer::FILE).exists() { Some(Tokenizer::from_dir(&dir)?) } else { None };
    Ok((gpt, tokenizer, dir))
}

/// A model of any family that continues texts, from a folder as [`model_from_dir`] takes it.
///
/// # Errors
/// As [`model_from_dir`].
pub fn language_model_from_dir(
    device: &Device,
    dir: &Path,
    dtype: Option<DType>,
) -> Result<(Box<dyn LanguageModel>, Option<Tokenizer>, PathBuf)> {
    let found = model_dir(dir)?;
    let path = found.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io("reading", &path, &e))?;
    let json: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| Error::format(format!("{}: {e}", path.display())))?;
    if json["model_type"] == "gpt2" {
        let (gpt, tokenizer, dir) = model_from_dir(device, dir, dtype)?;
        return Ok((Box::new(gpt), tokenizer, dir));
    }
    let decoder = Decoder::open(device, &found, dtype)?;
    let tokenizer =
        if found.join(crate::tokenizer::FILE).exists() { Some(Tokenizer::from_dir(&found)?) } else { None };
    Ok((Box::new(decoder), tokenizer, found))
}

fn model_dir(dir: &Path) -> Result<PathBuf> {
    if dir.join("config.json").exists() {
        return Ok(dir.into());
    }
    for sub in ["checkpoints/best", "checkpoints/last", "best", "last"] {
        if dir.join(sub).join("config.json").exists() {
            return Ok(dir.join(sub));
        }
    }
    Err(Error::format(format!(
        "{} holds no model: expected config.json and {MODEL_FILE}, or a run folder with checkpoints",
        dir.display()
    )))
}
