//! Chat templates: Jinja as `transformers` sets it up, from messages to the text that a model was trained on.
//!
//! A template comes with a model and is not trusted: the work and the memory of one text are bounded, and a template can neither read
//! files nor loop without end.

mod clock;
mod environment;
mod python;
mod rewrite;
mod source;

pub use minijinja::Value;
pub use source::Templates;

use minijinja::Environment;
use netcl_device::guarded;
use netcl_tensor::{Error, Result};
use std::time::Duration;

/// Steps of the template engine for one text; 64 bytes that it makes count as one. A long conversation takes some ten thousand.
const STEPS: u64 = 400_000;
/// Stack for one text. A template can make a value of as many levels as it may take steps, and freeing it takes a frame a level.
const STACK: usize = 512 << 20;

/// Values with the order of keys that the JSON text has, which templates write out.
///
/// # Errors
/// `Format` saying where it is no JSON.
pub fn value_of_json(text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|e| Error::format(format!("JSON: {e}")))
}

/// A conversation, and what else a template may ask for.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// A list of objects with `role` and `content`.
    pub messages: Value,
    /// Descriptions of functions that the model may call.
    pub tools: Option<Value>,
    /// Texts to answer from.
    pub documents: Option<Value>,
    /// Whether the text ends where the answer begins.
    pub answer: bool,
    /// Text of the token that begins a text.
    pub bos: String,
    /// Text of the token that ends a text.
    pub eos: String,
    /// Anything else by name, such as `enable_thinking`.
    pub others: Vec<(String, Value)>,
    /// What time it is, since 1970 in UTC; the clock says it where this is `None`.
    pub now: Option<Duration>,
}

/// A template that was read.
#[derive(Debug)]
pub struct Template {
    name: String,
    source: String,
    environment: Environment<'static>,
}

impl Template {
    /// Reads a template; `name` is what errors call it.
    ///
    /// # Errors
    /// `Format` with name and line.
    pub fn new(name: impl Into<String>, text: &str) -> Result<Self> {
        let name = name.into();
        let mut environment = environment::new();
        let source = text.to_owned();
        let text = rewrite::rewritten(text).map_err(|line| {
            let most = rewrite::DEEPEST;
            Error::format(format!(
                "chat template {name}, line {line}: more than {most} brackets within each other"
            ))
        })?;
        let added = guarded(&format!("chat template {name}: the engine"), || {
            environment.add_template_owned("chat", text)
        });
        added?.map_err(|e| wrong(&name, &e))?;
        Ok(Self { name, source, environment })
    }

    /// The template as it was read.
    pub fn text(&self) -> &str {
        &self.source
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// `Format` with the template's name and line: what the template itself says with `raise_exception`, or what went wrong in it.
    pub fn render(&self, chat: &Chat) -> Result<String> {
        let messages = source::with_reasoning(&chat.messages).map_err(|e| wrong(&self.name, &e))?;
        let none = || Value::from(());
        let mut values: Vec<(String, Value)> = vec![
            ("messages".into(), messages),
            ("tools".into(), chat.tools.clone().unwrap_or_else(none)),
            ("documents".into(), chat.documents.clone().unwrap_or_else(none)),
            ("add_generation_prompt".into(), chat.answer.into()),
            ("bos_token".into(), chat.bos.clone().into()),
            ("eos_token".into(), chat.eos.clone().into()),
        ];
        values.extend(chat.others.iter().cloned());
        let now = chat.now.unwrap_or_else(clock::now);
        values.push(("strftime_now".into(), Value::from_function(environment::strftime(now))));
        let render = || {
            let template = self.environment.get_template("chat").map_err(|e| wrong(&self.name, &e))?;
            template.render(Value::from_pairs(values)).map_err(|e| wrong(&self.name, &e))
        };
        let render = || guarded(&format!("chat template {}: the engine", self.name), render)?;
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("chat template".into()).stack_size(STACK);
            let thread = thread.spawn_scoped(scope, render);
            let thread = thread.map_err(|e| Error::memory(format!("a thread for the chat template: {e}")))?;
            thread
                .join()
                .unwrap_or_else(|_| Err(Error::internal(format!("chat template {}: a panic", self.name))))
        })
    }
}

/// The error with name, line and the innermost reason.
fn wrong(name: &str, error: &minijinja::Error) -> Error {
    let (mut line, mut said) = (error.line(), error);
    let mut inner: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
    while let Some(error) = inner {
        if let Some(error) = error.downcast_ref::<minijinja::Error>() {
            line = error.line().or(line);
            said = error;
        }
        inner = error.source();
    }
    let place = line.map_or(String::new(), |line| format!(", line {line}"));
    let why = match (said.kind(), said.detail()) {
        (minijinja::ErrorKind::OutOfFuel, _) => {
            format!("it took more than {STEPS} steps; it may be without end")
        }
        (_, Some(detail)) => detail.to_owned(),
        (kind, None) => kind.to_string(),
    };
    Error::format(format!("chat template {name}{place}: {why}"))
}

#[cfg(test)]
mod tests;
