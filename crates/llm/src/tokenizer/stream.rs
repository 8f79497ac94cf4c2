//! Incremental decoding.

use super::{TokenKind, Tokenizer};
use crate::utf8::Utf8Buffer;
use netcl_tensor::Result;

/// Takes ids one by one and returns text as soon as its characters are complete.
#[derive(Clone, Debug)]
pub struct Stream<'a> {
    tokenizer: &'a Tokenizer,
    buffer: Utf8Buffer,
    /// Whether control tokens are written by name instead of omitted.
    control: bool,
    /// Whether the next space is the one that the tokenizer added before the text.
    strip: bool,
}

impl<'a> Stream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, control: bool, strip: bool) -> Self {
        Self { tokenizer, buffer: Utf8Buffer::default(), control, strip }
    }

    /// Writes control tokens by name.
    #[must_use]
    pub fn with_controls(mut self) -> Self {
        self.control = true;
        self
    }

    /// Returns the text that `id` completes; empty for an incomplete character, and for control tokens unless they are requested.
    ///
    /// # Errors
    /// `Format` for an id outside the vocabulary.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let bytes = self.tokenizer.piece(id)?;
        let kind = self.tokenizer.kind(id);
        let special = kind.is_special();
        if special && !self.control {
            return Ok(String::new());
        }
        let bytes = match bytes.strip_prefix(b" ") {
            // An unknown word has a space before it, the same as other words.
            Some(rest) if self.strip && (!special || kind == TokenKind::Unknown) => {
                self.strip = false;
                rest
            }
            _ => bytes,
        };
        self.strip &= special;
        Ok(self.buffer.push(bytes))
    }

    /// Returns the rest at the end: U+FFFD for an incomplete character.
    pub fn finish(&mut self) -> String {
        self.buffer.finish()
    }
}
