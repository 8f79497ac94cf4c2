//! Ollama's routes for models: `/api/chat`, `/api/generate`, `/api/embed`, `/api/embeddings`.

use super::Generation;
use super::chat::{CompleteSequence, Conversation};
use super::completions::{Prompt, prompts};
use super::embeddings::{MAX_TEXTS, embedded};
use super::format::missing;
use super::messages::{messages, tools};
use super::ollama_models::{named, ok, today};
use crate::answer::AnswerPart;
use crate::app::App;
use crate::checker::Patience;
use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, wrong};
use crate::model::Loaded;
use crate::piece::{NewTokens, SequenceEnd};
use crate::reader::Reader;
use crate::sampling_params::SamplingParams;
use crate::schemas::Format;
use crate::stream::{Event, Framing, Totals, Wire, collect, finish_reason, respond};
use crate::tools::Tools;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;

/// Parses `options` with Ollama's names.
fn options(fields: &mut Fields) -> ApiResult<(SamplingParams, Option<usize>)> {
    let empty = || Fields::of("options", json!({}));
    let mut options = match fields.object("options")? {
        Some(options) => options,
        None => empty()?,
    };
    let mut params = SamplingParams::take(&mut options)?;
    (params.choices, params.counts_prompt) = (1, true);
    // −1 means no limit, −2 the rest of the context: the same here.
    params.max = match options.integer("num_predict")? {
        Some(n) if n > 0 => usize::try_from(n).ok(),
        Some(0) => {
            return Err(ApiError::field(
                "options.num_predict",
                "options.num_predict is 0, expected at least 1",
            ));
        }
        _ => None,
    };
    let context = options.whole("num_ctx", 1, usize::MAX)?;
    // Options for running Ollama, without effect on the answer.
    options.pass_over(&[
        "num_keep",
        "num_batch",
        "num_gpu",
        "main_gpu",
        "num_thread",
        "use_mmap",
        "use_mlock",
        "numa",
        "low_vram",
    ]);
    options.end()?;
    Ok((params, context))
}

/// Parses `"json"` or a schema.
fn format(fields: &mut Fields) -> ApiResult<Format> {
    match fields.any("format") {
        None => Ok(Format::Text),
        Some(Value::String(word)) if word.is_empty() => Ok(Format::Text),
        Some(Value::String(word)) if word == "json" => Ok(Format::Object),
        Some(schema @ Value::Object(_)) => Ok(Format::Schema(schema, "format".into())),
        Some(other) => Err(wrong("format", &other, "\"json\" or a JSON schema")),
    }
}

/// A parsed request of either route.
struct OllamaRequest {
    model: String,
    params: SamplingParams,
    stream: bool,
    /// Requested context length in tokens.
    context: Option<usize>,
    /// Functions that may be called.
    tools: Option<Arc<Tools>>,
}

/// Template variables in addition to the messages, by name.
type Others = Vec<(String, Value)>;

fn asked(app: &App, fields: &mut Fields) -> ApiResult<(OllamaRequest, Format, Others)> {
    let model = named(app, fields)?;
    let (params, context) = options(fields)?;
    let stream = fields.flag("stream")?.unwrap_or(true);
    let mut others = Vec::new();
    match fields.any("think") {
        None => {}
        Some(think @ Value::Bool(_)) => others.push(("enable_thinking".into(), think)),
        Some(effort @ Value::String(_)) => others.push(("reasoning_effort".into(), effort)),
        Some(other) => return Err(wrong("think", &other, "true, false or a string")),
    }
    Ok((OllamaRequest { model, params, stream, context, tools: None }, format(fields)?, others))
}

/// Parses `keep_alive`: models stay loaded until another one needs their memory. In a request without a prompt, 0 asks to unload the model at once.
///
/// # Errors
/// 400 for such a request.
fn keep(fields: &mut Fields, empty: bool) -> ApiResult<()> {
    let goes = match fields.any("keep_alive") {
        Some(Value::Number(n)) => n.as_f64() == Some(0.0),
        Some(Value::String(text)) => text.trim_end_matches(|c: char| c.is_ascii_alphabetic()) == "0",
        None | Some(Value::Null) => false,
        Some(other) => return Err(wrong("keep_alive", &other, "a number of seconds or a duration")),
    };
    match goes && empty {
        true => Err(ApiError::field(
            "keep_alive",
            "keep_alive: this server does not unload models on request; it unloads one when another needs its memory",
        )),
        false => Ok(()),
    }
}

/// Responds to a request without a prompt: clients load a model this way.
///
/// # Errors
/// 404, and errors from loading it.
async fn load(app: &Arc<App>, asked: &OllamaRequest, kind: Kind) -> ApiResult<Response> {
    let model = app.models.get(Some(&asked.model)).await?;
    let mut body = json!({ "model": model.name, "created_at": today(), "done": true, "done_reason": "load" });
    match kind {
        Kind::Generate => body["response"] = "".into(),
        Kind::Chat => body["message"] = json!({ "role": "assistant", "content": "" }),
    }
    Ok(ok(&body))
}

/// Answers a conversation.
///
/// # Errors
/// 400 for an invalid request, 404, 429, 503.
pub async fn chat(app: &Arc<App>, request: &str, body: &[u8]) -> ApiResult<Response> {
    let mut fields = Fields::of_body(body)?;
    let (asked, format, others) = asked(app, &mut fields)?;
    let empty = fields.peek("messages").is_none_or(|list| list.as_array().is_some_and(Vec::is_empty));
    keep(&mut fields, empty)?;
    let tools = tools(&mut fields)?;
    if empty {
        fields.pass_over(&["messages"]);
        fields.end()?;
        return load(app, &asked, Kind::Chat).await;
    }
    let messages = messages(&mut fields)?;
    fields.end()?;
    let tools = tools.map(Tools::new).transpose()?.map(Arc::new);
    let asked = OllamaRequest { tools: tools.clone(), ..asked };
    let conversation = Conversation { messages, tools, others, format };
    let bound = conversation.is_bound();
    let job = move |model: &Loaded, params: &SamplingParams, patience: &Patience| {
        conversation.job(model, params, patience)
    };
    answer(app, request, asked, Kind::Chat, bound, job).await
}

/// Continues a prompt. It becomes the first message of a conversation unless it is `raw` or the model does not have a template.
///
/// # Errors
/// Same as [`chat`].
pub async fn generate(app: &Arc<App>, request: &str, body: &[u8]) -> ApiResult<Response> {
    let mut fields = Fields::of_body(body)?;
    let (asked, format, others) = asked(app, &mut fields)?;
    let prompt = fields.text("prompt")?.unwrap_or_default();
    keep(&mut fields, prompt.is_empty())?;
    let (system, raw) = (fields.text("system")?, fields.flag("raw")?.unwrap_or(false));
    fields.only("suffix", &"".into())?;
    fields.only("images", &json!([]))?;
    fields.end()?;
    if prompt.is_empty() {
        return load(app, &asked, Kind::Generate).await;
    }
    let bound = matches!(format, Format::Schema(..));
    answer(app, request, asked, Kind::Generate, bound, move |model, params, patience| {
        if !raw && model.has_template() {
            let system = system.map(|text| json!({ "role": "system", "content": text }));
            let user = json!({ "role": "user", "content": prompt });
            let messages = system.into_iter().chain([user]).collect();
            return Conversation { messages, tools: None, others, format }.job(model, params, patience);
        }
        if system.is_some() {
            let message = "system: not supported for a raw prompt or a model without a chat template";
            return Err(ApiError::field("system", message));
        }
        let grammar = format.grammar(model.text()?.schemas.compiler(patience))?;
        params.job(model, Prompt::Text(prompt).ids(model, "prompt")?, grammar, "prompt")
    })
    .await
}

async fn answer(
    app: &Arc<App>,
    request: &str,
    asked: OllamaRequest,
    kind: Kind,
    bound: bool,
    job: impl FnOnce(&Loaded, &SamplingParams, &Patience) -> ApiResult<netcl::llm::engine::Job> + Send + 'static,
) -> ApiResult<Response> {
    let OllamaRequest { model, params, stream, context, tools } = asked;
    let Generation { model, running } =
        Generation::begin(app, request, Some(&model), [1, 1], bound, move |model, patience| {
            let longest = model.about.longest;
            if let Some(context) = context.filter(|context| *context > longest) {
                let message = format!(
                    "options.num_ctx is {context}, but a text of this server has at most {longest} tokens"
                );
                return Err(ApiError::field("options.num_ctx", message));
            }
            Ok(vec![job(model, &params, patience)?])
        })
        .await?;
    let mut wire = OllamaWire {
        model: model.name.clone(),
        kind,
        reader: model.reader(tools.as_ref()),
        calls: Vec::new(),
        finish: "stop",
    };
    if stream {
        return Ok(respond(running, wire, Framing::Lines, 1));
    }
    let mut whole = CompleteSequence::new(&model, tools.as_ref());
    let totals = collect(running, 1, |piece| whole.add(piece)).await?;
    wire.finish = if whole.finish == "length" { "length" } else { "stop" };
    let mut body = wire.last(&totals);
    let said = &whole.answer;
    let calls = said.calls.iter().map(|call| called(&call.name, &call.arguments)).collect();
    wire.say(&mut body, &said.content, &said.reasoning, calls);
    Ok(ok(&body))
}

/// The route of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Chat,
    Generate,
}

/// Returns a call; its arguments are an object in this interface.
fn called(name: &str, arguments: &str) -> Value {
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| arguments.into());
    json!({ "function": { "name": name, "arguments": arguments } })
}

struct OllamaWire {
    model: String,
    kind: Kind,
    reader: Reader,
    /// Incomplete calls: names and arguments.
    calls: Vec<(String, String)>,
    finish: &'static str,
}

impl OllamaWire {
    fn object(&self, done: bool) -> Value {
        json!({ "model": self.model, "created_at": today(), "done": done })
    }

    fn say(&self, object: &mut Value, content: &str, thinking: &str, calls: Vec<Value>) {
        match self.kind {
            Kind::Generate => {
                object["response"] = content.into();
                if !thinking.is_empty() {
                    object["thinking"] = thinking.into();
                }
            }
            Kind::Chat => {
                let mut message = json!({ "role": "assistant", "content": content });
                if !thinking.is_empty() {
                    message["thinking"] = thinking.into();
                }
                if !calls.is_empty() {
                    message["tool_calls"] = calls.into();
                }
                object["message"] = message;
            }
        }
    }

    /// Returns the last object with counts, and durations in nanoseconds.
    fn last(&self, totals: &Totals) -> Value {
        let mut object = self.object(true);
        let ns = |ms: f64| (ms * 1e6) as u64;
        object["done_reason"] = self.finish.into();
        object["total_duration"] = ns(totals.prompt_ms + totals.made_ms).into();
        object["load_duration"] = 0.into();
        object["prompt_eval_count"] = totals.prompt.into();
        object["prompt_eval_duration"] = ns(totals.prompt_ms).into();
        object["eval_count"] = totals.made.into();
        object["eval_duration"] = ns(totals.made_ms).into();
        object
    }
}

impl Wire for OllamaWire {
    fn begin(&mut self) -> Vec<Event> {
        Vec::new()
    }

    fn piece(&mut self, piece: &NewTokens) -> Vec<Event> {
        let mut parts = self.reader.push(&piece.text);
        if let Some(SequenceEnd::Done(finish, _)) = &piece.end {
            parts.extend(self.reader.finish());
            self.finish = finish_reason(finish);
        }
        let mut content = String::new();
        let mut thinking = String::new();
        let mut calls = Vec::new();
        for part in parts {
            match part {
                AnswerPart::Content(text) => content += &text,
                AnswerPart::Reasoning(text) => thinking += &text,
                AnswerPart::CallBegin { name } => self.calls.push((name, String::new())),
                AnswerPart::CallArguments(text) => {
                    if let Some((_, arguments)) = self.calls.last_mut() {
                        arguments.push_str(&text);
                    }
                }
                AnswerPart::CallEnd => {
                    calls.extend(self.calls.pop().map(|(name, text)| called(&name, &text)))
                }
            }
        }
        if content.is_empty() && thinking.is_empty() && calls.is_empty() {
            return Vec::new();
        }
        let mut object = self.object(false);
        self.say(&mut object, &content, &thinking, calls);
        vec![Event::of(object)]
    }

    fn end(&mut self, totals: &Totals) -> Vec<Event> {
        let mut object = self.last(totals);
        self.say(&mut object, "", "", Vec::new());
        vec![Event::of(object)]
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Event> {
        vec![Event::of(json!({ "error": error.message }))]
    }
}

/// Returns the vectors of texts.
///
/// # Errors
/// Same as [`embedded`].
pub async fn embed(app: &Arc<App>, body: &[u8]) -> ApiResult<Response> {
    let mut fields = Fields::of_body(body)?;
    let model = named(app, &mut fields)?;
    let texts = prompts(fields.any("input"), "input", MAX_TEXTS)?;
    fields.only("truncate", &false.into())?;
    keep(&mut fields, false)?;
    options(&mut fields)?;
    fields.end()?;
    let (name, vectors, tokens) = embedded(app, Some(&model), texts).await?;
    let vectors: Value =
        vectors.iter().map(|one| one.iter().map(|x| f64::from(*x)).collect::<Value>()).collect();
    Ok(ok(&json!({ "model": name, "embeddings": vectors, "prompt_eval_count": tokens })))
}

/// Returns the vector of one text, for older clients.
///
/// # Errors
/// Same as [`embedded`].
pub async fn embed_one(app: &Arc<App>, body: &[u8]) -> ApiResult<Response> {
    let mut fields = Fields::of_body(body)?;
    let model = named(app, &mut fields)?;
    let Some(text) = fields.text("prompt")? else { return Err(missing("prompt")) };
    keep(&mut fields, false)?;
    options(&mut fields)?;
    fields.end()?;
    let (_, vectors, _) = embedded(app, Some(&model), vec![Prompt::Text(text)]).await?;
    let vector: Value = vectors.iter().flatten().map(|x| f64::from(*x)).collect();
    Ok(ok(&json!({ "embedding": vector })))
}
