//! Events of training, and the requests of its observer.

use super::outcome::{Epoch, Next};
use crate::train::{Observer, Profile};
use std::path::Path;

/// Progress of training.
#[derive(Clone, Copy, Debug)]
pub enum TrainingProgress<'a> {
    /// Training begins.
    Started {
        /// Steps done in earlier sessions.
        from_step: u64,
        /// Steps of the run.
        steps: u64,
    },
    /// A step is done; epochs are counted from 1.
    Step {
        /// Steps done.
        step: u64,
        /// Steps of the run.
        steps: u64,
        /// The epoch.
        epoch: u64,
        /// Its loss.
        loss: f32,
        /// Images per second of this epoch's steps.
        images_per_s: f64,
    },
    /// An epoch is done and tested.
    Epoch(&'a Epoch),
    /// The checkpoint of a step, which may be some steps back, was written to this folder.
    Saved {
        /// The step.
        step: u64,
        /// The folder.
        path: &'a Path,
    },
    /// The memory use of a step; reported once, after a step was captured.
    MemoryExplained(&'a str),
    /// The steps that [`Diagnostics`] requests were profiled; reported once.
    Profiled(&'a Profile),
}

/// Receives the progress of training and returns a request, which has an effect only after [`TrainingProgress::Step`] and
/// [`TrainingProgress::Epoch`].
pub(super) type TrainingWatch<'w> = dyn FnMut(TrainingProgress<'_>) -> Next + 'w;

/// The watch as the observer of a run.
pub(super) struct TrainingWatcher<'w> {
    watch: &'w mut TrainingWatch<'w>,
    /// The pending request.
    pub next: Next,
}

impl<'w> TrainingWatcher<'w> {
    pub fn new(watch: &'w mut TrainingWatch<'w>) -> Self {
        Self { watch, next: Next::default() }
    }

    /// Reports a step or an epoch, and stores the request.
    pub fn heed(&mut self, progress: TrainingProgress<'_>) {
        self.next = self.next.max((self.watch)(progress));
    }

    /// Reports other progress.
    pub fn tell(&mut self, progress: TrainingProgress<'_>) {
        (self.watch)(progress);
    }
}

impl Observer for TrainingWatcher<'_> {
    fn saved(&mut self, step: u64, path: &Path) {
        self.tell(TrainingProgress::Saved { step, path });
    }
    fn memory_explained(&mut self, text: &str) {
        self.tell(TrainingProgress::MemoryExplained(text));
    }
    fn profiled(&mut self, profile: &Profile) {
        self.tell(TrainingProgress::Profiled(profile));
    }
    fn should_save(&mut self) -> bool {
        self.next == Next::Save
    }
    fn should_stop(&mut self) -> bool {
        self.next == Next::Stop
    }
}
