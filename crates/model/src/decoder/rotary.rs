//! Rotary position embeddings: frequencies, and their scaling for longer contexts.

use netcl_tensor::{DType, Device, Result, Tensor};
use std::f64::consts::PI;
use std::ops::RangeInclusive;

/// One set of rotary frequencies.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// Number of rotated elements of a head (R, even); element i is paired with i + R/2.
    pub dims: usize,
    /// Pair i is rotated by `position * base^(-2i/R)` before scaling.
    pub base: f64,
    /// Scaling of the frequencies.
    pub scaling: Scaling,
}

/// Scaling of frequencies for contexts longer than in the original training.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// No scaling.
    None,
    /// Every frequency divided by `factor` (position interpolation, Chen et al. 2023).
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Llama 3.1: wavelengths above `original / low` are multiplied by `factor`, those below `original / high` are kept, with interpolation in
    /// between.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// `low_freq_factor`.
        low: f64,
        /// `high_freq_factor`.
        high: f64,
        /// Context length of the original training.
        original: f64,
    },
    /// YaRN (Peng et al. 2023): interpolation by parts.
    Yarn {
        /// Divisor of low frequencies.
        factor: f64,
        /// Rotations over the original context above which a frequency is kept (`beta_fast`).
        fast: f64,
        /// Rotations below which a frequency is divided (`beta_slow`).
        slow: f64,
        /// Context length of the original training.
        original: f64,
        /// Whether the bounds are rounded to whole pairs.
        truncate: bool,
        /// Factor of sines and cosines.
        magnitude: f64,
    },
    /// LongRoPE (Ding et al. 2024): a divisor for each pair, with one list for sequences up to `original` tokens and one for longer ones.
    LongRope {
        /// Divisors for sequences up to `original` tokens.
        short: Vec<f64>,
        /// Divisors for longer sequences.
        long: Vec<f64>,
        /// Context length of the original training.
        original: usize,
        /// Factor of sines and cosines.
        magnitude: f64,
    },
}

impl Scaling {
    /// YaRN's factor of sines and cosines for a scaling by `factor`, with weight `mscale`.
    pub fn yarn_magnitude(factor: f64, mscale: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
    }
    /// LongRoPE's factor of sines and cosines for a context `factor` times the original one.
    pub fn longrope_magnitude(factor: f64, original: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() }
    }
}

impl Rotary {
    /// Returns the angle per position of each pair for a sequence of `tokens`, and the factor of sines and cosines.
    fn frequencies(&self, tokens: usize) -> (Vec<f64>, f64) {
        let half = self.dims / 2;
        let plain = |i: usize| self.base.powf(-2.0 * i as f64 / self.dims as f64);
        let each = |f: &dyn Fn(usize) -> f64| (0..half).map(f).collect::<Vec<_>>();
        match &self.scaling {
            Scaling::None => (each(&plain), 1.0),
            Scaling::Linear { factor } => (each(&|i| plain(i) / factor), 1.0),
            Scaling::Llama3 { factor, low, high, original } => {
                let scaled = |i| {
                    let (frequency, turns) = (plain(i), original * plain(i) / (2.0 * PI));
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    (1.0 - kept) * frequency / factor + kept * frequency
                };
                (each(&scaled), 1.0)
            }
            Scaling::Yarn { factor, fast, slow, original, truncate, magnitude } => {
                // The pair with this number of rotations over the original context.
                let pair = |turns: f64| {
                    self.dims as f64 * (original / (turns * 2.0 * PI)).ln() / (2.0 * self.base.ln())
                };
                let (low, high) = match truncate {
                    true => (pair(*fast).floor(), pair(*slow).ceil()),
                    false => (pair(*fast), pair(*slow)),
                };
                let (low, high) = (low.max(0.0), high.min(self.dims as f64 - 1.0));
                let width = if high == low { 0.001 } else { high - low };
                let scaled = |i: usize| {
                    let stretched = ((i as f64 - low) / width).clamp(0.0, 1.0);
                    plain(i) * (stretched / factor + 1.0 - stretched)
                };
                (each(&scaled), *magnitude)
            }
            Scaling::LongRope { short, long, original, magnitude } => {
                let divisors = if tokens > *original { long } else { short };
                (each(&|i| plain(i) / divisors.get(i).copied().unwrap_or(1.0)), *magnitude)
            }
        }
    }

    /// Cosines and sines of positions 0 to `tokens` - 1, `(tokens, R/2)` f32 each.
    pub fn tables(&self, device: &Device, tokens: usize) -> Result<[Tensor; 2]> {
        self.rows(device, tokens, tokens)
    }

    /// Cosines and sines of positions 0 to `rows` - 1 in a sequence of `tokens`.
    pub fn rows(&self, device: &Device, rows: usize, tokens: usize) -> Result<[Tensor; 2]> {
        let (frequencies, factor) = self.frequencies(tokens);
        let table = |f: fn(f64) -> f64| {
            let angles = (0..rows).flat_map(|t| frequencies.iter().map(move |w| t as f64 * w));
            let values: Vec<f32> = angles.map(|angle| (f(angle) * factor) as f32).collect();
            Tensor::from_f32(device, [rows, self.dims / 2], &values, DType::F32)
        };
        Ok([table(f64::cos)?, table(f64::sin)?])
    }

    /// Returns the range of sequence lengths with the same angles as a sequence of `tokens`.
    pub fn same_angles(&self, tokens: usize) -> RangeInclusive<usize> {
        match &self.scaling {
            Scaling::LongRope { original, .. } if tokens > *original => original + 1..=usize::MAX,
            Scaling::LongRope { original, .. } => 0..=*original,
            _ => 0..=usize::MAX,
        }
    }

    /// Returns the longest sequence whose tables are a prefix of those for `tokens` (LongRoPE has different ones for short sequences).
    pub fn same_up_to(&self, tokens: usize) -> RangeInclusive<usize> {
        match &self.scaling {
            Scaling::LongRope { original, .. } if tokens > *original => original + 1..=tokens,
            _ => 0..=tokens,
        }
    }
}

/// Returns the numbers of tokens for which the angles of `length` tokens are valid.
pub(super) fn lengths(sets: &[Rotary], length: usize) -> RangeInclusive<usize> {
    sets.iter().fold(0..=usize::MAX, |all, set| {
        let own = set.same_angles(length);
        *all.start().max(own.start())..=*all.end().min(own.end())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_fall_from_1_to_about_the_base() {
        let (plain, factor) = Rotary { dims: 8, base: 10_000.0, scaling: Scaling::None }.frequencies(4);
        assert_eq!((plain.len(), plain[0], factor), (4, 1.0, 1.0));
        assert!((plain[3] - 1e-3).abs() < 1e-12, "{plain:?}");
        let linear = Scaling::Linear { factor: 4.0 };
        let (stretched, _) = Rotary { dims: 8, base: 10_000.0, scaling: linear }.frequencies(4);
        assert!(stretched.iter().zip(&plain).all(|(a, b)| (a * 4.0 - b).abs() < 1e-15));
    }

    #[test]
    fn longrope_takes_its_list_by_length() {
        let (short, long) = (vec![1.0, 2.0], vec![4.0, 8.0]);
        let scaling = Scaling::LongRope { short, long, original: 16, magnitude: 1.5 };
        let rotary = Rotary { dims: 4, base: 100.0, scaling };
        assert_eq!(rotary.frequencies(16), (vec![1.0, 0.05], 1.5));
        assert_eq!(rotary.frequencies(17), (vec![0.25, 0.1 / 8.0], 1.5));
        assert_eq!((rotary.same_up_to(16), rotary.same_up_to(40)), (0..=16, 17..=40));
    }
}
