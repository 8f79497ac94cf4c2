//! Sampling rules and their evaluation on the host, in the same integer arithmetic as on the device.

use crate::{Error, Result};

/// A sampling step. Tokens are ranked by logit, in descending order; equal logits by token id, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SamplingRule {
    /// Keeps the k highest-ranked tokens.
    TopK(usize),
    /// Keeps the smallest set of highest-ranked tokens whose probability reaches p, and at least this number (Holtzman et al. 2020).
    TopP(f32, usize),
    /// Keeps tokens with at least this share of the highest probability, and at least this number.
    MinP(f32, usize),
    /// Divides the original logits by a temperature; 0 keeps only the highest-ranked token.
    Temperature(f32),
}

/// Sampling steps in the order of application; a token is then drawn from the remaining ones in proportion to their weights.
///
/// Weights exp((logit − highest logit) / temperature) are integers in multiples of 2⁻³¹, computed with integer operations: results are
/// bit-identical on all devices and on the host. Tokens with a relative weight below 2⁻³¹ are never drawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<[u32; 3]>);

/// Maximum number of steps.
pub const MAX_RULES: usize = 4;
/// Maximum number of candidate tokens that the device supports.
pub const MAX_CANDIDATES: usize = 1024;
/// Size of the encoded rules in u32.
pub(super) const RULE_WORDS: usize = 3 * MAX_RULES;

/// Result if the highest logit is NaN or +∞.
pub const NO_NUMBER: u32 = u32::MAX;
/// Result if all logits are −∞.
pub const NONE_LEFT: u32 = u32::MAX - 1;

// Codes of steps, as in choose.cl.
const TOP_K: u32 = 1;
const TOP_P: u32 = 2;
const MIN_P: u32 = 3;
const TEMPERATURE: u32 = 4;

/// Weight 1.
const ONE: u32 = 1 << 31;

impl Rules {
    /// Builds rules from these steps.
    ///
    /// # Errors
    /// `Unsupported` for more than [`MAX_RULES`] effective steps, `Format` for a number out of range.
    pub fn new(rules: &[SamplingRule]) -> Result<Self> {
        let bad = |what: &str| Err(Error::format(format!("choose: {what}")));
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut out = Vec::new();
        for rule in rules {
            out.push(match *rule {
                SamplingRule::TopK(0) => return bad("top-k keeps no token"),
                SamplingRule::TopP(p, _) if !(p > 0.0 && p.is_finite()) => {
                    return bad("top-p is not above 0");
                }
                SamplingRule::MinP(p, _) if !(0.0..=1.0).contains(&p) => {
                    return bad("min-p is not between 0 and 1");
                }
                SamplingRule::Temperature(t) if !(t >= 0.0 && t.is_finite()) => {
                    return bad("the temperature is below 0");
                }
                // Steps without effect are dropped.
                SamplingRule::TopP(1.0.., _) | SamplingRule::MinP(0.0, _) => continue,
                SamplingRule::TopK(k) => [TOP_K, narrow(k), 0],
                SamplingRule::TopP(p, least) => [TOP_P, share(p), narrow(least)],
                SamplingRule::MinP(p, least) => [MIN_P, least_weight(p), narrow(least)],
                SamplingRule::Temperature(0.0) => [TOP_K, 1, 0],
                SamplingRule::Temperature(t) => [TEMPERATURE, factor(t).to_bits(), 0],
            });
        }
        match out.len() > MAX_RULES {
            true => Err(Error::unsupported(format!(
                "choose: {} steps, at most {MAX_RULES} are supported",
                out.len()
            ))),
            false => Ok(Self(out)),
        }
    }

    /// Returns rules that always choose the most likely token.
    pub fn greedy() -> Self {
        Self(vec![[TOP_K, 1, 0]])
    }

    /// Number of highest-ranked tokens of `vocab` that determine the result; 1 for greedy sampling. `None` if it is not bounded by top-k and
    /// `vocab` is above [`MAX_CANDIDATES`].
    pub fn candidates(&self, vocab: usize) -> Option<usize> {
        // Every step keeps the first token, so a step that keeps only this token has the same effect at any position.
        if self.0.contains(&[TOP_K, 1, 0]) {
            return Some(1);
        }
        let mut most: Option<usize> = None;
        for [code, value, _] in &self.0 {
            match *code {
                TOP_K => most = Some(most.unwrap_or(usize::MAX).min(*value as usize)),
                // The share is relative to all remaining tokens.
                TOP_P if most.is_none() => return Some(vocab).filter(|n| *n <= MAX_CANDIDATES),
                _ => {}
            }
        }
        Some(most.unwrap_or(vocab).min(vocab)).filter(|n| *n <= MAX_CANDIDATES)
    }

    /// Encodes the rules for kernels.
    pub(super) fn words(&self) -> [u32; RULE_WORDS] {
        let mut out = [0; RULE_WORDS];
        out.iter_mut().zip(self.0.as_flattened()).for_each(|(to, word)| *to = *word);
        out
    }

    /// Decodes the rules.
    pub(super) fn of_words(words: &[u32]) -> Self {
        Self(words.as_chunks::<3>().0.iter().filter(|rule| rule[0] != 0).copied().collect())
    }

    /// Samples a token from `logits (V)` with a random word, with the same result as the device: [`NO_NUMBER`] if the highest logit is NaN or
    /// +∞, [`NONE_LEFT`] if all are −∞.
    pub fn choose(&self, logits: &[f32], word: u32) -> u32 {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let key = |i: &u32| (order_of(logits[*i as usize]), !*i);
        let most = self.candidates(logits.len()).unwrap_or(logits.len()).max(1);
        if most < order.len() {
            order.select_nth_unstable_by_key(most - 1, |i| std::cmp::Reverse(key(i)));
            order.truncate(most);
        }
        order.sort_unstable_by_key(|i| std::cmp::Reverse(key(i)));
        let Some(top) = order.first().map(|i| logits[*i as usize]) else { return NONE_LEFT };
        match top {
            top if top.is_nan() || top == f32::INFINITY => NO_NUMBER,
            f32::NEG_INFINITY => NONE_LEFT,
            top => order.get(self.drawn(&order, logits, top, word)).copied().unwrap_or(NONE_LEFT),
        }
    }

    /// Returns the rank of the drawn token.
    fn drawn(&self, order: &[u32], logits: &[f32], top: f32, word: u32) -> usize {
        let (mut kept, mut times) = (order.len(), std::f32::consts::LOG2_E);
        let weights = |kept: usize, factor: f32| -> Vec<u64> {
            order[..kept].iter().map(|i| u64::from(weight(logits[*i as usize], top, factor))).collect()
        };
        let reach = |weights: &[u64], enough: &dyn Fn(u64) -> bool| {
            let mut sum = 0;
            weights.iter().position(|w| {
                sum += w;
                enough(sum)
            })
        };
        for [code, value, least] in &self.0 {
            let least = (*least as usize).min(kept);
            match *code {
                TOP_K => kept = kept.min(*value as usize),
                TOP_P => {
                    let weights = weights(kept, times);
                    let target = (weights.iter().sum::<u64>() * u64::from(*value)).div_ceil(1 << 20);
                    let place = reach(&weights, &|sum| sum >= target).unwrap_or(kept);
                    kept = (place + 1).min(kept).max(least);
                }
                MIN_P => {
                    let place = weights(kept, times).iter().position(|w| *w < u64::from(*value));
                    kept = place.unwrap_or(kept).max(1).max(least);
                }
                _ => times = f32::from_bits(*value),
            }
        }
        let weights = weights(kept, times);
        let all: u64 = weights.iter().sum();
        let target = ((u128::from(all) * u128::from(word)) >> 32) as u64;
        reach(&weights, &|sum| sum > target).unwrap_or(kept)
    }
}

/// Maps floats to integers of the same order; NaN is the largest, −0 equals 0.
fn order_of(v: f32) -> u32 {
    let u = if v == 0.0 { 0 } else { v.to_bits() };
    match (v.is_nan(), u >> 31) {
        (true, _) => u32::MAX,
        (_, 0) => u | ONE,
        _ => !u,
    }
}

/// Converts a share to multiples of 2⁻²⁰.
fn share(p: f32) -> u32 {
    ((f64::from(p) * f64::from(1 << 20)).round() as u32).clamp(1, 1 << 20)
}

/// Converts a share to a weight.
fn least_weight(p: f32) -> u32 {
    (f64::from(p) * f64::from(ONE)).round() as u32
}

/// Returns the factor of the logits for exp2.
fn factor(temperature: f32) -> f32 {
    (std::f64::consts::LOG2_E / f64::from(temperature)).min(1e30) as f32
}

/// Returns the upper half of a product.
fn mul_hi(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> 32) as u32
}

/// Returns the weight of a token relative to the first one; `weight` of choose.cl.
fn weight(v: f32, top: f32, factor: f32) -> u32 {
    let below = ((v - top) * factor).max(-40.0) * 1_048_576.0;
    let q = (below.round_ties_even() as i32).unsigned_abs();
    if q >> 20 > 31 {
        return 0;
    }
    let x = mul_hi((q & 0xf_ffff) << 12, 2_977_044_472);
    let tail = (2..=9).rev().fold(ONE, |t, k| ONE - mul_hi(mul_hi(x, t), u32::MAX / k));
    (ONE - mul_hi(x, tail)) >> (q >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_powers() {
        for i in 0..40_000 {
            let v = -(i as f32) / 2000.0;
            let expected = f64::from(v).exp();
            let found = f64::from(weight(v + 3.0, 3.0, std::f32::consts::LOG2_E)) / f64::from(ONE);
            assert!((found - expected).abs() <= 2e-6 * expected + 1e-9, "{v}: {found}, expected {expected}");
        }
        assert_eq!(weight(7.5, 7.5, 1e30), ONE);
        assert_eq!([f32::NEG_INFINITY, -3e38, -30.0].map(|v| weight(v, 0.0, 1.5)), [0; 3]);
    }

    /// Compares with sums in f64, except for draws that fall on a border.
    #[test]
    fn each_step_keeps_what_it_says() {
        let logits: Vec<f32> =
            (0..500u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 / 300.0).collect();
        let mut ranked: Vec<usize> = (0..logits.len()).collect();
        ranked.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        let cases: [(&[SamplingRule], f64, usize, f64, f64); 6] = [
            (&[], 1.0, 500, 1.0, 0.0),
            (&[SamplingRule::TopK(40)], 1.0, 40, 1.0, 0.0),
            (&[SamplingRule::Temperature(0.7), SamplingRule::TopP(0.9, 0)], 0.7, 500, 0.9, 0.0),
            (&[SamplingRule::Temperature(2.0), SamplingRule::MinP(0.1, 0)], 2.0, 500, 1.0, 0.1),
            (
                &[
                    SamplingRule::Temperature(1.5),
                    SamplingRule::TopK(100),
                    SamplingRule::TopP(0.95, 0),
                    SamplingRule::MinP(0.02, 0),
                ],
                1.5,
                100,
                0.95,
                0.02,
            ),
            (&[SamplingRule::Temperature(1e-30)], 1e-30, 500, 1.0, 0.0),
        ];
        for (rules, t, k, p, least) in cases {
            let weight = |i: &usize| ((f64::from(logits[*i]) - f64::from(logits[ranked[0]])) / t).exp();
            let mut kept = ranked[..k].to_vec();
            let (all, mut sum) = (kept.iter().map(weight).sum::<f64>(), 0.0);
            let n = kept.iter().position(|i| {
                sum += weight(i);
                sum >= p * all
            });
            kept.truncate(n.map_or(k, |n| n + 1));
            kept.retain(|i| weight(i) >= least);
            let total: f64 = kept.iter().map(weight).sum();
            let rules = Rules::new(rules).unwrap();
            for n in 0..999u32 {
                let word = n.wrapping_mul(4_294_967) + 1_234_567;
                let at = f64::from(word) / 2f64.powi(32) * total;
                let mut before = 0.0;
                let expected = kept.iter().find(|i| {
                    before += weight(i);
                    at < before
                });
                if (before - at).abs() < 1e-5 * total
                    || (before - weight(expected.unwrap()) - at).abs() < 1e-5 * total
                {
                    continue;
                }
                assert_eq!(rules.choose(&logits, word) as usize, *expected.unwrap(), "{rules:?} {word}");
            }
        }
    }

    #[test]
    fn rules_say_how_many_tokens_they_look_at() {
        let of = |rules: &[SamplingRule], vocab| Rules::new(rules).unwrap().candidates(vocab);
        assert_eq!(of(&[SamplingRule::Temperature(0.0)], 1 << 17), Some(1));
        assert_eq!(of(&[SamplingRule::TopK(40), SamplingRule::TopP(0.9, 1)], 1 << 17), Some(40));
        assert_eq!(of(&[SamplingRule::MinP(0.1, 1), SamplingRule::TopK(40)], 1 << 17), Some(40));
        assert_eq!(of(&[SamplingRule::TopP(0.9, 1), SamplingRule::TopK(40)], 1 << 17), None);
        assert_eq!(of(&[SamplingRule::TopP(0.9, 1), SamplingRule::TopK(1)], 1 << 17), Some(1));
        assert_eq!(of(&[SamplingRule::TopP(0.9, 1), SamplingRule::TopK(40)], 65), Some(65));
        assert_eq!((of(&[], 65), of(&[], 2000)), (Some(65), None));
        assert_eq!(of(&[SamplingRule::TopK(2000)], 1 << 17), None);
        for wrong in [
            SamplingRule::TopK(0),
            SamplingRule::TopP(0.0, 0),
            SamplingRule::MinP(2.0, 0),
            SamplingRule::Temperature(f32::NAN),
        ] {
            assert!(Rules::new(&[wrong]).is_err(), "{wrong:?}");
        }
        assert!(Rules::new(&[SamplingRule::TopK(3); 5]).is_err());
    }

    #[test]
    fn what_is_no_number_is_said() {
        let rules = Rules::new(&[SamplingRule::TopK(3)]).unwrap();
        assert_eq!(rules.choose(&[0.0, f32::NAN, 1.0], 0), NO_NUMBER);
        assert_eq!(rules.choose(&[0.0, f32::INFINITY, 1.0], 0), NO_NUMBER);
        assert_eq!(rules.choose(&[f32::NEG_INFINITY; 3], 0), NONE_LEFT);
        assert_eq!(rules.choose(&[f32::NEG_INFINITY, -0.0, 0.0], 0), 1);
        assert_eq!(Rules::greedy().choose(&[1.0, 3.0, 3.0], u32::MAX), 1);
    }
}
