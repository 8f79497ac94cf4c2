//! Numeric built-ins: element-wise functions, and those that combine a vector's lanes.

use super::super::lanes::{Binary32, Binary64, Compare64, Narrow, Ternary64, Unary32, Unary64};
use super::operator::is_wide;
use super::{Lower, Val, Value};
use crate::hir::{BinaryOp, Builtin, Expr, Rounding};
use crate::types::{Scalar, Type};

impl Lower<'_> {
    /// Lowers purely numeric functions.
    pub(super) fn numeric(&mut self, b: Builtin, args: &[Expr], v: &[Value], e: &Expr) -> Value {
        use Builtin::*;
        let ty = args.first().map_or(e.ty, |a| a.ty);
        let s = ty.element().unwrap_or(Scalar::F32);
        match b {
            Any | All => return vec![self.any_all(b == All, s, &v[0])],
            Dot | Distance | FastDistance | Length | FastLength | Normalize | FastNormalize | Cross => {
                return self.geometric(b, s, v);
            }
            Shuffle | Shuffle2 => return self.shuffle(args, v, e),
            Nan => return v[0].iter().map(|x| self.nan(s, *x)).collect(),
            _ => {}
        }
        let count = v.iter().map(Vec::len).max().unwrap_or(0);
        let truth = matches!(
            b,
            Isfinite | Isinf | Isnan | Isnormal | Signbit | Islessgreater | Isordered | Isunordered
        );
        (0..count)
            .map(|i| {
                let x: Vec<Val> = v.iter().map(|v| v[i.min(v.len() - 1)]).collect();
                let one = self.numeric_scalar(b, s, &x, e);
                if truth && ty.is_vector() { self.truth(s, one) } else { one }
            })
            .collect()
    }

    fn nan(&mut self, s: Scalar, payload: Val) -> Val {
        match s {
            Scalar::U64 | Scalar::I64 => {
                self.e.binary64(Binary64::Or, payload, Val::Const(0x7ff8_0000_0000_0000))
            }
            Scalar::U16 | Scalar::I16 => self.e.binary32(Binary32::Or, payload, Val::Const(0x7e00)),
            _ => self.e.binary32(Binary32::Or, payload, Val::Const(0x7fc0_0000)),
        }
    }

    fn any_all(&mut self, all: bool, s: Scalar, v: &Value) -> Val {
        let mut sum = if all { Val::Const(1) } else { Val::Const(0) };
        for x in v {
            let sign = if is_wide(s) {
                self.e.narrow(Narrow::Sign, *x)
            } else {
                let bit = Val::Const(u64::from(s.bits() - 1));
                let moved = self.e.binary32(Binary32::ShrU, *x, bit);
                self.e.binary32(Binary32::And, moved, Val::Const(1))
            };
            sum = self.combine(all, sum, sign);
        }
        sum
    }

    fn shuffle(&mut self, args: &[Expr], v: &[Value], e: &Expr) -> Value {
        let mask = &v[v.len() - 1];
        let mask_kind = args[args.len() - 1].ty.element().unwrap_or(Scalar::U32);
        let pool: Value = v[..v.len() - 1].concat();
        // Three lanes count as four.
        let n = pool.len().next_power_of_two() as u64;
        mask.iter()
            .map(|m| {
                let index = self.convert_scalar(mask_kind, Scalar::U32, *m, Rounding::Default, false);
                let index = self.e.binary32(Binary32::And, index, Val::Const(n - 1));
                if let Val::Const(i) = index {
                    return pool.get(i as usize).copied().unwrap_or(Val::Const(0)).pinned();
                }
                let mut out = pool[0];
                for (i, lane) in pool.iter().enumerate().skip(1) {
                    let here = self.e.binary32(Binary32::Eq, index, Val::Const(i as u64));
                    out = self.select(
                        crate::types::INT,
                        Type::Scalar(e.ty.element().unwrap_or(Scalar::F32)),
                        &vec![here],
                        &vec![*lane],
                        &vec![out],
                    )[0];
                }
                out
            })
            .collect()
    }

    fn geometric(&mut self, b: Builtin, s: Scalar, v: &[Value]) -> Value {
        use Builtin::*;
        if s == Scalar::F16 {
            let wide: Vec<Value> =
                v.iter().map(|v| v.iter().map(|x| self.half_to_float(*x)).collect()).collect();
            let out = self.geometric(b, Scalar::F32, &wide);
            return out.iter().map(|x| self.e.unary32(Unary32::FToHalf, *x)).collect();
        }
        let mul = |l: &mut Self, x, y| l.binary_scalar(BinaryOp::Mul, s, x, y, s);
        if b == Cross {
            let (p, q) = (&v[0], &v[1]);
            let mut out = Value::new();
            for (i, j) in [(1, 2), (2, 0), (0, 1)] {
                let (x, y) = (mul(self, p[i], q[j]), mul(self, p[j], q[i]));
                out.push(self.binary_scalar(BinaryOp::Sub, s, x, y, s));
            }
            out.resize(p.len(), Val::Const(0));
            return out;
        }
        let x: Value = if matches!(b, Distance | FastDistance) {
            v[0].iter().zip(&v[1]).map(|(x, y)| self.binary_scalar(BinaryOp::Sub, s, *x, *y, s)).collect()
        } else {
            v[0].clone()
        };
        let y = if b == Dot { v[1].clone() } else { x.clone() };
        // Lengths use f64, so that squares neither overflow nor underflow; dot products use the declared type.
        if b != Dot && s == Scalar::F32 {
            let wide: Value =
                x.iter().map(|v| self.float_to_float(s, Scalar::F64, *v, Rounding::Default)).collect();
            let out = self.norms(b, &wide);
            return out.iter().map(|v| self.float_to_float(Scalar::F64, s, *v, Rounding::Default)).collect();
        }
        if b != Dot {
            let scale = self.scale_of(&x);
            let x: Value = x.iter().map(|v| self.e.binary64(Binary64::MulF, *v, scale)).collect();
            let out = self.norms(b, &x);
            if b == Normalize {
                return out;
            }
            return out.iter().map(|v| self.e.binary64(Binary64::DivF, *v, scale)).collect();
        }
        let mut sum = mul(self, x[0], y[0]);
        for i in 1..x.len() {
            let term = mul(self, x[i], y[i]);
            sum = self.binary_scalar(BinaryOp::Add, s, sum, term, s);
        }
        vec![sum]
    }

    /// Returns the power of two that scales the largest magnitude of f64 values to about 1, so that squares neither overflow nor underflow.
    fn scale_of(&mut self, x: &Value) -> Val {
        let magnitude = |l: &mut Self, v: Val| l.e.binary64(Binary64::And, v, Val::Const(i64::MAX as u64));
        let mut largest = magnitude(self, x[0]);
        for v in &x[1..] {
            let other = magnitude(self, *v);
            largest = self.e.binary64(Binary64::MaxU, largest, other);
        }
        // Biased exponents. The exponent of the largest finite values is limited, because the scale must be a normal number.
        let exponent = self.e.binary64(Binary64::ShrU, largest, Val::Const(52));
        let exponent = self.e.binary64(Binary64::MinU, exponent, Val::Const(2045));
        let exponent = self.e.binary64(Binary64::Sub, Val::Const(2046), exponent);
        self.e.binary64(Binary64::Shl, exponent, Val::Const(52))
    }

    /// Returns the length of an f64 vector, or the vector divided by its length; a zero vector stays unchanged.
    fn norms(&mut self, b: Builtin, x: &Value) -> Value {
        let mut sum = self.e.binary64(Binary64::MulF, x[0], x[0]);
        for v in &x[1..] {
            let term = self.e.binary64(Binary64::MulF, *v, *v);
            sum = self.e.binary64(Binary64::AddF, sum, term);
        }
        let length = self.e.unary64(Unary64::SqrtF, sum);
        if !matches!(b, Builtin::Normalize | Builtin::FastNormalize) {
            return vec![length];
        }
        let zero = self.e.compare64(Compare64::EqF, length, Val::Const(0));
        let zero = self.e.widen(super::super::lanes::Widen::NotZeroMask, zero);
        let by = self.e.ternary64(Ternary64::Select, zero, Val::Const(1.0f64.to_bits()), length);
        x.iter().map(|v| self.e.binary64(Binary64::DivF, *v, by)).collect()
    }
}
