//! Decoding while ids arrive.

use super::{TokenKind, Tokenizer};
use crate::utf8::Utf8Buffer;
use netcl_tensor::Result;

/// Takes ids one by one and gives text as soon as its characters are whole.
#[derive(Clone, Debug)]
pub struct Stream<'a> {
    tokenizer: &'a Tokenizer,
    buffer: Utf8Buffer,
    /// Whether control tokens are written by name instead of left out.
    control: bool,
    /// Whether the next space is the one that the tokenizer put before the text.
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

    /// The text that `id` completes; empty while a character is not whole, and for control tokens unless they are asked for.
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
            // An unknown word has a space before it where the others have.
            Some(rest) if self.strip && (!special || kind == TokenKind::Unknown) => {
                self.strip = false;
                rest
            }
            _ => bytes,
        };
        self.strip &= special;
        Ok(self.buffer.push(bytes))
    }

    /// What is left at the end: U+FFFD for a character that never became whole.
    pub fn finish(&mut self) -> String {
        self.buffer.finish()
    }
}
