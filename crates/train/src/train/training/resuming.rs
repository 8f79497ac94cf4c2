//! The checkpoint that a run resumes from, and messages about changed settings.

use super::progress::Loop;
use crate::config::Changes;
use netcl_model::checkpoint::{Latest, Store};
use netcl_tensor::Result;
use std::path::Path;

/// Returns the newest intact checkpoint of the run in `dir`, which keeps `keep` of them. Damaged ones are skipped with a warning.
///
/// # Errors
/// `Format` if all checkpoints are damaged; `Io`.
pub(crate) fn newest(dir: &Path, keep: usize) -> Result<Option<Latest>> {
    let latest = Store::new(dir.join("checkpoints"), keep).latest()?;
    for warning in latest.iter().flat_map(|l| &l.warnings) {
        tracing::warn!("skipping a damaged checkpoint: {warning}");
    }
    Ok(latest)
}

/// Logs the changes of settings that begin with the next step.
pub(crate) fn tell_changes(changes: &Changes, progress: &Loop) {
    let next = progress.step + 1;
    changes.notes.iter().for_each(|note| tracing::info!("changed with step {next}: {note}"));
    if let Some(rate) = changes.rate.as_ref().filter(|_| !progress.is_finished()) {
        tracing::warn!("{rate}");
    }
}
