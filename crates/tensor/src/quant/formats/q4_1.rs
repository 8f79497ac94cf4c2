//! Q4_1: blocks of 32. Element i is `d * q + m`. q is the low nibble of `qs[i]` for i < 16, and the high nibble of `qs[i - 16]` otherwise.

use crate::quant::fit;
use crate::quant::format::{Format, FormatKernels, f16_at, put_f16};
use crate::quant::parts::nibbles::{nibbles, put_nibbles};
use crate::quant::pieces;
use netcl_kernel::cl_file;
use std::mem::offset_of;

/// A block, as stored in files.
#[repr(C)]
struct Block {
    d: [u8; 2],
    m: [u8; 2],
    qs: [u8; 16],
}
const _: () = assert!(size_of::<Block>() == 20);
const D: usize = offset_of!(Block, d);
const M: usize = offset_of!(Block, m);
const QS: usize = offset_of!(Block, qs);

/// A nibble per element, a scale and an offset.
pub static Q4_1: Format = Format {
    name: "Q4_1",
    number: 3,
    block: 32,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let (d, m) = (f16_at(b, D), f16_at(b, M));
        nibbles(&b[QS..], y, |q| f32::from(q) * d + m);
    },
    quantise: Some(|x, w, b| {
        let mut q = [0; 32];
        let (d, m) = fit::affine_f16(x, w, 15.0);
        fit::affine_codes(x, 15.0, d, m, &mut q);
        put_f16(b, D, d);
        put_f16(b, M, m);
        put_nibbles(&q, &mut b[QS..]);
    }),
    kernels: Some(FormatKernels {
        text: cl_file!("q4_1.cl"),
        units: &[(2, 2), (4, 4)],
        planes: Some(|bytes, k, each| pieces::blocks_of_32(bytes, 4, false, k, each)),
    }),
};
