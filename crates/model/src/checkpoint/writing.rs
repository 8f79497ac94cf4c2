//! Writes a checkpoint on a thread while training continues, after copying it to host memory.

use super::{Checkpoint, Plan, Store};
use netcl_device::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Percentage of the host's free memory that the copy may use; training needs some itself.
const MAX_COPY_PERCENT: u64 = 70;

/// The write in progress, if any. Dropping it waits for its end.
#[derive(Default)]
pub struct Writing(Option<Job>);

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
        let thread = std::thread::Builder::new()
            .name("netcl-checkpoint".into())
            .spawn(work)
            .map_err(|e| Error::new(ErrorKind::Io, format!("cannot start the checkpoint thread: {e}")))?;
        Ok(Self { step, written, total, thread })
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

impl Writing {
    /// Copies the checkpoint of `plan` and starts to write it, after waiting for a write in progress. Returns false if the host lacks memory for a
    /// copy; nothing was started then.
    ///
    /// # Errors
    /// Errors of the copy, and of the previous write.
    pub fn start(&mut self, store: Store, plan: &Plan<'_>, best: bool) -> Result<bool> {
        let total = plan.size();
        if !fits(total, netcl_device::available_memory()) {
            tracing::debug!(
                "the host lacks memory for a copy of {total} bytes: training waits for the checkpoint"
            );
            return Ok(false);
        }
        self.end()?;
        self.0 = Some(Job::start(store, plan.take()?, best, total)?);
        Ok(true)
    }

    /// Does the same for a checkpoint that is already in host memory.
    ///
    /// # Errors
    /// Errors of the previous write.
    pub fn start_copied(&mut self, store: Store, checkpoint: Checkpoint, best: bool) -> Result<()> {
        let total = Plan::from(&checkpoint).size();
        self.end()?;
        self.0 = Some(Job::start(store, checkpoint, best, total)?);
        Ok(())
    }

    /// Returns step, written bytes and total bytes of the write in progress.
    pub fn progress(&self) -> Option<(u64, u64, u64)> {
        self.0.as_ref().map(|job| (job.step, job.written.load(Ordering::Relaxed), job.total))
    }

    /// Returns true if a write has ended and [`end`](Self::end) was not called for it.
    pub fn is_done(&self) -> bool {
        self.0.as_ref().is_some_and(|job| job.thread.is_finished())
    }

    /// Waits for the write in progress and returns its step and folder.
    ///
    /// # Errors
    /// The reason of a failed write; earlier checkpoints are intact then.
    pub fn end(&mut self) -> Result<Option<(u64, PathBuf)>> {
        self.0.take().map(Job::end).transpose()
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!("{error}");
        }
    }
}

/// Returns true if the host has memory for a copy of `bytes`; `available` is the free memory, if known.
fn fits(bytes: u64, available: Option<u64>) -> bool {
    available.is_none_or(|free| bytes <= free / 100 * MAX_COPY_PERCENT)
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
