//! Groups of elements that choose from a table of points ([`grids`](crate::quant::grids)), with signs apart. Bit j of a group's signs makes element j
//! negative; where there are seven, the eighth makes their number even. An element is the factor times its point's coordinate times its sign.

use crate::quant::grids::IQ1_POINTS;

/// The factor of IQ2_XS and IQ2_S.
pub fn nibble_factor(d: f32, scales: u8, k: usize) -> f32 {
    d * (0.5 + f32::from(scales >> (4 * (k / 2 % 2)) & 15)) * 0.25
}

/// Seven signs and the eighth that makes their number even.
pub fn even(signs: u32) -> u8 {
    let seven = (signs & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Elements by a point.
pub fn put(y: &mut [f32], factor: f32, point: &[u8], signs: u8) {
    for (j, (y, coordinate)) in y.iter_mut().zip(point).enumerate() {
        let sign = if signs >> j & 1 == 1 { -1.0 } else { 1.0 };
        *y = factor * f32::from(*coordinate) * sign;
    }
}

/// Elements by a point of -1, 0 and 1, to whose coordinates 1/8 or -1/8 is added.
pub fn put_shifted(y: &mut [f32], factor: f32, point: usize, negative: bool) {
    let shift = if negative { -0.125 } else { 0.125 };
    for (y, coordinate) in y.iter_mut().zip(IQ1_POINTS[point]) {
        // Stored from 0: -1, 0, 1.
        *y = factor * ((f32::from(coordinate) - 1.0) + shift);
    }
}
