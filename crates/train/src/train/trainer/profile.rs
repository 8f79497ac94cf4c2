//! Profiling of some steps of a trainer's run.

use super::Trainer;
use crate::train::observer::Observer;
use crate::train::profiling::{ProfileSettings, Profiling};
use netcl_tensor::Result;
use std::time::Instant;

impl Trainer {
    /// Requests a profile of some steps of the next [`Trainer::run`]. Profiled steps are slower, because every launch has an event.
    ///
    /// # Errors
    /// `Io` if the trace cannot be written to its path.
    pub fn profile(&mut self, settings: ProfileSettings) -> Result<()> {
        self.profiling = Some(Profiling::new(settings)?);
        Ok(())
    }

    /// Records a host activity since `start`.
    pub(super) fn host_did(&mut self, name: &'static str, start: Instant) {
        if let Some(p) = &mut self.profiling {
            p.host_did(name, self.step, start);
        }
    }

    /// Starts the profile if its first step is next; `done` steps were done in this process.
    pub(super) fn begin_profile(&mut self, done: u64) -> Result<()> {
        let Some(p) = &mut self.profiling else { return Ok(()) };
        p.begin(self.model.params().device(), self.step, done)
    }

    /// Ends the profile after its last step or at the end of the run.
    pub(super) fn end_profile(&mut self, ended: bool, observer: &mut dyn Observer) -> Result<()> {
        let step = self.step;
        let Some(p) = self.profiling.take_if(|p| ended || p.ends_with(step)) else { return Ok(()) };
        let device = self.model.params().device();
        let about = (step, self.stepper.is_captured() || self.slots.are_captured());
        let Some((profile, written)) = p.end(device, about, self.folder.path())? else { return Ok(()) };
        self.kernels.clone_from(&profile.kernels);
        self.spare("the trace", written);
        observer.profiled(&profile);
        Ok(())
    }
}
