//! `--profile` of benchmarks: the time per kernel of a whole training step or a generated text.

use super::line::Printer;
use crate::out;
use crate::profile::{self, Costs};
use netcl::prelude::*;
use netcl::train::run::{HostSpan, trace_json, write_trace};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Returns the path of the trace of one of several models.
pub fn file_of(file: &Path, preset: &str, alone: bool) -> PathBuf {
    if alone {
        return file.into();
    }
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let extension = file.extension().map_or("json".into(), |e| e.to_string_lossy());
    file.with_file_name(format!("{stem}-{preset}.{extension}"))
}

/// Number of profiled runs.
const RUNS: u64 = 3;

/// The profiled work, and the path of the trace.
pub struct Profile<'a> {
    pub device: &'a Device,
    /// Type of the products whose peak rate is measured.
    pub dtype: DType,
    /// Metadata of the trace.
    pub about: Value,
    /// Steps per run, by which the table divides.
    pub steps: u64,
    pub file: &'a Path,
}

impl Profile<'_> {
    /// Prints the device time of further runs by kernel, the most expensive first, as a table, and writes a trace. The overhead of timing each launch
    /// is not included.
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
