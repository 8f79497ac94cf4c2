//! A text that a decoder continues, token by token.

use super::{Cache, Decoder};
use crate::model::Continuation;
use netcl_tensor::{Error, Result, Tensor};

/// Tokens that a cache begins with room for; it doubles where they do not suffice.
const ROOM: usize = 256;

/// Reads new tokens alone, beside the keys and values of those before.
pub(super) struct Text<'a> {
    decoder: &'a Decoder,
    cache: Option<Cache>,
    /// The text's first token that is in the cache: 0 until the text outgrows the context.
    start: usize,
}

impl<'a> Text<'a> {
    pub(super) fn new(decoder: &'a Decoder) -> Self {
        Self { decoder, cache: None, start: 0 }
    }
}

impl Continuation for Text<'_> {
    fn logits_after(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let context = self.decoder.config.context;
        if ids.is_empty() {
            return Err(Error::shape("decoder: an empty text has no last token"));
        }
        if ids.len() - self.start.min(ids.len()) > context {
            // Positions are counted from the first token read: all that stay have others now. Half of the context is left to grow into,
            // so that this happens once in as many tokens.
            self.start = ids.len() - (context / 2).max(1);
            self.cache = None;
        }
        let text = ids.get(self.start..).filter(|text| !text.is_empty()).unwrap_or(ids);
        let mut cache = match self.cache.take() {
            Some(cache) if text.len() <= cache.room() && cache.length() < text.len() => cache,
            _ => self.decoder.cache(1, text.len().next_power_of_two().max(ROOM).min(context))?,
        };
        let new = &text[cache.length()..];
        let new = Tensor::from_u32(self.decoder.params.device(), [1, new.len()], new)?;
        let logits = self.decoder.next_logits(&new, &mut cache)?.to_vec();
        self.cache = Some(cache);
        logits
    }
}
