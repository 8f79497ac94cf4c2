//! `netcl generate`: continues a prompt with a trained model.

use crate::context::Context;
use crate::named::named_by;
use crate::out;
use clap::Args as ClapArgs;
use netcl::device::counted;
use netcl::nn::config::{DTYPES, storage_type};
use netcl::nn::generate::{Generation, Sampling};
use netcl::nn::tokenizer::Tokenizer;
use netcl::nn::train::model_from_dir;
use netcl::prelude::*;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Continue a prompt with a trained model.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Run folder, checkpoint, or a folder in the Hugging Face layout: GPT-2, Llama, Mistral, Qwen, Gemma, Phi 3, OLMo 2 and others.
    #[arg(short, long, value_name = "DIR")]
    model: PathBuf,
    /// Text to continue; - reads it from standard input, without the line end at its end. Without it, a new line.
    #[arg(short, long, allow_hyphen_values = true)]
    prompt: Option<String>,
    /// New tokens.
    #[arg(short, long = "n-predict", default_value_t = 256)]
    n: usize,
    /// Divides the logits; 0 always takes the likeliest token.
    #[arg(long, visible_alias = "temp", default_value_t = 0.8)]
    temperature: f32,
    /// Keep the K likeliest tokens; 0 keeps all.
    #[arg(long, default_value_t = 200)]
    top_k: usize,
    /// Keep the likeliest tokens that together reach this probability.
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// Drop tokens less likely than this share of the likeliest.
    #[arg(long, default_value_t = 0.0)]
    min_p: f32,
    /// The same seed gives the same text.
    #[arg(short, long, default_value_t = 0)]
    seed: u64,
    /// Storage of the weights, by any name such as bfloat16 or half; without it, as stored.
    #[arg(long, value_parser = named_by(&DTYPES, storage_type))]
    dtype: Option<DType>,
    /// Device, as for `train`.
    #[arg(long, visible_alias = "gpu_id", default_value = "auto")]
    device: String,
    /// Do not stop at the end-of-text token.
    #[arg(long)]
    ignore_eos: bool,
    /// Print one JSON object with text, tokens and speed instead of streaming.
    #[arg(long)]
    json: bool,
}

/// The prompt as it was given, or what standard input has. An editor or `echo` ends a text with a line end that nobody means.
fn given(prompt: &str) -> Result<String> {
    if prompt != "-" {
        return Ok(prompt.to_owned());
    }
    let mut text = String::new();
    let read = std::io::stdin().lock().read_to_string(&mut text);
    read.map_err(|e| Error::io("reading the prompt from", Path::new("standard input"), &e))?;
    let end = if text.ends_with("\r\n") { 2 } else { usize::from(text.ends_with('\n')) };
    text.truncate(text.len() - end);
    Ok(text)
}

/// What a text begins with where no prompt is given: a new line, or what the tokenizer has instead of it.
fn beginning(tokenizer: &Tokenizer) -> Vec<u32> {
    let line = tokenizer.encode("\n").ok().filter(|ids| !ids.is_empty());
    let first = || (0..u32::MAX).take(tokenizer.vocab_size()).find(|id| tokenizer.knows(*id)).unwrap_or(0);
    line.unwrap_or_else(|| vec![tokenizer.eos().unwrap_or_else(first)])
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        seed: args.seed,
    };
    sampling.validate()?;
    let prompt = args.prompt.as_deref().map(given).transpose()?;
    let device = context.open_device(&args.device)?;
    let (model, tokenizer, dir) = model_from_dir(&device, &args.model, args.dtype)?;
    let tokenizer = tokenizer.ok_or_else(|| {
        Error::format(format!(
            "{} has no tokenizer.json: the prompt cannot be turned into tokens",
            dir.display()
        ))
    })?;
    let ids = match &prompt {
        Some(text) => tokenizer.encode(text)?,
        None => beginning(&tokenizer),
    };
    let prompt = prompt.map_or_else(|| tokenizer.decode(&ids), Ok)?;
    let mut stream = tokenizer.stream();
    let mut text = String::new();
    if !args.json {
        out::stream(&prompt)?;
    }
    let started = Instant::now();
    let mut made = Vec::new();
    context.polite();
    for id in Generation::new(&model, &ids, sampling)?.within(&tokenizer)?.take(args.n) {
        let id = id?;
        if context.interrupted() || (!args.ignore_eos && tokenizer.eos() == Some(id)) {
            break;
        }
        made.push(id);
        let piece = stream.push(id)?;
        if args.json { text.push_str(&piece) } else { out::stream(&piece)? }
    }
    let rest = stream.finish()?;
    let speed = made.len() as f64 / started.elapsed().as_secs_f64().max(1e-9);
    if args.json {
        text.push_str(&rest);
        let object = serde_json::json!({
            "prompt": prompt, "text": text, "tokens": made, "tokens_per_s": speed, "model": dir,
        });
        return out::result(&object.to_string());
    }
    out::stream(&rest)?;
    out::result("")?;
    tracing::info!("{}, {speed:.1} tokens/s", counted(made.len(), "token"));
    Ok(())
}
