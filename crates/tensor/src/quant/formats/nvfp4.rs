//! NVFP4: blocks of 4 groups of 16. An element of group g is `(s[g] / 2) * E2M1[q]`, where s is an unsigned E4M3 float. For element i of a
//! group, q is the low nibble of its `qs[i]` for i < 8, and the high nibble of `qs[i - 8]` otherwise.

use crate::quant::fit::{self, TableCodes};
use crate::quant::format::Format;
use crate::quant::parts::tables::{E2M1, E2M1_ASCENDING, floats, from_table, least};
use std::mem::offset_of;

/// A block, as stored in files.
#[repr(C)]
struct Block {
    s: [u8; 4],
    qs: [u8; 32],
}
const _: () = assert!(size_of::<Block>() == 36);
const S: usize = offset_of!(Block, s);
const QS: usize = offset_of!(Block, qs);

/// A nibble per element, and an 8-bit float per 16 elements.
pub static NVFP4: Format = Format {
    name: "NVFP4",
    number: 40,
    block: 64,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        for (g, y) in y.chunks_exact_mut(16).enumerate() {
            from_table(&b[QS + 8 * g..], y, e4m3(b[S + g]), &E2M1);
        }
    },
    quantise: Some(|x, w, b| {
        for (g, (x, w)) in x.chunks_exact(16).zip(w.chunks_exact(16)).enumerate() {
            let scale = fit::scale(x, w, TableCodes(&E2M1_ASCENDING), |d| d).abs();
            let above = (0..E4M3_END).find(|s| e4m3(*s) >= scale).unwrap_or(E4M3_END - 1);
            // A step of eight codes doubles the scale.
            let range = above.saturating_sub(12)..=(above + 12).min(E4M3_END - 1);
            b[S + g] = least(range, |s| fit::error(x, w, TableCodes(&E2M1_ASCENDING), e4m3(s)));
            floats(x, e4m3(b[S + g]), &mut b[QS + 8 * g..QS + 8 * (g + 1)]);
        }
    }),
    kernels: None,
};

/// The code of a NaN scale.
const E4M3_END: u8 = 0x7f;

/// Returns half of an unsigned float with four exponent bits and three mantissa bits.
fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    match bits {
        0 | E4M3_END => 0.0,
        _ if exponent == 0 => mantissa * 2f32.powi(-10),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 8),
    }
}
