//! Candidate tokens, and the filters that reduce them.

use super::options::Sampling;
use netcl_model::ranks::RankedTokens;

/// Tokens ordered by logits.
#[derive(Clone, Debug)]
pub(super) struct Candidates(RankedTokens<Vec<f32>>);

impl Candidates {
    /// Returns all tokens of `logits (V)` except those with −∞.
    pub fn new(logits: Vec<f32>) -> Self {
        Self(RankedTokens::new(logits))
    }

    pub fn len(&self) -> usize {
        self.0.tokens().len()
    }

    /// Returns the likeliest token.
    pub fn best(&mut self) -> Option<usize> {
        self.0.get(0)
    }

    /// Returns the weight of a token relative to the most likely one, whose weight is 1.
    fn weight(&mut self, token: usize) -> f64 {
        let best = self.best().unwrap_or(token);
        let logits = self.0.logits();
        (f64::from(logits[token]) - f64::from(logits[best])).exp()
    }

    /// Returns the sum of all weights.
    fn total(&mut self) -> f64 {
        let Some(best) = self.best() else { return 0.0 };
        let (logits, best) = (self.0.logits(), self.0.logits()[best]);
        self.0.tokens().iter().map(|i| (f64::from(logits[*i as usize]) - f64::from(best)).exp()).sum()
    }

    /// Returns the token of rank `i` with its probability; `total` is the sum of all weights.
    fn ranked(&mut self, i: usize, total: f64) -> Option<(usize, f64)> {
        let token = self.0.get(i)?;
        Some((token, self.weight(token) / total))
    }

    /// Changes logits.
    pub fn edit(&mut self, change: impl FnOnce(&mut [f32])) {
        let mut logits = std::mem::replace(&mut self.0, RankedTokens::new(Vec::new())).into_logits();
        change(&mut logits);
        self.0 = RankedTokens::new(logits);
    }

    /// In nats.
    fn entropy(&mut self) -> f64 {
        let total = self.total();
        let Some(best) = self.best() else { return 0.0 };
        let best = f64::from(self.0.logits()[best]);
        let surprise = |i: &u32| total.ln() - (f64::from(self.0.logits()[*i as usize]) - best);
        self.0.tokens().iter().map(|i| (-surprise(i)).exp() * surprise(i)).sum()
    }

    /// Keeps the `k` most likely tokens; 0 keeps all.
    pub fn top_k(&mut self, k: usize, min_keep: usize) {
        if k > 0 {
            self.0.keep(k.max(min_keep));
        }
    }

    /// Keeps the fewest most likely tokens that reach the probability `p`.
    pub fn top_p(&mut self, p: f32, min_keep: usize) {
        if p >= 1.0 {
            return;
        }
        let (total, mut sum, mut kept) = (self.total(), 0.0, 0);
        while let Some((_, share)) = self.ranked(kept, total) {
            (sum, kept) = (sum + share, kept + 1);
            if sum >= f64::from(p) && kept >= min_keep {
                break;
            }
        }
        self.0.keep(kept);
    }

    /// Keeps tokens with at least the fraction `p` of the most likely one's probability.
    pub fn min_p(&mut self, p: f32, min_keep: usize) {
        if p <= 0.0 {
            return;
        }
        let mut kept = 1;
        while let Some(token) = self.0.get(kept)
            && (kept < min_keep || self.weight(token) >= f64::from(p))
        {
            kept += 1;
        }
        self.0.keep(kept);
    }

    /// Keeps tokens whose surprise is nearest to the entropy, until they exceed the probability `p`.
    pub fn typical(&mut self, p: f32, min_keep: usize) {
        if p >= 1.0 || self.len() < 2 {
            return;
        }
        let (total, entropy) = (self.total(), self.entropy());
        let mut all: Vec<(f64, usize, f64)> = Vec::with_capacity(self.len());
        for rank in 0..self.len() {
            if let Some((token, share)) = self.ranked(rank, total) {
                all.push(((-share.ln() - entropy).abs(), token, share));
            }
        }
        // For equal ones the more likely first: the sort is stable.
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut sum = 0.0;
        let last = all.iter().enumerate().position(|(i, (.., share))| {
            sum += share;
            sum > f64::from(p) && i + 1 >= min_keep
        });
        let mut kept = vec![false; self.0.logits().len()];
        all.iter().take(last.map_or(all.len(), |i| i + 1)).for_each(|(_, token, _)| kept[*token] = true);
        self.0.retain(|token| kept[token]);
    }

    /// Keeps tokens within `n` standard deviations of the best logit.
    pub fn top_n_sigma(&mut self, n: f32) {
        let Some(best) = self.best().filter(|_| n > 0.0) else { return };
        let (logits, count) = (self.0.logits(), self.len() as f64);
        let values = || self.0.tokens().iter().map(|i| f64::from(logits[*i as usize]));
        let mean = values().sum::<f64>() / count;
        let sigma = (values().map(|v| (v - mean).powi(2)).sum::<f64>() / count).sqrt();
        let least = f64::from(logits[best]) - f64::from(n) * sigma;
        let kept: Vec<bool> = logits.iter().map(|v| f64::from(*v) >= least).collect();
        self.0.retain(|token| kept[token]);
    }

    /// If `chance` is below the probability, removes the most likely tokens except the last one that reaches the threshold.
    pub fn xtc(&mut self, sampling: &Sampling, chance: f64) {
        let (probability, threshold) =
            (f64::from(sampling.xtc_probability), f64::from(sampling.xtc_threshold));
        if probability <= 0.0 || threshold > 0.5 || chance >= probability {
            return;
        }
        let total = self.total();
        let mut reach = 0;
        while self.ranked(reach, total).is_some_and(|(_, share)| share >= threshold) {
            reach += 1;
        }
        let dropped = reach.saturating_sub(1);
        if self.len() - dropped >= sampling.min_keep {
            self.0.drop_first(dropped);
        }
    }

    /// Divides the logits; 0 keeps only the most likely token.
    pub fn temperature(&mut self, sampling: &Sampling) {
        let mut temperature = f64::from(sampling.temperature);
        let range = f64::from(sampling.dynatemp_range);
        if range > 0.0 && self.len() > 1 {
            // The entropy relative to the maximum, which is that of equal tokens.
            let share = (self.entropy() / (self.len() as f64).ln()).clamp(0.0, 1.0);
            let (low, high) = ((temperature - range).max(0.0), temperature + range);
            temperature = low + (high - low) * share.powf(f64::from(sampling.dynatemp_exponent));
        }
        if temperature <= 0.0 {
            self.0.keep(1);
        } else if temperature != 1.0 {
            let Some(best) = self.best() else { return };
            self.edit(|logits| {
                // Relative to the best one, so that a small temperature causes no infinities.
                let top = f64::from(logits[best]);
                logits.iter_mut().for_each(|logit| *logit = ((f64::from(*logit) - top) / temperature) as f32);
            });
        }
    }

    /// Keeps as many of the most likely tokens as Mirostat's first algorithm expects to have the surprise `mu`.
    pub fn mirostat_one(&mut self, mu: f64, vocab: usize) {
        const LOOKED_AT: usize = 100;
        let total = self.total();
        let (mut both, mut square) = (0.0, 0.0);
        for i in 0..LOOKED_AT - 1 {
            let (Some((_, this)), Some((_, next))) = (self.ranked(i, total), self.ranked(i + 1, total))
            else {
                break;
            };
            let t = ((i + 2) as f64 / (i + 1) as f64).ln();
            both += t * (this / next).ln();
            square += t * t;
        }
        let exponent = both / square;
        let above = exponent - 1.0;
        let k = (above * 2f64.powf(mu) / (1.0 - (vocab as f64).powf(-above))).powf(1.0 / exponent);
        // The exponent is undefined for a single token and for equal ones.
        let k = if k.is_finite() { (k as usize).max(1) } else { self.len().max(1) };
        self.0.keep(k);
    }

    /// Keeps tokens with at most the surprise `mu` in bits, and always the most likely one.
    pub fn mirostat_two(&mut self, mu: f64) {
        let total = self.total();
        let mut kept = 0;
        while self.ranked(kept, total).is_some_and(|(_, share)| -share.log2() <= mu) {
            kept += 1;
        }
        self.0.keep(kept.max(1));
    }

    /// Returns the token at position `uniform`, in `[0, 1)`, of the cumulative probabilities, with its probability.
    pub fn draw(&mut self, uniform: f64) -> Option<(usize, f64)> {
        let total = self.total();
        let mut left = uniform * total;
        let mut chosen = None;
        for rank in 0..self.len() {
            let token = self.0.get(rank)?;
            let weight = self.weight(token);
            // A weight that underflowed cannot be drawn, even if rounding leaves a remainder at the end.
            if weight > 0.0 {
                chosen = Some((token, weight / total));
            }
            left -= weight;
            if left < 0.0 {
                break;
            }
        }
        chosen
    }

    #[cfg(test)]
    pub fn left(&self) -> Vec<u32> {
        let mut tokens = self.0.tokens().to_vec();
        tokens.sort_unstable();
        tokens
    }

    #[cfg(test)]
    pub fn logits(&self) -> &[f32] {
        self.0.logits()
    }
}
