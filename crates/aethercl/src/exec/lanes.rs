//! Lane operations: tables of operations, each one loop over slices that the compiler turns into SIMD.
//!
//! Integers narrower than 32 bits are sign- or zero-extended in 32-bit lanes, `half` is stored as its 16 bits, `bool` as 0 or 1. Floats are stored as
//! their bits; an operation's name states the type of its operands.

#![allow(
    clippy::redundant_closure,
    clippy::manual_checked_ops,
    reason = "the tables read alike in every line"
)]

pub use super::spread::LaneOperand;
use super::spread::{map, zip, zip3};
use crate::builtins::math::{self, Math1, Math2};
use crate::builtins::{convert, integer, real};
use pulp::Arch;

/// A table of operations on operands of one width: the enumeration, the function that runs it over lanes, and the one for
/// a single value.
macro_rules! table {
    ($(#[$meta:meta])* $name:ident $run:ident $one:ident $over:ident $apply:ident ($($arg:ident),*) $args:tt $in:ty => $out:ty { $($op:ident = $f:expr;)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "named for what they do; the table gives each its meaning")]
        pub enum $name { $($op,)* }
        /// Runs the operation over the lanes.
        pub fn $run(arch: Arch, op: $name, out: &mut [$out], $($arg: LaneOperand<'_, $in>),*) {
            struct Job<'o, 's> {
                op: $name,
                out: &'o mut [$out],
                $($arg: LaneOperand<'s, $in>,)*
            }
            impl pulp::NullaryFnOnce for Job<'_, '_> {
                type Output = ();
                #[inline(always)]
                fn call(self) {
                    let Job { op, out, $($arg),* } = self;
                    match op { $($name::$op => table!(@ $over out $args $f),)* }
                }
            }
            arch.dispatch(Job { op, out, $($arg),* });
        }
        /// Runs the operation on single values.
        pub fn $one(op: $name, $($arg: $in),*) -> $out {
            match op { $($name::$op => table!(= $apply $args $f),)* }
        }
    };
    (= $apply:ident ($($a:ident),*) $f:expr) => { $apply(#[inline(always)] $f, $($a),*) };
    (@ $over:ident $out:ident ($a:ident) $f:expr) => { $over($out, $a, #[inline(always)] $f) };
    (@ $over:ident $out:ident ($a:ident, $b:ident) $f:expr) => { $over($out, $a, $b, #[inline(always)] $f) };
    (@ $over:ident $out:ident ($a:ident, $b:ident, $c:ident) $f:expr) => { $over($out, [$a, $b, $c], #[inline(always)] $f) };
}

#[inline(always)]
fn apply1<A, T>(f: impl Fn(A) -> T, a: A) -> T {
    f(a)
}

#[inline(always)]
fn apply2<A, T>(f: impl Fn(A, A) -> T, a: A, b: A) -> T {
    f(a, b)
}

#[inline(always)]
fn apply3<A, T>(f: impl Fn(A, A, A) -> T, a: A, b: A, c: A) -> T {
    f(a, b, c)
}

#[inline(always)]
fn f(x: u32) -> f32 {
    f32::from_bits(x)
}
#[inline(always)]
fn s(x: u32) -> i32 {
    x as i32
}
#[inline(always)]
fn d(x: u64) -> f64 {
    f64::from_bits(x)
}
#[inline(always)]
fn l(x: u64) -> i64 {
    x as i64
}

table! {
    /// Two 32-bit operands, a 32-bit result. `S`, `U`, `F`: signed, unsigned, f32. Comparisons give 1 or 0.
    Binary32 binary32 one_binary32 zip apply2 (a, b) (a, b) u32 => u32 {
        Add = |x, y| x.wrapping_add(y);
        Sub = |x, y| x.wrapping_sub(y);
        Mul = |x, y| x.wrapping_mul(y);
        And = |x, y| x & y;
        Or = |x, y| x | y;
        Xor = |x, y| x ^ y;
        Shl = |x, y| x.wrapping_shl(y);
        ShrS = |x, y| s(x).wrapping_shr(y) as u32;
        ShrU = |x, y| x.wrapping_shr(y);
        // Division by zero is undefined; here it gives all ones, and the check reports it.
        DivS = |x, y| if y == 0 { u32::MAX } else { s(x).wrapping_div(s(y)) as u32 };
        DivU = |x, y| if y == 0 { u32::MAX } else { x / y };
        RemS = |x, y| if y == 0 { x } else { s(x).wrapping_rem(s(y)) as u32 };
        RemU = |x, y| if y == 0 { x } else { x % y };
        Eq = |x, y| u32::from(x == y);
        Ne = |x, y| u32::from(x != y);
        LtS = |x, y| u32::from(s(x) < s(y));
        LeS = |x, y| u32::from(s(x) <= s(y));
        LtU = |x, y| u32::from(x < y);
        LeU = |x, y| u32::from(x <= y);
        MinS = |x, y| s(x).min(s(y)) as u32;
        MaxS = |x, y| s(x).max(s(y)) as u32;
        MinU = |x, y| x.min(y);
        MaxU = |x, y| x.max(y);
        MulHiS = |x, y| ((i64::from(s(x)) * i64::from(s(y))) >> 32) as u32;
        MulHiU = |x, y| ((u64::from(x) * u64::from(y)) >> 32) as u32;
        AddSatS = |x, y| s(x).saturating_add(s(y)) as u32;
        AddSatU = |x, y| x.saturating_add(y);
        SubSatS = |x, y| s(x).saturating_sub(s(y)) as u32;
        SubSatU = |x, y| x.saturating_sub(y);
        AbsDiffS = |x, y| s(x).abs_diff(s(y));
        AbsDiffU = |x, y| x.abs_diff(y);
        HaddS = |x, y| ((i64::from(s(x)) + i64::from(s(y))) >> 1) as u32;
        HaddU = |x, y| ((u64::from(x) + u64::from(y)) >> 1) as u32;
        RhaddS = |x, y| ((i64::from(s(x)) + i64::from(s(y)) + 1) >> 1) as u32;
        RhaddU = |x, y| ((u64::from(x) + u64::from(y) + 1) >> 1) as u32;
        Rotate = |x, y| x.rotate_left(y & 31);
        Mul24S = |x, y| ((s(x << 8) >> 8).wrapping_mul(s(y << 8) >> 8)) as u32;
        Mul24U = |x, y| (x & 0xff_ffff).wrapping_mul(y & 0xff_ffff);
        AddF = |x, y| (f(x) + f(y)).to_bits();
        SubF = |x, y| (f(x) - f(y)).to_bits();
        MulF = |x, y| (f(x) * f(y)).to_bits();
        DivF = |x, y| (f(x) / f(y)).to_bits();
        EqF = |x, y| u32::from(f(x) == f(y));
        NeF = |x, y| u32::from(f(x) != f(y));
        LtF = |x, y| u32::from(f(x) < f(y));
        LeF = |x, y| u32::from(f(x) <= f(y));
        // fmin and fmax: the other operand if one is NaN.
        FminF = |x, y| if f(y).is_nan() || f(x) < f(y) { x } else { y };
        FmaxF = |x, y| if f(y).is_nan() || f(x) > f(y) { x } else { y };
        // min and max of floats: one comparison.
        MinF = |x, y| if f(y) < f(x) { y } else { x };
        MaxF = |x, y| if f(x) < f(y) { y } else { x };
        StepF = |x, y| (if f(y) < f(x) { 0.0f32 } else { 1.0 }).to_bits();
        UnorderedF = |x, y| u32::from(f(x).is_nan() || f(y).is_nan());
        CopysignF = |x, y| (x & 0x7fff_ffff) | (y & 0x8000_0000);
        NextafterF = |x, y| math::nextafter_f32(f(x), f(y)).to_bits();
        Atan2F = |x, y| wide(Math2::Atan2, x, y);
        Atan2piF = |x, y| wide(Math2::Atan2pi, x, y);
        FdimF = |x, y| if f(x).is_nan() || f(y).is_nan() { f32::NAN.to_bits() } else { (if f(x) > f(y) { f(x) - f(y) } else { 0.0 }).to_bits() };
        FmodF = |x, y| (f(x) % f(y)).to_bits();
        HypotF = |x, y| wide(Math2::Hypot, x, y);
        MaxmagF = |x, y| wide(Math2::Maxmag, x, y);
        MinmagF = |x, y| wide(Math2::Minmag, x, y);
        PowF = |x, y| wide(Math2::Pow, x, y);
        PowrF = |x, y| wide(Math2::Powr, x, y);
        RemainderF = |x, y| wide(Math2::Remainder, x, y);
        PownF = |x, n| (math::pown(f64::from(f(x)), s(n)) as f32).to_bits();
        RootnF = |x, n| (math::rootn(f64::from(f(x)), s(n)) as f32).to_bits();
        LdexpF = |x, n| (math::ldexp(f64::from(f(x)), s(n)) as f32).to_bits();
        RemquoF = |x, y| (math::remquo(f64::from(f(x)), f64::from(f(y))).0 as f32).to_bits();
        RemquoQuotientF = |x, y| math::remquo(f64::from(f(x)), f64::from(f(y))).1 as u32;
    }
}

fn wide(op: Math2, x: u32, y: u32) -> u32 {
    (math::binary(op, f64::from(f(x)), f64::from(f(y))) as f32).to_bits()
}

table! {
    /// Two 64-bit operands, a 64-bit result. `F` is f64.
    Binary64 binary64 one_binary64 zip apply2 (a, b) (a, b) u64 => u64 {
        Add = |x, y| x.wrapping_add(y);
        Sub = |x, y| x.wrapping_sub(y);
        Mul = |x, y| x.wrapping_mul(y);
        And = |x, y| x & y;
        Or = |x, y| x | y;
        Xor = |x, y| x ^ y;
        Shl = |x, y| x.wrapping_shl(y as u32);
        ShrS = |x, y| l(x).wrapping_shr(y as u32) as u64;
        ShrU = |x, y| x.wrapping_shr(y as u32);
        DivS = |x, y| if y == 0 { u64::MAX } else { l(x).wrapping_div(l(y)) as u64 };
        DivU = |x, y| if y == 0 { u64::MAX } else { x / y };
        RemS = |x, y| if y == 0 { x } else { l(x).wrapping_rem(l(y)) as u64 };
        RemU = |x, y| if y == 0 { x } else { x % y };
        MinS = |x, y| l(x).min(l(y)) as u64;
        MaxS = |x, y| l(x).max(l(y)) as u64;
        MinU = |x, y| x.min(y);
        MaxU = |x, y| x.max(y);
        MulHiS = |x, y| ((i128::from(l(x)) * i128::from(l(y))) >> 64) as u64;
        MulHiU = |x, y| ((u128::from(x) * u128::from(y)) >> 64) as u64;
        AddSatS = |x, y| l(x).saturating_add(l(y)) as u64;
        AddSatU = |x, y| x.saturating_add(y);
        SubSatS = |x, y| l(x).saturating_sub(l(y)) as u64;
        SubSatU = |x, y| x.saturating_sub(y);
        AbsDiffS = |x, y| l(x).abs_diff(l(y));
        AbsDiffU = |x, y| x.abs_diff(y);
        HaddS = |x, y| ((i128::from(l(x)) + i128::from(l(y))) >> 1) as u64;
        HaddU = |x, y| ((u128::from(x) + u128::from(y)) >> 1) as u64;
        RhaddS = |x, y| ((i128::from(l(x)) + i128::from(l(y)) + 1) >> 1) as u64;
        RhaddU = |x, y| ((u128::from(x) + u128::from(y) + 1) >> 1) as u64;
        Rotate = |x, y| x.rotate_left((y & 63) as u32);
        AddF = |x, y| (d(x) + d(y)).to_bits();
        SubF = |x, y| (d(x) - d(y)).to_bits();
        MulF = |x, y| (d(x) * d(y)).to_bits();
        DivF = |x, y| (d(x) / d(y)).to_bits();
        FminF = |x, y| if d(y).is_nan() || d(x) < d(y) { x } else { y };
        FmaxF = |x, y| if d(y).is_nan() || d(x) > d(y) { x } else { y };
        MinF = |x, y| if d(y) < d(x) { y } else { x };
        MaxF = |x, y| if d(x) < d(y) { y } else { x };
        StepF = |x, y| (if d(y) < d(x) { 0.0f64 } else { 1.0 }).to_bits();
        CopysignF = |x, y| (x & !(1 << 63)) | (y & (1 << 63));
        NextafterF = |x, y| math::nextafter_f64(d(x), d(y)).to_bits();
        Atan2F = |x, y| math::binary(Math2::Atan2, d(x), d(y)).to_bits();
        Atan2piF = |x, y| math::binary(Math2::Atan2pi, d(x), d(y)).to_bits();
        FdimF = |x, y| math::binary(Math2::Fdim, d(x), d(y)).to_bits();
        FmodF = |x, y| (d(x) % d(y)).to_bits();
        HypotF = |x, y| math::binary(Math2::Hypot, d(x), d(y)).to_bits();
        MaxmagF = |x, y| math::binary(Math2::Maxmag, d(x), d(y)).to_bits();
        MinmagF = |x, y| math::binary(Math2::Minmag, d(x), d(y)).to_bits();
        PowF = |x, y| math::binary(Math2::Pow, d(x), d(y)).to_bits();
        PowrF = |x, y| math::binary(Math2::Powr, d(x), d(y)).to_bits();
        RemainderF = |x, y| math::binary(Math2::Remainder, d(x), d(y)).to_bits();
        PownF = |x, n| math::pown(d(x), n as i32).to_bits();
        RootnF = |x, n| math::rootn(d(x), n as i32).to_bits();
        LdexpF = |x, n| math::ldexp(d(x), n as i32).to_bits();
        RemquoF = |x, y| math::remquo(d(x), d(y)).0.to_bits();
        RemquoQuotientF = |x, y| i64::from(math::remquo(d(x), d(y)).1) as u64;
    }
}

table! {
    /// Comparisons of 64-bit operands; the result is 1 or 0 in 32 bits.
    Compare64 compare64 one_compare64 zip apply2 (a, b) (a, b) u64 => u32 {
        Eq = |x, y| u32::from(x == y);
        Ne = |x, y| u32::from(x != y);
        LtS = |x, y| u32::from(l(x) < l(y));
        LeS = |x, y| u32::from(l(x) <= l(y));
        LtU = |x, y| u32::from(x < y);
        LeU = |x, y| u32::from(x <= y);
        EqF = |x, y| u32::from(d(x) == d(y));
        NeF = |x, y| u32::from(d(x) != d(y));
        LtF = |x, y| u32::from(d(x) < d(y));
        LeF = |x, y| u32::from(d(x) <= d(y));
        UnorderedF = |x, y| u32::from(d(x).is_nan() || d(y).is_nan());
    }
}

table! {
    /// Three 32-bit operands.
    Ternary32 ternary32 one_ternary32 zip3 apply3 (a, b, c) (a, b, c) u32 => u32 {
        FmaF = |x, y, z| f(x).mul_add(f(y), f(z)).to_bits();
        MadF = |x, y, z| (f(x) * f(y) + f(z)).to_bits();
        // Selects by a nonzero condition, and by its sign bit.
        Select = |c, x, y| if c != 0 { x } else { y };
        SelectSign = |c, x, y| if s(c) < 0 { x } else { y };
        Bits = |a, b, c| (a & !c) | (b & c);
        Mad = |x, y, z| x.wrapping_mul(y).wrapping_add(z);
        MadSatS = |x, y, z| (i64::from(s(x)) * i64::from(s(y)) + i64::from(s(z))).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as u32;
        MadSatU = |x, y, z| (u64::from(x) * u64::from(y) + u64::from(z)).min(u64::from(u32::MAX)) as u32;
        SmoothstepF = |a, b, x| {
            let t = ((f(x) - f(a)) / (f(b) - f(a))).clamp(0.0, 1.0);
            (t * t * (3.0 - 2.0 * t)).to_bits()
        };
    }
}

table! {
    /// Three 64-bit operands.
    Ternary64 ternary64 one_ternary64 zip3 apply3 (a, b, c) (a, b, c) u64 => u64 {
        FmaF = |x, y, z| d(x).mul_add(d(y), d(z)).to_bits();
        MadF = |x, y, z| (d(x) * d(y) + d(z)).to_bits();
        Select = |c, x, y| if c != 0 { x } else { y };
        SelectSign = |c, x, y| if l(c) < 0 { x } else { y };
        Bits = |a, b, c| (a & !c) | (b & c);
        MadSatS = |x, y, z| integer::mad_sat_i64(l(x), l(y), l(z)) as u64;
        MadSatU = |x, y, z| integer::mad_sat_u64(x, y, z);
        SmoothstepF = |a, b, x| {
            let t = ((d(x) - d(a)) / (d(b) - d(a))).clamp(0.0, 1.0);
            (t * t * (3.0 - 2.0 * t)).to_bits()
        };
    }
}

table! {
    /// One 32-bit operand, a 32-bit result.
    Unary32 unary32 one_unary32 map apply1 (a) (a) u32 => u32 {
        Copy = |x| x;
        Neg = |x| x.wrapping_neg();
        Not = |x| !x;
        // 1 for zero, and 1 for nonzero.
        IsZero = |x| u32::from(x == 0);
        NotZero = |x| u32::from(x != 0);
        AbsS = |x| s(x).unsigned_abs();
        Clz = |x| x.leading_zeros();
        Ctz = |x| x.trailing_zeros();
        Popcount = |x| x.count_ones();
        Sext8 = |x| i32::from(x as i8) as u32;
        Zext8 = |x| x & 0xff;
        Sext16 = |x| i32::from(x as i16) as u32;
        Zext16 = |x| x & 0xffff;
        NegF = |x| x ^ 0x8000_0000;
        AbsF = |x| x & 0x7fff_ffff;
        IsZeroF = |x| u32::from(f(x) == 0.0);
        NotZeroF = |x| u32::from(f(x) != 0.0);
        S32ToF = |x| (s(x) as f32).to_bits();
        U32ToF = |x| (x as f32).to_bits();
        // Toward zero, saturating, NaN to 0.
        FToS32 = |x| f(x) as i32 as u32;
        FToU32 = |x| f(x) as u32;
        HalfToF = |x| convert::half_to_f32(x);
        FToHalf = |x| convert::f32_to_half(f(x));
        FToHalfZero = |x| convert::f64_to_half_directed(f64::from(f(x)), convert::DirectedRounding::Zero);
        FToHalfUp = |x| convert::f64_to_half_directed(f64::from(f(x)), convert::DirectedRounding::Up);
        FToHalfDown = |x| convert::f64_to_half_directed(f64::from(f(x)), convert::DirectedRounding::Down);
        S32ToFZero = |x| convert::f64_to_f32_directed(f64::from(s(x)), convert::DirectedRounding::Zero).to_bits();
        S32ToFUp = |x| convert::f64_to_f32_directed(f64::from(s(x)), convert::DirectedRounding::Up).to_bits();
        S32ToFDown = |x| convert::f64_to_f32_directed(f64::from(s(x)), convert::DirectedRounding::Down).to_bits();
        U32ToFZero = |x| convert::f64_to_f32_directed(f64::from(x), convert::DirectedRounding::Zero).to_bits();
        U32ToFUp = |x| convert::f64_to_f32_directed(f64::from(x), convert::DirectedRounding::Up).to_bits();
        U32ToFDown = |x| convert::f64_to_f32_directed(f64::from(x), convert::DirectedRounding::Down).to_bits();
        IsnanF = |x| u32::from(f(x).is_nan());
        IsinfF = |x| u32::from(f(x).is_infinite());
        IsfiniteF = |x| u32::from(f(x).is_finite());
        IsnormalF = |x| u32::from(f(x).is_normal());
        Sign = |x| x >> 31;
        IlogbF = |x| math::ilogb(f64::from(f(x))) as u32;
        ExponentF = |x| math::frexp(f64::from(f(x))).1 as u32;
        MantissaF = |x| (math::frexp(f64::from(f(x))).0 as f32).to_bits();
        LgammaSignF = |x| math::lgamma_r(f64::from(f(x))).1 as u32;
        SqrtF = |x| f(x).sqrt().to_bits();
        CeilF = |x| f(x).ceil().to_bits();
        FloorF = |x| f(x).floor().to_bits();
        TruncF = |x| f(x).trunc().to_bits();
        RoundF = |x| f(x).round().to_bits();
        RintF = |x| f(x).round_ties_even().to_bits();
        RsqrtF = |x| real::rsqrt(f(x)).to_bits();
        RecipF = |x| (1.0 / f(x)).to_bits();
        ExpF = |x| real::exp(f(x)).to_bits();
        Exp2F = |x| real::exp2(f(x)).to_bits();
        Exp10F = |x| real::exp10(f(x)).to_bits();
        Expm1F = |x| real::expm1(f(x)).to_bits();
        LogF = |x| real::ln(f(x)).to_bits();
        Log2F = |x| real::log2(f(x)).to_bits();
        Log10F = |x| real::log10(f(x)).to_bits();
        Log1pF = |x| real::log1p(f(x)).to_bits();
        TanhF = |x| real::tanh(f(x)).to_bits();
        // Exact only for |x| up to real::TRIG_LIMIT; the interpreter recomputes the lanes beyond.
        SinF = |x| real::sin(f(x)).to_bits();
        CosF = |x| real::cos(f(x)).to_bits();
        TanF = |x| real::tan(f(x)).to_bits();
    }
}

table! {
    /// One 64-bit operand, a 64-bit result.
    Unary64 unary64 one_unary64 map apply1 (a) (a) u64 => u64 {
        Copy = |x| x;
        Neg = |x| x.wrapping_neg();
        Not = |x| !x;
        AbsS = |x| l(x).unsigned_abs();
        Clz = |x| u64::from(x.leading_zeros());
        Ctz = |x| u64::from(x.trailing_zeros());
        Popcount = |x| u64::from(x.count_ones());
        NegF = |x| x ^ (1 << 63);
        AbsF = |x| x & !(1 << 63);
        S64ToF = |x| (l(x) as f64).to_bits();
        U64ToF = |x| (x as f64).to_bits();
        FToS64 = |x| d(x) as i64 as u64;
        FToU64 = |x| d(x) as u64;
        S64ToFZero = |x| convert::i128_to_f64(i128::from(l(x)), convert::DirectedRounding::Zero).to_bits();
        S64ToFUp = |x| convert::i128_to_f64(i128::from(l(x)), convert::DirectedRounding::Up).to_bits();
        S64ToFDown = |x| convert::i128_to_f64(i128::from(l(x)), convert::DirectedRounding::Down).to_bits();
        U64ToFZero = |x| convert::i128_to_f64(i128::from(x), convert::DirectedRounding::Zero).to_bits();
        U64ToFUp = |x| convert::i128_to_f64(i128::from(x), convert::DirectedRounding::Up).to_bits();
        U64ToFDown = |x| convert::i128_to_f64(i128::from(x), convert::DirectedRounding::Down).to_bits();
        SqrtF = |x| d(x).sqrt().to_bits();
        CeilF = |x| d(x).ceil().to_bits();
        FloorF = |x| d(x).floor().to_bits();
        TruncF = |x| d(x).trunc().to_bits();
        RoundF = |x| d(x).round().to_bits();
        RintF = |x| d(x).round_ties_even().to_bits();
        MantissaF = |x| math::frexp(d(x)).0.to_bits();
    }
}

table! {
    /// One 32-bit operand, a 64-bit result.
    Widen widen one_widen map apply1 (a) (a) u32 => u64 {
        Sext = |x| i64::from(s(x)) as u64;
        Zext = |x| u64::from(x);
        FToF64 = |x| f64::from(f(x)).to_bits();
        S32ToF64 = |x| f64::from(s(x)).to_bits();
        U32ToF64 = |x| f64::from(x).to_bits();
        FToS64 = |x| f(x) as i64 as u64;
        FToU64 = |x| f(x) as u64;
        // A condition as a mask of 64 bits.
        NotZeroMask = |x| if x != 0 { u64::MAX } else { 0 };
    }
}

table! {
    /// One 64-bit operand, a 32-bit result.
    Narrow narrow one_narrow map apply1 (a) (a) u64 => u32 {
        Low = |x| x as u32;
        High = |x| (x >> 32) as u32;
        NotZero = |x| u32::from(x != 0);
        NotZeroF = |x| u32::from(d(x) != 0.0);
        F64ToF = |x| (d(x) as f32).to_bits();
        F64ToFZero = |x| convert::f64_to_f32_directed(d(x), convert::DirectedRounding::Zero).to_bits();
        F64ToFUp = |x| convert::f64_to_f32_directed(d(x), convert::DirectedRounding::Up).to_bits();
        F64ToFDown = |x| convert::f64_to_f32_directed(d(x), convert::DirectedRounding::Down).to_bits();
        F64ToS32 = |x| d(x) as i32 as u32;
        F64ToU32 = |x| d(x) as u32;
        F64ToHalf = |x| convert::f64_to_half(d(x));
        F64ToHalfZero = |x| convert::f64_to_half_directed(d(x), convert::DirectedRounding::Zero);
        F64ToHalfUp = |x| convert::f64_to_half_directed(d(x), convert::DirectedRounding::Up);
        F64ToHalfDown = |x| convert::f64_to_half_directed(d(x), convert::DirectedRounding::Down);
        S64ToF = |x| (l(x) as f32).to_bits();
        U64ToF = |x| (x as f32).to_bits();
        S64ToFZero = |x| convert::i128_to_f32(i128::from(l(x)), convert::DirectedRounding::Zero).to_bits();
        S64ToFUp = |x| convert::i128_to_f32(i128::from(l(x)), convert::DirectedRounding::Up).to_bits();
        S64ToFDown = |x| convert::i128_to_f32(i128::from(l(x)), convert::DirectedRounding::Down).to_bits();
        U64ToFZero = |x| convert::i128_to_f32(i128::from(x), convert::DirectedRounding::Zero).to_bits();
        U64ToFUp = |x| convert::i128_to_f32(i128::from(x), convert::DirectedRounding::Up).to_bits();
        U64ToFDown = |x| convert::i128_to_f32(i128::from(x), convert::DirectedRounding::Down).to_bits();
        // Saturating to 32 bits.
        S64SatS32 = |x| l(x).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as u32;
        S64SatU32 = |x| l(x).clamp(0, i64::from(u32::MAX)) as u32;
        U64SatS32 = |x| x.min(i32::MAX as u64) as u32;
        U64SatU32 = |x| x.min(u64::from(u32::MAX)) as u32;
        IsnanF = |x| u32::from(d(x).is_nan());
        IsinfF = |x| u32::from(d(x).is_infinite());
        IsfiniteF = |x| u32::from(d(x).is_finite());
        IsnormalF = |x| u32::from(d(x).is_normal());
        Sign = |x| (x >> 63) as u32;
        IlogbF = |x| math::ilogb(d(x)) as u32;
        ExponentF = |x| math::frexp(d(x)).1 as u32;
        LgammaSignF = |x| math::lgamma_r(d(x)).1 as u32;
    }
}

/// A mathematical function of f32 lanes without a SIMD form.
pub fn math32(op: Math1, out: &mut [u32], a: LaneOperand<'_, u32>) {
    map(out, a, |x| math::unary_f32(op, f(x)).to_bits());
}

/// A mathematical function of f64 lanes.
pub fn math64(op: Math1, out: &mut [u64], a: LaneOperand<'_, u64>) {
    map(out, a, |x| math::unary(op, d(x)).to_bits());
}
