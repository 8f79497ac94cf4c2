//! `netcl perplexity`: how well a model predicts a text, in windows of its context.

use crate::context::Context;
use crate::loading::ModelArgs;
use crate::out;
use crate::sampling::prompt_ids;
use clap::Args as ClapArgs;
use netcl::device::counted;
use netcl::prelude::*;
use std::path::PathBuf;
use std::time::Instant;

/// Measure how well a model predicts a text: mean negative log-likelihood and perplexity
///
/// The text, with the tokens that the tokenizer puts before it, is read in adjacent windows of `--ctx-size` tokens. Positions start at zero in each
/// window, and every token except the first is predicted. Tokens after the last whole window are not read. `netcl eval` supports overlapping windows,
/// bits per byte and token shards, for folders.
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text file in UTF-8
    #[arg(long, value_name = "FILE", visible_alias = "file", short = 'f')]
    data: PathBuf,
    /// Windows per batch
    #[arg(long, short, value_name = "N", default_value_t = 4)]
    batch: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Default tokens of a window, if the model's context is longer.
const WINDOW: usize = 2048;

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    let text = std::fs::read_to_string(&args.data).map_err(|e| Error::io("reading", &args.data, &e))?;
    let model = args.model.open(context)?;
    let ids = prompt_ids(model.tokenizer()?, &text, false)?;
    let window = args.model.ctx_size.unwrap_or(model.context().min(WINDOW)).min(ids.len().saturating_sub(1));
    if window == 0 {
        return Err(Error::format(format!(
            "{} is too short: expected at least one token to predict",
            args.data.display()
        )));
    }
    let vocab = model.config().vocab;
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
        return Err(Error::format(format!(
            "token {id} of the text is outside the vocabulary of {vocab} tokens"
        )));
    }
    let (decoder, device) = (model.decoder(), model.decoder().params().device());
    let windows = (ids.len() - 1) / window;
    let (began, mut sum, mut done) = (Instant::now(), 0.0, 0);
    context.polite();
    let bar = out::progress(context.live(), windows as u64, "windows");
    while done < windows && !context.interrupted() {
        let rows = args.batch.max(1).min(windows - done);
        let part = |shift: usize| &ids[done * window + shift..(done + rows) * window + shift];
        let loss = no_grad(|| {
            let x = Tensor::from_u32(device, [rows, window], part(0))?;
            let y = Tensor::from_u32(device, [rows, window], part(1))?;
            decoder.loss(&x, &y, Mode::eval())?.item()
        })?;
        sum += f64::from(loss) * (rows * window) as f64;
        done += rows;
        bar.set_position(done as u64);
        bar.set_message(format!("perplexity {:.4}", (sum / (done * window) as f64).exp()));
    }
    bar.finish_and_clear();
    let (tokens, seconds) = (done * window, began.elapsed().as_secs_f64());
    let nll = sum / tokens.max(1) as f64;
    if !nll.is_finite() {
        return Err(Error::format(format!(
            "{}: the loss is {nll}: the weights are damaged, or values exceeded the range of {}; use --dtype f32, which has the widest range",
            model.path().display(),
            model.dtype()
        )));
    }
    if args.json {
        return out::json(&serde_json::json!({
            "model": model.path(), "nll": nll, "perplexity": nll.exp(), "tokens": tokens, "windows": done, "window": window,
            "dtype": model.dtype().to_string(), "activations": model.activations().map(|a| a.to_string()), "seconds": seconds, "tokens_per_s": tokens as f64 / seconds,
        }));
    }
    out::result(&format!("perplexity {:.4}, {nll:.6} nats per token", nll.exp()))?;
    out::note(&format!(
        "{} in {} of {window}, {:.1} tokens/s",
        counted(tokens, "token"),
        counted(done, "window"),
        tokens as f64 / seconds
    ));
    Ok(())
}
