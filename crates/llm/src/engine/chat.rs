//! A conversation: applies its template and prefills only new tokens.
//!
//! All messages are rendered each time, and the tokens of earlier answers are kept, so a turn prefills only new tokens.

use super::prompt::{Prompts, chat, mark};
use super::{Generated, LoadedModel, Request, Session, Watch};
use crate::sampler::{Finish, Sampler};
use crate::template::{Template, value_of_json};
use crate::tokenizer::Tokenizer;
use netcl_tensor::Result;
use serde_json::json;

/// Author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Instructions that precede the conversation.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// The last rendered prompt, the answer, and the tokens of both.
struct SoFar {
    prompt: String,
    answer: String,
    ids: Vec<u32>,
}

impl SoFar {
    /// Returns the text after the answer if the text starts with prompt and answer. Templates may add or remove white space around an answer.
    fn rest<'t>(&self, text: &'t str) -> Option<&'t str> {
        let behind = text.strip_prefix(self.prompt.as_str())?.trim_start();
        Some(behind.strip_prefix(self.answer.trim())?.trim_start())
    }
}

/// A conversation with a model.
pub struct Conversation<'a> {
    session: Session<'a>,
    template: &'a Template,
    messages: Vec<(Role, String)>,
    /// The tokens prefilled last.
    so_far: Option<SoFar>,
    prompts: Prompts,
}

impl<'a> Conversation<'a> {
    /// Returns an empty conversation with an optional system message.
    ///
    /// # Errors
    /// `Format` if the model lacks a chat template or a tokenizer.
    pub fn new(model: &'a LoadedModel, system: Option<&str>) -> Result<Self> {
        let (template, tokenizer) = (model.template()?, model.tokenizer()?);
        let prompts = Prompts::new(tokenizer, model.begins_conversations())?;
        let messages = system.map(|text| (Role::System, text.to_owned())).into_iter().collect();
        Ok(Self { session: model.session()?, template, messages, so_far: None, prompts })
    }

    /// Messages so far.
    pub fn messages(&self) -> &[(Role, String)] {
        &self.messages
    }

    /// Restarts with the same system message.
    pub fn clear(&mut self) {
        self.messages.retain(|(role, _)| *role == Role::System);
        self.so_far = None;
    }

    /// Replaces the conversation with these messages. Tokens that are already in the cache are not prefilled again.
    pub fn restore(&mut self, messages: Vec<(Role, String)>) {
        self.messages = messages;
    }

    /// Adds the message `text` and generates the answer. On failure the conversation is unchanged.
    ///
    /// # Errors
    /// `Format` of the template, and if the conversation is longer than the context; errors of [`Session::generate`].
    pub fn say(
        &mut self,
        text: &str,
        sampler: &mut Sampler,
        request: Request,
        watch: &mut Watch<'_>,
    ) -> Result<Generated> {
        self.messages.push((Role::User, text.to_owned()));
        let answer = self.answer(sampler, request, watch);
        match &answer {
            Ok(answer) => self.messages.push((Role::Assistant, answer.text.clone())),
            Err(_) => drop(self.messages.pop()),
        }
        answer
    }

    fn answer(
        &mut self,
        sampler: &mut Sampler,
        request: Request,
        watch: &mut Watch<'_>,
    ) -> Result<Generated> {
        let (text, ids) = self.prompt()?;
        let answer = self.session.generate(&ids, sampler, request, watch)?;
        // After a stop string, the tokens contain more than the shown text.
        self.so_far = match &answer.finish {
            Finish::Text(_) => None,
            _ => Some(SoFar {
                prompt: text,
                answer: answer.text.clone(),
                ids: [ids, answer.tokens.clone()].concat(),
            }),
        };
        Ok(answer)
    }

    /// Returns the conversation in the form that the model reads: text and tokens.
    ///
    /// # Errors
    /// Errors of the template and of the tokenizer.
    pub fn prompt(&self) -> Result<(String, Vec<u32>)> {
        let tokenizer = self.session.model().tokenizer()?;
        let mark = self.mark();
        let text = self.render(tokenizer, mark)?;
        if let Some(before) = &self.so_far
            && let Some(rest) = before.rest(&text)
        {
            // Keep the answer's own tokens if a control token separates them from the following text; otherwise tokens might merge across the border.
            let rest = self.prompts.encode(tokenizer, rest, mark)?;
            if rest.first().is_some_and(|id| tokenizer.kind(*id).is_special()) {
                return Ok((text.clone(), [before.ids.clone(), rest].concat()));
            }
        }
        let ids = self.prompts.begun(tokenizer, self.prompts.encode(tokenizer, &text, mark)?);
        Ok((text, ids))
    }

    /// Returns a private-use character that no message contains.
    fn mark(&self) -> char {
        mark(|c| self.messages.iter().any(|(_, text)| text.contains(c)))
    }

    /// Renders the template. Names of control tokens within messages are replaced with their number between two marks.
    fn render(&self, tokenizer: &Tokenizer, mark: char) -> Result<String> {
        let one = |(role, text): &(Role, String)| json!({ "role": role.name(), "content": self.prompts.hidden(text, mark) });
        let messages: Vec<_> = self.messages.iter().map(one).collect();
        self.template.render(&chat(tokenizer, value_of_json(&json!(messages).to_string())?))
    }
}
