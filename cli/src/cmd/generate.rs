//! `netcl generate`: continues a prompt.

use crate::context::Context;
use crate::loading::ModelArgs;
use crate::out;
use crate::sampling::{SamplingArgs, prompt_ids};
use crate::together::{EngineArgs, PromptResult};
use clap::Args as ClapArgs;
use netcl::device::counted;
use netcl::llm::LoadedModel;
use netcl::llm::engine::{Generated, Job, Loading, Request, Watch};
use netcl::llm::sampler::{Finish, Sampler, StopTexts};
use netcl::model::model::Model as _;
use netcl::prelude::*;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Continue a prompt with a model
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to continue; - reads stdin (repeatable) [default: a new line or the model's start token]
    ///
    /// A final line end of standard input is removed. Several prompts are continued at the same time, and shown one after another.
    #[arg(short, long, allow_hyphen_values = true)]
    prompt: Vec<String>,
    /// File with the text to continue; a final line end is removed
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// New tokens
    #[arg(short, long = "n-predict", visible_alias = "predict", default_value_t = 256)]
    n: usize,
    /// Seed; the same seed gives the same text
    #[arg(short, long, default_value_t = 0)]
    seed: u64,
    /// End before this text (repeatable)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, visible_alias = "reverse-prompt")]
    stop: Vec<String>,
    /// Do not stop at end-of-text tokens
    #[arg(long)]
    ignore_eos: bool,
    /// Parse names of control tokens in the prompt, such as <|im_start|>, as those tokens
    #[arg(long)]
    special: bool,
    /// Print one JSON object with text, tokens and speed instead of streaming
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

impl Args {
    /// Returns the prompts from flags, standard input or a file. Removes a final line end of the latter two, because editors and `echo` add one.
    fn given(&self) -> Result<Vec<String>> {
        if let Some(path) = &self.file {
            let text = std::fs::read_to_string(path);
            return Ok(vec![without_end(text.map_err(|e| Error::io("reading the prompt from", path, &e))?)]);
        }
        let one = |text: &String| match text.as_str() {
            "-" => {
                let (mut text, place) = (String::new(), Path::new("standard input"));
                let read = std::io::stdin().lock().read_to_string(&mut text);
                read.map_err(|e| Error::io("reading the prompt from", place, &e))?;
                Ok(without_end(text))
            }
            text => Ok(text.to_owned()),
        };
        self.prompt.iter().map(one).collect()
    }

    fn request(&self, stops: &StopTexts, slide: bool) -> Request {
        let ignore_ends = self.ignore_eos;
        Request { max: Some(self.n), stops: stops.clone(), ignore_ends, slide, ..Request::default() }
    }
}

fn without_end(mut text: String) -> String {
    let end = if text.ends_with("\r\n") { 2 } else { usize::from(text.ends_with('\n')) };
    text.truncate(text.len() - end);
    text
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    args.sampling.check()?;
    let stops = StopTexts::new(args.stop.clone())?;
    let given = args.given()?;
    let model = args.model.open(context)?;
    let sampling = args.sampling.over(model.sampling(), args.seed)?;
    let tokenizer = model.tokenizer()?;
    let mut prompts = Vec::new();
    for text in &given {
        prompts.push((text.clone(), prompt_ids(tokenizer, text, args.special)?));
    }
    if prompts.is_empty() {
        let ids = model.beginning()?;
        prompts.push((tokenizer.decode(&ids)?, ids));
    }
    let sampler = args.sampling.sampler(sampling, tokenizer)?;
    context.polite();
    match prompts.as_slice() {
        [(prompt, ids)] if !args.engine.is_needed(1) => {
            one(args, context, &model, (prompt, ids), sampler, &stops)
        }
        prompts => together(args, context, &model, prompts, &sampler, &stops),
    }
}

/// Continues a single text.
fn one(
    args: &Args,
    context: &Context,
    model: &LoadedModel,
    (prompt, ids): (&str, &[u32]),
    mut sampler: Sampler,
    stops: &StopTexts,
) -> Result<()> {
    let mut session = model.session()?;
    // Nothing of a prompt is shown if the model refuses it.
    let mut shown = args.json;
    let mut show = |text: &str| {
        if args.json {
            return Ok(());
        }
        if !std::mem::replace(&mut shown, true) {
            out::stream(prompt)?;
        }
        out::stream(text)
    };
    let mut watch = Watch { text: &mut show, stop: &|| context.interrupted() };
    let made = session.generate(ids, &mut sampler, args.request(stops, true), &mut watch)?;
    if args.json {
        return out::json(&json(args, model, prompt, &made));
    }
    show("")?;
    out::result("")?;
    tracing::info!("{}", summary(&made));
    Ok(())
}

/// Continues several texts, or one with proposed tokens. Shows each as it is generated, after the earlier ones.
fn together(
    args: &Args,
    context: &Context,
    model: &LoadedModel,
    prompts: &[(String, Vec<u32>)],
    sampler: &Sampler,
    stops: &StopTexts,
) -> Result<()> {
    let jobs =
        prompts.iter().map(|(_, ids)| Job::new(ids.clone(), sampler.clone(), args.request(stops, false)));
    let mut held: Vec<String> = prompts.iter().map(|(prompt, _)| prompt.clone()).collect();
    let (mut done, mut current) = (vec![false; held.len()], 0);
    let mut show = |at: usize, text: Option<&str>| {
        if args.json {
            return Ok(());
        }
        match text {
            Some(text) => held[at].push_str(text),
            None => done[at] = true,
        }
        while let Some(text) = held.get_mut(current) {
            out::stream(&std::mem::take(text))?;
            if !done[current] {
                break;
            }
            out::result(if current + 1 < prompts.len() { "\n" } else { "" })?;
            current += 1;
        }
        Ok(())
    };
    let device = model.decoder().params().device();
    let load = |path: &Path, options, bar: &mut dyn FnMut(Loading<'_>) -> Result<()>| {
        LoadedModel::open(path, device, options, bar).map_err(|e| e.context("--draft"))
    };
    let made = args.engine.run(model, jobs.collect(), context, load, &mut show)?;
    if args.json {
        let mut all = prompts.iter().zip(&made.texts);
        return all.try_for_each(|((prompt, _), text)| out::json(&json_of(args, model, prompt, text)));
    }
    tracing::info!("{}", made.summary(args.engine.draft()));
    Ok(())
}

fn json_of(args: &Args, model: &LoadedModel, prompt: &str, made: &PromptResult) -> serde_json::Value {
    let usage = made.end.as_ref().map(|(_, usage)| *usage).unwrap_or_default();
    let speed = |tokens: usize, time: std::time::Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    serde_json::json!({
        "prompt": prompt, "text": made.text, "tokens": made.tokens, "finish": made.end.as_ref().map(|(finish, _)| finish.name()),
        "tokens_per_s": speed(usage.made.saturating_sub(1), usage.generation_time), "prompt_tokens": usage.prompt,
        "prompt_tokens_per_s": speed(usage.prompt - usage.reused, usage.prompt_time), "shared_tokens": usage.reused,
        "drafted": usage.drafted, "accepted": usage.accepted, "draft": args.engine.draft(),
        "seed": args.seed, "context": model.context(), "dtype": model.dtype().to_string(),
        "activations": model.activations().map(|a| a.to_string()), "model": model.path(),
    })
}

fn json(args: &Args, model: &LoadedModel, prompt: &str, made: &Generated) -> serde_json::Value {
    serde_json::json!({
        "prompt": prompt, "text": made.text, "tokens": made.tokens, "finish": made.finish.name(),
        "tokens_per_s": made.speed(), "prompt_tokens": made.prompt, "prompt_tokens_per_s": made.prompt_speed(),
        "seed": args.seed, "context": model.context(), "dtype": model.dtype().to_string(),
        "activations": model.activations().map(|a| a.to_string()), "model": model.path(),
    })
}

/// Reports counts and speeds of a text, and why it ended if that is not obvious.
pub(super) fn summary(made: &Generated) -> String {
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
