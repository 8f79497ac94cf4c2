//! Values of records by their keys.

use super::messages::unpacked;
use netcl_llm::answers::Dialogue;
use serde_json::{Map, Value};

/// Returns the value of a key, also in another case.
pub(super) fn get<'a>(record: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    let other = || record.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value);
    record.get(key).or_else(other).filter(|value| !value.is_null())
}

/// Returns the text of a key.
///
/// # Errors
/// A missing key, or a value of another type.
pub(super) fn text(record: &Map<String, Value>, key: &str) -> Result<String, String> {
    match get(record, key) {
        Some(Value::String(text)) => Ok(text.clone()),
        None => Err(format!("`{key}` is missing")),
        Some(_) => Err(format!("`{key}` is not a text")),
    }
}

/// Returns a conversation with the functions and the template variables of its record. The first `prompt` messages are not trained.
///
/// # Errors
/// The key that has another type than expected.
pub(super) fn dialogue(
    record: &Map<String, Value>,
    messages: Vec<Value>,
    prompt: usize,
) -> Result<Dialogue, String> {
    let tools = match get(record, "tools").map(unpacked) {
        None => None,
        Some(Value::Array(tools)) => Some(tools).filter(|tools| !tools.is_empty()),
        Some(Value::String(text)) if text.trim().is_empty() => None,
        Some(_) => return Err("`tools` is not a list of functions".into()),
    };
    let others = match get(record, "chat_template_kwargs").map(unpacked) {
        None => Vec::new(),
        Some(Value::Object(others)) => others.into_iter().collect(),
        Some(_) => return Err("`chat_template_kwargs` is not an object".into()),
    };
    Ok(Dialogue { messages, tools, others, prompt })
}
