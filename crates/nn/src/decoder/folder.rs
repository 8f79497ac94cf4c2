//! Model folders in the Hugging Face layout, and run folders, whose checkpoints are such folders.

use super::freeze::Freeze;
use super::{Decoder, DecoderConfig, Span, files};
use crate::checkpoint::{FileDtype, MODEL_FILE, WeightFiles};
use crate::model::Model as _;
use netcl_tensor::{DType, Device, Error, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The model folder that `dir` denotes: `dir` itself, or the best checkpoint of a run folder, or its last if none was evaluated.
///
/// # Errors
/// `Format` if there is none.
pub fn model_folder(dir: &Path) -> Result<PathBuf> {
    if dir.join("config.json").exists() {
        return Ok(dir.into());
    }
    for sub in ["checkpoints/best", "checkpoints/last", "best", "last"] {
        if dir.join(sub).join("config.json").exists() {
            return Ok(dir.join(sub));
        }
    }
    let (there, dir) = (dir.exists(), dir.display());
    Err(Error::format(match there {
        true => format!(
            "{dir} holds no model: expected config.json and {MODEL_FILE}, or a run folder with checkpoints"
        ),
        false => format!("{dir} holds no model: there is no such file or folder"),
    }))
}

/// A model folder with its parsed configuration.
pub struct ModelFolder {
    /// Path of the folder.
    pub path: PathBuf,
    /// Content of `config.json`.
    pub json: Value,
    /// The configuration that it describes.
    pub config: DecoderConfig,
}

impl ModelFolder {
    /// Reads the configuration of the model in `dir` (see [`model_folder`] for run folders).
    ///
    /// # Errors
    /// `Io`, `Format` or `Unsupported` with file and field.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = model_folder(dir)?;
        let file = path.join("config.json");
        let text = netcl_device::files::read_text(&file).map_err(|e| Error::io("reading", &file, &e))?;
        let json =
            serde_json::from_str(&text).map_err(|e| Error::format(format!("{}: {e}", file.display())))?;
        let config = DecoderConfig::from_json(&json).map_err(|e| e.context(path.display()))?;
        Ok(Self { path, json, config })
    }

    /// Loads the model with weights stored as `dtype`; by default bf16 or f16 if all tensors of the files have that type, else f32. Parameters
    /// that match `freeze` are not trained.
    ///
    /// # Errors
    /// `Io` or `Format` with the missing or invalid file; nothing is allocated unless the files contain the model.
    pub fn decoder(&self, device: &Device, dtype: Option<DType>, freeze: &Freeze) -> Result<Decoder> {
        let made = |dtype| Decoder::partly_frozen(device, self.config.clone(), dtype, None, freeze);
        self.loaded(dtype, made)
    }

    /// The same for layers alone; see [`Decoder::part`].
    ///
    /// # Errors
    /// As [`decoder`](Self::decoder) and [`Decoder::part`].
    pub fn part(&self, span: &Span, dtype: DType, freeze: &Freeze) -> Result<Decoder> {
        self.loaded(Some(dtype), |dtype| Decoder::part(span, self.config.clone(), dtype, None, freeze))
    }

    /// The weights of the files in what `made` makes for a storage type.
    fn loaded(&self, dtype: Option<DType>, made: impl FnOnce(DType) -> Result<Decoder>) -> Result<Decoder> {
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
        let decoder = made(dtype.unwrap_or(own))?;
        decoder.load_state(&tensors).map_err(place)?;
        Ok(decoder)
    }
}

impl DecoderConfig {
    /// The configuration of the model in `dir`.
    ///
    /// # Errors
    /// As [`ModelFolder::open`].
    pub fn of_folder(dir: &Path) -> Result<Self> {
        ModelFolder::open(dir).map(|folder| folder.config)
    }
}

impl Decoder {
    /// Loads a model from a folder in the Hugging Face layout (`config.json`, and safetensors in one file or several with an index) or from a run
    /// folder. Weights are stored as `dtype`; by default bf16 or f16 if all tensors of the files have that type, else f32.
    ///
    /// # Errors
    /// `Io` or `Format` with the missing or invalid file; nothing is allocated unless the files contain the model.
    pub fn open(device: &Device, dir: &Path, dtype: Option<DType>) -> Result<Self> {
        ModelFolder::open(dir)?.decoder(device, dtype, &Freeze::default())
    }
}
