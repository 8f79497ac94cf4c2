//! Profiling of some steps of a run: times of kernels, transfers and host activities.

use super::Trainer;
use crate::run::{HostSpan, trace_json, write_trace};
use crate::train::observer::{Observer, Profile};
use netcl_device::check_writable;
use netcl_tensor::Result;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

/// Which steps are profiled.
#[derive(Clone, Debug)]
pub struct ProfileSettings {
    /// Path of the trace; default `trace.json` in the run folder.
    pub file: Option<PathBuf>,
    /// First profiled step, counted from 1 in this process. In the first two steps kernels are compiled and the step is captured.
    pub first: u64,
    /// Number of steps.
    pub steps: u64,
}

impl Default for ProfileSettings {
    fn default() -> Self {
        Self { file: None, first: 3, steps: 10 }
    }
}

/// A requested or running profile.
pub(super) struct Profiling {
    settings: ProfileSettings,
    /// The first step, if it has begun.
    running: Option<u64>,
    host: Vec<HostSpan>,
}

impl Trainer {
    /// Requests a profile of some steps of the next [`Trainer::run`]. Profiled steps are slower, because every launch has an event.
    ///
    /// # Errors
    /// `Io` if the trace cannot be written to its path.
    pub fn profile(&mut self, settings: ProfileSettings) -> Result<()> {
        settings.file.as_deref().map_or(Ok(()), check_writable)?;
        self.profiling = Some(Profiling { settings, running: None, host: Vec::new() });
        Ok(())
    }

    /// Records a host activity since `start`.
    pub(super) fn host_did(&mut self, name: &'static str, start: Instant) {
        if let Some(p) = self.profiling.as_mut().filter(|p| p.running.is_some()) {
            p.host.push(HostSpan { name, step: self.step, start, end: Instant::now() });
        }
    }

    /// Starts the profile if its first step is next; `done` steps were done in this process.
    pub(super) fn begin_profile(&mut self, done: u64) -> Result<()> {
        let Some(p) = self.profiling.as_mut().filter(|p| p.running.is_none()) else { return Ok(()) };
        if done + 1 == p.settings.first {
            self.model.params().device().start_timeline()?;
            p.running = Some(self.step + 1);
        }
        Ok(())
    }

    /// Ends the profile after its last step or at the end of the run.
    pub(super) fn end_profile(&mut self, ended: bool, observer: &mut dyn Observer) -> Result<()> {
        let last = |p: &Profiling| {
            p.running.is_some_and(|first| self.step + 1 >= first.saturating_add(p.settings.steps))
        };
        let Some(p) = self.profiling.take_if(|p| ended || last(p)) else { return Ok(()) };
        let Some(first) = p.running else {
            tracing::warn!(
                "no profile: the run ended before step {}, the first that is profiled",
                p.settings.first
            );
            return Ok(());
        };
        let device = self.model.params().device();
        let timeline = device.stop_timeline()?;
        let kernels = timeline.kernels();
        self.kernels.clone_from(&kernels);
        let file = p.settings.file.unwrap_or_else(|| self.folder.path().join("trace.json"));
        let replayed = self.stepper.is_captured();
        let capabilities = device.capabilities();
        let about = json!({
            "device": capabilities.name,
            "steps": [first, self.step],
            "replayed": replayed,
            "simulated_clock": capabilities.simulated,
        });
        let written = write_trace(&file, &trace_json(&timeline, &p.host, &about));
        self.spare("the trace", written);
        observer.profiled(&Profile { steps: (first, self.step), kernels, timeline, replayed, file });
        Ok(())
    }
}
