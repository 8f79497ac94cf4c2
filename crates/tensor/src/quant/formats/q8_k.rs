//! Q8_K: super-blocks of 256. Element i is `d * q`, where q is the signed byte `qs[i]`; `bsums[i]` is the sum of 16 of them.

use crate::quant::fit::{self, LinearCodes};
use crate::quant::format::{Format, u32_at};
use std::mem::offset_of;

/// A block, as stored in memory.
#[repr(C)]
struct Block {
    d: [u8; 4],
    qs: [u8; 256],
    bsums: [u8; 32],
}
const _: () = assert!(size_of::<Block>() == 292);
const D: usize = offset_of!(Block, d);
const QS: usize = offset_of!(Block, qs);
const BSUMS: usize = offset_of!(Block, bsums);

/// Bytes, and sums of 16 of them. Used for activations, not in files.
pub static Q8_K: Format = Format {
    name: "Q8_K",
    number: 15,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let d = f32::from_bits(u32_at(b, D));
        y.iter_mut().zip(&b[QS..BSUMS]).for_each(|(y, q)| *y = d * f32::from(*q as i8));
    },
    quantise: Some(|x, w, b| {
        let (codes, mut q) = (LinearCodes { low: -127.0, high: 127.0 }, [0; 256]);
        let d = fit::scale(x, w, codes, |d| d);
        fit::codes(x, codes, d, &mut q);
        b[D..QS].copy_from_slice(&d.to_le_bytes());
        b[QS..BSUMS].iter_mut().zip(q).for_each(|(b, q)| *b = q.wrapping_sub(127));
        for g in 0..16 {
            let sum: i16 = b[QS + 16 * g..QS + 16 * (g + 1)].iter().map(|q| i16::from(*q as i8)).sum();
            b[BSUMS + 2 * g..BSUMS + 2 * (g + 1)].copy_from_slice(&sum.to_le_bytes());
        }
    }),
    kernels: None,
};
