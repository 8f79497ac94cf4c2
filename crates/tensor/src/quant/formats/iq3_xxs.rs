//! IQ3_XXS: blocks of 256. Group k of 8 uses the points `qs[2k]` and `qs[2k + 1]` of 256, four elements each. `s` has a 32-bit number for each 32
//! elements: the factor is `d * (0.5 + s >> 28) * 0.5`, and signs are those of IQ2_XXS.

use crate::quant::format::{Format, f16_at, u32_at};
use crate::quant::grids::IQ3_XXS_POINTS;
use crate::quant::parts::points::{even, put};
use std::mem::offset_of;

/// Layout of a block in files.
#[repr(C)]
struct Block {
    d: [u8; 2],
    qs: [u8; 64],
    s: [u8; 32],
}
const _: () = assert!(size_of::<Block>() == 98);
const D: usize = offset_of!(Block, d);
const QS: usize = offset_of!(Block, qs);
const S: usize = offset_of!(Block, s);

/// 3.1 bits per element.
pub static IQ3_XXS: Format = Format {
    name: "IQ3_XXS",
    number: 18,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let d = f16_at(b, D);
        for (k, y) in y.chunks_exact_mut(8).enumerate() {
            let s = u32_at(b, S + 4 * (k / 4));
            let (factor, signs) = (d * (0.5 + (s >> 28) as f32) * 0.5, even(s >> (7 * (k % 4))));
            let (first, second) = y.split_at_mut(4);
            put(first, factor, &IQ3_XXS_POINTS[usize::from(b[QS + 2 * k])], signs);
            put(second, factor, &IQ3_XXS_POINTS[usize::from(b[QS + 2 * k + 1])], signs >> 4);
        }
    },
    quantise: None,
    kernels: None,
};
