//! Model folders in the Hugging Face layout, and run folders, which hold some.

use super::freeze::Freeze;
use super::{Decoder, DecoderConfig, files};
use crate::checkpoint::{FileDtype, MODEL_FILE, WeightFiles};
use crate::model::Model as _;
use netcl_tensor::{DType, Device, Error, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The folder with `config.json` that `dir` stands for: itself, or of a run folder its best, or else last, checkpoint.
///
/// # Errors
/// `Format` when there is none.
pub fn model_folder(dir: &Path) -> Result<PathBuf> {
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

/// A model folder whose configuration was read.
pub struct ModelFolder {
    /// Where it is.
    pub path: PathBuf,
    /// Its `config.json`.
    pub json: Value,
    /// What that says.
    pub config: DecoderConfig,
}

impl ModelFolder {
    /// Reads the configuration of the model that `dir` stands for.
    ///
    /// # Errors
    /// `Io`, `Format` or `Unsupported` that name the file and the field.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = model_folder(dir)?;
        let file = path.join("config.json");
        let text = std::fs::read_to_string(&file).map_err(|e| Error::io("reading", &file, &e))?;
        let json =
            serde_json::from_str(&text).map_err(|e| Error::format(format!("{}: {e}", file.display())))?;
        let config = DecoderConfig::from_json(&json).map_err(|e| e.context(path.display()))?;
        Ok(Self { path, json, config })
    }

    /// The model with its weights, stored as `dtype`; without one as in the files where all of those are bf16 or all f16, else as f32.
    /// What `freeze` names stays as it is in training.
    ///
    /// # Errors
    /// `Io` or `Format` that name the file that is missing or wrong; nothing is allocated for a model that the files do not hold.
    pub fn decoder(&self, device: &Device, dtype: Option<DType>, freeze: &Freeze) -> Result<Decoder> {
        let place = |e: Error| e.context(self.path.display());
        let files = WeightFiles::open(&self.path)?;
        let tensors = files.tensors();
        let found = files::matched(&self.config, &tensors).map_err(place)?;
        let stored = |wanted| found.iter().flatten().all(|tensor| tensor.dtype == wanted);
        let own = match (stored(FileDtype::BF16), stored(FileDtype::F16)) {
            (true, _) => DType::Bf16,
            (_, true) => DType::F16,
            _ => DType::F32,
        };
        let decoder =
            Decoder::partly_frozen(device, self.config.clone(), dtype.unwrap_or(own), None, freeze)?;
        decoder.load_state(&tensors).map_err(place)?;
        Ok(decoder)
    }
}

impl DecoderConfig {
    /// That of the model in `dir`.
    ///
    /// # Errors
    /// As [`ModelFolder::open`].
    pub fn of_folder(dir: &Path) -> Result<Self> {
        ModelFolder::open(dir).map(|folder| folder.config)
    }
}

impl Decoder {
    /// The model in a folder in the Hugging Face layout, or of a run: `config.json` and safetensors, one file or several with an index.
    /// Weights are stored as `dtype`; without one as in the files where all of those are bf16 or all f16, else as f32.
    ///
    /// # Errors
    /// `Io` or `Format` that name the file that is missing or wrong; nothing is allocated for a model that the files do not hold.
    pub fn open(device: &Device, dir: &Path, dtype: Option<DType>) -> Result<Self> {
        ModelFolder::open(dir)?.decoder(device, dtype, &Freeze::default())
    }
}
