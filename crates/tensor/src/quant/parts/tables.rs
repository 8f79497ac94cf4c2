//! Nibbles that index a table of 16 values, which are denser around zero.

use super::nibbles::put_nibbles;
use crate::quant::fit::{self, Codes, TableCodes};

/// Approximate quantiles of a normal distribution.
pub static NORMAL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the values of floating-point numbers with a sign bit, two exponent bits and one mantissa bit.
pub static E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// The same values in ascending order, without the second zero.
pub static E2M1_ASCENDING: [i8; 15] = [-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12];

/// Dequantizes elements in units of `d`. The lower half is in the low nibbles.
pub fn from_table(qs: &[u8], y: &mut [f32], d: f32, table: &[i8; 16]) {
    let (low, high) = y.split_at_mut(y.len() / 2);
    for ((low, high), q) in low.iter_mut().zip(high).zip(qs) {
        *low = d * f32::from(table[usize::from(q & 15)]);
        *high = d * f32::from(table[usize::from(q >> 4)]);
    }
}

/// Quantizes elements to nibbles of E2M1 in units of `d`, which must be nonnegative.
pub fn floats(x: &[f32], d: f32, qs: &mut [u8]) {
    let mut q = [0; 32];
    let codes = TableCodes(&E2M1_ASCENDING);
    fit::codes(x, codes, d, &mut q);
    for q in &mut q[..x.len()] {
        let value = codes.value(*q) as i8;
        *q = E2M1.iter().position(|v| *v == value).unwrap_or(0) as u8;
    }
    put_nibbles(&q[..x.len()], qs);
}

/// Returns the number in `range` with the least error.
pub fn least(range: std::ops::RangeInclusive<u8>, error: impl Fn(u8) -> f32) -> u8 {
    range.map(|n| (n, error(n))).min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(n, _)| n)
}
