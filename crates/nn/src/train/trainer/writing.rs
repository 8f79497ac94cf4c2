//! Asynchronous checkpoints: the state is copied to host memory, and a thread writes it to disk while training continues.

use super::Trainer;
use crate::checkpoint::{Checkpoint, Plan, Store};
use crate::train::observer::{Observer, Saving};
use netcl_tensor::{Error, Result};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Polling interval while training waits for a write.
const LOOK: Duration = Duration::from_millis(50);
/// Percentage of the host's free memory that the copy may take; training needs some itself.
const SHARE: u64 = 70;

/// The write in progress, if any. Dropping it waits for its end.
#[derive(Default)]
pub(super) struct Writing(Option<Job>);

struct Job {
    step: u64,
    written: Arc<AtomicU64>,
    total: u64,
    thread: JoinHandle<Result<PathBuf>>,
}

impl Job {
    fn start(store: Store, checkpoint: Checkpoint, best: bool, total: u64) -> Result<Self> {
        let step = checkpoint.state.step;
        let written = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&written);
        let work = move || store.save_planned(&Plan::from(&checkpoint), best, &count);
        let thread =
            std::thread::Builder::new().name("netcl-checkpoint".into()).spawn(work).map_err(|e| {
                Error::new(netcl_tensor::ErrorKind::Io, format!("starting the checkpoint thread: {e}"))
            })?;
        Ok(Self { step, written, total, thread })
    }

    fn state(&self, waiting: bool) -> Saving {
        Saving { step: self.step, written: self.written.load(Ordering::Relaxed), total: self.total, waiting }
    }

    fn end(self) -> Result<(u64, PathBuf)> {
        let written =
            self.thread.join().unwrap_or_else(|_| Err(Error::internal("the checkpoint thread panicked")));
        let step = self.step;
        written.map(|path| (step, path)).map_err(|e| {
            e.context(format!("the checkpoint of step {step} was not written, earlier ones are intact"))
        })
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(Job::end) {
            tracing::error!("{error}");
        }
    }
}

/// Whether the host has memory for a copy of `bytes`; `available` is the free memory, if known.
fn fits(bytes: u64, available: Option<u64>) -> bool {
    available.is_none_or(|free| bytes <= free / 100 * SHARE)
}

impl Trainer {
    /// Writes a checkpoint of the step just done: asynchronously, or synchronously if the host has no memory for a copy.
    pub(super) fn save(&mut self, best: bool, observer: &mut dyn Observer) -> Result<()> {
        self.finish_saving(observer)?;
        self.saved_step = self.step;
        self.settle_parameters()?;
        let state = self.gathered_state()?;
        let whole = self.gathered()?;
        if self.folder.follows() {
            return Ok(());
        }
        let plan = self.checkpoint()?;
        if let Some((model, optimizer)) = whole {
            // It is on the host already.
            let checkpoint = Checkpoint {
                state: plan.state,
                model,
                optimizer,
                files: plan.files,
                ..Checkpoint::default()
            };
            let (store, total) = (self.folder.checkpoints(self.config.keep), Plan::from(&checkpoint).size());
            self.writing.0 = Some(Job::start(store, checkpoint, best, total)?);
            return Ok(());
        }
        let (store, total) = (self.folder.checkpoints(self.config.keep), plan.size());
        if let Some(optimizer) = state {
            // The host has all of it already.
            let optimizer_files = self.sharding().map_or(0, |sharding| sharding.ranks);
            let checkpoint = Checkpoint { optimizer, optimizer_files, ..plan.take()? };
            let all = Plan::from(&checkpoint).size();
            self.writing.0 = Some(Job::start(store, checkpoint, best, all)?);
            return Ok(());
        }
        if fits(total, netcl_device::available_memory()) {
            self.writing.0 = Some(Job::start(store, plan.take()?, best, total)?);
            return Ok(());
        }
        tracing::debug!(
            "the host has no room for a copy of {total} bytes: training waits for the checkpoint"
        );
        let written = AtomicU64::new(0);
        let step = plan.state.step;
        observer.saving(&Saving { step, written: 0, total, waiting: true });
        let path = store.save_planned(&plan, best, &written)?;
        observer.saving(&Saving { step, written: total, total, waiting: true });
        observer.saved(step, &path);
        Ok(())
    }

    /// Reports the progress or the end of a write to the observer.
    pub(super) fn watch_saving(&mut self, observer: &mut dyn Observer) -> Result<()> {
        let Some(job) = &self.writing.0 else { return Ok(()) };
        if job.thread.is_finished() {
            return self.finish_saving(observer);
        }
        observer.saving(&job.state(false));
        Ok(())
    }

    /// Waits for the write in progress.
    pub(super) fn finish_saving(&mut self, observer: &mut dyn Observer) -> Result<()> {
        let Some(job) = self.writing.0.take() else { return Ok(()) };
        let begun = Instant::now();
        while !job.thread.is_finished() {
            observer.saving(&job.state(true));
            // Short intervals at first: small checkpoints take a few milliseconds.
            std::thread::sleep(LOOK.min(begun.elapsed() / 4 + Duration::from_micros(200)));
        }
        let (step, path) = job.end()?;
        observer.saved(step, &path);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_made_only_where_memory_is_left() {
        assert!(fits(u64::MAX, None) && fits(70, Some(100)) && fits(0, Some(0)));
        assert!(!fits(71, Some(100)) && !fits(18 << 30, Some(16 << 30)));
    }

    /// A failed write is reported once, and earlier checkpoints are kept.
    #[test]
    fn a_failed_write_is_an_error_with_its_step() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("checkpoints");
        std::fs::write(&file, "no folder").unwrap();
        let mut checkpoint = Checkpoint::default();
        checkpoint.state.step = 7;
        let job = Job::start(Store::new(file, 1), checkpoint.clone(), false, 0).unwrap();
        let message = job.end().unwrap_err().to_string();
        assert!(
            message.contains("the checkpoint of step 7 was not written, earlier ones are intact"),
            "{message}"
        );
        let store = Store::new(dir.path().join("other"), 1);
        let (step, path) = Job::start(store.clone(), checkpoint, true, 0).unwrap().end().unwrap();
        assert_eq!((step, Some(path)), (7, store.best()));
        let latest = store.latest().unwrap().unwrap();
        assert_eq!(latest.state.step, 7);
    }
}
