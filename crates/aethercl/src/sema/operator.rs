//! Binary operators.

use super::place::LONG;
use super::{Sema, fold};
use crate::hir::{BinaryOp, CompareOp, Expr, ExprKind, LogicalOp};
use crate::parse::ast;
use crate::source::Span;
use crate::types::{BOOL, INT, Scalar, Type};

/// Returns the arithmetic operator of a spelling.
pub(super) fn binary_op(op: &str) -> Option<BinaryOp> {
    Some(match op {
        "+" => BinaryOp::Add,
        "-" => BinaryOp::Sub,
        "*" => BinaryOp::Mul,
        "/" => BinaryOp::Div,
        "%" => BinaryOp::Rem,
        "<<" => BinaryOp::Shl,
        ">>" => BinaryOp::Shr,
        "&" => BinaryOp::And,
        "|" => BinaryOp::Or,
        "^" => BinaryOp::Xor,
        _ => return None,
    })
}

fn compare_op(op: &str) -> Option<CompareOp> {
    Some(match op {
        "==" => CompareOp::Eq,
        "!=" => CompareOp::Ne,
        "<" => CompareOp::Lt,
        "<=" => CompareOp::Le,
        ">" => CompareOp::Gt,
        ">=" => CompareOp::Ge,
        _ => return None,
    })
}

/// Returns true if an operator accepts only integers.
pub(super) fn integers_only(op: BinaryOp) -> bool {
    !matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div)
}

impl Sema<'_> {
    /// `left op right`.
    pub(super) fn binary(
        &mut self,
        op: &str,
        left: &ast::Expr,
        right: &ast::Expr,
        span: Span,
    ) -> Option<Expr> {
        if op == "," {
            let left = self.rvalue(left);
            let right = self.rvalue(right)?;
            let ty = right.ty;
            return Some(Expr { kind: ExprKind::Comma(Box::new(left?), Box::new(right)), ty, span });
        }
        // Analyze both sides even if one is wrong: each may have a separate error.
        let (left, right) = (self.rvalue(left), self.rvalue(right));
        let (left, right) = (left?, right?);
        match op {
            "&&" => self.logical(LogicalOp::And, left, right, span),
            "||" => self.logical(LogicalOp::Or, left, right, span),
            _ => match (compare_op(op), binary_op(op)) {
                (Some(op), _) => self.compare(op, left, right, span),
                (_, Some(op)) => self.arithmetic(op, left, right, span),
                _ => self.error(span, format!("unknown operator '{op}'")),
            },
        }
    }

    pub(super) fn invalid_operands<T>(&mut self, left: Type, right: Type, span: Span) -> Option<T> {
        let (a, b) = (self.type_name(left), self.type_name(right));
        self.error(span, format!("invalid operands to binary expression ('{a}' and '{b}')"))
    }

    /// Arithmetic, bitwise and shift operators.
    pub(super) fn arithmetic(&mut self, op: BinaryOp, left: Expr, right: Expr, span: Span) -> Option<Expr> {
        if left.ty.is_pointer() || right.ty.is_pointer() {
            return self.pointer_arithmetic(op, left, right, span);
        }
        let (Some(a), Some(b)) = (left.ty.element(), right.ty.element()) else {
            return self.invalid_operands(left.ty, right.ty, span);
        };
        if integers_only(op) && (a.is_float() || b.is_float()) {
            return self.invalid_operands(left.ty, right.ty, span);
        }
        self.check_arithmetic(left.ty, span)?;
        self.check_arithmetic(right.ty, span)?;
        if matches!(op, BinaryOp::Shl | BinaryOp::Shr) {
            return self.shift(op, left, right, span);
        }
        let (left, right) = self.common(left, right, span)?;
        let ty = left.ty;
        if matches!(op, BinaryOp::Div | BinaryOp::Rem)
            && ty.is_integer()
            && matches!(right.kind, ExprKind::Int(0))
        {
            let what = if op == BinaryOp::Div { "division" } else { "remainder" };
            self.diagnostics.warning(span, format!("{what} by zero is undefined"));
        }
        Some(fold::binary(op, left, right, ty, span))
    }

    /// Converts two arithmetic operands to one type.
    pub(super) fn common(&mut self, left: Expr, right: Expr, span: Span) -> Option<(Expr, Expr)> {
        match (left.ty, right.ty) {
            (Type::Scalar(a), Type::Scalar(b)) => {
                let ty = Type::Scalar(self.common_scalar(a, b));
                Some((fold::convert(left, ty), fold::convert(right, ty)))
            }
            (Type::Vector(..), Type::Scalar(_)) => {
                let right = self.splat_to_vector(right, left.ty, span)?;
                Some((left, right))
            }
            (Type::Scalar(_), Type::Vector(..)) => {
                let left = self.splat_to_vector(left, right.ty, span)?;
                Some((left, right))
            }
            (a, b) if a == b && a.is_vector() => Some((left, right)),
            (a, b) => self.invalid_operands(a, b, span),
        }
    }

    /// Analyzes a shift: the left operand determines the type.
    pub(super) fn shift(&mut self, op: BinaryOp, left: Expr, right: Expr, span: Span) -> Option<Expr> {
        let (left, right) = match (left.ty, right.ty) {
            (Type::Scalar(_), Type::Scalar(_)) => (self.promote(left), self.promote(right)),
            (Type::Vector(s, n), Type::Scalar(_)) => {
                let right = fold::splat(fold::convert(right, Type::Scalar(s)), n);
                (left, right)
            }
            (Type::Vector(_, n), Type::Vector(_, m)) if n == m => (left, right),
            (a, b) => return self.invalid_operands(a, b, span),
        };
        let ty = left.ty;
        Some(fold::binary(op, left, right, ty, span))
    }

    fn pointer_arithmetic(&mut self, op: BinaryOp, left: Expr, right: Expr, span: Span) -> Option<Expr> {
        match (op, left.ty, right.ty) {
            (BinaryOp::Add, Type::Pointer(_), i) if i.is_integer() => {
                let index = fold::convert(right, LONG);
                self.offset(left, index, span)
            }
            (BinaryOp::Add, i, Type::Pointer(_)) if i.is_integer() => {
                let index = fold::convert(left, LONG);
                self.offset(right, index, span)
            }
            (BinaryOp::Sub, Type::Pointer(_), i) if i.is_integer() => {
                let index = fold::unary(crate::hir::UnaryOp::Neg, fold::convert(right, LONG), span);
                self.offset(left, index, span)
            }
            (BinaryOp::Sub, Type::Pointer(_), Type::Pointer(_)) => {
                let (a, b) = (self.types.pointee(left.ty)?, self.types.pointee(right.ty)?);
                if a.to != b.to || a.space != b.space {
                    return self.invalid_operands(left.ty, right.ty, span);
                }
                let scale = self.types.size(a.to).max(1);
                let kind = ExprKind::Difference { left: Box::new(left), right: Box::new(right), scale };
                Some(Expr { kind, ty: LONG, span })
            }
            (_, a, b) => self.invalid_operands(a, b, span),
        }
    }

    /// Analyzes a comparison: `int` for scalars, signed integers of the same width for vectors.
    fn compare(&mut self, op: CompareOp, left: Expr, right: Expr, span: Span) -> Option<Expr> {
        if left.ty.is_pointer() || right.ty.is_pointer() {
            let (left, right) = self.common_pointers(left, right, span)?;
            return Some(fold::convert(fold::compare(op, left, right, span), INT));
        }
        if left.ty.element().is_none() || right.ty.element().is_none() {
            return self.invalid_operands(left.ty, right.ty, span);
        }
        let (left, right) = self.common(left, right, span)?;
        let result = fold::compare(op, left, right, span);
        Some(if result.ty == BOOL { fold::convert(result, INT) } else { result })
    }

    /// Converts two pointers, or a pointer and a null constant, to one type.
    pub(super) fn common_pointers(&mut self, left: Expr, right: Expr, span: Span) -> Option<(Expr, Expr)> {
        use super::convert::{is_null, reinterpret, space_converts};
        if is_null(&right) && left.ty.is_pointer() {
            let ty = left.ty;
            return Some((left, Expr { kind: ExprKind::Int(0), ty, span: right.span }));
        }
        if is_null(&left) && right.ty.is_pointer() {
            let ty = right.ty;
            return Some((Expr { kind: ExprKind::Int(0), ty, span: left.span }, right));
        }
        let (Some(a), Some(b)) = (self.types.pointee(left.ty), self.types.pointee(right.ty)) else {
            let (a, b) = (self.type_name(left.ty), self.type_name(right.ty));
            return self
                .error(span, format!("comparison or choice between pointer and integer ('{a}' and '{b}')"));
        };
        if a.to != b.to && a.to != Type::Void && b.to != Type::Void {
            let (a, b) = (self.type_name(left.ty), self.type_name(right.ty));
            self.diagnostics.warning(span, format!("pointer type mismatch ('{a}' and '{b}')"));
        }
        let mut wider = if a.to == Type::Void { a } else { b };
        if space_converts(a.space, b.space) {
            wider.space = b.space;
        } else if space_converts(b.space, a.space) {
            wider.space = a.space;
        } else {
            let (a, b) = (self.type_name(left.ty), self.type_name(right.ty));
            return self.error(span, format!("pointers to different address spaces ('{a}' and '{b}')"));
        }
        wider.is_const = a.is_const || b.is_const;
        wider.is_volatile = a.is_volatile || b.is_volatile;
        let ty = self.types.pointer_to(wider);
        Some((reinterpret(left, ty), reinterpret(right, ty)))
    }

    fn logical(&mut self, op: LogicalOp, left: Expr, right: Expr, span: Span) -> Option<Expr> {
        if left.ty.is_vector() || right.ty.is_vector() {
            let (left, right) = self.common(left, right, span)?;
            let zero = super::convert::zero_of(left.ty, span);
            let left = fold::compare(CompareOp::Ne, left, zero.clone(), span);
            let right = fold::compare(CompareOp::Ne, right, zero, span);
            let ty = left.ty;
            let op = if op == LogicalOp::And { BinaryOp::And } else { BinaryOp::Or };
            return Some(fold::binary(op, left, right, ty, span));
        }
        let (left, right) = (self.condition(left), self.condition(right));
        let (left, right) = (left?, right?);
        let decided = match (&left.kind, op) {
            (ExprKind::Int(0), LogicalOp::And) => Some(0),
            (ExprKind::Int(1), LogicalOp::Or) => Some(1),
            _ => None,
        };
        let result = match (decided, &left.kind) {
            (Some(bit), _) => fold::int(bit, BOOL, span),
            (None, ExprKind::Int(_)) => right,
            _ => Expr { kind: ExprKind::Logical(op, Box::new(left), Box::new(right)), ty: BOOL, span },
        };
        Some(fold::convert(result, INT))
    }

    /// `x++`, `++x`, `x--`, `--x`.
    pub(super) fn step(&mut self, op: &str, operand: &ast::Expr, postfix: bool, span: Span) -> Option<Expr> {
        let lvalue = self.assignable(operand, span)?;
        let ty = lvalue.place.ty;
        let result = if postfix { crate::hir::StepResult::Old } else { crate::hir::StepResult::New };
        let op = if op == "++" { BinaryOp::Add } else { BinaryOp::Sub };
        let (compute, value) = match ty {
            Type::Pointer(_) => (ty, self.byte_offset(fold::int(1, LONG, span), ty, span)),
            Type::Scalar(s) => {
                let compute = Type::Scalar(self.common_scalar(s, if s.is_float() { s } else { Scalar::I32 }));
                (compute, fold::convert(fold::int(1, INT, span), compute))
            }
            Type::Vector(s, n) => {
                (ty, fold::splat(fold::convert(fold::int(1, INT, span), Type::Scalar(s)), n))
            }
            _ => {
                let name = self.type_name(ty);
                return self.error(span, format!("cannot increment or decrement value of type '{name}'"));
            }
        };
        let kind =
            ExprKind::Update { place: Box::new(lvalue.place), op, compute, value: Box::new(value), result };
        Some(Expr { kind, ty, span })
    }
}
