//! One signed byte per element, in units of a scale.

use crate::quant::fit::{self, LinearCodes};

/// Dequantizes signed bytes.
pub fn bytes(qs: &[u8], y: &mut [f32], d: f32) {
    for (y, q) in y.iter_mut().zip(qs) {
        *y = f32::from(*q as i8) * d;
    }
}

/// Quantizes x to bytes. Returns their scale.
pub fn q8(x: &[f32], w: &[f32], qs: &mut [u8]) -> f32 {
    let codes = LinearCodes { low: -127.0, high: 127.0 };
    let d = fit::scale(x, w, codes, fit::to_f16);
    let mut q = [0; 32];
    fit::codes(x, codes, d, &mut q);
    // Code 0 stands for the least value, -127.
    qs.iter_mut().zip(q).for_each(|(out, q)| *out = q.wrapping_sub(127));
    d
}
