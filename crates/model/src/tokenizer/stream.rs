//! Incremental decoding that returns complete characters only.

use super::Tokenizer;
use netcl_device::Result;

/// Decodes ids one by one and returns text as soon as it is final.
#[derive(Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    /// The ids of the text returned last, which some decoders need as context (a leading space depends on them), followed by the pending ids.
    ids: Vec<u32>,
    /// The text returned last.
    given: String,
    /// Number of `ids` that belong to that text.
    given_ids: usize,
}

impl<'a> StreamDecoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, ids: Vec::new(), given: String::new(), given_ids: 0 }
    }

    /// Returns the text that `id` completes; empty while a character is incomplete. `Format` for an unknown id.
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.ids.push(id);
        let text = match self.tokenizer.decode(&self.ids) {
            // An incomplete character decodes as U+FFFD until its last byte arrives.
            Ok(text) if text.ends_with('\u{fffd}') => return Ok(String::new()),
            Ok(text) => text,
            Err(error) => {
                self.ids.pop();
                return Err(error);
            }
        };
        let new = text.get(self.given.len()..).unwrap_or_default().to_owned();
        self.ids.drain(..self.given_ids);
        self.given = self.tokenizer.decode(&self.ids)?;
        self.given_ids = self.ids.len();
        Ok(new)
    }

    /// Returns the pending text at the end; incomplete characters as U+FFFD.
    pub fn finish(self) -> Result<String> {
        Ok(self.tokenizer.decode(&self.ids)?.get(self.given.len()..).unwrap_or_default().to_owned())
    }
}
