//! Chat templates: Jinja with the configuration of `transformers`. They convert messages to the text format that a model was trained on.
//!
//! A template comes with a model and is not trusted. Work and memory per rendering are bounded, and a template can neither read files nor loop
//! forever.

mod clock;
mod environment;
mod python;
mod rewrite;
mod source;
mod spans;

pub use minijinja::Value;
pub use source::Templates;

use minijinja::Environment;
use netcl_device::guarded;
use netcl_tensor::{Error, Result};
use rewrite::Generation;
use std::ops::Range;
use std::time::Duration;

/// Maximum steps of the template engine per rendering; 64 bytes of output count as one. A long conversation takes some ten thousand.
const MAX_STEPS: u64 = 400_000;
/// Stack size for a rendering. A template can create a value with as many levels as it has steps, and freeing it takes one frame per level.
const STACK: usize = 512 << 20;

/// Parses JSON values and keeps the key order, because templates write objects out.
///
/// # Errors
/// `Format` with the position of a syntax error.
pub fn value_of_json(text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|e| Error::format(format!("JSON: {e}")))
}

/// A conversation with other template variables.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// A list of objects with `role` and `content`.
    pub messages: Value,
    /// Descriptions of functions that the model may call.
    pub tools: Option<Value>,
    /// Documents for retrieval-augmented answers.
    pub documents: Option<Value>,
    /// Whether the text ends at the start of the answer.
    pub answer: bool,
    /// Text of the begin token.
    pub bos: String,
    /// Text of the end token.
    pub eos: String,
    /// Other variables by name, such as `enable_thinking`.
    pub others: Vec<(String, Value)>,
    /// The time since 1970 in UTC; `None` uses the clock.
    pub now: Option<Duration>,
}

/// A parsed template.
#[derive(Debug)]
pub struct Template {
    name: String,
    source: String,
    environment: Environment<'static>,
    /// Whether it has generation blocks; the engine then also has the template `MARKED`.
    generates: bool,
}

/// Names of a template in its engine: as it is, and with marks around the output of generation blocks.
const PLAIN: &str = "chat";
const MARKED: &str = "marked";

impl Template {
    /// Parses a template; `name` is its name in errors.
    ///
    /// # Errors
    /// `Format` with name and line.
    pub fn new(name: impl Into<String>, text: &str) -> Result<Self> {
        let name = name.into();
        let mut environment = environment::new();
        let source = text.to_owned();
        let rewritten = |generation| {
            rewrite::rewritten(text, generation).map_err(|line| {
                let most = rewrite::DEEPEST;
                Error::format(format!("chat template {name}, line {line}: more than {most} nested brackets"))
            })
        };
        let (plain, marked) = (rewritten(Generation::Shown)?, rewritten(Generation::Marked)?);
        let generates = plain != marked;
        let added = guarded(&format!("chat template {name}: the engine"), || {
            environment.add_template_owned(PLAIN, plain)?;
            if generates { environment.add_template_owned(MARKED, marked) } else { Ok(()) }
        });
        added?.map_err(|e| wrong(&name, &e))?;
        Ok(Self { name, source, environment, generates })
    }

    /// Returns the name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the source of the template.
    pub fn text(&self) -> &str {
        &self.source
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// `Format` with the template's name and line: the message of `raise_exception`, or the error in the template.
    pub fn render(&self, chat: &Chat) -> Result<String> {
        self.rendered(PLAIN, chat)
    }

    /// Renders a conversation; also returns the byte ranges of the text that `{% generation %}` blocks wrote. `None` for a template without such
    /// blocks.
    ///
    /// # Errors
    /// Same as [`render`](Self::render); `Format` if a message contains a character that marks the blocks.
    pub fn render_with_generated(&self, chat: &Chat) -> Result<Option<(String, Vec<Range<usize>>)>> {
        if !self.generates {
            return Ok(None);
        }
        let found = spans::unmarked(&self.rendered(MARKED, chat)?);
        let found = found.filter(|(text, _)| self.render(chat).is_ok_and(|plain| plain == *text));
        found.map(Some).ok_or_else(|| {
            Error::format(format!(
                "chat template {}: the marks around its generation blocks also occur in the text",
                self.name
            ))
        })
    }

    fn rendered(&self, template: &str, chat: &Chat) -> Result<String> {
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
            let template = self.environment.get_template(template).map_err(|e| wrong(&self.name, &e))?;
            template.render(Value::from_pairs(values)).map_err(|e| wrong(&self.name, &e))
        };
        let render = || guarded(&format!("chat template {}: the engine", self.name), render)?;
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("chat template".into()).stack_size(STACK);
            let thread = thread.spawn_scoped(scope, render);
            let thread = thread
                .map_err(|e| Error::memory(format!("cannot start a thread for the chat template: {e}")))?;
            thread
                .join()
                .unwrap_or_else(|_| Err(Error::internal(format!("chat template {}: a panic", self.name))))
        })
    }
}

/// Returns the error with name, line and the innermost reason.
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
            format!("it took more than {MAX_STEPS} steps; it may not terminate")
        }
        (_, Some(detail)) => detail.to_owned(),
        (kind, None) => kind.to_string(),
    };
    Error::format(format!("chat template {name}{place}: {why}"))
}

#[cfg(test)]
mod tests;
