//! Selects the instruction of an operator for the operand type.

use super::super::bytecode::Inst;
use super::super::lanes::{Binary32, Binary64, Compare64, Unary32, Unary64, Widen};
use super::{Lower, Val, Value};
use crate::hir::{BinaryOp, CompareOp, UnaryOp};
use crate::types::{Scalar, Type};

/// Returns true if a scalar needs a 64-bit register.
pub fn is_wide(s: Scalar) -> bool {
    s.size() == 8
}

impl Lower<'_> {
    /// Applies `op` to each lane of a type.
    pub(super) fn unary(&mut self, op: UnaryOp, ty: Type, a: &Value) -> Value {
        let s = ty.element().unwrap_or(Scalar::I32);
        a.iter().map(|v| self.unary_scalar(op, s, *v)).collect()
    }

    fn unary_scalar(&mut self, op: UnaryOp, s: Scalar, a: Val) -> Val {
        match (op, s) {
            (UnaryOp::Neg, Scalar::F32) => self.e.unary32(Unary32::NegF, a),
            (UnaryOp::Neg, Scalar::F64) => self.e.unary64(Unary64::NegF, a),
            (UnaryOp::Neg, Scalar::F16) => self.e.binary32(Binary32::Xor, a, Val::Const(0x8000)),
            (UnaryOp::Neg, s) if is_wide(s) => self.e.unary64(Unary64::Neg, a),
            (UnaryOp::Not, s) if is_wide(s) => self.e.unary64(Unary64::Not, a),
            (UnaryOp::Neg, s) => {
                let v = self.e.unary32(Unary32::Neg, a);
                self.normalize(s, v)
            }
            (UnaryOp::Not, s) => {
                let v = self.e.unary32(Unary32::Not, a);
                self.normalize(s, v)
            }
        }
    }

    /// Converts a 32-bit result to the sign- or zero-extended value of its type.
    pub(super) fn normalize(&mut self, s: Scalar, v: Val) -> Val {
        match s {
            Scalar::Bool => self.e.unary32(Unary32::NotZero, v),
            Scalar::I8 => self.e.unary32(Unary32::Sext8, v),
            Scalar::U8 => self.e.unary32(Unary32::Zext8, v),
            Scalar::I16 => self.e.unary32(Unary32::Sext16, v),
            Scalar::U16 => self.e.unary32(Unary32::Zext16, v),
            _ => v,
        }
    }

    /// Computes `a op b` on each lane of a type. A shift's right operand has its own type.
    pub(super) fn binary(&mut self, op: BinaryOp, ty: Type, a: &Value, b: &Value, right: Type) -> Value {
        let s = if ty.is_pointer() { Scalar::U64 } else { ty.element().unwrap_or(Scalar::U64) };
        let r = right.element().unwrap_or(Scalar::I32);
        a.iter().zip(b).map(|(x, y)| self.binary_scalar(op, s, *x, *y, r)).collect()
    }

    pub(super) fn binary_scalar(&mut self, op: BinaryOp, s: Scalar, a: Val, b: Val, right: Scalar) -> Val {
        match s {
            Scalar::F16 => {
                let (x, y) = (self.half_to_float(a), self.half_to_float(b));
                let v = self.binary_scalar(op, Scalar::F32, x, y, Scalar::F32);
                self.e.unary32(Unary32::FToHalf, v)
            }
            Scalar::F32 => {
                let op = match op {
                    BinaryOp::Add => Binary32::AddF,
                    BinaryOp::Sub => Binary32::SubF,
                    BinaryOp::Mul => Binary32::MulF,
                    _ => Binary32::DivF,
                };
                self.e.binary32(op, a, b)
            }
            Scalar::F64 => {
                let op = match op {
                    BinaryOp::Add => Binary64::AddF,
                    BinaryOp::Sub => Binary64::SubF,
                    BinaryOp::Mul => Binary64::MulF,
                    _ => Binary64::DivF,
                };
                self.e.binary64(op, a, b)
            }
            s if is_wide(s) => self.binary_long(op, s, a, b, right),
            s => self.binary_word(op, s, a, b, right),
        }
    }

    pub(super) fn half_to_float(&mut self, a: Val) -> Val {
        self.e.unary32(Unary32::HalfToF, a)
    }

    fn binary_long(&mut self, op: BinaryOp, s: Scalar, a: Val, b: Val, right: Scalar) -> Val {
        let signed = s.is_signed();
        let shift = matches!(op, BinaryOp::Shl | BinaryOp::Shr);
        let b = if shift && !is_wide(right) { self.e.widen(Widen::Zext, b) } else { b };
        if let Some(v) = self.identity(op, a, b) {
            return v;
        }
        if matches!(op, BinaryOp::Div | BinaryOp::Rem) {
            if let Some(v) = self.divide_by_power(op, signed, a, b, true) {
                return v;
            }
            self.check_divisor(b, true);
        }
        let op = match op {
            BinaryOp::Add => Binary64::Add,
            BinaryOp::Sub => Binary64::Sub,
            BinaryOp::Mul => Binary64::Mul,
            BinaryOp::Div if signed => Binary64::DivS,
            BinaryOp::Div => Binary64::DivU,
            BinaryOp::Rem if signed => Binary64::RemS,
            BinaryOp::Rem => Binary64::RemU,
            BinaryOp::Shl => Binary64::Shl,
            BinaryOp::Shr if signed => Binary64::ShrS,
            BinaryOp::Shr => Binary64::ShrU,
            BinaryOp::And => Binary64::And,
            BinaryOp::Or => Binary64::Or,
            BinaryOp::Xor => Binary64::Xor,
        };
        self.e.binary64(op, a, b)
    }

    fn binary_word(&mut self, op: BinaryOp, s: Scalar, a: Val, b: Val, right: Scalar) -> Val {
        let signed = s.is_signed();
        let shift = matches!(op, BinaryOp::Shl | BinaryOp::Shr);
        let mut b = b;
        if shift {
            if is_wide(right) {
                b = self.e.narrow(super::super::lanes::Narrow::Low, b);
            }
            if s.size() < 4 {
                b = self.e.binary32(Binary32::And, b, Val::Const(u64::from(s.bits() - 1)));
            }
        }
        if let Some(v) = self.identity(op, a, b) {
            return v;
        }
        if matches!(op, BinaryOp::Div | BinaryOp::Rem) {
            if let Some(v) = self.divide_by_power(op, signed, a, b, false) {
                return v;
            }
            self.check_divisor(b, false);
        }
        let op = match op {
            BinaryOp::Add => Binary32::Add,
            BinaryOp::Sub => Binary32::Sub,
            BinaryOp::Mul => Binary32::Mul,
            BinaryOp::Div if signed => Binary32::DivS,
            BinaryOp::Div => Binary32::DivU,
            BinaryOp::Rem if signed => Binary32::RemS,
            BinaryOp::Rem => Binary32::RemU,
            BinaryOp::Shl => Binary32::Shl,
            BinaryOp::Shr if signed => Binary32::ShrS,
            BinaryOp::Shr => Binary32::ShrU,
            BinaryOp::And => Binary32::And,
            BinaryOp::Or => Binary32::Or,
            BinaryOp::Xor => Binary32::Xor,
        };
        let v = self.e.binary32(op, a, b);
        self.normalize(s, v)
    }

    /// Simplifies integer operations without effect.
    fn identity(&mut self, op: BinaryOp, a: Val, b: Val) -> Option<Val> {
        match (op, a, b) {
            (BinaryOp::Add | BinaryOp::Or | BinaryOp::Xor, Val::Const(0), v)
            | (
                BinaryOp::Add | BinaryOp::Sub | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr,
                v,
                Val::Const(0),
            )
            | (BinaryOp::Mul, Val::Const(1), v)
            | (BinaryOp::Mul | BinaryOp::Div, v, Val::Const(1)) => Some(v),
            (BinaryOp::Mul | BinaryOp::And, Val::Const(0), _)
            | (BinaryOp::Mul | BinaryOp::And, _, Val::Const(0)) => Some(Val::Const(0)),
            _ => None,
        }
    }

    /// Lowers a division by a power of two, because SIMD instructions do not divide.
    fn divide_by_power(&mut self, op: BinaryOp, signed: bool, a: Val, b: Val, wide: bool) -> Option<Val> {
        let Val::Const(c) = b else { return None };
        let bits = if wide { 64 } else { 32 };
        if !c.is_power_of_two() || (signed && c >> (bits - 1) != 0) || matches!(a, Val::Const(_)) {
            return None;
        }
        let shift = Val::Const(u64::from(c.trailing_zeros()));
        let two = |l: &mut Self, w: Binary32, d: Binary64, x: Val, y: Val| {
            if wide { l.e.binary64(d, x, y) } else { l.e.binary32(w, x, y) }
        };
        // Signed division rounds toward zero: c - 1 is added to a negative dividend.
        let a_up = if signed {
            let sign = two(self, Binary32::ShrS, Binary64::ShrS, a, Val::Const(bits - 1));
            let more = two(self, Binary32::And, Binary64::And, sign, Val::Const(c - 1));
            two(self, Binary32::Add, Binary64::Add, a, more)
        } else {
            a
        };
        Some(match (op, signed) {
            (BinaryOp::Div, true) => two(self, Binary32::ShrS, Binary64::ShrS, a_up, shift),
            (BinaryOp::Div, false) => two(self, Binary32::ShrU, Binary64::ShrU, a, shift),
            (_, false) => two(self, Binary32::And, Binary64::And, a, Val::Const(c - 1)),
            (_, true) => {
                let mask = (c - 1) ^ if wide { u64::MAX } else { u64::from(u32::MAX) };
                let whole = two(self, Binary32::And, Binary64::And, a_up, Val::Const(mask));
                two(self, Binary32::Sub, Binary64::Sub, a, whole)
            }
        })
    }

    fn check_divisor(&mut self, b: Val, wide: bool) {
        if self.checked && !matches!(b, Val::Const(c) if c != 0) && !self.unreachable {
            let divisor = self.e.reg(b);
            self.e.push(Inst::CheckDivisor { divisor, wide });
        }
    }

    /// Compares values of a type: the result is `bool`, or -1 and 0 for vectors.
    pub(super) fn compare(&mut self, op: CompareOp, ty: Type, a: &Value, b: &Value) -> Value {
        let s = if ty.is_pointer() { Scalar::U64 } else { ty.element().unwrap_or(Scalar::U64) };
        a.iter()
            .zip(b)
            .map(|(x, y)| {
                let one = self.compare_scalar(op, s, *x, *y);
                if ty.is_vector() { self.truth(s, one) } else { one }
            })
            .collect()
    }

    /// Converts 1 or 0 to all ones or zeros of an integer as wide as the type.
    pub(super) fn truth(&mut self, s: Scalar, one: Val) -> Val {
        if is_wide(s) { self.e.widen(Widen::NotZeroMask, one) } else { self.e.unary32(Unary32::Neg, one) }
    }

    pub(super) fn compare_scalar(&mut self, op: CompareOp, s: Scalar, a: Val, b: Val) -> Val {
        let (op, a, b) = match op {
            CompareOp::Gt => (CompareOp::Lt, b, a),
            CompareOp::Ge => (CompareOp::Le, b, a),
            op => (op, a, b),
        };
        if s == Scalar::F16 {
            let (x, y) = (self.half_to_float(a), self.half_to_float(b));
            return self.compare_scalar(op, Scalar::F32, x, y);
        }
        if is_wide(s) {
            let op = match (op, s) {
                (CompareOp::Eq, Scalar::F64) => Compare64::EqF,
                (CompareOp::Ne, Scalar::F64) => Compare64::NeF,
                (CompareOp::Lt, Scalar::F64) => Compare64::LtF,
                (_, Scalar::F64) => Compare64::LeF,
                (CompareOp::Eq, _) => Compare64::Eq,
                (CompareOp::Ne, _) => Compare64::Ne,
                (CompareOp::Lt, Scalar::I64) => Compare64::LtS,
                (CompareOp::Lt, _) => Compare64::LtU,
                (_, Scalar::I64) => Compare64::LeS,
                _ => Compare64::LeU,
            };
            return self.e.compare64(op, a, b);
        }
        let signed = s.is_signed();
        let op = match (op, s) {
            (CompareOp::Eq, Scalar::F32) => Binary32::EqF,
            (CompareOp::Ne, Scalar::F32) => Binary32::NeF,
            (CompareOp::Lt, Scalar::F32) => Binary32::LtF,
            (_, Scalar::F32) => Binary32::LeF,
            (CompareOp::Eq, _) => Binary32::Eq,
            (CompareOp::Ne, _) => Binary32::Ne,
            (CompareOp::Lt, _) if signed => Binary32::LtS,
            (CompareOp::Lt, _) => Binary32::LtU,
            _ if signed => Binary32::LeS,
            _ => Binary32::LeU,
        };
        self.e.binary32(op, a, b)
    }
}
