//! `netcl sim run --html`.

use aethercl::report::{self, Device, Summary};
use netcl::prelude::*;
use std::path::Path;

/// Writes the page of a run on one device.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, title: &str, device: Device, summary: &Summary) -> Result<()> {
    let mut report =
        report::RunReport { title: title.into(), devices: vec![device], ..report::RunReport::default() };
    summary.copy_to(&mut report);
    let json = serde_json::to_string(&report).map_err(|e| Error::format(e.to_string()))?;
    std::fs::write(path, report::page(&json)).map_err(|e| Error::io("writing", path, &e))
}
