//! Blocks of 32 (Q1_0: 128, Q2_0: 64) with one scale, in some with an offset. The bytes of a block, in order; `d`, `m` are f16:
//!
//! | format | bytes | element i of the block |
//! | --- | --- | --- |
//! | Q4_0 | `d` 2, `qs` 16 | `d * (q - 8)` |
//! | Q4_1 | `d` 2, `m` 2, `qs` 16 | `d * q + m` |
//! | Q5_0 | `d` 2, `qh` 4, `qs` 16 | `d * (q - 16)` |
//! | Q5_1 | `d` 2, `m` 2, `qh` 4, `qs` 16 | `d * q + m` |
//! | Q8_0 | `d` 2, `qs` 32 | `d * q`, q signed |
//! | Q8_1 | `d` 2, `s` 2, `qs` 32 | `d * q`, q signed; `s = d * Σ q` |
//! | Q1_0 | `d` 2, `qs` 16 | `d` where bit `i % 8` of `qs[i / 8]` is set, else `-d` |
//! | Q2_0 | `d` 2, `qs` 16 | `d * (q - 1)`, q the two bits from `2 * (i % 4)` of `qs[i / 4]` |
//!
//! In Q4 and Q5 the lower four bits of q are the low nibble of `qs[i]` for i < 16 and the high nibble of `qs[i - 16]` for the others; the
//! fifth bit is bit i of `qh` read as a little-endian number.

use super::fit::{self, Linear};
use super::format::{Format, f16_at, put_f16, u32_at};

/// A nibble an element, and a scale.
pub static Q4_0: Format = Format {
    name: "Q4_0",
    number: 2,
    block: 32,
    bytes: 18,
    dequantise: |b, y| {
        let d = f16_at(b, 0);
        nibbles(&b[2..], y, |q| (q as i32 - 8) as f32 * d);
    },
    quantise: Some(|x, w, b| {
        let (codes, mut q) = (Linear { low: -8.0, high: 7.0 }, [0; 32]);
        let d = fit::scale(x, w, codes, fit::to_f16);
        fit::codes(x, codes, d, &mut q);
        put_f16(b, 0, d);
        put_nibbles(&q, &mut b[2..]);
    }),
};
/// A nibble an element, a scale and an offset.
pub static Q4_1: Format = Format {
    name: "Q4_1",
    number: 3,
    block: 32,
    bytes: 20,
    dequantise: |b, y| {
        let (d, m) = (f16_at(b, 0), f16_at(b, 2));
        nibbles(&b[4..], y, |q| f32::from(q) * d + m);
    },
    quantise: Some(|x, w, b| {
        let mut q = [0; 32];
        let (d, m) = fit::affine_f16(x, w, 15.0);
        fit::affine_codes(x, 15.0, d, m, &mut q);
        put_f16(b, 0, d);
        put_f16(b, 2, m);
        put_nibbles(&q, &mut b[4..]);
    }),
};
/// Five bits an element, and a scale.
pub static Q5_0: Format = Format {
    name: "Q5_0",
    number: 6,
    block: 32,
    bytes: 22,
    dequantise: |b, y| {
        let d = f16_at(b, 0);
        fives(u32_at(b, 2), &b[6..], y, |q| (q as i32 - 16) as f32 * d);
    },
    quantise: Some(|x, w, b| {
        let (codes, mut q) = (Linear { low: -16.0, high: 15.0 }, [0; 32]);
        let d = fit::scale(x, w, codes, fit::to_f16);
        fit::codes(x, codes, d, &mut q);
        put_f16(b, 0, d);
        put_fives(&q, &mut b[2..]);
    }),
};
/// Five bits an element, a scale and an offset.
pub static Q5_1: Format = Format {
    name: "Q5_1",
    number: 7,
    block: 32,
    bytes: 24,
    dequantise: |b, y| {
        let (d, m) = (f16_at(b, 0), f16_at(b, 2));
        fives(u32_at(b, 4), &b[8..], y, |q| f32::from(q) * d + m);
    },
    quantise: Some(|x, w, b| {
        let mut q = [0; 32];
        let (d, m) = fit::affine_f16(x, w, 31.0);
        fit::affine_codes(x, 31.0, d, m, &mut q);
        put_f16(b, 0, d);
        put_f16(b, 2, m);
        put_fives(&q, &mut b[4..]);
    }),
};
/// A byte an element, and a scale.
pub static Q8_0: Format = Format {
    name: "Q8_0",
    number: 8,
    block: 32,
    bytes: 34,
    dequantise: |b, y| bytes(&b[2..], y, f16_at(b, 0)),
    quantise: Some(|x, w, b| {
        let d = q8(x, w, &mut b[2..]);
        put_f16(b, 0, d);
    }),
};
/// Q8_0 with the sum of its elements. Activations have it, no file.
pub static Q8_1: Format = Format {
    name: "Q8_1",
    number: 9,
    block: 32,
    bytes: 36,
    dequantise: |b, y| bytes(&b[4..], y, f16_at(b, 0)),
    quantise: Some(|x, w, b| {
        let d = q8(x, w, &mut b[4..]);
        let sum: i32 = b[4..].iter().map(|q| i32::from(*q as i8)).sum();
        put_f16(b, 0, d);
        put_f16(b, 2, d * sum as f32);
    }),
};
/// A sign an element, and a scale.
pub static Q1_0: Format = Format {
    name: "Q1_0",
    number: 41,
    block: 128,
    bytes: 18,
    dequantise: |b, y| {
        let d = f16_at(b, 0);
        for (i, y) in y.iter_mut().enumerate() {
            *y = if b[2 + i / 8] >> (i % 8) & 1 == 1 { d } else { -d };
        }
    },
    quantise: Some(|x, w, b| {
        // The least squared error has the mean magnitude.
        let (sum, all) = x.iter().zip(w).fold((0.0, 0.0), |(s, a), (x, w)| (s + w * x.abs(), a + w));
        b.fill(0);
        put_f16(b, 0, fit::to_f16(if all > 0.0 { sum / all } else { 0.0 }));
        for (i, x) in x.iter().enumerate() {
            b[2 + i / 8] |= u8::from(*x >= 0.0) << (i % 8);
        }
    }),
};
/// Two bits an element: -1, 0, 1 or 2 times a scale.
pub static Q2_0: Format = Format {
    name: "Q2_0",
    number: 42,
    block: 64,
    bytes: 18,
    dequantise: |b, y| {
        let d = f16_at(b, 0);
        for (i, y) in y.iter_mut().enumerate() {
            *y = (i32::from(b[2 + i / 4] >> (2 * (i % 4)) & 3) - 1) as f32 * d;
        }
    },
    quantise: Some(|x, w, b| {
        let (codes, mut q) = (Linear { low: -1.0, high: 2.0 }, [0; 64]);
        let d = fit::scale(x, w, codes, fit::to_f16);
        fit::codes(x, codes, d, &mut q);
        b.fill(0);
        put_f16(b, 0, d);
        for (i, q) in q.iter().enumerate() {
            b[2 + i / 4] |= q << (2 * (i % 4));
        }
    }),
};

/// Nibbles: those of the lower half in the low bits.
fn nibbles(qs: &[u8], y: &mut [f32], value: impl Fn(u8) -> f32) {
    let (low, high) = y.split_at_mut(16);
    for ((low, high), q) in low.iter_mut().zip(high).zip(qs) {
        (*low, *high) = (value(q & 15), value(q >> 4));
    }
}

/// Codes of at most 15, into nibbles. Higher bits are left out.
pub(super) fn put_nibbles(q: &[u8], qs: &mut [u8]) {
    let (low, high) = q.split_at(q.len() / 2);
    for ((low, high), out) in low.iter().zip(high).zip(qs) {
        *out = low & 15 | high << 4;
    }
}

/// Nibbles and fifth bits.
fn fives(high: u32, qs: &[u8], y: &mut [f32], value: impl Fn(u8) -> f32) {
    for i in 0..16 {
        let fifth = |i: usize| (high >> i & 1) as u8 * 16;
        (y[i], y[i + 16]) = (value(qs[i] & 15 | fifth(i)), value(qs[i] >> 4 | fifth(i + 16)));
    }
}

fn put_fives(q: &[u8], b: &mut [u8]) {
    let high = q.iter().enumerate().fold(0u32, |bits, (i, q)| bits | u32::from(q >> 4) << i);
    b[..4].copy_from_slice(&high.to_le_bytes());
    put_nibbles(q, &mut b[4..]);
}

fn bytes(qs: &[u8], y: &mut [f32], d: f32) {
    for (y, q) in y.iter_mut().zip(qs) {
        *y = f32::from(*q as i8) * d;
    }
}

/// The bytes of x; returns their scale.
fn q8(x: &[f32], w: &[f32], qs: &mut [u8]) -> f32 {
    let codes = Linear { low: -127.0, high: 127.0 };
    let d = fit::scale(x, w, codes, fit::to_f16);
    let mut q = [0; 32];
    fit::codes(x, codes, d, &mut q);
    // Codes are counted from the least.
    qs.iter_mut().zip(q).for_each(|(out, q)| *out = q.wrapping_sub(127));
    d
}
