//! Calls in the format of Qwen3-Coder: `<function=NAME>`, then for each argument `<parameter=KEY>`, its value and `</parameter>`, and `</function>`.
//! An argument is returned when it is complete, because its schema determines the type of its text.

use super::object::Progress;
use super::python::literal;
use crate::answer::AnswerPart;
use crate::forms::CALL;
use crate::tools::Tools;
use serde_json::Value;

pub const FUNCTION: [&str; 2] = ["<function=", "</function>"];
pub const PARAMETER: [&str; 2] = ["<parameter=", "</parameter>"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Name,
    Parameters,
    After,
}

/// Parser of one call.
#[derive(Clone, Debug)]
pub struct Xml {
    phase: Phase,
    name: String,
    /// Number of arguments so far.
    count: usize,
}

/// Returns true if a text starts with a mark; `None` while it may still become one.
fn begins(text: &str, mark: &str) -> Option<bool> {
    match (text.starts_with(mark), mark.starts_with(text)) {
        (true, _) => Some(true),
        (false, true) => None,
        (false, false) => Some(false),
    }
}

impl Xml {
    /// Starts after `<tool_call>`, or at `<function=`.
    pub fn new() -> Self {
        Self { phase: Phase::Name, name: String::new(), count: 0 }
    }

    /// Returns true if it is known to be a call.
    pub fn has_begun(&self) -> bool {
        self.phase != Phase::Name
    }

    /// Returns true if its end was returned.
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::After
    }

    /// Takes as much as possible from the start of `held`.
    pub fn take(
        &mut self,
        held: &mut String,
        tools: Option<&Tools>,
        parts: &mut Vec<AnswerPart>,
    ) -> Progress {
        loop {
            let text = held.trim_start();
            let blanks = held.len() - text.len();
            let ended = self.has_ended();
            let step = match self.phase {
                Phase::Name => self.named(text, parts),
                Phase::Parameters => self.parameter(text, tools, parts),
                Phase::After => match begins(text, CALL[1]) {
                    Some(found) => Ok(if found { CALL[1].len() } else { 0 }),
                    None => Err(Progress::More),
                },
            };
            match step {
                Err(progress) => return progress,
                Ok(taken) => drop(held.drain(..blanks + taken)),
            }
            if ended {
                return Progress::Done;
            }
        }
    }

    fn named(&mut self, text: &str, parts: &mut Vec<AnswerPart>) -> Result<usize, Progress> {
        match begins(text, FUNCTION[0]) {
            None => return Err(Progress::More),
            Some(false) => return Err(Progress::Not),
            Some(true) => {}
        }
        let Some(end) = text.find('>') else {
            return Err(if text.contains('\n') { Progress::Not } else { Progress::More });
        };
        self.name = text[FUNCTION[0].len()..end].trim().to_owned();
        parts.push(AnswerPart::CallBegin { name: self.name.clone() });
        self.phase = Phase::Parameters;
        Ok(end + 1)
    }

    fn parameter(
        &mut self,
        text: &str,
        tools: Option<&Tools>,
        parts: &mut Vec<AnswerPart>,
    ) -> Result<usize, Progress> {
        let [parameter, end] = [begins(text, PARAMETER[0]), begins(text, FUNCTION[1])];
        if parameter == Some(true) {
            let (Some(named), Some(ended)) = (text.find('>'), text.find(PARAMETER[1])) else {
                return Err(Progress::More);
            };
            let key = text[PARAMETER[0].len()..named].trim();
            let said = text.get(named + 1..ended).unwrap_or_default();
            let said = said.strip_prefix('\n').unwrap_or(said);
            let said = said.strip_suffix('\n').unwrap_or(said);
            let schema = tools.and_then(|tools| tools.property(&self.name, key));
            let before = if self.count == 0 { "{" } else { ", " };
            let argument = format!("{before}{}: {}", Value::from(key), meant(said, schema));
            parts.push(AnswerPart::CallArguments(argument));
            self.count += 1;
            return Ok(ended + PARAMETER[1].len());
        }
        if end == Some(true) || (parameter, end) == (Some(false), Some(false)) {
            // If neither a parameter nor the end follows, the call still ends.
            parts.push(AnswerPart::CallArguments(if self.count == 0 { "{}" } else { "}" }.into()));
            parts.push(AnswerPart::CallEnd);
            self.phase = Phase::After;
            return Ok(if end == Some(true) { FUNCTION[1].len() } else { 0 });
        }
        Err(Progress::More)
    }
}

/// Returns the types that a schema allows; an empty list if it does not restrict them.
fn types(schema: &Value) -> Vec<&str> {
    let mut found: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for kind in ["anyOf", "oneOf"] {
        found.extend(schema[kind].as_array().into_iter().flatten().flat_map(types));
    }
    let constants = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
    if found.is_empty() {
        found = constants.map(kind).collect();
    }
    found
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the value of a text for a schema's types: a string if the schema allows one and the text matches no other allowed type.
fn meant(text: &str, schema: Option<&Value>) -> Value {
    let types = schema.map(types).unwrap_or_default();
    let of_python = || literal(text).filter(|value| types.contains(&kind(value)));
    let Some(value) = serde_json::from_str::<Value>(text).ok().or_else(of_python) else { return text.into() };
    let found = kind(&value);
    let fits = |kind: &&str| *kind == found || *kind == "number" && found == "integer";
    match types.iter().any(fits) || !types.contains(&"string") {
        // A quoted text is taken literally, with its quotes.
        true if found != "string" || types.is_empty() => value,
        true if !types.contains(&"string") => value,
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_what_their_schema_says() {
        for (text, schema, expected) in [
            ("3", json!({ "type": "string" }), json!("3")),
            ("3", json!({ "type": "integer" }), json!(3)),
            ("3", json!({ "type": "number" }), json!(3)),
            ("null", json!({ "type": ["string", "null"] }), json!(null)),
            ("null", json!({ "type": "string" }), json!("null")),
            ("\"a\"", json!({ "type": "string" }), json!("\"a\"")),
            ("[1]", json!({ "type": "array" }), json!([1])),
            ("[1", json!({ "type": "array" }), json!("[1")),
            ("a", json!({ "enum": ["a", "b"] }), json!("a")),
            ("2", json!({ "anyOf": [{ "type": "integer" }, { "type": "string" }] }), json!(2)),
            ("2", json!({}), json!(2)),
            ("True", json!({ "type": "boolean" }), json!(true)),
            ("False", json!({ "type": ["boolean", "null"] }), json!(false)),
            ("None", json!({ "type": ["integer", "null"] }), json!(null)),
            ("True", json!({ "type": "string" }), json!("True")),
            ("TRUE", json!({ "type": "boolean" }), json!(true)),
            (
                "{'a': [True, None, 1.5, 'it\\'s'], \"b\": (1, 2)}",
                json!({ "type": "object" }),
                json!({ "a": [true, null, 1.5, "it's"], "b": [1, 2] }),
            ),
            ("[1, 'a',]", json!({ "type": "array" }), json!([1, "a"])),
            ("['a'", json!({ "type": "array" }), json!("['a'")),
            ("{'a': f(1)}", json!({ "type": "object" }), json!("{'a': f(1)}")),
        ] {
            assert_eq!(meant(text, Some(&schema)), expected, "{text} {schema}");
        }
    }
}
