//! The run folder: files that a training run writes in addition to its checkpoints.
//!
//! `config.toml` has the settings to repeat the run, `metrics.jsonl` and TensorBoard events record every step, and `report.html` summarizes it.

mod append;
mod folder;
mod lock;
mod metrics;
pub mod report;
mod speed;
mod tensorboard;
mod trace;

pub use folder::{Claim, Recorded, RunFolder, RunSettings};
pub use lock::Lock;
pub use metrics::{MetricsLog, Record, StepMetrics, read_metrics};
pub use speed::SpeedWindow;
pub use tensorboard::EventWriter;
pub use trace::{HostSpan, trace_json, write_trace};

use netcl_device::{Error, Result, files};
use std::{fs, path::Path};

/// Writes a file under a temporary name and renames it, so that readers never see an incomplete file.
fn replace(path: &Path, content: &[u8]) -> Result<()> {
    // A pipe or a device such as /dev/stdout is written directly, not replaced.
    if path.exists() && !path.is_file() && !path.is_dir() {
        return fs::write(path, content).map_err(|e| Error::io("writing", path, &e));
    }
    files::replace(path, content).map_err(|e| Error::io("writing", path, &e))
}
