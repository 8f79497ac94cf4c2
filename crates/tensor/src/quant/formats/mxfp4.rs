//! MXFP4 (OCP Microscaling Formats 1.0): blocks of 32. Element i is `2^(e - 128) * E2M1[q]`, with nibbles as in IQ4_NL. The table has twice
//! the values.

use crate::quant::fit::{self, TableCodes};
use crate::quant::format::{Format, FormatKernels};
use crate::quant::parts::tables::{E2M1, E2M1_ASCENDING, floats, from_table, least};
use netcl_kernel::cl_file;
use std::mem::offset_of;

/// A block, as stored in files.
#[repr(C)]
struct Block {
    e: [u8; 1],
    qs: [u8; 16],
}
const _: () = assert!(size_of::<Block>() == 17);
const E: usize = offset_of!(Block, e);
const QS: usize = offset_of!(Block, qs);

/// A nibble per element, and a power of two.
pub static MXFP4: Format = Format {
    name: "MXFP4",
    number: 39,
    block: 32,
    bytes: size_of::<Block>(),
    dequantise: |b, y| from_table(&b[QS..], y, e8m0(b[E]), &E2M1),
    quantise: Some(|x, w, b| {
        let peak = x.iter().fold(0f32, |peak, x| peak.max(x.abs()));
        // 12 * e8m0(e) is the largest value. Tries the exponent of peak / 12 and its neighbors.
        let near = (i32::from(exponent(peak / 12.0)) + 1).clamp(0, 254);
        let range = (near - 2).max(0) as u8..=(near + 2).min(254) as u8;
        b[E] = least(range, |e| fit::error(x, w, TableCodes(&E2M1_ASCENDING), e8m0(e)));
        floats(x, e8m0(b[E]), &mut b[QS..]);
    }),
    kernels: Some(FormatKernels {
        text: concat!(cl_file!("../parts/e2m1.cl"), cl_file!("../parts/sixteen.cl"), cl_file!("mxfp4.cl")),
        units: &[(1, 1), (4, 4)],
        planes: None,
    }),
};

/// Returns the biased exponent of an f32.
fn exponent(x: f32) -> u8 {
    (x.to_bits() >> 23) as u8
}

/// Computes 2^(e - 128), also if it is subnormal.
fn e8m0(e: u8) -> f32 {
    f32::from_bits(match e {
        0 | 1 => 0x0020_0000 << e,
        _ => u32::from(e - 1) << 23,
    })
}
