//! Texts of one length side by side, with the keys and values of their tokens: several new tokens at once as they come, one of each text by
//! a captured step.

use super::step::Steps;
use super::{Cache, Decoder};
use netcl_tensor::{Result, Tensor};

/// B texts of one length that a decoder goes on with.
pub struct Batch<'a> {
    decoder: &'a Decoder,
    cache: Cache,
    steps: Option<Steps>,
}

impl Decoder {
    /// `texts` empty texts with room for `tokens` tokens each.
    ///
    /// # Errors
    /// As [`cache`](Self::cache).
    pub fn batch(&self, texts: usize, tokens: usize) -> Result<Batch<'_>> {
        Ok(Batch { decoder: self, cache: self.cache(texts, tokens)?, steps: None })
    }
}

impl Batch<'_> {
    /// How many texts there are.
    pub fn texts(&self) -> usize {
        self.cache.batch()
    }
    /// Tokens of each text.
    pub fn length(&self) -> usize {
        self.cache.length()
    }
    /// Tokens that each text has room for.
    pub fn room(&self) -> usize {
        self.cache.room()
    }
    /// Forgets all but the first `length` tokens.
    pub fn truncate(&mut self, length: usize) {
        self.cache.truncate(length);
    }

    /// Makes room for `tokens` tokens, where there is not as much.
    ///
    /// # Errors
    /// As [`Decoder::cache`].
    pub fn reserve(&mut self, tokens: usize) -> Result<()> {
        if tokens > self.cache.room() {
            self.cache = self.decoder.larger(&self.cache, tokens)?;
            self.steps = None;
        }
        Ok(())
    }

    /// ids `(B, T)` of the next tokens → logits `(B, V)` after the last of them.
    ///
    /// # Errors
    /// As [`Decoder::next_logits`].
    pub fn read(&mut self, ids: &Tensor) -> Result<Tensor> {
        self.decoder.next_logits(ids, &mut self.cache)
    }

    /// The next token of each text → logits `(B, V)`, which the next step overwrites.
    ///
    /// # Errors
    /// `Shape` where there is no room for it, or for another number of texts.
    pub fn step(&mut self, tokens: &[u32]) -> Result<Tensor> {
        let length = self.cache.length() + 1;
        let steps = match self.steps.take().filter(|steps| steps.fit(length)) {
            Some(steps) => self.steps.insert(steps),
            None => self.steps.insert(Steps::new(self.decoder, &self.cache, length)?),
        };
        steps.run(self.decoder, &mut self.cache, tokens)
    }

    /// Launches of a step, once it is captured.
    pub fn launches(&self) -> Option<usize> {
        self.steps.as_ref()?.launches()
    }
}
