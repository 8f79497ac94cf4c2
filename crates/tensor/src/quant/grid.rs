//! Elements in groups of 8 (IQ3: 4) that choose from a table of points, with signs apart. 256 elements a block. The bytes of a block, in
//! order; `d` is f16; k counts groups of 8 elements (0 to 31), b of 32 (0 to 7):
//!
//! | format | bytes | factor of b's elements | point of group k | signs |
//! | --- | --- | --- | --- | --- |
//! | IQ2_XXS | `d` 2, 8 times (`p` 4, `s` u32) | `d * (0.5 + s >> 28) * 0.25` | `p[k % 4]` of 256 | bits 7 * (k % 4) of `s`, seven |
//! | IQ2_XS | `d` 2, `qs` 32 u16, `scales` 8 | `d * (0.5 + n) * 0.25`, n the nibble k / 2 % 2 of `scales[b]` | `qs[k]` & 511 of 512 | `qs[k]` >> 9, seven |
//! | IQ2_S | `d` 2, `qs` 32, `signs` 32, `qh` 8, `scales` 8 | as IQ2_XS | `qs[k]`, above it the bits 2 * (k % 4) of `qh[b]`, of 1024 | `signs[k]`, eight |
//! | IQ3_XXS | `d` 2, `qs` 64, 8 times `s` u32 | `d * (0.5 + s >> 28) * 0.5` | `qs[2k]`, `qs[2k + 1]` of 256 | as IQ2_XXS |
//! | IQ3_S | `d` 2, `qs` 64, `qh` 8, `signs` 32, `scales` 4 | `d * (1 + 2n)`, n the nibble b % 2 of `scales[b / 2]` | `qs[2k]`, `qs[2k + 1]`, above them the bits 2 * (k % 4), 2 * (k % 4) + 1 of `qh[b]`, of 512 | `signs[k]`, eight |
//! | IQ1_S | `d` 2, `qs` 32, `qh` 8 u16 | `d * (2n + 1)`, n bits 12 to 14 of `qh[b]` | `qs[k]`, above it the bits 3 * (k % 4) of `qh[b]`, of 2048 | none |
//! | IQ1_M | `qs` 32, `qh` 16, `sc` 4 u16 | `d * (2n + 1)`, n the bits 6 * (b % 2) + 3 * (k / 2 % 2) of `sc[b / 2]` | `qs[k]`, above it the bits 4 * (k % 2) of `qh[k / 2]`, of 2048 | none |
//!
//! Bit j of a group's signs makes element j negative; where there are seven, the eighth makes their number even. An element is its factor
//! times its point's coordinate times its sign. In IQ1 a shift is added to the coordinate first: 1/8, or -1/8 where bit 15 of
//! `qh[b]` is set (IQ1_M: bit 4 * (k % 2) + 3 of `qh[k / 2]`). The `d` of IQ1_M are the upper nibbles of its `sc`, the first the lowest.

use super::format::{Format, f16_at, u16_at, u32_at};
use super::grids::{IQ1_POINTS, IQ2_S_POINTS, IQ2_XS_POINTS, IQ2_XXS_POINTS, IQ3_S_POINTS, IQ3_XXS_POINTS};
use half::f16;

/// A format that is only read.
const fn format(name: &'static str, number: u32, bytes: usize, dequantise: fn(&[u8], &mut [f32])) -> Format {
    Format { name, number, block: 256, bytes, dequantise, quantise: None }
}

/// 2.1 bits an element.
pub static IQ2_XXS: Format = format("IQ2_XXS", 16, 66, |b, y| {
    let d = f16_at(b, 0);
    for (k, y) in y.chunks_exact_mut(8).enumerate() {
        let at = 2 + 8 * (k / 4);
        let s = u32_at(b, at + 4);
        let factor = d * (0.5 + (s >> 28) as f32) * 0.25;
        let signs = even(s >> (7 * (k % 4)));
        put(y, factor, &IQ2_XXS_POINTS[usize::from(b[at + k % 4])], signs);
    }
});
/// 2.3 bits an element.
pub static IQ2_XS: Format = format("IQ2_XS", 17, 74, |b, y| {
    let d = f16_at(b, 0);
    for (k, y) in y.chunks_exact_mut(8).enumerate() {
        let q = u16_at(b, 2 + 2 * k);
        put(
            y,
            nibble_factor(d, b[66 + k / 4], k),
            &IQ2_XS_POINTS[usize::from(q & 511)],
            even(u32::from(q >> 9)),
        );
    }
});
/// 2.6 bits an element.
pub static IQ2_S: Format = format("IQ2_S", 22, 82, |b, y| {
    let d = f16_at(b, 0);
    for (k, y) in y.chunks_exact_mut(8).enumerate() {
        let high = b[66 + k / 4] >> (2 * (k % 4)) & 3;
        let point = usize::from(b[2 + k]) | usize::from(high) << 8;
        put(y, nibble_factor(d, b[74 + k / 4], k), &IQ2_S_POINTS[point], b[34 + k]);
    }
});
/// 3.1 bits an element.
pub static IQ3_XXS: Format = format("IQ3_XXS", 18, 98, |b, y| {
    let d = f16_at(b, 0);
    for (k, y) in y.chunks_exact_mut(8).enumerate() {
        let s = u32_at(b, 66 + 4 * (k / 4));
        let (factor, signs) = (d * (0.5 + (s >> 28) as f32) * 0.5, even(s >> (7 * (k % 4))));
        let (first, second) = y.split_at_mut(4);
        put(first, factor, &IQ3_XXS_POINTS[usize::from(b[2 + 2 * k])], signs);
        put(second, factor, &IQ3_XXS_POINTS[usize::from(b[3 + 2 * k])], signs >> 4);
    }
});
/// 3.4 bits an element.
pub static IQ3_S: Format = format("IQ3_S", 21, 110, |b, y| {
    let d = f16_at(b, 0);
    for (k, y) in y.chunks_exact_mut(8).enumerate() {
        let nibble = b[106 + k / 8] >> (4 * (k / 4 % 2)) & 15;
        let factor = d * f32::from(1 + 2 * nibble);
        for (i, y) in y.chunks_exact_mut(4).enumerate() {
            let high = b[66 + k / 4] >> (2 * (k % 4) + i) & 1;
            let point = usize::from(b[2 + 2 * k + i]) | usize::from(high) << 8;
            put(y, factor, &IQ3_S_POINTS[point], b[74 + k] >> (4 * i));
        }
    }
});
/// 1.6 bits an element.
pub static IQ1_S: Format = format("IQ1_S", 19, 50, |b, y| {
    let d = f16_at(b, 0);
    for (k, y) in y.chunks_exact_mut(8).enumerate() {
        let high = u16_at(b, 34 + 2 * (k / 4));
        let point = usize::from(b[2 + k]) | usize::from(high >> (3 * (k % 4)) & 7) << 8;
        put_shifted(y, d * f32::from(2 * (high >> 12 & 7) + 1), point, high >> 15 == 1);
    }
});
/// 1.75 bits an element.
pub static IQ1_M: Format = format("IQ1_M", 29, 56, |b, y| {
    let scales = [0, 1, 2, 3].map(|i| u16_at(b, 48 + 2 * i));
    let bits = scales.iter().enumerate().fold(0, |bits, (i, s)| bits | s >> 12 << (4 * i));
    let d = f16::from_bits(bits).to_f32();
    for (k, y) in y.chunks_exact_mut(8).enumerate() {
        let n = scales[k / 8] >> (6 * (k / 4 % 2) + 3 * (k / 2 % 2)) & 7;
        let high = b[32 + k / 2] >> (4 * (k % 2));
        let point = usize::from(b[k]) | usize::from(high & 7) << 8;
        put_shifted(y, d * f32::from(2 * n + 1), point, high >> 3 & 1 == 1);
    }
});

/// The factor of IQ2_XS and IQ2_S.
fn nibble_factor(d: f32, scales: u8, k: usize) -> f32 {
    d * (0.5 + f32::from(scales >> (4 * (k / 2 % 2)) & 15)) * 0.25
}

/// Seven signs and the eighth that makes their number even.
fn even(signs: u32) -> u8 {
    let seven = (signs & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

fn put(y: &mut [f32], factor: f32, point: &[u8], signs: u8) {
    for (j, (y, coordinate)) in y.iter_mut().zip(point).enumerate() {
        let sign = if signs >> j & 1 == 1 { -1.0 } else { 1.0 };
        *y = factor * f32::from(*coordinate) * sign;
    }
}

fn put_shifted(y: &mut [f32], factor: f32, point: usize, negative: bool) {
    let shift = if negative { -0.125 } else { 0.125 };
    for (y, coordinate) in y.iter_mut().zip(IQ1_POINTS[point]) {
        // Stored from 0: -1, 0, 1.
        *y = factor * ((f32::from(coordinate) - 1.0) + shift);
    }
}
