//! Sources of chat templates.

use super::{Template, Value};
use crate::gguf::Gguf;
use minijinja::ErrorKind;
use netcl_tensor::{Error, Result};
use serde_json::Value as Json;
use std::path::Path;

/// The default template name.
const DEFAULT: &str = "default";
/// The template name for tools.
const TOOLS: &str = "tool_use";

/// The templates of a model by name.
#[derive(Debug, Default)]
pub struct Templates(Vec<(String, Template)>);

impl Templates {
    /// Parses sources by name: `tokenizer.chat_template` of a GGUF file as `default`, `tokenizer.chat_template.x` as `x`.
    ///
    /// # Errors
    /// `Format` with name and line of an invalid one.
    pub fn new<'a>(texts: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self> {
        let mut all = Self::default();
        for (name, text) in texts {
            all.add(name, text)?;
        }
        Ok(all)
    }

    /// Returns the templates of a GGUF file; empty if the model has none.
    ///
    /// # Errors
    /// `Format` with file and key, or with name and line.
    pub fn from_gguf(file: &Gguf) -> Result<Self> {
        const KEY: &str = "tokenizer.chat_template";
        let mut all = Self::default();
        if let Some(text) = file.text(KEY)? {
            all.add(DEFAULT, text)?;
        }
        for key in file.keys() {
            let (key, ..) = key?;
            if let Some(name) = key.strip_prefix(KEY).and_then(|name| name.strip_prefix('.'))
                && let Some(text) = file.text(key)?
            {
                all.add(name, text)?;
            }
        }
        Ok(all)
    }

    /// Returns the templates of a Hugging Face folder: `chat_template.jinja` and `additional_chat_templates`, or `chat_template.json`, or
    /// `tokenizer_config.json`, the first one with a template. Empty if the model has none.
    ///
    /// # Errors
    /// `Io` or `Format`; the message names the file.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let mut all = Self::default();
        let file = folder.join("chat_template.jinja");
        if let Some(text) = read(&file)? {
            all.add(DEFAULT, &text).map_err(|e| e.context(file.display()))?;
            let others = folder.join("additional_chat_templates");
            for entry in std::fs::read_dir(&others).into_iter().flatten().flatten() {
                let path = entry.path();
                if let (Some(name), Some("jinja")) =
                    (path.file_stem().and_then(|n| n.to_str()), path.extension().and_then(|e| e.to_str()))
                    && let Some(text) = read(&path)?
                {
                    all.add(name, &text).map_err(|e| e.context(path.display()))?;
                }
            }
            return Ok(all);
        }
        for name in ["chat_template.json", "tokenizer_config.json"] {
            let file = folder.join(name);
            let Some(text) = read(&file)? else { continue };
            let context = |e: Error| e.context(file.display());
            let json: Json =
                serde_json::from_str(&text).map_err(|e| context(Error::format(e.to_string())))?;
            all.add_json(&json["chat_template"]).map_err(context)?;
            if !all.0.is_empty() {
                break;
            }
        }
        Ok(all)
    }

    /// Adds a string, or a list of objects with `name` and `template`.
    fn add_json(&mut self, json: &Json) -> Result<()> {
        match json {
            Json::Null => Ok(()),
            Json::String(text) => self.add(DEFAULT, text),
            Json::Array(list) => {
                list.iter().try_for_each(|entry| match (entry["name"].as_str(), entry["template"].as_str()) {
                    (Some(name), Some(text)) => self.add(name, text),
                    _ => Err(Error::format("chat_template: an entry without name or template")),
                })
            }
            _ => Err(Error::format("chat_template: expected a text or a list")),
        }
    }

    fn add(&mut self, name: &str, text: &str) -> Result<()> {
        let template = Template::new(name, text)?;
        self.0.retain(|(known, _)| known != name);
        self.0.push((name.to_owned(), template));
        Ok(())
    }

    /// Returns their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the template `name`. Without a name, returns the one for tools if there are `tools` and the model has one, or the default one.
    ///
    /// # Errors
    /// `Format` if it does not exist, with the available names.
    pub fn get(&self, name: Option<&str>, tools: bool) -> Result<&Template> {
        let find = |name: &str| self.0.iter().find(|(known, _)| known == name).map(|(_, template)| template);
        let found = match name {
            Some(name) => find(name),
            None => tools.then(|| find(TOOLS)).flatten().or_else(|| find(DEFAULT)),
        };
        found.ok_or_else(|| {
            let names: Vec<_> = self.names().collect();
            match names.is_empty() {
                true => Error::format("the model does not have a chat template"),
                false => Error::format(format!(
                    "the model does not have a chat template {:?}; it has {}",
                    name.unwrap_or(DEFAULT),
                    names.join(", ")
                )),
            }
        })
    }
}

fn read(path: &Path) -> Result<Option<String>> {
    match netcl_device::files::read_text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("reading", path, &error)),
    }
}

/// Adds missing aliases of reasoning text: it has three names, and templates use different ones.
pub(super) fn with_reasoning(messages: &Value) -> std::result::Result<Value, minijinja::Error> {
    const NAMES: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
    let one = |message: Value| {
        if message.kind() != minijinja::value::ValueKind::Map {
            let why = format!("messages: expected objects with role and content, found {}", message.kind());
            return Err(minijinja::Error::new(ErrorKind::InvalidOperation, why));
        }
        let thought = NAMES
            .iter()
            .find_map(|name| message.get_attr(name).ok().filter(|v| !v.is_none() && !v.is_undefined()));
        let Some(thought) = thought else { return Ok(message) };
        let mut entries = Vec::new();
        for key in message.try_iter()? {
            let value = message.get_item(&key)?;
            let text = key.as_str().map(str::to_owned);
            if text.as_deref() != Some(NAMES[0]) {
                entries.push((key, value));
            }
        }
        if !entries.iter().any(|(key, _)| key.as_str() == Some(NAMES[1])) {
            entries.insert(0, (NAMES[1].into(), thought.clone()));
        }
        entries.push((NAMES[0].into(), thought));
        Ok(Value::from_pairs(entries))
    };
    messages.try_iter()?.map(one).collect::<std::result::Result<Vec<Value>, _>>().map(Value::from)
}
