//! Elements that are -1, 0 or 1 times a scale.

use crate::quant::fit::{self, LinearCodes};

/// Returns the scale, and the elements in its units, -1 to 1, stored as 0 to 2.
pub fn digits(x: &[f32], w: &[f32]) -> (f32, [u8; 256]) {
    let (codes, mut q) = (LinearCodes { low: -1.0, high: 1.0 }, [0; 256]);
    let d = fit::scale(x, w, codes, fit::to_f16);
    fit::codes(x, codes, d, &mut q);
    (d, q)
}
