//! `netcl generate`: continues a prompt.

use crate::context::Context;
use crate::loading::ModelArgs;
use crate::out;
use crate::sampling::{SamplingArgs, prompt_ids};
use clap::Args as ClapArgs;
use netcl::device::counted;
use netcl::llm::LoadedModel;
use netcl::llm::engine::{Generated, Request, Watch};
use netcl::llm::sampler::{Finish, Sampler, StopTexts};
use netcl::prelude::*;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Continue a prompt with a model
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to continue; - reads it from standard input, without the line end at its end. Without it, a new line or the model's own beginning
    #[arg(short, long, allow_hyphen_values = true)]
    prompt: Option<String>,
    /// File with the text to continue, without the line end at its end
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// New tokens
    #[arg(short, long = "n-predict", visible_alias = "predict", default_value_t = 256)]
    n: usize,
    /// The same seed gives the same text
    #[arg(short, long, default_value_t = 0)]
    seed: u64,
    /// End before this text (repeatable)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, visible_alias = "reverse-prompt")]
    stop: Vec<String>,
    /// Do not stop at tokens that end a text
    #[arg(long)]
    ignore_eos: bool,
    /// Names of control tokens in the prompt, such as <|im_start|>, are those tokens and not text
    #[arg(long)]
    special: bool,
    /// Print one JSON object with text, tokens and speed instead of streaming
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
}

impl Args {
    /// The prompt as it was given, or what standard input or a file has. An editor or `echo` ends a text with a line end that nobody means.
    fn given(&self) -> Result<Option<String>> {
        let mut text = match (self.prompt.as_deref(), &self.file) {
            (Some("-"), _) => {
                let (mut text, place) = (String::new(), Path::new("standard input"));
                let read = std::io::stdin().lock().read_to_string(&mut text);
                read.map_err(|e| Error::io("reading the prompt from", place, &e))?;
                text
            }
            (Some(text), _) => return Ok(Some(text.to_owned())),
            (None, Some(path)) => {
                std::fs::read_to_string(path).map_err(|e| Error::io("reading the prompt from", path, &e))?
            }
            (None, None) => return Ok(None),
        };
        let end = if text.ends_with("\r\n") { 2 } else { usize::from(text.ends_with('\n')) };
        text.truncate(text.len() - end);
        Ok(Some(text))
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    args.sampling.check()?;
    let stops = StopTexts::new(args.stop.clone())?;
    let prompt = args.given()?;
    let model = args.model.open(context)?;
    let sampling = args.sampling.over(model.sampling(), args.seed)?;
    let tokenizer = model.tokenizer()?;
    let ids = match &prompt {
        Some(text) => prompt_ids(tokenizer, text, args.special)?,
        None => model.beginning()?,
    };
    let prompt = prompt.map_or_else(|| tokenizer.decode(&ids), Ok)?;
    let mut sampler = Sampler::new(sampling, tokenizer)?;
    let mut session = model.session()?;
    context.polite();
    let request = Request { max: Some(args.n), stops, ignore_ends: args.ignore_eos, slide: true };
    // Nothing is shown of a prompt that the model refuses.
    let mut shown = args.json;
    let mut show = |text: &str| {
        if args.json {
            return Ok(());
        }
        if !std::mem::replace(&mut shown, true) {
            out::stream(&prompt)?;
        }
        out::stream(text)
    };
    let mut watch = Watch { text: &mut show, stop: &|| context.interrupted() };
    let made = session.generate(&ids, &mut sampler, request, &mut watch)?;
    if args.json {
        return out::json(&json(args, &model, &prompt, &made));
    }
    show("")?;
    out::result("")?;
    tracing::info!("{}", told(&made));
    Ok(())
}

fn json(args: &Args, model: &LoadedModel, prompt: &str, made: &Generated) -> serde_json::Value {
    serde_json::json!({
        "prompt": prompt, "text": made.text, "tokens": made.tokens, "finish": made.finish.name(),
        "tokens_per_s": made.speed(), "prompt_tokens": made.prompt, "prompt_tokens_per_s": made.prompt_speed(),
        "seed": args.seed, "context": model.context(), "dtype": model.dtype().to_string(),
        "activations": model.activations().map(|a| a.to_string()), "model": model.path(),
    })
}

/// Counts and speeds of a text, and why it ended where that is not plain to see.
pub(super) fn told(made: &Generated) -> String {
    let ended = match &made.finish {
        Finish::Context => "; the context is full",
        Finish::Stopped => "; stopped",
        _ => "",
    };
    format!(
        "prompt: {}, {:.1} tokens/s; text: {}, {:.1} tokens/s{ended}",
        counted(made.read, "token"),
        made.prompt_speed(),
        counted(made.tokens.len(), "token"),
        made.speed()
    )
}
