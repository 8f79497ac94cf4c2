//! Cost of operations on a link: a time model with a delay per message and a bandwidth.
//!
//! It follows the algorithms of this crate: pairwise exchange of shares in segments for large vectors, and log2(n) steps for small ones. A rank sends
//! and receives one message at a time, so `n` ranks that share a network card each get its bandwidth divided by `n`.

use crate::Link;
use crate::collective::{MAX_WHOLE_BYTES, SEGMENT};

impl Link {
    /// Returns the seconds for a message of `bytes`.
    pub fn message(&self, bytes: f64) -> f64 {
        self.delay.as_secs_f64() + bytes / self.bytes_per_s.max(1.0)
    }

    /// Returns the seconds for `ranks` ranks to sum vectors of `bytes`, without the additions themselves.
    pub fn all_reduce(&self, bytes: f64, ranks: usize) -> f64 {
        if ranks > 1 && bytes * ranks as f64 <= MAX_WHOLE_BYTES as f64 {
            let steps = f64::from(ranks.next_power_of_two().trailing_zeros());
            return steps * self.delay.as_secs_f64() + (ranks - 1) as f64 * bytes / self.bytes_per_s.max(1.0);
        }
        2.0 * self.all_gather(bytes, ranks)
    }

    /// Returns the seconds for `ranks` ranks to complete a vector of `bytes` from their shares; a reduce-scatter takes the same time.
    pub fn all_gather(&self, bytes: f64, ranks: usize) -> f64 {
        let others = ranks.saturating_sub(1) as f64;
        let share = bytes / ranks.max(1) as f64;
        let segments = (share / SEGMENT as f64).ceil().max(1.0);
        others * (segments * self.delay.as_secs_f64() + share / self.bytes_per_s.max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const LINK: Link = Link { delay: Duration::from_micros(10), bytes_per_s: 1e9 };

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() <= 1e-9 * expected.abs(), "{found}, expected {expected}");
    }

    #[test]
    fn large_vectors_move_twice_the_others_shares() {
        // 2 (n - 1) / n of the vector in each direction.
        close(LINK.all_reduce(4e6, 2), 2.0 * 10e-6 + 4e6 / 1e9);
        close(LINK.all_reduce(4e6, 4), 6.0 * 10e-6 + 1.5 * 4e6 / 1e9);
        close(LINK.all_gather(4e6, 4), 3.0 * 10e-6 + 0.75 * 4e6 / 1e9);
        // Shares with three segments.
        let bytes = 2.0 * 2.5 * SEGMENT as f64;
        close(LINK.all_reduce(bytes, 2), 6.0 * 10e-6 + bytes / 1e9);
    }

    #[test]
    fn small_vectors_take_a_logarithm_of_steps() {
        close(LINK.all_reduce(100.0, 8), 3.0 * 10e-6 + 700.0 / 1e9);
        close(LINK.all_reduce(100.0, 5), 3.0 * 10e-6 + 400.0 / 1e9);
    }

    #[test]
    fn one_rank_takes_no_time() {
        assert_eq!(LINK.all_reduce(1e9, 1), 0.0);
        assert_eq!(LINK.all_gather(1e9, 1), 0.0);
    }
}
