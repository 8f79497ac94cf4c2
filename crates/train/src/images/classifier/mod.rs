//! Image classifiers: their training, and the run folder from which one is loaded.

mod batches;
mod checkpoint;
mod config;
mod diagnostics;
mod distributed;
mod graph;
mod inputs;
mod loss;
mod outcome;
mod pictures;
mod ranks;
mod record;
mod report;
mod resume;
mod settings;
mod task;
mod testing;

mod train;
mod watch;

pub use batches::Scaling;
pub use config::{ClassifierConfig, PRESETS};
pub use diagnostics::Diagnostics;
pub use outcome::{ClassifierOutcome, Epoch, Next};
pub use pictures::Picture;
pub use ranks::{Failed, Rank, train_distributed};
pub use resume::resume_rules;
pub use settings::SETTINGS;
pub use train::{resume, train};
pub use watch::TrainingProgress;

use super::data;
use netcl_device::{Error, Result, files};
use netcl_model::checkpoint::{
    Bytes, FileDtype, MODEL_FILE, TensorToWrite, TensorView, WeightFiles, write_planned,
};
use netcl_model::params::Params;
use netcl_model::vision::{Network, models};
use netcl_tensor::{DType, Device, Tensor, no_grad};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// The purpose of a trained network; `classifier.json` in the run's folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// The network, one of [`models::MODELS`].
    pub network: String,
    /// Channels, height and width of its images.
    pub size: [usize; 3],
    /// Names of its classes.
    pub classes: Vec<String>,
    /// Mean and deviation of each channel of the training images, for values from 0 to 1.
    pub statistics: Vec<[f32; 2]>,
}

const DESCRIPTION: &str = "classifier.json";

impl Description {
    /// Describes the network that `config` trains on `images`.
    pub fn of(config: &ClassifierConfig, images: &data::Dataset) -> Self {
        Self {
            network: config.network.clone(),
            size: images.train.size,
            classes: images.classes.clone(),
            statistics: images.train.statistics(),
        }
    }

    fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec_pretty(self)
            .map_err(|e| Error::internal(format!("cannot convert a description to JSON: {e}")))
    }
}

/// A network with its description.
pub struct Classifier {
    /// The description.
    pub about: Description,
    params: Params,
    network: Network,
    scaling: Scaling,
    device: Device,
}

/// A class and its probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The class's name.
    pub class: String,
    /// Its probability, 0 to 1.
    pub confidence: f32,
}

impl Classifier {
    /// Creates a network with initial values drawn from `seed`, stored as `dtype`.
    ///
    /// # Errors
    /// `Shape` for images that are too small; errors of the device.
    pub fn new(device: &Device, about: Description, dtype: DType, seed: u64) -> Result<Self> {
        let described = models::of(&about.network, about.size, about.classes.len())?;
        let (params, network) =
            Params::build(device, dtype, Some(seed), |params| described.build(params, ""))?;
        let scaling = Scaling::new(&about.statistics);
        Ok(Self { about, params, network, scaling, device: device.clone() })
    }

    /// Opens the classifier in a run's folder.
    ///
    /// # Errors
    /// `Format` if the folder lacks a classifier, or a tensor is missing or of another shape; `Io`.
    pub fn open(device: &Device, dir: &Path) -> Result<Self> {
        let path = dir.join(DESCRIPTION);
        if !path.exists() {
            return Err(Error::format(format!(
                "{} contains no image classifier: {DESCRIPTION} is missing; train one, for example with --preset mnist-cnn",
                dir.display()
            )));
        }
        let text = netcl_device::files::read_whole(&path).map_err(|e| Error::io("reading", &path, &e))?;
        let about: Description = serde_json::from_slice(&text).map_err(|e| {
            Error::format(format!("{}: not a description of a classifier: {e}", path.display()))
        })?;
        if about.statistics.len() != about.size[0] || about.classes.is_empty() {
            return Err(Error::format(format!(
                "{}: {} statistics for {} channels and {} classes",
                path.display(),
                about.statistics.len(),
                about.size[0],
                about.classes.len()
            )));
        }
        let files = WeightFiles::open(dir)?;
        let described = models::of(&about.network, about.size, about.classes.len())?;
        let wanted = Params::elements_of(device, DType::F32, |params| described.build(params, ""))?;
        let held = files.tensors().into_iter().map(|t| t.shape.iter().product::<usize>());
        let held = held.fold(0, usize::saturating_add);
        // Checked before memory is allocated for tensors that the files do not contain.
        if wanted > held {
            return Err(Error::format(format!(
                "{}: {} for images of {:?} and {} classes has {wanted} parameters, but the weight files have {held}",
                path.display(),
                about.network,
                about.size,
                about.classes.len()
            )));
        }
        let classifier = Self::new(device, about, DType::F32, 0)?;
        classifier.load(&files)?;
        Ok(classifier)
    }

    /// Returns the number of trained values.
    pub fn parameters(&self) -> usize {
        self.params.count()
    }

    /// Returns parameters and running statistics by name.
    pub fn state(&self) -> Vec<(String, Tensor)> {
        let named = |t: &Tensor| (t.name().unwrap_or_default().to_owned(), t.clone());
        self.params.list().iter().map(named).chain(self.network.buffers()).collect()
    }

    /// Loads parameters and running statistics from files with the names of [`state`](Self::state); PyTorch's additional `num_batches_tracked` is
    /// skipped.
    ///
    /// # Errors
    /// `Format` with the tensor that is missing, unknown or of another shape; nothing is changed then.
    pub fn load(&self, files: &WeightFiles) -> Result<()> {
        self.load_tensors(&files.tensors())
    }

    /// Loads the same from tensors in memory.
    fn load_tensors(&self, given: &[TensorView<'_>]) -> Result<()> {
        let state = self.state();
        let mut found = Vec::new();
        for (name, tensor) in &state {
            match given.iter().find(|t| t.name == *name) {
                Some(data) if data.shape == tensor.dims() => found.push((tensor, data.floats()?)),
                Some(data) => {
                    return Err(Error::format(format!(
                        "{name} has shape {:?}, expected {}",
                        data.shape,
                        tensor.shape()
                    )));
                }
                None => return Err(Error::format(format!("the weights lack {name}"))),
            }
        }
        let known =
            |name: &str| name.ends_with("num_batches_tracked") || state.iter().any(|(n, _)| n == name);
        if let Some(other) = given.iter().find(|t| !known(t.name)) {
            return Err(Error::format(format!(
                "{} belongs to no layer of {}",
                other.name, self.about.network
            )));
        }
        found.iter().try_for_each(|(tensor, data)| tensor.set_f32(data))
    }

    /// Returns parameters and running statistics as f32, which represents every storage type exactly; copied from the device when their bytes are
    /// requested.
    fn planned(&self) -> Vec<TensorToWrite<'static>> {
        let plan = |(name, tensor): (String, Tensor)| {
            let (dtype, shape) = (FileDtype::F32, tensor.dims().to_vec());
            let bytes = move || tensor.detach().to_dtype(DType::F32)?.to_bytes();
            TensorToWrite { name, dtype, shape, bytes: Bytes::Later(Box::new(bytes)) }
        };
        self.state().into_iter().map(plan).collect()
    }

    /// Writes weights, as f32, and the description into a folder.
    ///
    /// # Errors
    /// `Io`.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let beside = dir.join(format!("{MODEL_FILE}.new"));
        write_planned(&beside, &self.planned(), &AtomicU64::new(0))?;
        let path = dir.join(MODEL_FILE);
        std::fs::rename(&beside, &path).map_err(|e| Error::io("renaming to", &path, &e))?;
        let path = dir.join(DESCRIPTION);
        files::replace(&path, &self.about.to_json()?).map_err(|e| Error::io("writing", &path, &e))
    }

    /// Classifies an image of bytes `(C, H, W)`; returns classes with the most likely one first.
    ///
    /// # Errors
    /// `Shape` for another number of bytes; errors of the device.
    pub fn classify(&self, image: &[u8]) -> Result<Vec<Prediction>> {
        if image.len() != self.about.size.iter().product::<usize>() {
            return Err(Error::shape(format!(
                "classify: an image of {} bytes, expected {:?} (channels, height, width)",
                image.len(),
                self.about.size
            )));
        }
        let x = self
            .scaling
            .upload(&self.device, self.params.dtype(), self.about.size, &[image], |_| (0, 0, false))?;
        let shares = no_grad(|| self.network.forward(&x, false)?.softmax(-1)?.to_vec())?;
        let classes = self.about.classes.iter().cloned();
        let mut all: Vec<Prediction> =
            classes.zip(shares).map(|(class, confidence)| Prediction { class, confidence }).collect();
        all.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
        Ok(all)
    }

    /// Classifies an image file, which is resized to the size of the training images.
    ///
    /// # Errors
    /// `Io` or `Format` with the file; errors of the device.
    pub fn classify_file(&self, path: &Path) -> Result<Vec<Prediction>> {
        self.classify(&data::picture(path, self.about.size)?)
    }
}

#[cfg(test)]
mod tests;
