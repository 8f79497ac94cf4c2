//! Penalties for tokens in the history.

use super::options::{Dry, Sampling};
use crate::tokenizer::{Specials, Tokenizer};
use netcl_tensor::Result;
use std::collections::{HashMap, HashSet};

/// Returns the last `n` tokens of `history`; all for −1.
pub(super) fn last(history: &[u32], n: i32) -> &[u32] {
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    &history[history.len().saturating_sub(n)..]
}

/// Counts the occurrences of each token.
fn counts(ids: &[u32]) -> HashMap<u32, u32> {
    let mut counts: HashMap<u32, u32> = HashMap::new();
    ids.iter().for_each(|id| *counts.entry(*id).or_default() += 1);
    counts
}

/// Lowers the logits of recent tokens, of which the first `prompt` were not generated.
pub(super) fn penalties(logits: &mut [f32], history: &[u32], prompt: usize, sampling: &Sampling) {
    let recent = counts(last(history, sampling.repeat_last_n));
    for id in recent.keys() {
        let Some(logit) = logits.get_mut(*id as usize) else { continue };
        if *logit > 0.0 {
            *logit /= sampling.repeat_penalty;
        } else {
            *logit *= sampling.repeat_penalty;
        }
    }
    let counted = match sampling.answer_alone {
        true => counts(history.get(prompt..).unwrap_or_default()),
        false => recent,
    };
    for (id, count) in counted {
        let Some(logit) = logits.get_mut(id as usize) else { continue };
        *logit -= count as f32 * sampling.frequency_penalty + sampling.presence_penalty;
    }
}

/// Sequences that end a repetition: the first token, and the required following tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct Breakers {
    alone: HashSet<u32>,
    longer: HashMap<u32, Vec<Vec<u32>>>,
}

/// Longer breakers are truncated, so that the search time only grows with the history.
const MAX_BREAKER_TOKENS: usize = 20;

impl Breakers {
    /// Returns every token that contains a breaker, and those that end with its start, together with the tokens of the rest.
    pub fn new(texts: &[String], tokenizer: &Tokenizer) -> Result<Self> {
        let mut breakers = Self::default();
        for text in texts.iter().filter(|text| !text.is_empty()) {
            for id in 0..tokenizer.vocab_size() as u32 {
                let piece = tokenizer.piece(id)?;
                if piece.windows(text.len()).any(|part| part == text.as_bytes()) {
                    breakers.alone.insert(id);
                    continue;
                }
                for (cut, _) in
                    text.char_indices().skip(1).filter(|(cut, _)| piece.ends_with(&text.as_bytes()[..*cut]))
                {
                    let mut rest = tokenizer.encode(&text[cut..], Specials::Plain)?;
                    rest.truncate(MAX_BREAKER_TOKENS);
                    let known = breakers.longer.entry(id).or_default();
                    if !known.contains(&rest) {
                        known.push(rest);
                    }
                }
            }
        }
        Ok(breakers)
    }

    #[cfg(test)]
    pub fn of(sequences: &[&[u32]]) -> Self {
        let mut breakers = Self::default();
        for sequence in sequences {
            match sequence {
                [] => {}
                [id] => drop(breakers.alone.insert(*id)),
                [id, rest @ ..] => breakers.longer.entry(*id).or_default().push(rest.to_vec()),
            }
        }
        breakers
    }

    /// Returns the number of tokens after the last breaker of `history`.
    fn free(&self, history: &[u32]) -> usize {
        for (at, id) in history.iter().enumerate().rev() {
            let behind = &history[at + 1..];
            let longer = self.longer.get(id).into_iter().flatten().filter(|rest| behind.starts_with(rest));
            let alone = self.alone.contains(id).then_some(0);
            if let Some(length) = longer.map(Vec::len).chain(alone).max() {
                return behind.len() - length;
            }
        }
        history.len()
    }
}

/// Lowers the logits of tokens that would continue a repetition: if the last tokens also occur earlier in the history, the token that followed them
/// there. The penalty grows with the length of the longest repetition.
pub(super) fn dry(logits: &mut [f32], history: &[u32], dry: &Dry, breakers: &Breakers) {
    let history = last(history, dry.last_n);
    let free = breakers.free(history);
    if dry.multiplier == 0.0 || free < dry.allowed_length {
        return;
    }
    let back: Vec<u32> = history.iter().rev().copied().collect();
    let mut longest: HashMap<u32, usize> = HashMap::new();
    // The first token does not have a predecessor.
    for (k, length) in common(&back).into_iter().chain([0]).enumerate().skip(1) {
        let length = length.min(free);
        if length >= dry.allowed_length {
            let best = longest.entry(back[k - 1]).or_default();
            *best = length.max(*best);
        }
    }
    for (id, length) in longest {
        if breakers.alone.contains(&id) {
            continue;
        }
        if let Some(logit) = logits.get_mut(id as usize) {
            let penalty =
                f64::from(dry.multiplier) * f64::from(dry.base).powf((length - dry.allowed_length) as f64);
            // Far below all others and still finite.
            *logit = (f64::from(*logit) - penalty).max(f64::from(f32::MIN)) as f32;
        }
    }
}

/// Returns the length of the longest common prefix of each suffix and the whole (the Z algorithm).
fn common(items: &[u32]) -> Vec<usize> {
    let mut lengths = vec![0; items.len()];
    // The rightmost known range that equals a prefix.
    let (mut from, mut to) = (0, 0);
    for k in 1..items.len() {
        let mut n = if k < to { lengths[k - from].min(to - k) } else { 0 };
        while k + n < items.len() && items[n] == items[k + n] {
            n += 1;
        }
        lengths[k] = n;
        if k + n > to {
            (from, to) = (k, k + n);
        }
    }
    lengths
}
