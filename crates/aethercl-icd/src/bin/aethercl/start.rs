//! Starts a program so that it finds the driver, and collects what the driver wrote.

use aethercl_icd::summary::Summary;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// How a program is run.
#[derive(Clone, Copy, Default)]
pub struct How<'a> {
    /// Checks.
    pub check: &'a str,
    /// Devices; the driver's own choice without.
    pub profiles: Option<&'a str>,
    /// Seconds that a work-group may take.
    pub timeout: Option<f64>,
    /// Its standard output is dropped.
    pub silent: bool,
    /// The summary has a report with details.
    pub detail: bool,
}

/// Runs a program to its end; what it did on simulated GPUs, if anything.
pub fn start(program: &[String], how: How<'_>) -> Result<(ExitStatus, Option<Summary>), String> {
    let How { check, profiles, timeout, silent, detail } = how;
    aethercl::Checks::parse(check)?;
    let library = library()?;
    let folder = tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))?;
    let vendors = folder.path().join("vendors");
    let inside = |e: std::io::Error| format!("{}: {e}", folder.path().display());
    std::fs::create_dir(&vendors).map_err(inside)?;
    let line = format!("{}\n", library.display());
    std::fs::write(vendors.join("aethercl.icd"), line).map_err(inside)?;
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    if silent {
        command.stdout(Stdio::null());
    }
    // The one for Khronos' loader, the other for both; a trailing slash tells ocl-icd that it is a folder.
    command.env("OCL_ICD_FILENAMES", &library).env("OCL_ICD_VENDORS", format!("{}/", vendors.display()));
    command.env("AETHERCL_REPORT", folder.path().join("%p.json")).env("AETHERCL_CHECK", check);
    if detail {
        command.env("AETHERCL_REPORT_DETAIL", "1");
    } else {
        command.env_remove("AETHERCL_REPORT_DETAIL");
    }
    if let Some(profiles) = profiles {
        command.env("AETHERCL_PROFILES", profiles);
    }
    if let Some(seconds) = timeout {
        command.env("AETHERCL_TIMEOUT", seconds.to_string());
    }
    let status = command.status().map_err(|e| format!("{}: {e}", program[0]))?;
    Ok((status, collect(folder.path())?))
}

/// What the processes of the program wrote; none where none did.
fn collect(folder: &Path) -> Result<Option<Summary>, String> {
    let mut all: Option<Summary> = None;
    for entry in std::fs::read_dir(folder).map_err(|e| e.to_string())?.flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let one: Summary = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        all.get_or_insert_default().add(one);
    }
    Ok(all)
}

/// The driver: `AETHERCL_LIBRARY`, or one of its names beside this program or in `lib` beside its folder.
fn library() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("AETHERCL_LIBRARY") {
        let path = PathBuf::from(path);
        return if path.is_file() {
            std::path::absolute(&path).map_err(|e| e.to_string())
        } else {
            Err(format!("AETHERCL_LIBRARY: {} is no file", path.display()))
        };
    }
    let own = std::env::current_exe().map_err(|e| format!("where this program is: {e}"))?;
    let beside = own.parent().unwrap_or(Path::new("."));
    let mut looked = String::new();
    for folder in [beside.to_path_buf(), beside.join("../lib")] {
        for name in ["libaethercl.so", "libaethercl_icd.so", "libaethercl.dylib", "aethercl.dll"] {
            let path = folder.join(name);
            if path.is_file() {
                return Ok(path);
            }
        }
        let _ = write!(looked, " {}", folder.display());
    }
    Err(format!("there is no libaethercl.so in{looked}; AETHERCL_LIBRARY names it"))
}
