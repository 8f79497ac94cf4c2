//! Numeric functions, one element at a time.

use super::super::lanes::{
    Binary32, Binary64, Compare64, Narrow, Ternary32, Ternary64, Unary32, Unary64, Widen,
};
use super::operator::is_wide;
use super::{Lower, Val};
use crate::builtins::math::Math1;
use crate::hir::{BinaryOp, Builtin, CompareOp, Expr, Rounding};
use crate::types::Scalar;

/// Returns the operations of a function of one float for f32 and for f64.
fn unary_float(b: Builtin) -> Option<(Option<Unary32>, Option<Unary64>, Math1)> {
    use Builtin::*;
    Some(match b {
        Acos => (None, None, Math1::Acos),
        Acosh => (None, None, Math1::Acosh),
        Acospi => (None, None, Math1::Acospi),
        Asin => (None, None, Math1::Asin),
        Asinh => (None, None, Math1::Asinh),
        Asinpi => (None, None, Math1::Asinpi),
        Atan => (None, None, Math1::Atan),
        Atanh => (None, None, Math1::Atanh),
        Atanpi => (None, None, Math1::Atanpi),
        Cbrt => (None, None, Math1::Cbrt),
        Ceil => (Some(Unary32::CeilF), Some(Unary64::CeilF), Math1::Ceil),
        Cos | NativeCos | HalfCos => (Some(Unary32::CosF), None, Math1::Cos),
        Cosh => (None, None, Math1::Cosh),
        Cospi => (None, None, Math1::Cospi),
        Degrees => (None, None, Math1::Degrees),
        Erf => (None, None, Math1::Erf),
        Erfc => (None, None, Math1::Erfc),
        Exp | NativeExp | HalfExp => (Some(Unary32::ExpF), None, Math1::Exp),
        Exp2 | NativeExp2 | HalfExp2 => (Some(Unary32::Exp2F), None, Math1::Exp2),
        Exp10 | NativeExp10 | HalfExp10 => (Some(Unary32::Exp10F), None, Math1::Exp10),
        Expm1 => (Some(Unary32::Expm1F), None, Math1::Expm1),
        Fabs => (Some(Unary32::AbsF), Some(Unary64::AbsF), Math1::Ceil),
        Floor => (Some(Unary32::FloorF), Some(Unary64::FloorF), Math1::Floor),
        Lgamma => (None, None, Math1::Lgamma),
        Log | NativeLog | HalfLog => (Some(Unary32::LogF), None, Math1::Log),
        Log2 | NativeLog2 | HalfLog2 => (Some(Unary32::Log2F), None, Math1::Log2),
        Log10 | NativeLog10 | HalfLog10 => (Some(Unary32::Log10F), None, Math1::Log10),
        Log1p => (Some(Unary32::Log1pF), None, Math1::Log1p),
        Logb => (None, None, Math1::Logb),
        Radians => (None, None, Math1::Radians),
        Rint => (Some(Unary32::RintF), Some(Unary64::RintF), Math1::Rint),
        Round => (Some(Unary32::RoundF), Some(Unary64::RoundF), Math1::Round),
        Rsqrt | NativeRsqrt | HalfRsqrt => (Some(Unary32::RsqrtF), None, Math1::Rsqrt),
        Sign => (None, None, Math1::Sign),
        Sin | NativeSin | HalfSin => (Some(Unary32::SinF), None, Math1::Sin),
        Sinh => (None, None, Math1::Sinh),
        Sinpi => (None, None, Math1::Sinpi),
        Sqrt | NativeSqrt | HalfSqrt => (Some(Unary32::SqrtF), Some(Unary64::SqrtF), Math1::Sqrt),
        Tan | NativeTan | HalfTan => (Some(Unary32::TanF), None, Math1::Tan),
        Tanh => (Some(Unary32::TanhF), None, Math1::Tanh),
        Tanpi => (None, None, Math1::Tanpi),
        Tgamma => (None, None, Math1::Tgamma),
        Trunc => (Some(Unary32::TruncF), Some(Unary64::TruncF), Math1::Trunc),
        _ => return None,
    })
}

/// Returns the operations of a function of two floats, for f32 and f64. The second argument of `pown`, `rootn` and `ldexp` is an integer.
fn binary_float(b: Builtin) -> Option<(Binary32, Binary64)> {
    use Builtin::*;
    Some(match b {
        Atan2 => (Binary32::Atan2F, Binary64::Atan2F),
        Atan2pi => (Binary32::Atan2piF, Binary64::Atan2piF),
        Copysign => (Binary32::CopysignF, Binary64::CopysignF),
        Fdim => (Binary32::FdimF, Binary64::FdimF),
        Fmax => (Binary32::FmaxF, Binary64::FmaxF),
        Fmin => (Binary32::FminF, Binary64::FminF),
        Fmod => (Binary32::FmodF, Binary64::FmodF),
        Hypot => (Binary32::HypotF, Binary64::HypotF),
        Max => (Binary32::MaxF, Binary64::MaxF),
        Maxmag => (Binary32::MaxmagF, Binary64::MaxmagF),
        Min => (Binary32::MinF, Binary64::MinF),
        Minmag => (Binary32::MinmagF, Binary64::MinmagF),
        Nextafter => (Binary32::NextafterF, Binary64::NextafterF),
        Pow => (Binary32::PowF, Binary64::PowF),
        Powr | NativePowr | HalfPowr => (Binary32::PowrF, Binary64::PowrF),
        Pown => (Binary32::PownF, Binary64::PownF),
        Rootn => (Binary32::RootnF, Binary64::RootnF),
        Ldexp => (Binary32::LdexpF, Binary64::LdexpF),
        Remainder => (Binary32::RemainderF, Binary64::RemainderF),
        Step => (Binary32::StepF, Binary64::StepF),
        NativeDivide | HalfDivide => (Binary32::DivF, Binary64::DivF),
        _ => return None,
    })
}

impl Lower<'_> {
    /// One element of a function's result.
    pub(super) fn numeric_scalar(&mut self, b: Builtin, s: Scalar, x: &[Val], e: &Expr) -> Val {
        match s {
            Scalar::F32 | Scalar::F64 => self.float_function(b, s, x, e),
            Scalar::F16 => self.half_function(b, x, e),
            _ => self.integer_function(b, s, x, e),
        }
    }

    /// Lowers functions of `half` in f32; the result is rounded once more.
    fn half_function(&mut self, b: Builtin, x: &[Val], e: &Expr) -> Val {
        use Builtin::*;
        match b {
            Bitselect => return self.e.ternary32(Ternary32::Bits, x[0], x[1], x[2]),
            Signbit => return self.e.binary32(Binary32::ShrU, x[0], Val::Const(15)),
            Nextafter => return self.half_next(x[0], x[1]),
            Isnormal => {
                let magnitude = self.e.binary32(Binary32::And, x[0], Val::Const(0x7fff));
                let from_least = self.e.binary32(Binary32::Sub, magnitude, Val::Const(0x0400));
                return self.e.binary32(Binary32::LtU, from_least, Val::Const(0x7800));
            }
            _ => {}
        }
        let integer_right = matches!(b, Pown | Rootn | Ldexp);
        let wide: Vec<Val> = x
            .iter()
            .enumerate()
            .map(|(i, v)| if integer_right && i == 1 { *v } else { self.half_to_float(*v) })
            .collect();
        if b == Fma {
            // Exact in f64 except for the addition, which is rounded to odd at bits far below those of half.
            let d: Vec<Val> = wide.iter().map(|v| self.e.widen(Widen::FToF64, *v)).collect();
            let sum = self.e.ternary64(Ternary64::FmaF, d[0], d[1], d[2]);
            return self.e.narrow(Narrow::F64ToHalf, sum);
        }
        let out = self.float_function(b, Scalar::F32, &wide, e);
        let whole = matches!(b, Isfinite | Isinf | Isnan | Islessgreater | Isordered | Isunordered | Ilogb);
        if whole { out } else { self.e.unary32(Unary32::FToHalf, out) }
    }

    /// Returns the next half after x toward y.
    fn half_next(&mut self, x: Val, y: Val) -> Val {
        use crate::types::{INT, Type};
        let (fx, fy) = (self.half_to_float(x), self.half_to_float(y));
        let magnitude = self.e.binary32(Binary32::And, x, Val::Const(0x7fff));
        let zero = self.e.unary32(Unary32::IsZero, magnitude);
        let up = self.e.binary32(Binary32::LtF, fx, fy);
        let equal = self.e.binary32(Binary32::EqF, fx, fy);
        let unordered = self.e.binary32(Binary32::UnorderedF, fx, fy);
        let negative = self.e.binary32(Binary32::ShrU, x, Val::Const(15));
        // Away from zero if the direction and the sign agree.
        let away = self.e.binary32(Binary32::Xor, up, negative);
        let step = self.e.ternary32(Ternary32::Select, away, Val::Const(1), Val::Const(u64::from(u32::MAX)));
        let moved = self.e.binary32(Binary32::Add, x, step);
        let least = self.e.ternary32(Ternary32::Select, up, Val::Const(1), Val::Const(0x8001));
        let half = Type::Scalar(Scalar::U16);
        let mut pick = |c: Val, t: Val, o: Val| self.select(INT, half, &vec![c], &vec![t], &vec![o])[0];
        let v = pick(zero, least, moved);
        let v = pick(equal, y, v);
        pick(unordered, Val::Const(0x7e00), v)
    }

    fn float_function(&mut self, b: Builtin, s: Scalar, x: &[Val], e: &Expr) -> Val {
        let wide = s == Scalar::F64;
        if let Some((narrow, long, math)) = unary_float(b) {
            return match (wide, narrow, long) {
                (false, Some(op), _) => self.e.unary32(op, x[0]),
                (true, _, Some(op)) => self.e.unary64(op, x[0]),
                _ => self.e.math(math, x[0], wide),
            };
        }
        if let Some((narrow, long)) = binary_float(b) {
            if !wide {
                return self.e.binary32(narrow, x[0], x[1]);
            }
            let integer_right = matches!(b, Builtin::Pown | Builtin::Rootn | Builtin::Ldexp);
            let right = if integer_right { self.e.widen(Widen::Sext, x[1]) } else { x[1] };
            return self.e.binary64(long, x[0], right);
        }
        self.float_function_rest(b, s, x, e)
    }

    fn float_function_rest(&mut self, b: Builtin, s: Scalar, x: &[Val], e: &Expr) -> Val {
        use Builtin::*;
        let wide = s == Scalar::F64;
        let one = Val::Const(if wide { 1.0f64.to_bits() } else { u64::from(1.0f32.to_bits()) });
        match b {
            Fma if wide => self.e.ternary64(Ternary64::FmaF, x[0], x[1], x[2]),
            Fma => self.e.ternary32(Ternary32::FmaF, x[0], x[1], x[2]),
            Mad if wide => self.e.ternary64(Ternary64::MadF, x[0], x[1], x[2]),
            Mad => self.e.ternary32(Ternary32::MadF, x[0], x[1], x[2]),
            Bitselect if wide => self.e.ternary64(Ternary64::Bits, x[0], x[1], x[2]),
            Bitselect => self.e.ternary32(Ternary32::Bits, x[0], x[1], x[2]),
            Smoothstep if wide => self.e.ternary64(Ternary64::SmoothstepF, x[0], x[1], x[2]),
            Smoothstep => self.e.ternary32(Ternary32::SmoothstepF, x[0], x[1], x[2]),
            Clamp if wide => {
                let low = self.e.binary64(Binary64::FmaxF, x[0], x[1]);
                self.e.binary64(Binary64::FminF, low, x[2])
            }
            Clamp => {
                let low = self.e.binary32(Binary32::FmaxF, x[0], x[1]);
                self.e.binary32(Binary32::FminF, low, x[2])
            }
            Mix => {
                let span = self.binary_scalar(BinaryOp::Sub, s, x[1], x[0], s);
                let part = self.binary_scalar(BinaryOp::Mul, s, span, x[2], s);
                self.binary_scalar(BinaryOp::Add, s, x[0], part, s)
            }
            NativeRecip | HalfRecip => self.binary_scalar(BinaryOp::Div, s, one, x[0], s),
            Ilogb if wide => self.e.narrow(Narrow::IlogbF, x[0]),
            Ilogb => self.e.unary32(Unary32::IlogbF, x[0]),
            Isfinite if wide => self.e.narrow(Narrow::IsfiniteF, x[0]),
            Isfinite => self.e.unary32(Unary32::IsfiniteF, x[0]),
            Isinf if wide => self.e.narrow(Narrow::IsinfF, x[0]),
            Isinf => self.e.unary32(Unary32::IsinfF, x[0]),
            Isnan if wide => self.e.narrow(Narrow::IsnanF, x[0]),
            Isnan => self.e.unary32(Unary32::IsnanF, x[0]),
            Isnormal if wide => self.e.narrow(Narrow::IsnormalF, x[0]),
            Isnormal => self.e.unary32(Unary32::IsnormalF, x[0]),
            Signbit if wide => self.e.narrow(Narrow::Sign, x[0]),
            Signbit => self.e.unary32(Unary32::Sign, x[0]),
            Islessgreater => {
                let less = self.compare_scalar(CompareOp::Lt, s, x[0], x[1]);
                let greater = self.compare_scalar(CompareOp::Gt, s, x[0], x[1]);
                self.combine(false, less, greater)
            }
            Isunordered | Isordered => {
                let unordered = if wide {
                    self.e.compare64(Compare64::UnorderedF, x[0], x[1])
                } else {
                    self.e.binary32(Binary32::UnorderedF, x[0], x[1])
                };
                if b == Isunordered { unordered } else { self.e.unary32(Unary32::IsZero, unordered) }
            }
            _ => self.missing(b, e),
        }
    }

    fn missing(&mut self, b: Builtin, e: &Expr) -> Val {
        self.unsupported(e.span, format!("the function `{b:?}` is not supported for these operands"));
        Val::Const(0)
    }

    fn integer_function(&mut self, b: Builtin, s: Scalar, x: &[Val], e: &Expr) -> Val {
        use Builtin::*;
        let signed = s.is_signed();
        match b {
            Min | Max => self.extreme(b == Max, s, x[0], x[1]),
            Clamp => {
                let low = self.extreme(true, s, x[0], x[1]);
                self.extreme(false, s, low, x[2])
            }
            Bitselect if is_wide(s) => self.e.ternary64(Ternary64::Bits, x[0], x[1], x[2]),
            Bitselect => self.e.ternary32(Ternary32::Bits, x[0], x[1], x[2]),
            Abs if !signed => x[0],
            Abs if is_wide(s) => self.e.unary64(Unary64::AbsS, x[0]),
            Abs => self.e.unary32(Unary32::AbsS, x[0]),
            Upsample => self.upsample(s, x[0], x[1]),
            Mul24 | Mad24 => {
                let op = if signed { Binary32::Mul24S } else { Binary32::Mul24U };
                let product = self.e.binary32(op, x[0], x[1]);
                if b == Mul24 { product } else { self.e.binary32(Binary32::Add, product, x[2]) }
            }
            MadHi => {
                let high = self.integer_function(MulHi, s, x, e);
                self.binary_scalar(BinaryOp::Add, s, high, x[2], s)
            }
            Clz | Ctz | Popcount => self.count_bits(b, s, x[0]),
            _ if is_wide(s) => self.long_function(b, signed, x, e),
            _ if s.size() == 4 => self.word_function(b, signed, x, e),
            _ => self.small_function(b, s, x, e),
        }
    }

    fn extreme(&mut self, max: bool, s: Scalar, x: Val, y: Val) -> Val {
        match (is_wide(s), max, s.is_signed()) {
            (true, true, true) => self.e.binary64(Binary64::MaxS, x, y),
            (true, true, false) => self.e.binary64(Binary64::MaxU, x, y),
            (true, false, true) => self.e.binary64(Binary64::MinS, x, y),
            (true, false, false) => self.e.binary64(Binary64::MinU, x, y),
            (false, true, true) => self.e.binary32(Binary32::MaxS, x, y),
            (false, true, false) => self.e.binary32(Binary32::MaxU, x, y),
            (false, false, true) => self.e.binary32(Binary32::MinS, x, y),
            (false, false, false) => self.e.binary32(Binary32::MinU, x, y),
        }
    }

    /// Combines two numbers to one of twice the width; the first operand is the high half.
    fn upsample(&mut self, s: Scalar, high: Val, low: Val) -> Val {
        if s.size() == 4 {
            let wide = self.e.widen(Widen::Zext, high);
            let moved = self.e.binary64(Binary64::Shl, wide, Val::Const(32));
            let low = self.e.widen(Widen::Zext, low);
            return self.e.binary64(Binary64::Or, moved, low);
        }
        let moved = self.e.binary32(Binary32::Shl, high, Val::Const(u64::from(s.bits())));
        let low = self.normalize(s.unsigned_of_width(), low);
        let v = self.e.binary32(Binary32::Or, moved, low);
        let twice = if s.size() == 1 { Scalar::U16 } else { Scalar::U32 };
        self.normalize(if s.is_signed() { twice.signed_of_width() } else { twice }, v)
    }

    fn count_bits(&mut self, b: Builtin, s: Scalar, x: Val) -> Val {
        if is_wide(s) {
            let op = match b {
                Builtin::Clz => Unary64::Clz,
                Builtin::Ctz => Unary64::Ctz,
                _ => Unary64::Popcount,
            };
            return self.e.unary64(op, x);
        }
        let bits = u64::from(s.bits());
        let x = self.normalize(s.unsigned_of_width(), x);
        match b {
            Builtin::Clz => {
                let n = self.e.unary32(Unary32::Clz, x);
                self.e.binary32(Binary32::Sub, n, Val::Const(32 - bits))
            }
            Builtin::Ctz => {
                // A bit above the type's width stops the count at the width.
                let x = if bits < 32 { self.e.binary32(Binary32::Or, x, Val::Const(1 << bits)) } else { x };
                self.e.unary32(Unary32::Ctz, x)
            }
            _ => self.e.unary32(Unary32::Popcount, x),
        }
    }

    fn word_function(&mut self, b: Builtin, signed: bool, x: &[Val], e: &Expr) -> Val {
        use Builtin::*;
        let pick = |s, u| if signed { s } else { u };
        let op = match b {
            AbsDiff => pick(Binary32::AbsDiffS, Binary32::AbsDiffU),
            AddSat => pick(Binary32::AddSatS, Binary32::AddSatU),
            SubSat => pick(Binary32::SubSatS, Binary32::SubSatU),
            Hadd => pick(Binary32::HaddS, Binary32::HaddU),
            Rhadd => pick(Binary32::RhaddS, Binary32::RhaddU),
            MulHi => pick(Binary32::MulHiS, Binary32::MulHiU),
            Rotate => Binary32::Rotate,
            MadSat => {
                let op = if signed { Ternary32::MadSatS } else { Ternary32::MadSatU };
                return self.e.ternary32(op, x[0], x[1], x[2]);
            }
            _ => return self.missing(b, e),
        };
        self.e.binary32(op, x[0], x[1])
    }

    fn long_function(&mut self, b: Builtin, signed: bool, x: &[Val], e: &Expr) -> Val {
        use Builtin::*;
        let pick = |s, u| if signed { s } else { u };
        let op = match b {
            AbsDiff => pick(Binary64::AbsDiffS, Binary64::AbsDiffU),
            AddSat => pick(Binary64::AddSatS, Binary64::AddSatU),
            SubSat => pick(Binary64::SubSatS, Binary64::SubSatU),
            Hadd => pick(Binary64::HaddS, Binary64::HaddU),
            Rhadd => pick(Binary64::RhaddS, Binary64::RhaddU),
            MulHi => pick(Binary64::MulHiS, Binary64::MulHiU),
            Rotate => Binary64::Rotate,
            MadSat => {
                let op = if signed { Ternary64::MadSatS } else { Ternary64::MadSatU };
                return self.e.ternary64(op, x[0], x[1], x[2]);
            }
            _ => return self.missing(b, e),
        };
        self.e.binary64(op, x[0], x[1])
    }

    /// Lowers functions of 8- and 16-bit integers: exact in 32 bits, then converted back.
    fn small_function(&mut self, b: Builtin, s: Scalar, x: &[Val], e: &Expr) -> Val {
        use Builtin::*;
        let signed = s.is_signed();
        let bits = u64::from(s.bits());
        let right = if signed { Binary32::ShrS } else { Binary32::ShrU };
        match b {
            AbsDiff => {
                self.e.binary32(if signed { Binary32::AbsDiffS } else { Binary32::AbsDiffU }, x[0], x[1])
            }
            AddSat | SubSat => {
                let op = if b == AddSat { Binary32::Add } else { Binary32::Sub };
                let v = self.e.binary32(op, x[0], x[1]);
                self.convert_scalar(Scalar::I32, s, v, Rounding::Default, true)
            }
            MadSat => {
                // 16 bits: the product of two and a third fit 33 bits.
                let wide: Vec<Val> = x.iter().map(|v| self.e.widen(Widen::Sext, *v)).collect();
                let product = self.e.binary64(Binary64::Mul, wide[0], wide[1]);
                let sum = self.e.binary64(Binary64::Add, product, wide[2]);
                self.convert_scalar(Scalar::I64, s, sum, Rounding::Default, true)
            }
            Hadd | Rhadd => {
                let sum = self.e.binary32(Binary32::Add, x[0], x[1]);
                let sum = if b == Rhadd { self.e.binary32(Binary32::Add, sum, Val::Const(1)) } else { sum };
                self.e.binary32(right, sum, Val::Const(1))
            }
            MulHi => {
                let product = self.e.binary32(Binary32::Mul, x[0], x[1]);
                self.e.binary32(right, product, Val::Const(bits))
            }
            Rotate => {
                let v = self.normalize(s.unsigned_of_width(), x[0]);
                let n = self.e.binary32(Binary32::And, x[1], Val::Const(bits - 1));
                let back = self.e.binary32(Binary32::Sub, Val::Const(bits), n);
                let (up, down) =
                    (self.e.binary32(Binary32::Shl, v, n), self.e.binary32(Binary32::ShrU, v, back));
                let both = self.e.binary32(Binary32::Or, up, down);
                self.normalize(s, both)
            }
            _ => self.missing(b, e),
        }
    }
}
