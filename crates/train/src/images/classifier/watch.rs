//! Events of training, and the requests of its observer.

use super::outcome::{Epoch, Next};
use crate::train::{Observer, Profile};
use std::path::Path;

/// How far training is.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Training begins.
    Started {
        /// Steps done in earlier sessions.
        from_step: u64,
        /// Steps of the run.
        steps: u64,
    },
    /// A step of `steps` is done, of an epoch that is counted from 1.
    Step {
        /// Steps done.
        step: u64,
        /// Steps of the run.
        steps: u64,
        /// The epoch.
        epoch: u64,
        /// Its loss.
        loss: f32,
        /// Images a second of the steps that are done in this epoch.
        images_per_s: f64,
    },
    /// An epoch is done and tested.
    Epoch(&'a Epoch),
    /// A checkpoint of a step, which may be some steps back, was written into this folder.
    Saved {
        /// The step.
        step: u64,
        /// The folder.
        path: &'a Path,
    },
    /// Where the memory of a step goes; once, when one was captured.
    MemoryExplained(&'a str),
    /// The steps that [`Diagnostics`] ask for were profiled; once.
    Profiled(&'a Profile),
}

/// Receives the progress of training and returns a request, which counts after [`Progress::Step`] and [`Progress::Epoch`] only.
pub(super) type Watch<'w> = dyn FnMut(Progress<'_>) -> Next + 'w;

/// The same as the observer of a run.
pub(super) struct Watcher<'w> {
    watch: &'w mut Watch<'w>,
    /// The request that is still to be executed.
    pub next: Next,
}

impl<'w> Watcher<'w> {
    pub fn new(watch: &'w mut Watch<'w>) -> Self {
        Self { watch, next: Next::default() }
    }

    /// Tells of a step or an epoch, and takes what is asked for.
    pub fn heed(&mut self, progress: Progress<'_>) {
        self.next = self.next.max((self.watch)(progress));
    }

    /// Tells of anything else.
    pub fn tell(&mut self, progress: Progress<'_>) {
        (self.watch)(progress);
    }
}

impl Observer for Watcher<'_> {
    fn saved(&mut self, step: u64, path: &Path) {
        self.tell(Progress::Saved { step, path });
    }
    fn memory_explained(&mut self, text: &str) {
        self.tell(Progress::MemoryExplained(text));
    }
    fn profiled(&mut self, profile: &Profile) {
        self.tell(Progress::Profiled(profile));
    }
    fn should_save(&mut self) -> bool {
        self.next == Next::Save
    }
    fn should_stop(&mut self) -> bool {
        self.next == Next::Stop
    }
}
