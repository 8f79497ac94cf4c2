//! A conversation: its template, and only what is new through the model.

use super::{Generated, LoadedModel, Request, Session, Watch};
use crate::sampler::{Finish, Sampler};
use crate::template::{Chat, Template, value_of_json};
use crate::tokenizer::{Specials, Tokenizer};
use netcl_tensor::{Error, Result};
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
    /// Names of control tokens, the longest first.
    specials: Vec<String>,
}

impl<'a> Conversation<'a> {
    /// An empty one, with what the model is to be told before it.
    ///
    /// # Errors
    /// `Format` where the model has no chat template or no tokenizer.
    pub fn new(model: &'a LoadedModel, system: Option<&str>) -> Result<Self> {
        let (template, tokenizer) = (model.template()?, model.tokenizer()?);
        let all = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let name = |id: u32| Some(String::from_utf8_lossy(tokenizer.piece(id).ok()?).into_owned());
        let mut specials: Vec<String> = all
            .filter(|id| tokenizer.kind(*id).is_special())
            .filter_map(name)
            .filter(|n| !n.is_empty())
            .collect();
        specials.sort_by_key(|name| std::cmp::Reverse(name.len()));
        let messages = system.map(|text| (Role::System, text.to_owned())).into_iter().collect();
        Ok(Self { session: model.session()?, template, messages, so_far: None, specials })
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
            let rest = self.encode(tokenizer, rest, mark)?;
            if rest.first().is_some_and(|id| tokenizer.kind(*id).is_special()) {
                return Ok((text.clone(), [before.ids.clone(), rest].concat()));
            }
        }
        let mut ids = self.encode(tokenizer, &text, mark)?;
        let begin = tokenizer.encode_prompt("", Specials::Plain).unwrap_or_default();
        if let Some(bos) = tokenizer.bos().filter(|bos| begin.first() == Some(bos))
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok((text, ids))
    }

    /// A character of the private planes that no message has.
    fn mark(&self) -> char {
        let used = |c: &char| self.messages.iter().any(|(_, text)| text.contains(*c));
        ('\u{f0000}'..='\u{ffffd}').find(|c| !used(c)).unwrap_or('\u{f0000}')
    }

    /// The text of the template. Names of control tokens within messages stand as their number between two marks.
    fn render(&self, tokenizer: &Tokenizer, mark: char) -> Result<String> {
        let one = |(role, text): &(Role, String)| json!({ "role": role.name(), "content": self.hidden(text, mark) });
        let messages: Vec<_> = self.messages.iter().map(one).collect();
        let name = |id: Option<u32>| {
            let piece = id.and_then(|id| tokenizer.piece(id).ok()).unwrap_or_default();
            String::from_utf8_lossy(piece).into_owned()
        };
        self.template.render(&Chat {
            messages: value_of_json(&json!(messages).to_string())?,
            answer: true,
            bos: name(tokenizer.bos()),
            eos: name(tokenizer.eos()),
            ..Chat::default()
        })
    }

    /// The first name of a control token in a text: which, and where. At one place the longest.
    fn special(&self, text: &str) -> Option<(usize, std::ops::Range<usize>)> {
        text.char_indices().find_map(|(at, _)| {
            let which = self.specials.iter().position(|name| text[at..].starts_with(name.as_str()))?;
            Some((which, at..at + self.specials[which].len()))
        })
    }

    /// A message with the numbers of control tokens between marks instead of their names.
    fn hidden(&self, text: &str, mark: char) -> String {
        let (mut out, mut rest) = (String::with_capacity(text.len()), text);
        while let Some((which, place)) = self.special(rest) {
            out += &format!("{}{mark}{which}{mark}", &rest[..place.start]);
            rest = &rest[place.end..];
        }
        out + rest
    }

    /// The way back.
    fn shown(&self, text: &str, mark: char) -> String {
        let name = |(at, part): (usize, &str)| {
            let name = part.parse::<usize>().ok().filter(|_| at % 2 == 1).and_then(|n| self.specials.get(n));
            name.map_or_else(|| part.to_owned(), Clone::clone)
        };
        text.split(mark).enumerate().map(name).collect()
    }

    /// Tokens of the template's text. Between control tokens with a message that names some, everything is text.
    fn encode(&self, tokenizer: &Tokenizer, text: &str, mark: char) -> Result<Vec<u32>> {
        let (mut ids, mut rest) = (Vec::new(), text);
        while let Some(first) = rest.find(mark) {
            let mut start = 0;
            while let Some((_, place)) = self.special(&rest[start..first]) {
                start += place.end;
            }
            let end = self.special(&rest[first..]).map_or(rest.len(), |(_, place)| first + place.start);
            ids.extend(tokenizer.encode(&rest[..start], Specials::Parsed)?);
            ids.extend(tokenizer.encode(&self.shown(&rest[start..end], mark), Specials::Plain)?);
            rest = &rest[end..];
        }
        if !rest.is_empty() {
            ids.extend(tokenizer.encode(rest, Specials::Parsed)?);
        }
        if ids.is_empty() {
            return Err(Error::format("the chat template made an empty text"));
        }
        Ok(ids)
    }
}
