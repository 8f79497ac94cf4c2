//! Q2_K: super-blocks of 16 groups of 16. Element i of group g is `(d * s) * q - (dmin * m)`. `s` is the low and `m` the high nibble of
//! `scales[g]`, and q is the two bits of `qs[32 * (g / 8) + 16 * (g % 2) + i]` from bit `2 * (g / 2 % 4)` on.

use crate::quant::format::{Format, FormatKernels, f16_at, put_f16};
use crate::quant::parts::two_bits::two_bits;
use crate::quant::super_block::affine;
use netcl_kernel::cl_file;
use std::mem::offset_of;

/// A block, as stored in files.
#[repr(C)]
struct Block {
    scales: [u8; 16],
    qs: [u8; 64],
    d: [u8; 2],
    dmin: [u8; 2],
}
const _: () = assert!(size_of::<Block>() == 84);
const SCALES: usize = offset_of!(Block, scales);
const QS: usize = offset_of!(Block, qs);
const D: usize = offset_of!(Block, d);
const DMIN: usize = offset_of!(Block, dmin);

/// 2.6 bits per element.
pub static Q2_K: Format = Format {
    name: "Q2_K",
    number: 10,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let (d, dmin) = (f16_at(b, D), f16_at(b, DMIN));
        for (g, y) in y.chunks_exact_mut(16).enumerate() {
            let (scale, min) = (d * f32::from(b[SCALES + g] & 15), dmin * f32::from(b[SCALES + g] >> 4));
            let (at, shift) = two_bits(g);
            for (y, q) in y.iter_mut().zip(&b[QS + at..]) {
                *y = scale * f32::from(q >> shift & 3) - min;
            }
        }
    },
    quantise: Some(|x, w, b| {
        let fitted = affine::<16>(x, w, 3.0, 15.0);
        b.fill(0);
        put_f16(b, D, fitted.d);
        put_f16(b, DMIN, fitted.dmin);
        for (g, q) in fitted.q.chunks_exact(16).enumerate() {
            b[SCALES + g] = fitted.scales[g] | fitted.mins[g] << 4;
            let (at, shift) = two_bits(g);
            b[QS + at..].iter_mut().zip(q).for_each(|(b, q)| *b |= q << shift);
        }
    }),
    kernels: Some(FormatKernels {
        text: cl_file!("q2_k.cl"),
        units: &[(16, 1), (16, 4), (2, 2)],
        planes: None,
    }),
};
