//! `netcl train`: trains a language model on text, records or token shards.

use super::train_settings::Settings;
use super::{plan, show_records, train_distributed, train_images};
use crate::context::Context;
use crate::profile;
use crate::progress::{Progress, already_finished};
use crate::reading::ReadingBar;
use clap::Args as ClapArgs;
use netcl::device::check_writable;
use netcl::dist::launched;
use netcl::prelude::*;
use netcl::train::config::{SETTINGS_COPY, SIMULATED, TrainConfig};
use netcl::train::images::classifier::{ClassifierConfig, Diagnostics};
use netcl::train::run::RunFolder;
use netcl::train::{ProfileSettings, Shares, Silent, Trainer};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Parses `--shares`.
fn shares(text: &str) -> std::result::Result<Shares, String> {
    match text {
        "equal" => return Ok(Shares::Equal),
        "speed" => return Ok(Shares::BySpeed),
        _ => {}
    }
    let weights: Option<Vec<f64>> = text.split(',').map(|part| part.trim().parse().ok()).collect();
    weights
        .map(Shares::Weights)
        .ok_or_else(|| "expected equal, speed, or a number for each device such as 3,1".into())
}

/// Headings of the flags that are not settings.
const RUN: &str = "Run";
const DEVICE: &str = "Device";
const DIAGNOSTICS: &str = "Diagnostics";

/// Train or fine-tune a language model on text, conversations and other records, or token shards.
#[derive(ClapArgs, Debug, Default)]
#[command(args_override_self = true)]
pub struct Args {
    /// TOML file with settings; flags override it.
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// Train on all of these devices, of any vendors, which share --batch; with MPI, those per machine.
    #[arg(long, value_name = "DEVICE,…", value_delimiter = ',', conflicts_with = "device", help_heading = DEVICE)]
    devices: Vec<String>,
    /// Run folder [default: runs/<preset>-<n>].
    #[arg(long, visible_alias = "save-dir", value_name = "DIR", help_heading = RUN)]
    out: Option<PathBuf>,
    /// Resume the run in this folder.
    #[arg(long, visible_alias = "load-checkpoint", value_name = "DIR", conflicts_with_all = ["out", "preset", "config"], help_heading = RUN)]
    resume: Option<PathBuf>,
    /// Resume the run in --out if it exists, on any number of devices; otherwise start it.
    #[arg(long, requires = "out", conflicts_with = "resume", help_heading = RUN)]
    elastic: bool,
    /// Abort if a rank is silent this long [default: 20 × step time, at least 20 s].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..), help_heading = DEVICE)]
    watchdog: Option<u32>,
    /// Divide batches equally, by measured speed, or as in 3,1 [default: speed if device kinds differ].
    #[arg(long, value_name = "SHARES", value_parser = shares, help_heading = DEVICE)]
    shares: Option<Shares>,
    /// Print the memory use of a training step as soon as one is captured.
    #[arg(long, help_heading = DIAGNOSTICS)]
    explain_memory: bool,
    /// Time kernels of some steps, print a table, and write a Perfetto trace [FILE: run folder/trace.json].
    #[arg(long, value_name = "FILE", num_args = 0..=1, help_heading = DIAGNOSTICS)]
    profile: Option<Option<PathBuf>>,
    /// Steps that --profile times, from the third on [default: 10].
    #[arg(long, value_name = "N", requires = "profile", value_parser = clap::value_parser!(u64).range(1..), help_heading = DIAGNOSTICS)]
    profile_steps: Option<u64>,
    /// Check every op's result, and stop at the first NaN or infinity with its op and tensor. Slow.
    #[arg(long, help_heading = DIAGNOSTICS)]
    detect_anomaly: bool,
    /// Print settings, parameters, memory and steps of the run; read the data, write nothing.
    #[arg(long, help_heading = RUN)]
    dry_run: bool,
    /// Print this many records with their masks and exit: tokens that are not trained are dimmed.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "resume", help_heading = RUN)]
    show: Option<u32>,
    /// Print the summary, or the plan of a dry run, as one JSON object on stdout.
    #[arg(long, help_heading = RUN)]
    json: bool,
}

impl Args {
    /// Returns a mistake that a parser of single flags cannot see, or `None`.
    pub fn mistake(&self) -> Option<String> {
        self.settings.mistake.clone()
    }

    /// Returns the request for several devices.
    fn distributed_request(&self) -> train_distributed::DistributedRequest<'_> {
        train_distributed::DistributedRequest {
            devices: &self.devices,
            resume: self.goes_on(),
            out: self.out.as_deref(),
            json: self.json,
            detect_anomaly: self.detect_anomaly,
            watchdog: self.watchdog.map(|seconds| Duration::from_secs(seconds.into())),
            explain_memory: self.explain_memory,
            shares: self.shares.clone(),
            profile: self.profile_settings(),
        }
    }

    /// Returns the request for a run with images; `None` for language models.
    fn images(&self) -> Result<Option<train_images::ImageRequest<'_>>> {
        let kept = match self.goes_on() {
            Some(dir) => ClassifierConfig::of_run(dir)?.map(|kept| (dir, kept)),
            None => None,
        };
        let preset = self.settings.overlay.preset.as_deref().unwrap_or_default();
        if kept.is_none() && !train_images::is_for_images(preset) {
            return match self.settings.images.keys().next() {
                Some(key) => Err(train_images::only_images(key)),
                None => Ok(None),
            };
        }
        let preset = kept.as_ref().map_or(preset, |(_, kept)| &kept.preset);
        let for_text = [
            ("config", self.config.is_some()),
            ("watchdog", self.watchdog.is_some()),
            ("show", self.show.is_some()),
        ];
        if let Some((flag, _)) = for_text.iter().find(|(_, given)| *given) {
            return Err(train_images::misplaced(flag, preset));
        }
        let diagnostics =
            Diagnostics { detect_anomaly: self.detect_anomaly, profile: self.profile_settings() };
        Ok(Some(train_images::ImageRequest {
            overlay: self.settings.overlay.clone(),
            own: self.settings.images.clone(),
            out: self.out.as_ref(),
            kept,
            dry_run: self.dry_run,
            json: self.json,
            explain_memory: self.explain_memory,
            diagnostics,
            devices: &self.devices,
            shares: self.shares.as_ref(),
        }))
    }

    fn profile_settings(&self) -> Option<ProfileSettings> {
        let (file, default) = (self.profile.clone()?, ProfileSettings::default());
        Some(ProfileSettings { file, steps: self.profile_steps.unwrap_or(default.steps), ..default })
    }

    /// Returns the run to resume.
    fn goes_on(&self) -> Option<&Path> {
        let begun = |dir: &&Path| self.elastic && dir.join("config.toml").exists();
        self.resume.as_deref().or_else(|| self.out.as_deref().filter(begun))
    }

    /// Returns the settings of the run, on a simulated or a real device.
    fn config(&self, simulated: bool) -> Result<TrainConfig> {
        let kept = self.goes_on();
        let there = |dir: &Path| ["config.toml", SETTINGS_COPY].iter().any(|name| dir.join(name).exists());
        if let Some(dir) = kept.filter(|dir| !there(dir)) {
            return Err(Error::format(format!(
                "{} is not a run folder: config.toml is missing",
                dir.display()
            )));
        }
        let mut overlay = self.settings.overlay.clone();
        if self.elastic && kept.is_some() {
            // The run's settings already include those of its preset and of --config.
            overlay.preset = None;
        }
        let mut config = match kept {
            Some(dir) => TrainConfig::of_run(dir, &overlay)?,
            None => TrainConfig::resolve_on(self.config.as_deref(), &overlay, simulated)?,
        };
        if config.data.is_empty() {
            // A folder of programs contains files of all kinds.
            (config.data, config.as_text) = (vec![own_sources()?], true);
        }
        Ok(config)
    }
}

/// Returns the default of `--data`: the working folder, if it contains text.
fn own_sources() -> Result<String> {
    let here = std::env::current_dir().map_err(|e| Error::io("finding", Path::new("."), &e))?;
    tracing::info!("no --data: training on the text files below {}", here.display());
    Ok(here.display().to_string())
}

/// Adapts the settings to the opened device: a simulated one is slow and has another default preset.
fn for_simulated(args: &Args, config: TrainConfig, device: &Device) -> Result<TrainConfig> {
    if !device.capabilities().simulated || args.goes_on().is_some() || config.preset == SIMULATED {
        return Ok(config);
    }
    let id = &device.capabilities().id;
    let usual = args.config(true)?;
    let driver = "for a real device, install an OpenCL driver; a CPU works too (Debian and Ubuntu: apt-get install pocl-opencl-icd)";
    if usual.preset != config.preset {
        tracing::info!("{id} is simulated and slow: using --preset {}", usual.preset);
    } else if usual.init.is_some() {
        tracing::warn!(
            "{id} is simulated: fine-tuning takes long on it. Use fewer --steps, a smaller --batch and a shorter --context; {driver}"
        );
    } else {
        tracing::warn!(
            "{id} is simulated: `{}` is for real devices and takes far too long on it. --preset {SIMULATED} takes a minute or two; {driver}",
            usual.preset
        );
    }
    Ok(usual)
}

/// Trains a classifier if the preset is one for images; refuses flags that it does not support.
fn of_images(args: &Args, context: &Context) -> Option<Result<()>> {
    let request = args.images().transpose()?;
    Some(request.and_then(|request| train_images::run(&request, context)))
}

/// Trains on several devices if several are named.
fn of_several(args: &Args, config: &TrainConfig, context: &Context) -> Option<Result<()>> {
    let launcher = launched(&|name| std::env::var(name).ok());
    if launcher.is_none() && args.devices.len() < 2 {
        return None;
    }
    if args.dry_run {
        let one = "--dry-run supports one device; omit --devices and mpirun";
        return Some(Err(Error::unsupported(one)));
    }
    Some(match launcher {
        Some(launcher) => train_distributed::by_mpi(&args.distributed_request(), config, &launcher, context),
        None => train_distributed::by_threads(&args.distributed_request(), config, context),
    })
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    if let Some(Some(file)) = &args.profile {
        check_writable(file)?;
    }
    if let Some(done) = of_images(args, context) {
        return done;
    }
    let config = args.config(false)?;
    if let Some(count) = args.show {
        return show_records::show(&config, count as usize, context);
    }
    if let Some(done) = of_several(args, &config, context) {
        return done;
    }
    let name = args.devices.first().unwrap_or(&config.device).clone();
    let device = context.open_device_within(&name, config.matmul_precision, config.memory_limit()?)?;
    let config = TrainConfig { device: name, ..for_simulated(args, config, &device)? };
    if args.dry_run {
        return plan::show(&config, &device, context, args.json);
    }
    let ceilings = match &args.profile {
        Some(_) => profile::ceilings(&device, config.dtype)?,
        None => None,
    };
    let goes_on = args.goes_on();
    let mut reading = ReadingBar::new(context);
    let mut watch = |p: &netcl::train::data::DataProgress| reading.show(p);
    let mut trainer = match goes_on {
        Some(dir) => Trainer::resume_watched(&device, config, dir, &mut watch)?,
        None => {
            let claim = match &args.out {
                Some(out) => RunFolder::claim(out)?,
                None => RunFolder::claim_fresh(Path::new("runs"), &config.preset)?,
            };
            context.leave_nothing_of(claim.leaves());
            Trainer::create_in(&device, config, claim, &mut watch)?
        }
    };
    drop(reading);
    if let (Some(dir), true) = (goes_on, trainer.is_finished()) {
        trainer.run(&mut Silent)?;
        return already_finished(&trainer, dir, args.json);
    }
    trainer.detect_anomaly(args.detect_anomaly);
    if let Some(profile) = args.profile_settings() {
        trainer.profile(profile)?;
    }
    let mut progress = Progress::new(context, trainer.config(), args.json, args.explain_memory);
    progress.compare_with(ceilings);
    progress.explain_nothing(&trainer, false);
    // Until this point a resumed run has nothing to lose, so a signal ends it at once.
    if !context.polite() {
        return Ok(());
    }
    let outcome = trainer.run(&mut progress).inspect_err(|_| progress.failed())?;
    progress.finish(outcome, &trainer)
}

#[cfg(test)]
mod tests;
