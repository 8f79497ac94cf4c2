//! The generator of pseudorandom numbers for sample data, self-tests and tests: SplitMix64 (Steele, Lea and Flood 2014).
//!
//! It is not for training: tensors draw from Philox on the device.

/// The step between two states.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns a 64-bit word that depends on every bit of `x`: the output of the generator whose state is `x`. It is a bijection.
#[must_use]
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(STEP);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A stream of pseudorandom numbers, the same on every machine.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Returns a stream. Streams of adjacent seeds are unrelated.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// Returns the stream that continues after `state`. Streams of close states overlap if the states differ by a multiple of the step.
    #[must_use]
    pub fn from_state(state: u64) -> Self {
        Self(state)
    }

    /// Returns the next 64 bits.
    pub fn word(&mut self) -> u64 {
        let word = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        word
    }

    /// Returns a number in `0..bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The high half of the product: its error is at most bound / 2^64.
        ((u128::from(self.word()) * bound as u128) >> 64) as usize
    }

    /// Returns a number in [0, 1) with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns one of `all`, which must not be empty.
    ///
    /// # Panics
    /// If `all` is empty.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_reference() {
        // The first outputs of the published generator with seed 1234567.
        let mut draw = Draw::from_state(1_234_567);
        let words = [(); 3].map(|()| draw.word());
        assert_eq!(words, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn numbers_are_uniform_and_in_range() {
        let mut draw = Draw::new(3);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[draw.below(10)] += 1;
            let unit = draw.unit();
            assert!((0.0..1.0).contains(&unit));
        }
        // 10 000 expected, standard deviation 95.
        assert!(counts.iter().all(|n| (9_500..10_500).contains(n)), "{counts:?}");
        assert_eq!((draw.below(0), draw.below(1), *draw.pick(&[7])), (0, 0, 7));
    }
}
