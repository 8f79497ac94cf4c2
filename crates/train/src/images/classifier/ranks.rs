//! One of several ranks that train a classifier, from start to end.

use super::super::data::Dataset;
use super::distributed::start;
use super::outcome::Next;
use super::task::ImageTraining;
use super::train::{go, opened, reopened};
use super::watch::TrainingWatcher;
use super::{ClassifierConfig, ClassifierOutcome, Diagnostics, TrainingProgress};
use crate::run::{Claim, RunFolder};
use crate::train::Shares;
use crate::train::training::{Run, Task, agree};
use netcl_device::{Error, Result};
use netcl_dist::Group;
use netcl_tensor::Device;
use std::path::Path;

/// Why a rank's training ended.
#[derive(Debug)]
pub struct Failed {
    /// The error.
    pub error: Error,
    /// Whether every rank has this error.
    pub shared: bool,
}

/// One of several ranks: the group, its device, and the division of batches. Without a division, devices of one kind get equal parts, and others get
/// parts by speed.
pub type Rank<'a> = (&'a Group, &'a Device, Option<&'a Shares>);

/// Trains as one of the ranks of a group, each with its own device. Like [`train`](super::train), it uses the folder that rank 0 has claimed and all
/// ranks name; or it continues like [`resume`](super::resume). Only rank 0 writes. `watch` is called on every rank; all ranks execute the request of
/// one.
///
/// # Errors
/// Errors of [`train`](super::train) and [`resume`](super::resume); `Format` if the ranks do not agree about the run, have fewer images than ranks,
/// or invalid shares ([`Shares::check`]); `Memory`, on every rank, if together they lack memory for a step.
pub fn train_distributed(
    rank: Rank<'_>,
    config: &ClassifierConfig,
    images: &Dataset,
    (claim, path, resume): (Option<Claim>, &Path, bool),
    diagnostics: &Diagnostics,
    watch: &mut dyn FnMut(TrainingProgress<'_>) -> Next,
) -> std::result::Result<ClassifierOutcome, Failed> {
    let shared = |error| Failed { error, shared: true };
    let config = rank.0.all_succeed(config.clone().with_absolute_paths()).map_err(shared)?;
    let mut run = begun(rank, &config, images, (claim, path, resume), diagnostics).map_err(shared)?;
    let ended = go(&mut run, &mut TrainingWatcher::new(watch));
    let together = run.training.ranks.failed_together;
    let outcome = ended.and_then(|ended| ended.outcome(run));
    outcome.map_err(|error| Failed { error, shared: together })
}

/// Prepares a rank for training, on every rank or on none.
fn begun<'a>(
    (group, device, division): Rank<'a>,
    config: &'a ClassifierConfig,
    images: &'a Dataset,
    (claim, path, resume): (Option<Claim>, &Path, bool),
    diagnostics: &Diagnostics,
) -> Result<Run<ImageTraining<'a>>> {
    let parallel = start((group, device), (config, images.train.len()), division)?;
    let made = ImageTraining::run(device, config, images, (diagnostics, path), Some(&parallel));
    let mut run = group.all_succeed(made)?;
    let restored = match resume {
        true => reopened(&mut run, path).map(Some),
        false => Ok(None),
    };
    let restored = group.all_succeed(restored)?;
    let record = serde_json::to_string(&run.task.record).map_err(as_json)?;
    agree(group, settings(config)?, ("the images", record), run.training.progress.step)?;
    run.training.ranks.parallel = Some(parallel);
    run.task.alike().iter().try_for_each(|tensor| group.broadcast_tensor(tensor, 0))?;
    // Other ranks only follow the folder of the run.
    let opened = match (claim, restored) {
        (None, _) => Ok(()),
        (Some(claim), None) => {
            RunFolder::create(claim, config).map(|folder| run.training.report.open(folder, Vec::new()))
        }
        (Some(claim), Some(changes)) => opened(&mut run, claim, &changes),
    };
    group.all_succeed(opened)?;
    Ok(run)
}

/// Returns the settings that all ranks share. Devices differ, and the same images may be in different folders.
fn settings(config: &ClassifierConfig) -> Result<String> {
    let same = ClassifierConfig { device: String::new(), data: String::new(), ..config.clone() };
    serde_json::to_string(&same).map_err(as_json)
}

fn as_json(e: serde_json::Error) -> Error {
    Error::internal(format!("cannot convert the settings to JSON: {e}"))
}
