//! Super-blocks of 256 elements: the scales of groups are integers in units of one f16 (and offsets in units of another).
//!
//! Each group is fitted separately. Its scale is rounded to an integer in units in which the largest scale just fits. Then two steps alternate as
//! long as the error decreases. First, each group takes the best of the integers around its own, by the resulting error of its elements. Second,
//! the units become those with the least squared error for all codes.

use super::fit::{self, Codes, Pair, affine_codes, affine_error, to_f16};
use super::format::MAX_BLOCK_ELEMENTS;

/// Maximum number of rounds.
const ROUNDS: usize = 4;
/// Maximum number of groups of a super-block.
const GROUPS: usize = 16;

/// Super-block of elements `d * scale * q - dmin * min`.
#[derive(Clone)]
pub struct Affine {
    pub d: f32,
    pub dmin: f32,
    /// Scale of each group.
    pub scales: [u8; GROUPS],
    pub mins: [u8; GROUPS],
    pub q: [u8; MAX_BLOCK_ELEMENTS],
}

/// Fits groups of N elements, with codes from 0 to `top`, and scales and minima from 0 to `most`.
pub fn affine<const N: usize>(x: &[f32], w: &[f32], top: f32, most: f32) -> Affine {
    let groups = || x.chunks_exact(N).zip(w.chunks_exact(N)).enumerate();
    let mut fits = [(0.0, 0.0); GROUPS];
    for (g, (x, w)) in groups() {
        let (d, m) = fit::affine(x, w, top, true);
        fits[g] = (d, -m);
    }
    let largest = |of: fn(&(f32, f32)) -> f32| fits.iter().map(of).fold(0f32, f32::max);
    let (d, dmin) = (to_f16(largest(|f| f.0) / most), to_f16(largest(|f| f.1) / most));
    let zero = [0; GROUPS];
    let mut now = Affine { d, dmin, scales: zero, mins: zero, q: [0; MAX_BLOCK_ELEMENTS] };
    let whole = |value: f32, unit: f32| {
        if unit == 0.0 { 0 } else { (value / unit).round().clamp(0.0, most) as u8 }
    };
    for (g, fit) in fits.iter().enumerate() {
        (now.scales[g], now.mins[g]) = (whole(fit.0, d), whole(fit.1, dmin));
    }
    let (mut best, mut least) = (now.clone(), f32::INFINITY);
    for _ in 0..ROUNDS {
        let mut total = 0.0;
        for (g, (x, w)) in groups() {
            let around = |n: u8| n.saturating_sub(1)..=(n + 1).min(most as u8);
            let mut found = (f32::INFINITY, now.scales[g], now.mins[g]);
            for s in around(now.scales[g]) {
                for m in around(now.mins[g]) {
                    let error = affine_error(x, w, top, now.d * f32::from(s), -now.dmin * f32::from(m));
                    if error < found.0 {
                        found = (error, s, m);
                    }
                }
            }
            (now.scales[g], now.mins[g]) = (found.1, found.2);
            total += found.0;
        }
        if total >= least || total.is_nan() {
            break;
        }
        for (g, (x, _)) in groups() {
            let (d, m) = (now.d * f32::from(now.scales[g]), -now.dmin * f32::from(now.mins[g]));
            affine_codes(x, top, d, m, &mut now.q[g * N..(g + 1) * N]);
        }
        (best, least) = (now.clone(), total);
        let Some((d, dmin)) = affine_units(x, w, &now, N) else { break };
        (now.d, now.dmin) = (d, dmin);
    }
    best
}

/// Returns the units with the least squared error for the codes, as f16 numbers.
fn affine_units(x: &[f32], w: &[f32], now: &Affine, n: usize) -> Option<(f32, f32)> {
    let (mut sums, mut xa, mut aa) = (Pair::default(), 0.0, 0.0);
    for (i, (x, w)) in x.iter().zip(w).enumerate() {
        let a = f32::from(now.scales[i / n]) * f32::from(now.q[i]);
        sums.add(*w, *x, a, -f32::from(now.mins[i / n]));
        (xa, aa) = (xa + w * x * a, aa + w * a * a);
    }
    if now.mins.iter().all(|m| *m == 0) {
        return (xa > 0.0).then(|| (to_f16(xa / aa), now.dmin));
    }
    sums.f16s().filter(|(d, dmin)| *d > 0.0 && *dmin >= 0.0)
}

/// Super-block of elements `d * scale * q`.
#[derive(Clone)]
pub struct Symmetric {
    pub d: f32,
    /// Scale of each group.
    pub scales: [i32; GROUPS],
    /// Codes, counted from the least.
    pub q: [u8; MAX_BLOCK_ELEMENTS],
}

const EMPTY: Symmetric = Symmetric { d: 0.0, scales: [0; GROUPS], q: [0; MAX_BLOCK_ELEMENTS] };

/// Fits groups of N elements, with scales from `range[0]`, which is negative, to `range[1]`.
pub fn symmetric<const N: usize, C: Codes>(x: &[f32], w: &[f32], codes: C, range: [f32; 2]) -> Symmetric {
    let mut fits = [0.0; GROUPS];
    for (g, (x, w)) in x.chunks_exact(N).zip(w.chunks_exact(N)).enumerate() {
        fits[g] = fit::scale(x, w, codes, |d| d);
    }
    let peak = fits.iter().fold(0f32, |peak, d| if d.abs() > peak.abs() { *d } else { peak });
    // Units in which the largest scale just fits, and some in which it slightly exceeds the end.
    let units = [1.0, 0.985, 0.97].into_iter().flat_map(|part| range.map(|end| to_f16(peak / (end * part))));
    let tries = units.map(|unit| from_unit::<N, C>(x, w, codes, range, (&fits, unit)));
    let least = tries.min_by(|a, b| a.1.total_cmp(&b.1));
    let mut out = least.map_or(EMPTY, |(best, _)| best);
    for (g, x) in x.chunks_exact(N).enumerate() {
        fit::codes(x, codes, out.d * out.scales[g] as f32, &mut out.q[g * N..(g + 1) * N]);
    }
    out
}

/// Fits a super-block starting from the unit `d`. Returns it without its codes, and its error.
fn from_unit<const N: usize, C: Codes>(
    x: &[f32],
    w: &[f32],
    codes: C,
    range: [f32; 2],
    (fits, d): (&[f32; GROUPS], f32),
) -> (Symmetric, f32) {
    let mut now = Symmetric { d, ..EMPTY };
    let [low, high] = range.map(|end| end as i32);
    for (scale, fit) in now.scales.iter_mut().zip(fits) {
        *scale = if d == 0.0 { 0 } else { ((fit / d).round() as i32).clamp(low, high) };
    }
    let (mut best, mut least) = (now.clone(), f32::INFINITY);
    for _ in 0..ROUNDS {
        let (mut total, mut xa, mut aa) = (0.0, 0.0, 0.0);
        for (g, (x, w)) in x.chunks_exact(N).zip(w.chunks_exact(N)).enumerate() {
            let around = (now.scales[g] - 1).max(low)..=(now.scales[g] + 1).min(high);
            let each = around.map(|s| (fit::error(x, w, codes, now.d * s as f32), s));
            let (error, scale) = each.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, 0));
            now.scales[g] = scale;
            total += error;
            let unit = now.d * scale as f32;
            if unit == 0.0 {
                continue;
            }
            for (x, w) in x.iter().zip(w) {
                let a = f64::from(scale) * f64::from(codes.nearest(x / unit));
                (xa, aa) = (xa + f64::from(*w) * f64::from(*x) * a, aa + f64::from(*w) * a * a);
            }
        }
        if total >= least || total.is_nan() {
            break;
        }
        (best, least) = (now.clone(), total);
        if aa == 0.0 {
            break;
        }
        now.d = to_f16((xa / aa) as f32);
    }
    (best, least)
}
