//! The `netcl` program: parses and runs a command, and maps an error to an exit code.

mod cmd;
mod context;
mod logging;
mod progress;
mod reading;
mod sampling;
mod together;

use netcl_lab::{loading, named, out, profile, ranks, shell, table};
use std::process::ExitCode;

fn main() -> ExitCode {
    logging::report_panics();
    cmd::main()
}
