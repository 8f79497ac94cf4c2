//! Mathematical built-ins on single values, in f64. The f32 forms round the f64 result once.

use std::f64::consts::PI;

/// Built-ins with one floating-point argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the OpenCL C function of its name")]
pub enum Math1 {
    Acos,
    Acosh,
    Acospi,
    Asin,
    Asinh,
    Asinpi,
    Atan,
    Atanh,
    Atanpi,
    Cbrt,
    Ceil,
    Cos,
    Cosh,
    Cospi,
    Erf,
    Erfc,
    Exp,
    Exp2,
    Exp10,
    Expm1,
    Floor,
    Lgamma,
    Log,
    Log2,
    Log10,
    Log1p,
    Logb,
    Rint,
    Round,
    Rsqrt,
    Sin,
    Sinh,
    Sinpi,
    Sqrt,
    Tan,
    Tanh,
    Tanpi,
    Tgamma,
    Trunc,
    Sign,
    Fract,
    Degrees,
    Radians,
}

/// Built-ins with two floating-point arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the OpenCL C function of its name")]
pub enum Math2 {
    Atan2,
    Atan2pi,
    Fdim,
    Hypot,
    Maxmag,
    Minmag,
    Pow,
    Powr,
    Remainder,
}

/// Evaluates a unary built-in in f64.
pub fn unary(f: Math1, x: f64) -> f64 {
    use Math1::*;
    match f {
        Acos => libm::acos(x),
        // libm returns -inf for negative values far from 0.
        Acosh if x < 1.0 => f64::NAN,
        Acosh => libm::acosh(x),
        Acospi => libm::acos(x) / PI,
        Asin => libm::asin(x),
        Asinh => libm::asinh(x),
        Asinpi => libm::asin(x) / PI,
        Atan => libm::atan(x),
        Atanh => libm::atanh(x),
        Atanpi => libm::atan(x) / PI,
        Cbrt => libm::cbrt(x),
        Ceil => x.ceil(),
        Cos => libm::cos(x),
        Cosh => libm::cosh(x),
        Cospi => cospi(x),
        Erf => libm::erf(x),
        Erfc => libm::erfc(x),
        Exp => libm::exp(x),
        Exp2 => libm::exp2(x),
        Exp10 => libm::exp10(x),
        Expm1 => libm::expm1(x),
        Floor => x.floor(),
        Lgamma => libm::lgamma(x),
        Log => libm::log(x),
        Log2 => libm::log2(x),
        Log10 => libm::log10(x),
        Log1p => libm::log1p(x),
        _ => unary_rest(f, x),
    }
}

fn unary_rest(f: Math1, x: f64) -> f64 {
    use Math1::*;
    match f {
        Logb => logb(x),
        Rint => x.round_ties_even(),
        Round => x.round(),
        Rsqrt => 1.0 / x.sqrt(),
        Sin => libm::sin(x),
        Sinh => libm::sinh(x),
        Sinpi => sinpi(x),
        Sqrt => x.sqrt(),
        Tan => libm::tan(x),
        Tanh => libm::tanh(x),
        Tanpi => tanpi(x),
        Tgamma => libm::tgamma(x),
        Trunc => x.trunc(),
        Sign if x.is_nan() => 0.0,
        Sign if x == 0.0 => x,
        Sign => x.signum(),
        Fract => fract(x, 1.0 - f64::EPSILON / 2.0),
        Degrees => x * (180.0 / PI),
        Radians => x * (PI / 180.0),
        _ => f64::NAN,
    }
}

/// Evaluates a unary built-in of f32.
pub fn unary_f32(f: Math1, x: f32) -> f32 {
    match f {
        Math1::Fract => fract(f64::from(x), f64::from(1.0f32.next_down())) as f32,
        _ => unary(f, f64::from(x)) as f32,
    }
}

/// min(x - floor(x), the number below 1)
fn fract(x: f64, below_one: f64) -> f64 {
    if x.is_infinite() {
        0.0f64.copysign(x)
    } else if x == 0.0 {
        x
    } else {
        f64_min_keep_nan(x - x.floor(), below_one)
    }
}

fn f64_min_keep_nan(x: f64, y: f64) -> f64 {
    if x > y { y } else { x }
}

/// Returns the exponent as a number; for a denormal, that of its leading bit.
pub fn logb(x: f64) -> f64 {
    if x == 0.0 {
        f64::NEG_INFINITY
    } else if x.is_infinite() {
        f64::INFINITY
    } else if x.is_nan() {
        x
    } else {
        f64::from(libm::ilogb(x))
    }
}

/// Returns x modulo 2 as n halves and an exact remainder of at most a quarter: pi times the remainder has one rounding.
fn halves(x: f64) -> (i32, f64) {
    let y = x % 2.0;
    let n = (2.0 * y).round();
    (n as i32 & 3, y - 0.5 * n)
}

fn sinpi(x: f64) -> f64 {
    let (n, r) = halves(x);
    match n {
        _ if !x.is_finite() => f64::NAN,
        0 | 2 if r == 0.0 => 0.0f64.copysign(x),
        0 => libm::sin(r * PI),
        1 => libm::cos(r * PI),
        2 => -libm::sin(r * PI),
        _ => -libm::cos(r * PI),
    }
}

fn cospi(x: f64) -> f64 {
    let (n, r) = halves(x);
    match n {
        _ if !x.is_finite() => f64::NAN,
        1 | 3 if r == 0.0 => 0.0,
        0 => libm::cos(r * PI),
        1 => -libm::sin(r * PI),
        2 => -libm::cos(r * PI),
        _ => libm::sin(r * PI),
    }
}

/// Handles zeros and poles according to section 7.5.1 of the standard.
fn tanpi(x: f64) -> f64 {
    let (n, r) = halves(x);
    match n {
        _ if !x.is_finite() => f64::NAN,
        0 if r == 0.0 => 0.0f64.copysign(x),
        2 if r == 0.0 => -0.0f64.copysign(x),
        1 if r == 0.0 => f64::INFINITY,
        3 if r == 0.0 => f64::NEG_INFINITY,
        0 | 2 => libm::tan(r * PI),
        _ => -1.0 / libm::tan(r * PI),
    }
}

/// Evaluates a binary built-in in f64.
pub fn binary(f: Math2, x: f64, y: f64) -> f64 {
    match f {
        Math2::Atan2 => libm::atan2(x, y),
        Math2::Atan2pi => libm::atan2(x, y) / PI,
        Math2::Fdim if x.is_nan() || y.is_nan() => f64::NAN,
        Math2::Fdim => {
            if x > y {
                x - y
            } else {
                0.0
            }
        }
        Math2::Hypot => libm::hypot(x, y),
        Math2::Maxmag if x.abs() > y.abs() => x,
        Math2::Maxmag if y.abs() > x.abs() => y,
        Math2::Maxmag => x.max(y),
        Math2::Minmag if x.abs() < y.abs() => x,
        Math2::Minmag if y.abs() < x.abs() => y,
        Math2::Minmag => x.min(y),
        Math2::Pow => libm::pow(x, y),
        Math2::Powr => powr(x, y),
        Math2::Remainder => libm::remainder(x, y),
    }
}

/// x^y for x >= 0, with the special cases of exp(y * log x).
fn powr(x: f64, y: f64) -> f64 {
    let both_zero = x == 0.0 && y == 0.0;
    let undefined = both_zero || (x.is_infinite() && y == 0.0) || (x == 1.0 && y.is_infinite());
    if x < 0.0 || x.is_nan() || y.is_nan() || undefined { f64::NAN } else { libm::pow(x.abs(), y) }
}

/// x^n
pub fn pown(x: f64, n: i32) -> f64 {
    libm::pow(x, f64::from(n))
}

/// Returns the n-th root of x.
pub fn rootn(x: f64, n: i32) -> f64 {
    if n == 0 || (x < 0.0 && n % 2 == 0) {
        return f64::NAN;
    }
    let odd = n % 2 != 0;
    if x == 0.0 {
        let zero = if odd { x } else { 0.0 };
        return if n < 0 { f64::INFINITY.copysign(zero) } else { zero };
    }
    if n == 3 {
        return libm::cbrt(x);
    }
    // 1/n is rounded; its error affects the result in proportion to the logarithm of x.
    let (by, size) = (1.0 / f64::from(n), x.abs());
    let lacks = (-by).mul_add(f64::from(n), 1.0) / f64::from(n);
    let root = libm::pow(size, by);
    let exact = !root.is_finite() || !size.is_finite() || lacks == 0.0;
    let root = if exact { root } else { (root * lacks).mul_add(libm::log(size), root) };
    root.copysign(x)
}

/// x * 2^n
pub fn ldexp(x: f64, n: i32) -> f64 {
    libm::ldexp(x, n)
}

/// Returns the exponent of x as an integer: `FP_ILOGB0` (the smallest) for 0, `FP_ILOGBNAN` (the largest) for NaN.
pub fn ilogb(x: f64) -> i32 {
    if x == 0.0 {
        i32::MIN
    } else if x.is_nan() || x.is_infinite() {
        i32::MAX
    } else {
        libm::ilogb(x)
    }
}

/// Returns the mantissa in [0.5, 1) and the exponent.
pub fn frexp(x: f64) -> (f64, i32) {
    if x == 0.0 || !x.is_finite() { (x, 0) } else { libm::frexp(x) }
}

/// log |gamma(x)| and the sign of gamma(x).
pub fn lgamma_r(x: f64) -> (f64, i32) {
    libm::lgamma_r(x)
}

/// Returns the remainder and the low seven bits of the quotient, with its sign.
pub fn remquo(x: f64, y: f64) -> (f64, i32) {
    if x.is_nan() || y.is_nan() || x.is_infinite() || y == 0.0 {
        return (f64::NAN, 0);
    }
    let (r, q) = libm::remquo(x, y);
    let magnitude = (q.unsigned_abs() & 0x7f) as i32;
    (r, if q < 0 { -magnitude } else { magnitude })
}

/// Returns the next f32 after x toward y.
pub fn nextafter_f32(x: f32, y: f32) -> f32 {
    libm::nextafterf(x, y)
}

/// Returns the next f64 after x toward y.
pub fn nextafter_f64(x: f64, y: f64) -> f64 {
    libm::nextafter(x, y)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_values_follow_the_table() {
        assert_eq!(unary(Math1::Sinpi, 1e20), 0.0);
        assert_eq!(unary(Math1::Cospi, 0.5), 0.0);
        assert_eq!(unary(Math1::Tanpi, 0.5), f64::INFINITY);
        assert_eq!(unary(Math1::Tanpi, 1.5), f64::NEG_INFINITY);
        assert_eq!(unary(Math1::Sign, f64::NAN), 0.0);
        assert_eq!(unary_f32(Math1::Fract, -1e-20), 1.0f32.next_down());
        assert!(binary(Math2::Powr, 1.0, f64::INFINITY).is_nan());
        assert_eq!(binary(Math2::Pow, 1.0, f64::NAN), 1.0);
        assert_eq!(rootn(-8.0, 3), -2.0);
        assert_eq!(rootn(-0.0, -3), f64::NEG_INFINITY);
        assert_eq!(ilogb(0.0), i32::MIN);
        assert_eq!(frexp(8.0), (0.5, 4));
        assert_eq!(remquo(7.0, 2.0), (-1.0, 4));
    }

    #[test]
    fn functions_of_pi_and_roots_are_near_the_real_ones() {
        // Correctly rounded values, by the reference functions of the conformance tests.
        for (got, bits) in [
            (unary(Math1::Sinpi, 0.84375), 0x3fde_2b5d_3806_f63bu64),
            (unary(Math1::Cospi, 0.425_781_25), 0x3fcd_934f_e545_4312),
            (unary(Math1::Tanpi, -0.46875), 0xc024_4e6c_595a_fdcd),
            (rootn(-f64::MAX, -3), 0xaa99_65fe_a53d_6e3d),
        ] {
            assert!(got.to_bits().abs_diff(bits) <= 2, "{got:?} is not {:?}", f64::from_bits(bits));
        }
        for i in -16..=16 {
            let x = f64::from(i) / 2.0;
            let (s, c) = (unary(Math1::Sinpi, x), unary(Math1::Cospi, x));
            assert_eq!((s * s + c * c, s * c), (1.0, 0.0), "{x}");
            assert_eq!(s == 0.0, i % 2 == 0, "{x}");
        }
        assert!(unary(Math1::Sinpi, f64::INFINITY).is_nan() && unary(Math1::Acosh, -131_072.0).is_nan());
    }
}
