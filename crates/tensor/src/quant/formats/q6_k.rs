//! Q6_K: super-blocks of 16 groups of 16. Element i of group g is `(d * s) * (q - 32)`, where s is the signed byte `scales[g]`. Let `h = g
//! / 8`, `r = g / 2 % 4` and `l = 16 * (g % 2) + i`. The low four bits of q are a nibble of `ql[64 * h + 32 * (r % 2) + l]`, the low one
//! for r < 2. The upper two are the bits of `qh[32 * h + l]` from bit `2 * r` on.

use crate::quant::fit::LinearCodes;
use crate::quant::format::{Format, FormatKernels, f16_at, put_f16};
use crate::quant::pieces::Piece;
use crate::quant::super_block::symmetric;
use netcl_kernel::cl_file;
use std::mem::offset_of;

/// A block, as stored in files.
#[repr(C)]
struct Block {
    ql: [u8; 128],
    qh: [u8; 64],
    scales: [u8; 16],
    d: [u8; 2],
}
const _: () = assert!(size_of::<Block>() == 210);
const QL: usize = offset_of!(Block, ql);
const QH: usize = offset_of!(Block, qh);
const SCALES: usize = offset_of!(Block, scales);
const D: usize = offset_of!(Block, d);

/// 6.6 bits per element.
pub static Q6_K: Format = Format {
    name: "Q6_K",
    number: 14,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let d = f16_at(b, D);
        for (g, y) in y.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(b[SCALES + g] as i8);
            let [low, low_shift, high, high_shift] = six_places(g);
            for (i, y) in y.iter_mut().enumerate() {
                let q = b[low + i] >> low_shift & 15 | (b[high + i] >> high_shift & 3) << 4;
                *y = scale * (i32::from(q) - 32) as f32;
            }
        }
    },
    quantise: Some(|x, w, b| {
        let fitted = symmetric::<16, _>(x, w, LinearCodes { low: -32.0, high: 31.0 }, [-128.0, 127.0]);
        b.fill(0);
        put_f16(b, D, fitted.d);
        for (g, q) in fitted.q.chunks_exact(16).enumerate() {
            b[SCALES + g] = fitted.scales[g] as i8 as u8;
            let [low, low_shift, high, high_shift] = six_places(g);
            for (i, q) in q.iter().enumerate() {
                b[low + i] |= (q & 15) << low_shift;
                b[high + i] |= q >> 4 << high_shift;
            }
        }
    }),
    kernels: Some(FormatKernels {
        text: cl_file!("q6_k.cl"),
        units: &[(48, 4), (16, 1), (1, 2)],
        planes: Some(pieces),
    }),
};

/// Lists the planes of a row of `k` elements: low nibbles, upper two bits, scales, `d`.
fn pieces(bytes: usize, k: usize, each: &mut dyn FnMut(Piece)) {
    let scales = k / 2 + k / 4;
    for b in 0..k / 256 {
        let block = b * bytes;
        each(Piece::Same(block + SCALES, scales + 16 * b, 16));
        each(Piece::Same(block + D, scales + k / 16 + 2 * b, 2));
        for half in 0..2 {
            let to = 128 * b + 64 * half;
            each(Piece::Nibbles(block + QL + 64 * half, [to, to + 32]));
            each(Piece::Nibbles(block + QL + 64 * half + 32, [to + 16, to + 48]));
            each(Piece::Sixth(block + QH + 32 * half, k / 2 + 64 * b + 32 * half));
        }
    }
}

/// Returns the position of the bits of group `g`: byte and bit of the lower four, byte and bit of the upper two.
fn six_places(g: usize) -> [usize; 4] {
    let (half, r, l) = (g / 8, g / 2 % 4, 16 * (g % 2));
    [QL + 64 * half + 32 * (r % 2) + l, 4 * (r / 2), QH + 32 * half + l, 2 * r]
}
