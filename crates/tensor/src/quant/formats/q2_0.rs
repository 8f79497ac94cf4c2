//! Q2_0: blocks of 64. Element i is `d * (q - 1)`, where q is the two bits of `qs[i / 4]` from `2 * (i % 4)` on.

use crate::quant::fit::{self, LinearCodes};
use crate::quant::format::{Format, f16_at, put_f16};
use std::mem::offset_of;

/// A block, as stored in files.
#[repr(C)]
struct Block {
    d: [u8; 2],
    qs: [u8; 16],
}
const _: () = assert!(size_of::<Block>() == 18);
const D: usize = offset_of!(Block, d);
const QS: usize = offset_of!(Block, qs);

/// Two bits per element: -1, 0, 1 or 2 times a scale.
pub static Q2_0: Format = Format {
    name: "Q2_0",
    number: 42,
    block: 64,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let d = f16_at(b, D);
        for (i, y) in y.iter_mut().enumerate() {
            *y = (i32::from(b[QS + i / 4] >> (2 * (i % 4)) & 3) - 1) as f32 * d;
        }
    },
    quantise: Some(|x, w, b| {
        let (codes, mut q) = (LinearCodes { low: -1.0, high: 2.0 }, [0; 64]);
        let d = fit::scale(x, w, codes, fit::to_f16);
        fit::codes(x, codes, d, &mut q);
        b.fill(0);
        put_f16(b, D, d);
        for (i, q) in q.iter().enumerate() {
            b[QS + i / 4] |= q << (2 * (i % 4));
        }
    }),
    kernels: None,
};
