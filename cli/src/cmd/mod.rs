//! The commands, one file each.

mod generate;
mod train;

use crate::context::Context;
use crate::out;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Train and run language models on any OpenCL device.
#[derive(Parser)]
#[command(name = "netcl", version, about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Train(Box<train::Args>),
    Generate(generate::Args),
}

/// Parses the command line, runs the command, and says how it ended: 0 done, 1 and above by kind of error, 2 usage,
/// 130 and 143 stopped by a signal.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    out::init_logging();
    let context = match Context::new() {
        Ok(context) => context,
        Err(e) => return out::failure(&e),
    };
    let result = match &cli.command {
        Command::Train(args) => train::run(args, &context).map(|_| ()),
        Command::Generate(args) => generate::run(args, &context),
    };
    match result {
        Err(e) if out::is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => out::failure(&e),
        Ok(()) => context.signal().map_or(ExitCode::SUCCESS, |signal| ExitCode::from(128 + signal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
