//! Where the time of a whole training step or of a generated text goes: `--profile` of the benchmarks that measure one.

use super::line::Printer;
use crate::out;
use crate::profile::{self, Costs};
use netcl::prelude::*;
use netcl::train::run::{HostSpan, trace_json, write_trace};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Where the trace of one of several models goes.
pub fn file_of(file: &Path, preset: &str, alone: bool) -> PathBuf {
    if alone {
        return file.into();
    }
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let extension = file.extension().map_or("json".into(), |e| e.to_string_lossy());
    file.with_file_name(format!("{stem}-{preset}.{extension}"))
}

/// Runs that are profiled.
const RUNS: u64 = 3;

/// What is profiled, and where the trace goes.
pub struct Profile<'a> {
    pub device: &'a Device,
    /// Type of the products whose ceiling is measured.
    pub dtype: DType,
    /// Goes into the trace.
    pub about: Value,
    /// Steps of a run, by which the table divides.
    pub steps: u64,
    pub file: &'a Path,
}

impl Profile<'_> {
    /// Device time of further runs by kernel, the most expensive first, as a table and as a trace. Timing each launch takes time of its own,
    /// which is not in here.
    pub fn print(mut self, printer: &mut Printer, run: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let device = self.device;
        let ceilings = profile::ceilings(device, self.dtype)?;
        let mut host = Vec::new();
        device.start_timeline()?;
        let ran = (1..=RUNS).try_for_each(|step| {
            let start = Instant::now();
            let ran = run();
            host.push(HostSpan { name: "enqueue", step, start, end: Instant::now() });
            ran
        });
        let start = Instant::now();
        let done = device.finish();
        host.push(HostSpan { name: "wait", step: RUNS, start, end: Instant::now() });
        let timeline = device.stop_timeline()?;
        ran.and(done)?;
        let steps = RUNS * self.steps;
        self.about["device"] = json!(device.capabilities().name);
        self.about["steps"] = json!([1, steps]);
        write_trace(self.file, &trace_json(&timeline, &host, &self.about))?;
        let kernels = timeline.kernels();
        printer.profile(&Costs { kernels: &kernels, steps, ceilings })?;
        out::note(&format!(
            "trace: {} (ui.perfetto.dev opens it; clocks agree within {:.1} µs)",
            self.file.display(),
            timeline.clock_error_ns as f64 * 1e-3
        ));
        Ok(())
    }
}
