//! Runs that train adapters of a model (`--lora`): creation of the model, and the files of checkpoints.
//!
//! Such a checkpoint is an adapter in PEFT's format that names its base model. The base model stays where it is; a record of its files tells whether
//! it has changed since.

use crate::config::TrainConfig;
use netcl_llm::LoadedModel;
use netcl_llm::engine::Options;
use netcl_llm::model::{Source, write_description};
use netcl_model::checkpoint::{ADAPTER_CONFIG, Checkpoint};
use netcl_model::decoder::{Decoder, DecoderConfig, Freeze, Lora, ModelFolder};
use netcl_model::model::Model as _;
use netcl_tensor::quant::Activations;
use netcl_tensor::{Device, Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// File of a checkpoint with the record of the base model.
const BASE_FILE: &str = "base.json";
/// Bytes at the beginning and at the end of a file that its record includes.
const ENDS: u64 = 1 << 20;

/// A model that training starts from: its folder, or a GGUF file with a folder of everything but its weights.
pub(super) struct Start {
    pub(super) folder: ModelFolder,
    /// The file, and what keeps the folder.
    file: Option<(PathBuf, TempDir)>,
}

impl Start {
    /// Opens the model of `--init`.
    ///
    /// # Errors
    /// Errors of the files.
    pub(super) fn open(path: &Path) -> Result<Self> {
        if !path.is_file() {
            return Ok(Self { folder: ModelFolder::open(path)?, file: None });
        }
        let aside = TempDir::new().map_err(|e| Error::io("creating", &std::env::temp_dir(), &e))?;
        write_description(&Source::open(path)?, aside.path())?;
        Ok(Self { folder: ModelFolder::open(aside.path())?, file: Some((path.to_owned(), aside)) })
    }

    /// Returns true for a GGUF file.
    pub(super) fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// Returns the tokenizer file of a run: the given one, or that of a GGUF file in its folder.
    pub(super) fn tokenizer(&self, config: &TrainConfig) -> String {
        let own = self.folder.path.join(netcl_model::tokenizer::FILE);
        let unnamed = config.init.as_ref() == Some(&config.tokenizer);
        match own.to_str().filter(|_| unnamed && own.exists()) {
            Some(own) => own.to_owned(),
            None => config.tokenizer.clone(),
        }
    }

    /// Loads the model, with new adapters from `seed` if the run trains some. The matrices of a GGUF file stay quantized.
    ///
    /// # Errors
    /// Errors of the files; `Unsupported` for quantized experts; `Memory`.
    pub(super) fn decoder(
        &self,
        device: &Device,
        config: &TrainConfig,
        seed: Option<u64>,
    ) -> Result<Decoder> {
        let Some((path, _)) = &self.file else {
            let model = self.folder.decoder(device, Some(config.dtype), &Freeze::new(&config.freeze)?)?;
            return with_adapters(model, config, seed);
        };
        // Gradients are those of the stored weights, so inputs are not rounded to bytes.
        let options = Options {
            dtype: Some(config.dtype),
            activations: Some(Activations::Float),
            context: Some(self.folder.config.context),
            training: true,
            ..Options::default()
        };
        let model =
            LoadedModel::open(path, std::slice::from_ref(device), options, &mut |_| Ok(()))?.into_decoder();
        if model.config().mlp.moe.is_some() && model.params().block_bytes() > 0 {
            return Err(Error::unsupported(format!(
                "--init {}: adapters of a model with quantized experts are not supported; use its Hugging Face folder",
                path.display()
            )));
        }
        with_adapters(model, config, seed)
    }
}

/// Returns the settings of a run's adapters, if it trains some.
///
/// # Errors
/// `Format` for invalid settings.
pub(super) fn lora_of(config: &TrainConfig) -> Result<Option<Lora>> {
    config.lora.as_deref().map(Lora::parse).transpose()
}

/// Creates a model of this shape with new weights, or zeros without a seed, and with new adapters if the run trains some.
///
/// # Errors
/// Errors of [`Decoder::partly_frozen`] and [`Decoder::add_lora`].
pub(super) fn new_decoder(
    device: &Device,
    config: &TrainConfig,
    shape: DecoderConfig,
    seed: Option<u64>,
) -> Result<Decoder> {
    with_adapters(
        Decoder::partly_frozen(device, shape, config.dtype, seed, &Freeze::new(&config.freeze)?)?,
        config,
        seed,
    )
}

/// Adds new adapters to a model if the run trains some.
///
/// # Errors
/// Errors of [`Decoder::add_lora`].
pub(super) fn with_adapters(mut model: Decoder, config: &TrainConfig, seed: Option<u64>) -> Result<Decoder> {
    if let Some(lora) = lora_of(config)? {
        model.add_lora(&lora, seed)?;
    }
    Ok(model)
}

/// Returns the files that make a checkpoint an adapter; none for a run that trains the model's weights.
///
/// # Errors
/// `Internal` if JSON cannot be written.
pub(super) fn files(
    config: &TrainConfig,
    model: &DecoderConfig,
    base: Option<&BaseRecord>,
) -> Result<Vec<(String, Vec<u8>)>> {
    let (Some(lora), Some(base)) = (lora_of(config)?, base) else { return Ok(Vec::new()) };
    let json = lora.peft_config(model, config.init.as_deref().unwrap_or_default())?;
    let record = serde_json::to_vec_pretty(base).map_err(|e| Error::internal(format!("{BASE_FILE}: {e}")))?;
    Ok(vec![(ADAPTER_CONFIG.into(), format!("{json:#}\n").into_bytes()), (BASE_FILE.into(), record)])
}

/// The files of a base model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BaseRecord {
    files: BTreeMap<String, BaseFile>,
}

/// A file of a base model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct BaseFile {
    bytes: u64,
    /// BLAKE3 of the first and the last mebibyte: hashing whole models would take minutes.
    ends: String,
}

impl BaseRecord {
    /// Reads the record of the base model of a run with adapters; `None` for other runs.
    ///
    /// # Errors
    /// `Io` for a file that cannot be read; `Format` if the base model has changed since the checkpoint `from`.
    pub(super) fn of(config: &TrainConfig, from: Option<&Checkpoint>) -> Result<Option<Self>> {
        let Some(base) = config.init.as_deref().filter(|_| config.lora.is_some()).map(Path::new) else {
            return Ok(None);
        };
        let now = Self::read(base)?;
        let before = from.and_then(|checkpoint| checkpoint.file(BASE_FILE).ok());
        let before: Option<Self> = before.and_then(|text| serde_json::from_slice(text).ok());
        match before.and_then(|before| now.difference(&before)) {
            Some(name) => Err(Error::format(format!(
                "{}: {name} has changed since the checkpoint, whose adapters belong to the earlier model; restore the model, or start a new run",
                base.display()
            ))),
            None => Ok(Some(now)),
        }
    }

    /// Reads the record of a model.
    ///
    /// # Errors
    /// `Io` for a file that cannot be read.
    pub(super) fn read(base: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        if base.is_file() {
            let file = BaseFile::read(base).map_err(|e| Error::io("reading", base, &e))?;
            let name = base.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Ok(Self { files: BTreeMap::from([(name, file)]) });
        }
        let entries = std::fs::read_dir(base).map_err(|e| Error::io("reading", base, &e))?;
        for entry in entries {
            let path = entry.map_err(|e| Error::io("reading", base, &e))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name == "config.json" || name.ends_with(".safetensors") {
                files.insert(name, BaseFile::read(&path).map_err(|e| Error::io("reading", &path, &e))?);
            }
        }
        Ok(Self { files })
    }

    /// Returns the name of the first file that differs.
    fn difference(&self, other: &Self) -> Option<String> {
        let names = self.files.keys().chain(other.files.keys());
        names.filter(|name| self.files.get(*name) != other.files.get(*name)).min().cloned()
    }
}

impl BaseFile {
    fn read(path: &Path) -> std::io::Result<Self> {
        let mut file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut hasher = blake3::Hasher::new();
        let mut ends = Vec::new();
        Read::by_ref(&mut file).take(ENDS).read_to_end(&mut ends)?;
        if bytes > ENDS {
            file.seek(SeekFrom::Start(bytes.saturating_sub(ENDS).max(ENDS)))?;
            file.take(ENDS).read_to_end(&mut ends)?;
        }
        hasher.update(&ends);
        Ok(Self { bytes, ends: hasher.finalize().to_hex().to_string() })
    }
}

#[cfg(test)]
#[path = "adapters_tests.rs"]
mod tests;
