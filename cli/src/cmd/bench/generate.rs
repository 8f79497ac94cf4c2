//! `netcl bench generate`: tokens made one after the other, from a prompt on, with all that `netcl generate` does but print them.

use super::measure::median;
use super::profile::{file_of, profile};
use super::train::vocabulary;
use super::{Bench, Common, Line};
use crate::cmd::ModelSize;
use crate::out;
use clap::builder::PossibleValuesParser;
use netcl::nn::config::{TrainConfig, models};
use netcl::nn::decoder::{Decoder, DecoderConfig, FileFacts, Positions};
use netcl::nn::generate::{Generation, Sampling};
use netcl::nn::layers::Mode;
use netcl::nn::model::Model;
use netcl::prelude::*;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Flags of `bench generate`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    /// Model of a preset (repeatable); without it char and gpt2-124m
    #[arg(long, value_parser = PossibleValuesParser::new(models()))]
    preset: Vec<String>,
    /// Family of decoders instead of the preset's, with its sizes
    #[arg(long)]
    family: Option<String>,
    #[command(flatten)]
    size: ModelSize,
    /// Tokens of the vocabulary; without it 65 for character models, that of the usual tokenizer for others
    #[arg(long)]
    vocab: Option<usize>,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 16)]
    prompt: usize,
    /// New tokens of a timed text
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// Then time each kernel of some further texts, print where the time goes, and write a trace that ui.perfetto.dev opens to
    /// FILE, or trace.json; with several models, their names are added
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

/// As transformers' model is asked for.
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
            "bench generate: a prompt of {prompt} and {tokens} new tokens do not fit the context of {}",
            config.context
        )));
    }
    let model = Decoder::new(&bench.device, config.clone(), bench.dtype, 0)?;
    let ids: Vec<u32> = (0..prompt).map(|i| (i * 7919 % config.vocab) as u32).collect();
    let text = || -> Result<Vec<u32>> { Generation::new(&model, &ids, SAMPLING)?.take(tokens).collect() };
    let launches = checked(&model, &[ids.clone(), text()?].concat(), prompt)?;
    let read = read_speed(bench)?;
    let size = bench.dtype.size();
    let mut line = Line {
        op: "generate".into(),
        shape: vec![prompt, tokens],
        bytes: tokens as u64 * bytes_of_token(config, prompt + tokens / 2, size),
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
        "{preset}: {:.1} tokens/s{peer}; {} launches a token, {:.1} µs; {gbps:.1} GB/s, {:.0} % of the {read:.1} GB/s that a sum reads",
        speed(line.median_ms),
        launches.map_or("uncaptured".into(), |n| n.to_string()),
        line.median_ms * 1e3 / tokens as f64,
        gbps / read * 100.0
    ));
    let about = json!({ "preset": preset, "replayed": launches.is_some() });
    trace.map_or(Ok(()), |file| profile(bench, &about, tokens as u64, file, &mut || text().map(drop)))
}

/// Compares the logits behind every token of a text with those of all tokens at once, up to rounding; the launches of a token.
fn checked(model: &Decoder, ids: &[u32], prompt: usize) -> Result<Option<usize>> {
    let (device, vocab, end) =
        (model.params().device(), model.config().vocab, ids.len().min(prompt + CHECKED));
    let all = Tensor::from_u32(device, [1, end], &ids[..end])?;
    let expected = no_grad(|| model.forward(&all, Mode::eval()))?.to_vec()?;
    let mut text = model.continuation()?;
    for at in prompt..=end {
        let (got, expected) = (text.logits_after(&ids[..at])?, &expected[(at - 1) * vocab..at * vocab]);
        let largest = expected.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
        // A result of each layer is rounded to the storage type, more often in one way than in the other.
        let bound = 16.0 * model.params().dtype().epsilon() as f32 * largest + 1e-4 * largest;
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= bound;
        if !got.iter().zip(expected).all(near) {
            let off = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
            return Err(Error::internal(format!(
                "bench generate: logits after {at} tokens differ by {off:.1e} from those of all tokens at once; allowed difference {bound:.1e}"
            )));
        }
    }
    Ok(text.launches())
}

/// New tokens that are checked.
const CHECKED: usize = 12;

/// Bytes that a token has to read: every weight but the tables, of which it is a row, and the keys and values of `seen` tokens.
fn bytes_of_token(config: &DecoderConfig, seen: usize, size: usize) -> u64 {
    let (vocab, width) = (config.vocab, config.width);
    let places = if config.positions == Positions::Learned { config.context * width } else { 0 };
    let tables = places + if config.tied { 0 } else { vocab * width };
    let cache = 2 * config.attention.kv_heads * config.attention.size * config.layers;
    ((config.parameters() - tables + seen * cache) * size) as u64
}

/// GB/s at which a large tensor is read: a sum.
fn read_speed(bench: &Bench) -> Result<f64> {
    // Far above every cache.
    let elements = 64 << 20;
    let x = Tensor::ones(&bench.device, [1024, elements / 1024], DType::F32)?;
    let sum = || -> Result<f64> {
        let begun = Instant::now();
        no_grad(|| x.sum(&[1], false))?;
        bench.device.finish()?;
        Ok((elements * 4) as f64 / begun.elapsed().as_secs_f64() * 1e-9)
    };
    sum()?;
    let mut speeds = (0..9).map(|_| sum()).collect::<Result<Vec<_>>>()?;
    Ok(median(&mut speeds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::bench::tests;

    #[test]
    fn a_step_is_checked_and_a_wrong_kernel_is_found() {
        let sizes = |heads| TrainConfig {
            layers: 2,
            heads,
            width: 16,
            context: 40,
            ..TrainConfig::preset("char").unwrap()
        };
        let config = sizes(2).decoder(19).unwrap();
        let ids: Vec<u32> = (0..20).map(|i| i % 19).collect();
        let device = tests::device(|text| text.to_owned());
        for dtype in [DType::F32, DType::Bf16] {
            let model = Decoder::new(&device, config.clone(), dtype, 0).unwrap();
            assert_eq!(checked(&model, &ids, 5).unwrap(), Some(12));
        }
        // The new token's own key is left out.
        let broken = tests::device(|text| text.replace("return s <= seen.p + t;", "return s < seen.p + t;"));
        let model = Decoder::new(&broken, config.clone(), DType::F32, 0).unwrap();
        model.params().list().iter().for_each(|p| {
            p.set_f32(&p.to_vec().unwrap().iter().map(|v| 20.0 * v).collect::<Vec<_>>()).unwrap()
        });
        let message = checked(&model, &ids, 5).unwrap_err().to_string();
        assert!(message.contains("tokens differ by"), "{message}");
    }

    #[test]
    fn bytes_of_a_token_leave_tables_out() {
        let config = TrainConfig {
            layers: 1,
            width: 8,
            heads: 1,
            context: 32,
            ..TrainConfig::preset("char").unwrap()
        };
        let tied = config.decoder(50).unwrap();
        let read = tied.parameters() - 32 * 8 + 10 * 2 * 8;
        assert_eq!(bytes_of_token(&tied, 10, 4), 4 * read as u64);
    }
}
