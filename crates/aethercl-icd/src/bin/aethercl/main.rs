//! `aethercl run PROGRAM …`: runs a program that uses OpenCL on simulated GPUs, and tells at its end what it did there.

mod show;

use aethercl_icd::summary::Summary;
use clap::{Parser, Subcommand};
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

/// AetherCL, simulated GPUs for programs that use OpenCL.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: What,
}

#[derive(Subcommand)]
enum What {
    /// Runs a program on simulated GPUs; findings, kernels by modelled time and transfers come last, on standard error.
    ///
    /// The exit code is the program's own. Where that is 0: 3 with findings, 4 where a kernel or transfer failed.
    Run(Run),
}

#[derive(clap::Args)]
struct Run {
    /// What is looked for in every launch: bounds, uninitialized, races, barriers, division, contract, all, none.
    #[arg(long, default_value = "none")]
    check: String,
    /// Devices, separated by commas: h200, rx7900xtx, arc-a770, adreno-750, teaching, or files that end in .toml.
    #[arg(long)]
    profile: Option<String>,
    /// Seconds that a work-group may take; 0 for as long as it takes.
    #[arg(long)]
    timeout: Option<f64>,
    /// Also writes all of it as JSON into this file; - for standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Kernels that are shown.
    #[arg(long, default_value_t = 20)]
    top: usize,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<String>,
}

/// Where the program ended well and checks found something.
const FOUND: u8 = 3;
/// Where it ended well and a command failed.
const FAILED: u8 = 4;
/// As a shell has it for a program that cannot be started.
const NOT_STARTED: u8 = 127;

fn main() -> ExitCode {
    let What::Run(run) = Arguments::parse().command;
    match run.run() {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            say(&format!("error: {why}\n"));
            ExitCode::from(NOT_STARTED)
        }
    }
}

fn say(text: &str) {
    // A closed stream is no error of the program.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

impl Run {
    fn run(&self) -> Result<u8, String> {
        aethercl::Checks::parse(&self.check)?;
        let library = library()?;
        let folder = tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))?;
        let vendors = folder.path().join("vendors");
        let inside = |e: std::io::Error| format!("{}: {e}", folder.path().display());
        std::fs::create_dir(&vendors).map_err(inside)?;
        let line = format!("{}\n", library.display());
        std::fs::write(vendors.join("aethercl.icd"), line).map_err(inside)?;
        let mut command = Command::new(&self.program[0]);
        command.args(&self.program[1..]);
        // The one for Khronos' loader, the other for both; a trailing slash tells ocl-icd that it is a folder.
        command.env("OCL_ICD_FILENAMES", &library).env("OCL_ICD_VENDORS", format!("{}/", vendors.display()));
        command.env("AETHERCL_REPORT", folder.path().join("%p.json")).env("AETHERCL_CHECK", &self.check);
        if let Some(profiles) = &self.profile {
            command.env("AETHERCL_PROFILES", profiles);
        }
        if let Some(seconds) = self.timeout {
            command.env("AETHERCL_TIMEOUT", seconds.to_string());
        }
        let status = command.status().map_err(|e| format!("{}: {e}", self.program[0]))?;
        let summary = collect(folder.path())?;
        match &summary {
            Some(summary) => self.show(summary)?,
            None => say("aethercl: the program used no simulated GPU, or was ended before it could tell\n"),
        }
        Ok(code(status, summary.as_ref()))
    }

    fn show(&self, summary: &Summary) -> Result<(), String> {
        say(&show::text(summary, self.top));
        let Some(path) = &self.json else { return Ok(()) };
        let mut text = serde_json::to_string_pretty(summary).map_err(|e| e.to_string())?;
        text.push('\n');
        let written = if path == Path::new("-") {
            std::io::stdout().write_all(text.as_bytes())
        } else {
            std::fs::write(path, text)
        };
        written.map_err(|e| format!("{}: {e}", path.display()))
    }
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

fn code(status: ExitStatus, summary: Option<&Summary>) -> u8 {
    match status.code() {
        Some(0) if summary.is_some_and(|s| !s.failures.is_empty()) => FAILED,
        Some(0) if summary.is_some_and(|s| !s.findings.is_empty()) => FOUND,
        Some(code) => u8::try_from(code & 0xff).unwrap_or(1),
        None => 128 + signal(status),
    }
}

#[cfg(unix)]
fn signal(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    status.signal().and_then(|n| u8::try_from(n).ok()).unwrap_or(0)
}
#[cfg(not(unix))]
fn signal(_: ExitStatus) -> u8 {
    0
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
