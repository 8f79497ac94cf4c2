//! `netcl generate`: continues a prompt with a trained model.

use crate::context::Context;
use crate::out;
use clap::Args as ClapArgs;
use netcl::device::counted;
use netcl::nn::generate::{Generation, Sampling};
use netcl::nn::train::model_from_dir;
use netcl::prelude::*;
use std::path::PathBuf;
use std::time::Instant;

/// Continue a prompt with a trained model.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Run folder, checkpoint, or any GPT-2 folder in the Hugging Face layout.
    #[arg(short, long, value_name = "DIR")]
    model: PathBuf,
    /// Text to continue.
    #[arg(short, long, default_value = "\n")]
    prompt: String,
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
    /// Storage of the weights: f32, bf16 or f16; without it, as stored.
    #[arg(long)]
    dtype: Option<String>,
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
    let dtype = args.dtype.as_deref().map(|name| {
        DType::parse(name)
            .filter(|d| d.is_float())
            .ok_or_else(|| Error::format(format!("--dtype {name}: expected f32, bf16 or f16")))
    });
    let dtype = dtype.transpose()?;
    let device = context.open_device(&args.device)?;
    let (model, tokenizer, dir) = model_from_dir(&device, &args.model, dtype)?;
    let tokenizer = tokenizer.ok_or_else(|| {
        Error::format(format!(
            "{} has no tokenizer.json: the prompt cannot be turned into tokens",
            dir.display()
        ))
    })?;
    let ids = tokenizer.encode(&args.prompt)?;
    let mut stream = tokenizer.stream();
    let mut text = String::new();
    if !args.json {
        out::stream(&args.prompt)?;
    }
    let started = Instant::now();
    let mut made = Vec::new();
    for id in Generation::new(&model, &ids, sampling)?.take(args.n) {
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
            "prompt": args.prompt, "text": text, "tokens": made, "tokens_per_s": speed, "model": dir,
        });
        return out::result(&object.to_string());
    }
    out::stream(&rest)?;
    out::result("")?;
    tracing::info!("{}, {speed:.1} tokens/s", counted(made.len(), "token"));
    Ok(())
}
