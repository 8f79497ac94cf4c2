//! What clients of Ollama ask for: `/api/chat`, `/api/generate`, `/api/embed`, `/api/tags`, `/api/show`, `/api/version`.

use super::chat::{Conversation, Whole};
use super::completions::{Prompt, prompts};
use super::embeddings::{MOST_TEXTS, embedded};
use super::format::missing;
use super::messages::{messages, tools};
use super::{Generation, Shared};
use crate::answer::Part;
use crate::app::App;
use crate::error::{ApiError, ApiResult, json_response};
use crate::fields::{Fields, wrong};
use crate::model::{Loaded, ModelSpec};
use crate::reader::Reader;
use crate::schemas::Format;
use crate::stream::{Event, Framing, Totals, Wire, collect, finish_reason, respond};
use crate::tools::Tools;
use crate::wishes::Wishes;
use crate::worker::{End, Piece};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// A moment as RFC 3339 writes it, in UTC.
fn date(since: Duration) -> String {
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years of 146,097 days each 400; the first of March begins one (H. Hinnant, "chrono-compatible low-level date algorithms").
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", since.subsec_micros())
}

fn today() -> String {
    date(UNIX_EPOCH.elapsed().unwrap_or_default())
}

fn ok(body: &Value) -> Response {
    json_response(StatusCode::OK, body)
}

pub async fn version() -> Response {
    ok(&json!({ "version": env!("CARGO_PKG_VERSION") }))
}

fn details(loaded: Option<&Loaded>) -> Value {
    let (family, parameters, kind) = match loaded {
        Some(loaded) => {
            let about = &loaded.about;
            (about.architecture, size(about.parameters), about.quantization.to_uppercase())
        }
        None => ("", String::new(), String::new()),
    };
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": parameters,
        "quantization_level": kind,
    })
}

/// `260K`, `1.1B`.
fn size(parameters: u64) -> String {
    let n = parameters as f64;
    match parameters {
        0..1_000_000 => format!("{:.0}K", n / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", n / 1e6),
        _ => format!("{:.1}B", n / 1e9),
    }
}

pub async fn tags(State(app): Shared) -> Response {
    let one = |(spec, loaded): (&ModelSpec, Option<Arc<Loaded>>)| {
        let file = std::fs::metadata(&spec.path);
        let bytes = file.as_ref().map_or(0, std::fs::Metadata::len);
        let changed = file.and_then(|file| file.modified()).ok();
        let changed = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        json!({
            "name": spec.name,
            "model": spec.name,
            "modified_at": date(changed),
            "size": bytes,
            "digest": blake3::hash(spec.path.as_os_str().as_encoded_bytes()).to_hex().as_str(),
            "details": details(loaded.as_deref()),
        })
    };
    let list: Value = app.models.each().map(one).collect();
    ok(&json!({ "models": list }))
}

/// The name of a model: Ollama adds `:latest` to one without a tag.
fn named(app: &App, fields: &mut Fields) -> ApiResult<String> {
    let (new, old) = (fields.text("model")?, fields.text("name")?);
    let Some(name) = new.or(old) else { return Err(missing("model")) };
    match name.strip_suffix(":latest").filter(|_| app.models.check(&name).is_err()) {
        Some(short) => Ok(short.to_owned()),
        None => Ok(name),
    }
}

/// What a model is.
///
/// # Errors
/// 404, and those of loading it.
pub async fn show(app: &Arc<App>, body: &[u8]) -> ApiResult<Response> {
    let mut fields = Fields::of_body(body)?;
    let name = named(app, &mut fields)?;
    fields.flag("verbose")?;
    fields.end()?;
    let model = app.models.get(Some(&name)).await?;
    let about = &model.about;
    let mut info = Map::new();
    info.insert("general.architecture".into(), about.architecture.into());
    info.insert("general.parameter_count".into(), about.parameters.into());
    info.insert(format!("{}.context_length", about.architecture), about.longest.into());
    info.insert(format!("{}.embedding_length", about.architecture), about.width.into());
    let mut abilities = vec!["completion", "embedding"];
    if model.calls_tools() {
        abilities.push("tools");
    }
    if model.reasons() {
        abilities.push("thinking");
    }
    Ok(ok(&json!({
        "modelfile": "",
        "parameters": "",
        "template": "",
        "license": "",
        "details": details(Some(&model)),
        "model_info": info,
        "capabilities": abilities,
        "modified_at": date(Duration::from_secs(about.created)),
    })))
}

/// What `options` says, by Ollama's names.
fn options(fields: &mut Fields) -> ApiResult<(Wishes, Option<usize>)> {
    let empty = || Fields::of("options", json!({}));
    let mut options = match fields.object("options")? {
        Some(options) => options,
        None => empty()?,
    };
    let mut wishes = Wishes::take(&mut options)?;
    wishes.choices = 1;
    // −1 is no bound, −2 the rest of the context: the same here.
    wishes.max = match options.integer("num_predict")? {
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
    // How Ollama is to run, not what it is to say.
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
    Ok((wishes, context))
}

/// `"json"` or a schema.
fn format(fields: &mut Fields) -> ApiResult<Format> {
    match fields.any("format") {
        None => Ok(Format::Text),
        Some(Value::String(word)) if word.is_empty() => Ok(Format::Text),
        Some(Value::String(word)) if word == "json" => Ok(Format::Object),
        Some(schema @ Value::Object(_)) => Ok(Format::Schema(schema, "format".into())),
        Some(other) => Err(wrong("format", &other, "\"json\" or a JSON schema")),
    }
}

/// What an answer is asked for by either address.
struct Asked {
    model: String,
    wishes: Wishes,
    stream: bool,
    /// Tokens that the context should have.
    context: Option<usize>,
    /// Whether functions may be called.
    tools: Option<Arc<Tools>>,
}

/// What a template is told beside the messages, by name.
type Others = Vec<(String, Value)>;

fn asked(app: &App, fields: &mut Fields) -> ApiResult<(Asked, Format, Others)> {
    let model = named(app, fields)?;
    let (wishes, context) = options(fields)?;
    let stream = fields.flag("stream")?.unwrap_or(true);
    let mut others = Vec::new();
    match fields.any("think") {
        None => {}
        Some(think @ Value::Bool(_)) => others.push(("enable_thinking".into(), think)),
        Some(effort @ Value::String(_)) => others.push(("reasoning_effort".into(), effort)),
        Some(other) => return Err(wrong("think", &other, "true, false or a string")),
    }
    // Models stay until another one needs their memory.
    fields.pass_over(&["keep_alive"]);
    Ok((Asked { model, wishes, stream, context, tools: None }, format(fields)?, others))
}

/// Answers a conversation.
///
/// # Errors
/// 400 for a request that cannot be answered as it is, 404, 429, 503.
pub async fn chat(app: &Arc<App>, request: &str, body: &[u8]) -> ApiResult<Response> {
    let mut fields = Fields::of_body(body)?;
    let (asked, format, others) = asked(app, &mut fields)?;
    let (messages, tools) = (messages(&mut fields)?, tools(&mut fields)?);
    fields.end()?;
    let tools = tools.map(Tools::new).transpose()?.map(Arc::new);
    let asked = Asked { tools: tools.clone(), ..asked };
    let conversation = Conversation { messages, tools, others, format };
    answer(app, request, asked, Kind::Chat, move |model, wishes| conversation.job(model, wishes)).await
}

/// Goes on behind a prompt, which is a conversation's first message unless it is `raw` or the model has no template.
///
/// # Errors
/// As [`chat`].
pub async fn generate(app: &Arc<App>, request: &str, body: &[u8]) -> ApiResult<Response> {
    let mut fields = Fields::of_body(body)?;
    let (asked, format, others) = asked(app, &mut fields)?;
    let prompt = fields.text("prompt")?.unwrap_or_default();
    let (system, raw) = (fields.text("system")?, fields.flag("raw")?.unwrap_or(false));
    fields.only("suffix", &"".into())?;
    fields.only("images", &json!([]))?;
    fields.end()?;
    answer(app, request, asked, Kind::Generate, move |model, wishes| {
        if !raw && model.has_template() {
            let system = system.map(|text| json!({ "role": "system", "content": text }));
            let user = json!({ "role": "user", "content": prompt });
            let messages = system.into_iter().chain([user]).collect();
            return Conversation { messages, tools: None, others, format }.job(model, wishes);
        }
        if system.is_some() {
            let message = "system: a raw prompt has none, and neither has a model without a chat template";
            return Err(ApiError::field("system", message));
        }
        let grammar = format.grammar(&model.text()?.schemas)?;
        wishes.job(model, Prompt::Text(prompt).ids(model, "prompt")?, grammar, "prompt")
    })
    .await
}

async fn answer(
    app: &Arc<App>,
    request: &str,
    asked: Asked,
    kind: Kind,
    job: impl FnOnce(&Loaded, &Wishes) -> ApiResult<netcl::llm::engine::Job> + Send + 'static,
) -> ApiResult<Response> {
    let Asked { model, wishes, stream, context, tools } = asked;
    let Generation { model, running } = Generation::begin(app, request, Some(&model), 1, 1, move |model| {
        let longest = model.about.longest;
        if let Some(context) = context.filter(|context| *context > longest) {
            let message = format!(
                "options.num_ctx is {context}, and a text of this server has at most {longest} tokens"
            );
            return Err(ApiError::field("options.num_ctx", message));
        }
        Ok(vec![job(model, &wishes)?])
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
    let mut whole = Whole::new(&model, tools.as_ref());
    let totals = collect(running, 1, |piece| whole.add(piece)).await?;
    wire.finish = if whole.finish == "length" { "length" } else { "stop" };
    let mut body = wire.last(&totals);
    let said = &whole.answer;
    let calls = said.calls.iter().map(|call| called(&call.name, &call.arguments)).collect();
    wire.say(&mut body, &said.content, &said.reasoning, calls);
    Ok(ok(&body))
}

/// Which address an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Chat,
    Generate,
}

/// A call: its arguments are an object here.
fn called(name: &str, arguments: &str) -> Value {
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| arguments.into());
    json!({ "function": { "name": name, "arguments": arguments } })
}

struct OllamaWire {
    model: String,
    kind: Kind,
    reader: Reader,
    /// Calls whose end is still to come: names and arguments.
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

    /// With counts, and durations in nanoseconds.
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

    fn piece(&mut self, piece: &Piece) -> Vec<Event> {
        let mut parts = self.reader.push(&piece.text);
        if let Some(End::Done(finish, _)) = &piece.end {
            parts.extend(self.reader.finish());
            self.finish = finish_reason(finish);
        }
        let (mut content, mut thinking, mut calls) = (String::new(), String::new(), Vec::new());
        for part in parts {
            match part {
                Part::Content(text) => content += &text,
                Part::Reasoning(text) => thinking += &text,
                Part::CallBegin { name } => self.calls.push((name, String::new())),
                Part::CallArguments(text) => {
                    if let Some((_, arguments)) = self.calls.last_mut() {
                        arguments.push_str(&text);
                    }
                }
                Part::CallEnd => calls.extend(self.calls.pop().map(|(name, text)| called(&name, &text))),
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

/// Vectors of texts.
///
/// # Errors
/// As for [`embedded`].
pub async fn embed(app: &Arc<App>, body: &[u8]) -> ApiResult<Response> {
    let mut fields = Fields::of_body(body)?;
    let model = named(app, &mut fields)?;
    let texts = prompts(fields.any("input"), "input", MOST_TEXTS)?;
    fields.only("truncate", &false.into())?;
    fields.pass_over(&["keep_alive"]);
    options(&mut fields)?;
    fields.end()?;
    let (name, vectors, tokens) = embedded(app, Some(&model), texts).await?;
    let vectors: Value =
        vectors.iter().map(|one| one.iter().map(|x| f64::from(*x)).collect::<Value>()).collect();
    Ok(ok(&json!({ "model": name, "embeddings": vectors, "prompt_eval_count": tokens })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_795_601_576, "2026-11-25T10:12:56.000000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000000Z"),
        ] {
            assert_eq!(date(Duration::from_secs(seconds)), expected);
        }
        assert_eq!(
            (size(260_032), size(15_191_712), size(8_030_000_000)),
            ("260K".into(), "15.2M".into(), "8.0B".into())
        );
    }
}
