//! Conversions between types, and reinterpretation of bytes as another type.

use super::super::lanes::{Binary32, Binary64, Narrow, Unary32, Unary64, Widen};
use super::operator::is_wide;
use super::{Lower, Val, Value};
use crate::hir::Rounding;
use crate::types::{Scalar, Type};

/// Returns the least and the greatest value of an integer type.
fn range(s: Scalar) -> (i128, i128) {
    let bits = s.bits();
    if s.is_signed() { (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) }
}

impl Lower<'_> {
    /// Converts each lane from one type to another.
    pub(super) fn convert(
        &mut self,
        from: Type,
        to: Type,
        value: &Value,
        r: Rounding,
        saturate: bool,
    ) -> Value {
        if to == Type::Void {
            return Vec::new();
        }
        if matches!(to, Type::Image(..)) {
            return value.clone();
        }
        let kind = |ty: Type| match ty {
            Type::Sampler => Scalar::U32,
            ty => ty.element().unwrap_or(Scalar::U64),
        };
        let (a, b) = (kind(from), kind(to));
        value.iter().map(|v| self.convert_scalar(a, b, *v, r, saturate)).collect()
    }

    pub(super) fn convert_scalar(
        &mut self,
        from: Scalar,
        to: Scalar,
        v: Val,
        r: Rounding,
        saturate: bool,
    ) -> Val {
        if from == to {
            return v;
        }
        match (from.is_float(), to.is_float()) {
            (false, false) if to == Scalar::Bool => self.not_zero(from, v),
            (false, false) if saturate => self.saturate(from, to, v),
            (false, false) => self.integer_to_integer(from, to, v),
            (false, true) => self.integer_to_float(from, to, v, r),
            (true, false) => self.float_to_integer(from, to, v, r, saturate),
            (true, true) => self.float_to_float(from, to, v, r),
        }
    }

    /// Returns 1 if a number is not 0, and 0 otherwise.
    pub(super) fn not_zero(&mut self, s: Scalar, v: Val) -> Val {
        match s {
            Scalar::Bool => v,
            Scalar::F32 => self.e.unary32(Unary32::NotZeroF, v),
            Scalar::F64 => self.e.narrow(Narrow::NotZeroF, v),
            Scalar::F16 => {
                let v = self.e.binary32(Binary32::And, v, Val::Const(0x7fff));
                self.e.unary32(Unary32::NotZero, v)
            }
            s if is_wide(s) => self.e.narrow(Narrow::NotZero, v),
            _ => self.e.unary32(Unary32::NotZero, v),
        }
    }

    fn integer_to_integer(&mut self, from: Scalar, to: Scalar, v: Val) -> Val {
        match (is_wide(from), is_wide(to)) {
            (true, true) => v,
            (false, true) if from.is_signed() => self.e.widen(Widen::Sext, v),
            (false, true) => self.e.widen(Widen::Zext, v),
            (true, false) => {
                let low = self.e.narrow(Narrow::Low, v);
                self.normalize(to, low)
            }
            (false, false) => {
                let ((a, b), (c, d)) = (range(from), range(to));
                // A value that fits is already normalized.
                if c <= a && b <= d { v } else { self.normalize(to, v) }
            }
        }
    }

    fn saturate(&mut self, from: Scalar, to: Scalar, v: Val) -> Val {
        let (least, greatest) = range(to);
        let (from_least, from_greatest) = range(from);
        let mut v =
            self.integer_to_integer(from, if from.is_signed() { Scalar::I64 } else { Scalar::U64 }, v);
        if from_greatest > greatest {
            let op = if from.is_signed() { Binary64::MinS } else { Binary64::MinU };
            v = self.e.binary64(op, v, Val::Const(greatest as u64));
        }
        if from_least < least {
            v = self.e.binary64(Binary64::MaxS, v, Val::Const(least as u64));
        }
        if is_wide(to) { v } else { self.e.narrow(Narrow::Low, v) }
    }

    fn integer_to_float(&mut self, from: Scalar, to: Scalar, v: Val, r: Rounding) -> Val {
        let signed = from.is_signed();
        if to == Scalar::F16 {
            let wide = self.integer_to_float(from, Scalar::F64, v, r);
            return self.float_to_float(Scalar::F64, Scalar::F16, wide, r);
        }
        match (is_wide(from), to, signed) {
            (false, Scalar::F64, true) => self.e.widen(Widen::S32ToF64, v),
            (false, Scalar::F64, false) => self.e.widen(Widen::U32ToF64, v),
            (false, _, true) => {
                let op = by(r, Unary32::S32ToF, Unary32::S32ToFZero, Unary32::S32ToFUp, Unary32::S32ToFDown);
                self.e.unary32(op, v)
            }
            (false, _, false) => {
                let op = by(r, Unary32::U32ToF, Unary32::U32ToFZero, Unary32::U32ToFUp, Unary32::U32ToFDown);
                self.e.unary32(op, v)
            }
            (true, Scalar::F64, true) => {
                let op = by(r, Unary64::S64ToF, Unary64::S64ToFZero, Unary64::S64ToFUp, Unary64::S64ToFDown);
                self.e.unary64(op, v)
            }
            (true, Scalar::F64, false) => {
                let op = by(r, Unary64::U64ToF, Unary64::U64ToFZero, Unary64::U64ToFUp, Unary64::U64ToFDown);
                self.e.unary64(op, v)
            }
            (true, _, true) => {
                let op = by(r, Narrow::S64ToF, Narrow::S64ToFZero, Narrow::S64ToFUp, Narrow::S64ToFDown);
                self.e.narrow(op, v)
            }
            (true, _, false) => {
                let op = by(r, Narrow::U64ToF, Narrow::U64ToFZero, Narrow::U64ToFUp, Narrow::U64ToFDown);
                self.e.narrow(op, v)
            }
        }
    }

    fn float_to_integer(&mut self, from: Scalar, to: Scalar, v: Val, r: Rounding, saturate: bool) -> Val {
        if to == Scalar::Bool {
            return self.not_zero(from, v);
        }
        if from == Scalar::F16 {
            let wide = self.half_to_float(v);
            return self.float_to_integer(Scalar::F32, to, wide, r, saturate);
        }
        if from == Scalar::F32 {
            let v = match r {
                Rounding::Even => self.e.unary32(Unary32::RintF, v),
                Rounding::Up => self.e.unary32(Unary32::CeilF, v),
                Rounding::Down => self.e.unary32(Unary32::FloorF, v),
                Rounding::Default | Rounding::Zero => v,
            };
            return match to {
                Scalar::I64 => self.e.widen(Widen::FToS64, v),
                Scalar::U64 => self.e.widen(Widen::FToU64, v),
                Scalar::U32 => self.e.unary32(Unary32::FToU32, v),
                _ => {
                    let whole = self.e.unary32(Unary32::FToS32, v);
                    self.small_from_int(to, whole, saturate)
                }
            };
        }
        let v = match r {
            Rounding::Even => self.e.unary64(Unary64::RintF, v),
            Rounding::Up => self.e.unary64(Unary64::CeilF, v),
            Rounding::Down => self.e.unary64(Unary64::FloorF, v),
            Rounding::Default | Rounding::Zero => v,
        };
        match to {
            Scalar::I64 => self.e.unary64(Unary64::FToS64, v),
            Scalar::U64 => self.e.unary64(Unary64::FToU64, v),
            Scalar::U32 => self.e.narrow(Narrow::F64ToU32, v),
            _ => {
                let whole = self.e.narrow(Narrow::F64ToS32, v);
                self.small_from_int(to, whole, saturate)
            }
        }
    }

    /// Converts an `int` to an integer of at most 32 bits.
    fn small_from_int(&mut self, to: Scalar, v: Val, saturate: bool) -> Val {
        if to == Scalar::I32 {
            return v;
        }
        if !saturate {
            return self.normalize(to, v);
        }
        let (least, greatest) = range(to);
        let low = self.e.binary32(Binary32::MaxS, v, Val::Const(u64::from(least as u32)));
        self.e.binary32(Binary32::MinS, low, Val::Const(u64::from(greatest as u32)))
    }

    pub(super) fn float_to_float(&mut self, from: Scalar, to: Scalar, v: Val, r: Rounding) -> Val {
        match (from, to) {
            (Scalar::F16, Scalar::F32) => self.half_to_float(v),
            (Scalar::F16, Scalar::F64) => {
                let wide = self.half_to_float(v);
                self.e.widen(Widen::FToF64, wide)
            }
            (Scalar::F32, Scalar::F64) => self.e.widen(Widen::FToF64, v),
            (Scalar::F64, Scalar::F32) => {
                let op = by(r, Narrow::F64ToF, Narrow::F64ToFZero, Narrow::F64ToFUp, Narrow::F64ToFDown);
                self.e.narrow(op, v)
            }
            (Scalar::F32, Scalar::F16) => {
                let op =
                    by(r, Unary32::FToHalf, Unary32::FToHalfZero, Unary32::FToHalfUp, Unary32::FToHalfDown);
                self.e.unary32(op, v)
            }
            (Scalar::F64, Scalar::F16) => {
                let op = by(
                    r,
                    Narrow::F64ToHalf,
                    Narrow::F64ToHalfZero,
                    Narrow::F64ToHalfUp,
                    Narrow::F64ToHalfDown,
                );
                self.e.narrow(op, v)
            }
            _ => v,
        }
    }

    /// Reinterprets the bytes as another type.
    pub(super) fn reinterpret(&mut self, from: Type, to: Type, value: &Value) -> Value {
        let kind = |ty: Type| ty.element().unwrap_or(Scalar::U64);
        let (a, b) = (kind(from), kind(to));
        let count = self.leaves(to).len();
        if a.size() == b.size() {
            let mut out: Value = value.iter().map(|v| self.same_bits(a, b, *v)).collect();
            out.resize(count, Val::Const(0));
            return out;
        }
        // Through bytes, least significant first.
        let mut out = Value::with_capacity(count);
        if a.size() > b.size() {
            let parts = a.size() / b.size();
            for v in value {
                out.extend((0..parts).map(|i| self.part(a, b, *v, i * b.size() * 8)).collect::<Value>());
            }
        } else {
            let parts = (b.size() / a.size()) as usize;
            for group in value.chunks(parts) {
                out.push(self.join(a, b, group));
            }
        }
        out.resize(count, Val::Const(0));
        out
    }

    /// Reinterprets the bits of one type as another of the same size.
    fn same_bits(&mut self, a: Scalar, b: Scalar, v: Val) -> Val {
        if a.size() < 4 && a != b { self.normalize(raw(b), v) } else { v }
    }

    /// Returns the bits from `shift` as the smaller type.
    fn part(&mut self, a: Scalar, b: Scalar, v: Val, shift: u64) -> Val {
        let low = if is_wide(a) {
            let moved = if shift == 0 { v } else { self.e.binary64(Binary64::ShrU, v, Val::Const(shift)) };
            self.e.narrow(Narrow::Low, moved)
        } else if shift == 0 {
            v
        } else {
            self.e.binary32(Binary32::ShrU, v, Val::Const(shift))
        };
        self.normalize(raw(b), low)
    }

    /// Combines values of the smaller type.
    fn join(&mut self, a: Scalar, b: Scalar, group: &[Val]) -> Val {
        let mut sum = Val::Const(0);
        for (i, v) in group.iter().enumerate() {
            let shift = Val::Const(i as u64 * a.size() * 8);
            let bits = if a.size() < 4 { self.normalize(a.unsigned_of_width(), *v) } else { *v };
            sum = if is_wide(b) {
                let wide = self.e.widen(Widen::Zext, bits);
                let moved = self.e.binary64(Binary64::Shl, wide, shift);
                self.e.binary64(Binary64::Or, sum, moved)
            } else {
                let moved = self.e.binary32(Binary32::Shl, bits, shift);
                self.e.binary32(Binary32::Or, sum, moved)
            };
        }
        self.normalize(raw(b), sum)
    }
}

/// Returns the integer type with the same register form: `half` is stored as its bits, unsigned.
fn raw(s: Scalar) -> Scalar {
    match s {
        Scalar::F16 => Scalar::U16,
        Scalar::Bool => Scalar::U8,
        s => s,
    }
}

fn by<T>(r: Rounding, near: T, zero: T, up: T, down: T) -> T {
    match r {
        Rounding::Default | Rounding::Even => near,
        Rounding::Zero => zero,
        Rounding::Up => up,
        Rounding::Down => down,
    }
}
