//! Groups of elements that select from a table of points ([`grids`](crate::quant::grids)), with separate signs. Bit j of a group's signs makes
//! element j negative; if there are seven signs, the eighth makes the number of negative elements even. An element is the factor times its point's
//! coordinate times its sign.

use crate::quant::grids::IQ1_POINTS;

/// Returns the factor of IQ2_XS and IQ2_S.
pub fn nibble_factor(d: f32, scales: u8, k: usize) -> f32 {
    d * (0.5 + f32::from(scales >> (4 * (k / 2 % 2)) & 15)) * 0.25
}

/// Returns seven signs and the eighth, which makes their number even.
pub fn even(signs: u32) -> u8 {
    let seven = (signs & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Computes elements from a point.
pub fn put(y: &mut [f32], factor: f32, point: &[u8], signs: u8) {
    for (j, (y, coordinate)) in y.iter_mut().zip(point).enumerate() {
        let sign = if signs >> j & 1 == 1 { -1.0 } else { 1.0 };
        *y = factor * f32::from(*coordinate) * sign;
    }
}

/// Computes elements from a point of -1, 0 and 1, whose coordinates are shifted by 1/8 or -1/8.
pub fn put_shifted(y: &mut [f32], factor: f32, point: usize, negative: bool) {
    let shift = if negative { -0.125 } else { 0.125 };
    for (y, coordinate) in y.iter_mut().zip(IQ1_POINTS[point]) {
        // The stored coordinates 0, 1, 2 mean -1, 0, 1.
        *y = factor * ((f32::from(coordinate) - 1.0) + shift);
    }
}
