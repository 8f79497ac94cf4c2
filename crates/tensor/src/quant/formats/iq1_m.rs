//! IQ1_M: blocks of 256. Group k of 8 uses the point of 2048 whose low eight bits are `qs[k]` and whose upper three are those of `qh[k / 2]` from
//! `4 * (k % 2)`; the bit above them makes the shift negative. The factor is `d * (2n + 1)`, n the bits `6 * (k / 4 % 2) + 3 * (k / 2 % 2)` of
//! `sc[k / 8]`, a 16-bit number. The upper nibbles of `sc` form `d`, from the lowest one on.

use crate::quant::format::{Format, u16_at};
use crate::quant::parts::points::put_shifted;
use half::f16;
use std::mem::offset_of;

/// Layout of a block in files.
#[repr(C)]
struct Block {
    qs: [u8; 32],
    qh: [u8; 16],
    sc: [u8; 8],
}
const _: () = assert!(size_of::<Block>() == 56);
const QS: usize = offset_of!(Block, qs);
const QH: usize = offset_of!(Block, qh);
const SC: usize = offset_of!(Block, sc);

/// 1.75 bits per element.
pub static IQ1_M: Format = Format {
    name: "IQ1_M",
    number: 29,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let scales = [0, 1, 2, 3].map(|i| u16_at(b, SC + 2 * i));
        let bits = scales.iter().enumerate().fold(0, |bits, (i, s)| bits | s >> 12 << (4 * i));
        let d = f16::from_bits(bits).to_f32();
        for (k, y) in y.chunks_exact_mut(8).enumerate() {
            let n = scales[k / 8] >> (6 * (k / 4 % 2) + 3 * (k / 2 % 2)) & 7;
            let high = b[QH + k / 2] >> (4 * (k % 2));
            let point = usize::from(b[QS + k]) | usize::from(high & 7) << 8;
            put_shifted(y, d * f32::from(2 * n + 1), point, high >> 3 & 1 == 1);
        }
    },
    quantise: None,
    kernels: None,
};
