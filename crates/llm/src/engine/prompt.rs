//! Converts conversations to tokens: messages through the chat template. Messages cannot produce control tokens.

use crate::template::{Chat, Template, Value, value_of_json};
use crate::tokenizer::{Specials, Tokenizer};
use aho_corasick::{AhoCorasick, MatchKind};
use netcl_tensor::{Error, Result};
use serde_json::Value as Json;
use std::ops::Range;

/// A conversation in the format of OpenAI's chat interface.
#[derive(Clone, Copy, Debug, Default)]
pub struct Talk<'a> {
    /// Objects with `role` and `content`, in order.
    pub messages: &'a [Json],
    /// Descriptions of functions that the model may call.
    pub tools: Option<&'a [Json]>,
    /// Other template variables by name.
    pub others: &'a [(String, Json)],
    /// Maximum number of tokens; a prompt that is certainly longer is rejected before it is encoded completely.
    pub most: Option<usize>,
}

/// Returns true if a text has more than `most` tokens, by a margin. It is checked from its start, so that a long text takes no longer than a short
/// one. A text that is not clearly longer must be encoded.
///
/// # Errors
/// Errors of `count`, which encodes a part of the text.
pub fn is_longer(text: &str, most: usize, count: impl Fn(&str) -> Result<usize>) -> Result<bool> {
    // The last word of a part may have other tokens than in the whole text.
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

/// Creates prompts for one tokenizer. Names of control tokens in a conversation are read as text, never as those tokens.
pub struct Prompts {
    names: Vec<String>,
    finder: Option<AhoCorasick>,
    /// Whether the begin token is added if the template omits it.
    begins: bool,
}

impl Prompts {
    /// Returns prompts for `tokenizer`. `begins`: whether the begin token is added to a conversation whose template omits it. llama.cpp does so with
    /// its files; transformers and vLLM do not.
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

    /// Returns the conversation up to the start of the answer: the rendered template and its tokens.
    ///
    /// # Errors
    /// Errors of the template and of the tokenizer.
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

    /// Adds the model's begin token if conversations need it and the template did not write it.
    pub(crate) fn begun(&self, tokenizer: &Tokenizer, mut ids: Vec<u32>) -> Vec<u32> {
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

    /// Returns the first name of a control token in a text: its index and range. At one position the longest name wins.
    fn special(&self, text: &str) -> Option<(usize, Range<usize>)> {
        let found = self.finder.as_ref()?.find(text)?;
        Some((found.pattern().as_usize(), found.range()))
    }

    /// Replaces the names of control tokens in a text with their numbers between marks.
    pub(super) fn hidden(&self, text: &str, mark: char) -> String {
        let (mut out, mut rest) = (String::with_capacity(text.len()), text);
        while let Some((which, place)) = self.special(rest) {
            out += &format!("{}{mark}{which}{mark}", &rest[..place.start]);
            rest = &rest[place.end..];
        }
        out + rest
    }

    /// Does the same for all strings in a value, except for object keys and a message's role.
    pub(crate) fn hidden_in(&self, json: &Json, mark: char) -> Json {
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

    /// Returns the way back.
    fn shown(&self, text: &str, mark: char) -> String {
        let name = |(at, part): (usize, &str)| {
            let name = part.parse::<usize>().ok().filter(|_| at % 2 == 1).and_then(|n| self.names.get(n));
            name.map_or_else(|| part.to_owned(), Clone::clone)
        };
        text.split(mark).enumerate().map(name).collect()
    }

    /// Returns the parts of a rendered template that are encoded separately: byte ranges, and whether names of control tokens are those tokens.
    fn parts(&self, text: &str, mark: char) -> Vec<(Range<usize>, Specials)> {
        let (mut parts, mut at) = (Vec::new(), 0);
        while let Some(first) = text[at..].find(mark) {
            let first = at + first;
            let mut start = at;
            while let Some((_, place)) = self.special(&text[start..first]) {
                start += place.end;
            }
            let end = self.special(&text[first..]).map_or(text.len(), |(_, place)| first + place.start);
            parts.push((at..start, Specials::Parsed));
            parts.push((start..end, Specials::Plain));
            at = end;
        }
        parts.push((at..text.len(), Specials::Parsed));
        parts.retain(|(part, _)| !part.is_empty());
        parts
    }

    /// Returns the same tokens as [`encode`](Self::encode), each with the bytes of the rendered template that it stands for.
    ///
    /// # Errors
    /// Errors of [`Tokenizer::encode_with_ranges`].
    pub(crate) fn encode_with_ranges(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        mark: char,
    ) -> Result<Vec<(u32, Range<usize>)>> {
        let mut ids = Vec::new();
        for (part, specials) in self.parts(text, mark) {
            let begin = part.start;
            if specials == Specials::Parsed {
                let all = tokenizer.encode_with_ranges(&text[part], specials)?;
                ids.extend(all.into_iter().map(|(id, at)| (id, begin + at.start..begin + at.end)));
                continue;
            }
            // Positions in the shown text and in the rendered one, at the borders of names.
            let (mut shown, mut borders) = (String::new(), Vec::new());
            let mut at = begin;
            for (i, piece) in text[part].split(mark).enumerate() {
                borders.push((shown.len(), at));
                let name = piece.parse::<usize>().ok().filter(|_| i % 2 == 1).and_then(|n| self.names.get(n));
                shown += name.map_or(piece, String::as_str);
                at += piece.len() + mark.len_utf8();
            }
            let back = |place: usize| {
                let (from, to) = borders[borders.partition_point(|(from, _)| *from <= place) - 1];
                to + place - from
            };
            let all = tokenizer.encode_with_ranges(&shown, specials)?;
            ids.extend(all.into_iter().map(|(id, at)| (id, back(at.start)..back(at.end))));
        }
        Ok(ids)
    }

    /// Returns the tokens of the rendered template. Inside a message that contains names of control tokens, everything is text.
    pub(super) fn encode(&self, tokenizer: &Tokenizer, text: &str, mark: char) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for (part, specials) in self.parts(text, mark) {
            ids.extend(match specials {
                Specials::Parsed => tokenizer.encode(&text[part], specials)?,
                Specials::Plain => tokenizer.encode(&self.shown(&text[part], mark), specials)?,
            });
        }
        if ids.is_empty() {
            return Err(Error::format("the chat template returned an empty text"));
        }
        Ok(ids)
    }
}

/// Returns messages for a template, up to the start of an answer, with the begin and end tokens.
pub(crate) fn chat(tokenizer: &Tokenizer, messages: Value) -> Chat {
    let name = |id: Option<u32>| {
        let piece = id.and_then(|id| tokenizer.piece(id).ok()).unwrap_or_default();
        String::from_utf8_lossy(piece).into_owned()
    };
    Chat { messages, answer: true, bos: name(tokenizer.bos()), eos: name(tokenizer.eos()), ..Chat::default() }
}

/// Returns an unused private-use character.
pub(crate) fn mark(used: impl Fn(char) -> bool) -> char {
    ('\u{f0000}'..='\u{ffffd}').find(|c| !used(*c)).unwrap_or('\u{f0000}')
}

/// Returns true if a string of the value contains a character.
pub(crate) fn holds(json: &Json, c: char) -> bool {
    match json {
        Json::String(text) => text.contains(c),
        Json::Array(list) => list.iter().any(|json| holds(json, c)),
        Json::Object(fields) => fields.iter().any(|(key, json)| key.contains(c) || holds(json, c)),
        _ => false,
    }
}
