//! Super-blocks of 256 elements: groups whose scales are themselves whole numbers times an f16. The bytes of a block, in order; `d` and
//! `dmin` are f16:
//!
//! | format | bytes | groups | element, in a group of scale `s` and minimum `m` |
//! | --- | --- | --- | --- |
//! | Q2_K | `scales` 16, `qs` 64, `d` 2, `dmin` 2 | 16 of 16 | `(d * s) * q - (dmin * m)`; `s` the low and `m` the high nibble of `scales[g]` |
//! | Q3_K | `hmask` 32, `qs` 64, `scales` 12, `d` 2 | 16 of 16 | `(d * (s - 32)) * (q - 4)` |
//! | Q4_K | `d` 2, `dmin` 2, `scales` 12, `qs` 128 | 8 of 32 | `(d * s) * q - (dmin * m)` |
//! | Q5_K | `d` 2, `dmin` 2, `scales` 12, `qh` 32, `qs` 128 | 8 of 32 | `(d * s) * q - (dmin * m)` |
//! | Q6_K | `ql` 128, `qh` 64, `scales` 16 signed, `d` 2 | 16 of 16 | `((d * s) * (q - 32))` |
//! | Q8_K | `d` f32 4, `qs` 256 signed, `bsums` 16 i16 | 1 of 256 | `d * q`; `bsums[i]` sums 16 of q |
//!
//! Where the bits of element i of group g lie:
//!
//! | format | bits | |
//! | --- | --- | --- |
//! | Q2_K | 2 | `qs[32 * (g / 8) + 16 * (g % 2) + i]`, from bit `2 * (g / 2 % 4)` |
//! | Q3_K | 2 + 1 | as in Q2_K; the third is bit `g / 2` of `hmask[16 * (g % 2) + i]` |
//! | Q4_K | 4 | `qs[32 * (g / 2) + i]`, the low nibble for even g, the high one for odd |
//! | Q5_K | 4 + 1 | as in Q4_K; the fifth is bit g of `qh[i]` |
//! | Q6_K | 4 + 2 | with h = g / 8, r = g / 2 % 4, l = 16 * (g % 2) + i: `ql[64 * h + 32 * (r % 2) + l]`, the low nibble for r < 2, the high one for others; two bits of `qh[32 * h + l]` from bit `2 * r` |
//!
//! `scales` of Q3_K: the low four bits of scale g are a nibble of `scales[g % 8]` (low for g < 8), the upper two are those of
//! `scales[8 + g % 4]` from bit `2 * (g / 4)`. Of Q4_K and Q5_K, six bits of scale and minimum: for g < 4 the low six bits of `scales[g]` and
//! `scales[g + 4]`; for others their low four are the nibbles of `scales[g + 4]`, and the upper two are the upper two bits of
//! `scales[g - 4]` and `scales[g]`.

use super::fit::{self, Linear};
use super::format::{Format, f16_at, put_f16};
use super::super_block::{affine, symmetric};

/// 2.6 bits an element.
pub static Q2_K: Format = Format {
    name: "Q2_K",
    number: 10,
    block: 256,
    bytes: 84,
    dequantise: |b, y| {
        let (d, dmin) = (f16_at(b, 80), f16_at(b, 82));
        for (g, y) in y.chunks_exact_mut(16).enumerate() {
            let (scale, min) = (d * f32::from(b[g] & 15), dmin * f32::from(b[g] >> 4));
            let (at, shift) = two_bits(g);
            for (y, q) in y.iter_mut().zip(&b[16 + at..]) {
                *y = scale * f32::from(q >> shift & 3) - min;
            }
        }
    },
    quantise: Some(|x, w, b| {
        let fitted = affine::<16>(x, w, 3.0, 15.0);
        b.fill(0);
        put_f16(b, 80, fitted.d);
        put_f16(b, 82, fitted.dmin);
        for (g, q) in fitted.q.chunks_exact(16).enumerate() {
            b[g] = fitted.scales[g] | fitted.mins[g] << 4;
            let (at, shift) = two_bits(g);
            b[16 + at..].iter_mut().zip(q).for_each(|(b, q)| *b |= q << shift);
        }
    }),
};
/// 3.4 bits an element.
pub static Q3_K: Format = Format {
    name: "Q3_K",
    number: 11,
    block: 256,
    bytes: 110,
    dequantise: |b, y| {
        let d = f16_at(b, 108);
        for (g, y) in y.chunks_exact_mut(16).enumerate() {
            let nibble = b[96 + g % 8] >> (4 * (g / 8)) & 15;
            let scale = i32::from(nibble | (b[104 + g % 4] >> (2 * (g / 4)) & 3) << 4);
            let scale = d * (scale - 32) as f32;
            let (at, shift) = two_bits(g);
            for (i, y) in y.iter_mut().enumerate() {
                let high = b[16 * (g % 2) + i] >> (g / 2) & 1;
                *y = scale * (i32::from(b[32 + at + i] >> shift & 3 | high << 2) - 4) as f32;
            }
        }
    },
    quantise: Some(|x, w, b| {
        let fitted = symmetric::<16, _>(x, w, Linear { low: -4.0, high: 3.0 }, [-32.0, 31.0]);
        b.fill(0);
        put_f16(b, 108, fitted.d);
        for (g, q) in fitted.q.chunks_exact(16).enumerate() {
            let scale = (fitted.scales[g] + 32) as u8;
            b[96 + g % 8] |= (scale & 15) << (4 * (g / 8));
            b[104 + g % 4] |= scale >> 4 << (2 * (g / 4));
            let (at, shift) = two_bits(g);
            for (i, q) in q.iter().enumerate() {
                b[32 + at + i] |= (q & 3) << shift;
                b[16 * (g % 2) + i] |= q >> 2 << (g / 2);
            }
        }
    }),
};
/// 4.5 bits an element.
pub static Q4_K: Format = Format {
    name: "Q4_K",
    number: 12,
    block: 256,
    bytes: 144,
    dequantise: |b, y| {
        let (d, dmin) = (f16_at(b, 0), f16_at(b, 2));
        for (g, y) in y.chunks_exact_mut(32).enumerate() {
            let [s, m] = six_bits(&b[4..16], g);
            let (scale, min) = (d * s, dmin * m);
            for (y, q) in y.iter_mut().zip(&b[16 + 32 * (g / 2)..]) {
                *y = scale * f32::from(q >> (4 * (g % 2)) & 15) - min;
            }
        }
    },
    quantise: Some(|x, w, b| {
        let fitted = affine::<32>(x, w, 15.0, 63.0);
        b.fill(0);
        put_f16(b, 0, fitted.d);
        put_f16(b, 2, fitted.dmin);
        for (g, q) in fitted.q.chunks_exact(32).enumerate() {
            put_six_bits(&mut b[4..16], g, [fitted.scales[g], fitted.mins[g]]);
            b[16 + 32 * (g / 2)..].iter_mut().zip(q).for_each(|(b, q)| *b |= q << (4 * (g % 2)));
        }
    }),
};
/// 5.5 bits an element.
pub static Q5_K: Format = Format {
    name: "Q5_K",
    number: 13,
    block: 256,
    bytes: 176,
    dequantise: |b, y| {
        let (d, dmin) = (f16_at(b, 0), f16_at(b, 2));
        for (g, y) in y.chunks_exact_mut(32).enumerate() {
            let [s, m] = six_bits(&b[4..16], g);
            let (scale, min) = (d * s, dmin * m);
            for (i, y) in y.iter_mut().enumerate() {
                let low = b[48 + 32 * (g / 2) + i] >> (4 * (g % 2)) & 15;
                *y = scale * f32::from(low | (b[16 + i] >> g & 1) << 4) - min;
            }
        }
    },
    quantise: Some(|x, w, b| {
        let fitted = affine::<32>(x, w, 31.0, 63.0);
        b.fill(0);
        put_f16(b, 0, fitted.d);
        put_f16(b, 2, fitted.dmin);
        for (g, q) in fitted.q.chunks_exact(32).enumerate() {
            put_six_bits(&mut b[4..16], g, [fitted.scales[g], fitted.mins[g]]);
            for (i, q) in q.iter().enumerate() {
                b[48 + 32 * (g / 2) + i] |= (q & 15) << (4 * (g % 2));
                b[16 + i] |= q >> 4 << g;
            }
        }
    }),
};
/// 6.6 bits an element.
pub static Q6_K: Format = Format {
    name: "Q6_K",
    number: 14,
    block: 256,
    bytes: 210,
    dequantise: |b, y| {
        let d = f16_at(b, 208);
        for (g, y) in y.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(b[192 + g] as i8);
            let [low, low_shift, high, high_shift] = six_places(g);
            for (i, y) in y.iter_mut().enumerate() {
                let q = b[low + i] >> low_shift & 15 | (b[high + i] >> high_shift & 3) << 4;
                *y = scale * (i32::from(q) - 32) as f32;
            }
        }
    },
    quantise: Some(|x, w, b| {
        let fitted = symmetric::<16, _>(x, w, Linear { low: -32.0, high: 31.0 }, [-128.0, 127.0]);
        b.fill(0);
        put_f16(b, 208, fitted.d);
        for (g, q) in fitted.q.chunks_exact(16).enumerate() {
            b[192 + g] = fitted.scales[g] as i8 as u8;
            let [low, low_shift, high, high_shift] = six_places(g);
            for (i, q) in q.iter().enumerate() {
                b[low + i] |= (q & 15) << low_shift;
                b[high + i] |= q >> 4 << high_shift;
            }
        }
    }),
};
/// A byte an element and sums of 16 of them. Activations have it, no file.
pub static Q8_K: Format = Format {
    name: "Q8_K",
    number: 15,
    block: 256,
    bytes: 292,
    dequantise: |b, y| {
        let d = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        y.iter_mut().zip(&b[4..]).for_each(|(y, q)| *y = d * f32::from(*q as i8));
    },
    quantise: Some(|x, w, b| {
        let (codes, mut q) = (Linear { low: -127.0, high: 127.0 }, [0; 256]);
        let d = fit::scale(x, w, codes, |d| d);
        fit::codes(x, codes, d, &mut q);
        b[..4].copy_from_slice(&d.to_le_bytes());
        b[4..].iter_mut().zip(q).for_each(|(b, q)| *b = q.wrapping_sub(127));
        for g in 0..16 {
            let sum: i16 = b[4 + 16 * g..20 + 16 * g].iter().map(|q| i16::from(*q as i8)).sum();
            b[260 + 2 * g..262 + 2 * g].copy_from_slice(&sum.to_le_bytes());
        }
    }),
};

/// Where the pairs of bits of Q2_K's and Q3_K's group `g` begin: byte of `qs`, bit.
fn two_bits(g: usize) -> (usize, usize) {
    (32 * (g / 8) + 16 * (g % 2), 2 * (g / 2 % 4))
}

/// Where the bits of Q6_K's group `g` begin: byte and bit of the lower four, byte and bit of the upper two.
fn six_places(g: usize) -> [usize; 4] {
    let (half, r, l) = (g / 8, g / 2 % 4, 16 * (g % 2));
    [64 * half + 32 * (r % 2) + l, 4 * (r / 2), 128 + 32 * half + l, 2 * r]
}

/// Scale and minimum of group `g` in the twelve bytes of Q4_K and Q5_K.
fn six_bits(scales: &[u8], g: usize) -> [f32; 2] {
    let [s, m] = match g {
        0..4 => [scales[g] & 63, scales[g + 4] & 63],
        _ => [scales[g + 4] & 15 | scales[g - 4] >> 6 << 4, scales[g + 4] >> 4 | scales[g] >> 6 << 4],
    };
    [f32::from(s), f32::from(m)]
}

fn put_six_bits(scales: &mut [u8], g: usize, [s, m]: [u8; 2]) {
    if g < 4 {
        scales[g] |= s;
        scales[g + 4] |= m;
    } else {
        scales[g + 4] |= s & 15 | m << 4;
        scales[g - 4] |= s >> 4 << 6;
        scales[g] |= m >> 4 << 6;
    }
}
