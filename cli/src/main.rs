//! The `netcl` program: parse, run, map the error to an exit code.

mod bytes;
mod cmd;
mod context;
mod loading;
mod named;
mod out;
mod profile;
mod progress;
mod ranks;
mod reading;
mod sampling;
mod shell;
mod table;
mod together;

use std::process::ExitCode;

fn main() -> ExitCode {
    out::report_panics();
    cmd::main()
}
