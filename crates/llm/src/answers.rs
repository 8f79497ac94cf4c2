//! Tokens of conversations for training, and which of them the model must learn to write.
//!
//! The whole conversation is rendered once. The answers in it are the output of `{% generation %}` blocks, as `transformers` defines them.
//!
//! In a template without such blocks, an answer begins at the end of the conversation before it, rendered up to the start of an answer. It ends at the
//! end of the conversation up to and including it, so its end-of-turn token belongs to it. Both renderings must begin the whole one. Some templates
//! write an earlier answer in another way than the last one. Then a mark after its content shows where it ends. Other templates are refused.

use crate::engine::prompt::{Prompts, chat, holds, mark};
use crate::template::{Chat, Template, Value, value_of_json};
use crate::tokenizer::Tokenizer;
use netcl_tensor::{Error, Result};
use serde_json::Value as Json;
use std::ops::Range;
use std::time::Duration;

/// A mark after the content of a message.
const BEHIND: char = '\u{10fffb}';
/// The date for templates that write the current one, 26 July 2024, so that a record always has the same tokens. Llama 3.2's template has the same
/// default.
const DATE: Duration = Duration::from_secs(1_721_952_000);

/// The messages that are trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answers {
    /// All answers of the model.
    #[default]
    All,
    /// Its last answer.
    Last,
    /// Every message.
    Everything,
}

/// A conversation to learn from.
#[derive(Clone, Debug, Default)]
pub struct Dialogue {
    /// Objects with `role` and `content`, in order.
    pub messages: Vec<Json>,
    /// Descriptions of functions that the model may call.
    pub tools: Option<Vec<Json>>,
    /// Other template variables by name.
    pub others: Vec<(String, Json)>,
    /// Number of messages at the beginning whose answers are not trained: a prompt.
    pub prompt: usize,
}

/// A token, and whether it is trained.
pub type TrainedToken = (u32, bool);

/// Converts conversations with one template and one tokenizer.
pub struct AnswerMasks<'a> {
    tokenizer: &'a Tokenizer,
    template: &'a Template,
    prompts: Prompts,
}

/// A conversation whose whole text is rendered.
struct Rendered<'a> {
    of: &'a AnswerMasks<'a>,
    messages: Vec<Json>,
    chat: Chat,
    text: String,
}

impl<'a> AnswerMasks<'a> {
    /// Creates the converter.
    ///
    /// # Errors
    /// Errors of [`Prompts::new`].
    pub fn new(tokenizer: &'a Tokenizer, template: &'a Template) -> Result<Self> {
        Ok(Self { tokenizer, template, prompts: Prompts::new(tokenizer, false)? })
    }

    /// Adds the begin token to conversations whose template omits it, the same as llama.cpp with its files.
    ///
    /// # Errors
    /// Errors of [`Prompts::new`].
    pub fn beginning(self, begins: bool) -> Result<Self> {
        Ok(Self { prompts: Prompts::new(self.tokenizer, begins)?, ..self })
    }

    /// Returns the tokens of a conversation. Names of control tokens in its messages are text. No token is added to those of the template, unless
    /// [`beginning`](Self::beginning) asks for it.
    ///
    /// # Errors
    /// Errors of the template and of the tokenizer; `Format` if the template does not tell where an answer begins or ends.
    pub fn encode(&self, dialogue: &Dialogue, answers: Answers) -> Result<Vec<TrainedToken>> {
        let (rendered, mark) = self.rendered(dialogue, dialogue.messages.len(), false)?;
        let spans = rendered.spans(dialogue.prompt, answers)?;
        let ids = self.encoded(&rendered.text, mark)?;
        Ok(ids.into_iter().map(|(id, at)| (id, spans.iter().any(|span| overlaps(&at, span)))).collect())
    }

    /// Returns the tokens of a conversation's prompt, up to the start of the answer, and those of the whole conversation.
    ///
    /// # Errors
    /// Errors of the template and of the tokenizer.
    pub fn prompt_and_whole(&self, dialogue: &Dialogue) -> Result<[Vec<u32>; 2]> {
        let ids = |count, answer| {
            let (rendered, mark) = self.rendered(dialogue, count, answer)?;
            let ids = self.encoded(&rendered.text, mark)?;
            Ok(ids.into_iter().map(|(id, _)| id).collect())
        };
        Ok([ids(dialogue.prompt, true)?, ids(dialogue.messages.len(), false)?])
    }

    /// Returns the tokens of a rendered conversation with their bytes. An added token has none.
    fn encoded(&self, text: &str, mark: char) -> Result<Vec<(u32, Range<usize>)>> {
        let ids = self.prompts.encode_with_ranges(self.tokenizer, text, mark)?;
        let first = ids.first().map(|(id, _)| vec![*id]).unwrap_or_default();
        let begun = self.prompts.begun(self.tokenizer, first.clone());
        let added = begun[..begun.len() - first.len()].iter().map(|id| (*id, 0..0));
        Ok(added.chain(ids).collect())
    }

    /// Renders the first `count` messages, up to the start of an answer if `answer`. Also returns the mark that hides control tokens in messages.
    fn rendered(&self, dialogue: &Dialogue, count: usize, answer: bool) -> Result<(Rendered<'_>, char)> {
        let texts = dialogue.messages.iter().chain(dialogue.tools.iter().flatten());
        let mark = mark(|c| texts.clone().any(|json| holds(json, c)));
        let hidden = |json: &Json| self.prompts.hidden_in(json, mark);
        let messages: Vec<Json> = dialogue.messages.iter().take(count).map(hidden).collect();
        let tools = dialogue.tools.as_ref().map(|tools| tools.iter().map(hidden).collect::<Vec<Json>>());
        let other = |(name, json): &(String, Json)| Ok((name.clone(), value_of_json(&json.to_string())?));
        let chat = Chat {
            tools: tools.map(|tools| value(&tools)).transpose()?,
            others: dialogue.others.iter().map(other).collect::<Result<_>>()?,
            now: Some(DATE),
            answer,
            ..chat(self.tokenizer, value(&messages)?)
        };
        let text = self.template.render(&chat)?;
        Ok((Rendered { of: self, messages, chat, text }, mark))
    }
}

/// Returns whether a token at these bytes belongs to a span. The range of a token may omit its white space, and may then be empty.
pub fn overlaps(token: &Range<usize>, span: &Range<usize>) -> bool {
    match token.is_empty() {
        true => span.start < token.end && token.end <= span.end,
        false => token.start < span.end && token.end > span.start,
    }
}

fn value(messages: &[Json]) -> Result<Value> {
    value_of_json(&Json::from(messages.to_vec()).to_string())
}

impl Rendered<'_> {
    /// Returns the byte ranges of the text that are trained.
    fn spans(&self, prompt: usize, answers: Answers) -> Result<Vec<Range<usize>>> {
        if answers == Answers::Everything {
            let whole = 0..self.text.len();
            return Ok(vec![whole]);
        }
        let is_answer = |(_, message): &(usize, &Json)| message["role"] == "assistant";
        let all: Vec<usize> = self.messages.iter().enumerate().filter(is_answer).map(|(i, _)| i).collect();
        let mut spans = match self.of.template.render_with_generated(&self.chat)? {
            Some((_, spans)) if prompt == 0 => spans,
            Some((_, spans)) => {
                let from = self.beginning(prompt)?;
                spans.into_iter().filter(|span| span.end > from).collect()
            }
            None => {
                let mut wanted: Vec<usize> = all.into_iter().filter(|i| *i >= prompt).collect();
                if answers == Answers::Last {
                    wanted.drain(..wanted.len().saturating_sub(1));
                }
                wanted.into_iter().map(|i| self.span(i)).collect::<Result<_>>()?
            }
        };
        if answers == Answers::Last {
            spans.drain(..spans.len().saturating_sub(1));
        }
        Ok(spans)
    }

    /// Renders the messages before message `end`, up to the start of an answer if `answer`.
    fn before(&self, messages: &[Json], answer: bool) -> Result<String> {
        self.of.template.render(&Chat { messages: value(messages)?, answer, ..self.chat.clone() })
    }

    /// Returns the position at which message `i` begins; for an answer, that after the text that starts it.
    fn beginning(&self, i: usize) -> Result<usize> {
        let is_answer = self.messages.get(i).is_some_and(|message| message["role"] == "assistant");
        let before = self.before(&self.messages[..i], is_answer)?;
        match self.text.starts_with(&before) {
            true => Ok(before.len()),
            false => Err(self.unclear(i, "begins")),
        }
    }

    /// Returns the place of answer `i`, with its end-of-turn token.
    fn span(&self, i: usize) -> Result<Range<usize>> {
        let start = self.beginning(i)?;
        let ended = |text: &str| self.text.starts_with(text).then_some(text.len());
        let whole = match i + 1 == self.messages.len() {
            true => self.text.clone(),
            false => self.before(&self.messages[..=i], false)?,
        };
        // Some templates end a conversation, but not an answer within it, with the end token.
        let without_end = || whole.strip_suffix(&*self.chat.eos).filter(|_| !self.chat.eos.is_empty());
        let end = ended(&whole).or_else(|| without_end().and_then(ended));
        let end = match end {
            Some(end) => Some(end),
            None => self.end_behind_content(i)?,
        };
        end.filter(|end| *end > start).map(|end| start..end).ok_or_else(|| self.unclear(i, "ends"))
    }

    /// Returns the end of answer `i`, found by a mark after its content; the text after the content is the same as at the end of a conversation.
    fn end_behind_content(&self, i: usize) -> Result<Option<usize>> {
        let Some(content) = self.messages[i]["content"].as_str() else { return Ok(None) };
        // Templates may remove white space at the end of a content.
        for content in [content, content.trim_end()] {
            let mut messages = self.messages.clone();
            messages[i]["content"] = format!("{content}{BEHIND}").into();
            let marked = self.before(&messages, false)?;
            let alone = self.before(&messages[..=i], false)?;
            let parts = marked.split_once(BEHIND).zip(alone.split_once(BEHIND));
            let Some(((head, rest), (_, tail))) = parts else { continue };
            let same = self.text.strip_prefix(head).is_some_and(|text| text == rest);
            let tail = [Some(tail), tail.strip_suffix(&*self.chat.eos)].into_iter().flatten();
            let tail = tail.filter(|tail| !tail.is_empty()).find(|tail| rest.starts_with(tail));
            if let Some(tail) = tail.filter(|_| same) {
                return Ok(Some(head.len() + tail.len()));
            }
        }
        Ok(None)
    }

    fn unclear(&self, i: usize, what: &str) -> Error {
        Error::format(format!(
            "chat template {}: it does not show where answer {} (message {}) {what}, because it writes the messages before differently once more follow. \
             Use a template with {{% generation %}} blocks (--chat-template FILE), --train-on last, or --train-on all",
            self.of.template.name(),
            self.messages[..=i].iter().filter(|message| message["role"] == "assistant").count(),
            i + 1
        ))
    }
}

#[cfg(test)]
mod tests;
