//! Outputs of a run: records in its folder, the profile, and checkpoints being written.

use crate::run::{Record, RunFolder};
use crate::train::observer::{Observer, Saving};
use crate::train::profiling::{ProfileSettings, Profiling};
use netcl_device::KernelTime;
use netcl_model::checkpoint::{Checkpoint, Plan, Writing};
use netcl_tensor::{Device, Result};
use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Polling interval while training waits for a write.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Outputs of a run and their destinations.
pub(crate) struct Reporting<R> {
    pub folder: RunFolder<R>,
    /// All records, including those of earlier sessions.
    pub history: Vec<R>,
    /// Times of kernels, for the report.
    pub kernels: Vec<KernelTime>,
    /// Number of newest checkpoints to keep.
    keep: usize,
    /// Optional outputs that failed and were reported.
    spared: BTreeSet<&'static str>,
    profiling: Option<Profiling>,
    writing: Writing,
}

/// A checkpoint to be written.
pub(super) enum Content {
    /// It is on the host.
    There(Checkpoint),
    /// Its tensors are still on the device.
    Planned(Plan<'static>),
}

impl<R: Record> Reporting<R> {
    /// Creates the outputs in `folder`, after the records it already has.
    pub fn new(folder: RunFolder<R>, history: Vec<R>, keep: usize) -> Self {
        Self {
            folder,
            history,
            kernels: Vec::new(),
            keep,
            spared: BTreeSet::new(),
            profiling: None,
            writing: Writing::default(),
        }
    }

    /// Uses the opened folder, and its records.
    pub fn open(&mut self, folder: RunFolder<R>, history: Vec<R>) {
        (self.folder, self.history) = (folder, history);
    }

    /// Returns whether this is the first time that `what` is missing.
    pub fn is_first(&mut self, what: &'static str) -> bool {
        self.spared.insert(what)
    }

    /// Handles a failure of an optional output: logged once; training continues.
    pub fn spare<T>(&mut self, what: &'static str, made: Result<T>) -> Option<T> {
        made.inspect_err(|e| {
            if self.is_first(what) {
                tracing::warn!("training continues without {what}: {e}");
            }
        })
        .ok()
    }

    /// Records a step in the run folder.
    ///
    /// # Errors
    /// Errors of [`RunFolder::push`].
    pub fn record(&mut self, metrics: R) -> Result<()> {
        for (what, done) in self.folder.push(&metrics)? {
            self.spare(what, done);
        }
        self.history.push(metrics);
        Ok(())
    }

    /// Writes pending records.
    pub fn flush(&mut self) {
        for (what, done) in self.folder.flush() {
            self.spare(what, done);
        }
    }

    /// Requests a profile of some steps.
    ///
    /// # Errors
    /// `Io` if the trace cannot be written to its path.
    pub fn profile(&mut self, settings: ProfileSettings) -> Result<()> {
        self.profiling = Some(Profiling::new(settings)?);
        Ok(())
    }

    /// Returns whether a profile was requested and has not ended.
    pub fn is_profiled(&self) -> bool {
        self.profiling.is_some()
    }

    /// Records a host activity since `start`, after `step` steps.
    pub fn host_did(&mut self, name: &'static str, step: u64, start: Instant) {
        if let Some(p) = &mut self.profiling {
            p.host_did(name, step, start);
        }
    }

    /// Starts the profile if its first step is next, after `step` steps, `done` of them in this process.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn begin_profile(&mut self, device: &Device, step: u64, done: u64) -> Result<()> {
        self.profiling.as_mut().map_or(Ok(()), |p| p.begin(device, step, done))
    }

    /// Ends the profile after its last step, or at the end of the run.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn end_profile(
        &mut self,
        device: &Device,
        (step, replayed): (u64, bool),
        ended: bool,
        observer: &mut (impl Observer + ?Sized),
    ) -> Result<()> {
        let Some(p) = self.profiling.take_if(|p| ended || p.ends_with(step)) else { return Ok(()) };
        let Some((profile, written)) = p.end(device, (step, replayed), self.folder.path())? else {
            return Ok(());
        };
        self.kernels.clone_from(&profile.kernels);
        self.spare("the trace", written);
        observer.profiled(&profile);
        Ok(())
    }

    /// Writes a checkpoint: asynchronously, or synchronously if the host lacks memory for a copy.
    ///
    /// # Errors
    /// Errors of the copy, and of the write before it.
    pub(super) fn save(
        &mut self,
        content: Content,
        best: bool,
        observer: &mut (impl Observer + ?Sized),
    ) -> Result<()> {
        let store = self.folder.checkpoints(self.keep);
        let plan = match content {
            Content::There(checkpoint) => return self.writing.start_copied(store, checkpoint, best),
            Content::Planned(plan) => plan,
        };
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
    ///
    /// # Errors
    /// Why a checkpoint was not written.
    pub fn watch_saving(&mut self, observer: &mut (impl Observer + ?Sized)) -> Result<()> {
        if self.writing.is_done() {
            return self.finish_saving(observer);
        }
        if let Some((step, written, total)) = self.writing.progress() {
            observer.saving(&Saving { step, written, total, waiting: false });
        }
        Ok(())
    }

    /// Waits for the write in progress.
    ///
    /// # Errors
    /// Why the checkpoint was not written.
    pub fn finish_saving(&mut self, observer: &mut (impl Observer + ?Sized)) -> Result<()> {
        let begun = Instant::now();
        while let Some((step, written, total)) = self.writing.progress().filter(|_| !self.writing.is_done()) {
            observer.saving(&Saving { step, written, total, waiting: true });
            // Short intervals at first, because small checkpoints take a few milliseconds.
            std::thread::sleep(POLL_INTERVAL.min(begun.elapsed() / 4 + Duration::from_micros(200)));
        }
        if let Some((step, path)) = self.writing.end()? {
            observer.saved(step, &path);
        }
        Ok(())
    }
}
