//! Fits scales that minimize the weighted squared error of a group: `Σ w (x - d * q)²` over integer codes q, or `Σ w (x - d * q - m)²`.
//!
//! For given codes, the best scale is a quotient of sums (least squares). For a given scale, the best codes are the nearest. The search
//! tries scales around those that map the largest element to the end of the codes, and keeps the one whose codes promise the least error.
//! It then updates scale and codes alternately (Lloyd 1982). The final comparison uses errors with the scale as it is stored. The scale of
//! ggml's plain quantizers is among the candidates.

use half::f16;

/// Values that codes represent, in ascending order.
pub trait Codes: Copy {
    /// Returns the code of the value nearest to `x`, counted from the least.
    fn index(self, x: f32) -> u8;
    /// Returns the value of a code.
    fn value(self, index: u8) -> f32;
    /// Returns the value nearest to `x`.
    fn nearest(self, x: f32) -> f32;
    /// Returns the least and the largest value.
    fn ends(self) -> [f32; 2];
    /// Returns the number of values.
    fn levels(self) -> f32;
}

/// Integers from `low` to `high`.
#[derive(Clone, Copy)]
pub struct LinearCodes {
    pub low: f32,
    pub high: f32,
}

impl Codes for LinearCodes {
    fn index(self, x: f32) -> u8 {
        (self.nearest(x) - self.low) as u8
    }
    fn value(self, index: u8) -> f32 {
        self.low + f32::from(index)
    }
    fn nearest(self, x: f32) -> f32 {
        round(within(x, self.low, self.high))
    }
    fn ends(self) -> [f32; 2] {
        [self.low, self.high]
    }
    fn levels(self) -> f32 {
        self.high - self.low + 1.0
    }
}

/// The numbers of a table, in ascending order.
#[derive(Clone, Copy)]
pub struct TableCodes<const N: usize>(pub &'static [i8; N]);

impl<const N: usize> Codes for TableCodes<N> {
    fn index(self, x: f32) -> u8 {
        // Values are integers, so the midpoint of two is a multiple of 1/2, and twice the distance is an integer.
        let mut index = 0;
        for pair in self.0.windows(2) {
            index += u8::from(2.0 * x > (i32::from(pair[0]) + i32::from(pair[1])) as f32);
        }
        index
    }
    fn value(self, index: u8) -> f32 {
        f32::from(self.0[usize::from(index)])
    }
    fn nearest(self, x: f32) -> f32 {
        self.value(self.index(x))
    }
    fn ends(self) -> [f32; 2] {
        [f32::from(self.0[0]), f32::from(self.0[N - 1])]
    }
    fn levels(self) -> f32 {
        N as f32
    }
}

/// Rounds to the nearest integer, ties to even. |x| must be at most 2^22.
fn round(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC) - MAGIC
}

/// Limits `x` to `low` to `high`; `low` for NaN. Does not use `clamp`, whose assertion prevents vectorization.
fn within(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// Rounds to the nearest f16; larger numbers become the largest one.
pub fn to_f16(x: f32) -> f32 {
    f16::from_f32(x.clamp(-65504.0, 65504.0)).to_f32()
}

/// Sums `terms` of each element and its weight in eight lanes, which compilers vectorize. Lengths must be multiples of 8.
fn sums_of<const K: usize>(x: &[f32], w: &[f32], terms: impl Fn(f32, f32) -> [f32; K]) -> [f32; K] {
    let mut lanes = [[0.0; 8]; K];
    for (x, w) in x.as_chunks::<8>().0.iter().zip(w.as_chunks::<8>().0) {
        let terms: [[f32; K]; 8] = std::array::from_fn(|lane| terms(x[lane], w[lane]));
        for (k, lanes) in lanes.iter_mut().enumerate() {
            for (lane, sum) in lanes.iter_mut().enumerate() {
                *sum += terms[lane][k];
            }
        }
    }
    lanes.map(|lanes| lanes.iter().sum())
}

/// Returns the weighted squared error of `x` with the nearest codes in units of `d`.
pub fn error<C: Codes>(x: &[f32], w: &[f32], codes: C, d: f32) -> f32 {
    if d == 0.0 {
        let [error] = sums_of(x, w, |x, w| [w * x * x]);
        return error;
    }
    let [error] = sums_of(x, w, |x, w| {
        let off = x - d * codes.nearest(x / d);
        [w * off * off]
    });
    error
}

/// Computes the nearest codes in units of `d`.
pub fn codes<C: Codes>(x: &[f32], codes: C, d: f32, out: &mut [u8]) {
    for (x, q) in x.iter().zip(out) {
        *q = codes.index(if d == 0.0 { 0.0 } else { x / d });
    }
}

/// Returns `Σ w x q` and `Σ w q²` for the nearest codes of `x * inverse`.
fn sums<C: Codes>(x: &[f32], w: &[f32], codes: C, inverse: f32) -> [f32; 2] {
    sums_of(x, w, |x, w| {
        let q = codes.nearest(x * inverse);
        [w * x * q, w * q * q]
    })
}

/// Number of steps on each side of the scale that maps the largest element to the end.
const STEPS: i32 = 8;

/// Factor by which a gain must exceed that of earlier candidates. If candidates are equal, the first is used, so that equal groups get equal
/// scales.
const CLEAR: f32 = 1.0 + 1e-6;

/// Iterates over the integers from `low` to `high`, those near 0 first.
fn outwards(low: i32, high: i32) -> impl Iterator<Item = i32> {
    let sides = (1..=high.max(-low)).flat_map(|k| [k, -k]);
    std::iter::once(0).chain(sides).filter(move |k| (low..=high).contains(k))
}

/// Computes the scale of a group, rounded by `store`.
pub fn scale<C: Codes>(x: &[f32], w: &[f32], codes: C, store: fn(f32) -> f32) -> f32 {
    let mut peak = 0f32;
    for (x, w) in x.iter().zip(w) {
        if *w > 0.0 && x.abs() > peak.abs() {
            peak = *x;
        }
    }
    if peak == 0.0 {
        return 0.0;
    }
    let [low, high] = codes.ends();
    let step = 2.0 / (codes.levels() * STEPS as f32);
    let (mut most, mut found) = (0.0, peak / low);
    for end in [low, high] {
        for k in outwards(-STEPS, STEPS) {
            let [xq, qq] = sums(x, w, codes, end * (1.0 + k as f32 * step) / peak);
            // The error is Σ w x² minus this.
            if qq > 0.0 && xq / qq * xq > most * CLEAR {
                (most, found) = (xq / qq * xq, xq / qq);
            }
        }
    }
    let with_error = |d: f32| (d, error(x, w, codes, d));
    let mut best = with_error(store(found));
    for end in [low, high] {
        let other = with_error(store(peak / end));
        if other.1 < best.1 {
            best = other;
        }
    }
    for _ in 0..4 {
        let [xq, qq] = if best.0 == 0.0 { [0.0; 2] } else { sums(x, w, codes, 1.0 / best.0) };
        let next = with_error(store(xq / qq));
        if qq == 0.0 || next.1 >= best.1 || next.1.is_nan() {
            break;
        }
        best = next;
    }
    best.0
}

/// Computes the codes from 0 to `top` nearest to `x` in units of `d` from `m`.
pub fn affine_codes(x: &[f32], top: f32, d: f32, m: f32, out: &mut [u8]) {
    for (x, q) in x.iter().zip(out) {
        *q = if d == 0.0 { 0 } else { round(within((x - m) / d, 0.0, top)) as u8 };
    }
}

/// Returns the weighted squared error of `x` as `d * q + m`, with q from 0 to `top`.
pub fn affine_error(x: &[f32], w: &[f32], top: f32, d: f32, m: f32) -> f32 {
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let [error] = sums_of(x, w, |x, w| {
        let off = x - m - d * round(within((x - m) * inverse, 0.0, top));
        [w * off * off]
    });
    error
}

/// For the codes of `x` in units of `1 / inverse` from `m`: returns the reduction of the error by the best scale and offset, and both. With
/// `negative`, the offset is at most 0.
fn affine_sums(
    x: &[f32],
    w: &[f32],
    top: f32,
    [inverse, m]: [f32; 2],
    negative: bool,
) -> Option<(f32, f32, f32)> {
    let [all, sx, sq, sqq, sxq] = sums_of(x, w, |x, w| {
        let q = round(within((x - m) * inverse, 0.0, top));
        [w, w * x, w * q, w * q * q, w * x * q]
    });
    let det = all * sqq - sq * sq;
    let (d, m) = ((all * sxq - sx * sq) / det, (sqq * sx - sq * sxq) / det);
    if det > 0.0 && d > 0.0 && !(negative && m > 0.0) {
        return Some((d * sxq + m * sx, d, m));
    }
    (negative && sqq > 0.0 && sxq > 0.0).then(|| (sxq / sqq * sxq, sxq / sqq, 0.0))
}

/// Computes scale and offset of a group, not rounded. With `negative`, the offset is at most 0.
pub fn affine(x: &[f32], w: &[f32], top: f32, negative: bool) -> (f32, f32) {
    let (mut least, mut most) = x.iter().fold((f32::MAX, f32::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
    if negative {
        least = least.min(0.0);
        most = most.max(least);
    }
    if most - least <= 0.0 {
        return (0.0, least);
    }
    // The best candidates: gain, scale, offset.
    let mut few = [(0.0, (most - least) / top, least); 4];
    for k in outwards(-12, 8) {
        let inverse = (top + k as f32 / 8.0).max(0.5) / (most - least);
        let Some(next) = affine_sums(x, w, top, [inverse, least], negative) else { continue };
        let place = few.iter().position(|old| next.0 > old.0 * CLEAR);
        if let Some(place) = place.filter(|_| few.iter().all(|old| old.0 != next.0)) {
            few[place..].rotate_right(1);
            few[place] = next;
        }
    }
    for one in &mut few {
        for _ in 0..4 {
            match affine_sums(x, w, top, [1.0 / one.1, one.2], negative) {
                Some(next) if next.0 > one.0 * CLEAR => *one = next,
                _ => break,
            }
        }
    }
    let last = [((most - least) / top, least)].into_iter().chain(few.map(|(_, d, m)| (d, m)));
    let mut best = (0.0, least, f32::INFINITY);
    for (d, m) in last {
        let error = affine_error(x, w, top, d, m);
        if error < best.2 {
            best = (d, m, error);
        }
    }
    (best.0, best.1)
}

/// Sums of a least-squares fit of x as `d * a + e * b`.
#[derive(Clone, Copy, Default)]
pub struct Pair {
    aa: f64,
    ab: f64,
    bb: f64,
    xa: f64,
    xb: f64,
}

impl Pair {
    /// Adds an element of weight `w`.
    pub fn add(&mut self, w: f32, x: f32, a: f32, b: f32) {
        let [w, x, a, b] = [w, x, a, b].map(f64::from);
        self.aa += w * a * a;
        self.ab += w * a * b;
        self.bb += w * b * b;
        self.xa += w * x * a;
        self.xb += w * x * b;
    }

    /// Returns the two f16 numbers with the least error. Rounding each one separately would add two errors if they nearly compensate each
    /// other. The f16 numbers around the best d are therefore tried, each with its best e. `None` if all a or all b are 0, or a sum is not
    /// finite.
    pub fn f16s(&self) -> Option<(f32, f32)> {
        let Self { aa, ab, bb, xa, xb } = *self;
        let det = aa * bb - ab * ab;
        let best = to_f16(((xa * bb - xb * ab) / det) as f32);
        if det <= 0.0 || bb <= 0.0 || !best.is_finite() {
            return None;
        }
        let bits = f16::from_f32(best).to_bits();
        let around = (-4..=4).filter_map(|step| bits.checked_add_signed(step)).map(f16::from_bits);
        let with_error = |d: f16| {
            let d = d.to_f64();
            let e = to_f16(((xb - d * ab) / bb) as f32);
            let f = f64::from(e);
            // Without Σ w x², which is the same for all candidates.
            let error = d * d * aa + 2.0 * d * f * ab + f * f * bb - 2.0 * (d * xa + f * xb);
            (error, d as f32, e)
        };
        let each = around.filter(|d| d.is_finite()).map(with_error);
        each.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, d, e)| (d, e))
    }
}

/// Computes scale and offset of a group as f16 numbers.
pub fn affine_f16(x: &[f32], w: &[f32], top: f32) -> (f32, f32) {
    let (least, most) = x.iter().fold((f32::MAX, f32::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
    let (d, m) = affine(x, w, top, false);
    let mut sums = Pair::default();
    for (x, w) in x.iter().zip(w) {
        let q = if d == 0.0 { 0.0 } else { round(within((x - m) / d, 0.0, top)) };
        sums.add(*w, *x, q, 1.0);
    }
    let mut best = (0.0, 0.0, f32::INFINITY);
    for (d, m) in [(d, m), ((most - least) / top, least)].into_iter().chain(sums.f16s()) {
        let (d, m) = (to_f16(d), to_f16(m));
        let error = affine_error(x, w, top, d, m);
        if error < best.2 {
            best = (d, m, error);
        }
    }
    (best.0, best.1)
}
