//! Q8_0: blocks of 32. Element i is `d * q`, where q is the signed byte `qs[i]`.

use crate::quant::format::{Format, FormatKernels, f16_at, put_f16};
use crate::quant::parts::bytes::{bytes, q8};
use crate::quant::pieces::Piece;
use netcl_kernel::cl_file;
use std::mem::offset_of;

/// A block, as stored in files.
#[repr(C)]
struct Block {
    d: [u8; 2],
    qs: [u8; 32],
}
const _: () = assert!(size_of::<Block>() == 34);
const D: usize = offset_of!(Block, d);
const QS: usize = offset_of!(Block, qs);

/// Bytes and a scale.
pub static Q8_0: Format = Format {
    name: "Q8_0",
    number: 8,
    block: 32,
    bytes: size_of::<Block>(),
    dequantise: |b, y| bytes(&b[QS..], y, f16_at(b, D)),
    quantise: Some(|x, w, b| {
        let d = q8(x, w, &mut b[QS..]);
        put_f16(b, D, d);
    }),
    kernels: Some(FormatKernels {
        text: cl_file!("q8_0.cl"),
        units: &[(1, 2), (8, 4)],
        planes: Some(pieces),
    }),
};

/// Lists the planes of a row of `k` elements: bytes of the first halves of all groups, bytes of the second halves, scales.
fn pieces(bytes: usize, k: usize, each: &mut dyn FnMut(Piece)) {
    for u in 0..k / 32 {
        let block = u * bytes;
        each(Piece::Same(block + D, k + 2 * u, 2));
        each(Piece::Same(block + QS, 16 * u, 16));
        each(Piece::Same(block + QS + 16, k / 2 + 16 * u, 16));
    }
}
