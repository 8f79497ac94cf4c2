//! `netcl train` with a preset for images: a classifier instead of a language model.

use super::train_distributed;
use crate::context::Context;
use crate::progress::{rank_json, tell_ranks};
use crate::ranks::Failed;
use crate::{out, profile, shell};
use indicatif::ProgressBar;
use netcl::device::counted;
use netcl::dist::{Group, Launcher, launched};
use netcl::kernel::ceiling::Ceilings;
use netcl::prelude::*;
use netcl::train::Shares;
use netcl::train::config::{Overlay, Setting, TaskKind};
use netcl::train::images::classifier::{
    self, Classifier, ClassifierConfig, ClassifierOutcome, Description, Diagnostics, Epoch, Next, PRESETS,
    TrainingProgress, resume, train, train_distributed as train_ranks,
};
use netcl::train::images::data::Dataset;
use netcl::train::run::{Claim, RunFolder};
use netcl::train::settings;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Returns the settings of `netcl train` that classifiers share.
fn shared() -> impl Iterator<Item = &'static Setting> {
    settings::all().filter(|row| row.is_flag && row.resume(TaskKind::Images).is_some())
}

/// Returns the error for a setting that only classifiers have.
pub fn only_images(key: &str) -> Error {
    Error::format(format!("--{} is for presets of images; language models have none", key.replace('_', "-")))
}

/// Flags of `netcl train` that are not settings and that classifiers support.
const FLAGS: [&str; 11] = [
    "out",
    "resume",
    "elastic",
    "explain-memory",
    "profile",
    "profile-steps",
    "detect-anomaly",
    "dry-run",
    "json",
    "devices",
    "shares",
];

/// The request for a run with images.
#[derive(Debug)]
pub struct ImageRequest<'a> {
    pub overlay: Overlay,
    /// Settings that only classifiers have.
    pub own: toml::Table,
    pub out: Option<&'a PathBuf>,
    /// The run to resume, and its settings.
    pub kept: Option<(&'a Path, ClassifierConfig)>,
    pub dry_run: bool,
    pub json: bool,
    /// Print the memory use of a step.
    pub explain_memory: bool,
    pub diagnostics: Diagnostics,
    /// Devices, one per rank; under a launcher, those of each machine.
    pub devices: &'a [String],
    /// Division of batches between them.
    pub shares: Option<&'a Shares>,
}

/// Returns the error for a flag that classifiers do not support.
pub fn misplaced(flag: &str, preset: &str) -> Error {
    let taken: Vec<String> =
        shared().map(Setting::flag).chain(FLAGS.map(String::from)).map(|flag| format!("--{flag}")).collect();
    let (last, others) = taken.split_last().map_or(("", [].as_slice()), |(last, others)| (last, others));
    Error::format(format!(
        "--{flag} is for language models, and the preset {preset} is for images; it takes {} and {last}",
        others.join(", ")
    ))
}

/// Returns whether a preset is one for images.
pub fn is_for_images(preset: &str) -> bool {
    PRESETS.contains(&preset)
}

/// Returns the settings of the run.
pub fn config(request: &ImageRequest<'_>) -> Result<ClassifierConfig> {
    let overlay = &request.overlay;
    let preset = match &request.kept {
        Some((_, kept)) => &kept.preset,
        None => overlay.preset.as_deref().unwrap_or_default(),
    };
    let given = toml::Table::try_from(overlay)
        .map_err(|e| Error::internal(format!("cannot convert the settings to a table: {e}")))?;
    if let Some(other) = given.keys().find(|key| !shared().any(|setting| setting.name == **key)) {
        return Err(misplaced(&other.replace('_', "-"), preset));
    }
    let base = match &request.kept {
        Some((_, kept)) => kept.clone(),
        None => ClassifierConfig::preset(preset)?,
    };
    if !matches!((overlay.data.as_deref(), &request.kept), (Some([_]), _) | (None, Some(_))) {
        return Err(Error::format(format!(
            "the preset {preset} needs one folder of images: --data DIR, with IDX files, CIFAR binaries or a folder of images per class"
        )));
    }
    let mut config = base.overridden(overlay, request.own.clone())?;
    if overlay.min_lr.is_none() {
        config.min_lr = config.min_lr.min(config.lr);
    }
    config.validate()?;
    Ok(config)
}

/// Runs the command.
pub fn run(request: &ImageRequest<'_>, context: &Context) -> Result<()> {
    let config = config(request)?;
    let launcher = launched(&|name| std::env::var(name).ok());
    if launcher.is_some() || request.devices.len() > 1 {
        return of_several(request, &config, launcher.as_ref(), context);
    }
    let device = request.devices.first().unwrap_or(&config.device).clone();
    let config = ClassifierConfig { device, ..config };
    let images = Dataset::read(Path::new(&config.data), config.test_part)?;
    tell_images(&config, &images);
    let device = context.open_device_with(&config.device, MatmulPrecision::default())?;
    tell_plan(&config, &device.capabilities().id);
    if request.dry_run {
        return planned(&device, &config, &images, request.json);
    }
    let ceilings = match &request.diagnostics.profile {
        Some(_) => profile::ceilings(&device, config.dtype)?,
        None => None,
    };
    let (dir, claim) = match (&request.kept, request.out) {
        (Some((dir, _)), _) => (dir.to_path_buf(), None),
        (None, Some(out)) => (out.clone(), Some(RunFolder::claim(out)?)),
        (None, None) => {
            let claim = RunFolder::claim_fresh(Path::new("runs"), &config.preset)?;
            (claim.path().to_owned(), Some(claim))
        }
    };
    if let Some(claim) = &claim {
        context.leave_nothing_of(claim.leaves());
    }
    if !context.polite() {
        return Ok(());
    }
    let began = Instant::now();
    let mut view = View::new(context, &dir, config.epochs, (request.explain_memory, ceilings));
    let mut watch = |progress: TrainingProgress<'_>| view.show(progress);
    let outcome = match claim {
        Some(claim) => train(&device, &config, &images, claim, &request.diagnostics, &mut watch),
        None => resume(&device, &config, &images, &dir, &request.diagnostics, &mut watch),
    };
    view.bar.finish_and_clear();
    let outcome = outcome.inspect_err(|_| view.failed())?;
    if view.explain_memory && !outcome.already {
        out::note("--explain-memory: no step was captured as a graph");
    }
    finish(&dir, (&config, &outcome), began.elapsed(), request.json)
}

/// Reports the training images.
fn tell_images(config: &ClassifierConfig, images: &Dataset) {
    let [channels, height, width] = images.train.size;
    out::note(&format!(
        "{}: {} training images, {} test images, {} classes, {channels} x {height} x {width}",
        config.data,
        images.train.len(),
        images.test.len(),
        images.classes.len()
    ));
}

/// Reports the model and its device or devices.
fn tell_plan(config: &ClassifierConfig, devices: &str) {
    out::note(&format!(
        "{} in {} on {devices}: {} epochs of batches of {}",
        config.network, config.dtype, config.epochs, config.batch
    ));
}

/// Trains on several devices: those of this process, or as one of the processes that `launcher` started.
fn of_several(
    request: &ImageRequest<'_>,
    config: &ClassifierConfig,
    launcher: Option<&Launcher>,
    context: &Context,
) -> Result<()> {
    if request.dry_run {
        return Err(Error::unsupported("--dry-run supports one device; omit --devices and mpirun"));
    }
    let rank = |group: &Group, name: &str| rank(request, config, (group, name), context);
    match launcher {
        Some(launcher) => {
            let named = (request.devices, config.device.as_str());
            let device = train_distributed::device_of(named, launcher.local_rank, context);
            train_distributed::as_process(launcher, |group| rank(group, &device))
        }
        None => train_distributed::as_threads(request.devices, rank),
    }
}

/// Runs one rank, on the device called `name`.
fn rank(
    request: &ImageRequest<'_>,
    config: &ClassifierConfig,
    (group, name): (&Group, &str),
    context: &Context,
) -> Result<(), Failed> {
    let begun = begin(request, config, (group, name), context).map_err(Failed::Shared)?;
    let Some((images, device, claim, dir)) = begun else { return Ok(()) };
    let again = request.kept.is_some();
    let place = (claim, dir.as_path(), again);
    let failed =
        |e: classifier::Failed| if e.shared { Failed::Shared(e.error) } else { Failed::Own(e.error) };
    if !group.leads() {
        let mut listening = false;
        let diagnostics = Diagnostics { profile: None, ..request.diagnostics.clone() };
        let mut watch = |progress: TrainingProgress<'_>| follow(&progress, context, &mut listening);
        let done =
            train_ranks((group, &device, request.shares), config, &images, place, &diagnostics, &mut watch);
        return done.map(drop).map_err(failed);
    }
    let began = Instant::now();
    let mut view = View::new(context, &dir, config.epochs, (request.explain_memory, None));
    let mut watch = |progress: TrainingProgress<'_>| view.show(progress);
    let outcome = train_ranks(
        (group, &device, request.shares),
        config,
        &images,
        place,
        &request.diagnostics,
        &mut watch,
    );
    view.bar.finish_and_clear();
    let outcome = outcome.inspect_err(|_| view.failed()).map_err(failed)?;
    finish(&dir, (config, &outcome), began.elapsed(), request.json).map_err(Failed::Own)
}

/// Inputs of a rank: images, its device, and the run's folder, which the first rank claims; `None` if a signal came before.
type Begun = (Dataset, Device, Option<Claim>, PathBuf);

fn begin(
    request: &ImageRequest<'_>,
    config: &ClassifierConfig,
    (group, name): (&Group, &str),
    context: &Context,
) -> Result<Option<Begun>> {
    let kept = request.kept.as_ref().map(|(dir, _)| *dir);
    group.agree(&[
        ("the number of --devices", request.devices.len().to_string()),
        ("whether a run is resumed", kept.is_some().to_string()),
        ("--shares", format!("{:?}", request.shares)),
    ])?;
    request.shares.map_or(Ok(()), |shares| shares.check(group.size()))?;
    let images = group.all_succeed(Dataset::read(Path::new(&config.data), config.test_part))?;
    let device = group.all_succeed(context.open_device_with(name, MatmulPrecision::default()))?;
    let ids = group.all_gather_bytes(device.capabilities().id.as_bytes())?;
    if group.leads() {
        tell_images(config, &images);
        let ids: Vec<_> = ids.iter().map(|id| String::from_utf8_lossy(id)).collect();
        tell_plan(config, &format!("{} ranks ({})", ids.len(), ids.join(", ")));
    }
    let out = request.out.map(PathBuf::as_path);
    let folder = train_distributed::folder((kept, out), &config.preset, group, context);
    let (claim, dir) = group.all_succeed(folder)?;
    let dir = train_distributed::all_have(group, &dir)?;
    Ok(context.polite().then_some((images, device, claim, dir)))
}

/// Returns the requests of a rank without a display.
fn follow(progress: &TrainingProgress<'_>, context: &Context, listening: &mut bool) -> Next {
    if !matches!(progress, TrainingProgress::Step { .. } | TrainingProgress::Epoch(_)) {
        return Next::GoOn;
    }
    // Not earlier: see `View::show`.
    if !std::mem::replace(listening, true)
        && let Err(e) = context.listen_for_saves()
    {
        tracing::warn!("SIGUSR1 cannot request a checkpoint: {e}");
    }
    match (context.interrupted(), context.take_save()) {
        (true, _) => Next::Stop,
        (_, true) => Next::Save,
        _ => Next::GoOn,
    }
}

/// Describes a run: its settings, parameters and steps.
fn planned(device: &Device, config: &ClassifierConfig, images: &Dataset, json: bool) -> Result<()> {
    let about = Description::of(config, images);
    let parameters = Classifier::new(device, about, config.dtype, config.seed)?.parameters();
    let steps = config.steps_of_epoch(images.train.len());
    let all = steps.saturating_mul(config.epochs);
    if json {
        let settings = serde_json::to_value(config);
        return out::json(&serde_json::json!({
            "config": settings.map_err(|e| Error::internal(format!("cannot convert the settings to JSON: {e}")))?,
            "device": device.capabilities().id,
            "parameters": parameters,
            "training_images": images.train.len(),
            "test_images": images.test.len(),
            "classes": images.classes,
            "steps_of_epoch": steps,
            "steps": all,
        }));
    }
    let settings = toml::to_string(config)
        .map_err(|e| Error::internal(format!("cannot convert the settings to TOML: {e}")))?;
    out::result(settings.trim_end())?;
    let steps = counted(steps, "step");
    out::result(&format!("{parameters} parameters; {steps} per epoch, {all} in total"))
}

/// The display of a run.
struct View<'a> {
    context: &'a Context,
    dir: &'a Path,
    epochs: u64,
    bar: ProgressBar,
    said: Instant,
    /// Whether signals that request a checkpoint are handled.
    listening: bool,
    /// Whether a signal requested the next checkpoint.
    asked: bool,
    /// Whether memory use is still to be printed.
    explain_memory: bool,
    /// Peak rates that a profile compares kernels with.
    ceilings: Option<Ceilings>,
}

impl<'a> View<'a> {
    fn new(
        context: &'a Context,
        dir: &'a Path,
        epochs: u64,
        (explain_memory, ceilings): (bool, Option<Ceilings>),
    ) -> Self {
        let bar = out::progress(context.live(), 0, "steps");
        let said = Instant::now();
        Self { context, dir, epochs, bar, said, listening: false, asked: false, explain_memory, ceilings }
    }

    fn say(&self, line: &str) {
        self.bar.suspend(|| out::note(line));
    }

    fn show(&mut self, progress: TrainingProgress<'_>) -> Next {
        match progress {
            TrainingProgress::Started { from_step, steps } => {
                self.bar.set_length(steps);
                self.bar.set_position(from_step);
                let again = if from_step > 0 { format!(", from step {from_step}") } else { String::new() };
                self.say(&format!("run folder {}{again}", self.dir.display()));
            }
            TrainingProgress::Epoch(epoch) => self.say(&epoch_line(epoch, self.epochs)),
            TrainingProgress::Step { step, steps, epoch, loss, images_per_s } => {
                // Not earlier: LLVM, which PoCL uses to compile, installs its own handler for this signal in its first call.
                if !std::mem::replace(&mut self.listening, true)
                    && let Err(e) = self.context.listen_for_saves()
                {
                    tracing::warn!("SIGUSR1 cannot request a checkpoint: {e}");
                }
                self.bar.set_position(step);
                self.bar.set_message(format!("loss {loss:.4}, {images_per_s:.0} images/s"));
                // Prints progress within long epochs if no bar is shown.
                if !self.context.live() && self.said.elapsed() > Duration::from_secs(15) {
                    self.said = Instant::now();
                    self.say(&format!(
                        "step {step}/{steps} of epoch {epoch}: loss {loss:.4}, {images_per_s:.0} images/s"
                    ));
                }
            }
            TrainingProgress::Saved { step, path } if std::mem::take(&mut self.asked) => {
                self.say(&format!("step {step}: checkpoint {}", path.display()));
            }
            TrainingProgress::MemoryExplained(text) => {
                if std::mem::take(&mut self.explain_memory) {
                    self.say(text.trim_end());
                }
            }
            TrainingProgress::Profiled(found) => self.say(&profile::summary(found, self.ceilings)),
            TrainingProgress::Saved { step, path } => {
                tracing::debug!("step {step}: checkpoint {}", path.display())
            }
        }
        if self.context.interrupted() {
            return Next::Stop;
        }
        // Only where the answer has an effect, because a request is consumed when read.
        let heeded = matches!(progress, TrainingProgress::Step { .. } | TrainingProgress::Epoch(_));
        if heeded && self.context.take_save() {
            self.asked = true;
            return Next::Save;
        }
        Next::GoOn
    }

    /// Reports what remains of a failed run.
    fn failed(&self) {
        if self.dir.join("checkpoints").join("last").exists() {
            let (program, folder) = (shell::program(), shell::path(self.dir));
            out::note(&format!("resume from the last checkpoint with: {program} train --resume {folder}"));
        }
    }
}

fn epoch_line(e: &Epoch, epochs: u64) -> String {
    format!(
        "epoch {}/{epochs}: loss {:.4}, test loss {:.4}, accuracy {:.2} %, {:.0} images/s, {:.0} s",
        e.epoch,
        e.loss,
        e.test_loss,
        100.0 * e.accuracy,
        e.images_per_s,
        e.elapsed
    )
}

fn finish(
    dir: &Path,
    (config, outcome): (&ClassifierConfig, &ClassifierOutcome),
    took: Duration,
    json: bool,
) -> Result<()> {
    let last = outcome.epochs.last();
    if json {
        return out::json(&serde_json::json!({
            "run": dir,
            "outcome": if outcome.stopped { "stopped" } else { "finished" },
            "already": outcome.already,
            "epochs": outcome.epochs.len(),
            "steps": outcome.step,
            "loss": last.map(|e| e.loss),
            "test_loss": last.map(|e| e.test_loss),
            "accuracy": last.map(|e| e.accuracy),
            "images_per_s": last.map(|e| e.images_per_s),
            "devices": outcome.ranks.len().max(1),
            "ranks": outcome.ranks.iter().map(rank_json).collect::<Vec<_>>(),
            "seconds": took.as_secs_f64(),
        }));
    }
    tell_ranks(&outcome.ranks);
    let (program, folder) = (shell::program(), shell::path(dir));
    let accuracy = last
        .map_or(String::new(), |e| format!("accuracy {:.2} % after {} epochs", 100.0 * e.accuracy, e.epoch));
    let steps = counted(outcome.step, "step");
    let report = dir.join("report.html");
    let dir = dir.display();
    if outcome.already {
        out::result(&format!("{dir} is finished: all {steps} are done, {accuracy}; nothing was changed"))?;
        let more = config.epochs.saturating_mul(2);
        return out::result(&format!(
            "train more epochs with: {program} train --resume {folder} --epochs {more}"
        ));
    }
    let seconds = took.as_secs_f64();
    if outcome.stopped {
        let accuracy = if accuracy.is_empty() { accuracy } else { format!(", {accuracy}") };
        out::result(&format!("{dir}: stopped after {steps}{accuracy}, {seconds:.0} s"))?;
        return out::result(&format!("resume with: {program} train --resume {folder}"));
    }
    out::result(&format!("{dir}: {accuracy}, {seconds:.0} s; the report is {}", report.display()))
}
