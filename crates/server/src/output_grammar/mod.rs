//! Builds one grammar for an answer: preceding thoughts, its text or the schema of its text, and calls in the form of the model's family.

use crate::error::{ApiError, ApiResult};
use crate::forms::{ARGS, CALL, CHANNELS, Calls, Forms, LIST, PYTHON, THINK};
use crate::reader::{FUNCTION, PARAMETER};
use crate::schemas::{Compiler, Format};
use crate::tools::Tools;
use netcl::llm::Tokenizer;
use netcl::llm::grammar::{Grammar, Grammars};
use serde_json::{Map, Value, json};

/// Keywords of an object schema that element-style calls keep.
const OF_OBJECTS: [&str; 9] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "description",
    "title",
    "$defs",
    "definitions",
    "$schema",
];
/// Keywords of a string schema that a string between marks can ignore, because they do not restrict it.
const OF_TEXTS: [&str; 6] = ["type", "description", "title", "default", "examples", "enum"];

/// Returns the grammar of an answer, if anything constrains it.
///
/// # Errors
/// 400 with the schema that is invalid or has a keyword that cannot be enforced. Also for tools whose call form this model's answers cannot be
/// constrained to.
pub fn grammar(
    tokenizer: &Tokenizer,
    forms: Forms,
    schemas: Compiler<'_>,
    tools: Option<&Tools>,
    format: &Format,
) -> ApiResult<Option<Grammar>> {
    let bound = tools.filter(|tools| tools.is_bound() || !matches!(format, Format::Text));
    let thinks = forms.thinks || forms.channels;
    if bound.is_none() && (matches!(format, Format::Text) || !thinks) {
        return format.grammar(schemas);
    }
    // Compile each schema alone first: an error then names its position.
    format.grammar(schemas)?;
    let mut text = Text { tokenizer, lines: Vec::new() };
    let start = match bound {
        None => {
            let said = text.said(format)?;
            text.whole(forms, &said)
        }
        Some(tools) => {
            let Some(form) = forms.calls else {
                let message = "tool_choice: the tool call format of this model's family is unknown";
                return Err(ApiError::field("tool_choice", message));
            };
            text.with_calls(forms, form, schemas, tools, format)?
        }
    };
    text.lines.push(format!("start: {start}"));
    text.lines.push("W: /[ ]|\\n[ \\t]{0,20}/".into());
    let param = if bound.is_some() { "tools" } else { "response_format" };
    schemas.lark(&text.lines.join("\n"), param).map(Some)
}

/// The lines of a grammar.
struct Text<'a> {
    tokenizer: &'a Tokenizer,
    lines: Vec<String>,
}

/// Returns a string literal of the grammar.
fn word(text: &str) -> String {
    Value::from(text).to_string()
}

/// Returns a string escaped for a regular expression.
fn escaped(text: &str) -> String {
    let special = |c: char| "\\/.+*?()|[]{}^$&~#-".contains(c);
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

impl Text<'_> {
    fn rule(&mut self, line: String) -> String {
        let name = format!("r{}", self.lines.len());
        self.lines.push(format!("{name}{line}"));
        name
    }
    fn token(&mut self, line: &str) -> String {
        let name = format!("T{}", self.lines.len());
        self.lines.push(format!("{name}: {line}"));
        name
    }

    /// Returns the rule of a mark that is a control token. Its name is not ordinary text.
    fn control(&self, mark: &str) -> Option<String> {
        let id = self.tokenizer.id(mark)?;
        self.tokenizer.kind(id).is_special().then(|| format!("<[{id}]>"))
    }
    fn mark(&self, mark: &str) -> String {
        self.control(mark).unwrap_or_else(|| word(mark))
    }

    /// Returns a rule for text without a mark, followed by the mark.
    fn up_to(&mut self, mark: &str) -> String {
        match self.control(mark) {
            Some(token) => format!("{} {token}", self.token("/(?s:.*)/")),
            None => self.rule(format!("[suffix={}]: /(?s:.*)/", word(mark))),
        }
    }

    /// Returns a rule for text without a mark.
    fn without(&mut self, mark: &str) -> String {
        match self.control(mark) {
            Some(_) => self.token("/(?s:.*)/"),
            None => self.token(&format!("/(?s:.*)/ & ~/(?s:.*){}(?s:.*)/", escaped(mark))),
        }
    }

    /// Returns a rule for the reasoning before an answer.
    fn thought(&mut self, forms: Forms) -> String {
        if forms.channels {
            let [start, channel, message, ..] = CHANNELS.map(|mark| self.mark(mark));
            let text = self.up_to(CHANNELS[4]);
            return format!("({channel} \"analysis\" {message} {text} {start} \"assistant\")?");
        }
        if !forms.thinks {
            return String::new();
        }
        let thought = self.up_to(THINK[1]);
        let blanks = self.token("/[ \\n]{1,4}/");
        match forms.thinking {
            true => format!("{thought} {blanks}?"),
            false => format!("({} {thought} {blanks}?)?", self.mark(THINK[0])),
        }
    }

    /// Returns the rule of the whole answer: the text for the user with its surrounding parts.
    fn whole(&mut self, forms: Forms, said: &str) -> String {
        let thought = self.thought(forms);
        match forms.channels {
            true => {
                format!("{thought} {} \"final\" {} {said}", self.mark(CHANNELS[1]), self.mark(CHANNELS[2]))
            }
            false => format!("{thought} {said}"),
        }
    }

    /// Returns the rule of the text for the user.
    fn said(&mut self, format: &Format) -> ApiResult<String> {
        let schema = match format {
            Format::Text => return Ok(self.token("/(?s:.*)/")),
            Format::Object => &json!({ "type": "object" }),
            Format::Schema(schema, _) => schema,
        };
        let nested = Grammars::nested(schema).map_err(|e| ApiError::of_field("response_format", &e))?;
        Ok(self.rule(format!(": {nested}")))
    }

    fn with_calls(
        &mut self,
        forms: Forms,
        form: Calls,
        schemas: Compiler<'_>,
        tools: &Tools,
        format: &Format,
    ) -> ApiResult<String> {
        let one = match tools
            .callable()
            .into_iter()
            .map(|at| self.call(form, schemas, tools, at))
            .collect::<ApiResult<Vec<_>>>()?
        {
            each if each.len() == 1 => each.concat(),
            each => format!("({})", each.join(" | ")),
        };
        let one = self.rule(format!(": {one}"));
        let first = self.opening(form);
        let calls = self.calls(form, &one, tools.may_be_several());
        if tools.is_forced() {
            let thought = self.thought(forms);
            return Ok(format!("{thought} {first} {calls}"));
        }
        if !matches!(format, Format::Text) || form == Calls::Channels {
            let thought = self.thought(forms);
            let said = self.said(format)?;
            let said = match forms.channels {
                true => format!("{} \"final\" {} {said}", self.mark(CHANNELS[1]), self.mark(CHANNELS[2])),
                false => said,
            };
            return Ok(format!("{thought} ({said} | {first} {calls})"));
        }
        let opening = match form {
            Calls::Objects => {
                let thought = self.thought(forms);
                let text = self.token("/\\s*([^{\\s](?s:.*))?/");
                return Ok(format!("{thought} ({text} | {first} {calls})"));
            }
            Calls::Tagged | Calls::Xml => CALL[0],
            _ => LIST,
        };
        // Text followed by calls.
        let (text, before) = (self.without(opening), self.up_to(opening));
        Ok(format!("({text} | {before} {calls})"))
    }

    /// Returns the start of the first call.
    fn opening(&self, form: Calls) -> String {
        match form {
            Calls::Tagged | Calls::Xml => self.mark(CALL[0]),
            Calls::List | Calls::Named => self.mark(LIST),
            Calls::Objects => self.control(PYTHON).map(|mark| format!("{mark}?")).unwrap_or_default(),
            Calls::Channels => self.mark(CHANNELS[1]),
        }
    }

    /// Returns the rule of the calls after the start of the first one; each call matches `one`.
    fn calls(&self, form: Calls, one: &str, parallel: bool) -> String {
        let further = |between: String| match parallel {
            true => format!("{one} ({between} {one})*"),
            false => one.to_owned(),
        };
        match form {
            Calls::Tagged | Calls::Xml => further(format!("W? {}", self.mark(CALL[0]))),
            Calls::List => format!("W? \"[\" {} \"]\"", further("\",\" W?".into())),
            Calls::Named => further(self.mark(LIST)),
            Calls::Objects => further("\";\" W?".into()),
            // The model ends after its call.
            Calls::Channels => one.to_owned(),
        }
    }

    /// Returns the rule of one function call, after the start of the calls.
    fn call(&mut self, form: Calls, schemas: Compiler<'_>, tools: &Tools, at: usize) -> ApiResult<String> {
        let name = tools.name(at);
        let (schema, param) = tools.schema(at)?;
        if form == Calls::Xml {
            return self.elements(name, &schema, schemas, &param);
        }
        schemas.schema(&schema, &param)?;
        let nested = Grammars::nested(&schema).map_err(|e| ApiError::of_field(&param, &e))?;
        let arguments = self.rule(format!(": {nested}"));
        let quoted = word(&word(name));
        let object = |key: &str| {
            let key = word(&word(key));
            format!(
                "\"{{\" W? \"\\\"name\\\"\" W? \":\" W? {quoted} W? \",\" W? {key} W? \":\" W? {arguments} W? \"}}\""
            )
        };
        Ok(match form {
            Calls::Tagged => format!("W? {} W? {}", object("arguments"), self.mark(CALL[1])),
            Calls::Objects => object("parameters"),
            Calls::Named => format!("{} {} {arguments}", word(name), self.mark(ARGS)),
            Calls::Channels => {
                let to = word(&format!("commentary to=functions.{name} "));
                format!("{to} {} \"json\" {} {arguments}", self.mark(CHANNELS[3]), self.mark(CHANNELS[2]))
            }
            _ => object("arguments"),
        })
    }

    /// Returns the rule of a call in the form of Qwen3-Coder: the required arguments and any subset of the others, in the schema's order.
    fn elements(
        &mut self,
        name: &str,
        schema: &Value,
        schemas: Compiler<'_>,
        param: &str,
    ) -> ApiResult<String> {
        let none = Map::new();
        let fields = schema.as_object().unwrap_or(&none);
        if let Some(keyword) = fields.keys().find(|key| !OF_OBJECTS.contains(&key.as_str())) {
            return Err(not_here(param, keyword));
        }
        let properties = schema["properties"].as_object().unwrap_or(&none);
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if let Some(key) = required.iter().find(|key| !properties.contains_key(**key)) {
            return Err(ApiError::field(param, format!("{param}: {key} is required, but is not a property")));
        }
        let mut text = format!("\"\\n\" {} \"\\n\"", word(&format!("{}{name}>", FUNCTION[0])));
        for (key, of) in properties {
            let place = format!("{param}.properties.{key}");
            let begin = word(&format!("{}{key}>\n", PARAMETER[0]));
            let value = self.element(of, schema, schemas, &place)?;
            let optional = if required.contains(&key.as_str()) { "" } else { "?" };
            text += &format!(" ({begin} {value}){optional}");
        }
        if fields.get("properties").is_none() && schema["additionalProperties"] != json!(false) {
            // Accepts any arguments.
            let key = self.token("/[^\\n<>]{1,256}/");
            let value = self.up_to(&format!("\n{}\n", PARAMETER[1]));
            text += &format!(" ({} {key} \">\\n\" {value})*", word(PARAMETER[0]));
        }
        Ok(format!("{text} {} {}", word(&format!("{}\n", FUNCTION[1])), self.mark(CALL[1])))
    }

    /// Returns the rule of an argument value followed by its end mark.
    fn element(
        &mut self,
        schema: &Value,
        root: &Value,
        schemas: Compiler<'_>,
        place: &str,
    ) -> ApiResult<String> {
        let end = format!("\n{}\n", PARAMETER[1]);
        if schema["type"] == "string" {
            let fields = schema.as_object().into_iter().flatten();
            if let Some((keyword, _)) = fields.into_iter().find(|(key, _)| !OF_TEXTS.contains(&key.as_str()))
            {
                return Err(not_here(place, keyword));
            }
            return Ok(match schema["enum"].as_array() {
                Some(values) => {
                    let all: Vec<String> = values.iter().filter_map(Value::as_str).map(word).collect();
                    format!("({}) {}", all.join(" | "), word(&end))
                }
                None => self.up_to(&end),
            });
        }
        let mut own = schema.clone();
        if let Some(own) = own.as_object_mut() {
            for kind in ["$defs", "definitions"] {
                if let Some(all) = root.get(kind) {
                    own.entry(kind).or_insert_with(|| all.clone());
                }
            }
        }
        schemas.schema(&own, place)?;
        let nested = Grammars::nested(&own).map_err(|e| ApiError::of_field(place, &e))?;
        Ok(format!("{} {}", self.rule(format!(": {nested}")), word(&end)))
    }
}

fn not_here(param: &str, keyword: &str) -> ApiError {
    let message =
        format!("{param}: the keyword {keyword} cannot be enforced in this model's tool call format");
    ApiError::field(param, message)
}

#[cfg(test)]
mod tests;
