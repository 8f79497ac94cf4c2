//! Starts a program with environment variables that make it load the driver, and reads the reports that the driver wrote.

use aethercl::report::Summary;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Options of a run.
#[derive(Clone, Copy, Default)]
pub struct How<'a> {
    /// Names of the checks.
    pub check: &'a str,
    /// Devices; `None` for the driver's default.
    pub profiles: Option<&'a str>,
    /// Time limit of a work-group in seconds.
    pub timeout: Option<f64>,
    /// Whether to discard the program's standard output.
    pub silent: bool,
    /// Whether to record the data of the HTML page.
    pub detail: bool,
}

/// Reason for a missing report.
pub enum Failure {
    /// The program cannot be started.
    NotStarted(String),
    /// An error in settings, files or folders.
    Other(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

/// Runs a program to its end; returns its exit status and the merged reports, if it used the driver.
pub fn start(program: &[String], how: How<'_>) -> Result<(ExitStatus, Option<Summary>), Failure> {
    let How { check, profiles, timeout, silent, detail } = how;
    aethercl::Checks::parse(check).map_err(|e| format!("--check: {e}"))?;
    let library = library()?;
    let folder = tempfile::tempdir().map_err(|e| format!("cannot create a temporary folder: {e}"))?;
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
    // `OCL_ICD_FILENAMES` is for the Khronos loader, `OCL_ICD_VENDORS` for both loaders; ocl-icd needs the trailing slash to see a folder.
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
    let status = command.status().map_err(|e| Failure::NotStarted(format!("{}: {e}", program[0])))?;
    Ok((status, collect(folder.path())?))
}

/// Merges the reports of all processes; `None` without reports.
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

/// Returns the path of the driver: `AETHERCL_LIBRARY`, or a library in the folder of this program or in `../lib`.
fn library() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("AETHERCL_LIBRARY") {
        let path = PathBuf::from(path);
        return if path.is_file() {
            std::path::absolute(&path).map_err(|e| e.to_string())
        } else {
            Err(format!("AETHERCL_LIBRARY: {} is not a file", path.display()))
        };
    }
    let own = std::env::current_exe().map_err(|e| format!("cannot find the path of this program: {e}"))?;
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
    Err(format!("no libaethercl.so in{looked}; set AETHERCL_LIBRARY to its path"))
}
