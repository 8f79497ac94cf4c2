//! Nibbles and fifth bits of blocks of 32. The lower half of the elements has the low nibbles.

/// Computes elements from nibbles; those of the lower half are in the low bits.
pub fn nibbles(qs: &[u8], y: &mut [f32], value: impl Fn(u8) -> f32) {
    let (low, high) = y.split_at_mut(16);
    for ((low, high), q) in low.iter_mut().zip(high).zip(qs) {
        (*low, *high) = (value(q & 15), value(q >> 4));
    }
}

/// Writes codes of at most 15 as nibbles. Higher bits are dropped.
pub fn put_nibbles(q: &[u8], qs: &mut [u8]) {
    let (low, high) = q.split_at(q.len() / 2);
    for ((low, high), out) in low.iter().zip(high).zip(qs) {
        *out = low & 15 | high << 4;
    }
}

/// Computes elements from nibbles and fifth bits.
pub fn fives(high: u32, qs: &[u8], y: &mut [f32], value: impl Fn(u8) -> f32) {
    for i in 0..16 {
        let fifth = |i: usize| (high >> i & 1) as u8 * 16;
        (y[i], y[i + 16]) = (value(qs[i] & 15 | fifth(i)), value(qs[i] >> 4 | fifth(i + 16)));
    }
}

/// Writes fifth bits, then nibbles.
pub fn put_fives(q: &[u8], b: &mut [u8]) {
    let high = q.iter().enumerate().fold(0u32, |bits, (i, q)| bits | u32::from(q >> 4) << i);
    b[..4].copy_from_slice(&high.to_le_bytes());
    put_nibbles(q, &mut b[4..]);
}
