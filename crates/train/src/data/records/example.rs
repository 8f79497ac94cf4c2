//! Examples by the keys of records.

use super::comparison::{self, Comparison};
use super::fields::{dialogue, get, text};
use super::messages::unpacked;
use super::{alpaca, messages};
use crate::data::format::{ExampleFormat, example_format};
use netcl_llm::answers::Dialogue;
use serde_json::{Map, Value};

/// A record in the form in which it is encoded.
#[derive(Clone, Debug)]
pub(super) enum Example {
    /// A conversation.
    Dialogue(Dialogue),
    /// An instruction: a conversation for models with a template, otherwise a prompt.
    Alpaca { dialogue: Dialogue, prompt: String, completion: String },
    /// A prompt and the text to learn.
    Completion { prompt: String, completion: String },
    /// A text to learn.
    Text(String),
    /// A prompt with a chosen and a rejected answer.
    Pair(Comparison),
    /// A prompt with an answer, and whether that is desirable.
    Labeled(Comparison, bool),
}

impl Example {
    /// Reads a record.
    ///
    /// # Errors
    /// The key that is missing or has another type than expected.
    pub fn of(record: &Map<String, Value>) -> Result<Self, String> {
        let Some(format) = example_format(record) else {
            let keys: Vec<&str> = record.keys().map(String::as_str).take(6).collect();
            let keys = if keys.is_empty() { "none".to_owned() } else { keys.join(", ") };
            return Err(format!(
                "its keys are {keys}; expected messages, conversations, instruction and output, prompt and completion, text, or chosen and rejected"
            ));
        };
        match format {
            ExampleFormat::Chat => chat(record),
            ExampleFormat::Alpaca => instruction(record),
            ExampleFormat::Completion => completion(record),
            ExampleFormat::Text => text(record, "text").map(Self::Text),
            ExampleFormat::Pair => comparison::pair(record).map(Self::Pair),
            ExampleFormat::Labeled => {
                comparison::labeled(record).map(|(comparison, label)| Self::Labeled(comparison, label))
            }
        }
    }
}

fn chat(record: &Map<String, Value>) -> Result<Example, String> {
    let (key, list) = match (get(record, "messages"), get(record, "conversations")) {
        (Some(list), _) => ("messages", list),
        (None, Some(list)) => ("conversations", list),
        (None, None) => return Err("`messages` is missing".into()),
    };
    let mut messages = messages::of(key, list)?;
    if let Some(Value::String(system)) = get(record, "system").filter(|_| messages[0]["role"] != "system") {
        messages.insert(0, messages::message("system", system));
    }
    Ok(Example::Dialogue(dialogue(record, messages, 0)?))
}

fn instruction(record: &Map<String, Value>) -> Result<Example, String> {
    let (instruction, completion) = (text(record, "instruction")?, text(record, "output")?);
    let input = get(record, "input").map_or(Ok(String::new()), |_| text(record, "input"))?;
    let mut all = Vec::new();
    if let Some(Value::String(system)) = get(record, "system").filter(|system| **system != "") {
        all.push(messages::message("system", system));
    }
    for turn in get(record, "history").and_then(Value::as_array).into_iter().flatten() {
        let pair = turn.as_array().map(Vec::as_slice).unwrap_or_default();
        let [Value::String(asked), Value::String(said)] = pair else {
            return Err("`history` is not a list of pairs of texts".into());
        };
        all.extend([messages::message("user", asked), messages::message("assistant", said)]);
    }
    let asked = if input.is_empty() { instruction.clone() } else { format!("{instruction}\n{input}") };
    all.extend([messages::message("user", &asked), messages::message("assistant", &completion)]);
    let prompt = alpaca::prompt(&instruction, &input);
    Ok(Example::Alpaca { dialogue: dialogue(record, all, 0)?, prompt, completion })
}

fn completion(record: &Map<String, Value>) -> Result<Example, String> {
    let part = |key: &str| get(record, key).map(unpacked).ok_or_else(|| format!("`{key}` is missing"));
    match (part("prompt")?, part("completion")?) {
        (Value::Array(prompt), Value::Array(completion)) => {
            let mut all = messages::of("prompt", &prompt.into())?;
            let before = all.len();
            all.extend(messages::of("completion", &completion.into())?);
            Ok(Example::Dialogue(dialogue(record, all, before)?))
        }
        (Value::Array(_), _) => Err("`prompt` is a list of messages, but `completion` is not".into()),
        (_, Value::Array(_)) => Err("`completion` is a list of messages, but `prompt` is not".into()),
        _ => Ok(Example::Completion {
            prompt: text(record, "prompt")?,
            completion: text(record, "completion")?,
        }),
    }
}
