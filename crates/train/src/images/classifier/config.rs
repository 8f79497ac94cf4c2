//! Settings of training a classifier, and their presets.

use crate::config::{GraphMode, SETTINGS_COPY, float_type};
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

/// What a run of training does; `config.toml` in its folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassifierConfig {
    /// The network, one of [`models::MODELS`].
    pub network: String,
    /// Where the settings came from.
    pub preset: String,
    /// The folder of images.
    pub data: String,
    /// Passes over the images.
    pub epochs: u64,
    /// Images a step.
    pub batch: usize,
    /// Highest learning rate of AdamW, reached after a twentieth of the steps and followed by a cosine to `min_lr`.
    pub lr: f64,
    /// Lowest learning rate.
    pub min_lr: f64,
    /// Decoupled weight decay of matrices and kernels.
    pub weight_decay: f64,
    /// Averages of the gradient and of its square.
    pub betas: [f64; 2],
    /// Share of a class's probability that is spread over all.
    pub label_smoothing: f64,
    /// Parameter a of the distribution Beta(a, a) that says how much of each other image is mixed into one while training, up to 1; 0 for none.
    #[serde(default)]
    pub mixup: f64,
    /// Whether batch normalisation takes the images of all ranks, of several that train together, and not each rank's own.
    #[serde(default)]
    pub sync_batch_norm: bool,
    /// Images are moved by up to so many pixels while training, anew every time.
    pub shift: usize,
    /// Whether images are mirrored at random while training.
    pub mirror: bool,
    /// Seed of weights, order and what is done to images.
    pub seed: u64,
    /// Part of the images kept for the test where nothing is called one.
    pub test_part: f64,
    /// Steps between checkpoints within an epoch, 0 for none; there is one after every epoch.
    #[serde(default = "checkpoint_every")]
    pub checkpoint_every: u64,
    /// Newest checkpoints that are kept; the best one is kept, too.
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

/// Storage type of files without one.
fn f32() -> DType {
    DType::F32
}

/// Steps between checkpoints where a file says nothing.
fn checkpoint_every() -> u64 {
    500
}

/// Checkpoints kept where a file says nothing.
fn keep() -> usize {
    2
}

impl RunSettings for ClassifierConfig {
    fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|e| Error::internal(format!("settings as TOML: {e}")))
    }
    fn keep(&self) -> usize {
        self.keep
    }
}

impl ClassifierConfig {
    /// The settings of the run in `dir`; `None` where its `config.toml` is not that of a classifier.
    ///
    /// # Errors
    /// `Format` for one that is, with what is wrong in it; `Io`.
    pub fn of_run(dir: &Path) -> Result<Option<Self>> {
        let own = Self::read(&dir.join("config.toml"));
        if matches!(own, Ok(Some(_))) {
            return own;
        }
        // A damaged file, or none: the copy, if that is of images.
        match Self::read(&dir.join(SETTINGS_COPY)) {
            Ok(Some(copy)) => {
                tracing::warn!(
                    "{}: config.toml is damaged; the settings are those of {SETTINGS_COPY}",
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
        // Of texts, or no TOML at all, which who reads those settings says better.
        let preset =
            text.parse::<toml::Table>().ok().and_then(|t| Some(t.get("preset")?.as_str()?.to_owned()));
        if !preset.is_some_and(|preset| PRESETS.contains(&preset.as_str())) {
            return Ok(None);
        }
        let config = toml::from_str(&text);
        config.map(Some).map_err(|e| Error::format(format!("{}: {}", path.display(), e.message())))
    }

    /// The same settings with the folder of images as an absolute path, so that the run can be resumed from anywhere.
    ///
    /// # Errors
    /// `Io` if the working directory cannot be determined; `Format` for a path that is not UTF-8.
    pub fn with_absolute_paths(mut self) -> Result<Self> {
        if self.data.is_empty() {
            // Images that come from no folder.
            return Ok(self);
        }
        let path = Path::new(&self.data);
        let whole = absolute(path).map_err(|e| Error::io("finding", path, &e))?;
        let text = whole.to_str().map(Into::into);
        self.data = text.ok_or_else(|| {
            Error::format(format!("{}: the path is not UTF-8, as config.toml is", whole.display()))
        })?;
        Ok(self)
    }

    /// The preset of this name.
    ///
    /// # Errors
    /// `Format` with the names there are.
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
                "there is no preset `{name}` for images; there are {}",
                PRESETS.join(", ")
            ))),
        }
    }

    /// Whole batches among so many images, which are an epoch's steps.
    pub fn steps_of_epoch(&self, images: usize) -> u64 {
        (images / self.batch.min(images).max(1)) as u64
    }

    /// # Errors
    /// `Format` with what is out of range.
    pub fn validate(&self) -> Result<()> {
        let part = |v: f64| (0.0..1.0).contains(&v);
        let wrong = if self.epochs == 0 || self.batch == 0 {
            Some("--epochs and --batch are at least 1".to_owned())
        } else if !(self.lr > 0.0 && self.lr.is_finite() && self.min_lr >= 0.0 && self.min_lr <= self.lr) {
            Some(format!(
                "--lr {} and --min-lr {}, expected a positive rate and one below it",
                self.lr, self.min_lr
            ))
        } else if !(part(self.test_part) && self.test_part > 0.0) {
            Some(format!("--val-split {} is no fraction between 0 and 1", self.test_part))
        } else if !part(self.label_smoothing) || !self.betas.iter().all(|b| part(*b)) {
            Some(format!(
                "label smoothing {} and betas {:?}, expected fractions below 1",
                self.label_smoothing, self.betas
            ))
        } else if !(0.0..=1.0).contains(&self.mixup) {
            Some(format!("mixup {}, expected 0 to 1", self.mixup))
        } else if !self.weight_decay.is_finite() || self.weight_decay < 0.0 {
            Some(format!("--weight-decay {}, expected 0 or more", self.weight_decay))
        } else if !models::MODELS.contains(&self.network.as_str()) {
            Some(format!("there is no network `{}`; there are {}", self.network, models::MODELS.join(", ")))
        } else {
            None
        };
        wrong.map_or(Ok(()), |message| Err(Error::format(message)))
    }
}
