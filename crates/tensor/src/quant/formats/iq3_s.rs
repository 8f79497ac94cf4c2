//! IQ3_S: blocks of 256. Group k of 8 uses two points of 512, four elements each. Their low eight bits are `qs[2k]` and `qs[2k + 1]`; the bits
//! `2 * (k % 4)` and `2 * (k % 4) + 1` of `qh[k / 4]` are their ninth bits. Eight signs are `signs[k]`, the factor is `d * (1 + 2n)`, n the nibble
//! k / 4 % 2 of `scales[k / 8]`.

use crate::quant::format::{Format, f16_at};
use crate::quant::grids::IQ3_S_POINTS;
use crate::quant::parts::points::put;
use std::mem::offset_of;

/// Layout of a block in files.
#[repr(C)]
struct Block {
    d: [u8; 2],
    qs: [u8; 64],
    qh: [u8; 8],
    signs: [u8; 32],
    scales: [u8; 4],
}
const _: () = assert!(size_of::<Block>() == 110);
const D: usize = offset_of!(Block, d);
const QS: usize = offset_of!(Block, qs);
const QH: usize = offset_of!(Block, qh);
const SIGNS: usize = offset_of!(Block, signs);
const SCALES: usize = offset_of!(Block, scales);

/// 3.4 bits per element.
pub static IQ3_S: Format = Format {
    name: "IQ3_S",
    number: 21,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let d = f16_at(b, D);
        for (k, y) in y.chunks_exact_mut(8).enumerate() {
            let nibble = b[SCALES + k / 8] >> (4 * (k / 4 % 2)) & 15;
            let factor = d * f32::from(1 + 2 * nibble);
            for (i, y) in y.chunks_exact_mut(4).enumerate() {
                let high = b[QH + k / 4] >> (2 * (k % 4) + i) & 1;
                let point = usize::from(b[QS + 2 * k + i]) | usize::from(high) << 8;
                put(y, factor, &IQ3_S_POINTS[point], b[SIGNS + k] >> (4 * i));
            }
        }
    },
    quantise: None,
    kernels: None,
};
