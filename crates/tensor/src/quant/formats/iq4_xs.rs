//! IQ4_XS: super-blocks of 8 groups of 32. An element of group g is `(d * (s - 32)) * NORMAL[q]`, with nibbles as in IQ4_NL. The low four
//! bits of s are nibble g % 2 of `scales_l[g / 2]`, and the upper two are the bits of `scales_h`, a little-endian number, from bit 2g on.

use crate::quant::fit::TableCodes;
use crate::quant::format::{Format, FormatKernels, f16_at, put_f16, u16_at};
use crate::quant::parts::nibbles::put_nibbles;
use crate::quant::parts::tables::{NORMAL, from_table};
use crate::quant::super_block::symmetric;
use netcl_kernel::cl_file;
use std::mem::offset_of;

/// A block, as stored in files.
#[repr(C)]
struct Block {
    d: [u8; 2],
    scales_h: [u8; 2],
    scales_l: [u8; 4],
    qs: [u8; 128],
}
const _: () = assert!(size_of::<Block>() == 136);
const D: usize = offset_of!(Block, d);
const SCALES_H: usize = offset_of!(Block, scales_h);
const SCALES_L: usize = offset_of!(Block, scales_l);
const QS: usize = offset_of!(Block, qs);

/// IQ4_NL in super-blocks: 4.25 bits per element.
pub static IQ4_XS: Format = Format {
    name: "IQ4_XS",
    number: 23,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let (d, high) = (f16_at(b, D), u16_at(b, SCALES_H));
        for (g, y) in y.chunks_exact_mut(32).enumerate() {
            let scale =
                i32::from(b[SCALES_L + g / 2] >> (4 * (g % 2)) & 15) | i32::from(high >> (2 * g) & 3) << 4;
            from_table(&b[QS + 16 * g..], y, d * (scale - 32) as f32, &NORMAL);
        }
    },
    quantise: Some(|x, w, b| {
        let fitted = symmetric::<32, _>(x, w, TableCodes(&NORMAL), [-32.0, 31.0]);
        b.fill(0);
        put_f16(b, D, fitted.d);
        let mut high = 0;
        for (g, q) in fitted.q.chunks_exact(32).enumerate() {
            let scale = (fitted.scales[g] + 32) as u8;
            b[SCALES_L + g / 2] |= (scale & 15) << (4 * (g % 2));
            high |= u16::from(scale >> 4) << (2 * g);
            put_nibbles(q, &mut b[QS + 16 * g..QS + 16 * (g + 1)]);
        }
        b[SCALES_H..SCALES_L].copy_from_slice(&high.to_le_bytes());
    }),
    kernels: Some(FormatKernels {
        text: concat!(cl_file!("../parts/normal.cl"), cl_file!("../parts/sixteen.cl"), cl_file!("iq4_xs.cl")),
        units: &[(2, 2), (4, 1), (32, 4)],
        planes: None,
    }),
};
