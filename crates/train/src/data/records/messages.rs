//! Messages of a conversation, in the form in which templates read them.

use serde_json::{Map, Value, json};

/// Roles of messages.
const ROLES: [&str; 7] = ["system", "developer", "user", "assistant", "tool", "function", "ipython"];
/// Names of the same roles in ShareGPT's format.
const SPEAKERS: [(&str, &str); 16] = [
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("chatgpt", "assistant"),
    ("bard", "assistant"),
    ("bing", "assistant"),
    ("claude", "assistant"),
    ("model", "assistant"),
    ("assistant", "assistant"),
    ("system", "system"),
    ("tool", "tool"),
    ("observation", "tool"),
    ("function_response", "tool"),
    ("function", "tool"),
    ("function_call", CALL),
    ("tool_call", CALL),
];
/// A message of the model that calls a function.
const CALL: &str = "call";

/// Returns a message.
pub(super) fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// Returns a value that may be written as the text of its JSON, as columns of tables are.
pub(super) fn unpacked(value: &Value) -> Value {
    let json = value.as_str().filter(|text| text.trim_start().starts_with(['[', '{']));
    json.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_else(|| value.clone())
}

/// Reads a list of messages, with `role` and `content`, or `from` and `value`.
///
/// # Errors
/// The message that is wrong, by its number from 1.
pub(super) fn of(key: &str, list: &Value) -> Result<Vec<Value>, String> {
    let list = unpacked(list);
    let Value::Array(list) = list else { return Err(format!("`{key}` is not a list of messages")) };
    if list.is_empty() {
        return Err(format!("`{key}` is empty"));
    }
    let one = |(at, value): (usize, &Value)| {
        let Value::Object(fields) = value else {
            return Err(format!("`{key}`, message {}: expected an object", at + 1));
        };
        let read = if fields.contains_key("from") { spoken(fields) } else { written(fields) };
        read.map_err(|why| format!("`{key}`, message {}: {why}", at + 1))
    };
    list.iter().enumerate().map(one).collect()
}

/// Reads a message of OpenAI's format. Keys without a value are left out, because templates test whether a key exists.
fn written(fields: &Map<String, Value>) -> Result<Value, String> {
    let role = match fields.get("role") {
        Some(Value::String(role)) => role.as_str(),
        Some(_) => return Err("`role` is not a text".into()),
        None => return Err("`role` is missing".into()),
    };
    if !ROLES.contains(&role) {
        return Err(format!("the role {role:?} is unknown; the roles are {}", ROLES.join(", ")));
    }
    let mut message = fields.clone();
    message.retain(|key, value| key == "content" || !value.is_null());
    if let Some(calls) = message.get_mut("tool_calls") {
        *calls = tool_calls(calls)?;
    }
    let content = match message.get("content") {
        Some(Value::String(text)) => Value::String(text.clone()),
        Some(Value::Array(parts)) => joined(parts)?.into(),
        Some(Value::Null) | None if message.contains_key("tool_calls") => Value::Null,
        Some(Value::Null) | None => return Err("`content` is missing".into()),
        Some(_) => return Err("`content` is not a text".into()),
    };
    message.insert("content".into(), content);
    Ok(message.into())
}

/// Joins the parts of a content that is a list.
fn joined(parts: &[Value]) -> Result<String, String> {
    let text = |part: &Value| match (part["type"].as_str(), &part["text"]) {
        (Some("text") | None, Value::String(text)) => Ok(text.clone()),
        (Some(kind), _) if kind != "text" => {
            Err(format!("`content` has a part of type {kind:?}; only text is trained"))
        }
        _ => Err("`content` has a part without text".into()),
    };
    parts.iter().map(text).collect()
}

/// Reads calls of functions. Arguments written as the text of an object become that object, as templates expect.
fn tool_calls(calls: &Value) -> Result<Value, String> {
    let Value::Array(calls) = unpacked(calls) else { return Err("`tool_calls` is not a list".into()) };
    let one = |mut call: Value| {
        let function = match call.get_mut("function") {
            Some(function) => function,
            None => &mut call,
        };
        if !function["name"].is_string() {
            return Err("a call in `tool_calls` lacks its name".to_owned());
        }
        if let Some(arguments) = function.get_mut("arguments") {
            *arguments = unpacked(arguments);
        }
        Ok(call)
    };
    calls.into_iter().map(one).collect::<Result<Vec<_>, _>>().map(Value::from)
}

/// Reads a message of ShareGPT's format.
fn spoken(fields: &Map<String, Value>) -> Result<Value, String> {
    let (Some(Value::String(speaker)), Some(Value::String(text))) = (fields.get("from"), fields.get("value"))
    else {
        return Err("`from` and `value` must be texts".into());
    };
    let known = SPEAKERS.iter().find(|(name, _)| name.eq_ignore_ascii_case(speaker));
    match known.map(|(_, role)| *role) {
        Some(CALL) => {
            let call: Value = serde_json::from_str(text).map_err(|e| format!("a call of a function: {e}"))?;
            let calls = if call.is_array() { call } else { json!([call]) };
            let Value::Array(calls) = calls else {
                return Err("a call of a function is not an object".into());
            };
            let one = |call: Value| {
                let call = if call.get("function").is_some() { call } else { json!({ "function": call }) };
                let mut call = call;
                call["type"] = "function".into();
                call
            };
            let calls = tool_calls(&calls.into_iter().map(one).collect::<Vec<_>>().into())?;
            Ok(json!({ "role": "assistant", "content": null, "tool_calls": calls }))
        }
        Some(role) => Ok(message(role, text)),
        None => {
            let mut names: Vec<&str> = SPEAKERS.iter().map(|(name, _)| *name).collect();
            names.dedup();
            Err(format!("the speaker {speaker:?} is unknown; known are {}", names.join(", ")))
        }
    }
}
