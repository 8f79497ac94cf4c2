//! TQ2_0: blocks of 256 elements that are -1, 0 or 1 times `d`. Element i is `d * (q - 1)`, where q is the two bits of `qs[32 * (i / 128) +
//! i % 32]` from `2 * (i / 32 % 4)` on.

use crate::quant::format::{Format, FormatKernels, f16_at, put_f16};
use crate::quant::parts::ternary::digits;
use netcl_kernel::cl_file;
use std::mem::offset_of;

/// A block, as stored in files.
#[repr(C)]
struct Block {
    qs: [u8; 64],
    d: [u8; 2],
}
const _: () = assert!(size_of::<Block>() == 66);
const QS: usize = offset_of!(Block, qs);
const D: usize = offset_of!(Block, d);

/// 2.1 bits per element.
pub static TQ2_0: Format = Format {
    name: "TQ2_0",
    number: 35,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let d = f16_at(b, D);
        for (g, y) in y.chunks_exact_mut(32).enumerate() {
            for (y, b) in y.iter_mut().zip(&b[QS + 32 * (g / 4)..]) {
                *y = (i32::from(b >> (2 * (g % 4)) & 3) - 1) as f32 * d;
            }
        }
    },
    quantise: Some(|x, w, b| {
        let (d, q) = digits(x, w);
        b.fill(0);
        put_f16(b, D, d);
        for (g, q) in q.chunks_exact(32).enumerate() {
            b[QS + 32 * (g / 4)..].iter_mut().zip(q).for_each(|(b, q)| *b |= q << (2 * (g % 4)));
        }
    }),
    kernels: Some(FormatKernels { text: cl_file!("tq2_0.cl"), units: &[(16, 4), (1, 2)], planes: None }),
};
