//! Profiles some steps of a run with any kind of model: times of kernels, transfers and host activities, and their trace.

use super::observer::Profile;
use crate::run::{HostSpan, trace_json, write_trace};
use netcl_device::check_writable;
use netcl_tensor::{Device, Result};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Settings of a profile.
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
pub(crate) struct Profiling {
    settings: ProfileSettings,
    /// The first step, if it has started.
    running: Option<u64>,
    host: Vec<HostSpan>,
}

impl Profiling {
    /// Fails with `Io` if the trace cannot be written to its path.
    pub fn new(settings: ProfileSettings) -> Result<Self> {
        settings.file.as_deref().map_or(Ok(()), check_writable)?;
        Ok(Self { settings, running: None, host: Vec::new() })
    }

    /// Records a host activity since `start`, after `step` steps.
    pub fn host_did(&mut self, name: &'static str, step: u64, start: Instant) {
        if self.running.is_some() {
            self.host.push(HostSpan { name, step, start, end: Instant::now() });
        }
    }

    /// Starts if the first step to be profiled is next, after `step` steps, `done` of them in this process.
    pub fn begin(&mut self, device: &Device, step: u64, done: u64) -> Result<()> {
        if self.running.is_none() && done + 1 == self.settings.first {
            device.start_timeline()?;
            self.running = Some(step + 1);
        }
        Ok(())
    }

    /// Returns whether `step` is the last profiled step.
    pub fn ends_with(&self, step: u64) -> bool {
        self.running.is_some_and(|first| step + 1 >= first.saturating_add(self.settings.steps))
    }

    /// Ends the profile after `step`; returns it, and whether its trace was written (into the run's folder `dir` if it lacks a path). Returns `None`,
    /// with a warning, if it has not started.
    pub fn end(
        self,
        device: &Device,
        (step, replayed): (u64, bool),
        dir: &Path,
    ) -> Result<Option<(Profile, Result<()>)>> {
        let Some(first) = self.running else {
            let planned = self.settings.first;
            tracing::warn!("no profile: the run ended before step {planned}, the first step to profile");
            return Ok(None);
        };
        let timeline = device.stop_timeline()?;
        let file = self.settings.file.unwrap_or_else(|| dir.join("trace.json"));
        let capabilities = device.capabilities();
        let about = json!({
            "device": capabilities.name,
            "steps": [first, step],
            "replayed": replayed,
            "simulated_clock": capabilities.simulated,
        });
        let written = write_trace(&file, &trace_json(&timeline, &self.host, &about));
        let kernels = timeline.kernels();
        Ok(Some((Profile { steps: (first, step), kernels, timeline, replayed, file }, written)))
    }
}
