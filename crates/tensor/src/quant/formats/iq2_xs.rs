//! IQ2_XS: blocks of 256. `qs` has a 16-bit number for each group k of 8: point `qs[k] & 511` of 512 and seven signs, `qs[k] >> 9`. The factor is
//! `d * (0.5 + n) * 0.25`, n the nibble k / 2 % 2 of `scales[k / 4]`.

use crate::quant::format::{Format, f16_at, u16_at};
use crate::quant::grids::IQ2_XS_POINTS;
use crate::quant::parts::points::{even, nibble_factor, put};
use std::mem::offset_of;

/// Layout of a block in files.
#[repr(C)]
struct Block {
    d: [u8; 2],
    qs: [u8; 64],
    scales: [u8; 8],
}
const _: () = assert!(size_of::<Block>() == 74);
const D: usize = offset_of!(Block, d);
const QS: usize = offset_of!(Block, qs);
const SCALES: usize = offset_of!(Block, scales);

/// 2.3 bits per element.
pub static IQ2_XS: Format = Format {
    name: "IQ2_XS",
    number: 17,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let d = f16_at(b, D);
        for (k, y) in y.chunks_exact_mut(8).enumerate() {
            let q = u16_at(b, QS + 2 * k);
            put(
                y,
                nibble_factor(d, b[SCALES + k / 4], k),
                &IQ2_XS_POINTS[usize::from(q & 511)],
                even(u32::from(q >> 9)),
            );
        }
    },
    quantise: None,
    kernels: None,
};
