//! `netcl graph`: a model's computation as a file of operations and weights, to inspect and to run on any device.

use crate::context::Context;
use crate::out;
use clap::{Args as ClapArgs, Subcommand};
use netcl::prelude::*;
use netcl::tensor::opgraph::OpGraph;
use netcl::train::images::classifier::Classifier;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Save a model as a graph of operations, show it, and run it
///
/// A graph is one safetensors file with the weights and the operations, their shapes and attributes. It runs on any device; each device chooses its
/// own kernels.
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Save(Save),
    Show(Show),
    Run(Run),
}

/// Save a model as a graph
///
/// A classifier of images takes `image` (rows, channels, height, width) with values from 0 to 1, and returns the probability of each class. A
/// language model takes `ids` (rows, tokens), and returns logits (rows, tokens, vocabulary). Both accept any number of rows.
#[derive(ClapArgs, Debug)]
struct Save {
    /// Run folder of a classifier or a language model, or a folder in the Hugging Face layout
    #[arg(short, long, value_name = "DIR")]
    model: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Tokens per row, for a language model
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// Device that records the graph
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,
}

/// Show a graph: operations with shapes, layers, and the kernels of the recording device
#[derive(ClapArgs, Debug)]
struct Show {
    /// Graph file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print in Graphviz's format
    #[arg(long, group = "form")]
    dot: bool,
    /// Print as an SVG image
    #[arg(long, group = "form")]
    svg: bool,
    /// Print addresses and live ranges of buffers
    #[arg(long, group = "form")]
    memory: bool,
    /// Print as JSON
    #[arg(long, group = "form")]
    json: bool,
    /// Rows that memory is planned for, rounded up as in a run
    #[arg(long, value_name = "N", default_value_t = 1, requires = "memory", value_parser = clap::value_parser!(u32).range(1..))]
    rows: u32,
    /// Device that memory is planned for
    #[arg(long, value_name = "DEVICE", default_value = "auto", requires = "memory")]
    device: String,
}

/// Run a graph on zeros; print its outputs and times
#[derive(ClapArgs, Debug)]
struct Run {
    /// Graph file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Rows of the inputs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rows: u32,
    /// Runs after the first one, of which the median is printed
    #[arg(long, value_name = "N", default_value_t = 10)]
    repeats: u32,
    /// Device
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    match &args.command {
        Command::Save(save) => save.run(context),
        Command::Show(show) => show.run(context),
        Command::Run(run) => run.run(context),
    }
}

/// Records the computation of the model in a folder.
fn recorded(device: &Device, model: &Path, tokens: usize) -> Result<OpGraph> {
    if model.join("classifier.json").exists() {
        return Classifier::open(device, model)?.graph();
    }
    let decoder = Decoder::open(device, model, None)?;
    let tokens = tokens.min(decoder.config().context);
    let ids = Tensor::from_u32(device, [1, tokens], &vec![0; tokens])?;
    OpGraph::for_any_rows(&[("ids", &ids)], |x| Ok(vec![decoder.forward(&x[0], Mode::eval())?]))
}

impl Save {
    fn run(&self, context: &Context) -> Result<()> {
        netcl::device::check_writable(&self.output)?;
        let device = context.open_device(&self.device)?;
        let graph = recorded(&device, &self.model, self.tokens as usize)?;
        graph.save(&self.output)?;
        let spec = graph.spec();
        out::result(&format!(
            "{}: {} operations, {} weights",
            self.output.display(),
            spec.nodes.len(),
            spec.weights.len()
        ))
    }
}

impl Show {
    fn run(&self, context: &Context) -> Result<()> {
        if self.memory {
            let graph = OpGraph::load(&self.file, &context.open_device(&self.device)?)?;
            return out::result(&graph.memory(self.rows as usize)?.to_string());
        }
        let spec = netcl::tensor::opgraph::read_spec(&self.file)?;
        if self.dot {
            out::result(spec.to_dot().trim_end())
        } else if self.svg {
            out::result(spec.to_svg().trim_end())
        } else if self.json {
            out::json(&spec.to_json())
        } else {
            out::result(&spec.to_string())
        }
    }
}

impl Run {
    fn run(&self, context: &Context) -> Result<()> {
        let device = context.open_device(&self.device)?;
        let started = Instant::now();
        let graph = OpGraph::load(&self.file, &device)?;
        let loaded = started.elapsed().as_secs_f64();
        let rows = if graph.spec().any_rows { self.rows as usize } else { graph.spec().rows };
        let zeros = |input: &netcl::tensor::opgraph::spec::GraphInput| {
            Tensor::zeros(&device, input.form.dims(rows)?, input.form.dtype)
        };
        let inputs = graph.spec().inputs.iter().map(zeros).collect::<Result<Vec<_>>>()?;
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let results = graph.run(&inputs)?;
        device.finish()?;
        let first = started.elapsed().as_secs_f64();
        let mut times = Vec::new();
        for _ in 0..self.repeats {
            let begun = Instant::now();
            graph.run(&inputs)?;
            device.finish()?;
            times.push(begun.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let median = times.get(times.len() / 2).copied();
        let shapes: Vec<String> = results.iter().map(|y| format!("{} {:?}", y.dtype(), y.dims())).collect();
        if self.json {
            return out::json(&serde_json::json!({
                "device": device.capabilities().id,
                "rows": rows,
                "results": shapes,
                "loaded_ms": 1e3 * loaded,
                "first_result_ms": 1e3 * first,
                "run_ms": median.map(|t| 1e3 * t),
            }));
        }
        out::result(&format!("results {}", shapes.join(", ")))?;
        out::result(&format!("loaded in {:.1} ms, first result after {:.1} ms", 1e3 * loaded, 1e3 * first))?;
        match median {
            Some(median) => {
                out::result(&format!("then {:.2} ms per run (median of {})", 1e3 * median, self.repeats))
            }
            None => Ok(()),
        }
    }
}
