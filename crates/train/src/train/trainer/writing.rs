//! Asynchronous checkpoints of a run, and what its observer is told of them.

use super::Trainer;
use crate::train::observer::{Observer, Saving};
pub(super) use netcl_model::checkpoint::Writing;
use netcl_model::checkpoint::{Checkpoint, Plan};
use netcl_tensor::Result;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Polling interval while training waits for a write.
const LOOK: Duration = Duration::from_millis(50);

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
        let store = self.folder.checkpoints(self.config.keep);
        if let Some((model, optimizer)) = whole {
            // It is on the host already.
            let Plan { state, files, .. } = plan;
            let checkpoint = Checkpoint { state, model, optimizer, files, ..Checkpoint::default() };
            return self.writing.start_copied(store, checkpoint, best);
        }
        if let Some(optimizer) = state {
            // The host has all of it already.
            let optimizer_files = self.sharding().map_or(0, |sharding| sharding.ranks);
            let checkpoint = Checkpoint { optimizer, optimizer_files, ..plan.take()? };
            return self.writing.start_copied(store, checkpoint, best);
        }
        if self.writing.start(store.clone(), &plan, best)? {
            return Ok(());
        }
        let (step, total, written) = (plan.state.step, plan.size(), AtomicU64::new(0));
        observer.saving(&Saving { step, written: 0, total, waiting: true });
        let path = store.save_planned(&plan, best, &written)?;
        observer.saving(&Saving { step, written: total, total, waiting: true });
        observer.saved(step, &path);
        Ok(())
    }

    /// Reports the progress or the end of a write to the observer.
    pub(super) fn watch_saving(&mut self, observer: &mut dyn Observer) -> Result<()> {
        if self.writing.is_done() {
            return self.finish_saving(observer);
        }
        if let Some((step, written, total)) = self.writing.progress() {
            observer.saving(&Saving { step, written, total, waiting: false });
        }
        Ok(())
    }

    /// Waits for the write in progress.
    pub(super) fn finish_saving(&mut self, observer: &mut dyn Observer) -> Result<()> {
        let begun = Instant::now();
        while let Some((step, written, total)) = self.writing.progress().filter(|_| !self.writing.is_done()) {
            observer.saving(&Saving { step, written, total, waiting: true });
            // Short intervals at first: small checkpoints take a few milliseconds.
            std::thread::sleep(LOOK.min(begun.elapsed() / 4 + Duration::from_micros(200)));
        }
        if let Some((step, path)) = self.writing.end()? {
            observer.saved(step, &path);
        }
        Ok(())
    }
}
