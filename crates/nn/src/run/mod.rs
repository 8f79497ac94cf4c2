//! The run folder: what a training leaves behind beside its checkpoints.
//!
//! `config.toml` repeats it, `metrics.jsonl` and TensorBoard events record every step, `report.html` shows it.

mod append;
mod folder;
mod lock;
mod metrics;
pub mod report;
mod speed;
mod tensorboard;
mod trace;

pub use folder::{Claim, RunFolder};
pub use lock::Lock;
pub use metrics::{MetricsLog, StepMetrics, read_metrics};
pub use speed::SpeedWindow;
pub use tensorboard::EventWriter;
pub use trace::{HostSpan, trace_json, write_trace};

use netcl_device::{Error, Result, files};
use std::{fs, path::Path};

/// Writes a file aside and renames it, so that a reader never sees half of it.
fn replace(path: &Path, content: &[u8]) -> Result<()> {
    // A pipe or a device such as /dev/stdout keeps its place.
    if path.exists() && !path.is_file() && !path.is_dir() {
        return fs::write(path, content).map_err(|e| Error::io("writing", path, &e));
    }
    files::replace(path, content).map_err(|e| Error::io("writing", path, &e))
}
