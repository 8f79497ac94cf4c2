//! Two bits for each of 256 elements, in groups of 16.

/// Returns the start of the bit pairs of group `g`: byte of `qs`, bit.
pub fn two_bits(g: usize) -> (usize, usize) {
    (32 * (g / 8) + 16 * (g % 2), 2 * (g / 2 % 4))
}
