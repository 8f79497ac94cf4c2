//! `netcl train` on several devices: of one process, a thread each, or of the processes that an MPI launcher started.

use crate::context::Context;
use crate::progress::{Progress, already_finished};
use crate::ranks::{Failed, finish};
use crate::reading::ReadingBar;
use netcl::device::list;
use netcl::dist::{Group, Launcher, Mpi, local};
use netcl::nn::config::TrainConfig;
use netcl::nn::run::{Claim, RunFolder, StepMetrics};
use netcl::nn::train::{Observer, ProfileSettings, Silent, Trainer};
use netcl::prelude::*;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a rank waits for another one: compiling kernels takes minutes on some drivers, and ranks do not do it at the same time.
const PATIENCE: Duration = Duration::from_secs(900);

/// What was asked for, besides the run's settings.
pub struct Request<'a> {
    /// Devices, a rank each; under a launcher those of each machine.
    pub devices: &'a [String],
    /// The run to go on with.
    pub resume: Option<&'a Path>,
    /// The folder of a new run.
    pub out: Option<&'a Path>,
    /// Results as JSON.
    pub json: bool,
    /// Check every op's result.
    pub detect_anomaly: bool,
    /// Say where memory goes.
    pub explain_memory: bool,
    /// Profile these steps of the first rank.
    pub profile: Option<ProfileSettings>,
}

/// Trains as a process of those that `launcher` started.
pub fn by_mpi(
    args: &Request<'_>,
    config: &TrainConfig,
    launcher: &Launcher,
    context: &Context,
) -> Result<()> {
    let library = std::env::var_os("NETCL_MPI_LIBRARY").filter(|v| !v.is_empty()).map(PathBuf::from);
    let group = Mpi::join(Some(launcher), library.as_deref(), PATIENCE)?;
    let device = device_of(args, config, launcher.local_rank, context);
    finish(&group, train(args, config, (&group, &device), context))
}

/// The device of the process `local_rank` of this machine: of those named, or of the machine's GPUs, in turn.
fn device_of(args: &Request<'_>, config: &TrainConfig, local_rank: usize, context: &Context) -> String {
    let named = args.devices;
    if !named.is_empty() {
        return named[local_rank % named.len()].clone();
    }
    if config.device != "auto" {
        return config.device.clone();
    }
    let all = list(&context.settings).unwrap_or_default();
    let gpus: Vec<&str> = all.iter().filter(|d| !d.is_cpu()).map(|d| d.id.as_str()).collect();
    gpus.get(local_rank % gpus.len().max(1)).map_or("auto", |id| id).to_owned()
}

/// Trains on all devices of this process.
pub fn by_threads(args: &Request<'_>, config: &TrainConfig, context: &Context) -> Result<()> {
    let devices = args.devices;
    let mut ranks = local(devices.len(), PATIENCE).into_iter().zip(devices);
    let Some((leader, device)) = ranks.next() else { return Err(Error::internal("no devices")) };
    std::thread::scope(|scope| {
        let start = |(group, device): (Group, &'_ String)| {
            let device = device.clone();
            scope.spawn(move || train(args, config, (&group, &device), context))
        };
        let threads: Vec<_> = ranks.map(start).collect();
        let own = train(args, config, (&leader, device), context);
        // Those that wait for this rank learn that it has ended.
        drop(leader);
        let panicked = || Err(Failed::Own(Error::internal("a rank panicked")));
        let all =
            std::iter::once(own).chain(threads.into_iter().map(|t| t.join().unwrap_or_else(|_| panicked())));
        let errors: Vec<Error> = all.filter_map(Result::err).map(Failed::into_error).collect();
        // What failed first made the others fail.
        let cause = errors.iter().find(|e| !e.message().contains("which has ended"));
        cause.or(errors.first()).map_or(Ok(()), |e| Err(e.clone()))
    })
}

/// Ends with the run of one rank, on the device called `name`.
fn train(
    args: &Request<'_>,
    config: &TrainConfig,
    (group, name): (&Group, &str),
    context: &Context,
) -> Result<(), Failed> {
    let made = start(args, config, (group, name), context);
    let Some((mut trainer, path)) = made.map_err(Failed::Shared)? else { return Ok(()) };
    if args.resume.is_some() && trainer.is_finished() {
        let mut told = || {
            trainer.run(&mut Silent)?;
            if group.leads() { already_finished(&trainer, &path, args.json) } else { Ok(()) }
        };
        return told().map_err(Failed::Own);
    }
    trainer.detect_anomaly(args.detect_anomaly);
    if !group.leads() {
        let mut follower = Follower { context, listens: false };
        let own = |e: Error| Failed::Own(e.context(format!("rank {} on {name}", group.rank())));
        return trainer.run(&mut follower).map(drop).map_err(own);
    }
    if let Some(profile) = &args.profile {
        trainer.profile(profile.clone()).map_err(Failed::Own)?;
    }
    let mut progress = Progress::new(context, args.json, args.explain_memory);
    let outcome = trainer.run(&mut progress).inspect_err(|_| progress.failed()).map_err(Failed::Own)?;
    progress.finish(outcome, &trainer).map_err(Failed::Own)
}

/// A rank that has read its data, and the run's folder; `None` where a signal came before.
fn start(
    args: &Request<'_>,
    config: &TrainConfig,
    (group, name): (&Group, &str),
    context: &Context,
) -> Result<Option<(Trainer, PathBuf)>> {
    let device = context.open_device_with_builders(name, config.matmul_precision);
    let device = group.all_succeed(device)?;
    let (claim, path) = group.all_succeed(folder(args, config, group, context))?;
    let path = all_have(group, &path)?;
    let mut reading = ReadingBar::new(context);
    let mut watch = |p: &netcl::nn::data::Progress| match group.leads() {
        true => reading.show(p),
        false => !context.interrupted(),
    };
    let started = (claim, path.as_path(), args.resume.is_some());
    let trainer = Trainer::create_among(group, &device, config.clone(), started, &mut watch)?;
    Ok(context.polite().then_some((trainer, path)))
}

/// The run's folder, claimed by the first rank.
fn folder(
    args: &Request<'_>,
    config: &TrainConfig,
    group: &Group,
    context: &Context,
) -> Result<(Option<Claim>, PathBuf)> {
    if !group.leads() {
        return Ok((None, PathBuf::new()));
    }
    let claim = match (args.resume, args.out) {
        (Some(dir), _) => RunFolder::reopen(dir)?,
        (None, Some(out)) => RunFolder::claim(out)?,
        (None, None) => RunFolder::claim_fresh(Path::new("runs"), &config.preset)?,
    };
    if args.resume.is_none() {
        context.leave_nothing_of(claim.leaves());
    }
    let path = claim.path().to_owned();
    Ok((Some(claim), path))
}

/// The path that the first rank has.
fn all_have(group: &Group, path: &Path) -> Result<PathBuf> {
    let own =
        path.to_str().ok_or_else(|| Error::format(format!("{}: a path that is no UTF-8", path.display())));
    let all = group.all_gather_bytes(group.all_succeed(own)?.as_bytes())?;
    Ok(PathBuf::from(String::from_utf8_lossy(all.first().map_or(&[], Vec::as_slice)).into_owned()))
}

/// A rank without a display.
struct Follower<'a> {
    context: &'a Context,
    /// Whether SIGUSR1 asks for a checkpoint already.
    listens: bool,
}

impl Observer for Follower<'_> {
    fn step(&mut self, _: &StepMetrics) {
        // Not before the first step: LLVM, which PoCL compiles with, takes this signal for itself when it is called first.
        if !std::mem::replace(&mut self.listens, true)
            && let Err(e) = self.context.listen_for_saves()
        {
            tracing::warn!("SIGUSR1 writes no checkpoint: {e}");
        }
    }
    fn should_stop(&mut self) -> bool {
        self.context.interrupted()
    }
    fn should_save(&mut self) -> bool {
        self.context.take_save()
    }
}
