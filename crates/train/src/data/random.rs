//! Counter-based random numbers: a value is a function of its coordinates, so any position of a run can be computed independently.

use netcl_device::draw::mix;

/// Returns a number in `0..below`, a function of only `seed` and `at`. `below` must not be 0.
///
/// The coordinates are absorbed one after the other, so `[1, 2]` and `[2, 1]` are unrelated.
pub(crate) fn below(seed: u64, at: [u64; 3], below: u64) -> u64 {
    let hash = at.iter().fold(mix(seed), |state, &coordinate| mix(state ^ mix(coordinate)));
    // The high half of the product is uniform up to an error of below / 2^64, which no run can detect.
    ((u128::from(hash) * u128::from(below)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_about_equally_often() {
        let mut counts = [0u32; 10];
        for row in 0..100_000 {
            counts[below(7, [3, 0, row], 10) as usize] += 1;
        }
        // 10 000 expected, standard deviation 95.
        assert!(counts.iter().all(|&n| (9_500..10_500).contains(&n)), "{counts:?}");
    }

    #[test]
    fn coordinates_do_not_commute() {
        let at = |seed, at| below(seed, at, u64::MAX);
        let all = [at(1, [1, 2, 3]), at(1, [2, 1, 3]), at(1, [1, 3, 2]), at(2, [1, 2, 3]), at(3, [1, 2, 3])];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b));
        }
        assert_eq!(at(1, [1, 2, 3]), at(1, [1, 2, 3]));
    }
}
