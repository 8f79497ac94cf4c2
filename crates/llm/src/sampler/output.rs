//! Converts tokens to displayed text: whole characters, up to a stop string, an end token or a number of tokens.

use crate::tokenizer::{Stream, Tokenizer};
use netcl_tensor::{Error, Result};

/// Stop strings. Text that may be the start of one is held back.
#[derive(Clone, Debug, Default)]
pub struct StopTexts {
    texts: Vec<String>,
    held: String,
}

impl StopTexts {
    /// # Errors
    /// `Format` for an empty string, which would end everything.
    pub fn new(texts: Vec<String>) -> Result<Self> {
        match texts.iter().any(String::is_empty) {
            true => Err(Error::format("a stop text is empty")),
            false => Ok(Self { texts, held: String::new() }),
        }
    }

    /// Takes more text. Returns text to show, and the first complete stop string, which is not shown. The result does not depend on how a text is
    /// split into parts.
    pub fn push(&mut self, text: &str) -> (String, Option<&str>) {
        self.held.push_str(text);
        let found = self.texts.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        if let Some((at, stop)) = found.min_by_key(|(at, stop)| (at + stop.len(), *at)) {
            let shown = self.held[..at].to_owned();
            self.held.clear();
            return (shown, Some(stop));
        }
        let begins = |tail: &str| self.texts.iter().any(|stop| stop.starts_with(tail));
        let keep = self.held.char_indices().map(|(at, _)| at).find(|at| begins(&self.held[*at..]));
        let rest = self.held.split_off(keep.unwrap_or(self.held.len()));
        (std::mem::replace(&mut self.held, rest), None)
    }

    /// Returns the text that was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Reason for the end of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end token was sampled.
    Token(u32),
    /// A stop string occurred.
    Text(String),
    /// The requested number of tokens was reached.
    Length,
    /// The context is full.
    Context,
    /// The requester stopped it.
    Stopped,
}

/// Result of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Final text; often empty.
    pub text: String,
    /// Set with the last chunk.
    pub finish: Option<Finish>,
}

/// Converts tokens to text until the sequence ends.
#[derive(Clone, Debug)]
pub struct Output<'a> {
    tokenizer: &'a Tokenizer,
    stream: Stream<'a>,
    stops: StopTexts,
    /// Maximum number of further tokens; `None` for no limit.
    left: Option<usize>,
    /// Whether end tokens are ignored.
    endless: bool,
}

impl Finish {
    /// Returns one word: `end`, `stop`, `length`, `context`, `stopped`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Token(_) => "end",
            Self::Text(_) => "stop",
            Self::Length => "length",
            Self::Context => "context",
            Self::Stopped => "stopped",
        }
    }
}

impl<'a> Output<'a> {
    /// Returns a converter for text after a prompt, up to one of `stops` or `max` tokens.
    pub fn new(tokenizer: &'a Tokenizer, stops: StopTexts, max: Option<usize>) -> Self {
        Self { tokenizer, stream: tokenizer.stream(), stops, left: max, endless: false }
    }

    /// Continues after end tokens.
    #[must_use]
    pub fn ignoring_ends(mut self) -> Self {
        self.endless = true;
        self
    }

    /// Writes control tokens by name, except for those that end the text.
    #[must_use]
    pub fn with_controls(mut self) -> Self {
        self.stream = self.stream.with_controls();
        self
    }

    /// Returns the text that was held back, if a sequence ends early.
    pub fn close(&mut self) -> String {
        let rest = self.stream.finish();
        let (shown, stop) = self.stops.push(&rest);
        if stop.is_some() { shown } else { shown + &self.stops.finish() }
    }

    /// Takes the next token. Do not push more after a chunk with a finish reason.
    ///
    /// # Errors
    /// `Format` for an id outside the vocabulary.
    pub fn push(&mut self, id: u32) -> Result<Chunk> {
        let ends = !self.endless && self.tokenizer.stops().binary_search(&id).is_ok();
        let mut text = if ends { self.stream.finish() } else { self.stream.push(id)? };
        self.left = self.left.map(|left| left.saturating_sub(1));
        let last = ends || self.left == Some(0);
        if last && !ends {
            text += &self.stream.finish();
        }
        let (mut shown, stop) = self.stops.push(&text);
        let stop = stop.map(|stop| Finish::Text(stop.to_owned()));
        if stop.is_none() && last {
            shown += &self.stops.finish();
        }
        let finish = stop.or(if ends { Some(Finish::Token(id)) } else { last.then_some(Finish::Length) });
        Ok(Chunk { text: shown, finish })
    }
}
