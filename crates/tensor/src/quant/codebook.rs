//! Four bits an element that choose from a table of 16 values which stand closer around zero. The bytes of a block, in order; `d` is f16:
//!
//! | format | elements | bytes | element |
//! | --- | --- | --- | --- |
//! | IQ4_NL | 32 | `d` 2, `qs` 16 | `d * NORMAL[q]` |
//! | IQ4_XS | 256, 8 groups of 32 | `d` 2, `scales_h` 2, `scales_l` 4, `qs` 128 | `(d * (s - 32)) * NORMAL[q]` |
//! | MXFP4 | 32 | `e` 1, `qs` 16 | `2^(e - 128) * E2M1[q]` (OCP Microscaling Formats 1.0: the table has twice its values) |
//! | NVFP4 | 64, 4 groups of 16 | `s` 4 of E4M3 without sign, `qs` 32 | `(s[g] / 2) * E2M1[q]` |
//!
//! q of element i of a block or group of n: the low nibble of `qs[i]` for i < n/2, else the high nibble of `qs[i - n/2]`; groups lie one
//! behind the other. The scale of IQ4_XS's group g: the nibble g % 2 of `scales_l[g / 2]`, and above it the two bits of `scales_h`, a
//! little-endian number, from bit 2g.

use super::fit::{self, Codes, Table};
use super::format::{Format, f16_at, put_f16, u16_at};
use super::legacy::put_nibbles;
use super::super_block::symmetric;

/// About the quantiles of a normal distribution.
pub static NORMAL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the values of a number with a sign, two bits of exponent and one of mantissa.
pub static E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// The same in order, without the second zero.
static E2M1_ASCENDING: [i8; 15] = [-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12];

/// A nibble an element, and a scale.
pub static IQ4_NL: Format = Format {
    name: "IQ4_NL",
    number: 20,
    block: 32,
    bytes: 18,
    dequantise: |b, y| from_table(&b[2..], y, f16_at(b, 0), &NORMAL),
    quantise: Some(|x, w, b| {
        let mut q = [0; 32];
        let d = fit::scale(x, w, Table(&NORMAL), fit::to_f16);
        fit::codes(x, Table(&NORMAL), d, &mut q);
        put_f16(b, 0, d);
        put_nibbles(&q, &mut b[2..]);
    }),
};
/// The same in super-blocks: 4.25 bits an element.
pub static IQ4_XS: Format = Format {
    name: "IQ4_XS",
    number: 23,
    block: 256,
    bytes: 136,
    dequantise: |b, y| {
        let (d, high) = (f16_at(b, 0), u16_at(b, 2));
        for (g, y) in y.chunks_exact_mut(32).enumerate() {
            let scale = i32::from(b[4 + g / 2] >> (4 * (g % 2)) & 15) | i32::from(high >> (2 * g) & 3) << 4;
            from_table(&b[8 + 16 * g..], y, d * (scale - 32) as f32, &NORMAL);
        }
    },
    quantise: Some(|x, w, b| {
        let fitted = symmetric::<32, _>(x, w, Table(&NORMAL), [-32.0, 31.0]);
        b.fill(0);
        put_f16(b, 0, fitted.d);
        let mut high = 0;
        for (g, q) in fitted.q.chunks_exact(32).enumerate() {
            let scale = (fitted.scales[g] + 32) as u8;
            b[4 + g / 2] |= (scale & 15) << (4 * (g % 2));
            high |= u16::from(scale >> 4) << (2 * g);
            put_nibbles(q, &mut b[8 + 16 * g..24 + 16 * g]);
        }
        b[2..4].copy_from_slice(&high.to_le_bytes());
    }),
};
/// A nibble an element, and a power of two.
pub static MXFP4: Format = Format {
    name: "MXFP4",
    number: 39,
    block: 32,
    bytes: 17,
    dequantise: |b, y| from_table(&b[1..], y, e8m0(b[0]), &E2M1),
    quantise: Some(|x, w, b| {
        let peak = x.iter().fold(0f32, |peak, x| peak.max(x.abs()));
        // 12 * e8m0(e) is the largest value: the exponent of peak / 12, and those around it.
        let near = (i32::from(exponent(peak / 12.0)) + 1).clamp(0, 254);
        let range = (near - 2).max(0) as u8..=(near + 2).min(254) as u8;
        b[0] = least(range, |e| fit::error(x, w, Table(&E2M1_ASCENDING), e8m0(e)));
        floats(x, e8m0(b[0]), &mut b[1..]);
    }),
};
/// A nibble an element, and a small float for 16 of them.
pub static NVFP4: Format = Format {
    name: "NVFP4",
    number: 40,
    block: 64,
    bytes: 36,
    dequantise: |b, y| {
        for (g, y) in y.chunks_exact_mut(16).enumerate() {
            from_table(&b[4 + 8 * g..], y, e4m3(b[g]), &E2M1);
        }
    },
    quantise: Some(|x, w, b| {
        for (g, (x, w)) in x.chunks_exact(16).zip(w.chunks_exact(16)).enumerate() {
            let scale = fit::scale(x, w, Table(&E2M1_ASCENDING), |d| d).abs();
            let above = (0..E4M3_END).find(|s| e4m3(*s) >= scale).unwrap_or(E4M3_END - 1);
            // Eight codes double the scale.
            let range = above.saturating_sub(12)..=(above + 12).min(E4M3_END - 1);
            b[g] = least(range, |s| fit::error(x, w, Table(&E2M1_ASCENDING), e4m3(s)));
            floats(x, e4m3(b[g]), &mut b[4 + 8 * g..12 + 8 * g]);
        }
    }),
};

/// The code of NVFP4's scales that stands for no number.
const E4M3_END: u8 = 0x7f;

fn from_table(qs: &[u8], y: &mut [f32], d: f32, table: &[i8; 16]) {
    let (low, high) = y.split_at_mut(y.len() / 2);
    for ((low, high), q) in low.iter_mut().zip(high).zip(qs) {
        *low = d * f32::from(table[usize::from(q & 15)]);
        *high = d * f32::from(table[usize::from(q >> 4)]);
    }
}

/// Elements as nibbles of E2M1 in units of `d`, which is not negative.
fn floats(x: &[f32], d: f32, qs: &mut [u8]) {
    let mut q = [0; 32];
    let codes = Table(&E2M1_ASCENDING);
    fit::codes(x, codes, d, &mut q);
    for q in &mut q[..x.len()] {
        let value = codes.value(*q) as i8;
        *q = E2M1.iter().position(|v| *v == value).unwrap_or(0) as u8;
    }
    put_nibbles(&q[..x.len()], qs);
}

/// The number in `range` with the least error.
fn least(range: std::ops::RangeInclusive<u8>, error: impl Fn(u8) -> f32) -> u8 {
    range.map(|n| (n, error(n))).min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(n, _)| n)
}

/// The biased exponent of an f32.
fn exponent(x: f32) -> u8 {
    (x.to_bits() >> 23) as u8
}

/// 2^(e - 128), also where that is subnormal.
pub fn e8m0(e: u8) -> f32 {
    f32::from_bits(match e {
        0 | 1 => 0x0020_0000 << e,
        _ => u32::from(e - 1) << 23,
    })
}

/// Half of a float with four bits of exponent and three of mantissa, without sign.
pub fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    match bits {
        0 | E4M3_END => 0.0,
        _ if exponent == 0 => mantissa * 2f32.powi(-10),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 8),
    }
}
