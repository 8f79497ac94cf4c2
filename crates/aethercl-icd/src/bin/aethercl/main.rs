//! `aethercl run PROGRAM …`: runs an OpenCL program on simulated GPUs and prints a report at its end.

mod compare;
mod start;

use aethercl::Checks;
use aethercl::report::{self, Summary};
use clap::{Parser, Subcommand};
use start::{Failure, How, start};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

/// AetherCL, simulated GPUs for programs that use OpenCL.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: What,
}

#[derive(Subcommand)]
enum What {
    /// Run a program on simulated GPUs; print findings, kernels by modeled time and transfers to standard error at the end.
    ///
    /// The exit code is that of the program. If it is 0: 7 with findings, 6 if a kernel or transfer failed.
    Run(Run),
    /// Run a program on several simulated GPUs in turn and compare the modeled times of its kernels.
    ///
    /// Standard output comes from the first run. The exit code is that of the first run that failed.
    Compare(compare::Compare),
}

#[derive(clap::Args)]
struct Run {
    /// Checks by name, comma-separated: bounds, uninitialized, races, barriers, division, contract; all, none.
    #[arg(long, default_value = Checks::DEFAULT)]
    check: String,
    /// Devices, comma-separated: h200, h100, rx7900xtx, arc-a770, adreno-750, mali-g720, teaching, or files that end in .toml.
    #[arg(long)]
    profile: Option<String>,
    /// Time limit of a work-group in seconds; 0 for no limit.
    #[arg(long)]
    timeout: Option<f64>,
    /// Also write the report as JSON to this file; - for standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write an HTML page: timeline, kernels and their limits, counts per source line, memory use.
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Number of kernels to show.
    #[arg(long, default_value_t = 20)]
    top: usize,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<String>,
}

/// Exit code if the program cannot be started, following the shell convention.
const NOT_STARTED: u8 = 127;
/// Exit code of other errors.
const ERROR: u8 = 1;

fn main() -> ExitCode {
    let ended = match Arguments::parse().command {
        What::Run(run) => run.run(),
        What::Compare(compare) => compare.run().map(|(table, status)| {
            say(&table);
            status.map_or(0, |status| code(status, None))
        }),
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            let (why, code) = match failure {
                Failure::NotStarted(why) => (why, NOT_STARTED),
                Failure::Other(why) => (why, ERROR),
            };
            say(&format!("error: {why}\n"));
            ExitCode::from(code)
        }
    }
}

fn say(text: &str) {
    // A closed stream is not an error of the program.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

impl Run {
    fn run(&self) -> Result<u8, Failure> {
        let profile = self.profile.as_deref();
        let detail = self.json.is_some() || self.html.is_some();
        let how = How { check: &self.check, profiles: profile, timeout: self.timeout, silent: false, detail };
        let (status, mut summary) = start(&self.program, how)?;
        if let Some(report) = summary.as_mut().and_then(|s| s.report.as_mut()) {
            report.title = self.program.join(" ");
        }
        match &summary {
            Some(summary) => self.show(summary)?,
            None => say("aethercl: the program did not use a simulated GPU, or did not exit normally\n"),
        }
        Ok(code(status, summary.as_ref()))
    }

    fn show(&self, summary: &Summary) -> Result<(), String> {
        say(&report::text(summary, self.top));
        if let (Some(path), Some(data)) = (&self.html, &summary.report) {
            let json = serde_json::to_string(data).map_err(|e| e.to_string())?;
            let page = report::page(&json);
            std::fs::write(path, page).map_err(|e| format!("{}: {e}", path.display()))?;
            say(&format!("wrote the page to {}\n", path.display()));
        }
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

fn code(status: ExitStatus, summary: Option<&Summary>) -> u8 {
    match status.code() {
        Some(0) => summary.map_or(0, Summary::exit_code),
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
