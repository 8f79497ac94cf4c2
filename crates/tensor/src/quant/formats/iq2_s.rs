//! IQ2_S: blocks of 256. Group k of 8 uses the point of 1024 whose low eight bits are `qs[k]` and whose upper two are those of `qh[k / 4]` from
//! `2 * (k % 4)`. Its eight signs are `signs[k]`, and its factor is that of IQ2_XS.

use crate::quant::format::{Format, f16_at};
use crate::quant::grids::IQ2_S_POINTS;
use crate::quant::parts::points::{nibble_factor, put};
use std::mem::offset_of;

/// Layout of a block in files.
#[repr(C)]
struct Block {
    d: [u8; 2],
    qs: [u8; 32],
    signs: [u8; 32],
    qh: [u8; 8],
    scales: [u8; 8],
}
const _: () = assert!(size_of::<Block>() == 82);
const D: usize = offset_of!(Block, d);
const QS: usize = offset_of!(Block, qs);
const SIGNS: usize = offset_of!(Block, signs);
const QH: usize = offset_of!(Block, qh);
const SCALES: usize = offset_of!(Block, scales);

/// 2.6 bits per element.
pub static IQ2_S: Format = Format {
    name: "IQ2_S",
    number: 22,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let d = f16_at(b, D);
        for (k, y) in y.chunks_exact_mut(8).enumerate() {
            let high = b[QH + k / 4] >> (2 * (k % 4)) & 3;
            let point = usize::from(b[QS + k]) | usize::from(high) << 8;
            put(y, nibble_factor(d, b[SCALES + k / 4], k), &IQ2_S_POINTS[point], b[SIGNS + k]);
        }
    },
    quantise: None,
    kernels: None,
};
