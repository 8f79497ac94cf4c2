//! Training of a classifier: AdamW over shuffled batches, a test after every epoch, and resumption from checkpoints.

use super::super::data::Dataset;
use super::outcome::ClassifierOutcome;
use super::report;
use super::task::ImageTraining;
use super::watch::{TrainingWatch, TrainingWatcher};
use super::{ClassifierConfig, Diagnostics};
use crate::config::Changes;
use crate::run::{Claim, RunFolder};
use crate::train::training::{self, Run, newest, tell_changes};
use netcl_device::{Error, Result, files};
use netcl_model::checkpoint::Checkpoint;
use netcl_tensor::Device;
use std::path::Path;

/// Number of test images searched for examples in the report.
const LOOKED_AT: usize = 300;

/// Trains the network of `config` on `images`. Writes `config.toml`, `metrics.jsonl`, checkpoints, weights and `report.html` into the claimed folder.
/// `watch` is called after every step and epoch and returns the next action. The weights written are those of the last epoch.
///
/// # Errors
/// `Format` for settings out of range, or without a test image; errors of the device; `Io`.
pub fn train(
    device: &Device,
    config: &ClassifierConfig,
    images: &Dataset,
    claim: Claim,
    diagnostics: &Diagnostics,
    watch: &mut TrainingWatch<'_>,
) -> Result<ClassifierOutcome> {
    let config = config.clone().with_absolute_paths()?;
    let mut run = ImageTraining::run(device, &config, images, (diagnostics, claim.path()), None)?;
    run.training.report.open(RunFolder::create(claim, &config)?, Vec::new());
    go(&mut run, &mut TrainingWatcher::new(watch))?.outcome(run)
}

/// Resumes the run in `dir` from its newest intact checkpoint, or from the beginning if it has none. The result has the same bits as an uninterrupted
/// run. Damaged checkpoints are skipped with a warning. Everything is restored and checked first; the folder is changed only after the first step, so
/// that a run which cannot be resumed stays unchanged.
///
/// # Errors
/// `Format` if `dir` is not a run of a classifier, or all checkpoints are damaged or of other images; `Format` if `config` changes a setting that
/// must not change ([`resume_rules`](super::resume_rules)); `Io` if another process has locked the folder; those of [`train`].
pub fn resume(
    device: &Device,
    config: &ClassifierConfig,
    images: &Dataset,
    dir: &Path,
    diagnostics: &Diagnostics,
    watch: &mut TrainingWatch<'_>,
) -> Result<ClassifierOutcome> {
    let claim = RunFolder::reopen(dir)?;
    let config = config.clone().with_absolute_paths()?;
    let mut run = ImageTraining::run(device, &config, images, (diagnostics, dir), None)?;
    let changes = reopened(&mut run, dir)?;
    opened(&mut run, claim, &changes)?;
    go(&mut run, &mut TrainingWatcher::new(watch))?.outcome(run)
}

/// Restores `run` from the newest intact checkpoint of the run in `dir`; returns the changes of the settings.
///
/// # Errors
/// Errors of [`resume`].
pub(super) fn reopened(run: &mut Run<ImageTraining<'_>>, dir: &Path) -> Result<Changes> {
    let stored = ClassifierConfig::of_run(dir)?.ok_or_else(|| {
        Error::format(format!("{}: config.toml does not have a preset for images", dir.display()))
    })?;
    let Run { task, training } = run;
    let latest = newest(dir, task.config.keep)?;
    let step = latest.as_ref().map_or(0, |l| l.state.step);
    let changes = stored.with_absolute_paths()?.changes(task.config, step, task.of_epoch)?;
    if let Some(latest) = &latest {
        let checkpoint = Checkpoint::load(&latest.path)?;
        task.restore(training, &checkpoint).map_err(|e| e.context(latest.path.display()))?;
    }
    Ok(changes)
}

/// Opens the claimed folder of a restored run, and reports what changes with its next step.
///
/// # Errors
/// Errors of [`resume`].
pub(super) fn opened(run: &mut Run<ImageTraining<'_>>, claim: Claim, changes: &Changes) -> Result<()> {
    let Run { task, training } = run;
    let (step, best) = (training.progress.step, training.progress.best.map(|(_, step)| step));
    let (folder, done) = RunFolder::resume(claim, task.config, step, best)?;
    training.report.open(folder, done);
    tell_changes(changes, &training.progress);
    Ok(())
}

/// How training ended.
pub(super) struct TrainingEnd {
    stopped: bool,
    already: bool,
}

/// Trains to the end, or until `watch` stops it.
///
/// # Errors
/// Errors of [`train`].
pub(super) fn go(run: &mut Run<ImageTraining<'_>>, watch: &mut TrainingWatcher<'_>) -> Result<TrainingEnd> {
    let already = run.training.progress.is_finished();
    let stopped = if already {
        run.task.tell_start(&run.training, watch);
        false
    } else {
        run.train(watch)? == training::Outcome::Stopped
    };
    run.training.report.flush();
    Ok(TrainingEnd { stopped, already })
}

impl TrainingEnd {
    /// Returns the outcome. Writes `report.html`; if the run was finished before, only if the page is missing.
    ///
    /// # Errors
    /// Errors of the device; `Io`.
    pub fn outcome(self, run: Run<ImageTraining<'_>>) -> Result<ClassifierOutcome> {
        let Self { stopped, already } = self;
        let Run { mut task, training } = run;
        let dir = training.report.folder.path().to_owned();
        let title = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (progress, epochs) = (&training.progress, &training.report.history);
        let leads = !training.report.folder.follows();
        let old = std::fs::read_to_string(dir.join("report.html")).unwrap_or_default();
        let writes = leads && !(already && old.contains(&report::headline(epochs)));
        if writes && task.confusion.is_empty() && !epochs.is_empty() && progress.every(task.of_epoch) {
            // Only this rank is still present.
            task.confusion = task.test_part((0, 1))?.1;
        }
        let pictures = |images: &ImageTraining<'_>| {
            Ok::<_, Error>([
                images.classifier.examples(&images.data.test, LOOKED_AT)?,
                images.classifier.kernels()?,
            ])
        };
        let pictures = writes.then(|| pictures(&task)).transpose()?;
        let outcome = ClassifierOutcome {
            ranks: training.ranks.times().to_vec(),
            step: training.progress.step,
            stopped,
            already,
            confusion: task.confusion,
            epochs: training.report.history,
        };
        if let Some(pictures) = pictures {
            let page = report::html(&title, task.config, &task.classifier.about, &outcome, &pictures);
            replace(&dir, "report.html", page.as_bytes())?;
        }
        Ok(outcome)
    }
}

fn replace(dir: &Path, name: &str, content: &[u8]) -> Result<()> {
    let path = dir.join(name);
    files::replace(&path, content).map_err(|e| Error::io("writing", &path, &e))
}
