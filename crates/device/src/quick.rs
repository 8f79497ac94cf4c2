//! A hash for keys that the program creates itself, such as sizes and addresses. Every launch makes several lookups, and these keys need no
//! protection against attackers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map with [`QuickHasher`].
pub type QuickMap<K, V> = HashMap<K, V, BuildHasherDefault<QuickHasher>>;

/// A multiplicative hash of words.
#[derive(Clone, Copy, Default)]
pub struct QuickHasher(u64);

impl Hasher for QuickHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517C_C1B7_2722_0A95);
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
    /// Hash tables use the highest and the lowest bits. The lowest bits of a product depend only on the lowest bits of its factors.
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::hash::{BuildHasher, BuildHasherDefault};

    /// Hashes of size classes, which are multiples of powers of two, differ in the bits that a table uses.
    #[test]
    fn multiples_of_a_page_differ_in_their_lowest_bits() {
        let build = BuildHasherDefault::<QuickHasher>::default();
        let low: BTreeSet<u64> = (0..256usize).map(|i| build.hash_one(i * 4096) & 1023).collect();
        assert!(low.len() > 200, "{} of 256", low.len());
    }
}
