//! Q1_0: blocks of 128. Element i is `d` if bit `i % 8` of `qs[i / 8]` is set, otherwise `-d`.

use crate::quant::fit;
use crate::quant::format::{Format, f16_at, put_f16};
use std::mem::offset_of;

/// Layout of a block in files.
#[repr(C)]
struct Block {
    d: [u8; 2],
    qs: [u8; 16],
}
const _: () = assert!(size_of::<Block>() == 18);
const D: usize = offset_of!(Block, d);
const QS: usize = offset_of!(Block, qs);

/// A sign per element, and a scale.
pub static Q1_0: Format = Format {
    name: "Q1_0",
    number: 41,
    block: 128,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let d = f16_at(b, D);
        for (i, y) in y.iter_mut().enumerate() {
            *y = if b[QS + i / 8] >> (i % 8) & 1 == 1 { d } else { -d };
        }
    },
    quantise: Some(|x, w, b| {
        // The mean magnitude gives the least squared error.
        let (sum, all) = x.iter().zip(w).fold((0.0, 0.0), |(s, a), (x, w)| (s + w * x.abs(), a + w));
        b.fill(0);
        put_f16(b, D, fit::to_f16(if all > 0.0 { sum / all } else { 0.0 }));
        for (i, x) in x.iter().enumerate() {
            b[QS + i / 8] |= u8::from(*x >= 0.0) << (i % 8);
        }
    }),
    kernels: None,
};
