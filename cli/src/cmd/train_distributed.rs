//! `netcl train` on several devices: one thread per device in one process, or the processes of an MPI launcher.

use crate::context::Context;
use crate::out;
use crate::progress::{Progress, already_finished};
use crate::ranks::{Failed, finish};
use crate::reading::ReadingBar;
use netcl::device::list;
use netcl::dist::{Group, Launcher, Mpi, local};
use netcl::prelude::*;
use netcl::train::config::TrainConfig;
use netcl::train::run::{Claim, RunFolder, StepMetrics};
use netcl::train::{Observer, PATIENCE, ProfileSettings, Shares, Silent, Trainer};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Time that the other ranks of a process have to end after one failed.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Stack of a rank's thread, as large as that of a process's first thread.
const STACK: usize = 8 << 20;

/// The request, in addition to the run's settings.
pub struct DistributedRequest<'a> {
    /// Devices, one per rank; under a launcher, those of each machine.
    pub devices: &'a [String],
    /// The run to resume.
    pub resume: Option<&'a Path>,
    /// The folder of a new run.
    pub out: Option<&'a Path>,
    /// Print results as JSON.
    pub json: bool,
    /// Check every op's result.
    pub detect_anomaly: bool,
    /// Time that ranks wait for a silent one.
    pub watchdog: Option<Duration>,
    /// Print the memory use of a step.
    pub explain_memory: bool,
    /// Division of batches between the ranks.
    pub shares: Option<Shares>,
    /// Steps of the first rank to profile.
    pub profile: Option<ProfileSettings>,
}

/// Trains as one of the processes that `launcher` started.
pub fn by_mpi(
    args: &DistributedRequest<'_>,
    config: &TrainConfig,
    launcher: &Launcher,
    context: &Context,
) -> Result<()> {
    let device = device_of((args.devices, &config.device), launcher.local_rank, context);
    as_process(launcher, |group| train(args, config, (group, &device), context))
}

/// Runs `rank` in this process, which is one of those that `launcher` started.
pub fn as_process(launcher: &Launcher, rank: impl FnOnce(&Group) -> Result<(), Failed>) -> Result<()> {
    let library = std::env::var_os("NETCL_MPI_LIBRARY").filter(|v| !v.is_empty()).map(PathBuf::from);
    let group = Mpi::join(Some(launcher), library.as_deref(), PATIENCE)?;
    let told = tell_processes(&group).map_err(Failed::Own);
    finish(&group, told.and_then(|()| rank(&group)))
}

/// Reports the process of each rank: some launchers name only the process of a killed rank.
fn tell_processes(group: &Group) -> Result<()> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let own = match host.trim() {
        "" => std::process::id().to_string(),
        host => format!("{} on {host}", std::process::id()),
    };
    let all = group.all_gather_bytes(own.as_bytes())?;
    if group.leads() {
        let named = all.iter().enumerate();
        let named = named.map(|(rank, process)| format!("{rank} is {}", String::from_utf8_lossy(process)));
        tracing::info!("processes of the ranks: {}", named.collect::<Vec<_>>().join(", "));
    }
    Ok(())
}

/// Returns the device of process `local_rank` of this machine: in turn one of `--devices`, the one of `--device`, or one of the machine's GPUs.
pub fn device_of((named, one): (&[String], &str), local_rank: usize, context: &Context) -> String {
    if !named.is_empty() {
        return named[local_rank % named.len()].clone();
    }
    if one != "auto" {
        return one.to_owned();
    }
    let all = list(&context.settings).unwrap_or_default();
    let gpus: Vec<&str> = all.iter().filter(|d| !d.is_cpu()).map(|d| d.id.as_str()).collect();
    gpus.get(local_rank % gpus.len().max(1)).map_or("auto", |id| id).to_owned()
}

/// Trains on all devices of this process.
pub fn by_threads(args: &DistributedRequest<'_>, config: &TrainConfig, context: &Context) -> Result<()> {
    as_threads(args.devices, |group, device| train(args, config, (group, device), context))
}

/// Runs `rank` in a thread for each of the devices.
pub fn as_threads(
    devices: &[String],
    rank: impl Fn(&Group, &str) -> Result<(), Failed> + Sync,
) -> Result<()> {
    let rank = &rank;
    let (done, ends) = mpsc::channel();
    std::thread::scope(|scope| {
        let start = |(group, device): (Group, &'_ String)| {
            let (device, done) = (device.clone(), done.clone());
            let work = move || {
                let end = rank(&group, &device).map_err(Failed::into_error);
                // Ranks that wait for this one learn that it has ended.
                drop(group);
                let _ = done.send(end);
            };
            let thread = std::thread::Builder::new().name("netcl-rank".into()).stack_size(STACK);
            thread.spawn_scoped(scope, work).map_err(|e| Error::internal(format!("cannot start a rank: {e}")))
        };
        let ranks = local(devices.len(), PATIENCE).into_iter().zip(devices);
        let threads = ranks.map(start).collect::<Result<Vec<_>>>()?;
        drop(done);
        let ended = all_ended(&ends, threads.len());
        let panicked = threads.into_iter().filter_map(|t| t.join().err()).count();
        if panicked > 0 { Err(Error::internal("a rank panicked")) } else { ended }
    })
}

/// Waits until all ranks have ended; after one failed, does not wait for those that hang.
fn all_ended(ends: &mpsc::Receiver<Result<()>>, ranks: usize) -> Result<()> {
    let (mut errors, mut failed): (Vec<Error>, Option<Instant>) = (Vec::new(), None);
    for _ in 0..ranks {
        let end = match failed {
            None => ends.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(since) => ends.recv_timeout(SHUTDOWN_TIMEOUT.saturating_sub(since.elapsed())),
        };
        match end {
            Ok(end) => {
                errors.extend(end.err());
                failed = failed.or_else(|| (!errors.is_empty()).then(Instant::now));
            }
            // A rank panicked.
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                // A thread that hangs in a driver cannot be ended and keeps the process alive, so the process exits.
                let cause = cause(&errors).unwrap_or_else(|| Error::internal("a rank hangs"));
                out::failure(&cause);
                signal_hook::low_level::exit(i32::from(cause.kind().exit_code()));
            }
        }
    }
    cause(&errors).map_or(Ok(()), Err)
}

/// Returns the error that made the other ranks fail.
fn cause(errors: &[Error]) -> Option<Error> {
    errors.iter().find(|e| !e.message().contains("which has ended")).or(errors.first()).cloned()
}

/// Runs and ends the run of one rank, on the device called `name`.
fn train(
    args: &DistributedRequest<'_>,
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
    trainer.watchdog(args.watchdog);
    if !group.leads() {
        let mut follower = Follower { context, listens: false };
        let done = trainer.run(&mut follower);
        return done.map(drop).map_err(|e| failed(&trainer, e));
    }
    if let Some(profile) = &args.profile {
        trainer.profile(profile.clone()).map_err(Failed::Own)?;
    }
    let mut progress = Progress::new(context, trainer.config(), args.json, args.explain_memory);
    progress.explain_nothing(&trainer, false);
    let outcome = trainer.run(&mut progress).inspect_err(|_| progress.failed());
    let outcome = outcome.map_err(|e| failed(&trainer, e))?;
    progress.finish(outcome, &trainer).map_err(Failed::Own)
}

/// Returns an error that ended a run, with the other ranks that know of it.
fn failed(trainer: &Trainer, error: Error) -> Failed {
    if trainer.failed_together() { Failed::Shared(error) } else { Failed::Own(error) }
}

/// Prepares a rank: reads its data, and opens the run's folder; `None` if a signal came before.
fn start(
    args: &DistributedRequest<'_>,
    config: &TrainConfig,
    (group, name): (&Group, &str),
    context: &Context,
) -> Result<Option<(Trainer, PathBuf)>> {
    group.agree(&[
        ("the version of netcl", env!("CARGO_PKG_VERSION").into()),
        ("the number of --devices", args.devices.len().to_string()),
        ("whether a run is resumed", args.resume.is_some().to_string()),
        ("--shares", format!("{:?}", args.shares)),
    ])?;
    if let Some(shares) = &args.shares {
        shares.check(group.size() / config.pipeline.max(1))?;
    }
    let limit = group.all_succeed(config.memory_limit())?;
    let device = context.open_device_within(name, config.matmul_precision, limit);
    let device = group.all_succeed(device)?;
    let (claim, path) = group.all_succeed(folder((args.resume, args.out), &config.preset, group, context))?;
    let path = all_have(group, &path)?;
    let mut reading = ReadingBar::new(context);
    let mut watch = |p: &netcl::train::data::DataProgress| match group.leads() {
        true => reading.show(p),
        false => !context.interrupted(),
    };
    let started = (claim, path.as_path(), args.resume.is_some());
    let mut trainer = Trainer::create_distributed(group, &device, config.clone(), started, &mut watch)?;
    if let Some(shares) = &args.shares {
        trainer.shares(shares)?;
    }
    Ok(context.polite().then_some((trainer, path)))
}

/// Returns the run's folder, which the first rank claims.
pub fn folder(
    (resume, out): (Option<&Path>, Option<&Path>),
    preset: &str,
    group: &Group,
    context: &Context,
) -> Result<(Option<Claim>, PathBuf)> {
    if !group.leads() {
        return Ok((None, PathBuf::new()));
    }
    let claim = match (resume, out) {
        (Some(dir), _) => RunFolder::reopen(dir)?,
        (None, Some(out)) => RunFolder::claim(out)?,
        (None, None) => RunFolder::claim_fresh(Path::new("runs"), preset)?,
    };
    if resume.is_none() {
        context.leave_nothing_of(claim.leaves());
    }
    let path = claim.path().to_owned();
    Ok((Some(claim), path))
}

/// Returns the path of the first rank.
pub fn all_have(group: &Group, path: &Path) -> Result<PathBuf> {
    let own = path
        .to_str()
        .ok_or_else(|| Error::format(format!("{}: the path is not valid UTF-8", path.display())));
    let all = group.all_gather_bytes(group.all_succeed(own)?.as_bytes())?;
    Ok(PathBuf::from(String::from_utf8_lossy(all.first().map_or(&[], Vec::as_slice)).into_owned()))
}

/// A rank without a display.
struct Follower<'a> {
    context: &'a Context,
    /// Whether SIGUSR1 already requests a checkpoint.
    listens: bool,
}

impl Observer for Follower<'_> {
    fn step(&mut self, _: &StepMetrics) {
        // Not before the first step: LLVM, which PoCL uses to compile, installs its own handler for this signal in its first call.
        if !std::mem::replace(&mut self.listens, true)
            && let Err(e) = self.context.listen_for_saves()
        {
            tracing::warn!("SIGUSR1 cannot request a checkpoint: {e}");
        }
    }
    fn should_stop(&mut self) -> bool {
        self.context.interrupted()
    }
    fn should_save(&mut self) -> bool {
        self.context.take_save()
    }
}
