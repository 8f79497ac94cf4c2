//! States of texts of the same length, with a capacity in tokens.

use super::rotary::lengths;
use super::state::{CacheType, Reach, Room, States};
use super::{Decoder, DecoderConfig};
use netcl_tensor::{Error, Result, Tensor, no_grad};

/// States of texts that are generated.
pub struct Cache {
    pub(super) states: States,
    batch: usize,
    room: usize,
    length: usize,
    reach: Reach,
    /// The shortest length of a text with the rotary angles of the cached tokens.
    class: usize,
}

impl Cache {
    /// Called before tokens of texts of `length` tokens are added: their rotary angles must be those of the cached ones.
    pub(super) fn turn(&mut self, config: &DecoderConfig, length: usize) -> Result<()> {
        let class = *lengths(&config.rotary, length).start();
        if self.length > 0 && class != self.class {
            return Err(Error::shape(format!(
                "decoder: a text of {length} tokens has different rotary angles than the {} in the cache (LongRoPE); read it from its beginning",
                self.length
            )));
        }
        self.class = class;
        Ok(())
    }
    /// Returns the number of texts.
    pub fn batch(&self) -> usize {
        self.batch
    }
    /// Returns the number of cached tokens.
    pub fn length(&self) -> usize {
        self.length
    }
    /// Returns the capacity in tokens.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Tokens were added.
    pub(super) fn extend(&mut self, tokens: usize) {
        self.length += tokens;
        self.reach.wrote(self.length);
    }

    /// Truncates the cache to the first `length` tokens, or to fewer if a state does not support that length. Returns the new length.
    pub fn truncate(&mut self, length: usize) -> usize {
        if length < self.length {
            self.length = self.reach.back(length);
        }
        self.length
    }
}

impl Decoder {
    fn check_room(&self, tokens: usize) -> Result<()> {
        if tokens <= self.config.context {
            return Ok(());
        }
        Err(Error::shape(format!(
            "decoder: a cache of {tokens} tokens exceeds the context of {}",
            self.config.context
        )))
    }

    /// Returns an empty cache for `batch` texts of up to `tokens` tokens.
    ///
    /// # Errors
    /// `Shape` if `tokens` is above the context, `Memory` if a device has too little memory.
    pub fn cache(&self, batch: usize, tokens: usize) -> Result<Cache> {
        self.check_room(tokens)?;
        let states = States::new(
            self.states(),
            Room::Texts { count: batch, tokens },
            (CacheType::Weights, self.params.dtype()),
        )?;
        let reach = states.reach();
        Ok(Cache { states, batch, room: tokens, length: 0, reach, class: 0 })
    }

    /// Gives `cache` capacity for `tokens` tokens.
    pub(super) fn enlarge(&self, cache: &mut Cache, tokens: usize) -> Result<()> {
        self.check_room(tokens)?;
        cache.states.enlarge(cache.length, tokens)?;
        cache.room = tokens;
        Ok(())
    }

    /// Takes ids `(B, T)` of the next tokens → logits `(B, V)` after the last of them. States of earlier tokens are read from `cache`, and the new
    /// ones are added to it.
    ///
    /// # Errors
    /// `Shape` if the cache is too small or has another number of texts. Also if the text exceeds LongRoPE's original context, because all keys
    /// then have other angles. The cache is unchanged then.
    pub fn next_logits(&self, ids: &Tensor, cache: &mut Cache) -> Result<Tensor> {
        let [_, t] = ids.dims2().map_err(|e| e.context("decoder: ids"))?;
        let x = self.fill(ids, cache, cache.length.saturating_add(t))?;
        no_grad(|| {
            let [b, _, c] = x.dims3()?;
            let (stage, last) = (self.last()?, x.slice(1, t - 1..t)?.reshape([b, c])?);
            stage.logits(&stage.normed(&last)?)
        })
    }

    /// Does the same without logits → input of the last norm (B, T, C). Rotary angles are those of texts of `length` tokens, of which these are a
    /// part.
    ///
    /// # Errors
    /// Same as [`next_logits`](Self::next_logits).
    pub(super) fn fill(&self, ids: &Tensor, cache: &mut Cache, length: usize) -> Result<Tensor> {
        let [b, t] = ids.dims2().map_err(|e| e.context("decoder: ids"))?;
        let (batch, room) = (cache.batch, cache.room);
        if t == 0 || batch != b || cache.length.saturating_add(t) > room {
            return Err(Error::shape(format!(
                "decoder: ids {} after {} tokens in a cache for {batch} texts of {room} tokens",
                ids.shape(),
                cache.length
            )));
        }
        let end = cache.length + t;
        let length = length.clamp(end, self.config.context.max(end));
        cache.turn(&self.config, length)?;
        let x = no_grad(|| self.passed(ids, (cache.length, length), cache.states.layers(), None))?;
        cache.extend(t);
        Ok(x)
    }
}
