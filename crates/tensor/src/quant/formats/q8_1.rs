//! Q8_1: blocks of 32. Element i is `d * q`, q the signed byte `qs[i]`; `s = d * Σ q`.

use crate::quant::format::{Format, f16_at, put_f16};
use crate::quant::parts::bytes::{bytes, q8};
use std::mem::offset_of;

/// Layout of a block in files.
#[repr(C)]
struct Block {
    d: [u8; 2],
    s: [u8; 2],
    qs: [u8; 32],
}
const _: () = assert!(size_of::<Block>() == 36);
const D: usize = offset_of!(Block, d);
const S: usize = offset_of!(Block, s);
const QS: usize = offset_of!(Block, qs);

/// Q8_0 with the sum of its elements, for activations; files do not use it.
pub static Q8_1: Format = Format {
    name: "Q8_1",
    number: 9,
    block: 32,
    bytes: size_of::<Block>(),
    dequantise: |b, y| bytes(&b[QS..], y, f16_at(b, D)),
    quantise: Some(|x, w, b| {
        let d = q8(x, w, &mut b[QS..]);
        let sum: i32 = b[QS..].iter().map(|q| i32::from(*q as i8)).sum();
        put_f16(b, D, d);
        put_f16(b, S, d * sum as f32);
    }),
    kernels: None,
};
