//! Q3_K: super-blocks of 16 groups of 16. Element i of group g is `(d * (s - 32)) * (q - 4)`. The low two bits of q are the bits of `qs[32
//! * (g / 8) + 16 * (g % 2) + i]` from bit `2 * (g / 2 % 4)` on. The third bit is bit `g / 2` of `hmask[16 * (g % 2) + i]`.
//!
//! The low four bits of s are a nibble of `scales[g % 8]` (the low one for g < 8). The upper two are the bits of `scales[8 + g % 4]` from
//! bit `2 * (g / 4)` on.

use crate::quant::fit::LinearCodes;
use crate::quant::format::{Format, FormatKernels, f16_at, put_f16};
use crate::quant::parts::two_bits::two_bits;
use crate::quant::super_block::symmetric;
use netcl_kernel::cl_file;
use std::mem::offset_of;

/// A block, as stored in files.
#[repr(C)]
struct Block {
    hmask: [u8; 32],
    qs: [u8; 64],
    scales: [u8; 12],
    d: [u8; 2],
}
const _: () = assert!(size_of::<Block>() == 110);
const HMASK: usize = offset_of!(Block, hmask);
const QS: usize = offset_of!(Block, qs);
const SCALES: usize = offset_of!(Block, scales);
const D: usize = offset_of!(Block, d);

/// 3.4 bits per element.
pub static Q3_K: Format = Format {
    name: "Q3_K",
    number: 11,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let d = f16_at(b, D);
        for (g, y) in y.chunks_exact_mut(16).enumerate() {
            let nibble = b[SCALES + g % 8] >> (4 * (g / 8)) & 15;
            let scale = i32::from(nibble | (b[SCALES + 8 + g % 4] >> (2 * (g / 4)) & 3) << 4);
            let scale = d * (scale - 32) as f32;
            let (at, shift) = two_bits(g);
            for (i, y) in y.iter_mut().enumerate() {
                let high = b[HMASK + 16 * (g % 2) + i] >> (g / 2) & 1;
                *y = scale * (i32::from(b[QS + at + i] >> shift & 3 | high << 2) - 4) as f32;
            }
        }
    },
    quantise: Some(|x, w, b| {
        let fitted = symmetric::<16, _>(x, w, LinearCodes { low: -4.0, high: 3.0 }, [-32.0, 31.0]);
        b.fill(0);
        put_f16(b, D, fitted.d);
        for (g, q) in fitted.q.chunks_exact(16).enumerate() {
            let scale = (fitted.scales[g] + 32) as u8;
            b[SCALES + g % 8] |= (scale & 15) << (4 * (g / 8));
            b[SCALES + 8 + g % 4] |= scale >> 4 << (2 * (g / 4));
            let (at, shift) = two_bits(g);
            for (i, q) in q.iter().enumerate() {
                b[QS + at + i] |= (q & 3) << shift;
                b[HMASK + 16 * (g % 2) + i] |= q >> 2 << (g / 2);
            }
        }
    }),
    kernels: Some(FormatKernels {
        text: cl_file!("q3_k.cl"),
        units: &[(24, 4), (12, 1), (1, 2)],
        planes: None,
    }),
};
