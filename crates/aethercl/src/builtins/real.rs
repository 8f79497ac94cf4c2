//! Elementary functions of f32 computed in f64, without branches, so that a loop over lanes becomes SIMD.
//!
//! Each is within 0.51 ulp of the exact value (the OpenCL table allows 2 to 16). The f64 polynomials are accurate to 1e-11, and the only f32 rounding
//! is the last one. That rounding also handles overflow, underflow and denormals correctly.

/// Adding and subtracting this rounds an f64 below 2^51 to an integer, ties to even.
const ROUNDER: f64 = 6_755_399_441_055_744.0;

/// 2^t for |t| < 1000, to 1e-13.
#[inline(always)]
fn exp2_core(t: f64) -> f64 {
    let shifted = t + ROUNDER;
    let r = (t - (shifted - ROUNDER)) * std::f64::consts::LN_2;
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
    let mut p = 1.0 / 3_628_800.0;
    for c in [362_880.0, 40_320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0] {
        p = p * r + 1.0 / c;
    }
    (p * r + 1.0) * scale
}

/// ln x for finite x > 0 (also denormal f32, which are normal here), to 1e-12.
#[inline(always)]
fn ln_core(x: f64) -> f64 {
    let bits = x.to_bits();
    // The exponent that leaves a mantissa in [sqrt(1/2), sqrt(2)).
    let e = bits.wrapping_sub(0x3fe6_a09e_667f_3bcd) >> 52;
    let m = f64::from_bits(bits.wrapping_sub(e << 52));
    // e is a 12-bit two's complement number; as a small f64 without a conversion that AVX2 lacks.
    let wrapped = e.wrapping_add(0x800) & 0xfff;
    let exponent = f64::from_bits(0x4330_0000_0000_0000 | wrapped) - (4_503_599_627_370_496.0 + 2048.0);
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let mut p = 1.0 / 19.0;
    for c in [17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        p = p * z + 1.0 / c;
    }
    2.0 * s * p + exponent * std::f64::consts::LN_2
}

/// ln x with the special values.
#[inline(always)]
fn ln_any(x: f64) -> f64 {
    let y = ln_core(if x > 0.0 && x < f64::INFINITY { x } else { 1.0 });
    let special = if x == 0.0 {
        f64::NEG_INFINITY
    } else if x > 0.0 {
        x
    } else {
        f64::NAN
    };
    if x > 0.0 && x < f64::INFINITY { y } else { special }
}

/// Limits |t| to the range of [`exp2_core`] without changing an f32 result; NaN stays NaN.
#[inline(always)]
fn bound(t: f64, limit: f64) -> f64 {
    let t = if t > limit { limit } else { t };
    if t < -limit { -limit } else { t }
}

#[inline(always)]
fn exp2_f64(t: f64) -> f64 {
    let y = exp2_core(bound(t, 400.0));
    if t.is_nan() { t } else { y }
}

/// e^x
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    exp2_f64(f64::from(x) * std::f64::consts::LOG2_E) as f32
}

/// 2^x
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    exp2_f64(f64::from(x)) as f32
}

/// 10^x
#[inline(always)]
pub fn exp10(x: f32) -> f32 {
    exp2_f64(f64::from(x) * std::f64::consts::LOG2_10) as f32
}

/// e^x - 1
#[inline(always)]
pub fn expm1(x: f32) -> f32 {
    let t = f64::from(x);
    let small = t * (1.0 + t * (0.5 + t * (1.0 / 6.0 + t * (1.0 / 24.0))));
    let y = exp2_f64(t * std::f64::consts::LOG2_E) - 1.0;
    // The branch for small values also keeps the sign of zero.
    (if t.abs() < 1e-3 { small } else { y }) as f32
}

/// ln x
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    ln_any(f64::from(x)) as f32
}

/// log2 x
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    (ln_any(f64::from(x)) * std::f64::consts::LOG2_E) as f32
}

/// log10 x
#[inline(always)]
pub fn log10(x: f32) -> f32 {
    (ln_any(f64::from(x)) * std::f64::consts::LOG10_E) as f32
}

/// ln(1 + x)
#[inline(always)]
pub fn log1p(x: f32) -> f32 {
    let t = f64::from(x);
    let small = t * (1.0 - t * (0.5 - t * (1.0 / 3.0 - t * 0.25)));
    (if t.abs() < 1e-3 { small } else { ln_any(1.0 + t) }) as f32
}

/// tanh x
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let t = f64::from(x);
    let z = t * t;
    let small = t * (1.0 - z * (1.0 / 3.0 - z * (2.0 / 15.0 - z * (17.0 / 315.0))));
    let e = exp2_f64(bound(t, 40.0) * (2.0 * std::f64::consts::LOG2_E));
    let y = (e - 1.0) / (e + 1.0);
    (if t.abs() < 1e-2 { small } else { y }) as f32
}

/// 1 / sqrt x
#[inline(always)]
pub fn rsqrt(x: f32) -> f32 {
    (1.0 / f64::from(x).sqrt()) as f32
}

/// Above this limit the reduction with two constants is not exact enough.
pub const TRIG_LIMIT: f32 = 100_000.0;

/// Returns the quadrant and the remainder in [-pi/4, pi/4] of an angle below [`TRIG_LIMIT`].
#[inline(always)]
fn reduce(x: f64) -> (u64, f64) {
    // pi/2 in two parts, the first of 33 bits, so that its product with the quadrant is exact.
    const HIGH: f64 = 1.570_796_326_734_125_6;
    const LOW: f64 = 6.077_100_506_506_192e-11;
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUNDER;
    let n = shifted - ROUNDER;
    (shifted.to_bits(), (x - n * HIGH) - n * LOW)
}

/// sin or cos of a reduced angle by the low two bits of the quadrant.
#[inline(always)]
fn sin_cos_core(quadrant: u64, r: f64) -> f64 {
    let z = r * r;
    let mut s = 1.0 / 6_227_020_800.0;
    for c in [-39_916_800.0, 362_880.0, -5040.0, 120.0, -6.0, 1.0] {
        s = s * z + 1.0 / c;
    }
    let mut k = -1.0 / 87_178_291_200.0;
    for c in [479_001_600.0, -3_628_800.0, 40_320.0, -720.0, 24.0, -2.0, 1.0] {
        k = k * z + 1.0 / c;
    }
    let y = if quadrant & 1 == 0 { s * r } else { k };
    f64::from_bits(y.to_bits() ^ ((quadrant & 2) << 62))
}

/// sin x for |x| <= [`TRIG_LIMIT`]
#[inline(always)]
pub fn sin(x: f32) -> f32 {
    let (q, r) = reduce(f64::from(x));
    sin_cos_core(q, r) as f32
}

/// cos x for |x| <= [`TRIG_LIMIT`]
#[inline(always)]
pub fn cos(x: f32) -> f32 {
    let (q, r) = reduce(f64::from(x));
    sin_cos_core(q.wrapping_add(1), r) as f32
}

/// tan x for |x| <= [`TRIG_LIMIT`]
#[inline(always)]
pub fn tan(x: f32) -> f32 {
    let (q, r) = reduce(f64::from(x));
    (sin_cos_core(q, r) / sin_cos_core(q.wrapping_add(1), r)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the distance in units in the last place of the f32 nearest to the exact value.
    pub fn ulp(got: f32, exact: f64) -> f64 {
        if (got.is_nan() && exact.is_nan()) || f64::from(got) == exact || got == exact as f32 {
            return 0.0;
        }
        let nearest = exact as f32;
        let unit = f64::from(f32::from_bits(nearest.abs().to_bits().max(1)).next_up())
            - f64::from(f32::from_bits(nearest.abs().to_bits().max(1)));
        (f64::from(got) - exact).abs() / unit
    }

    /// Returns all exponents and signs with scattered mantissas, and the special values.
    fn inputs() -> impl Iterator<Item = f32> {
        let special = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::MIN_POSITIVE,
            88.7,
            89.0,
            -104.0,
        ];
        (0..1u32 << 17).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b1))).chain(special)
    }

    fn worst(f: fn(f32) -> f32, exact: fn(f64) -> f64, within: fn(f32) -> bool) -> (f64, f32) {
        inputs().filter(|&x| within(x)).map(|x| (ulp(f(x), exact(f64::from(x))), x)).fold(
            (0.0, 0.0),
            |a, b| {
                if b.0 > a.0 || b.0.is_nan() { b } else { a }
            },
        )
    }

    #[test]
    fn all_are_within_half_an_ulp_and_a_little() {
        type Case = (&'static str, fn(f32) -> f32, fn(f64) -> f64, fn(f32) -> bool);
        let any: fn(f32) -> bool = |_| true;
        let angle: fn(f32) -> bool = |x| x.abs() <= TRIG_LIMIT;
        let cases: [Case; 14] = [
            ("exp", exp, libm::exp, any),
            ("exp2", exp2, libm::exp2, any),
            ("exp10", exp10, libm::exp10, any),
            ("expm1", expm1, libm::expm1, any),
            ("ln", ln, libm::log, any),
            ("log2", log2, libm::log2, any),
            ("log10", log10, libm::log10, any),
            ("log1p", log1p, libm::log1p, any),
            ("tanh", tanh, libm::tanh, any),
            ("rsqrt", rsqrt, |x| 1.0 / x.sqrt(), any),
            ("sin", sin, libm::sin, angle),
            ("cos", cos, libm::cos, angle),
            ("tan", tan, libm::tan, angle),
            ("exp near one", exp, libm::exp, |x| x.abs() < 2.0),
        ];
        for (name, f, exact, within) in cases {
            let (error, x) = worst(f, exact, within);
            assert!(
                error <= 0.51,
                "{name}({x:e}) is off by {error} ulp: {} against {}",
                f(x),
                exact(f64::from(x))
            );
        }
    }

    #[test]
    fn zero_keeps_its_sign() {
        for f in [expm1, log1p, tanh, sin, tan] {
            assert_eq!(f(-0.0).to_bits(), (-0.0f32).to_bits());
        }
    }
}
