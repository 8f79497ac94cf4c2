//! Explicit conversions: casts, vector literals, `as_` and `convert_` functions.

use super::convert::{is_null, reinterpret};
use super::{Operand, Sema, fold};
use crate::hir::{Expr, ExprKind, Rounding};
use crate::parse::ast::{self, TypeName};
use crate::source::Span;
use crate::types::{Scalar, Space, Type};

impl Sema<'_> {
    /// `(T)x`.
    pub(super) fn cast(&mut self, ty: &TypeName, operand: &ast::Expr, span: Span) -> Option<Expr> {
        let q = self.named_type(ty);
        let value = self.rvalue(operand);
        let (q, value) = (q?, value?);
        self.cast_to(q.ty, value, span)
    }

    fn cast_to(&mut self, to: Type, value: Expr, span: Span) -> Option<Expr> {
        if value.ty == to {
            return Some(value);
        }
        match (value.ty, to) {
            (_, Type::Void) => {
                // The value runs and is dropped.
                let kind = ExprKind::Convert {
                    operand: Box::new(value),
                    rounding: Rounding::Default,
                    saturate: false,
                };
                return Some(Expr { kind, ty: Type::Void, span });
            }
            (Type::Scalar(_), Type::Scalar(Scalar::Bool)) => return self.condition(value),
            (Type::Pointer(_), Type::Scalar(Scalar::Bool)) => return self.condition(value),
            (Type::Scalar(_), Type::Scalar(_)) => return Some(fold::convert(value, to)),
            (Type::Scalar(_), Type::Vector(s, n)) => {
                return Some(fold::splat(fold::convert(value, Type::Scalar(s)), n));
            }
            (Type::Pointer(_), Type::Pointer(_)) => return self.cast_pointer(value, to, span),
            (Type::Pointer(_), Type::Scalar(s)) if s.is_integer() => {
                let bits = Expr { span, ..reinterpret(value, Type::Scalar(Scalar::U64)) };
                return Some(fold::convert(bits, to));
            }
            (Type::Scalar(s), Type::Pointer(_)) if s.is_integer() => {
                if is_null(&value) {
                    return Some(Expr { kind: ExprKind::Int(0), ty: to, span });
                }
                let bits = fold::convert(value, Type::Scalar(Scalar::U64));
                return Some(reinterpret(bits, to));
            }
            (Type::Scalar(s), Type::Sampler) if s.is_integer() => {
                return self.implicit(value, to, "casting to", span);
            }
            (Type::Scalar(_), Type::Event) if is_null(&value) => {
                return self.implicit(value, to, "casting to", span);
            }
            _ => {}
        }
        let (from, wanted) = (self.type_name(value.ty), self.type_name(to));
        if value.ty.is_vector() && to.is_vector() {
            let message = format!(
                "invalid conversion between vector types '{from}' and '{wanted}'; use convert_{wanted}() or as_{wanted}()"
            );
            return self.error(span, message);
        }
        self.error(span, format!("cast from '{from}' to '{wanted}' is not allowed"))
    }

    fn cast_pointer(&mut self, value: Expr, to: Type, span: Span) -> Option<Expr> {
        let (from, wanted) = (self.types.pointee(value.ty)?, self.types.pointee(to)?);
        let generic = |a: Space, b: Space| a == Space::Generic && b != Space::Constant;
        let fits = from.space == wanted.space
            || generic(from.space, wanted.space)
            || generic(wanted.space, from.space);
        if !fits && !is_null(&value) {
            let (a, b) = (self.type_name(value.ty), self.type_name(to));
            return self.error(span, format!("casting '{a}' to type '{b}' changes address space of pointer"));
        }
        Some(reinterpret(value, to))
    }

    /// `(float4)(a, b)`; one scalar fills every lane.
    pub(super) fn vector_literal(
        &mut self,
        ty: &TypeName,
        elements: &[ast::Expr],
        span: Span,
    ) -> Option<Expr> {
        let to = self.named_type(ty)?.ty;
        let Type::Vector(s, lanes) = to else { return self.error(span, "not a vector type") };
        let values: Vec<Option<Expr>> = elements.iter().map(|e| self.rvalue(e)).collect();
        let values: Vec<Expr> = values.into_iter().collect::<Option<_>>()?;
        if values.len() == 1 {
            let value = values.into_iter().next()?;
            return self.cast_to(to, value, span);
        }
        let mut parts = Vec::with_capacity(values.len());
        let mut total = 0usize;
        for value in values {
            total += usize::from(value.ty.lanes());
            match value.ty {
                Type::Scalar(_) => parts.push(fold::convert(value, Type::Scalar(s))),
                Type::Vector(e, _) if e == s => parts.push(value),
                other => {
                    let (name, wanted) = (self.type_name(other), self.type_name(to));
                    let message = format!("'{name}' cannot be part of a literal of type '{wanted}'");
                    return self.error(value.span, message);
                }
            }
        }
        if total != usize::from(lanes) {
            let few = if total < usize::from(lanes) { "too few" } else { "excess" };
            let name = self.type_name(to);
            return self.error(
                span,
                format!("{few} elements in vector literal: '{name}' takes {lanes}, got {total}"),
            );
        }
        Some(Expr { kind: ExprKind::Vector(parts), ty: to, span })
    }

    /// Analyzes `(T){…}`: a separate variable.
    pub(super) fn compound_literal(
        &mut self,
        ty: &TypeName,
        init: &ast::Initializer,
        span: Span,
    ) -> Option<Operand> {
        let q = self.named_type(ty)?;
        self.check_object(q.ty, span)?;
        if q.ty.element().is_some() {
            return self.braced_value(q.ty, init, span).map(Operand::Value);
        }
        let Some(lvalue) = self.temporary(q.ty, span) else {
            return self.error(span, "initializer element is not a compile-time constant");
        };
        let stores = self.stores_into(&lvalue.place, init, span)?;
        let value = self.value(Operand::Place(lvalue));
        let chain = stores.into_iter().rev().fold(value, |rest, store| {
            let ty = rest.ty;
            Expr { kind: ExprKind::Comma(Box::new(store), Box::new(rest)), ty, span }
        });
        Some(Operand::Value(chain))
    }

    /// `as_T(x)`.
    pub(super) fn as_type(&mut self, to: Type, value: Expr, span: Span) -> Option<Expr> {
        if value.ty == to {
            return Some(value);
        }
        let (Some(a), Some(b)) = (value.ty.element(), to.element()) else {
            let (a, b) = (self.type_name(value.ty), self.type_name(to));
            return self.error(span, format!("cannot reinterpret '{a}' as '{b}'"));
        };
        // A vector of three takes the room of four: one of another element is that of four first.
        let sizes_fit = self.types.size(value.ty) == self.types.size(to) && a.size() != b.size();
        if sizes_fit && a != Scalar::Bool && b != Scalar::Bool {
            if value.ty.lanes() == 3 && to.lanes() != 3 {
                let four = self.as_type(Type::Vector(a, 4), value, span)?;
                return self.as_type(to, four, span);
            }
            if to.lanes() == 3 && value.ty.lanes() != 3 {
                let four = self.as_type(Type::Vector(b, 4), value, span)?;
                return self.as_type(to, four, span);
            }
        }
        let three_four = a.size() == b.size() && matches!((value.ty.lanes(), to.lanes()), (3, 4) | (4, 3));
        let same =
            self.types.size(value.ty) == self.types.size(to) && (value.ty.lanes() == 3) == (to.lanes() == 3);
        if a == Scalar::Bool || b == Scalar::Bool || !(same || three_four) {
            let (a, b) = (self.type_name(value.ty), self.type_name(to));
            return self
                .error(span, format!("invalid reinterpretation: sizes of '{b}' and '{a}' must match"));
        }
        Some(Expr { kind: ExprKind::Reinterpret(Box::new(value)), ty: to, span })
    }

    /// `convert_T_sat_rte(x)`.
    pub(super) fn convert_type(
        &mut self,
        to: Type,
        rounding: Rounding,
        saturate: bool,
        value: Expr,
        span: Span,
    ) -> Option<Expr> {
        let fits = value.ty.element().is_some() && value.ty.lanes() == to.lanes();
        if !fits {
            let (a, b) = (self.type_name(value.ty), self.type_name(to));
            return self.error(span, format!("cannot convert '{a}' to '{b}': the lanes differ"));
        }
        if value.ty == to {
            return Some(value);
        }
        if rounding == Rounding::Default && !saturate {
            return Some(fold::convert(value, to));
        }
        Some(Expr { kind: ExprKind::Convert { operand: Box::new(value), rounding, saturate }, ty: to, span })
    }
}
