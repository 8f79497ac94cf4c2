//! The folder itself.

use super::{EventWriter, MetricsLog, StepMetrics, replace, report::Report};
use crate::{checkpoint::Store, config::TrainConfig};
use netcl_device::{Error, Result};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A run folder that a training writes to.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    metrics: MetricsLog,
    events: EventWriter,
}

impl RunFolder {
    /// The first of `base/name-1`, `base/name-2`, … that does not exist.
    pub fn fresh(base: &Path, name: &str) -> PathBuf {
        let numbered = (1u64..).map(|n| base.join(format!("{name}-{n}")));
        numbered.into_iter().find(|path| !path.exists()).unwrap_or_else(|| base.join(name))
    }

    /// Starts a run in `path`, which is created. `Format` when it holds a run already.
    pub fn create(path: &Path, config: &TrainConfig) -> Result<Self> {
        if path.join("metrics.jsonl").exists() {
            return Err(Error::format(format!(
                "{} holds a run already; go on with it by --resume, or name another folder with --out",
                path.display()
            )));
        }
        fs::create_dir_all(path).map_err(|e| Error::io("creating", path, &e))?;
        replace(&path.join("config.toml"), config.to_toml()?.as_bytes())?;
        let metrics = MetricsLog::create(&path.join("metrics.jsonl"))?;
        Ok(Self { path: path.into(), metrics, events: EventWriter::create(path, &[])? })
    }

    /// Goes on with the run in `path` after `step`. What it recorded of later steps is cut off; the rest is returned.
    pub fn resume(path: &Path, config: &TrainConfig, step: u64) -> Result<(Self, Vec<StepMetrics>)> {
        replace(&path.join("config.toml"), config.to_toml()?.as_bytes())?;
        let (metrics, done) = MetricsLog::resume(&path.join("metrics.jsonl"), step)?;
        let events = EventWriter::create(path, &done)?;
        Ok((Self { path: path.into(), metrics, events }, done))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its checkpoints.
    pub fn checkpoints(&self, keep: usize) -> Store {
        Store::new(self.path.join("checkpoints"), keep)
    }

    /// Records a step.
    pub fn push(&mut self, metrics: &StepMetrics) -> Result<()> {
        self.metrics.push(metrics)?;
        self.events.push(metrics)
    }

    /// Writes `report.html` and returns where it is.
    pub fn report(&self, report: &Report<'_>) -> Result<PathBuf> {
        let path = self.path.join("report.html");
        replace(&path, report.html().as_bytes())?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{read_metrics, report::Report};
    use super::*;
    use crate::config::Overlay;

    #[test]
    fn a_run_is_started_once_and_resumed() {
        let dir = tempfile::tempdir().unwrap();
        let path = RunFolder::fresh(dir.path(), "demo");
        assert!(path.ends_with("demo-1"));
        let config = TrainConfig::preset("demo").unwrap();
        let mut run = RunFolder::create(&path, &config).unwrap();
        assert!(RunFolder::fresh(dir.path(), "demo").ends_with("demo-2"));
        let step = |step| StepMetrics { step, loss: 2.0, ..Default::default() };
        (1..=4).for_each(|n| run.push(&step(n)).unwrap());
        let message = RunFolder::create(&path, &config).unwrap_err().to_string();
        assert!(message.contains("holds a run already") && message.contains("--resume"), "{message}");
        let (mut run, done) = RunFolder::resume(&path, &config, 2).unwrap();
        assert_eq!(done.len(), 2);
        run.push(&step(3)).unwrap();
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
}
