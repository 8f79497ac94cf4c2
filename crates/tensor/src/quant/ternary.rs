//! Blocks of 256 elements that are -1, 0 or 1 times an f16 `d` (BitNet and others trained so). The bytes of a block, in order:
//!
//! | format | bytes | element |
//! | --- | --- | --- |
//! | TQ1_0 | `qs` 48, `qh` 4, `d` 2 | `d * (t - 1)`, t a digit of base 3 |
//! | TQ2_0 | `qs` 64, `d` 2 | `d * (q - 1)`, q the two bits from `2 * (i / 32 % 4)` of `qs[32 * (i / 128) + i % 32]` |
//!
//! A byte b of TQ1_0 is five digits: the number they make, times 256/243 and rounded up, so that digit n is the integer part of
//! `3 * (b * 3^n mod 256) / 256`. `qs[..32]` have elements 0 to 159: digit n of byte k is element `32 * n + k`. `qs[32..]` have the next 80
//! in the same way by 16, and `qh` the last 16 by 4, with four digits each and 0 as the fifth.

use super::fit::{self, Linear};
use super::format::{Format, f16_at, put_f16};

/// 1.7 bits an element.
pub static TQ1_0: Format = Format {
    name: "TQ1_0",
    number: 34,
    block: 256,
    bytes: 54,
    dequantise: |b, y| {
        let d = f16_at(b, 52);
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
        put_f16(b, 52, d);
        for (first, byte, width, digits) in PARTS {
            for k in 0..width {
                let digit = |n: usize| if n < digits { u32::from(q[first + n * width + k]) } else { 0 };
                let number = (0..5).fold(0, |sum, n| sum * 3 + digit(n));
                b[byte + k] = (number * 256).div_ceil(243) as u8;
            }
        }
    }),
};
/// 2.1 bits an element.
pub static TQ2_0: Format = Format {
    name: "TQ2_0",
    number: 35,
    block: 256,
    bytes: 66,
    dequantise: |b, y| {
        let d = f16_at(b, 64);
        for (g, y) in y.chunks_exact_mut(32).enumerate() {
            for (y, b) in y.iter_mut().zip(&b[32 * (g / 4)..]) {
                *y = (i32::from(b >> (2 * (g % 4)) & 3) - 1) as f32 * d;
            }
        }
    },
    quantise: Some(|x, w, b| {
        let (d, q) = digits(x, w);
        b.fill(0);
        put_f16(b, 64, d);
        for (g, q) in q.chunks_exact(32).enumerate() {
            b[32 * (g / 4)..].iter_mut().zip(q).for_each(|(b, q)| *b |= q << (2 * (g % 4)));
        }
    }),
};

/// Parts of a TQ1_0 block: first element, first byte, bytes, digits a byte.
const PARTS: [(usize, usize, usize, usize); 3] = [(0, 0, 32, 5), (160, 32, 16, 5), (240, 48, 4, 4)];
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// Scale, and the elements in its units from -1, counted from 0.
fn digits(x: &[f32], w: &[f32]) -> (f32, [u8; 256]) {
    let (codes, mut q) = (Linear { low: -1.0, high: 1.0 }, [0; 256]);
    let d = fit::scale(x, w, codes, fit::to_f16);
    fit::codes(x, codes, d, &mut q);
    (d, q)
}
