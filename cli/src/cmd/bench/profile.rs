//! Where the time of a whole training step or of a generated text goes: `--profile` of the benchmarks that measure one.

use super::Bench;
use crate::out;
use crate::profile::{self, Costs};
use netcl::nn::run::{HostSpan, trace_json, write_trace};
use netcl::prelude::*;
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

/// Device time of further runs by kernel, the most expensive first, as a table and as a trace in `file`; a run is `steps` steps, by
/// which the table divides. Timing each launch takes time of its own, which is not in here. `about` goes into the trace.
pub fn profile(
    bench: &mut Bench,
    about: &Value,
    steps: u64,
    file: &Path,
    run: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let device = bench.device.clone();
    let ceilings = profile::ceilings(&device, bench.dtype)?;
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
    let mut about = about.clone();
    about["device"] = json!(device.capabilities().name);
    about["steps"] = json!([1, RUNS * steps]);
    write_trace(file, &trace_json(&timeline, &host, &about))?;
    let kernels = timeline.kernels();
    bench.printer.profile(&Costs { kernels: &kernels, steps: RUNS * steps, ceilings })?;
    out::note(&format!(
        "trace: {} (ui.perfetto.dev opens it; clocks agree within {:.1} µs)",
        file.display(),
        timeline.clock_error_ns as f64 * 1e-3
    ));
    Ok(())
}
