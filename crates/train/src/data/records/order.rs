//! The order of records: a permutation per epoch that is computed for one position at a time.

use crate::data::random;

/// Rounds of the network; three make pseudo-random permutations of pseudo-random functions (Luby and Rackoff 1988).
const ROUNDS: u64 = 4;

/// Returns the record at position `at` of an epoch of `count` records.
///
/// A Feistel network permutes the numbers of twice as many bits as half of `count` needs. A result outside `0..count` is permuted again, until one is
/// inside. No list of records is shuffled, so any position can be computed alone.
pub(super) fn shuffled(seed: u64, epoch: u64, at: u64, count: u64) -> u64 {
    if count < 2 {
        return 0;
    }
    let bits = (64 - (count - 1).leading_zeros()).div_ceil(2);
    let half = 1u64 << bits;
    let mut number = at;
    loop {
        let (mut left, mut right) = (number >> bits, number & (half - 1));
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ random::below(seed, [epoch, round, right], half));
        }
        number = left << bits | right;
        if number < count {
            return number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_epoch_has_each_record_once_in_another_order() {
        for count in (1..70).chain([255, 256, 257, 1000, 4097]) {
            let order =
                |seed, epoch| (0..count).map(|at| shuffled(seed, epoch, at, count)).collect::<Vec<_>>();
            let first = order(7, 0);
            assert_eq!(first.iter().copied().collect::<BTreeSet<_>>(), (0..count).collect(), "{count}");
            if count > 20 {
                assert_ne!(first, order(7, 1));
                assert_ne!(first, order(8, 0));
                assert_ne!(first, (0..count).collect::<Vec<_>>());
                let still = first.iter().zip(0..).filter(|(a, b)| **a == *b).count();
                assert!(still < 10, "{count}: {still} records at their own place");
            }
        }
    }

    /// Places of one record over many epochs: 1000 expected per tenth, with a standard deviation of 30.
    #[test]
    fn a_record_comes_at_every_place_about_equally_often() {
        let mut tenths = [0; 10];
        for epoch in 0..10_000 {
            tenths[(shuffled(3, epoch, 5, 100) / 10) as usize] += 1;
        }
        assert!(tenths.iter().all(|n| (850..1150).contains(n)), "{tenths:?}");
    }
}
