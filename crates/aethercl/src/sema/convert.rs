//! Implicit conversions.

use super::{Sema, fold};
use crate::hir::{CompareOp, Expr, ExprKind};
use crate::source::Span;
use crate::types::{BOOL, INT, PointerType, Scalar, Space, Type};

impl Sema<'_> {
    /// Converts `expr` to type `to` if the language does so implicitly. `what` starts the message: "assigning to", "passing to parameter of type" and
    /// so on.
    pub(super) fn implicit(&mut self, expr: Expr, to: Type, what: &str, span: Span) -> Option<Expr> {
        if expr.ty == to {
            return Some(expr);
        }
        match (expr.ty, to) {
            (Type::Scalar(_), Type::Scalar(Scalar::Bool)) => return self.condition(expr),
            (Type::Scalar(_), Type::Scalar(_)) => return Some(fold::convert(expr, to)),
            (Type::Scalar(_), Type::Vector(element, lanes)) => {
                return Some(fold::splat(fold::convert(expr, Type::Scalar(element)), lanes));
            }
            (Type::Pointer(_), Type::Scalar(Scalar::Bool)) => return self.condition(expr),
            (Type::Pointer(_), Type::Pointer(_)) => return self.implicit_pointer(expr, to, what, span),
            (Type::Scalar(_), Type::Pointer(_) | Type::Event) if is_null(&expr) => {
                return Some(Expr { kind: ExprKind::Int(0), ty: to, span: expr.span });
            }
            // Only initializers reach this.
            (Type::Scalar(_), Type::Atomic(a)) => return Some(fold::convert(expr, Type::Scalar(a))),
            (Type::Scalar(s), Type::Sampler) if s.is_integer() => return Some(self.sampler(expr)),
            // A function may take an image without an access qualifier.
            (Type::Image(a, _), Type::Image(b, _)) if a == b => return Some(reinterpret(expr, to)),
            _ => {}
        }
        let (from, wanted) = (self.type_name(expr.ty), self.type_name(to));
        if expr.ty.is_vector() && to.is_vector() {
            return self.error(
                span,
                format!("{what} '{wanted}' from '{from}': vectors convert only by convert_{wanted}()"),
            );
        }
        self.error(span, format!("{what} '{wanted}' from incompatible type '{from}'"))
    }

    fn implicit_pointer(&mut self, expr: Expr, to: Type, what: &str, span: Span) -> Option<Expr> {
        let (Some(from), Some(wanted)) = (self.types.pointee(expr.ty), self.types.pointee(to)) else {
            return Some(expr);
        };
        if is_null(&expr) && from.to == Type::Void {
            return Some(Expr { kind: ExprKind::Int(0), ty: to, span: expr.span });
        }
        let (from_name, to_name) = (self.type_name(expr.ty), self.type_name(to));
        if !space_converts(from.space, wanted.space) {
            return self.error(
                span,
                format!("{what} '{to_name}' from '{from_name}' changes address space of pointer"),
            );
        }
        if !self.pointees_fit(from, wanted) {
            // The same as in C compilers: the pointer stays, but accesses through it use another type.
            self.diagnostics
                .warning(span, format!("incompatible pointer types {what} '{to_name}' from '{from_name}'"));
        }
        if from.is_const && !wanted.is_const {
            self.diagnostics
                .warning(span, format!("{what} '{to_name}' from '{from_name}' discards qualifiers"));
        }
        Some(reinterpret(expr, to))
    }

    /// Returns true for the same pointee, `void` on one side, or integers that differ only in sign.
    fn pointees_fit(&self, a: PointerType, b: PointerType) -> bool {
        let loose = |t: Type| match t {
            Type::Scalar(s) if s.is_integer() && s != Scalar::Bool => Type::Scalar(s.unsigned_of_width()),
            other => other,
        };
        if a.to == b.to || a.to == Type::Void || b.to == Type::Void || loose(a.to) == loose(b.to) {
            return true;
        }
        // Pointers to pointers or arrays: equal except for qualifiers.
        match (a.to, b.to) {
            (Type::Pointer(x), Type::Pointer(y)) => {
                let (x, y) = (self.types.pointer(x), self.types.pointer(y));
                x.to == y.to && x.space == y.space
            }
            _ => false,
        }
    }

    /// `expr` as a `bool` that decides something.
    pub(super) fn condition(&mut self, expr: Expr) -> Option<Expr> {
        let span = expr.span;
        match expr.ty {
            Type::Scalar(Scalar::Bool) => Some(expr),
            Type::Scalar(_) => {
                // The result of a comparison is `int` only formally.
                let expr = match strip_bool(expr) {
                    Ok(inner) => return Some(inner),
                    Err(expr) => expr,
                };
                let zero = zero_of(expr.ty, span);
                Some(fold::compare(CompareOp::Ne, expr, zero, span))
            }
            Type::Pointer(_) => {
                let zero = Expr { kind: ExprKind::Int(0), ty: expr.ty, span };
                Some(fold::compare(CompareOp::Ne, expr, zero, span))
            }
            ty => {
                let name = self.type_name(ty);
                self.error(span, format!("statement requires expression of scalar type ('{name}' invalid)"))
            }
        }
    }

    /// Integers narrower than `int` become `int`.
    pub(super) fn promote(&self, expr: Expr) -> Expr {
        match expr.ty {
            Type::Scalar(s) if s.is_integer() && s.size() < 4 => fold::convert(expr, INT),
            _ => expr,
        }
    }

    /// Returns the type that two scalars are brought to.
    pub(super) fn common_scalar(&self, a: Scalar, b: Scalar) -> Scalar {
        if a.is_float() || b.is_float() {
            let rank = |s: Scalar| if s.is_float() { s.size() } else { 0 };
            return if rank(a) >= rank(b) { a } else { b };
        }
        let promoted = |s: Scalar| if s.size() < 4 { Scalar::I32 } else { s };
        let (a, b) = (promoted(a), promoted(b));
        match a.size().cmp(&b.size()) {
            std::cmp::Ordering::Greater => a,
            std::cmp::Ordering::Less => b,
            std::cmp::Ordering::Equal => {
                if a.is_signed() {
                    b
                } else {
                    a
                }
            }
        }
    }

    /// Converts a scalar operand to the other operand's vector type, unless its type is larger than the vector's element type.
    pub(super) fn splat_to_vector(&mut self, scalar: Expr, vector: Type, span: Span) -> Option<Expr> {
        let (Some(from), Type::Vector(element, lanes)) = (scalar.ty.element(), vector) else {
            return self.error(span, "invalid operands");
        };
        let fits = match (from.is_float(), element.is_float()) {
            (true, false) => false,
            (false, true) => true,
            _ => from.size() <= element.size() || from == Scalar::Bool,
        };
        if !fits {
            let (s, v) = (self.type_name(scalar.ty), self.type_name(vector));
            let message = format!(
                "scalar operand type '{s}' has greater rank than the type of the vector element of '{v}'; convert it first"
            );
            return self.error(span, message);
        }
        Some(fold::splat(fold::convert(scalar, Type::Scalar(element)), lanes))
    }
}

/// Returns true for the constant 0 and the null pointer.
pub(super) fn is_null(expr: &Expr) -> bool {
    matches!(expr.kind, ExprKind::Int(0)) && (expr.ty.is_integer() || expr.ty.is_pointer())
}

/// Returns true if a pointer may change its address space implicitly.
pub(super) fn space_converts(from: Space, to: Space) -> bool {
    from == to || to == Space::Generic && from != Space::Constant
}

/// Returns the same address as another pointer type.
pub(super) fn reinterpret(expr: Expr, to: Type) -> Expr {
    if expr.ty == to {
        return expr;
    }
    let span = expr.span;
    if matches!(expr.kind, ExprKind::Int(_)) {
        return Expr { ty: to, ..expr };
    }
    Expr { kind: ExprKind::Reinterpret(Box::new(expr)), ty: to, span }
}

/// Returns the zero of a scalar or vector type.
pub(super) fn zero_of(ty: Type, span: Span) -> Expr {
    match ty.element() {
        Some(s) if s.is_float() => fold::float(0.0, ty, span),
        _ => Expr { kind: ExprKind::Int(0), ty, span },
    }
}

/// Returns the `bool` inside a `bool` converted to `int`.
fn strip_bool(expr: Expr) -> Result<Expr, Expr> {
    match expr.kind {
        ExprKind::Convert { operand, .. } if operand.ty == BOOL => Ok(*operand),
        _ => Err(expr),
    }
}
