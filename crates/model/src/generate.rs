//! Sampling of tokens: temperature, top-k, top-p, min-p.

use crate::model::{Choice, Continuation, Model, check_token};
use crate::ranks::RankedTokens;
use crate::tokenizer::Tokenizer;
use netcl_device::draw::mix;
use netcl_tensor::ops::choose::{Chooser, NO_NUMBER, Rules, SamplingRule};
use netcl_tensor::{Device, Error, Result};
use std::sync::Arc;

/// Sampling parameters. Filters apply in the order of the fields, the same as in `transformers`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Temperature: divides the logits; 0 is greedy decoding.
    pub temperature: f32,
    /// Top-k: keeps the `k` most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Top-p (nucleus sampling): keeps the most probable tokens whose probabilities sum up to this; 1 keeps all.
    pub top_p: f32,
    /// Min-p: drops tokens with less than this fraction of the highest probability; 0 keeps all.
    pub min_p: f32,
    /// Seed: the same seed, model and prompt give the same tokens.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 200, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

impl Sampling {
    /// # Errors
    /// `Format` with the option that is out of range.
    pub fn validate(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::format(what.to_string()));
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return bad("--temperature must be 0 or more");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return bad("--top-p must be above 0 and at most 1");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return bad("--min-p must be between 0 and 1");
        }
        Ok(())
    }

    /// Returns the sampling rules for the device; `None` if it does not support them.
    fn rules(&self, vocab: usize) -> Option<Rules> {
        let mut steps = vec![SamplingRule::Temperature(self.temperature)];
        if self.top_k > 0 {
            steps.push(SamplingRule::TopK(self.top_k));
        }
        steps.extend([SamplingRule::TopP(self.top_p, 1), SamplingRule::MinP(self.min_p, 1)]);
        Rules::new(&steps).ok().filter(|rules| rules.candidates(vocab).is_some())
    }

    /// Samples a token from `logits (V)` with the random number `uniform` in `[0, 1)`. A token with logit −∞ is never chosen.
    pub fn choose(&self, logits: &[f32], uniform: f64) -> usize {
        let mut ranks = RankedTokens::new(logits);
        let Some(best) = ranks.get(0) else { return 0 };
        if self.temperature == 0.0 {
            return best;
        }
        if self.top_k > 0 {
            ranks.keep(self.top_k);
        }
        let weight = |i: usize| (f64::from(logits[i] - logits[best]) / f64::from(self.temperature)).exp();
        let total: f64 = ranks.tokens().iter().map(|i| weight(*i as usize)).sum();
        // Number of tokens that remain and the sum of their weights: all, or those within top-p and min-p. Weights are relative to the most
        // probable token, which has weight 1.
        let (mut kept, mut sum) = (ranks.tokens().len(), total);
        if self.top_p < 1.0 || self.min_p > 0.0 {
            (kept, sum) = (0, 0.0);
            while let Some(w) = ranks.get(kept).map(weight) {
                if kept > 0 && (w < f64::from(self.min_p) || sum / total >= f64::from(self.top_p)) {
                    break;
                }
                (kept, sum) = (kept + 1, sum + w);
            }
        }
        let mut left = uniform * sum;
        let mut chosen = best;
        for i in 0..kept {
            let Some(next) = ranks.get(i) else { break };
            chosen = next;
            left -= weight(chosen);
            if left < 0.0 {
                break;
            }
        }
        chosen
    }
}

/// Generation: an iterator over new tokens.
pub struct Generation<'a> {
    text: Box<dyn Continuation + 'a>,
    vocab: usize,
    sampling: Sampling,
    ids: Vec<u32>,
    made: u64,
    /// Maximum number of new tokens.
    most: usize,
    /// Bias of each logit: −∞ for ids that may not be sampled; empty: none.
    bias: Vec<f32>,
    /// Sampling rules, if the device supports them, and their copy on the device, made with the first token.
    rules: Option<Rules>,
    chooser: Option<Arc<Chooser>>,
    device: Device,
}

impl<'a> Generation<'a> {
    /// Continues `prompt`.
    ///
    /// # Errors
    /// `Format` when the prompt is empty or holds an id outside the vocabulary.
    pub fn new(model: &'a dyn Model, prompt: &[u32], sampling: Sampling) -> Result<Self> {
        sampling.validate()?;
        if prompt.is_empty() {
            return Err(Error::format("the prompt is empty: expected at least one token to continue"));
        }
        let vocab = model.config().vocab;
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab) {
            return Err(Error::format(format!(
                "token {id} of the prompt is outside the vocabulary of {vocab}"
            )));
        }
        Ok(Self {
            text: model.continuation()?,
            vocab,
            sampling,
            ids: prompt.to_vec(),
            made: 0,
            most: usize::MAX,
            bias: Vec::new(),
            rules: sampling.rules(vocab),
            chooser: None,
            device: model.params().device().clone(),
        })
    }

    /// Samples only tokens that `tokenizer` has. A model's vocabulary is often padded to a multiple that suits its kernels; ids beyond the
    /// tokenizer's do not have text.
    ///
    /// # Errors
    /// `Format` if the tokenizer has none of the model's ids.
    pub fn within(mut self, tokenizer: &Tokenizer) -> Result<Self> {
        let vocab = self.vocab;
        let known = |id: &usize| u32::try_from(*id).is_ok_and(|id| tokenizer.knows(id));
        self.bias = (0..vocab).map(|id| if known(&id) { 0.0 } else { f32::NEG_INFINITY }).collect();
        if self.bias.iter().all(|bias| *bias != 0.0) {
            return Err(Error::format(format!(
                "the tokenizer has none of the model's {vocab} tokens: they do not belong together"
            )));
        }
        Ok(self)
    }

    /// Limits the number of new tokens, including those that the device generates ahead.
    #[must_use]
    pub fn up_to(mut self, tokens: usize) -> Self {
        self.most = tokens;
        self
    }

    fn step(&mut self) -> Result<u32> {
        let id = match self.ahead()? {
            Some(id) => id,
            None => self.by_host()?,
        };
        self.made += 1;
        self.ids.push(id);
        Ok(id)
    }

    /// Returns the next token, sampled on the device; `None` if it cannot.
    fn ahead(&mut self) -> Result<Option<u32>> {
        let Some(rules) = &self.rules else { return Ok(None) };
        let by = match &self.chooser {
            Some(by) => by,
            None => {
                let bias = Some(&self.bias[..]).filter(|bias| !bias.is_empty());
                let Some(by) = Chooser::new(&self.device, rules, 1, self.vocab, bias)? else {
                    return Ok(None);
                };
                self.chooser.insert(Arc::new(by))
            }
        };
        let (seed, made) = (self.sampling.seed, self.made);
        let most = self.most.saturating_sub(usize::try_from(made).unwrap_or(usize::MAX));
        let choice = Choice { by, word: &|n| word(seed, made + n as u64), most };
        self.text.token_after(&self.ids, &choice)
    }

    fn by_host(&mut self) -> Result<u32> {
        let mut logits = self.text.logits_after(&self.ids)?;
        for (logit, bias) in logits.iter_mut().zip(&self.bias).filter(|(_, bias)| **bias != 0.0) {
            *logit = *bias;
        }
        if let Some(rules) = &self.rules {
            return check_token(rules.choose(&logits, word(self.sampling.seed, self.made)));
        }
        // With an infinite logit the weights would be NaN.
        if logits.iter().any(|v| v.is_nan() || *v == f32::INFINITY) {
            return check_token(NO_NUMBER);
        }
        Ok(self.sampling.choose(&logits, uniform(self.sampling.seed, self.made)) as u32)
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<u32>;
    fn next(&mut self) -> Option<Self::Item> {
        (self.made < self.most as u64).then(|| self.step())
    }
}

/// Returns the `n`-th random number of a seed, in `[0, 1)`.
fn uniform(seed: u64, n: u64) -> f64 {
    (drawn(seed, n) >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns the upper 32 bits of the `n`-th random word of a seed.
fn word(seed: u64, n: u64) -> u32 {
    (drawn(seed, n) >> 32) as u32
}

/// Returns the `n`-th random word of a seed.
fn drawn(seed: u64, n: u64) -> u64 {
    mix(seed.wrapping_add(n.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(sampling: Sampling, logits: &[f32]) -> Vec<usize> {
        let mut out = vec![0; logits.len()];
        (0..4000).for_each(|n| out[sampling.choose(logits, uniform(7, n))] += 1);
        out
    }

    #[test]
    fn each_filter_keeps_what_it_says() {
        // Probabilities 0.5, 0.25, 0.125, 0.125.
        let logits: Vec<f32> = [4.0f32, 2.0, 1.0, 1.0].iter().map(|p| p.ln()).collect();
        let base = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };
        let all = counts(base, &logits);
        assert!((1900..2100).contains(&all[0]) && (400..600).contains(&all[3]), "{all:?}");
        assert_eq!(counts(Sampling { temperature: 0.0, ..base }, &logits), [4000, 0, 0, 0]);
        assert_eq!(&counts(Sampling { top_k: 2, ..base }, &logits)[2..], [0, 0]);
        assert_eq!(&counts(Sampling { top_p: 0.6, ..base }, &logits)[2..], [0, 0]);
        assert_eq!(&counts(Sampling { min_p: 0.3, ..base }, &logits)[2..], [0, 0]);
        let hot = counts(Sampling { temperature: 100.0, ..base }, &logits);
        assert!(hot.iter().all(|n| (850..1150).contains(n)), "{hot:?}");
    }

    /// Compares the token for each share with a full sort.
    #[test]
    fn every_share_comes_to_the_token_that_has_it() {
        let logits: Vec<f32> = (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32).collect();
        let mut all: Vec<usize> = (0..logits.len()).collect();
        all.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        for sampling in [
            Sampling { temperature: 300.0, top_k: 0, ..Sampling::default() },
            Sampling { temperature: 300.0, top_k: 700, top_p: 0.9, ..Sampling::default() },
            Sampling { temperature: 300.0, top_k: 0, min_p: 0.05, ..Sampling::default() },
        ] {
            let weight = |i: &usize| (f64::from(logits[*i] - logits[all[0]]) / 300.0).exp();
            let mut kept = all.clone();
            kept.truncate(if sampling.top_k > 0 { sampling.top_k } else { kept.len() });
            let total: f64 = kept.iter().map(weight).sum();
            let mut sum = 0.0;
            if sampling.top_p < 1.0 {
                let n = kept.iter().position(|i| {
                    sum += weight(i) / total;
                    sum >= f64::from(sampling.top_p)
                });
                kept.truncate(n.map_or(kept.len(), |n| n + 1));
            }
            kept.retain(|i| weight(i) >= f64::from(sampling.min_p));
            let total: f64 = kept.iter().map(weight).sum();
            for share in 0..200 {
                let (uniform, mut before) = (f64::from(share) / 200.0 + 1e-4, 0.0);
                let expected = kept.iter().find(|i| {
                    before += weight(i);
                    uniform * total < before
                });
                assert_eq!(Some(&sampling.choose(&logits, uniform)), expected, "{sampling:?} {uniform}");
            }
        }
    }

    #[test]
    fn a_token_that_cannot_be_is_never_drawn() {
        let none = f32::NEG_INFINITY;
        let logits = [none, 1.0, none, 0.5, none];
        for sampling in [
            Sampling { temperature: 0.0, ..Sampling::default() },
            Sampling { temperature: 1e6, top_k: 0, ..Sampling::default() },
            Sampling { top_k: 4, top_p: 0.999, ..Sampling::default() },
        ] {
            // Also at the very end of the range, where rounding may leave a remainder.
            for uniform in [0.0, 0.5, 0.999_999, 1.0 - f64::EPSILON / 2.0, 1.0] {
                let id = sampling.choose(&logits, uniform);
                assert!([1, 3].contains(&id), "{sampling:?} {uniform}: {id}");
            }
        }
    }

    #[test]
    fn options_out_of_range_are_named() {
        let bad = Sampling { top_p: 0.0, ..Sampling::default() };
        assert!(bad.validate().unwrap_err().message().contains("--top-p"));
        assert!(Sampling { temperature: f32::NAN, ..Sampling::default() }.validate().is_err());
    }
}
