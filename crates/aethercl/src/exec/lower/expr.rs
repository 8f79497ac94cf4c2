//! Expressions.

use super::super::bytecode::Inst;
use super::super::lanes::{Binary32, Binary64, Ternary32, Ternary64};
use super::operator::is_wide;
use super::{Lower, Val, Value};
use crate::hir::{BinaryOp, Expr, ExprKind, Place, Rounding, StepResult};
use crate::types::{Scalar, Type};

impl Lower<'_> {
    /// Returns the value of a scalar or pointer expression.
    pub(super) fn scalar(&mut self, e: &Expr) -> Val {
        self.value(e).first().copied().unwrap_or(Val::Const(0))
    }

    /// Returns the value of an expression.
    pub(super) fn value(&mut self, e: &Expr) -> Value {
        let before = std::mem::replace(&mut self.e.span, e.span);
        self.spend();
        let value = self.value_inner(e);
        self.e.span = before;
        value
    }

    fn value_inner(&mut self, e: &Expr) -> Value {
        match &e.kind {
            ExprKind::Int(bits) => self.constant(e.ty, *bits),
            ExprKind::Float(x) => self.float_constant(e.ty, *x),
            ExprKind::Load(place) => self.load(place),
            ExprKind::AddressOf(_) | ExprKind::Offset { .. } => {
                let addr = self.pointer(e);
                vec![self.address_value(&addr)]
            }
            ExprKind::Unary(op, a) => {
                let a = self.value(a);
                self.unary(*op, e.ty, &a)
            }
            ExprKind::Binary(op, a, b) => {
                let right = b.ty;
                let (a, b) = self.both(a, b);
                self.binary(*op, e.ty, &a, &b, right)
            }
            ExprKind::Compare(op, a, b) => {
                let ty = a.ty;
                let (a, b) = self.both(a, b);
                self.compare(*op, ty, &a, &b)
            }
            ExprKind::Logical(op, a, b) => vec![self.logical(*op, a, b, e)],
            ExprKind::Conditional { cond, then, otherwise } => self.conditional(e, cond, then, otherwise),
            ExprKind::Select { cond, then, otherwise } => {
                let c = self.value(cond);
                let (t, o) = self.both(then, otherwise);
                self.select(cond.ty, e.ty, &c, &t, &o)
            }
            ExprKind::Difference { left, right, scale } => {
                let (a, b) = self.both(left, right);
                vec![self.difference(a[0], b[0], *scale)]
            }
            ExprKind::Convert { operand, rounding, saturate } => {
                self.conversion(e, operand, *rounding, *saturate)
            }
            _ => self.value_rest(e),
        }
    }

    fn value_rest(&mut self, e: &Expr) -> Value {
        match &e.kind {
            ExprKind::Splat(a) => {
                let v = self.scalar(a);
                vec![v; e.ty.lanes() as usize]
            }
            ExprKind::Reinterpret(a) => {
                if a.ty.is_pointer() && e.ty.is_pointer() {
                    let addr = self.pointer(e);
                    return vec![self.address_value(&addr)];
                }
                let v = self.value(a);
                self.reinterpret(a.ty, e.ty, &v)
            }
            ExprKind::Vector(parts) => parts.iter().flat_map(|p| self.value(p)).collect(),
            ExprKind::Swizzle(a, lanes) => {
                let v = self.value(a);
                lanes.iter().map(|l| v[*l as usize]).collect()
            }
            ExprKind::Assign { place, value } => {
                let found = self.place(place);
                let value = self.value(value);
                self.store_found(&found, place, &value);
                self.stored(&found, place, value)
            }
            ExprKind::Update { place, op, compute, value, result } => {
                self.update(place, *op, *compute, value, *result)
            }
            ExprKind::Call(function, args) => self.call(*function, args, e),
            ExprKind::Builtin(builtin, args) => self.builtin(*builtin, args, e),
            ExprKind::Printf { format, args } => {
                let values: Value = args.iter().flat_map(|a| self.value(a)).collect();
                let count = self.printed(e, values.len());
                let list = self.e.list(&values);
                self.e.code.formats.push(format.clone());
                let format = self.e.code.formats.len() as u32 - 1;
                if !self.unreachable {
                    self.e.push(Inst::Print { format, list, count });
                }
                vec![Val::Const(0)]
            }
            ExprKind::Comma(a, b) => {
                self.value(a);
                self.value(b)
            }
            ExprKind::Statements(list, value) => self.statement_expression(list, value.as_deref(), e.ty),
            _ => Vec::new(),
        }
    }

    /// Evaluates two operands, left before right. A variable read on the left and changed on the right keeps its old value.
    pub(super) fn both(&mut self, a: &Expr, b: &Expr) -> (Value, Value) {
        let x = self.value(a);
        let x = if b.has_effect() {
            x.iter().map(|v| if v.is_variable() { self.copy(*v) } else { *v }).collect()
        } else {
            x
        };
        let y = self.value(b);
        (x, y)
    }

    fn constant(&mut self, ty: Type, bits: u64) -> Value {
        let s = ty.element().unwrap_or(Scalar::U64);
        // In registers, small signed integers are sign-extended to 32 bits.
        let bits = match s {
            Scalar::I8 => u64::from(i32::from(bits as i8) as u32),
            Scalar::I16 => u64::from(i32::from(bits as i16) as u32),
            s if is_wide(s) => bits,
            _ => u64::from(bits as u32),
        };
        vec![Val::Const(bits); ty.lanes() as usize]
    }

    fn float_constant(&mut self, ty: Type, x: f64) -> Value {
        let bits = match ty.element() {
            Some(Scalar::F64) => x.to_bits(),
            Some(Scalar::F16) => u64::from(crate::builtins::convert::f64_to_half(x)),
            _ => u64::from((x as f32).to_bits()),
        };
        vec![Val::Const(bits); ty.lanes() as usize]
    }

    fn conversion(&mut self, e: &Expr, operand: &Expr, r: Rounding, saturate: bool) -> Value {
        if let Some(v) = self.short_id(operand, e.ty) {
            return vec![v];
        }
        let v = self.value(operand);
        if !e.ty.is_vector() && e.ty.element().is_none() && !e.ty.is_pointer() {
            return if e.ty == Type::Void { Vec::new() } else { v };
        }
        self.convert(operand.ty, e.ty, &v, r, saturate)
    }

    /// Selects `t` if the condition holds, `o` otherwise.
    pub(super) fn select(&mut self, cond: Type, ty: Type, c: &Value, t: &Value, o: &Value) -> Value {
        let s = ty.element().unwrap_or(Scalar::U64);
        let k = cond.element().unwrap_or(Scalar::I32);
        let by_sign = cond.is_vector();
        (0..t.len()).map(|i| self.select_scalar(k, s, by_sign, c[i.min(c.len() - 1)], t[i], o[i])).collect()
    }

    fn select_scalar(&mut self, k: Scalar, s: Scalar, by_sign: bool, c: Val, t: Val, o: Val) -> Val {
        // The sign bit of a small unsigned condition is not the sign bit of a 32-bit register.
        let c = match (by_sign, k) {
            (true, Scalar::U8) => self.normalize(Scalar::I8, c),
            (true, Scalar::U16) => self.normalize(Scalar::I16, c),
            _ => c,
        };
        if is_wide(s) {
            let c =
                if is_wide(k) { c } else { self.convert_scalar(k, Scalar::I64, c, Rounding::Default, false) };
            let op = if by_sign { Ternary64::SelectSign } else { Ternary64::Select };
            self.e.ternary64(op, c, t, o)
        } else {
            let c = if is_wide(k) { self.not_zero(k, c) } else { c };
            let op = if by_sign { Ternary32::SelectSign } else { Ternary32::Select };
            if let Val::Const(bits) = c {
                let holds = if by_sign { (bits as u32 as i32) < 0 } else { bits as u32 != 0 };
                return if holds { t } else { o };
            }
            self.e.ternary32(op, c, t, o)
        }
    }

    fn update(&mut self, p: &Place, op: BinaryOp, compute: Type, value: &Expr, result: StepResult) -> Value {
        let found = self.place(p);
        let (old, right) = {
            let right = self.value(value);
            let right: Value = right
                .iter()
                .map(|v| if v.is_variable() && value.has_effect() { self.copy(*v) } else { *v })
                .collect();
            (self.load_place_found(&found, p), right)
        };
        let old = if result == StepResult::Old { old.iter().map(|v| self.copy(*v)).collect() } else { old };
        let new = if p.ty.is_pointer() {
            let op = if op == BinaryOp::Sub { Binary64::Sub } else { Binary64::Add };
            vec![self.e.binary64(op, old[0], right[0])]
        } else {
            let a = self.convert(p.ty, compute, &old, Rounding::Default, false);
            let v = self.binary(op, compute, &a, &right, value.ty);
            self.convert(compute, p.ty, &v, Rounding::Default, false)
        };
        self.store_found(&found, p, &new);
        if result == StepResult::Old { old } else { self.stored(&found, p, new) }
    }

    /// Returns the value of an assignment. In registers it is the variable's value, because the variable may have taken over the value's registers.
    fn stored(&mut self, found: &super::place::Where, p: &Place, value: Value) -> Value {
        match found {
            super::place::Where::Variable(..) => self.load_place_found(found, p),
            super::place::Where::Memory(_) => value,
        }
    }

    fn load_place_found(&mut self, found: &super::place::Where, p: &Place) -> Value {
        let crate::hir::PlaceKind::Lanes { base, lanes } = &p.kind else {
            return self.load_found(found, p.ty);
        };
        let whole = self.load_found(found, base.ty);
        lanes.iter().map(|l| whole[*l as usize]).collect()
    }

    /// Bitwise and, or of conditions.
    pub(super) fn combine(&mut self, and: bool, a: Val, b: Val) -> Val {
        match (and, a, b) {
            (true, Val::Const(0), _) | (true, _, Val::Const(0)) => Val::Const(0),
            (true, Val::Const(_), v)
            | (true, v, Val::Const(_))
            | (false, Val::Const(0), v)
            | (false, v, Val::Const(0)) => v,
            (false, Val::Const(_), _) | (false, _, Val::Const(_)) => Val::Const(1),
            (true, a, b) => self.e.binary32(Binary32::And, a, b),
            (false, a, b) => self.e.binary32(Binary32::Or, a, b),
        }
    }
}
