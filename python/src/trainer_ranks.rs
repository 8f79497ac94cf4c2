//! Training runs on one or several ranks: one per thread of this process, or this process as a rank of an MPI group.

use crate::device::{by_name, opened_again};
use netcl::device::Error;
use netcl::dist::{Group, local};
use netcl::prelude::{Device, Result};
use netcl::train::config::{Overlay, TrainConfig};
use netcl::train::data::DataWatch;
use netcl::train::run::{Claim, RunFolder};
use netcl::train::{Observer, Outcome, PATIENCE, Shares, Trainer};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread::{Builder, ScopedJoinHandle};

/// Stack of a rank's thread, as large as that of a process's first thread.
const STACK: usize = 8 << 20;

/// Resolves the settings of a run: given settings override the file, which overrides the preset.
fn resolved(given: &Overlay, file: Option<&Path>) -> Result<(TrainConfig, Device)> {
    let mut config = TrainConfig::resolve(file, given)?;
    let device = by_name(Some(&config.device))?;
    if device.capabilities().simulated {
        config = TrainConfig::resolve_on(file, given, true)?;
    }
    if config.data.is_empty() {
        return Err(Error::format("a run needs data: set `data` to files, folders or patterns"));
    }
    Ok((config, device))
}

/// The request for a run.
pub struct Beginning<'a> {
    /// Settings by name.
    pub given: &'a Overlay,
    /// File with settings.
    pub file: Option<&'a Path>,
    /// Folder of the run.
    pub out: Option<&'a Path>,
    /// Whether to continue the run in `out`.
    pub resume: bool,
}

impl Beginning<'_> {
    /// Returns settings and device, of the resumed run or of a new one.
    fn resolved(&self) -> Result<(TrainConfig, Device)> {
        let kept = match (self.out, self.resume) {
            (Some(out), true) => Some(out.join("config.toml")),
            (None, true) => return Err(Error::format("resuming a run needs its folder")),
            _ => None,
        };
        if let Some(kept) = kept.as_ref().filter(|kept| !kept.exists()) {
            let folder = kept.parent().unwrap_or(kept).display();
            return Err(Error::format(format!("{folder} is not a run folder: config.toml is missing")));
        }
        resolved(self.given, kept.as_deref().or(self.file))
    }

    /// Starts a run on one device.
    pub fn alone(&self, watch: &mut DataWatch<'_>) -> Result<Trainer> {
        let (config, device) = self.resolved()?;
        match (self.out, self.resume) {
            (Some(out), true) => Trainer::resume_watched(&device, config, out, watch),
            _ => {
                let claim = self.claim(&config)?;
                Trainer::create_in(&device, config, claim, watch)
            }
        }
    }

    fn claim(&self, config: &TrainConfig) -> Result<Claim> {
        match (self.out, self.resume) {
            (Some(out), true) => RunFolder::reopen(out),
            (Some(out), false) => RunFolder::claim(out),
            (None, _) => RunFolder::claim_fresh(Path::new("runs"), &config.preset),
        }
    }

    /// Starts the ranks of this process, each with its group and device. The first one runs in this thread.
    pub fn together(
        &self,
        (groups, names): (Vec<Group>, &[String]),
        shares: Option<&str>,
        watch: &mut DataWatch<'_>,
    ) -> Result<Vec<Trainer>> {
        let (config, device) = self.resolved()?;
        let shares = shares.map(parse_shares).transpose()?;
        let replicas = groups.first().map_or(1, Group::size) / config.pipeline.max(1);
        if let Some(shares) = &shares {
            shares.check(replicas)?;
        }
        let mut devices = vec![device];
        for (i, name) in names.iter().enumerate().take(groups.len()).skip(1) {
            // Ranks on one device have separate queues, like separate processes.
            let again = names[..i].contains(name);
            devices.push(if again { opened_again(name)? } else { by_name(Some(name))? });
        }
        let (config, shares) = (&config, shares.as_ref());
        let rank = |group: Group, device: &Device, watch: &mut DataWatch<'_>| {
            let claim = if group.leads() { self.claim(config).map(Some) } else { Ok(None) };
            let claim = group.all_succeed(claim)?;
            let path = shared_path(&group, claim.as_ref().map(Claim::path))?;
            let begun = (claim, path.as_path(), self.resume);
            let mut trainer = Trainer::create_distributed(&group, device, config.clone(), begun, watch)?;
            shares.map_or(Ok(()), |shares| trainer.shares(shares))?;
            Ok(trainer)
        };
        let mut groups = groups.into_iter();
        let first = groups.next().ok_or_else(|| Error::internal("a run without ranks"))?;
        std::thread::scope(|scope| {
            let others = groups.zip(&devices[1..]).map(|(group, device)| {
                let work = move || rank(group, device, &mut |_| true);
                let thread = Builder::new().name("netcl-rank".into()).stack_size(STACK);
                thread
                    .spawn_scoped(scope, work)
                    .map_err(|e| Error::internal(format!("cannot start a rank: {e}")))
            });
            let others: Vec<_> = others.collect();
            let own = rank(first, &devices[0], watch);
            let ends = others.into_iter().map(|thread| thread.and_then(joined));
            together(std::iter::once(own).chain(ends))
        })
    }
}

/// Returns the groups of this process's ranks: none for a run on one device.
pub fn groups(devices: &[String], group: Option<Group>) -> Vec<Group> {
    match group {
        Some(group) => vec![group],
        None if devices.len() > 1 => local(devices.len(), PATIENCE),
        None => Vec::new(),
    }
}

fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(Error::internal("a rank panicked")))
}

/// Returns all results, or the error that made the other ranks fail.
fn together<T>(ends: impl Iterator<Item = Result<T>>) -> Result<Vec<T>> {
    let (mut all, mut errors) = (Vec::new(), Vec::new());
    for end in ends {
        match end {
            Ok(value) => all.push(value),
            Err(e) => errors.push(e),
        }
    }
    let cause = errors.iter().find(|e| !e.message().contains("which has ended")).or(errors.first());
    cause.map_or(Ok(all), |e| Err(e.clone()))
}

/// Parses shares in the form of `--shares`.
fn parse_shares(text: &str) -> Result<Shares> {
    match text {
        "equal" => return Ok(Shares::Equal),
        "speed" => return Ok(Shares::BySpeed),
        _ => {}
    }
    let weights: Option<Vec<f64>> = text.split(',').map(|part| part.trim().parse().ok()).collect();
    weights.map(Shares::Weights).ok_or_else(|| {
        Error::format(format!(
            "shares is {text:?}, expected \"equal\", \"speed\", or a number for each device"
        ))
    })
}

/// Returns the run folder of the first rank.
fn shared_path(group: &Group, own: Option<&Path>) -> Result<PathBuf> {
    let text = own.unwrap_or(Path::new("")).to_str();
    let text = text.ok_or_else(|| Error::format("the path of the run folder is not valid UTF-8"));
    let all = group.all_gather_bytes(group.all_succeed(text)?.as_bytes())?;
    Ok(PathBuf::from(String::from_utf8_lossy(all.first().map_or(&[], Vec::as_slice)).into_owned()))
}

/// A rank that reports nothing.
struct Follower;

impl Observer for Follower {
    fn should_stop(&mut self) -> bool {
        false
    }
}

/// Runs all ranks until the end; the first one, in this thread, reports. After an error all are closed, because the run cannot continue.
pub fn run(ranks: &mut Vec<Trainer>, reporter: &mut dyn Observer) -> Result<Outcome> {
    fn rank(mut trainer: Trainer, observer: &mut dyn Observer) -> Result<(Trainer, Outcome)> {
        // Dropping the trainer after an error tells the other ranks that this one has ended.
        trainer.run(observer).map(|outcome| (trainer, outcome))
    }
    let mut all = std::mem::take(ranks).into_iter();
    let first = all.next().ok_or_else(|| Error::format("the trainer is closed"))?;
    let ends = std::thread::scope(|scope| {
        let others: Vec<_> = all
            .map(|trainer| {
                let thread = Builder::new().name("netcl-rank".into()).stack_size(STACK);
                let thread = thread.spawn_scoped(scope, move || rank(trainer, &mut Follower));
                thread.map_err(|e| Error::internal(format!("cannot start a rank: {e}")))
            })
            .collect();
        let own = rank(first, reporter);
        let ends = others.into_iter().map(|thread| thread.and_then(joined));
        together(std::iter::once(own).chain(ends))
    })?;
    let outcome = ends.first().map_or(Outcome::Stopped, |(_, outcome)| *outcome);
    ranks.extend(ends.into_iter().map(|(trainer, _)| trainer));
    Ok(outcome)
}

/// Returns the trainers that together have the whole model: one for each stage of a pipeline.
pub fn stages(ranks: &[Trainer]) -> Result<&[Trainer]> {
    let stages = ranks.first().map_or(1, |trainer| trainer.config().pipeline.max(1));
    Ok(&ranks[..stages.min(ranks.len())])
}

/// Keeps the first of the items with one name: two stages may share a tensor.
pub fn once<T>(all: impl IntoIterator<Item = T>, name: impl Fn(&T) -> String) -> Vec<T> {
    let mut seen = BTreeSet::new();
    all.into_iter().filter(|item| seen.insert(name(item))).collect()
}
