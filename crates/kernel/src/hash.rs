//! A fast hash of 128 bits for lookups at every launch, where the hash replaces the value. Maps that compare keys use
//! [`QuickMap`](netcl_device::quick::QuickMap). Neither resists attackers.

use std::hash::{Hash, Hasher};

/// Two parallel multiplicative hashes.
pub struct Mix(u64, u64);

impl Mix {
    /// Returns 128 bits of `value`. Among billions of values, two have the same hash with a probability of one in 2^64.
    pub fn of(value: &(impl Hash + ?Sized)) -> u128 {
        let mut mix = Self::default();
        value.hash(&mut mix);
        mix.bits()
    }
    /// Returns 128 bits of the data hashed so far.
    pub fn bits(&self) -> u128 {
        u128::from(self.0) << 64 | u128::from(self.1)
    }
}

impl Default for Mix {
    fn default() -> Self {
        Self(0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F)
    }
}

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517C_C1B7_2722_0A95);
        self.1 = (self.1.rotate_left(23) ^ word).wrapping_mul(0x9FB2_1C65_1E98_DF25);
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
    fn write_i64(&mut self, n: i64) {
        self.write_u64(n.cast_unsigned());
    }
    fn finish(&self) -> u64 {
        self.0 ^ self.1
    }
}
