//! Assignments.

use super::operator::{binary_op, integers_only};
use super::{Lvalue, Operand, Sema, fold};
use crate::hir::{BinaryOp, Expr, ExprKind, Place, PlaceKind, StepResult};
use crate::parse::ast;
use crate::source::Span;
use crate::types::{Space, Type};

impl Sema<'_> {
    /// `left = right`, or `left op= right`.
    pub(super) fn assign(
        &mut self,
        op: Option<&str>,
        left: &ast::Expr,
        right: &ast::Expr,
        span: Span,
    ) -> Option<Expr> {
        let target = self.assignable(left, span);
        let value = self.rvalue(right);
        let (target, value) = (target?, value?);
        let ty = target.place.ty;
        let Some(op) = op.and_then(binary_op) else {
            let value = self.implicit(value, ty, "assigning to", span)?;
            let kind = ExprKind::Assign { place: Box::new(target.place), value: Box::new(value) };
            return Some(Expr { kind, ty, span });
        };
        let (compute, value) = self.update_operands(op, ty, value, span)?;
        let (place, value) = (Box::new(target.place), Box::new(value));
        let kind = ExprKind::Update { place, op, compute, value, result: StepResult::New };
        Some(Expr { kind, ty, span })
    }

    /// Returns the type of `place op= value`, and the value in it.
    fn update_operands(&mut self, op: BinaryOp, ty: Type, value: Expr, span: Span) -> Option<(Type, Expr)> {
        if ty.is_pointer() {
            if !matches!(op, BinaryOp::Add | BinaryOp::Sub) || !value.ty.is_integer() {
                return self.invalid_operands(ty, value.ty, span);
            }
            return Some((ty, self.byte_offset(value, ty, span)));
        }
        let (Some(a), Some(b)) = (ty.element(), value.ty.element()) else {
            return self.invalid_operands(ty, value.ty, span);
        };
        if integers_only(op) && (a.is_float() || b.is_float()) {
            return self.invalid_operands(ty, value.ty, span);
        }
        self.check_arithmetic(ty, span)?;
        self.check_arithmetic(value.ty, span)?;
        let is_shift = matches!(op, BinaryOp::Shl | BinaryOp::Shr);
        match (ty, value.ty) {
            (Type::Scalar(a), Type::Scalar(_)) if is_shift => {
                Some((Type::Scalar(self.common_scalar(a, a)), self.promote(value)))
            }
            (Type::Scalar(a), Type::Scalar(b)) => {
                let compute = Type::Scalar(self.common_scalar(a, b));
                Some((compute, fold::convert(value, compute)))
            }
            (Type::Vector(s, n), Type::Scalar(_)) if is_shift => {
                Some((ty, fold::splat(fold::convert(value, Type::Scalar(s)), n)))
            }
            (Type::Vector(..), Type::Scalar(_)) => Some((ty, self.splat_to_vector(value, ty, span)?)),
            (Type::Vector(_, n), Type::Vector(_, m)) if is_shift && n == m => Some((ty, value)),
            (a, b) if a == b => Some((ty, value)),
            (a, b) => self.invalid_operands(a, b, span),
        }
    }

    /// Returns a writable place.
    pub(super) fn assignable(&mut self, ast: &ast::Expr, span: Span) -> Option<Lvalue> {
        let lvalue = match self.operand(ast)? {
            Operand::Place(lvalue) => lvalue,
            Operand::Value(_) => return self.error(span, "expression is not assignable"),
        };
        let place = &lvalue.place;
        match place.ty {
            Type::Array(_) => {
                let name = self.type_name(place.ty);
                return self.error(span, format!("array type '{name}' is not assignable"));
            }
            Type::Atomic(_) => {
                return self
                    .error(span, "atomic objects are written by atomic_store() and atomic_init() only");
            }
            _ => {}
        }
        if lvalue.is_const || place.space == Space::Constant {
            let named = self.variable_name(place);
            let named = named
                .map_or("read-only location".into(), |n| format!("variable '{n}' with const-qualified type"));
            return self.error(span, format!("cannot assign to {named}"));
        }
        if let PlaceKind::Lanes { lanes, .. } = &place.kind
            && lanes.iter().enumerate().any(|(i, l)| lanes[..i].contains(l))
        {
            return self.error(span, "vector is not assignable (contains duplicate components)");
        }
        self.check_half(place.ty, span)?;
        Some(lvalue)
    }

    /// Returns the variable that a place is, or is part of.
    fn variable_name(&self, place: &Place) -> Option<String> {
        match &place.kind {
            PlaceKind::Local(id) => self.current.as_ref()?.locals.get(id.0 as usize).map(|l| l.name.clone()),
            PlaceKind::Global(id) => self.globals.get(id.0 as usize).map(|g| g.name.clone()),
            PlaceKind::Member { base, .. }
            | PlaceKind::Index { base, .. }
            | PlaceKind::Lanes { base, .. } => self.variable_name(base),
            PlaceKind::Deref(_) => None,
        }
    }
}
