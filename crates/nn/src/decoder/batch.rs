//! Batched generation for texts of the same length, with a key/value cache: several new tokens per text in one pass, or one per text by a
//! captured step.

use super::step::Steps;
use super::{Cache, Decoder};
use netcl_tensor::{Result, Tensor};

/// B texts of the same length with their key/value cache.
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
    /// Number of texts.
    pub fn texts(&self) -> usize {
        self.cache.batch()
    }
    /// Number of tokens of each text.
    pub fn length(&self) -> usize {
        self.cache.length()
    }
    /// Capacity of the cache in tokens per text.
    pub fn room(&self) -> usize {
        self.cache.room()
    }
    /// Truncates the texts to their first `length` tokens.
    pub fn truncate(&mut self, length: usize) {
        self.cache.truncate(length);
    }

    /// Grows the cache to at least `tokens` tokens per text.
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

    /// The next token of each text → logits `(B, V)`, in memory that the next step overwrites.
    ///
    /// # Errors
    /// `Shape` if the cache is full, or for another number of texts.
    pub fn step(&mut self, tokens: &[u32]) -> Result<Tensor> {
        let length = self.cache.length() + 1;
        let steps = match self.steps.take().filter(|steps| steps.fit(length)) {
            Some(steps) => self.steps.insert(steps),
            None => self.steps.insert(Steps::new(self.decoder, &self.cache, length)?),
        };
        steps.run(self.decoder, &mut self.cache, tokens)
    }

    /// Number of launches of the captured step; `None` before it is captured.
    pub fn launches(&self) -> Option<usize> {
        self.steps.as_ref()?.launches()
    }
}
