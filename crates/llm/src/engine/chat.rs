//! A conversation: its template, and only what is new through the model.

use super::prompt::{Prompts, chat, mark};
use super::{Generated, LoadedModel, Request, Session, Watch};
use crate::sampler::{Finish, Sampler};
use crate::template::{Template, value_of_json};
use crate::tokenizer::Tokenizer;
use netcl_tensor::Result;
use serde_json::json;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// What the model is told before anything else.
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

/// The last prompt as the template wrote it, the answer, and the tokens of both.
struct SoFar {
    prompt: String,
    answer: String,
    ids: Vec<u32>,
}

impl SoFar {
    /// What follows the answer in a text that begins with both. Templates put white space around an answer, or take it away.
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
    /// What was read last.
    so_far: Option<SoFar>,
    prompts: Prompts,
}

impl<'a> Conversation<'a> {
    /// An empty one, with what the model is to be told before it.
    ///
    /// # Errors
    /// `Format` where the model has no chat template or no tokenizer.
    pub fn new(model: &'a LoadedModel, system: Option<&str>) -> Result<Self> {
        let (template, tokenizer) = (model.template()?, model.tokenizer()?);
        let prompts = Prompts::new(tokenizer, model.begins_conversations())?;
        let messages = system.map(|text| (Role::System, text.to_owned())).into_iter().collect();
        Ok(Self { session: model.session()?, template, messages, so_far: None, prompts })
    }

    /// What was said.
    pub fn messages(&self) -> &[(Role, String)] {
        &self.messages
    }

    /// Begins anew, with the same system message.
    pub fn clear(&mut self) {
        self.messages.retain(|(role, _)| *role == Role::System);
        self.so_far = None;
    }

    /// Goes on from these messages in the place of what was said. What of them was read already is not read again.
    pub fn restore(&mut self, messages: Vec<(Role, String)>) {
        self.messages = messages;
    }

    /// Says `text` and gives the answer. Where that fails, nothing was said.
    ///
    /// # Errors
    /// `Format` of the template, and where the conversation is longer than the context; those of [`Session::generate`].
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
        // Behind a stop text, tokens hold more than the text that was shown.
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

    /// The conversation as the model is to read it: text and tokens.
    ///
    /// # Errors
    /// Those of the template and of the tokenizer.
    pub fn prompt(&self) -> Result<(String, Vec<u32>)> {
        let tokenizer = self.session.model().tokenizer()?;
        let mark = self.mark();
        let text = self.render(tokenizer, mark)?;
        if let Some(before) = &self.so_far
            && let Some(rest) = before.rest(&text)
        {
            // The answer's own tokens, where a control token parts them from what follows: others might join with it.
            let rest = self.prompts.encode(tokenizer, rest, mark)?;
            if rest.first().is_some_and(|id| tokenizer.kind(*id).is_special()) {
                return Ok((text.clone(), [before.ids.clone(), rest].concat()));
            }
        }
        let ids = self.prompts.begun(tokenizer, self.prompts.encode(tokenizer, &text, mark)?);
        Ok((text, ids))
    }

    /// A character of the private planes that no message has.
    fn mark(&self) -> char {
        mark(|c| self.messages.iter().any(|(_, text)| text.contains(c)))
    }

    /// The text of the template. Names of control tokens within messages stand as their number between two marks.
    fn render(&self, tokenizer: &Tokenizer, mark: char) -> Result<String> {
        let one = |(role, text): &(Role, String)| json!({ "role": role.name(), "content": self.prompts.hidden(text, mark) });
        let messages: Vec<_> = self.messages.iter().map(one).collect();
        self.template.render(&chat(tokenizer, value_of_json(&json!(messages).to_string())?))
    }
}
