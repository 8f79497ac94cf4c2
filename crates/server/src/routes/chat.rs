//! `POST /v1/chat/completions`.

use super::format::response_format;
use super::messages::{known_to, messages, short_ids, tools};
use super::{Generation, Head, harmless};
use crate::answer::{Answer, AnswerPart};
use crate::app::App;
use crate::checker::Patience;
use crate::error::{ApiError, ApiResult, json_response};
use crate::fields::Fields;
use crate::forms::Calls;
use crate::logprobs::Words;
use crate::model::{Loaded, TextParts};
use crate::output_grammar;
use crate::piece::{NewTokens, SequenceEnd, Token};
use crate::reader::Reader;
use crate::sampling_params::{MAX_LOGPROBS, SamplingParams};
use crate::schemas::Format;
use crate::stream::{Event, Framing, Totals, Wire, collect, finish_reason, respond};
use crate::tools::{Tools, choice};
use axum::http::StatusCode;
use axum::response::Response;
use netcl::device::ErrorKind;
use netcl::llm::engine::{Job, Talk};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A conversation to answer, independent of the interface that received it.
#[derive(Debug, Default)]
pub struct Conversation {
    /// Messages in the format of this interface.
    pub messages: Vec<Value>,
    /// Functions that the model may call.
    pub tools: Option<Arc<Tools>>,
    /// Additional template variables.
    pub others: Vec<(String, Value)>,
    /// Constraint on the answer.
    pub format: Format,
}

impl Conversation {
    /// Returns true if the request needs a separate grammar.
    pub fn is_bound(&self) -> bool {
        matches!(self.format, Format::Schema(..)) || self.tools.as_ref().is_some_and(|tools| tools.is_bound())
    }

    /// Returns the engine job. This renders and encodes the prompt, so do not call it on the connection thread.
    ///
    /// # Errors
    /// 400 if the template or the schema rejects the request, and for a prompt that is too long.
    pub fn job(&self, model: &Loaded, params: &SamplingParams, patience: &Patience) -> ApiResult<Job> {
        let TextParts { tokenizer, templates, prompts, schemas, forms } = model.text()?;
        let template = templates.get(None, self.tools.is_some()).map_err(|e| {
            let hint = "use /v1/completions";
            ApiError::field("messages", format!("The model {}: {}; {hint}", model.name, e.message()))
        })?;
        if self.tools.is_some() && !model.calls_tools() {
            let message = format!(
                "tools: the chat template of the model {} does not support tool calls, or uses an unsupported format",
                model.name
            );
            return Err(ApiError::field("tools", message));
        }
        let tools = self.tools.as_deref();
        let grammar =
            output_grammar::grammar(tokenizer, *forms, schemas.compiler(patience), tools, &self.format)?;
        known_to(&self.messages, template.text())?;
        let list = tools.map(|tools| tools.list.as_slice());
        let mut messages = self.messages.clone();
        if matches!(forms.calls, Some(Calls::List | Calls::Named)) {
            short_ids(&mut messages);
        }
        let most = Some(model.about.longest);
        let talk = Talk { messages: &messages, tools: list, others: &self.others, most };
        let made = prompts.render(tokenizer, template, talk).map_err(|e| match e.kind() {
            ErrorKind::Shape => ApiError::long_context(model.about.longest, "messages"),
            _ => ApiError::of_field("messages", &e),
        })?;
        let mut params = params.clone();
        params.controls = forms.shows_controls(tools.is_some());
        params.job(model, made.1, grammar, "messages")
    }
}

/// A parsed request.
struct ChatRequest {
    model: Option<String>,
    conversation: Conversation,
    params: SamplingParams,
    stream: bool,
    usage: bool,
}

fn asked(mut fields: Fields) -> ApiResult<ChatRequest> {
    let mut params = SamplingParams::take(&mut fields)?;
    let model = fields.text("model")?;
    let messages = messages(&mut fields)?;
    let (old, new) =
        (fields.whole("max_tokens", 1, usize::MAX)?, fields.whole("max_completion_tokens", 1, usize::MAX)?);
    params.max = new.or(old);
    let listed = fields.whole("top_logprobs", 0, MAX_LOGPROBS)?;
    params.logprobs = match (fields.flag("logprobs")?.unwrap_or(false), listed) {
        (true, listed) => Some(listed.unwrap_or(0)),
        (false, None | Some(0)) => None,
        (false, Some(_)) => {
            return Err(ApiError::field("top_logprobs", "top_logprobs requires logprobs to be true"));
        }
    };
    let format = response_format(&mut fields)?;
    let tools = tools(&mut fields)?;
    let tools = choice(&mut fields, tools)?.map(Arc::new);
    let mut others = Vec::new();
    if let Some(effort) = fields.text("reasoning_effort")? {
        others.push(("reasoning_effort".into(), effort.into()));
    }
    if let Some(more) = fields.object("chat_template_kwargs")? {
        others.extend(more.rest());
    }
    let (stream, usage) = super::streaming(&mut fields)?;
    harmless(&mut fields)?;
    fields.only("modalities", &json!(["text"]))?;
    fields.end()?;
    Ok(ChatRequest {
        model,
        conversation: Conversation { messages, tools, others, format },
        params,
        stream,
        usage,
    })
}

/// Answers a conversation.
///
/// # Errors
/// 400 for an invalid request, 404, 429, 503.
pub async fn chat(app: &Arc<App>, request: &str, body: &[u8]) -> ApiResult<Response> {
    let ChatRequest { model, conversation, params, stream, usage } = asked(Fields::of_body(body)?)?;
    let (choices, tools) = (params.choices, conversation.tools.clone());
    let (tools, bound) = (tools.as_ref(), conversation.is_bound());
    let Generation { model, running } =
        Generation::begin(app, request, model.as_deref(), [choices; 2], bound, move |model, patience| {
            Ok(vec![conversation.job(model, &params, patience)?])
        })
        .await?;
    let head = Head::new("chatcmpl-", &model);
    let words = Words(model.text().ok().map(|text| Arc::clone(&text.tokenizer)));
    if stream {
        let texts = (0..choices).map(|_| Text { reader: model.reader(tools), calls: 0 }).collect();
        let wire = ChatWire { head, words, usage, texts };
        return Ok(respond(running, wire, Framing::Openai, choices));
    }
    let mut texts: Vec<CompleteSequence> =
        (0..choices).map(|_| CompleteSequence::new(&model, tools)).collect();
    let totals = collect(running, choices, |piece| {
        if let Some(text) = texts.get_mut(piece.choice) {
            text.add(piece);
        }
    })
    .await?;
    let all: Vec<Value> = texts.into_iter().enumerate().map(|(at, text)| text.json(at, &words)).collect();
    let mut answer = head.object("chat.completion");
    answer.insert("choices".into(), all.into());
    answer.insert("usage".into(), totals.usage());
    answer.insert("timings".into(), totals.timings());
    Ok(json_response(StatusCode::OK, &answer.into()))
}

/// A sequence that is read to its end.
pub struct CompleteSequence {
    reader: Reader,
    /// The parsed answer.
    pub answer: Answer,
    tokens: Vec<Token>,
    /// OpenAI's finish reason.
    pub finish: &'static str,
}

impl CompleteSequence {
    /// Returns an empty sequence. It looks for calls if `tools` were given.
    pub fn new(model: &Loaded, tools: Option<&Arc<Tools>>) -> Self {
        Self { reader: model.reader(tools), answer: Answer::default(), tokens: Vec::new(), finish: "" }
    }

    /// Adds a piece.
    pub fn add(&mut self, piece: NewTokens) {
        let mut parts = self.reader.push(&piece.text);
        if let Some(SequenceEnd::Done(finish, _)) = &piece.end {
            parts.extend(self.reader.finish());
            self.finish = finish_reason(finish);
        }
        parts.iter().for_each(|part| self.answer.add(part));
        if piece.tokens.iter().any(|token| token.logprobs.is_some()) {
            self.tokens.extend(piece.tokens);
        }
        if piece.end.is_some() && !self.answer.calls.is_empty() && self.finish == "stop" {
            self.finish = "tool_calls";
        }
    }

    /// Returns the resulting message.
    pub fn message(&self) -> Value {
        let Answer { content, reasoning, calls } = &self.answer;
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        let only_calls = content.is_empty() && !calls.is_empty();
        message.insert("content".into(), if only_calls { Value::Null } else { content.as_str().into() });
        message.insert("refusal".into(), Value::Null);
        if !reasoning.is_empty() {
            message.insert("reasoning_content".into(), reasoning.as_str().into());
        }
        if !calls.is_empty() {
            let call = |call: &crate::answer::Call| json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": call.arguments } });
            message.insert("tool_calls".into(), calls.iter().map(call).collect());
        }
        message.into()
    }

    fn json(self, index: usize, words: &Words) -> Value {
        let logprobs = if self.tokens.is_empty() { Value::Null } else { words.of_chat(&self.tokens) };
        json!({ "index": index, "message": self.message(), "logprobs": logprobs, "finish_reason": self.finish })
    }
}

/// A streamed sequence.
struct Text {
    reader: Reader,
    /// Number of calls so far; the last one may be incomplete.
    calls: usize,
}

struct ChatWire {
    head: Head,
    words: Words,
    /// Whether a final event reports the usage.
    usage: bool,
    texts: Vec<Text>,
}

impl ChatWire {
    fn event(&self, choices: Value, usage: Value) -> Event {
        let mut chunk = self.head.object("chat.completion.chunk");
        chunk.insert("choices".into(), choices);
        if self.usage {
            chunk.insert("usage".into(), usage);
        }
        Event::of(chunk.into())
    }

    fn choice(&self, index: usize, delta: Value, logprobs: Value, finish: Option<&str>) -> Event {
        let choice = json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish });
        self.event(json!([choice]), Value::Null)
    }
}

/// Returns the delta for a part; `None` for the end of a call.
fn delta(part: AnswerPart, calls: &mut usize) -> Option<Value> {
    let at = calls.saturating_sub(1);
    Some(match part {
        AnswerPart::Content(text) => json!({ "content": text }),
        AnswerPart::Reasoning(text) => json!({ "reasoning_content": text }),
        AnswerPart::CallBegin { name } => {
            let (index, id) = (*calls, crate::names::name("call_"));
            *calls += 1;
            let function = json!({ "name": name, "arguments": "" });
            json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": function }] })
        }
        AnswerPart::CallArguments(text) => {
            json!({ "tool_calls": [{ "index": at, "function": { "arguments": text } }] })
        }
        AnswerPart::CallEnd => return None,
    })
}

impl Wire for ChatWire {
    fn begin(&mut self) -> Vec<Event> {
        let first = |at| self.choice(at, json!({ "role": "assistant", "content": "" }), Value::Null, None);
        (0..self.texts.len()).map(first).collect()
    }

    fn piece(&mut self, piece: &NewTokens) -> Vec<Event> {
        let Some(text) = self.texts.get_mut(piece.choice) else { return Vec::new() };
        let mut parts = text.reader.push(&piece.text);
        let mut finish = None;
        if let Some(SequenceEnd::Done(why, _)) = &piece.end {
            parts.extend(text.reader.finish());
            finish = Some(finish_reason(why));
        }
        let deltas: Vec<Value> = parts.into_iter().filter_map(|part| delta(part, &mut text.calls)).collect();
        if text.calls > 0 && finish == Some("stop") {
            finish = Some("tool_calls");
        }
        let known = piece.tokens.iter().any(|token| token.logprobs.is_some());
        let mut logprobs = if known { self.words.of_chat(&piece.tokens) } else { Value::Null };
        let mut events = Vec::new();
        // The probabilities of tokens are sent even while their text is held back.
        let deltas = if deltas.is_empty() && known { vec![json!({})] } else { deltas };
        for delta in deltas {
            events.push(self.choice(piece.choice, delta, logprobs.take(), None));
        }
        if finish.is_some() {
            events.push(self.choice(piece.choice, json!({}), Value::Null, finish));
        }
        events
    }

    fn end(&mut self, totals: &Totals) -> Vec<Event> {
        if !self.usage {
            return Vec::new();
        }
        let mut event = self.event(json!([]), totals.usage());
        event.data["timings"] = totals.timings();
        vec![event]
    }
}
