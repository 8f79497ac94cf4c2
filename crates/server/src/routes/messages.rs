//! Messages and tools, in the format that chat templates take.

use super::format::{missing, unknown};
use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, wrong};
use serde_json::{Map, Value};

/// Length of a call id in Mistral's templates.
const MISTRAL_CALL_ID_LENGTH: usize = 9;

/// Parses `messages`. Joins the parts of contents to one text and converts arguments of calls to objects.
///
/// # Errors
/// 400 with the message and the field.
pub fn messages(fields: &mut Fields) -> ApiResult<Vec<Value>> {
    let Some(list) = fields.list("messages")? else { return Err(missing("messages")) };
    if list.is_empty() {
        return Err(ApiError::field("messages", "messages is empty: there is nothing to answer"));
    }
    list.into_iter().enumerate().map(|(at, message)| one(message, &format!("messages[{at}]"))).collect()
}

fn one(message: Value, place: &str) -> ApiResult<Value> {
    let Value::Object(mut message) = message else { return Err(wrong(place, &message, "an object")) };
    match message.get("role") {
        // Templates use the older name.
        Some(Value::String(role)) if role == "developer" => {
            message.insert("role".into(), "system".into());
        }
        Some(Value::String(_)) => {}
        Some(other) => return Err(wrong(&format!("{place}.role"), other, "a string")),
        None => return Err(missing(&format!("{place}.role"))),
    }
    echoed(&mut message, place)?;
    let content = message.get_mut("content").map(Value::take).unwrap_or_default();
    let content = text(content, &format!("{place}.content"))?;
    message.insert("content".into(), content.into());
    if let Some(calls) = message.get_mut("tool_calls") {
        match calls {
            Value::Array(calls) => {
                for (at, call) in calls.iter_mut().enumerate() {
                    let place = format!("{place}.tool_calls[{at}]");
                    only(call, &["id", "type", "function", "index"], &place)?;
                    only(&call["function"], &["name", "arguments", "index"], &format!("{place}.function"))?;
                    arguments(call);
                }
            }
            // Clients send this for messages without calls.
            Value::Null => drop(message.remove("tool_calls")),
            other => return Err(wrong(&format!("{place}.tool_calls"), other, "an array")),
        }
    }
    Ok(Value::Object(message))
}

/// Rejects unknown fields of an object.
///
/// # Errors
/// 400 with the first field that is not in `known` and not `null`.
pub fn only(object: &Value, known: &[&str], place: &str) -> ApiResult<()> {
    let mut fields = object.as_object().into_iter().flatten();
    match fields.find(|(key, value)| !value.is_null() && !known.contains(&key.as_str())) {
        Some((key, _)) => Err(ApiError::unknown(&format!("{place}.{key}"))),
        None => Ok(()),
    }
}

/// Handles fields of answers that clients send back, and those of images and audio.
fn echoed(message: &mut Map<String, Value>, place: &str) -> ApiResult<()> {
    for key in ["images", "audio", "refusal", "annotations", "function_call"] {
        let Some(value) = message.shift_remove(key) else { continue };
        let empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty) || value == "";
        match (empty, key) {
            (true, _) => {}
            (false, "images" | "audio") => {
                let name = format!("{place}.{key}");
                let message = format!("{name}: the models of this server only read text; omit {key}");
                return Err(ApiError {
                    code: Some("unsupported_parameter"),
                    ..ApiError::field(name, message)
                });
            }
            (false, _) => return Err(ApiError::unknown(&format!("{place}.{key}"))),
        }
    }
    // Ollama's names for fields that templates name differently.
    for (theirs, ours) in [("thinking", "reasoning_content"), ("tool_name", "name")] {
        if let Some(value) = message.shift_remove(theirs).filter(|value| !value.is_null()) {
            message.insert(ours.into(), value);
        }
    }
    Ok(())
}

/// Fields of a message that this interface supports. A template need not use each of them: speaker names and earlier reasoning are often omitted.
const SUPPORTED_FIELDS: [&str; 7] =
    ["role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning"];

/// Rejects fields of messages that neither this interface supports nor the template mentions.
///
/// # Errors
/// 400 with the first one.
pub fn known_to(messages: &[Value], template: &str) -> ApiResult<()> {
    for (at, message) in messages.iter().enumerate() {
        let fields = message.as_object().into_iter().flatten();
        let used = fields.filter(|(key, value)| {
            SUPPORTED_FIELDS.contains(&key.as_str()) || value.is_null() || template.contains(key.as_str())
        });
        let used: Vec<&str> = used.map(|(key, _)| key.as_str()).collect();
        only(message, &used, &format!("messages[{at}]"))?;
    }
    Ok(())
}

/// Returns the text of a content.
///
/// # Errors
/// 400 for parts that are not text.
pub fn text(content: Value, place: &str) -> ApiResult<String> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text),
        Value::Array(parts) => {
            let part = |(at, part): (usize, &Value)| {
                let place = format!("{place}[{at}]");
                let kind = part["type"].as_str();
                if part["text"].is_string() {
                    let own: &[&str] =
                        if kind == Some("output_text") { &["annotations", "logprobs"] } else { &[] };
                    only(part, &[&["type", "text"], own].concat(), &place)?;
                }
                match (kind, part["text"].as_str()) {
                    (Some("text" | "input_text" | "output_text"), Some(text)) => Ok(text.to_owned()),
                    (Some("text" | "input_text" | "output_text"), None) => {
                        Err(missing(&format!("{place}.text")))
                    }
                    _ => Err(unknown(&format!("{place}.type"), kind)),
                }
            };
            Ok(parts.iter().enumerate().map(part).collect::<ApiResult<Vec<_>>>()?.join("\n"))
        }
        other => Err(wrong(place, &other, "a string or an array of parts")),
    }
}

/// Converts arguments from the JSON text of an object; templates serialize objects themselves.
fn arguments(call: &mut Value) {
    let Some(Value::String(text)) = call.pointer("/function/arguments") else { return };
    if let Ok(object @ Value::Object(_)) = serde_json::from_str::<Value>(text)
        && let Some(arguments) = call.pointer_mut("/function/arguments")
    {
        *arguments = object;
    }
}

/// Parses `tools`: functions that the model may call.
///
/// # Errors
/// 400 with the invalid field.
pub fn tools(fields: &mut Fields) -> ApiResult<Option<Vec<Value>>> {
    let Some(list) = fields.list("tools")? else { return Ok(None) };
    for (at, tool) in list.iter().enumerate() {
        let place = format!("tools[{at}]");
        match tool["type"].as_str() {
            Some("function") => {}
            other => return Err(unknown(&format!("{place}.type"), other)),
        }
        if tool["function"]["name"].as_str().is_none_or(str::is_empty) {
            return Err(missing(&format!("{place}.function.name")));
        }
    }
    Ok(Some(list).filter(|list| !list.is_empty()))
}

/// Converts call ids to the form of Mistral's templates: nine letters or digits. Equal ids stay equal.
pub fn short_ids(messages: &mut [Value]) {
    let short = |id: &mut Value| {
        let Some(text) = id.as_str() else { return };
        if text.len() != MISTRAL_CALL_ID_LENGTH || !text.bytes().all(|b| b.is_ascii_alphanumeric()) {
            *id = blake3::hash(text.as_bytes()).to_hex()[..MISTRAL_CALL_ID_LENGTH].into();
        }
    };
    for message in messages {
        message.get_mut("tool_call_id").into_iter().for_each(short);
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        calls.into_iter().flatten().filter_map(|call| call.get_mut("id")).for_each(short);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ids_of_calls_become_short_and_stay_the_same() {
        let mut messages = [
            json!({ "role": "assistant", "tool_calls": [{ "id": "call_0123456789abcdef" }, { "id": "abcdefGH1" }] }),
            json!({ "role": "tool", "tool_call_id": "call_0123456789abcdef" }),
        ];
        short_ids(&mut messages);
        let id = messages[0]["tool_calls"][0]["id"].as_str().unwrap();
        assert!(id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()));
        assert_eq!(messages[1]["tool_call_id"], id);
        assert_eq!(messages[0]["tool_calls"][1]["id"], "abcdefGH1");
    }

    #[test]
    fn messages_become_what_templates_read() {
        let body = json!({ "messages": [
            { "role": "developer", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
            { "role": "assistant", "content": null, "tool_calls": [{ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{\"x\": 1}" } }] },
            { "role": "tool", "tool_call_id": "1", "content": "2" },
        ] });
        let mut fields = Fields::of_body(body.to_string().as_bytes()).unwrap();
        let found = messages(&mut fields).unwrap();
        assert_eq!(found[0], json!({ "role": "system", "content": "a\nb" }));
        assert_eq!(found[1]["tool_calls"][0]["function"]["arguments"], json!({ "x": 1 }));
        assert_eq!((found[1]["content"].as_str(), found[2]["tool_call_id"].as_str()), (Some(""), Some("1")));
        let wrong = |messages: Value| {
            let body = json!({ "messages": messages }).to_string();
            super::messages(&mut Fields::of_body(body.as_bytes()).unwrap()).unwrap_err().param.unwrap()
        };
        assert_eq!(wrong(json!([])), "messages");
        assert_eq!(wrong(json!([{ "content": "x" }])), "messages[0].role");
        assert_eq!(
            wrong(json!([{ "role": "user", "content": [{ "type": "image_url" }] }])),
            "messages[0].content[0].type"
        );
        assert_eq!(wrong(json!([{ "role": "user", "content": 3 }])), "messages[0].content");
    }
}
