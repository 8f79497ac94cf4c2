//! The commands, one file each: `Args` with the help, and `run`.

mod bench;
mod cache;
mod devices;
mod doctor;
mod generate;
mod kernels;
mod sim;
mod tokenizer;
mod train;
mod tune;

use crate::context::Context;
use crate::out;
use clap::{Parser, Subcommand};
use netcl::prelude::*;
use std::process::ExitCode;

/// Train and run language models on any OpenCL device.
#[derive(Parser)]
#[command(name = "netcl", version, about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The size of a model, as every command that makes one takes it.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
struct ModelSize {
    /// Transformer blocks.
    #[arg(long)]
    layers: Option<usize>,
    /// Attention heads; they divide the width.
    #[arg(long)]
    heads: Option<usize>,
    /// Width of the residual stream.
    #[arg(long)]
    width: Option<usize>,
    /// Longest sequence, in tokens.
    #[arg(long, visible_alias = "block-size")]
    context: Option<usize>,
}

#[derive(Subcommand)]
enum Command {
    Train(Box<train::Args>),
    Generate(generate::Args),
    Devices(devices::Args),
    Doctor(doctor::Args),
    Tokenizer(tokenizer::Args),
    Bench(bench::Args),
    Tune(tune::Args),
    Cache(cache::Args),
    Sim(sim::Args),
    #[command(hide = true)]
    Kernels(kernels::Args),
}

impl Command {
    /// Whether the command stops in its own time when a signal comes; the others end at once.
    fn stops_itself(&self) -> bool {
        matches!(self, Self::Train(_) | Self::Generate(_))
    }

    fn run(&self, context: &Context) -> Result<()> {
        match self {
            Self::Train(args) => train::run(args, context).map(|_| ()),
            Self::Generate(args) => generate::run(args, context),
            Self::Devices(args) => devices::run(args, context),
            Self::Doctor(args) => doctor::run(args, context),
            Self::Tokenizer(args) => tokenizer::run(args, context),
            Self::Bench(args) => bench::run(args, context),
            Self::Tune(args) => tune::run(args, context),
            Self::Cache(args) => cache::run(args, context),
            Self::Sim(args) => sim::run(args),
            Self::Kernels(args) => kernels::run(args, context),
        }
    }
}

/// Parses the command line, runs the command, and says how it ended: 0 done, 1 and above by kind of error, 2 usage,
/// 130 and 143 stopped by a signal.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    out::init_logging();
    let context = match Context::new(cli.command.stops_itself()) {
        Ok(context) => context,
        Err(e) => return out::failure(&e),
    };
    match cli.command.run(&context) {
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
