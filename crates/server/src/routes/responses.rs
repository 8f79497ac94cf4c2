//! `POST /v1/responses`: OpenAI's newer interface. Nothing is stored, so clients send the whole conversation each time.

use super::chat::{CompleteSequence, Conversation};
use super::format::{missing, schema, unknown};
use super::messages::{only, text};
use super::{Generation, harmless, now};
use crate::answer::{Answer, AnswerPart, Call};
use crate::app::App;
use crate::error::{ApiError, ApiResult, json_response};
use crate::fields::{Fields, wrong};
use crate::names::name;
use crate::piece::{NewTokens, SequenceEnd};
use crate::reader::Reader;
use crate::sampling_params::SamplingParams;
use crate::schemas::Format;
use crate::stream::{Event, Framing, Totals, Wire, collect, finish_reason, respond};
use crate::tools::choice;
use axum::http::StatusCode;
use axum::response::Response;
use netcl::llm::Tokenizer;
use netcl::llm::tokenizer::Specials;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A parsed request, and the fields that an answer repeats.
struct ResponseRequest {
    model: Option<String>,
    conversation: Conversation,
    params: SamplingParams,
    stream: bool,
    repeated: Map<String, Value>,
}

/// Converts the items of `input` to messages: a text, messages, calls and their results.
fn input(value: Option<Value>, instructions: Option<&str>) -> ApiResult<Vec<Value>> {
    let mut messages: Vec<Value> = Vec::new();
    messages.extend(instructions.map(|text| json!({ "role": "system", "content": text })));
    match value {
        None => return Err(missing("input")),
        Some(Value::String(text)) => messages.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(items)) => {
            for (at, item) in items.into_iter().enumerate() {
                let place = format!("input[{at}]");
                let Value::Object(item) = item else { return Err(wrong(&place, &item, "an object")) };
                add(&mut messages, item, &place)?;
            }
        }
        Some(other) => return Err(wrong("input", &other, "a string or an array")),
    }
    match messages.iter().any(|message| message["role"] != "system") {
        true => Ok(messages),
        false => Err(ApiError::field("input", "input is empty: there is nothing to answer")),
    }
}

/// Adds an item to the messages.
fn add(messages: &mut Vec<Value>, mut item: Map<String, Value>, place: &str) -> ApiResult<()> {
    let word = |item: &Map<String, Value>, key: &str| {
        let value = item.get(key).and_then(Value::as_str).map(str::to_owned);
        value.ok_or_else(|| missing(&format!("{place}.{key}")))
    };
    let kind = item.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
    let own: &[&str] = match kind.as_str() {
        "message" => &["role", "content"],
        "function_call" => &["call_id", "name", "arguments"],
        "function_call_output" => &["call_id", "output"],
        "reasoning" => &["summary", "content", "encrypted_content"],
        other => return Err(unknown(&format!("{place}.type"), Some(other))),
    };
    only(&Value::Object(item.clone()), &[&["type", "id", "status"], own].concat(), place)?;
    match kind.as_str() {
        "message" => {
            let role = word(&item, "role")?;
            let role = if role == "developer" { "system".to_owned() } else { role };
            let content = item.remove("content").unwrap_or_default();
            messages.push(json!({ "role": role, "content": text(content, &format!("{place}.content"))? }));
        }
        "function_call" => {
            let (id, name, arguments) =
                (word(&item, "call_id")?, word(&item, "name")?, word(&item, "arguments")?);
            let arguments = serde_json::from_str(&arguments).unwrap_or(Value::String(arguments));
            let call =
                json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
            // Consecutive calls belong to one message.
            match messages.last_mut().and_then(|last| last.get_mut("tool_calls")?.as_array_mut()) {
                Some(calls) => calls.push(call),
                None => messages.push(json!({ "role": "assistant", "content": "", "tool_calls": [call] })),
            }
        }
        "function_call_output" => {
            let id = word(&item, "call_id")?;
            let output = text(item.remove("output").unwrap_or_default(), &format!("{place}.output"))?;
            messages.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
        }
        // Reasoning of earlier turns is not shown to the model again.
        _ => {}
    }
    Ok(())
}

/// Parses functions, which are flat here: `{"type": "function", "name", "description", "parameters", "strict"}`.
fn tools(fields: &mut Fields) -> ApiResult<Option<Vec<Value>>> {
    let Some(list) = fields.list("tools")? else { return Ok(None) };
    let one = |(at, tool): (usize, Value)| {
        let place = format!("tools[{at}]");
        let Value::Object(mut function) = tool else { return Err(wrong(&place, &tool, "an object")) };
        match function.remove("type").as_ref().and_then(Value::as_str) {
            Some("function") => {}
            other => return Err(unknown(&format!("{place}.type"), other)),
        }
        match function.get("name").and_then(Value::as_str) {
            Some(name) if !name.is_empty() => Ok(json!({ "type": "function", "function": function })),
            _ => Err(missing(&format!("{place}.name"))),
        }
    };
    let list: Vec<Value> = list.into_iter().enumerate().map(one).collect::<ApiResult<_>>()?;
    Ok(Some(list).filter(|list| !list.is_empty()))
}

/// Parses `text.format`.
fn format(fields: &mut Fields) -> ApiResult<Format> {
    let Some(mut text) = fields.object("text")? else { return Ok(Format::Text) };
    text.pass_over(&["verbosity"]);
    let Some(mut format) = text.object("format")? else { return text.end().map(|()| Format::Text) };
    let of = match format.text("type")?.as_deref() {
        Some("text") => Format::Text,
        Some("json_object") => Format::Object,
        Some("json_schema") => schema(&mut format, "text.format")?,
        other => return Err(unknown("text.format.type", other)),
    };
    format.end()?;
    text.end()?;
    Ok(of)
}

fn asked(body: &[u8]) -> ApiResult<ResponseRequest> {
    let mut fields = Fields::of_body(body)?;
    let repeated = repeated(&fields);
    let mut params = SamplingParams::take(&mut fields)?;
    if params.choices != 1 {
        return Err(ApiError::unknown("n"));
    }
    let model = fields.text("model")?;
    params.max = fields.whole("max_output_tokens", 1, usize::MAX)?;
    let instructions = fields.text("instructions")?;
    let messages = input(fields.any("input"), instructions.as_deref())?;
    let tools = tools(&mut fields)?;
    let tools = choice(&mut fields, tools)?.map(Arc::new);
    let format = format(&mut fields)?;
    let mut others = Vec::new();
    if let Some(mut reasoning) = fields.object("reasoning")? {
        others.extend(reasoning.text("effort")?.map(|effort| ("reasoning_effort".to_owned(), effort.into())));
        reasoning.pass_over(&["summary"]);
        reasoning.end()?;
    }
    let stream = fields.flag("stream")?.unwrap_or(false);
    if let Some(mut options) = fields.object("stream_options")? {
        options.flag("include_obfuscation")?;
        options.end()?;
    }
    harmless(&mut fields)?;
    fields.only("include", &json!([]))?;
    fields.only("background", &false.into())?;
    fields.only("truncation", &"disabled".into())?;
    fields.only("top_logprobs", &0.into())?;
    fields.end()?;
    let conversation = Conversation { messages, tools, others, format };
    Ok(ResponseRequest { model, conversation, params, stream, repeated })
}

/// Returns the fields that an answer repeats, with the sent or the default values.
fn repeated(fields: &Fields) -> Map<String, Value> {
    let defaults = json!({
        "instructions": null, "max_output_tokens": null, "metadata": {}, "temperature": null, "top_p": null,
        "tools": [], "tool_choice": "auto", "parallel_tool_calls": true, "text": { "format": { "type": "text" } }, "reasoning": { "effort": null, "summary": null },
    });
    let Value::Object(mut all) = defaults else { return Map::new() };
    for (key, value) in &mut all {
        if let Some(sent) = fields.peek(key) {
            *value = sent.clone();
        }
    }
    // This field does not have a default.
    all.extend(fields.peek("user").map(|user| ("user".to_owned(), user.clone())));
    all
}

/// The answer's outer object.
struct Frame {
    id: String,
    created: u64,
    model: String,
    tokenizer: Option<Arc<Tokenizer>>,
    repeated: Map<String, Value>,
}

impl Frame {
    /// Returns the number of reasoning tokens, by encoding the text.
    fn thought(&self, output: &[Value]) -> usize {
        let texts = output.iter().filter(|item| item["type"] == "reasoning");
        let parts = texts.filter_map(|item| item["content"].as_array()).flatten();
        let count = |text: &str| Some(self.tokenizer.as_ref()?.encode(text, Specials::Plain).ok()?.len());
        parts.filter_map(|part| count(part["text"].as_str()?)).sum()
    }

    fn object(&self, status: &str, output: Vec<Value>, totals: Option<&Totals>) -> Value {
        let usage = totals.map(|totals| {
            json!({
                "input_tokens": totals.prompt,
                "input_tokens_details": { "cached_tokens": totals.cached, "cache_write_tokens": 0 },
                "output_tokens": totals.made,
                "output_tokens_details": { "reasoning_tokens": self.thought(&output) },
                "total_tokens": totals.prompt + totals.made,
            })
        });
        let why = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let mut object = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "error": null,
            "incomplete_details": why, "model": self.model, "output": output,
            "previous_response_id": null, "store": false, "truncation": "disabled", "background": false,
            "service_tier": "default",
        });
        if let Value::Object(object) = &mut object {
            object.extend(usage.map(|usage| ("usage".to_owned(), usage)));
            object.extend(self.repeated.clone());
        }
        object
    }
}

/// Returns whether an answer is complete.
fn status(finish: &str) -> &'static str {
    if finish == "length" { "incomplete" } else { "completed" }
}

/// Returns a part of `content`.
fn content_part(kind: Kind, said: &str) -> Value {
    match kind {
        Kind::Message => json!({ "type": "output_text", "text": said, "annotations": [], "logprobs": [] }),
        _ => json!({ "type": "reasoning_text", "text": said }),
    }
}

/// Kind of an item of `output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call,
}

/// An item of `output`.
#[derive(Clone, Debug)]
struct Item {
    kind: Kind,
    id: String,
    /// Its text, or the call's arguments.
    said: String,
    /// The call's id and the function's name.
    call: [String; 2],
}

impl Item {
    fn new(kind: Kind, function: &str) -> Self {
        let (prefix, call) = match kind {
            Kind::Reasoning => ("rs_", [String::new(), String::new()]),
            Kind::Message => ("msg_", [String::new(), String::new()]),
            Kind::Call => ("fc_", [name("call_"), function.to_owned()]),
        };
        Self { kind, id: name(prefix), said: String::new(), call }
    }

    fn json(&self, status: &str) -> Value {
        let content = || match self.said.is_empty() {
            true => json!([]),
            false => json!([content_part(self.kind, &self.said)]),
        };
        match self.kind {
            Kind::Message => {
                json!({ "type": "message", "id": self.id, "status": status, "role": "assistant", "content": content() })
            }
            Kind::Reasoning => {
                json!({ "type": "reasoning", "id": self.id, "status": status, "summary": [], "content": content() })
            }
            Kind::Call => {
                let [id, name] = &self.call;
                json!({ "type": "function_call", "id": self.id, "status": status, "call_id": id, "name": name, "arguments": self.said })
            }
        }
    }
}

/// Returns the items of a complete answer.
fn items(answer: &Answer) -> Vec<Item> {
    let text = |kind, said: &str| Item { said: said.to_owned(), ..Item::new(kind, "") };
    let mut items = Vec::new();
    if !answer.reasoning.is_empty() {
        items.push(text(Kind::Reasoning, &answer.reasoning));
    }
    if !answer.content.is_empty() || answer.calls.is_empty() {
        items.push(text(Kind::Message, &answer.content));
    }
    let call = |call: &Call| Item { said: call.arguments.clone(), ..Item::new(Kind::Call, &call.name) };
    items.extend(answer.calls.iter().map(call));
    items
}

/// Answers a request.
///
/// # Errors
/// 400 for an invalid request, 404, 429, 503.
pub async fn respond_to(app: &Arc<App>, request: &str, body: &[u8]) -> ApiResult<Response> {
    let ResponseRequest { model, conversation, params, stream, repeated } = asked(body)?;
    let (tools, bound) = (conversation.tools.clone(), conversation.is_bound());
    let Generation { model, running } =
        Generation::begin(app, request, model.as_deref(), [1, 1], bound, move |model, patience| {
            Ok(vec![conversation.job(model, &params, patience)?])
        })
        .await?;
    let tokenizer = model.text().ok().map(|text| Arc::clone(&text.tokenizer));
    let frame = Frame { id: name("resp_"), created: now(), model: model.name.clone(), tokenizer, repeated };
    if stream {
        let reader = model.reader(tools.as_ref());
        let wire = ResponseWire { frame, reader, items: Vec::new(), open: false, finish: "stop", number: 0 };
        return Ok(respond(running, wire, Framing::Named, 1));
    }
    let mut whole = CompleteSequence::new(&model, tools.as_ref());
    let totals = collect(running, 1, |piece| whole.add(piece)).await?;
    let status = status(whole.finish);
    let output = items(&whole.answer).iter().map(|item| item.json(status)).collect();
    Ok(json_response(StatusCode::OK, &frame.object(status, output, Some(&totals))))
}

struct ResponseWire {
    frame: Frame,
    reader: Reader,
    items: Vec<Item>,
    /// Whether the last item is incomplete.
    open: bool,
    finish: &'static str,
    /// Number of events so far.
    number: u64,
}

impl ResponseWire {
    fn event(&mut self, kind: &'static str, fields: Value) -> Event {
        let mut data = json!({ "type": kind, "sequence_number": self.number });
        self.number += 1;
        if let (Value::Object(data), Value::Object(fields)) = (&mut data, fields) {
            data.extend(fields);
        }
        Event { name: Some(kind), data }
    }

    /// Returns the position of the last item for its events.
    fn place(&self) -> Value {
        let at = self.items.len().saturating_sub(1);
        json!({ "item_id": self.items.last().map(|item| item.id.as_str()), "output_index": at, "content_index": 0 })
    }

    /// Returns an event about the last item, with one additional field.
    fn about(&mut self, kind: &'static str, field: &str, value: Value) -> Event {
        let mut fields = self.place();
        fields[field] = value;
        if kind.contains("function_call")
            && let Value::Object(fields) = &mut fields
        {
            fields.shift_remove("content_index");
        }
        if kind.starts_with("response.output_text") {
            fields["logprobs"] = json!([]);
        }
        self.event(kind, fields)
    }

    fn begin_item(&mut self, kind: Kind, function: &str, events: &mut Vec<Event>) {
        self.end_item(events);
        let item = Item::new(kind, function);
        let (at, json) = (self.items.len(), item.json("in_progress"));
        self.items.push(item);
        self.open = true;
        events.push(self.event("response.output_item.added", json!({ "output_index": at, "item": json })));
        if kind != Kind::Call {
            events.push(self.about("response.content_part.added", "part", content_part(kind, "")));
        }
    }

    fn end_item(&mut self, events: &mut Vec<Event>) {
        let Some(item) = self.items.last().filter(|_| self.open).cloned() else { return };
        self.open = false;
        let said = item.said.as_str();
        match item.kind {
            Kind::Call => {
                let mut done = self.about("response.function_call_arguments.done", "arguments", said.into());
                done.data["name"] = item.call[1].as_str().into();
                events.push(done);
            }
            kind => {
                let done = match kind {
                    Kind::Message => "response.output_text.done",
                    _ => "response.reasoning_text.done",
                };
                events.push(self.about(done, "text", said.into()));
                events.push(self.about("response.content_part.done", "part", content_part(kind, said)));
            }
        }
        let (at, json) = (self.items.len() - 1, item.json(status(self.finish)));
        events.push(self.event("response.output_item.done", json!({ "output_index": at, "item": json })));
    }

    /// Adds text to an item of this kind: the last one, or a new one.
    fn more(&mut self, kind: Kind, text: &str, events: &mut Vec<Event>) {
        if !self.open || self.items.last().is_none_or(|item| item.kind != kind) {
            self.begin_item(kind, "", events);
        }
        if let Some(item) = self.items.last_mut() {
            item.said.push_str(text);
        }
        let name = match kind {
            Kind::Message => "response.output_text.delta",
            Kind::Reasoning => "response.reasoning_text.delta",
            Kind::Call => "response.function_call_arguments.delta",
        };
        events.push(self.about(name, "delta", text.into()));
    }

    fn output(&self) -> Vec<Value> {
        self.items.iter().map(|item| item.json(status(self.finish))).collect()
    }
}

impl Wire for ResponseWire {
    fn begin(&mut self) -> Vec<Event> {
        let response = self.frame.object("in_progress", Vec::new(), None);
        let created = self.event("response.created", json!({ "response": response }));
        vec![created, self.event("response.in_progress", json!({ "response": response }))]
    }

    fn piece(&mut self, piece: &NewTokens) -> Vec<Event> {
        let mut parts = self.reader.push(&piece.text);
        if let Some(SequenceEnd::Done(finish, _)) = &piece.end {
            parts.extend(self.reader.finish());
            self.finish = finish_reason(finish);
        }
        let mut events = Vec::new();
        for part in parts {
            match part {
                AnswerPart::Content(text) => self.more(Kind::Message, &text, &mut events),
                AnswerPart::Reasoning(text) => self.more(Kind::Reasoning, &text, &mut events),
                AnswerPart::CallBegin { name } => self.begin_item(Kind::Call, &name, &mut events),
                AnswerPart::CallArguments(text) => self.more(Kind::Call, &text, &mut events),
                AnswerPart::CallEnd => self.end_item(&mut events),
            }
        }
        events
    }

    fn end(&mut self, totals: &Totals) -> Vec<Event> {
        let mut events = Vec::new();
        if self.items.is_empty() {
            self.begin_item(Kind::Message, "", &mut events);
        }
        self.end_item(&mut events);
        let response = self.frame.object(status(self.finish), self.output(), Some(totals));
        let kind = match self.finish {
            "length" => "response.incomplete",
            _ => "response.completed",
        };
        events.push(self.event(kind, json!({ "response": response })));
        events
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Event> {
        let mut response = self.frame.object("failed", self.output(), None);
        let code = error.code.unwrap_or("server_error");
        response["error"] = json!({ "code": code, "message": error.message });
        vec![self.event("response.failed", json!({ "response": response }))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_messages() {
        let items = json!([
            { "role": "developer", "content": "short" },
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "a" }] },
            { "type": "reasoning", "id": "rs_1", "summary": [] },
            { "type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"x\": 1}" },
            { "type": "function_call", "call_id": "2", "name": "g", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "1", "output": "3" },
        ]);
        let found = input(Some(items), Some("kind")).unwrap();
        assert_eq!(
            found.iter().map(|m| m["role"].as_str().unwrap()).collect::<Vec<_>>(),
            ["system", "system", "user", "assistant", "tool"]
        );
        assert_eq!(found[3]["tool_calls"][0]["function"], json!({ "name": "f", "arguments": { "x": 1 } }));
        assert_eq!(found[3]["tool_calls"].as_array().map(Vec::len), Some(2));
        for (wrong, param) in [
            (json!([]), "input"),
            (json!([{ "type": "web_search_call" }]), "input[0].type"),
            (json!([{ "type": "function_call", "name": "f" }]), "input[0].call_id"),
            (json!(3), "input"),
        ] {
            assert_eq!(input(Some(wrong), None).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
