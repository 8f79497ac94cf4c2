//! Tokens that are proposed for a text before the model computes them: several are checked in one step (speculative decoding, Leviathan et al. 2023).
//! A proposed token is kept if it is the one that the text's sampler takes at its place, so a text is the same with and without proposals, greedy or
//! drawn from a seed.

use netcl_model::decoder::Decoder;
use netcl_model::model::{Choice, Continuation, Model as _};
use netcl_tensor::ops::choose::{Chooser, Rules};
use netcl_tensor::ops::decode_attention::MOST_TOKENS;
use netcl_tensor::{Error, Result};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Where proposals come from.
#[derive(Clone, Copy, Default)]
pub enum Speculation<'a> {
    /// There are none.
    #[default]
    Off,
    /// From the text itself: what followed its last tokens where they stood before (prompt lookup, Saxena 2023).
    NGrams,
    /// From a smaller model of the same vocabulary, its likeliest tokens.
    Model(&'a Decoder),
}

/// Proposed tokens a step at most: with the token before them they are what a step takes.
pub const MOST_DRAFTED: usize = MOST_TOKENS - 1;

/// Tokens that have to be the same for what followed them to be proposed: so many, or else fewer.
const LONGEST: usize = 4;

/// Makes proposals for the texts of an engine.
#[derive(Default)]
pub(super) struct Drafts<'a> {
    source: Speculation<'a>,
    tokens: usize,
    greedy: Option<Arc<Chooser>>,
    texts: HashMap<u64, Box<dyn Continuation + 'a>>,
}

impl<'a> Drafts<'a> {
    /// Up to `tokens` for each text.
    pub fn new(source: Speculation<'a>, tokens: usize, vocab: usize) -> Result<Self> {
        let mut greedy = None;
        if let Speculation::Model(decoder) = source {
            let own = decoder.config().vocab;
            if own != vocab {
                return Err(Error::format(format!(
                    "the draft model has a vocabulary of {own} tokens, the model one of {vocab}: its tokens are others"
                )));
            }
            let device = decoder.last_device();
            greedy = Chooser::new(device, &Rules::greedy(), 1, own, None)?.map(Arc::new);
        }
        Ok(Self { source, tokens: tokens.min(MOST_DRAFTED), greedy, texts: HashMap::new() })
    }

    /// Tokens a text at most; 0 if there are no proposals.
    pub fn tokens(&self) -> usize {
        if matches!(self.source, Speculation::Off) { 0 } else { self.tokens }
    }

    /// Proposals for what comes behind `ids`, the tokens of text `id` so far.
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

    /// The text is done.
    pub fn forget(&mut self, id: u64) {
        self.texts.remove(&id);
    }
}

/// Up to `most` tokens that followed the last ones of `ids` where they stood last before; of longer sequences rather than of shorter ones.
fn looked_up(ids: &[u32], most: usize) -> Vec<u32> {
    for n in (1..=LONGEST.min(ids.len().saturating_sub(1))).rev() {
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
        // The last of two places; a longer sequence before a later one.
        assert_eq!(looked_up(&[5, 1, 5, 2, 5], 1), [2]);
        assert_eq!(looked_up(&[7, 5, 1, 6, 5, 2, 7, 5], 1), [1]);
        // A sequence may overlap with itself.
        assert_eq!(looked_up(&[8, 8, 8], 3), [8]);
        assert!(
            looked_up(&[1, 2, 3], 4).is_empty()
                && looked_up(&[1], 4).is_empty()
                && looked_up(&[], 4).is_empty()
        );
    }
}
