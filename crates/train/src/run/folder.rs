//! Creates, locks and resumes a run folder.
//!
//! The process that writes to a folder locks it. A resumed run changes nothing in it before its first step is done. Ranks other than the first only
//! follow the folder.

use super::lock::Lock;
use super::metrics::Record;
use super::{EventWriter, MetricsLog, StepMetrics, read_metrics, replace, report::Report};
use crate::config::{SETTINGS_COPY, TrainConfig};
use netcl_device::{Error, Result};
use netcl_model::checkpoint::Store;
use std::{
    fs,
    path::{Path, PathBuf},
};

const CONFIG: &str = "config.toml";
const METRICS: &str = "metrics.jsonl";
/// Names of files that a run writes. A folder with one of them is not used for a new run.
const OWN: [&str; 5] = [CONFIG, METRICS, "checkpoints", "report.html", "trace.json"];

/// A folder that this process has locked for a run. If it is dropped before a run starts, folders that it created are removed.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    lock: Option<Lock>,
    /// Created folders, outermost first.
    made: Vec<PathBuf>,
}

impl Claim {
    /// Returns path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the created files and folders in the order of removal, for a process that exits without dropping it.
    pub fn leaves(&self) -> Vec<PathBuf> {
        let lock = self.lock.iter().map(|lock| lock.path().to_owned());
        lock.chain(self.made.iter().rev().cloned()).collect()
    }

    fn into_parts(mut self) -> (PathBuf, Option<Lock>) {
        self.made.clear();
        (std::mem::take(&mut self.path), self.lock.take())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.lock = None;
        // A folder that is no longer empty is kept.
        let _ = self.made.iter().rev().try_for_each(fs::remove_dir);
    }
}

/// The settings of a run, as stored in its folder.
pub trait RunSettings {
    /// Returns the content of `config.toml`.
    ///
    /// # Errors
    /// Errors of writing TOML.
    fn to_toml(&self) -> Result<String>;
    /// Returns the number of newest checkpoints to keep.
    fn keep(&self) -> usize;
}

impl RunSettings for TrainConfig {
    fn to_toml(&self) -> Result<String> {
        TrainConfig::to_toml(self)
    }
    fn keep(&self) -> usize {
        self.keep
    }
}

/// The folder of a training run in progress, which records an `M` from time to time.
#[derive(Debug)]
pub struct RunFolder<M = StepMetrics> {
    path: PathBuf,
    log: Log<M>,
    _lock: Option<Lock>,
}

/// A file in which steps are recorded, and the result of writing to it.
pub type Recorded = (&'static str, Result<()>);

/// The files in which steps are recorded.
#[derive(Debug)]
enum Log<M> {
    /// Another rank writes the folder.
    Elsewhere,
    Open {
        metrics: MetricsLog<M>,
        events: EventWriter,
    },
    /// A resumed run does not change its folder until its first step is done, so that an early failure leaves it unchanged.
    Waiting {
        config: String,
        step: u64,
        best_step: Option<u64>,
        keep: usize,
    },
}

impl RunFolder {
    /// Returns the first of `base/name-1`, `base/name-2`, … that does not exist.
    pub fn fresh(base: &Path, name: &str) -> PathBuf {
        let numbered = (1u64..).map(|n| base.join(format!("{name}-{n}")));
        numbered.into_iter().find(|path| !path.exists()).unwrap_or_else(|| base.join(name))
    }

    /// Creates and locks the folder of a new run.
    ///
    /// # Errors
    /// `Format` if the folder contains a run or a file that a run would write; `Io` if another process has locked it (with that process), or
    /// it is not writable.
    pub fn claim(path: &Path) -> Result<Claim> {
        if let Some(error) = Lock::holder(path) {
            return Err(error);
        }
        let mut claim = Claim { path: path.into(), lock: None, made: Vec::new() };
        let missing: Vec<_> =
            path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists()).collect();
        for folder in missing.into_iter().rev() {
            match fs::create_dir(folder) {
                Ok(()) => claim.made.push(folder.into()),
                // Another process created it meanwhile.
                Err(_) if folder.is_dir() => {}
                Err(e) => return Err(Error::io("creating", folder, &e)),
            }
        }
        claim.lock = Some(Lock::take(path)?);
        match OWN.iter().find(|name| path.join(name).symlink_metadata().is_ok()) {
            None => Ok(claim),
            Some(_) if is_run(path) => Err(Error::format(format!(
                "{} already holds a run; continue it with --resume, or name another folder with --out",
                path.display()
            ))),
            Some(name) => Err(Error::format(format!(
                "{} has a {name} that belongs to no run and would be overwritten; name another folder with --out",
                path.display()
            ))),
        }
    }

    /// Calls [`claim`](Self::claim) for the first free folder of `base/name-1`, `base/name-2`, …; safe with several processes.
    pub fn claim_fresh(base: &Path, name: &str) -> Result<Claim> {
        loop {
            let path = Self::fresh(base, name);
            let claim = Self::claim(&path);
            // If it exists now, another process was faster: try the next number.
            if claim.is_ok() || !path.exists() {
                return claim;
            }
        }
    }

    /// Locks the folder of a run to be resumed, without changing it.
    ///
    /// # Errors
    /// `Format` if it is not a run folder; `Io` if another process has locked it (with that process).
    pub fn reopen(path: &Path) -> Result<Claim> {
        if !path.join(CONFIG).exists() && !path.join(SETTINGS_COPY).exists() {
            return Err(Error::format(format!(
                "{} is not a run folder: {CONFIG} is missing",
                path.display()
            )));
        }
        Ok(Claim { path: path.into(), lock: Some(Lock::take(path)?), made: Vec::new() })
    }
}

impl<M: Record> RunFolder<M> {
    /// Starts a run.
    pub fn create(claim: Claim, config: &impl RunSettings) -> Result<Self> {
        let path = claim.path();
        keep_settings(path, &config.to_toml()?)?;
        let metrics = MetricsLog::create(&path.join(METRICS))?;
        let log = Log::Open { metrics, events: EventWriter::create::<M>(path, &[])? };
        let (path, lock) = claim.into_parts();
        Ok(Self { path, log, _lock: lock })
    }

    /// Resumes a run after `step`, with the best checkpoint at `best_step`. Returns the recorded metrics up to `step`; later records are removed
    /// after the first step.
    pub fn resume(
        claim: Claim,
        config: &impl RunSettings,
        step: u64,
        best_step: Option<u64>,
    ) -> Result<(Self, Vec<M>)> {
        let path = claim.path().join(METRICS);
        let mut done: Vec<M> = if path.exists() { read_metrics(&path)? } else { Vec::new() };
        done.retain(|metrics| metrics.step() <= step);
        let log = Log::Waiting { config: config.to_toml()?, step, best_step, keep: config.keep() };
        let (path, lock) = claim.into_parts();
        Ok((Self { path, log, _lock: lock }, done))
    }

    /// Returns the folder of a run of several ranks, which another rank has claimed and writes.
    pub fn follow(path: &Path) -> Self {
        Self { path: path.into(), log: Log::Elsewhere, _lock: None }
    }

    /// Returns whether another rank writes it.
    pub fn follows(&self) -> bool {
        matches!(self.log, Log::Elsewhere)
    }

    /// Returns path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the checkpoint store.
    pub fn checkpoints(&self, keep: usize) -> Store {
        Store::new(self.path.join("checkpoints"), keep)
    }

    /// Records a step in each file and returns the results. Records that cannot be written are kept for the next call.
    ///
    /// # Errors
    /// Errors of preparing a resumed run's folder; nothing was recorded then.
    pub fn push(&mut self, metrics: &M) -> Result<Vec<Recorded>> {
        self.begin()?;
        let Log::Open { metrics: log, events } = &mut self.log else { return Ok(Vec::new()) };
        Ok(vec![("metrics", log.push(metrics)), ("TensorBoard events", events.push(metrics))])
    }

    /// Writes pending records.
    pub fn flush(&mut self) -> Vec<Recorded> {
        let Log::Open { metrics: log, events } = &mut self.log else { return Vec::new() };
        vec![("metrics", log.flush()), ("TensorBoard events", events.flush())]
    }

    /// Prepares the folder of a resumed run: sets later checkpoints aside, removes later records, and writes the settings last. Call it after the
    /// first step, if nothing was recorded before; at any other time it changes nothing.
    ///
    /// # Errors
    /// `Io`.
    pub fn begin(&mut self) -> Result<()> {
        let Log::Waiting { config, step, best_step, keep } = &self.log else { return Ok(()) };
        let (config, step) = (config.clone(), *step);
        self.checkpoints(*keep).rewind(step, *best_step)?;
        let (metrics, done) = MetricsLog::<M>::resume(&self.path.join(METRICS), step)?;
        let events = EventWriter::create(&self.path, &done)?;
        keep_settings(&self.path, &config)?;
        self.log = Log::Open { metrics, events };
        Ok(())
    }

    /// Writes `report.html` and returns its path.
    pub fn report(&self, report: &Report<'_>) -> Result<PathBuf> {
        let path = self.path.join("report.html");
        replace(&path, report.html().as_bytes())?;
        Ok(path)
    }
}

/// Writes `config.toml` and its copy if their content differs.
fn keep_settings(folder: &Path, text: &str) -> Result<()> {
    for name in [CONFIG, SETTINGS_COPY] {
        let path = folder.join(name);
        if fs::read(&path).ok().as_deref() == Some(text.as_bytes()) {
            continue;
        }
        replace(&path, text.as_bytes())?;
    }
    Ok(())
}

/// Returns whether `path` is a run folder, that is, contains the settings of a run.
fn is_run(path: &Path) -> bool {
    path.join(METRICS).exists()
        || crate::config::Overlay::read(&path.join(CONFIG)).is_ok_and(|o| o.preset.is_some())
}

#[cfg(test)]
mod tests {
    use super::super::{read_metrics, report::Report};
    use super::*;
    use crate::config::Overlay;

    fn step(step: u64) -> StepMetrics {
        StepMetrics { step, loss: 2.0, ..Default::default() }
    }

    #[test]
    fn a_run_is_started_once_and_resumed() {
        let dir = tempfile::tempdir().unwrap();
        let path = RunFolder::fresh(dir.path(), "demo");
        assert!(path.ends_with("demo-1"));
        let config = TrainConfig::preset("demo").unwrap();
        let mut run = RunFolder::create(RunFolder::claim(&path).unwrap(), &config).unwrap();
        assert!(RunFolder::fresh(dir.path(), "demo").ends_with("demo-2"));
        let push = |run: &mut RunFolder, n| {
            run.push(&step(n)).unwrap().into_iter().for_each(|(_, done)| done.unwrap());
        };
        (1..=4).for_each(|n| push(&mut run, n));
        for error in [RunFolder::claim(&path).unwrap_err(), RunFolder::reopen(&path).unwrap_err()] {
            assert!(error.message().contains("is in use by process"), "{error}");
        }
        drop(run);
        let message = RunFolder::claim(&path).unwrap_err().to_string();
        assert!(message.contains("already holds a run") && message.contains("--resume"), "{message}");
        let (mut run, done) = RunFolder::resume(RunFolder::reopen(&path).unwrap(), &config, 2, None).unwrap();
        assert_eq!(done.len(), 2);
        push(&mut run, 3);
        let all = read_metrics(&path.join("metrics.jsonl")).unwrap();
        assert_eq!(all, [step(1), step(2), step(3)]);
        let report = Report { title: "demo", metrics: &all, ..Default::default() };
        assert!(fs::read_to_string(run.report(&report).unwrap()).unwrap().contains("<svg"));
        let again = TrainConfig::resolve(Some(&path.join("config.toml")), &Overlay::default()).unwrap();
        assert_eq!(again, config);
        assert!(
            fs::read_dir(&path).unwrap().all(|e| !e.unwrap().file_name().to_string_lossy().contains("tmp-"))
        );
        assert!(run.checkpoints(2).path(7).ends_with("demo-1/checkpoints/step-00000007"));
        assert_eq!(run.path(), path);
    }

    #[test]
    fn a_resume_that_fails_before_its_first_step_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let config = TrainConfig::preset("demo").unwrap();
        let mut run = RunFolder::create(RunFolder::claim(&path).unwrap(), &config).unwrap();
        (1..=4).for_each(|n| drop(run.push(&step(n)).unwrap()));
        drop(run);
        let files = || {
            let mut all: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()).collect();
            all.sort();
            all.into_iter().map(|p| (fs::read(&p).unwrap(), p)).collect::<Vec<_>>()
        };
        let before = files();
        let other = TrainConfig { batch: 99, ..config };
        let (run, done) = RunFolder::<StepMetrics>::resume(
            RunFolder::<StepMetrics>::reopen(&path).unwrap(),
            &other,
            2,
            None,
        )
        .unwrap();
        assert_eq!(done.len(), 2);
        drop(run);
        assert_eq!(files(), before);
    }

    #[test]
    fn a_folder_of_someone_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        for name in OWN {
            let path = dir.path().join(format!("with-{name}"));
            fs::create_dir(&path).unwrap();
            fs::write(path.join(name), "title = 'mine'\n").unwrap();
            let message = RunFolder::claim(&path).unwrap_err().to_string();
            let part = if name == METRICS { "already holds a run" } else { name };
            assert!(message.contains(part) && message.contains("--out"), "{message}");
            let left: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(left, [name]);
        }
        // Other files are allowed, and a run that did not start leaves nothing.
        let path = dir.path().join("notes/deep/er");
        drop(RunFolder::claim(&path).unwrap());
        assert!(!dir.path().join("notes").exists());
        fs::create_dir(dir.path().join("notes")).unwrap();
        fs::write(dir.path().join("notes/readme.md"), "text").unwrap();
        drop(RunFolder::claim(&dir.path().join("notes")).unwrap());
        assert_eq!(fs::read_dir(dir.path().join("notes")).unwrap().count(), 1);
        let file = dir.path().join("notes/readme.md/run");
        assert!(RunFolder::claim(&file).unwrap_err().message().contains("readme.md"));
    }

    #[test]
    fn many_processes_find_a_folder_each() {
        let dir = tempfile::tempdir().unwrap();
        let claims = std::thread::scope(|scope| {
            let claim = || RunFolder::claim_fresh(dir.path(), "demo").unwrap();
            let all: Vec<_> = (0..8).map(|_| scope.spawn(claim)).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let mut paths: Vec<_> = claims.iter().map(|c| c.path().to_owned()).collect();
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), 8);
    }
}
