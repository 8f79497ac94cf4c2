//! Q5_0: blocks of 32. Element i is `d * (q - 16)`. The lower four bits of q are the low nibble of `qs[i]` for i < 16, and the high nibble
//! of `qs[i - 16]` otherwise. The fifth bit is bit i of `qh`, a little-endian number.

use crate::quant::fit::{self, LinearCodes};
use crate::quant::format::{Format, FormatKernels, f16_at, put_f16, u32_at};
use crate::quant::parts::nibbles::{fives, put_fives};
use crate::quant::pieces;
use netcl_kernel::cl_file;
use std::mem::offset_of;

/// A block, as stored in files.
#[repr(C)]
struct Block {
    d: [u8; 2],
    qh: [u8; 4],
    qs: [u8; 16],
}
const _: () = assert!(size_of::<Block>() == 22);
const D: usize = offset_of!(Block, d);
const QH: usize = offset_of!(Block, qh);
const QS: usize = offset_of!(Block, qs);

/// Five bits per element, and a scale.
pub static Q5_0: Format = Format {
    name: "Q5_0",
    number: 6,
    block: 32,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let d = f16_at(b, D);
        fives(u32_at(b, QH), &b[QS..], y, |q| (q as i32 - 16) as f32 * d);
    },
    quantise: Some(|x, w, b| {
        let (codes, mut q) = (LinearCodes { low: -16.0, high: 15.0 }, [0; 32]);
        let d = fit::scale(x, w, codes, fit::to_f16);
        fit::codes(x, codes, d, &mut q);
        put_f16(b, D, d);
        put_fives(&q, &mut b[QH..]);
    }),
    kernels: Some(FormatKernels {
        text: concat!(cl_file!("../parts/fifth_bits.cl"), cl_file!("q5_0.cl")),
        units: &[(1, 2), (5, 4)],
        planes: Some(|bytes, k, each| pieces::blocks_of_32(bytes, 2, true, k, each)),
    }),
};
