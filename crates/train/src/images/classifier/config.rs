//! Settings of training a classifier, and their presets.

use super::settings::SETTINGS;
use crate::config::{self, GraphMode, Overlay, SETTINGS_COPY, Setting, float_type, too_large};
use crate::run::RunSettings;
use netcl_device::{Error, Result};
use netcl_model::vision::models;
use netcl_tensor::DType;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, absolute};

/// Names of the presets.
pub const PRESETS: [&str; 5] =
    ["mnist-cnn", "mnist-lenet", "cifar10-resnet18", "cifar10-mobilenet", "images-resnet18"];

/// The settings of a training run; `config.toml` in its folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassifierConfig {
    /// The network, one of [`models::MODELS`].
    pub network: String,
    /// Name of the preset that the settings came from.
    pub preset: String,
    /// The folder of images.
    pub data: String,
    /// Passes over the images.
    pub epochs: u64,
    /// Images per step.
    pub batch: usize,
    /// Highest learning rate of AdamW, reached after a twentieth of the steps and followed by a cosine to `min_lr`.
    pub lr: f64,
    /// Lowest learning rate.
    pub min_lr: f64,
    /// Decoupled weight decay of matrices and kernels.
    pub weight_decay: f64,
    /// AdamW's β₁ and β₂.
    pub betas: [f64; 2],
    /// Share of a class's probability that is spread over all classes.
    pub label_smoothing: f64,
    /// Parameter a of the distribution Beta(a, a), from which the mixing share of pairs of images is drawn during training, up to 1; 0 disables
    /// mixing.
    #[serde(default)]
    pub mixup: f64,
    /// Whether batch normalization uses the images of all ranks instead of each rank's own images.
    #[serde(default)]
    pub sync_batch_norm: bool,
    /// Maximum shift of images in pixels during training, drawn for each use.
    pub shift: usize,
    /// Whether images are mirrored at random during training.
    pub mirror: bool,
    /// Seed of weights, order and changes of images.
    pub seed: u64,
    /// Fraction of the images used for testing if the data lacks a test set.
    pub test_part: f64,
    /// Steps between checkpoints within an epoch, 0 for none; every epoch ends with a checkpoint.
    #[serde(default = "checkpoint_every")]
    pub checkpoint_every: u64,
    /// Number of newest checkpoints to keep; the best one is kept as well.
    #[serde(default = "keep")]
    pub keep: usize,
    /// Storage type of weights and activations; sums and master weights are f32.
    #[serde(default = "f32", deserialize_with = "float_type")]
    pub dtype: DType,
    /// Whether steps are captured as a graph and replayed.
    #[serde(default)]
    pub graph: GraphMode,
    /// Device.
    pub device: String,
}

/// Returns the storage type for files without one.
fn f32() -> DType {
    DType::F32
}

/// Returns the steps between checkpoints for files without the setting.
fn checkpoint_every() -> u64 {
    500
}

/// Returns the number of checkpoints to keep for files without the setting.
fn keep() -> usize {
    2
}

impl RunSettings for ClassifierConfig {
    fn to_toml(&self) -> Result<String> {
        toml::to_string(self)
            .map_err(|e| Error::internal(format!("cannot convert the settings to TOML: {e}")))
    }
    fn keep(&self) -> usize {
        self.keep
    }
}

impl ClassifierConfig {
    /// Returns the settings of the run in `dir`; `None` if its `config.toml` is not that of a classifier.
    ///
    /// # Errors
    /// `Format` for an invalid file of a classifier; `Io`.
    pub fn of_run(dir: &Path) -> Result<Option<Self>> {
        let own = Self::read(&dir.join("config.toml"));
        if matches!(own, Ok(Some(_))) {
            return own;
        }
        // If the file is damaged or missing, its copy is used, if that is of images.
        match Self::read(&dir.join(SETTINGS_COPY)) {
            Ok(Some(copy)) => {
                tracing::warn!(
                    "{}: config.toml is damaged; using the settings of {SETTINGS_COPY}",
                    dir.display()
                );
                Ok(Some(copy))
            }
            _ => own,
        }
    }

    fn read(path: &Path) -> Result<Option<Self>> {
        let text = match netcl_device::files::read_text(path) {
            Ok(text) => text,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) => return Ok(None),
            Err(e) => return Err(Error::io("reading", path, &e)),
        };
        // The settings of a language model, or not TOML at all; the reader of those settings reports it better.
        let preset =
            text.parse::<toml::Table>().ok().and_then(|t| Some(t.get("preset")?.as_str()?.to_owned()));
        if !preset.is_some_and(|preset| PRESETS.contains(&preset.as_str())) {
            return Ok(None);
        }
        let config = toml::from_str(&text);
        config.map(Some).map_err(|e| Error::format(format!("{}: {}", path.display(), e.message())))
    }

    /// Returns the same settings with the folder of images as an absolute path, so that the run can be resumed from anywhere.
    ///
    /// # Errors
    /// `Io` if the working directory cannot be determined; `Format` for a path that is not UTF-8.
    pub fn with_absolute_paths(mut self) -> Result<Self> {
        if self.data.is_empty() {
            // The images do not come from a folder.
            return Ok(self);
        }
        let path = Path::new(&self.data);
        let whole = absolute(path).map_err(|e| Error::io("finding", path, &e))?;
        let text = whole.to_str().map(Into::into);
        self.data = text.ok_or_else(|| {
            Error::format(format!(
                "{}: the path is not valid UTF-8, which config.toml requires",
                whole.display()
            ))
        })?;
        Ok(self)
    }

    /// Returns the preset of this name.
    ///
    /// # Errors
    /// `Format` with the existing names.
    pub fn preset(name: &str) -> Result<Self> {
        let mnist = Self {
            network: "mnist-cnn".into(),
            preset: name.into(),
            data: String::new(),
            epochs: 10,
            batch: 64,
            lr: 4e-3,
            min_lr: 1e-5,
            weight_decay: 0.02,
            betas: [0.9, 0.99],
            label_smoothing: 0.0,
            mixup: 0.0,
            sync_batch_norm: false,
            shift: 2,
            mirror: false,
            seed: 1337,
            test_part: 0.1,
            checkpoint_every: checkpoint_every(),
            keep: keep(),
            dtype: DType::F32,
            graph: GraphMode::Auto,
            device: "auto".into(),
        };
        let cifar = Self {
            network: "resnet18-small".into(),
            epochs: 40,
            batch: 128,
            lr: 2e-3,
            weight_decay: 0.05,
            label_smoothing: 0.1,
            shift: 4,
            mirror: true,
            ..mnist.clone()
        };
        match name {
            "mnist-cnn" => Ok(mnist),
            "mnist-lenet" => Ok(Self { network: "lenet".into(), lr: 2e-3, ..mnist }),
            "cifar10-resnet18" => Ok(cifar),
            "cifar10-mobilenet" => Ok(Self { network: "mobilenet-v2-small".into(), mixup: 0.2, ..cifar }),
            "images-resnet18" => Ok(Self { network: "resnet18".into(), batch: 32, ..cifar }),
            _ => Err(Error::format(format!(
                "unknown preset `{name}` for images; the presets are {}",
                PRESETS.join(", ")
            ))),
        }
    }

    /// Returns the number of whole batches for this number of images, which is the steps of an epoch.
    pub fn steps_of_epoch(&self, images: usize) -> u64 {
        (images / self.batch.min(images).max(1)) as u64
    }

    /// Returns these settings, overridden by the given ones: settings that language models share, and those that only classifiers have.
    ///
    /// # Errors
    /// `Format` for more than one folder of data, or a number that no file can hold.
    pub fn overridden(&self, shared: &Overlay, own: toml::Table) -> Result<Self> {
        if let Some(message) = too_large(shared) {
            return Err(Error::format(message));
        }
        let wrong =
            |e: toml::ser::Error| Error::internal(format!("cannot convert the settings to a table: {e}"));
        let mut given = toml::Table::try_from(shared).map_err(wrong)?;
        if let Some(data) = &shared.data {
            let [data] = data.as_slice() else {
                return Err(Error::format("--data takes one folder of images"));
            };
            given.insert("data".into(), data.as_str().into());
        }
        let mut all = toml::Table::try_from(self).map_err(wrong)?;
        all.extend(given.into_iter().map(|(key, value)| (own_key(&key).to_owned(), value)));
        all.extend(own);
        all.try_into().map_err(|e| Error::internal(format!("cannot read the settings from a table: {e}")))
    }

    /// Validates the settings.
    ///
    /// # Errors
    /// `Format` with the setting that is out of range.
    pub fn validate(&self) -> Result<()> {
        if let Some(message) = too_large(self) {
            return Err(Error::format(message));
        }
        let table = toml::Table::try_from(self)
            .map_err(|e| Error::internal(format!("cannot convert the settings to a table: {e}")))?;
        let refusal = |row: &Setting| {
            let value = table.get(own_key(row.name)).filter(|_| row.images.is_some())?;
            row.check.refusal(&row.flag(), &numbers(value), value.as_str())
        };
        let wrong = SETTINGS.iter().chain(config::SETTINGS).find_map(refusal);
        let wrong = wrong.or_else(|| {
            if self.min_lr > self.lr {
                Some(format!("--min-lr {} is above --lr {}", self.min_lr, self.lr))
            } else if self.test_part <= 0.0 {
                Some(format!("--val-split {} must be above 0", self.test_part))
            } else if !(0.0..=1.0).contains(&self.mixup) {
                Some(format!("mixup {}, expected 0 to 1", self.mixup))
            } else if !models::MODELS.contains(&self.network.as_str()) {
                let all = models::MODELS.join(", ");
                Some(format!("unknown network `{}`; the networks are {all}", self.network))
            } else {
                None
            }
        });
        wrong.map_or(Ok(()), |message| Err(Error::format(message)))
    }
}

/// Returns the key of a setting in a classifier's `config.toml`.
pub(super) fn own_key(name: &str) -> &str {
    if name == "val_split" { "test_part" } else { name }
}

/// Returns the numbers of a value.
fn numbers(value: &toml::Value) -> Vec<f64> {
    match value {
        toml::Value::Integer(n) => vec![*n as f64],
        toml::Value::Float(n) => vec![*n],
        toml::Value::Array(values) => values.iter().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}
