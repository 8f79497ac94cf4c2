//! Q4_0: blocks of 32. Element i is `d * (q - 8)`. q is the low nibble of `qs[i]` for i < 16, and the high nibble of `qs[i - 16]`
//! otherwise.

use crate::quant::fit::{self, LinearCodes};
use crate::quant::format::{Format, FormatKernels, f16_at, put_f16};
use crate::quant::parts::nibbles::{nibbles, put_nibbles};
use crate::quant::pieces;
use netcl_kernel::cl_file;
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

/// A nibble per element, and a scale.
pub static Q4_0: Format = Format {
    name: "Q4_0",
    number: 2,
    block: 32,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let d = f16_at(b, D);
        nibbles(&b[QS..], y, |q| (q as i32 - 8) as f32 * d);
    },
    quantise: Some(|x, w, b| {
        let (codes, mut q) = (LinearCodes { low: -8.0, high: 7.0 }, [0; 32]);
        let d = fit::scale(x, w, codes, fit::to_f16);
        fit::codes(x, codes, d, &mut q);
        put_f16(b, D, d);
        put_nibbles(&q, &mut b[QS..]);
    }),
    kernels: Some(FormatKernels {
        text: cl_file!("q4_0.cl"),
        units: &[(1, 2), (4, 4)],
        planes: Some(|bytes, k, each| pieces::blocks_of_32(bytes, 2, false, k, each)),
    }),
};
