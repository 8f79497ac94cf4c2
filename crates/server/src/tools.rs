//! Functions that a model may call, and a request's options for calls.

use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, wrong};
use serde_json::{Map, Value, json};

/// Functions that must be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The model decides.
    Auto,
    /// At least one.
    Required,
    /// The function at this index in the list.
    Function(usize),
}

/// Functions that a model may call.
#[derive(Clone, Debug)]
pub struct Tools {
    /// Functions in the format of chat templates: `{"type": "function", "function": {"name", "description", "parameters"}}`.
    pub list: Vec<Value>,
    /// Whether each function's arguments must match its schema even if no call is forced.
    pub strict: Vec<bool>,
    /// Functions that must be called.
    pub choice: Choice,
    /// Indices of the functions that may be called [default: all].
    pub allowed: Option<Vec<usize>>,
    /// Whether several calls are allowed.
    pub parallel: bool,
}

impl Tools {
    /// Returns functions that may be called, without a required one.
    ///
    /// # Errors
    /// 400 with the invalid field.
    pub fn new(mut list: Vec<Value>) -> ApiResult<Self> {
        let mut strict = Vec::new();
        for (at, tool) in list.iter_mut().enumerate() {
            // The template gets the description of a function, not its enforcement.
            let flag = tool["function"].as_object_mut().and_then(|function| function.shift_remove("strict"));
            strict.push(match flag {
                None | Some(Value::Null) => false,
                Some(Value::Bool(flag)) => flag,
                Some(other) => {
                    return Err(wrong(&format!("tools[{at}].function.strict"), &other, "true or false"));
                }
            });
        }
        Ok(Self { list, strict, choice: Choice::Auto, allowed: None, parallel: true })
    }

    /// Returns the name of a function.
    pub fn name(&self, at: usize) -> &str {
        self.list.get(at).and_then(|tool| tool["function"]["name"].as_str()).unwrap_or_default()
    }

    /// Returns the indices of functions that an answer may call.
    pub fn callable(&self) -> Vec<usize> {
        match (self.choice, &self.allowed) {
            (Choice::Function(at), _) => vec![at],
            (_, Some(allowed)) => allowed.clone(),
            (_, None) => (0..self.list.len()).collect(),
        }
    }

    /// Returns true if an answer may have several calls. False if the request excludes them; a required function is called once.
    pub fn may_be_several(&self) -> bool {
        self.parallel && !matches!(self.choice, Choice::Function(_))
    }

    /// Returns true if a call is required.
    pub fn is_forced(&self) -> bool {
        self.choice != Choice::Auto
    }

    /// Returns true if the request restricts calls beyond the list of functions.
    pub fn is_bound(&self) -> bool {
        self.is_forced() || !self.parallel || self.allowed.is_some() || self.strict.contains(&true)
    }

    /// Returns the schema for a function's arguments, and the name of its field.
    ///
    /// # Errors
    /// 400 for parameters that are not an object schema.
    pub fn schema(&self, at: usize) -> ApiResult<(Value, String)> {
        let param = format!("tools[{at}].function.parameters");
        if !self.is_forced() && !self.strict.get(at).copied().unwrap_or(false) {
            return Ok((json!({ "type": "object" }), param));
        }
        match self.list.get(at).and_then(|tool| tool["function"].get("parameters")) {
            None | Some(Value::Null) => {
                Ok((json!({ "type": "object", "properties": {}, "additionalProperties": false }), param))
            }
            Some(Value::Object(schema)) => {
                let mut schema = schema.clone();
                let kind = schema.entry("type").or_insert_with(|| "object".into());
                match kind == "object" {
                    true => Ok((schema.into(), param)),
                    false => {
                        let message = format!("{param}.type is {kind}, expected \"object\"");
                        Err(ApiError::field(param, message))
                    }
                }
            }
            Some(other) => Err(wrong(&param, other, "an object")),
        }
    }

    /// Returns the schema of one parameter of a function.
    pub fn property(&self, function: &str, key: &str) -> Option<&Value> {
        let at = (0..self.list.len()).find(|at| self.name(*at) == function)?;
        let parameters = &self.list.get(at)?["function"]["parameters"];
        let property = parameters["properties"].get(key)?;
        match property["$ref"].as_str().and_then(|place| place.strip_prefix('#')) {
            Some(place) => parameters.pointer(place),
            None => Some(property),
        }
    }
}

/// Parses `tool_choice` and `parallel_tool_calls` for the given functions. `None` if none may be called.
///
/// # Errors
/// 400 with the invalid field.
pub fn choice(fields: &mut Fields, tools: Option<Vec<Value>>) -> ApiResult<Option<Tools>> {
    let mut tools = tools.map(Tools::new).transpose()?;
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let mut allowed = None;
    let choice = match fields.any("tool_choice") {
        None => Choice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Choice::Auto,
            "none" => return Ok(None),
            "required" => Choice::Required,
            other => {
                return Err(ApiError::field(
                    "tool_choice",
                    format!("tool_choice: {other:?} is not supported"),
                ));
            }
        },
        Some(Value::Object(some)) if some.get("type").is_some_and(|kind| kind == "allowed_tools") => {
            let (choice, found) = allowed_tools(some, tools.as_ref())?;
            allowed = Some(found);
            choice
        }
        Some(Value::Object(named)) => {
            Choice::Function(function(&named, tools.as_ref(), &["type", "function", "name"])?)
        }
        Some(other) => return Err(wrong("tool_choice", &other, "a string or an object")),
    };
    if tools.is_none() && (choice != Choice::Auto || allowed.is_some()) {
        return Err(ApiError::field("tool_choice", "tool_choice: a call is required, but tools is missing"));
    }
    if let Some(tools) = &mut tools {
        (tools.choice, tools.allowed, tools.parallel) = (choice, allowed, parallel);
    }
    Ok(tools)
}

fn wrong_choice(message: impl std::fmt::Display) -> ApiError {
    ApiError::field("tool_choice", format!("tool_choice: {message}"))
}

/// Parses `{"type": "function", "function": {"name": …}}`, or the flat form of `/v1/responses`, with no other fields than `known`.
fn function(choice: &Map<String, Value>, tools: Option<&Tools>, known: &[&str]) -> ApiResult<usize> {
    match choice.get("type") {
        Some(Value::String(kind)) if kind == "function" => {}
        None => return Err(wrong_choice("the type is missing, expected \"function\"")),
        Some(other) => {
            return Err(wrong_choice(format!("the type {other} is not supported; use \"function\"")));
        }
    }
    if let Some(key) = choice.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(wrong_choice(format!("the field {key} is not supported")));
    }
    let name =
        choice.get("function").and_then(|function| function.get("name")).or_else(|| choice.get("name"));
    let Some(name) = name.and_then(Value::as_str) else {
        return Err(wrong_choice("the function's name is missing"));
    };
    let known = tools.and_then(|tools| (0..tools.list.len()).find(|at| tools.name(*at) == name));
    known.ok_or_else(|| wrong_choice(format!("tools does not have a function {name:?}")))
}

/// Parses `{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}`, or the flat form of `/v1/responses`. Returns the functions that
/// may be called, in the order of `tools`, and whether one is required.
fn allowed_tools(mut choice: Map<String, Value>, tools: Option<&Tools>) -> ApiResult<(Choice, Vec<usize>)> {
    choice.shift_remove("type");
    let mut inner = match choice.shift_remove("allowed_tools") {
        None => std::mem::take(&mut choice),
        Some(Value::Object(inner)) => inner,
        Some(other) => return Err(wrong("tool_choice.allowed_tools", &other, "an object")),
    };
    let mode = match inner.shift_remove("mode").as_ref().and_then(Value::as_str) {
        Some("auto") => Choice::Auto,
        Some("required") => Choice::Required,
        _ => return Err(wrong_choice("allowed_tools requires a mode, \"auto\" or \"required\"")),
    };
    let Some(Value::Array(list)) = inner.shift_remove("tools") else {
        return Err(wrong_choice("allowed_tools requires tools, a list of functions"));
    };
    if let Some(key) = choice.keys().chain(inner.keys()).next() {
        return Err(wrong_choice(format!("the field {key} of allowed_tools is not supported")));
    }
    let mut places = Vec::new();
    for one in &list {
        let Some(one) = one.as_object() else {
            return Err(wrong_choice("allowed_tools.tools: expected objects that name functions"));
        };
        // The list may contain complete definitions; the name identifies the function.
        let known = ["type", "function", "name", "description", "parameters", "strict"];
        places.push(function(one, tools, &known)?);
    }
    if places.is_empty() {
        return Err(wrong_choice("allowed_tools.tools is empty: use \"none\" for no calls"));
    }
    places.sort_unstable();
    places.dedup();
    Ok((mode, places))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: Value) -> ApiResult<Option<Tools>> {
        let mut fields = Fields::of_body(body.to_string().as_bytes()).unwrap();
        let tools = fields.list("tools").unwrap();
        choice(&mut fields, tools)
    }

    #[test]
    fn choices_are_kept_or_refused() {
        let f = json!({ "type": "function", "function": { "name": "f", "strict": true, "parameters": { "properties": { "x": { "$ref": "#/$defs/n" } }, "$defs": { "n": { "type": "integer" } } } } });
        let g = json!({ "type": "function", "function": { "name": "g" } });
        let with = |choice: Value, parallel: bool| {
            of(json!({ "tools": [f, g], "tool_choice": choice, "parallel_tool_calls": parallel }))
        };
        let auto = with("auto".into(), true).unwrap().unwrap();
        assert!(auto.is_bound() && !auto.is_forced() && auto.list[0]["function"].get("strict").is_none());
        assert_eq!(auto.schema(0).unwrap().0["$defs"]["n"]["type"], "integer");
        assert_eq!(auto.schema(1).unwrap().0, json!({ "type": "object" }));
        assert_eq!(auto.property("f", "x"), Some(&json!({ "type": "integer" })));
        let named = with(json!({ "type": "function", "function": { "name": "g" } }), true).unwrap().unwrap();
        assert_eq!((named.callable(), named.is_forced()), (vec![1], true));
        assert_eq!(named.schema(1).unwrap().0["additionalProperties"], false);
        let flat = with(json!({ "type": "function", "name": "f" }), false).unwrap().unwrap();
        assert!(flat.choice == Choice::Function(0) && !flat.parallel);
        assert!(with("none".into(), true).unwrap().is_none());
        let one = json!({ "type": "function", "function": { "name": "g" } });
        let inner = json!({ "mode": "auto", "tools": [one] });
        let allowed =
            with(json!({ "type": "allowed_tools", "allowed_tools": inner }), true).unwrap().unwrap();
        assert_eq!((allowed.callable(), allowed.is_forced(), allowed.is_bound()), (vec![1], false, true));
        assert_eq!(allowed.list.len(), 2, "the model receives all tools");
        let both = json!([{ "type": "function", "name": "g" }, { "type": "function", "name": "f" }]);
        let allowed = json!({ "type": "allowed_tools", "mode": "required", "tools": both });
        let allowed = with(allowed, true).unwrap().unwrap();
        assert!(allowed.callable() == [0, 1] && allowed.is_forced() && allowed.may_be_several());
        for wrong in [
            json!("sometimes"),
            json!(3),
            json!({ "type": "function", "name": "h" }),
            json!({ "type": "custom" }),
            json!({ "type": 3 }),
            json!({ "type": "function", "name": "f", "strict": true }),
            json!({ "type": "allowed_tools" }),
            json!({ "type": "allowed_tools", "mode": "sometimes", "tools": [{ "type": "function", "name": "f" }] }),
            json!({ "type": "allowed_tools", "mode": "auto", "tools": [] }),
            json!({ "type": "allowed_tools", "mode": "auto", "tools": [{ "type": "mcp", "server_label": "f" }] }),
            json!({ "type": "allowed_tools", "mode": "auto", "tools": [{ "type": "function", "name": "h" }] }),
            json!({ "type": "allowed_tools", "mode": "auto", "tools": [{ "type": "function", "name": "f" }], "more": 1 }),
        ] {
            assert_eq!(with(wrong, true).unwrap_err().param.as_deref(), Some("tool_choice"));
        }
        assert_eq!(
            of(json!({ "tool_choice": "required" })).unwrap_err().param.as_deref(),
            Some("tool_choice")
        );
    }
}
