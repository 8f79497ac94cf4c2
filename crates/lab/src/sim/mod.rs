//! `netcl sim`: runs one kernel of a file on the simulated GPU, with its results, the findings of the checks, and the modeled time of a GPU.

mod arg;
mod content;
mod fit;
mod image;
mod npy;
mod number;
mod page;
pub(crate) mod report;
mod session;
mod times;

use crate::out;
use aethercl::Checks;
use aethercl::machine::{MachineOptions, Narrator, TraceLevel};
use netcl::device::{check_writable, counted};
use netcl::prelude::*;
pub(crate) use session::profile;
use session::{Files, LaunchArgs, Session};
use std::path::PathBuf;

/// Run OpenCL C on the simulated GPU: results, defects, counters, modeled time
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Run a kernel; print results, findings, counters and modeled time; exit codes as in check
    Run(Box<RunArgs>),
    /// Run a kernel with every check; exit code 7: finding, 6: launch failed or hangs, 5: build failed
    ///
    /// Without --global, only builds the file.
    Check(Box<CheckArgs>),
    /// Time the kernels of a list on a device and compare with the modeled times
    Times(times::TimesArgs),
}

#[derive(clap::Args)]
struct RunArgs {
    #[command(flatten)]
    launch: LaunchArgs,
    /// Checks by name, separated by commas; all, none
    #[arg(long, default_value = Checks::DEFAULT)]
    check: String,
    /// Write an HTML page with timeline, limits of the kernel, figures per source line, memory
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Write a timeline for ui.perfetto.dev
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    /// Describe each step on stderr: off, commands, steps, all
    #[arg(long, default_value = "off", value_name = "LEVEL")]
    trace_level: TraceLevel,
    /// Elements of each buffer to print
    #[arg(long, default_value_t = 16)]
    show: usize,
    /// Write a buffer to a file after the launch (repeatable) [default buffer: the one that is written]
    ///
    /// The file has raw bytes, or is a .npy file.
    #[arg(long, value_name = "[NAME=]FILE")]
    out: Vec<String>,
}

#[derive(clap::Args)]
struct CheckArgs {
    #[command(flatten)]
    launch: LaunchArgs,
    /// Checks by name, separated by commas
    #[arg(long, default_value = "all")]
    check: String,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    match &args.action {
        Action::Run(a) => {
            a.trace.as_deref().map_or(Ok(()), check_writable)?;
            a.html.as_deref().map_or(Ok(()), check_writable)?;
            let options = MachineOptions {
                timeline: a.trace.is_some(),
                narrator: Narrator::new(a.trace_level, Some(Box::new(out::note))),
                count_all: true,
                journal: a.html.is_some(),
                ..MachineOptions::default()
            };
            let session = Session::open(&a.launch, &a.check, options)?;
            let report = session
                .run(a.show, &Files { trace: a.trace.as_deref(), html: a.html.as_deref(), out: &a.out })?;
            if a.launch.json {
                out::json(&report)?
            } else {
                out::result(&report.text(true))?
            }
            report.verdict()
        }
        Action::Check(a) => check(a),
        Action::Times(a) => times::run(a),
    }
}

fn check(a: &CheckArgs) -> Result<()> {
    let session =
        Session::open(&a.launch, &a.check, MachineOptions { count_none: true, ..MachineOptions::default() })?;
    if a.launch.global.is_none() && a.launch.args.is_empty() {
        let kernels = session.program.kernels().len();
        if a.launch.json {
            return out::json(&report::Report::default());
        }
        return out::result(&format!(
            "{} builds; {}. With --global and --arg, one of them also runs with all checks",
            a.launch.file.display(),
            counted(kernels, "kernel")
        ));
    }
    let report = session.run(0, &Files::default())?;
    if a.launch.json {
        out::json(&report)?;
    } else {
        out::result(&report.text(false))?;
    }
    report.verdict()
}
