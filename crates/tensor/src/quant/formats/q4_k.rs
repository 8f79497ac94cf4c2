//! Q4_K: super-blocks of 8 groups of 32. Element i of group g is `(d * s) * q - (dmin * m)`, where q is a nibble of `qs[32 * (g / 2) + i]`,
//! the low one for even g. parts/six_bits.rs describes s and m.

use crate::quant::format::{Format, FormatKernels, f16_at, put_f16};
use crate::quant::parts::six_bits::{put_six_bits, six_bits};
use crate::quant::pieces;
use crate::quant::super_block::affine;
use netcl_kernel::cl_file;
use std::mem::offset_of;

/// A block, as stored in files.
#[repr(C)]
struct Block {
    d: [u8; 2],
    dmin: [u8; 2],
    scales: [u8; 12],
    qs: [u8; 128],
}
const _: () = assert!(size_of::<Block>() == 144);
const D: usize = offset_of!(Block, d);
const DMIN: usize = offset_of!(Block, dmin);
const SCALES: usize = offset_of!(Block, scales);
const QS: usize = offset_of!(Block, qs);

/// 4.5 bits per element.
pub static Q4_K: Format = Format {
    name: "Q4_K",
    number: 12,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let (d, dmin) = (f16_at(b, D), f16_at(b, DMIN));
        for (g, y) in y.chunks_exact_mut(32).enumerate() {
            let [s, m] = six_bits(&b[SCALES..QS], g);
            let (scale, min) = (d * s, dmin * m);
            for (y, q) in y.iter_mut().zip(&b[QS + 32 * (g / 2)..]) {
                *y = scale * f32::from(q >> (4 * (g % 2)) & 15) - min;
            }
        }
    },
    quantise: Some(|x, w, b| {
        let fitted = affine::<32>(x, w, 15.0, 63.0);
        b.fill(0);
        put_f16(b, D, fitted.d);
        put_f16(b, DMIN, fitted.dmin);
        for (g, q) in fitted.q.chunks_exact(32).enumerate() {
            put_six_bits(&mut b[SCALES..QS], g, [fitted.scales[g], fitted.mins[g]]);
            b[QS + 32 * (g / 2)..].iter_mut().zip(q).for_each(|(b, q)| *b |= q << (4 * (g % 2)));
        }
    }),
    kernels: Some(FormatKernels {
        text: concat!(cl_file!("../parts/six_bits.cl"), cl_file!("q4_k.cl")),
        units: &[(2, 2), (12, 1), (32, 4)],
        planes: Some(|bytes, k, each| pieces::super_blocks(bytes, QS, None, k, each)),
    }),
};
