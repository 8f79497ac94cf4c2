//! The content of a classifier's checkpoints: weights with running statistics, the optimizer's state, description and images.

use super::record::ImageRecord;
use super::task::ImageTraining;
use super::{DESCRIPTION, Description, Epoch};
use crate::train::training::Training;
use netcl_device::{Error, Result};
use netcl_model::checkpoint::{Checkpoint, STATE_FILE, State, TensorData};
use serde_json::Value;

/// The record of the images.
const IMAGES_FILE: &str = "images.json";
/// Additional state: bits of the sum of the epoch's losses so far, and seconds of training.
const LOSSES: &str = "epoch_losses";
const ELAPSED: &str = "elapsed";

impl ImageTraining<'_> {
    /// Returns the additional files of a checkpoint.
    pub(super) fn checkpoint_files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let record = serde_json::to_vec_pretty(&self.record)
            .map_err(|e| Error::internal(format!("{IMAGES_FILE}: {e}")))?;
        Ok(vec![(DESCRIPTION.to_owned(), self.classifier.about.to_json()?), (IMAGES_FILE.to_owned(), record)])
    }

    /// Adds the position within an epoch, and the time, to a checkpoint's state.
    pub(super) fn note_place(&self, state: &mut State) {
        state.extra.insert(LOSSES.into(), self.losses.to_bits().into());
        state.extra.insert(ELAPSED.into(), self.elapsed().into());
    }

    /// Restores weights, running statistics and moments from a checkpoint of the run, whose description and images must match this task's.
    ///
    /// # Errors
    /// `Format` with the part that belongs to another run or another network; classifier and optimizer are then unusable.
    pub(super) fn restore(&mut self, training: &mut Training<Epoch>, checkpoint: &Checkpoint) -> Result<()> {
        let wrong = |name: &str, e: &dyn std::fmt::Display| Error::format(format!("{name}: {e}"));
        let about: Description =
            serde_json::from_slice(checkpoint.file(DESCRIPTION)?).map_err(|e| wrong(DESCRIPTION, &e))?;
        let written: ImageRecord =
            serde_json::from_slice(checkpoint.file(IMAGES_FILE)?).map_err(|e| wrong(IMAGES_FILE, &e))?;
        self.record.check(&written, &self.config.data)?;
        let own = &self.classifier.about;
        if about != *own {
            return Err(Error::format(format!(
                "{DESCRIPTION} is of {} for {:?} and {} classes, the run is of {} for {:?} and {}",
                about.network,
                about.size,
                about.classes.len(),
                own.network,
                own.size,
                own.classes.len()
            )));
        }
        let state = &checkpoint.state;
        training.progress.check(state)?;
        let losses = state.extra.get(LOSSES).and_then(Value::as_u64).map(f64::from_bits);
        let losses =
            losses.filter(|sum| sum.is_finite()).ok_or_else(|| wrong(STATE_FILE, &format!("no {LOSSES}")))?;
        let views: Vec<_> = checkpoint.model.iter().map(TensorData::view).collect();
        self.classifier.load_tensors(&views)?;
        training.optimizer.load_state_dict(&checkpoint.optimizer)?;
        training.progress.restore(state);
        self.losses = losses;
        self.before = state.extra.get(ELAPSED).and_then(Value::as_f64).unwrap_or(0.0);
        Ok(())
    }
}
