//! `?:`.

use super::{Sema, fold};
use crate::hir::{Expr, ExprKind};
use crate::parse::ast;
use crate::source::Span;
use crate::types::Type;

impl Sema<'_> {
    /// `cond ? then : otherwise`.
    pub(super) fn ternary(
        &mut self,
        cond: &ast::Expr,
        then: &ast::Expr,
        otherwise: &ast::Expr,
        span: Span,
    ) -> Option<Expr> {
        let (cond, then, otherwise) = (self.rvalue(cond), self.rvalue(then), self.rvalue(otherwise));
        let (cond, then, otherwise) = (cond?, then?, otherwise?);
        if cond.ty.is_vector() {
            return self.vector_choice(cond, then, otherwise, span);
        }
        let (then, otherwise) = self.common_choice(then, otherwise, span)?;
        let ty = then.ty;
        let cond = self.condition(cond)?;
        match cond.kind {
            ExprKind::Int(0) => return Some(otherwise),
            ExprKind::Int(_) => return Some(then),
            _ => {}
        }
        let (cond, then, otherwise) = (Box::new(cond), Box::new(then), Box::new(otherwise));
        Some(Expr { kind: ExprKind::Conditional { cond, then, otherwise }, ty, span })
    }

    /// Converts both sides to one type.
    fn common_choice(&mut self, then: Expr, otherwise: Expr, span: Span) -> Option<(Expr, Expr)> {
        match (then.ty, otherwise.ty) {
            // Two operands of the same type keep it; only arithmetic types are promoted.
            (a, b) if a == b && !matches!(a, Type::Scalar(_)) => Some((then, otherwise)),
            (Type::Scalar(a), Type::Scalar(b)) => {
                let ty = Type::Scalar(self.common_scalar(a, b));
                Some((fold::convert(then, ty), fold::convert(otherwise, ty)))
            }
            (Type::Pointer(_), _) | (_, Type::Pointer(_)) => self.common_pointers(then, otherwise, span),
            (Type::Vector(..), Type::Scalar(_)) | (Type::Scalar(_), Type::Vector(..)) => {
                self.common(then, otherwise, span)
            }
            (a, b) => {
                let (a, b) = (self.type_name(a), self.type_name(b));
                self.error(span, format!("incompatible operand types ('{a}' and '{b}')"))
            }
        }
    }

    /// Analyzes a choice by a vector condition, for each lane separately.
    fn vector_choice(&mut self, cond: Expr, then: Expr, otherwise: Expr, span: Span) -> Option<Expr> {
        let Type::Vector(c, lanes) = cond.ty else { return None };
        if c.is_float() {
            let name = self.type_name(cond.ty);
            return self.error(span, format!("used type '{name}' where an integer vector is required"));
        }
        let (mut then, mut otherwise) = match (then.ty, otherwise.ty) {
            (Type::Scalar(a), Type::Scalar(b)) => {
                // No promotion to `int` here: both become vectors of their type.
                let ty = Type::Scalar(if a == b { a } else { self.common_scalar(a, b) });
                (
                    fold::splat(fold::convert(then, ty), lanes),
                    fold::splat(fold::convert(otherwise, ty), lanes),
                )
            }
            _ => self.common(then, otherwise, span)?,
        };
        // `mask4 ? 1 : 0` takes the mask's width.
        if let (Type::Vector(s, n), true) = (then.ty, n_is_constant(&then) && n_is_constant(&otherwise))
            && s.is_integer()
            && s.size() != c.size()
        {
            let to = Type::Vector(if s.is_signed() { c.signed_of_width() } else { c.unsigned_of_width() }, n);
            (then, otherwise) = (fold::convert(then, to), fold::convert(otherwise, to));
        }
        let ty = then.ty;
        let fits = matches!(ty, Type::Vector(s, n) if n == lanes && s.size() == c.size());
        if !fits {
            let (a, b) = (self.type_name(cond.ty), self.type_name(ty));
            let message = format!(
                "vector condition type '{a}' and result type '{b}' do not have elements of the same number and size"
            );
            return self.error(span, message);
        }
        let (cond, then, otherwise) = (Box::new(cond), Box::new(then), Box::new(otherwise));
        Some(Expr { kind: ExprKind::Select { cond, then, otherwise }, ty, span })
    }
}

fn n_is_constant(expr: &Expr) -> bool {
    matches!(expr.kind, ExprKind::Int(_))
}
