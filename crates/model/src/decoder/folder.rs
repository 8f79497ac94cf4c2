//! Model folders in the Hugging Face layout, and run folders, whose checkpoints are such folders.

use super::freeze::Freeze;
use super::lora::Lora;
use super::wrapper::{text_name, text_of};
use super::{Decoder, DecoderConfig, Span, files};
use crate::checkpoint::{
    ADAPTER_CONFIG as ADAPTER, ADAPTER_FILE, FileDtype, INDEX_FILE, MODEL_FILE, TensorData, WeightFiles,
    read_tensors,
};
use crate::model::Model as _;
use netcl_tensor::{DType, Device, Error, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Returns the model folder that `dir` denotes: `dir` itself, or the best checkpoint of a run folder, or its last if none was evaluated.
///
/// # Errors
/// `Format` without one.
pub fn model_folder(dir: &Path) -> Result<PathBuf> {
    if dir.join("config.json").exists() {
        return Ok(dir.into());
    }
    for sub in ["checkpoints/best", "checkpoints/last", "best", "last"] {
        if dir.join(sub).join("config.json").exists() {
            return Ok(dir.join(sub));
        }
    }
    // Copies of a run may lack the links: the newest checkpoint is then the last one.
    if let Some(newest) = newest_checkpoint(&dir.join("checkpoints")).or_else(|| newest_checkpoint(dir)) {
        return Ok(newest);
    }
    if dir.join(ADAPTER).exists() {
        return Err(adapter_alone(dir));
    }
    let (there, dir) = (dir.exists(), dir.display());
    Err(Error::format(match there {
        true => format!(
            "{dir} contains no model: expected config.json and {MODEL_FILE}, or a run folder with checkpoints"
        ),
        false => format!("{dir} contains no model: no such file or folder"),
    }))
}

/// Returns the error for an adapter folder without its model.
fn adapter_alone(dir: &Path) -> Error {
    let text = netcl_device::files::read_text(&dir.join(ADAPTER)).unwrap_or_default();
    let json: Value = serde_json::from_str(&text).unwrap_or_default();
    let base = match json["base_model_name_or_path"].as_str() {
        Some(base) if !base.is_empty() => format!("its base model is {base:?}"),
        _ => format!("{ADAPTER} does not name its base model (base_model_name_or_path)"),
    };
    let dir = dir.display();
    Error::format(format!(
        "{dir} contains no model: {ADAPTER} belongs to an adapter, and {base}. Use the base model's folder or GGUF file as the model, and add \
         --lora {dir}; netcl quantize BASE OUT --type f32 --lora {dir} merges both"
    ))
}

/// Returns true if a folder contains an adapter without the weights of a model.
pub fn is_adapter(dir: &Path) -> bool {
    let has = |name: &str| dir.join(name).exists();
    has(ADAPTER) && has(ADAPTER_FILE) && !has(MODEL_FILE) && !has(INDEX_FILE)
}

/// Returns the base model of an adapter, and the adapter's folder, if `dir` is an adapter or a run folder whose best checkpoint is one. The base
/// model is the folder or GGUF file that `adapter_config.json` names.
///
/// # Errors
/// `Format` if the base model is not named, or does not exist.
pub fn adapter_base(dir: &Path) -> Result<Option<(PathBuf, PathBuf)>> {
    let found = if is_adapter(dir) { Some(dir.to_owned()) } else { model_folder(dir).ok() };
    let Some(adapter) = found.filter(|adapter| is_adapter(adapter)) else { return Ok(None) };
    let file = adapter.join(ADAPTER);
    let text = netcl_device::files::read_text(&file).map_err(|e| Error::io("reading", &file, &e))?;
    let json: Value = serde_json::from_str(&text).unwrap_or_default();
    let base = json["base_model_name_or_path"].as_str().map(PathBuf::from);
    match base.filter(|base| !base.as_os_str().is_empty() && base.exists()) {
        Some(base) => Ok(Some((base, adapter))),
        None => Err(adapter_alone(&adapter)),
    }
}

/// A model folder with its parsed configuration.
pub struct ModelFolder {
    /// Path of the folder.
    pub path: PathBuf,
    /// Content of `config.json`; for a multimodal model, that of its text model.
    pub json: Value,
    /// The configuration that it describes.
    pub config: DecoderConfig,
    /// Notes on ignored files and fields of the folder.
    pub notes: Vec<String>,
    /// Whether the files contain a multimodal model around it.
    wrapped: bool,
}

impl ModelFolder {
    /// Reads the configuration of the model in `dir` (see [`model_folder`] for run folders). Ignored parts of the folder cause warnings.
    ///
    /// # Errors
    /// `Io`, `Format` or `Unsupported` with file and field.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = model_folder(dir)?;
        let file = path.join("config.json");
        let text = netcl_device::files::read_text(&file).map_err(|e| Error::io("reading", &file, &e))?;
        let whole: Value =
            serde_json::from_str(&text).map_err(|e| Error::format(format!("{}: {e}", file.display())))?;
        let (config, mut notes) =
            DecoderConfig::from_json_with_notes(&whole).map_err(|e| e.context(path.display()))?;
        let text = text_of(&whole).map_err(|e| e.context("config.json").context(path.display()))?;
        let wrapped = text.is_some();
        let json = text.unwrap_or(whole);
        if wrapped {
            notes.push(
                "this model also reads images: only its text model is loaded, and its image part is ignored"
                    .into(),
            );
        }
        if path.join(ADAPTER).exists() && !is_adapter(&path) {
            notes.push(format!(
                "the folder also contains an adapter, {ADAPTER}, which is not applied; to apply it, add --lora {}",
                path.display()
            ));
        }
        for note in &notes {
            tracing::warn!("{}: {note}", path.display());
        }
        Ok(Self { path, json, config, notes, wrapped })
    }

    /// Opens the files with the weights; reads only headers. For a multimodal model, only the tensors of its text model are listed, under the names
    /// of a text model.
    ///
    /// # Errors
    /// Same as [`WeightFiles::open`].
    pub fn weights(&self) -> Result<WeightFiles> {
        if is_adapter(&self.path) {
            return Err(adapter_alone(&self.path));
        }
        let files = WeightFiles::open(&self.path)?;
        Ok(if self.wrapped { files.renamed(text_name) } else { files })
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

    /// Does the same for only some layers; see [`Decoder::part`].
    ///
    /// # Errors
    /// Same as [`decoder`](Self::decoder) and [`Decoder::part`].
    pub fn part(&self, span: &Span, dtype: DType, freeze: &Freeze) -> Result<Decoder> {
        self.loaded(Some(dtype), |dtype| Decoder::part(span, self.config.clone(), dtype, None, freeze))
    }

    /// Loads the weights of the files into the decoder that `made` creates for a storage type.
    fn loaded(&self, dtype: Option<DType>, made: impl FnOnce(DType) -> Result<Decoder>) -> Result<Decoder> {
        let place = |e: Error| e.context(self.path.display());
        let files = self.weights()?;
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

/// Returns the checkpoint with the highest step in a folder of checkpoints.
fn newest_checkpoint(dir: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).ok()?.flatten();
    let steps = entries.filter_map(|entry| {
        let step = entry.file_name().to_str()?.strip_prefix("step-")?.parse::<u64>().ok()?;
        entry.path().join("config.json").exists().then(|| (step, entry.path()))
    });
    steps.max().map(|(_, path)| path)
}

/// Describes the first tensor of the model in `dir` with a NaN or an infinity, for an error message about invalid results.
pub fn broken_weights(dir: &Path) -> Option<String> {
    let files = model_folder(dir).and_then(|path| WeightFiles::open(&path));
    // Weights that cannot be read are not a model's.
    files.and_then(|files| files.not_finite()).ok().flatten()
}

impl DecoderConfig {
    /// Returns the configuration of the model in `dir`.
    ///
    /// # Errors
    /// Same as [`ModelFolder::open`].
    pub fn of_folder(dir: &Path) -> Result<Self> {
        ModelFolder::open(dir).map(|folder| folder.config)
    }
}

impl Decoder {
    /// Loads a model from a run folder or a folder in the Hugging Face layout: `config.json`, and safetensors in one file or several with an index. A run
    /// that trained adapters is loaded with their base model. Weights are stored as `dtype`; by default bf16 or f16 if all tensors of the files have that type, else f32.
    ///
    /// # Errors
    /// `Io` or `Format` with the missing or invalid file; nothing is allocated unless the files contain the model.
    pub fn open(device: &Device, dir: &Path, dtype: Option<DType>) -> Result<Self> {
        let Some((base, adapter)) = adapter_base(dir)? else {
            return ModelFolder::open(dir)?.decoder(device, dtype, &Freeze::default());
        };
        let mut decoder = ModelFolder::open(&base)?.decoder(device, dtype, &Freeze::default())?;
        let place = |e: Error| e.context(adapter.display());
        decoder.add_lora(&Lora::of_peft(&adapter).map_err(place)?, None).map_err(place)?;
        let tensors = read_tensors(&adapter.join(ADAPTER_FILE))?;
        decoder.load_adapters(&tensors.iter().map(TensorData::view).collect::<Vec<_>>()).map_err(place)?;
        Ok(decoder)
    }
}
