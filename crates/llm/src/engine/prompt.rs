//! Conversations as the tokens that a model reads: messages through its chat template, whose control tokens no message can write.

use crate::template::{Chat, Template, Value, value_of_json};
use crate::tokenizer::{Specials, Tokenizer};
use aho_corasick::{AhoCorasick, MatchKind};
use netcl_tensor::{Error, Result};
use serde_json::Value as Json;
use std::ops::Range;

/// A conversation in the form of OpenAI's chat interface.
#[derive(Clone, Copy, Debug, Default)]
pub struct Talk<'a> {
    /// Objects with `role` and `content`, in their order.
    pub messages: &'a [Json],
    /// Descriptions of functions that the model may call.
    pub tools: Option<&'a [Json]>,
    /// Anything else that the template may ask for, by name.
    pub others: &'a [(String, Json)],
    /// Tokens that it may have; what is surely longer is refused before all of it is encoded.
    pub most: Option<usize>,
}

/// Whether a text has more than `most` tokens, by a margin. It is looked at from its beginning, so that a long one takes no longer than a short one.
/// A text that is not clearly longer has to be encoded.
///
/// # Errors
/// Those of `count`, which encodes a part of the text.
pub fn is_longer(text: &str, most: usize, count: impl Fn(&str) -> Result<usize>) -> Result<bool> {
    // Where a part ends, its last word may have other tokens than within the whole.
    let margin = most / 8 + 256;
    let mut end = (most + margin).saturating_mul(4);
    while end < text.len() {
        let border = (0..=end).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let word = text[..border].rfind(char::is_whitespace).filter(|at| *at > border / 2);
        if count(&text[..word.unwrap_or(border)])? > most + margin {
            return Ok(true);
        }
        end = end.saturating_mul(2);
    }
    Ok(false)
}

/// Makes prompts for the texts of one tokenizer. Names of control tokens in a conversation's texts are read as text, never as those tokens.
pub struct Prompts {
    names: Vec<String>,
    finder: Option<AhoCorasick>,
    /// Whether a token that begins a text is written where the template has none.
    begins: bool,
}

impl Prompts {
    /// For texts of `tokenizer`. `begins` says whether a token that begins a text is put before a conversation whose template has none: llama.cpp
    /// does so with its files, transformers and vLLM do not with theirs.
    ///
    /// # Errors
    /// `Internal` if its control tokens cannot be searched for.
    pub fn new(tokenizer: &Tokenizer, begins: bool) -> Result<Self> {
        let all = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let name = |id: u32| Some(String::from_utf8_lossy(tokenizer.piece(id).ok()?).into_owned());
        let special = all.filter(|id| tokenizer.kind(*id).is_special());
        let names: Vec<String> = special.filter_map(name).filter(|name| !name.is_empty()).collect();
        let finder = match names.is_empty() {
            true => None,
            false => Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .build(&names)
                    .map_err(|e| Error::internal(format!("names of control tokens: {e}")))?,
            ),
        };
        Ok(Self { names, finder, begins })
    }

    /// The conversation as the model is to read it, up to where the answer begins: the template's text and its tokens.
    ///
    /// # Errors
    /// Those of the template and of the tokenizer.
    pub fn render(
        &self,
        tokenizer: &Tokenizer,
        template: &Template,
        talk: Talk<'_>,
    ) -> Result<(String, Vec<u32>)> {
        let Talk { messages, tools, others, most } = talk;
        let texts = messages.iter().chain(tools.into_iter().flatten());
        let mark = mark(|c| texts.clone().any(|json| holds(json, c)));
        let hidden = |list: &[Json]| {
            let list: Vec<Json> = list.iter().map(|json| self.hidden_in(json, mark)).collect();
            value_of_json(&Json::from(list).to_string())
        };
        let others = others.iter().map(|(name, json)| Ok((name.clone(), value_of_json(&json.to_string())?)));
        let chat = Chat {
            tools: tools.map(hidden).transpose()?,
            others: others.collect::<Result<_>>()?,
            ..chat(tokenizer, hidden(messages)?)
        };
        let text = template.render(&chat)?;
        let count = |part: &str| tokenizer.encode(part, Specials::Parsed).map(|ids| ids.len());
        if let Some(most) = most
            && is_longer(&text, most, count)?
        {
            return Err(Error::shape(format!("the conversation has more than {most} tokens")));
        }
        let ids = self.begun(tokenizer, self.encode(tokenizer, &text, mark)?);
        Ok((self.shown(&text, mark), ids))
    }

    /// The tokens with the one that the model's texts begin with, where that is put before conversations and the template did not write it.
    pub(super) fn begun(&self, tokenizer: &Tokenizer, mut ids: Vec<u32>) -> Vec<u32> {
        if !self.begins {
            return ids;
        }
        let begin = tokenizer.encode_prompt("", Specials::Plain).unwrap_or_default();
        if let Some(bos) = tokenizer.bos().filter(|bos| begin.first() == Some(bos))
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// The first name of a control token in a text: which, and where. At one place the longest.
    fn special(&self, text: &str) -> Option<(usize, Range<usize>)> {
        let found = self.finder.as_ref()?.find(text)?;
        Some((found.pattern().as_usize(), found.range()))
    }

    /// A text with the numbers of control tokens between marks instead of their names.
    pub(super) fn hidden(&self, text: &str, mark: char) -> String {
        let (mut out, mut rest) = (String::with_capacity(text.len()), text);
        while let Some((which, place)) = self.special(rest) {
            out += &format!("{}{mark}{which}{mark}", &rest[..place.start]);
            rest = &rest[place.end..];
        }
        out + rest
    }

    /// The same of all texts in a value but the keys of objects, and a message's role.
    fn hidden_in(&self, json: &Json, mark: char) -> Json {
        match json {
            Json::String(text) => self.hidden(text, mark).into(),
            Json::Array(list) => list.iter().map(|json| self.hidden_in(json, mark)).collect(),
            Json::Object(fields) => {
                let one = |(key, json): (&String, &Json)| match key.as_str() {
                    "role" => (key.clone(), json.clone()),
                    _ => (key.clone(), self.hidden_in(json, mark)),
                };
                fields.iter().map(one).collect()
            }
            _ => json.clone(),
        }
    }

    /// The way back.
    fn shown(&self, text: &str, mark: char) -> String {
        let name = |(at, part): (usize, &str)| {
            let name = part.parse::<usize>().ok().filter(|_| at % 2 == 1).and_then(|n| self.names.get(n));
            name.map_or_else(|| part.to_owned(), Clone::clone)
        };
        text.split(mark).enumerate().map(name).collect()
    }

    /// Tokens of the template's text. Between control tokens with a message that names some, everything is text.
    pub(super) fn encode(&self, tokenizer: &Tokenizer, text: &str, mark: char) -> Result<Vec<u32>> {
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

/// Messages for a template, up to where an answer begins, with the texts of the tokens that begin and end a text.
pub(super) fn chat(tokenizer: &Tokenizer, messages: Value) -> Chat {
    let name = |id: Option<u32>| {
        let piece = id.and_then(|id| tokenizer.piece(id).ok()).unwrap_or_default();
        String::from_utf8_lossy(piece).into_owned()
    };
    Chat { messages, answer: true, bos: name(tokenizer.bos()), eos: name(tokenizer.eos()), ..Chat::default() }
}

/// A character of the private planes that is not used.
pub(super) fn mark(used: impl Fn(char) -> bool) -> char {
    ('\u{f0000}'..='\u{ffffd}').find(|c| !used(*c)).unwrap_or('\u{f0000}')
}

/// Whether a text of the value holds a character.
fn holds(json: &Json, c: char) -> bool {
    match json {
        Json::String(text) => text.contains(c),
        Json::Array(list) => list.iter().any(|json| holds(json, c)),
        Json::Object(fields) => fields.iter().any(|(key, json)| key.contains(c) || holds(json, c)),
        _ => false,
    }
}
