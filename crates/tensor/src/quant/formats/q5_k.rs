//! Q5_K: super-blocks of 8 groups of 32. Element i of group g is `(d * s) * q - (dmin * m)`. The low four bits of q are a nibble of `qs[32
//! * (g / 2) + i]`, the low one for even g, and the fifth is bit g of `qh[i]`. parts/six_bits.rs describes s and m.

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
    qh: [u8; 32],
    qs: [u8; 128],
}
const _: () = assert!(size_of::<Block>() == 176);
const D: usize = offset_of!(Block, d);
const DMIN: usize = offset_of!(Block, dmin);
const SCALES: usize = offset_of!(Block, scales);
const QH: usize = offset_of!(Block, qh);
const QS: usize = offset_of!(Block, qs);

/// 5.5 bits per element.
pub static Q5_K: Format = Format {
    name: "Q5_K",
    number: 13,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let (d, dmin) = (f16_at(b, D), f16_at(b, DMIN));
        for (g, y) in y.chunks_exact_mut(32).enumerate() {
            let [s, m] = six_bits(&b[SCALES..QH], g);
            let (scale, min) = (d * s, dmin * m);
            for (i, y) in y.iter_mut().enumerate() {
                let low = b[QS + 32 * (g / 2) + i] >> (4 * (g % 2)) & 15;
                *y = scale * f32::from(low | (b[QH + i] >> g & 1) << 4) - min;
            }
        }
    },
    quantise: Some(|x, w, b| {
        let fitted = affine::<32>(x, w, 31.0, 63.0);
        b.fill(0);
        put_f16(b, D, fitted.d);
        put_f16(b, DMIN, fitted.dmin);
        for (g, q) in fitted.q.chunks_exact(32).enumerate() {
            put_six_bits(&mut b[SCALES..QH], g, [fitted.scales[g], fitted.mins[g]]);
            for (i, q) in q.iter().enumerate() {
                b[QS + 32 * (g / 2) + i] |= (q & 15) << (4 * (g % 2));
                b[QH + i] |= q >> 4 << g;
            }
        }
    }),
    kernels: Some(FormatKernels {
        text: concat!(cl_file!("../parts/six_bits.cl"), cl_file!("q5_k.cl")),
        units: &[(2, 2), (12, 1), (40, 4)],
        planes: Some(|bytes, k, each| pieces::super_blocks(bytes, QS, Some(QH), k, each)),
    }),
};
