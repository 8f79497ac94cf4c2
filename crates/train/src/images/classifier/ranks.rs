//! A rank of several that train a classifier, from its start to its end.

use super::super::data::Dataset;
use super::among::Among;
use super::checkpoint::ImageRecord;
use super::outcome::Next;
use super::train::{Run, opened, reopened};
use super::{ClassifierConfig, Diagnostics, Epoch, Outcome, Progress};
use crate::run::{Claim, RunFolder};
use crate::train::Shares;
use netcl_device::{Error, Result};
use netcl_dist::Group;
use netcl_tensor::Device;
use std::path::Path;

/// Why a rank's training ended.
#[derive(Debug)]
pub struct Failed {
    /// What happened.
    pub error: Error,
    /// Whether every rank has this error.
    pub shared: bool,
}

/// A rank of several: the group, its device, and how batches are divided among them; where nobody says, equally among devices of one kind, else by
/// their speed.
pub type Rank<'a> = (&'a Group, &'a Device, Option<&'a Shares>);

/// Trains as one of the ranks of a group, each with a device of its own: as [`train`](super::train) does, in the folder that rank 0 has claimed and
/// all of them name, or as [`resume`](super::resume) does. Rank 0 alone writes. `watch` is called at every rank; what one asks for, all do.
///
/// # Errors
/// As [`train`](super::train) and [`resume`](super::resume); `Format` where the ranks do not agree about the run, have fewer images than
/// ranks, or other shares than [`Shares::check`] takes; `Memory`, at every rank, where they have no room for a step together.
pub fn train_among(
    rank: Rank<'_>,
    config: &ClassifierConfig,
    images: &Dataset,
    (claim, path, resume): (Option<Claim>, &Path, bool),
    diagnostics: &Diagnostics,
    watch: &mut dyn FnMut(Progress<'_>) -> Next,
) -> std::result::Result<Outcome, Failed> {
    let shared = |error| Failed { error, shared: true };
    let config = rank.0.all_succeed(config.clone().with_absolute_paths()).map_err(shared)?;
    let (run, folder) = begun(rank, &config, images, (claim, path, resume), diagnostics).map_err(shared)?;
    let mut together = false;
    run.go_together(folder, watch, &mut together).map_err(|error| Failed { error, shared: together })
}

/// A rank that is ready to train, at every rank or none.
fn begun<'a>(
    (group, device, shares): Rank<'a>,
    config: &'a ClassifierConfig,
    images: &'a Dataset,
    (claim, path, resume): (Option<Claim>, &Path, bool),
    diagnostics: &Diagnostics,
) -> Result<(Run<'a>, RunFolder<Epoch>)> {
    let (about, graph) = ((config, images.train.len()), diagnostics.graph(config.graph));
    let among = Among::start((group, device), about, shares, graph)?;
    let mut run =
        group.all_succeed(Run::new(device, config, images, diagnostics, Some(among.places().len())))?;
    let restored = match resume {
        true => reopened(&mut run, path).map(Some),
        false => Ok(None),
    };
    let restored = group.all_succeed(restored)?;
    agree(group, config, &run)?;
    run.among = Some(among);
    for (_, tensor) in run.classifier.state() {
        group.broadcast_tensor(&tensor, 0)?;
    }
    let folder = match (claim, restored) {
        (None, _) => Ok(RunFolder::follow(path)),
        (Some(claim), None) => RunFolder::create(claim, config),
        (Some(claim), Some(changes)) => opened(&mut run, claim, changes),
    };
    Ok((run, group.all_succeed(folder)?))
}

/// Checks that all ranks run the same run.
fn agree(group: &Group, config: &ClassifierConfig, run: &Run<'_>) -> Result<()> {
    // Each rank has a device of its own, and may find the same images elsewhere.
    let same = ClassifierConfig { device: String::new(), data: String::new(), ..config.clone() };
    let json = |e| Error::internal(format!("settings as JSON: {e}"));
    let images = |record: &ImageRecord| serde_json::to_string(record);
    group.agree(&[
        ("the version of netcl", env!("CARGO_PKG_VERSION").into()),
        ("the configuration", serde_json::to_string(&same).map_err(json)?),
        ("the images", images(&run.record).map_err(json)?),
        ("the step to go on from", run.place.step.to_string()),
    ])
}
