//! IQ1_S: blocks of 256. Group k of 8 uses the point of 2048 whose low eight bits are `qs[k]` and whose upper three are those of `qh[k / 4]`, a
//! 16-bit number, from `3 * (k % 4)`. The factor is `d * (2n + 1)`, n bits 12 to 14 of `qh[k / 4]`; bit 15 makes the shift negative.

use crate::quant::format::{Format, f16_at, u16_at};
use crate::quant::parts::points::put_shifted;
use std::mem::offset_of;

/// Layout of a block in files.
#[repr(C)]
struct Block {
    d: [u8; 2],
    qs: [u8; 32],
    qh: [u8; 16],
}
const _: () = assert!(size_of::<Block>() == 50);
const D: usize = offset_of!(Block, d);
const QS: usize = offset_of!(Block, qs);
const QH: usize = offset_of!(Block, qh);

/// 1.6 bits per element.
pub static IQ1_S: Format = Format {
    name: "IQ1_S",
    number: 19,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let d = f16_at(b, D);
        for (k, y) in y.chunks_exact_mut(8).enumerate() {
            let high = u16_at(b, QH + 2 * (k / 4));
            let point = usize::from(b[QS + k]) | usize::from(high >> (3 * (k % 4)) & 7) << 8;
            put_shifted(y, d * f32::from(2 * (high >> 12 & 7) + 1), point, high >> 15 == 1);
        }
    },
    quantise: None,
    kernels: None,
};
