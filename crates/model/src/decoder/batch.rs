//! Batched generation for texts of the same length, with a key/value cache: several new tokens per text in one pass, or one per text by a
//! captured step.

use super::step::Steps;
use super::{Cache, Decoder};
use netcl_device::driver::Event;
use netcl_tensor::ops::choose::Chooser;
use netcl_tensor::{Error, Result, Tensor};
use std::sync::Arc;

/// B texts of the same length with their key/value cache.
pub struct Batch<'a> {
    decoder: &'a Decoder,
    cache: Cache,
    steps: Option<Steps>,
    /// Number of steps so far with sampling on the device: determines the slot of the next token.
    count: u32,
}

/// Enqueued steps whose tokens have not been read back.
pub struct Queued {
    event: Event,
    count: u32,
    steps: usize,
}

impl Queued {
    /// Returns the number of steps.
    pub fn steps(&self) -> usize {
        self.steps
    }
}

impl Decoder {
    /// `texts` empty texts with room for `tokens` tokens each.
    ///
    /// # Errors
    /// Same as [`cache`](Self::cache).
    pub fn batch(&self, texts: usize, tokens: usize) -> Result<Batch<'_>> {
        Ok(Batch { decoder: self, cache: self.cache(texts, tokens)?, steps: None, count: 0 })
    }
}

impl Batch<'_> {
    /// Returns the number of texts.
    pub fn texts(&self) -> usize {
        self.cache.batch()
    }
    /// Returns the number of tokens of each text.
    pub fn length(&self) -> usize {
        self.cache.length()
    }
    /// Returns the capacity of the cache in tokens per text.
    pub fn room(&self) -> usize {
        self.cache.room()
    }
    /// Truncates the texts to their first `length` tokens, or to fewer if a state does not support that length. Returns the new length.
    pub fn truncate(&mut self, length: usize) -> usize {
        self.cache.truncate(length)
    }

    /// Grows the cache to at least `tokens` tokens per text.
    ///
    /// # Errors
    /// Same as [`Decoder::cache`].
    pub fn reserve(&mut self, tokens: usize) -> Result<()> {
        if tokens > self.cache.room() {
            self.steps = None;
            self.decoder.enlarge(&mut self.cache, tokens)?;
        }
        Ok(())
    }

    /// Takes ids `(B, T)` of the next tokens → logits `(B, V)` after the last of them.
    ///
    /// # Errors
    /// Same as [`Decoder::next_logits`].
    pub fn read(&mut self, ids: &Tensor) -> Result<Tensor> {
        self.decoder.next_logits(ids, &mut self.cache)
    }

    /// Does the same without logits. Rotary angles are those of texts of `length` tokens, of which these are a part.
    ///
    /// # Errors
    /// Same as [`read`](Self::read).
    pub fn fill(&mut self, ids: &Tensor, length: usize) -> Result<()> {
        self.decoder.fill(ids, &mut self.cache, length).map(drop)
    }

    /// Takes the next token of each text → logits `(B, V)`, in memory that the next step overwrites.
    ///
    /// # Errors
    /// `Shape` if the cache is full, or for another number of texts.
    pub fn step(&mut self, tokens: &[u32]) -> Result<Tensor> {
        self.fitting()?;
        let Some(steps) = &mut self.steps else { return Err(Error::internal("a batch without steps")) };
        steps.run(self.decoder, &mut self.cache, tokens)
    }

    /// Returns the steps for texts that are one token longer.
    fn fitting(&mut self) -> Result<&mut Steps> {
        let length = self.cache.length() + 1;
        self.cache.turn(&self.decoder.config, length)?;
        Ok(match self.steps.take().filter(|steps| steps.fit(length)) {
            Some(steps) => self.steps.insert(steps),
            None => self.steps.insert(Steps::new(self.decoder, &self.cache, length)?),
        })
    }

    /// Sets the input tokens (B) of the next enqueued step.
    ///
    /// # Errors
    /// `Shape` for another number of texts; those of the device.
    pub fn start(&mut self, tokens: &[u32]) -> Result<()> {
        let (length, count) = (self.cache.length(), self.count);
        let steps = self.fitting()?;
        steps.set(tokens, length)?;
        steps.texts()?.set_count(count)
    }

    /// Returns true if the host waits for each step, in order to transfer it from one device to the next.
    pub(super) fn waits(&self) -> bool {
        self.decoder.stages.len() > 1
    }

    /// Returns the number of further steps that can be enqueued.
    pub fn left(&self) -> usize {
        let longest = self.steps.as_ref().map_or(0, Steps::longest).min(self.cache.room());
        longest.saturating_sub(self.cache.length())
    }

    /// Enqueues steps; on one device it does not wait. The input of each step is the tokens that the previous one sampled `by` these rules; that of
    /// the first is the tokens of [`start`](Self::start). `words` are random words: one per text and step.
    ///
    /// # Errors
    /// `Shape` for more steps than [`left`](Self::left) or than the device stores until they are read back; device errors.
    pub fn queue(&mut self, by: &Arc<Chooser>, words: &[u32]) -> Result<Queued> {
        let (left, texts) = (self.left(), self.texts());
        let count = words.len() / texts.max(1);
        let Some(steps) = self.steps.as_mut().filter(|_| count <= left) else {
            return Err(Error::shape(format!(
                "decoder: {count} steps of {texts} texts, but there is room for {left}"
            )));
        };
        steps.texts()?.set_words(self.count, words)?;
        for _ in 0..count {
            steps.go_on(self.decoder, &mut self.cache, by)?;
        }
        let device = self.decoder.last_device();
        let queued = Queued { event: device.mark()?, count: self.count, steps: count };
        device.flush()?;
        self.count = self.count.wrapping_add(count as u32);
        Ok(queued)
    }

    /// Returns the sampled tokens (steps, B). Waits only for these steps, not for later ones. They must have been enqueued since the last
    /// [`start`](Self::start).
    ///
    /// # Errors
    /// Device errors. Invalid logits are encoded in the tokens: see [`check_token`](crate::model::check_token).
    pub fn chosen(&self, queued: &Queued) -> Result<Vec<u32>> {
        let Some(steps) = &self.steps else { return Err(Error::internal("a batch without steps")) };
        steps.texts()?.made_after(&queued.event, queued.count, queued.steps)
    }

    /// Returns the number of launches of the captured step; `None` before it is captured.
    pub fn launches(&self) -> Option<usize> {
        self.steps.as_ref()?.launches()
    }
}
