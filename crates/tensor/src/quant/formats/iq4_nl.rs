//! IQ4_NL: blocks of 32. Element i is `d * NORMAL[q]`. q is the low nibble of `qs[i]` for i < 16, and the high nibble of `qs[i - 16]`
//! otherwise.

use crate::quant::fit::{self, TableCodes};
use crate::quant::format::{Format, FormatKernels, f16_at, put_f16};
use crate::quant::parts::nibbles::put_nibbles;
use crate::quant::parts::tables::{NORMAL, from_table};
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
pub static IQ4_NL: Format = Format {
    name: "IQ4_NL",
    number: 20,
    block: 32,
    bytes: size_of::<Block>(),
    dequantise: |b, y| from_table(&b[QS..], y, f16_at(b, D), &NORMAL),
    quantise: Some(|x, w, b| {
        let mut q = [0; 32];
        let d = fit::scale(x, w, TableCodes(&NORMAL), fit::to_f16);
        fit::codes(x, TableCodes(&NORMAL), d, &mut q);
        put_f16(b, D, d);
        put_nibbles(&q, &mut b[QS..]);
    }),
    kernels: Some(FormatKernels {
        text: concat!(cl_file!("../parts/normal.cl"), cl_file!("../parts/sixteen.cl"), cl_file!("iq4_nl.cl")),
        units: &[(1, 2), (4, 4)],
        planes: None,
    }),
};
