//! Content of a classifier's checkpoints: weights with running statistics, the optimizer's state, description and images.

use super::super::data::{Dataset, Images};
use super::{Classifier, ClassifierConfig, DESCRIPTION, Description};
use crate::data::Position;
use crate::optim::Optimizer;
use netcl_device::{Error, Result};
use netcl_model::checkpoint::{Checkpoint, Plan, Rng, STATE_FILE, State, TensorData};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The record of the images.
const IMAGES_FILE: &str = "images.json";
/// Further state: bits of the sum of the epoch's losses so far, and seconds of training.
const LOSSES: &str = "epoch_losses";
const ELAPSED: &str = "elapsed";

/// What a run learns from and is tested with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ImageRecord {
    /// Channels, height and width.
    size: [usize; 3],
    classes: usize,
    train: usize,
    test: usize,
    /// BLAKE3 of all classes, labels and pixels.
    blake3: String,
}

impl ImageRecord {
    pub fn new(images: &Dataset) -> Self {
        let mut hasher = blake3::Hasher::new();
        let mut add = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        images.classes.iter().for_each(|class| add(class.as_bytes()));
        for Images { pixels, labels, .. } in [&images.train, &images.test] {
            add(bytemuck::cast_slice(labels));
            add(pixels);
        }
        Self {
            size: images.train.size,
            classes: images.classes.len(),
            train: images.train.len(),
            test: images.test.len(),
            blake3: hasher.finalize().to_hex().to_string(),
        }
    }

    fn said(&self) -> String {
        let [c, h, w] = self.size;
        format!("{} and {} for the test, {c} x {h} x {w}, {} classes", self.train, self.test, self.classes)
    }

    /// `Format` where the run in a checkpoint learns from other images.
    fn check(&self, written: &Self, data: &str) -> Result<()> {
        if self == written {
            return Ok(());
        }
        let how = if self.said() == written.said() { "their content differs".into() } else { self.said() };
        Err(Error::format(format!(
            "the images of {data} are not those that the run learns from ({}): {how}. Bring them back, name where they are with --data, or start \
             another run with --out",
            written.said()
        )))
    }
}

/// Where a run is, beside its weights and the optimizer's state.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Place {
    /// Optimizer steps done.
    pub step: u64,
    /// Sum of the losses of those of the epoch that is not done.
    pub losses: f64,
    /// Seconds of training over all sessions.
    pub elapsed: f64,
    /// Loss of the test images after the last epoch.
    pub test_loss: Option<f64>,
    /// Lowest of these, and the step of it.
    pub best: Option<(f64, u64)>,
}

/// The checkpoint of a run; its tensors are still on the device.
pub(super) fn plan(
    classifier: &Classifier,
    optimizer: &Optimizer,
    (config, images): (&ClassifierConfig, &ImageRecord),
    place: &Place,
) -> Result<Plan<'static>> {
    let record =
        serde_json::to_vec_pretty(images).map_err(|e| Error::internal(format!("{IMAGES_FILE}: {e}")))?;
    let files = vec![(DESCRIPTION.to_owned(), classifier.about.to_json()?), (IMAGES_FILE.to_owned(), record)];
    let mut state = State::default();
    state.step = place.step;
    state.position = position(config, place.step);
    // Whatever is drawn is a function of the seed, the epoch and the step.
    state.rng = Rng { seed: config.seed, counter: place.step };
    state.val_loss = place.test_loss;
    state.best_loss = place.best.map(|(loss, _)| loss);
    state.best_step = place.best.map(|(_, step)| step);
    state.extra.insert(LOSSES.into(), place.losses.to_bits().into());
    state.extra.insert(ELAPSED.into(), place.elapsed.into());
    Ok(Plan {
        state,
        model: classifier.planned(),
        optimizer: optimizer.planned_state()?,
        optimizer_files: 0,
        files,
    })
}

fn position(config: &ClassifierConfig, step: u64) -> Position {
    Position { seed: config.seed, step, micro: 0 }
}

/// Restores weights, running statistics and moments from a checkpoint of the run, whose description and images are `classifier`'s and `images`.
///
/// # Errors
/// `Format` with what belongs to another run or another network; nothing of use is left of classifier and optimizer then.
pub(super) fn restore(
    checkpoint: &Checkpoint,
    classifier: &Classifier,
    optimizer: &mut Optimizer,
    (config, images, steps): (&ClassifierConfig, &ImageRecord, u64),
) -> Result<Place> {
    let wrong = |name: &str, e: &dyn std::fmt::Display| Error::format(format!("{name}: {e}"));
    let about: Description =
        serde_json::from_slice(checkpoint.file(DESCRIPTION)?).map_err(|e| wrong(DESCRIPTION, &e))?;
    let written: ImageRecord =
        serde_json::from_slice(checkpoint.file(IMAGES_FILE)?).map_err(|e| wrong(IMAGES_FILE, &e))?;
    images.check(&written, &config.data)?;
    if about != classifier.about {
        return Err(Error::format(format!(
            "{DESCRIPTION} is of {} for {:?} and {} classes, the run is of {} for {:?} and {}",
            about.network,
            about.size,
            about.classes.len(),
            classifier.about.network,
            classifier.about.size,
            classifier.about.classes.len()
        )));
    }
    let state = &checkpoint.state;
    // The checksum is valid, but another program could have written the file.
    let expected = position(config, state.step);
    if state.step > steps || state.position != expected {
        return Err(Error::format(format!(
            "{STATE_FILE} is of step {} and {:?}, expected {expected:?} and at most step {steps}",
            state.step, state.position
        )));
    }
    let losses = state.extra.get(LOSSES).and_then(Value::as_u64).map(f64::from_bits);
    let losses =
        losses.filter(|sum| sum.is_finite()).ok_or_else(|| wrong(STATE_FILE, &format!("no {LOSSES}")))?;
    let views: Vec<_> = checkpoint.model.iter().map(TensorData::view).collect();
    classifier.load_tensors(&views)?;
    optimizer.load_state_dict(&checkpoint.optimizer)?;
    Ok(Place {
        step: state.step,
        losses,
        elapsed: state.extra.get(ELAPSED).and_then(Value::as_f64).unwrap_or(0.0),
        test_loss: state.val_loss,
        best: state.best_loss.zip(state.best_step),
    })
}
