//! TQ1_0: blocks of 256 elements that are -1, 0 or 1 times `d`. An element is `d * (t - 1)`, t a digit of base 3.
//!
//! A byte b has five digits: the number that they form, times 256/243 and rounded up, so that digit n is the integer part of
//! `3 * (b * 3^n mod 256) / 256`. `qs[..32]` have elements 0 to 159: digit n of byte k is element `32 * n + k`. `qs[32..]` have the next 80 in the
//! same way by 16, and `qh` the last 16 by 4, with four digits each and 0 as the fifth.

use crate::quant::format::{Format, f16_at, put_f16};
use crate::quant::parts::ternary::digits;
use std::mem::offset_of;

/// Layout of a block in files.
#[repr(C)]
struct Block {
    qs: [u8; 48],
    qh: [u8; 4],
    d: [u8; 2],
}
const _: () = assert!(size_of::<Block>() == 54);
const QS: usize = offset_of!(Block, qs);
const QH: usize = offset_of!(Block, qh);
const D: usize = offset_of!(Block, d);

/// 1.7 bits per element.
pub static TQ1_0: Format = Format {
    name: "TQ1_0",
    number: 34,
    block: 256,
    bytes: size_of::<Block>(),
    dequantise: |b, y| {
        let d = f16_at(b, D);
        for (first, byte, width, digits) in PARTS {
            for n in 0..digits {
                for k in 0..width {
                    let b = b[byte + k].wrapping_mul(POWERS[n]);
                    y[first + n * width + k] = (((i32::from(b) * 3) >> 8) - 1) as f32 * d;
                }
            }
        }
    },
    quantise: Some(|x, w, b| {
        let (d, q) = digits(x, w);
        put_f16(b, D, d);
        for (first, byte, width, digits) in PARTS {
            for k in 0..width {
                let digit = |n: usize| if n < digits { u32::from(q[first + n * width + k]) } else { 0 };
                let number = (0..5).fold(0, |sum, n| sum * 3 + digit(n));
                b[byte + k] = (number * 256).div_ceil(243) as u8;
            }
        }
    }),
    kernels: None,
};

/// Parts of a block: first element, first byte, bytes, digits per byte.
const PARTS: [(usize, usize, usize, usize); 3] = [(0, QS, 32, 5), (160, QS + 32, 16, 5), (240, QH, 4, 4)];
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
