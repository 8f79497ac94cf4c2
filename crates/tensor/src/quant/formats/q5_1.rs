//! Q5_1: blocks of 32. Element i is `d * q + m`. The lower four bits of q are the low nibble of `qs[i]` for i < 16, and the high nibble of
//! `qs[i - 16]` otherwise. The fifth bit is bit i of `qh`, a little-endian number.

use crate::quant::fit;
use crate::quant::format::{Format, FormatKernels, f16_at, put_f16, u32_at};
use crate::quant::parts::nibbles::{fives, put_fives};
use crate::quant::pieces;
use netcl_kernel::cl_file;
use std::mem::offset_of;

/// A block, as stored in files.
#[repr(C)]
struct Block {
    d: [u8; 2],
    m: [u8; 2],
    qh: [u8; 4],
    qs: [u8; 16],
}
const _: () = assert!(size_of::<Block>() == 24);
const D: usize = offset_of!(Block, d);
const M: usize = offset_of!(Block, m);
const QH: usize = offset_of!(Block, qh);
const QS: usize = offset_of!(Block, qs);

/// Five bits per element, a scale and an offset.
pub static Q5_1: Format = Format {
    name: "Q5_1",
    number: 7,
    block: 32,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let (d, m) = (f16_at(b, D), f16_at(b, M));
        fives(u32_at(b, QH), &b[QS..], y, |q| f32::from(q) * d + m);
    },
    quantise: Some(|x, w, b| {
        let mut q = [0; 32];
        let (d, m) = fit::affine_f16(x, w, 31.0);
        fit::affine_codes(x, 31.0, d, m, &mut q);
        put_f16(b, D, d);
        put_f16(b, M, m);
        put_fives(&q, &mut b[QH..]);
    }),
    kernels: Some(FormatKernels {
        text: concat!(cl_file!("../parts/fifth_bits.cl"), cl_file!("q5_1.cl")),
        units: &[(2, 2), (5, 4)],
        planes: Some(|bytes, k, each| pieces::blocks_of_32(bytes, 4, true, k, each)),
    }),
};
