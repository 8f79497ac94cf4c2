//! `netcl chat`: a conversation.

use super::generate::summary;
use crate::context::Context;
use crate::loading::ModelArgs;
use crate::out;
use crate::sampling::SamplingArgs;
use clap::Args as ClapArgs;
use netcl::llm::LoadedModel;
use netcl::llm::engine::{Conversation, Generated, Request, Watch};
use netcl::llm::sampler::{Finish, Sampler, StopTexts};
use netcl::prelude::*;
use std::io::{BufRead, IsTerminal};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Chat with a model that has a chat template
///
/// Each line is sent to the model, which answers. If standard input is not a terminal, only the answers are printed, one after another.
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// System prompt
    #[arg(long, visible_alias = "system-prompt", value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Maximum tokens of an answer [default: until the context is full]
    #[arg(short, long = "n-predict", visible_alias = "predict")]
    n: Option<usize>,
    /// Seed; the same seed gives the same answers [default: random]
    #[arg(short, long)]
    seed: Option<u64>,
    /// End the answer before this text (repeatable)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, visible_alias = "reverse-prompt")]
    stop: Vec<String>,
    /// Print a JSON object for each answer
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
}

const HELP: &str = "\
/clear   forget the conversation
/help    show this
/exit    end, like the end of the input (Ctrl-D)
Ctrl-C   stop the current answer; between answers, end the program";

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    args.sampling.check()?;
    StopTexts::new(args.stop.clone())?;
    let model = args.model.open(context)?;
    let mut chat = Conversation::new(&model, args.system.as_deref()).map_err(|e| advised(e, &model))?;
    let seed = args.seed.unwrap_or_else(|| {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |t| u64::from(t.subsec_nanos()) ^ t.as_secs() << 20)
    });
    let sampling = args.sampling.over(model.sampling(), seed)?;
    let mut sampler = args.sampling.sampler(sampling, model.tokenizer()?)?;
    let terminal = std::io::stdin().is_terminal();
    if terminal && !args.json {
        out::note("Type a line; /help shows the commands.");
    }
    loop {
        if terminal && !args.json {
            out::stream("\n> ")?;
        }
        let Some(line) = line()? else { break };
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" => break,
            "/clear" => chat.clear(),
            "/help" => out::note(HELP),
            word if terminal && word.starts_with('/') && !word.contains(' ') => {
                out::note(&format!("{word}: unknown command; type /help"));
            }
            text => match turn(args, context, &mut chat, &mut sampler, text) {
                // On a terminal, the user can enter a shorter line.
                Err(e) if terminal && e.kind() == ErrorKind::Format => out::note(&format!("error: {e}")),
                done => done?,
            },
        }
    }
    Ok(())
}

/// Adds advice for a model without a chat template.
fn advised(error: Error, model: &LoadedModel) -> Error {
    if model.template().is_ok() {
        return error;
    }
    let program = crate::shell::program();
    let path = crate::shell::path(model.path());
    Error::new(
        error.kind(),
        format!("{}; to continue a text with it: `{program} generate -m {path} -p \"…\"`", error.message()),
    )
}

/// Reads the next line of standard input.
fn line() -> Result<Option<String>> {
    let mut text = String::new();
    let read = std::io::stdin().lock().read_line(&mut text);
    let count = read.map_err(|e| Error::io("reading", Path::new("standard input"), &e))?;
    Ok((count > 0).then_some(text))
}

/// Sends one line and prints its answer.
fn turn(
    args: &Args,
    context: &Context,
    chat: &mut Conversation<'_>,
    sampler: &mut Sampler,
    text: &str,
) -> Result<()> {
    let request = Request { max: args.n, stops: StopTexts::new(args.stop.clone())?, ..Request::default() };
    let mut show = |text: &str| if args.json { Ok(()) } else { out::stream(text) };
    let answer = context.answering(|| {
        let mut watch = Watch { text: &mut show, stop: &|| context.interrupted() };
        chat.say(text, sampler, request, &mut watch)
    })?;
    if args.json {
        return out::json(&json(&answer));
    }
    out::result("")?;
    if std::io::stdin().is_terminal() || answer.finish == Finish::Context {
        let advice = if answer.finish == Finish::Context { " (/clear starts over)" } else { "" };
        out::note(&format!("{}{advice}", summary(&answer)));
    }
    Ok(())
}

fn json(answer: &Generated) -> serde_json::Value {
    serde_json::json!({
        "text": answer.text, "tokens": answer.tokens, "finish": answer.finish.name(), "prompt_tokens": answer.prompt,
        "prompt_tokens_read": answer.read, "prompt_tokens_per_s": answer.prompt_speed(), "tokens_per_s": answer.speed(),
    })
}
