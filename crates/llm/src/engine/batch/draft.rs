//! Speculative decoding (Leviathan et al. 2023): tokens are proposed for a sequence before the model computes them, and one step checks several. A
//! proposed token is kept if the sampler chooses the same one. So a sequence is the same with and without proposals, with greedy decoding or with a
//! seed.

use netcl_model::decoder::Decoder;
use netcl_model::model::{Choice, Continuation, Model as _};
use netcl_tensor::ops::choose::{Chooser, Rules};
use netcl_tensor::ops::decode_attention::MAX_TOKENS;
use netcl_tensor::{Error, Result};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Source of proposals.
#[derive(Clone, Copy, Default)]
pub enum Speculation<'a> {
    /// No proposals.
    #[default]
    Off,
    /// The sequence itself: the tokens that followed an earlier occurrence of its last tokens (prompt lookup, Saxena 2023).
    NGrams,
    /// The most likely tokens of a smaller model with the same vocabulary.
    Model(&'a Decoder),
}

/// Maximum number of proposed tokens per step: together with the preceding token they fill a step.
pub const MAX_DRAFTED: usize = MAX_TOKENS - 1;

/// Maximum number of tokens that must match an earlier occurrence; shorter matches are used if there is no longer one.
const MAX_MATCH_TOKENS: usize = 4;

/// Proposes tokens for the sequences of an engine.
#[derive(Default)]
pub(super) struct Drafts<'a> {
    source: Speculation<'a>,
    tokens: usize,
    greedy: Option<Arc<Chooser>>,
    texts: HashMap<u64, Box<dyn Continuation + 'a>>,
}

impl<'a> Drafts<'a> {
    /// Proposes up to `tokens` tokens per sequence.
    pub fn new(source: Speculation<'a>, tokens: usize, vocab: usize) -> Result<Self> {
        let mut greedy = None;
        if let Speculation::Model(decoder) = source {
            let own = decoder.config().vocab;
            if own != vocab {
                return Err(Error::format(format!(
                    "the draft model has a vocabulary of {own} tokens, the model one of {vocab}: their tokens differ"
                )));
            }
            let device = decoder.last_device();
            greedy = Chooser::new(device, &Rules::greedy(), 1, own, None)?.map(Arc::new);
        }
        Ok(Self { source, tokens: tokens.min(MAX_DRAFTED), greedy, texts: HashMap::new() })
    }

    /// Returns the maximum number of tokens per sequence; 0 without proposals.
    pub fn tokens(&self) -> usize {
        if matches!(self.source, Speculation::Off) { 0 } else { self.tokens }
    }

    /// Returns proposals for the tokens after `ids`, the tokens of sequence `id` so far.
    pub fn propose(&mut self, id: u64, ids: &[u32]) -> Result<Vec<u32>> {
        let (most, mut all) = (self.tokens(), ids.to_vec());
        match (self.source, &self.greedy) {
            (Speculation::NGrams, _) => return Ok(looked_up(ids, most)),
            (Speculation::Model(decoder), Some(greedy)) => {
                let text = match self.texts.entry(id) {
                    Entry::Occupied(entry) => entry.into_mut(),
                    Entry::Vacant(entry) => entry.insert(decoder.continuation()?),
                };
                while all.len() < ids.len() + most {
                    let choice = Choice { by: greedy, word: &|_| 0, most: ids.len() + most - all.len() };
                    match text.token_after(&all, &choice)? {
                        Some(token) => all.push(token),
                        None => break,
                    }
                }
            }
            _ => {}
        }
        Ok(all.split_off(ids.len()))
    }

    /// Called when a sequence ends.
    pub fn forget(&mut self, id: u64) {
        self.texts.remove(&id);
    }
}

/// Returns up to `most` tokens that followed the last earlier occurrence of the last tokens of `ids`. Longer matches take precedence.
fn looked_up(ids: &[u32], most: usize) -> Vec<u32> {
    for n in (1..=MAX_MATCH_TOKENS.min(ids.len().saturating_sub(1))).rev() {
        let (before, last) = (&ids[..ids.len() - 1], &ids[ids.len() - n..]);
        if let Some(at) = before.windows(n).rposition(|window| window == last) {
            return ids[at + n..].iter().take(most).copied().collect();
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_the_longest_same_tokens_is_looked_up() {
        assert_eq!(looked_up(&[1, 2, 3, 4, 9, 2, 3], 2), [4, 9]);
        assert_eq!(looked_up(&[1, 2, 3, 4, 9, 2, 3], 7), [4, 9, 2, 3]);
        // The last of two occurrences; a longer match before a later one.
        assert_eq!(looked_up(&[5, 1, 5, 2, 5], 1), [2]);
        assert_eq!(looked_up(&[7, 5, 1, 6, 5, 2, 7, 5], 1), [1]);
        // A match may overlap with itself.
        assert_eq!(looked_up(&[8, 8, 8], 3), [8]);
        assert!(
            looked_up(&[1, 2, 3], 4).is_empty()
                && looked_up(&[1], 4).is_empty()
                && looked_up(&[], 4).is_empty()
        );
    }
}
