//! The commands, one file each, with `Args` (the help) and `run`. Commands that measure and teach are in `netcl-lab`.

mod build;
mod cache;
mod chat;
mod check_grammar;
mod classify;
mod defaults;
mod device_pool;
mod device_pool_picture;
mod devices;
mod doctor;
mod eval;
mod export;
#[cfg(test)]
mod flags;
mod generate;
mod graph;
mod kernels;
mod man;
mod models;
mod perplexity;
mod plan;
mod plan_devices;
mod quantize;
mod serve;
mod show_records;
mod spelling;
mod tokenizer;
mod train;
mod train_distributed;
mod train_images;
mod train_settings;

use crate::context::Context;
use crate::{logging, out};
use clap::error::ErrorKind as Usage;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use netcl::prelude::*;
use netcl_lab::{bench, learn, sim, tune};
use std::ffi::OsString;
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
    Generate(Box<generate::Args>),
    Chat(Box<chat::Args>),
    Serve(Box<serve::Args>),
    Perplexity(perplexity::Args),
    Eval(eval::Args),
    Classify(classify::Args),
    Graph(graph::Args),
    Plan(Box<plan_devices::Args>),
    Devices(devices::Args),
    Doctor(doctor::Args),
    Tokenizer(tokenizer::Args),
    Models(models::Args),
    Quantize(quantize::Args),
    Export(export::Args),
    Bench(bench::Args),
    Tune(tune::Args),
    Cache(cache::Args),
    Sim(sim::Args),
    Learn(learn::Args),
    Completions(man::CompletionArgs),
    Man(man::Args),
    #[command(hide = true)]
    Kernels(kernels::Args),
    #[command(hide = true)]
    BuildKernels(build::Args),
    #[command(hide = true)]
    CheckGrammar(check_grammar::Args),
}

impl Command {
    fn run(&self, context: &Context) -> Result<()> {
        match self {
            Self::Train(args) => train::run(args, context),
            Self::Generate(args) => generate::run(args, context),
            Self::Chat(args) => chat::run(args, context),
            Self::Serve(args) => serve::run(args, context),
            Self::Perplexity(args) => perplexity::run(args, context),
            Self::Eval(args) => eval::run(args, context),
            Self::Classify(args) => classify::run(args, context),
            Self::Graph(args) => graph::run(args, context),
            Self::Plan(args) => plan_devices::run(args, context),
            Self::Devices(args) => devices::run(args, context),
            Self::Doctor(args) => doctor::run(args, context),
            Self::Tokenizer(args) => tokenizer::run(args, context),
            Self::Models(args) => models::run(args, context),
            Self::Quantize(args) => quantize::run(args, context),
            Self::Export(args) => export::run(args, context),
            Self::Bench(args) => bench::run(args, context),
            Self::Tune(args) => tune::run(args, context),
            Self::Cache(args) => cache::run(args, context),
            Self::Sim(args) => sim::run(args),
            Self::Learn(args) => learn::run(args, context),
            Self::Completions(args) => man::completions(args, command(&[])),
            Self::Man(args) => man::run(args, command(&[])),
            Self::Kernels(args) => kernels::run(args, context),
            Self::BuildKernels(args) => build::run(args, context),
            Self::CheckGrammar(args) => check_grammar::run(args, context),
        }
    }
}

/// Returns the command line, with the defaults that `args` select in its help.
fn command(args: &[OsString]) -> clap::Command {
    let command = spelling::with_negative_numbers(Cli::command());
    command.mut_subcommand("train", |train| defaults::show(train, defaults::preset(args)))
}

/// Parses `args`; on a mistake, prints it and exits with code 2.
fn parse(args: &[OsString]) -> Cli {
    let mut known = command(args);
    let args = spelling::with_dashes(&known, args);
    let mistaken = |known: &mut clap::Command, cli: &Cli| {
        let (name, message) = match &cli.command {
            Command::Train(train) => ("train", train.mistake()?),
            _ => return None,
        };
        Some(known.find_subcommand_mut(name)?.error(Usage::WrongNumberOfValues, message))
    };
    let matches =
        known.try_get_matches_from_mut(args).unwrap_or_else(|e| spelling::mended(e, &mut known).exit());
    match Cli::from_arg_matches(&matches) {
        Ok(cli) => match mistaken(&mut known, &cli) {
            Some(error) => error.exit(),
            None => cli,
        },
        Err(error) => error.format(&mut known).exit(),
    }
}

/// Parses the command line, runs the command, and returns its exit code: 0 on success, 1 and above by kind of error, 2 for wrong usage, 129, 130 and
/// 143 after a signal.
pub fn main() -> ExitCode {
    let cli = parse(&std::env::args_os().collect::<Vec<_>>());
    let rank = netcl::dist::launched(&|name| std::env::var(name).ok()).map_or(0, |launcher| launcher.rank);
    let json = matches!(&cli.command, Command::Serve(args) if args.logs_json());
    logging::init(rank == 0, json);
    let context = match Context::new() {
        Ok(context) => context,
        Err(e) => return out::failure(&e),
    };
    let of_signal = || context.signal().map_or(ExitCode::SUCCESS, |signal| ExitCode::from(128 + signal));
    match cli.command.run(&context) {
        Err(e) if !out::is_broken_pipe(&e) => {
            let code = out::failure(&e);
            if context.ended_early() { of_signal() } else { code }
        }
        _ => of_signal(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
