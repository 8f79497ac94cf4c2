//! IQ2_XXS: blocks of 256. `qs` has for each 32 elements four bytes `p` and a 32-bit number `s`. Group k of 8 uses point `p[k % 4]` of 256, the
//! factor `d * (0.5 + s >> 28) * 0.25` and seven signs, the bits of `s` from `7 * (k % 4)`.

use crate::quant::format::{Format, f16_at, u32_at};
use crate::quant::grids::IQ2_XXS_POINTS;
use crate::quant::parts::points::{even, put};
use std::mem::offset_of;

/// Layout of a block in files.
#[repr(C)]
struct Block {
    d: [u8; 2],
    qs: [u8; 64],
}
const _: () = assert!(size_of::<Block>() == 66);
const D: usize = offset_of!(Block, d);
const QS: usize = offset_of!(Block, qs);

/// 2.1 bits per element.
pub static IQ2_XXS: Format = Format {
    name: "IQ2_XXS",
    number: 16,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let d = f16_at(b, D);
        for (k, y) in y.chunks_exact_mut(8).enumerate() {
            let at = QS + 8 * (k / 4);
            let s = u32_at(b, at + 4);
            let factor = d * (0.5 + (s >> 28) as f32) * 0.25;
            let signs = even(s >> (7 * (k % 4)));
            put(y, factor, &IQ2_XXS_POINTS[usize::from(b[at + k % 4])], signs);
        }
    },
    quantise: None,
    kernels: None,
};
