//! `netcl bench generate`: tokens generated one after another from a prompt, with everything that `netcl generate` does except printing.

use super::profile::file_of;
use super::step::{bytes_of_step, checked, read_speed};
use super::train::vocabulary;
use super::{Bench, Common, Line};
use crate::model_size::ModelSize;
use crate::out;
use clap::builder::PossibleValuesParser;
use netcl::model::decoder::{Decoder, DecoderConfig, FileFacts};
use netcl::model::generate::{Generation, Sampling};
use netcl::prelude::*;
use netcl::train::config::{TrainConfig, models};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Flags of `bench generate`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    /// Model of a preset (repeatable) [default: char and gpt2-124m]
    #[arg(long, value_parser = PossibleValuesParser::new(models()))]
    preset: Vec<String>,
    /// Decoder family that replaces the preset's, with its sizes
    #[arg(long)]
    family: Option<String>,
    #[command(flatten)]
    size: ModelSize,
    /// Tokens of the vocabulary [default: 65 for character models, or the usual tokenizer's]
    #[arg(long)]
    vocab: Option<usize>,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 16)]
    prompt: usize,
    /// New tokens per timed text
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// Profile some further texts: print time per kernel and write a trace [default FILE: trace.json]
    ///
    /// ui.perfetto.dev opens the trace. With several models, their names are added to the file name.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "trace.json")]
    profile: Option<PathBuf>,
}

pub fn run(args: &Args, bench: &mut Bench) -> Result<()> {
    let named: Vec<&str> = args.preset.iter().map(String::as_str).collect();
    let presets = if named.is_empty() { &["char", "gpt2-124m"][..] } else { &named };
    for &preset in presets {
        let config = TrainConfig::preset(preset)?;
        let size = &args.size;
        let config = TrainConfig {
            layers: size.layers.unwrap_or(config.layers),
            heads: size.heads.unwrap_or(config.heads),
            width: size.width.unwrap_or(config.width),
            context: size.context.unwrap_or(config.context),
            family: args.family.clone().unwrap_or(config.family),
            bias: true,
            ..config
        };
        let model = config.decoder(args.vocab.unwrap_or_else(|| vocabulary(&config)))?;
        let trace = args.profile.as_deref().map(|file| file_of(file, preset, presets.len() == 1));
        case(bench, preset, &model, args, trace.as_deref())?;
    }
    Ok(())
}

/// The settings that transformers' model is called with.
const SAMPLING: Sampling = Sampling { temperature: 0.8, top_k: 200, top_p: 1.0, min_p: 0.0, seed: 0 };

fn case(
    bench: &mut Bench,
    preset: &str,
    config: &DecoderConfig,
    args: &Args,
    trace: Option<&Path>,
) -> Result<()> {
    let (prompt, tokens) = (args.prompt.max(1), args.tokens.max(1));
    if prompt + tokens > config.context {
        return Err(Error::shape(format!(
            "bench generate: a prompt of {prompt} tokens and {tokens} new ones do not fit the context of {}",
            config.context
        )));
    }
    let model = Decoder::new(&bench.device, config.clone(), bench.dtype, 0)?;
    let ids: Vec<u32> = (0..prompt).map(|i| (i * 7919 % config.vocab) as u32).collect();
    let text = || -> Result<Vec<u32>> { Generation::new(&model, &ids, SAMPLING)?.up_to(tokens).collect() };
    let launches = checked(&model, &[ids.clone(), text()?].concat(), prompt)?;
    let read = read_speed(&bench.device)?;
    let mut line = Line {
        op: "generate".into(),
        shape: vec![prompt, tokens],
        bytes: tokens as u64 * bytes_of_step(&model, 1, prompt + tokens / 2),
        checked: true,
        ..Line::default()
    };
    let request = json!({
        "op": "generate", "config": config.to_json(&FileFacts::default())?, "prompt": prompt, "tokens": tokens, "dtype": bench.kind,
        "temperature": SAMPLING.temperature, "top_k": SAMPLING.top_k,
    });
    line.extra.insert("preset".into(), preset.into());
    line.extra.insert("family".into(), config.family.model_type.into());
    line.extra.insert("parameters".into(), config.parameters().into());
    line.extra.insert("launches_per_token".into(), launches.into());
    line.extra.insert("read_gbps".into(), read.into());
    let line = bench.measure(line, Some(request), &mut || text().map(drop))?;
    let speed = |ms: f64| tokens as f64 / ms * 1e3;
    let peer = line.peer_median_ms.map_or(String::new(), |ms| format!(", peer {:.1}", speed(ms)));
    let gbps = line.gbps.unwrap_or_default();
    out::note(&format!(
        "{preset}: {:.1} tokens/s{peer}; {} launches per token, {:.1} µs; {gbps:.1} GB/s, {:.0} % of the {read:.1} GB/s that a sum reads",
        speed(line.median_ms),
        launches.map_or("uncaptured".into(), |n| n.to_string()),
        line.median_ms * 1e3 / tokens as f64,
        gbps / read * 100.0
    ));
    let about = json!({ "preset": preset, "replayed": launches.is_some() });
    trace.map_or(Ok(()), |file| bench.profile((about, tokens as u64), file, &mut || text().map(drop)))
}
