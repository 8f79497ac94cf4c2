//! Values known at build time.

use super::fold::{self, ConstantValue};
use super::{Operand, Sema};
use crate::builtins::convert::half_to_f32;
use crate::hir::{Expr, ExprKind, GlobalId, PlaceKind, Relocation};
use crate::parse::ast;
use crate::source::Span;
use crate::types::{Scalar, Space, Type};

/// A constant scalar, vector or address.
pub(super) enum Constant {
    /// One number per lane, of the element type.
    Numbers(Vec<ConstantValue>, Scalar),
    /// Address of a global plus an offset in bytes.
    Address(GlobalId, i64),
}

/// Bytes of a variable, and the positions of addresses in them.
pub(super) type Data = (Vec<u8>, Vec<Relocation>);

impl Sema<'_> {
    /// Analyzes an integer constant expression: its bits and type.
    pub(super) fn constant_integer(&mut self, ast: &ast::Expr) -> Option<(u64, Type)> {
        self.constant_integer_or(ast, "expression is not an integer constant expression")
    }

    /// Does the same with another message for a non-constant expression.
    pub(super) fn constant_integer_or(&mut self, ast: &ast::Expr, message: &str) -> Option<(u64, Type)> {
        let value = self.unevaluated(|s| s.operand(ast).map(|o| s.value(o)))?;
        if value.ty.is_integer()
            && let Some(Constant::Numbers(list, _)) = self.constant(&value)
            && let [ConstantValue::Int(bits)] = list[..]
        {
            return Some((bits, value.ty));
        }
        self.error(ast.span, message)
    }

    /// Returns the constant value of an expression, if it is constant.
    pub(super) fn constant(&self, expr: &Expr) -> Option<Constant> {
        if expr.ty.is_pointer() {
            return self.constant_address(expr);
        }
        if let (Type::Sampler, ExprKind::Int(bits)) = (expr.ty, &expr.kind) {
            return Some(Constant::Numbers(vec![ConstantValue::Int(*bits)], Scalar::U32));
        }
        let element = expr.ty.element()?;
        self.numbers(expr).map(|list| Constant::Numbers(list, element))
    }

    /// Returns the sampler of an integer's bits.
    pub(super) fn sampler(&self, expr: Expr) -> Expr {
        let bits = fold::convert(expr, Type::Scalar(Scalar::U32));
        match self.constant(&bits) {
            Some(Constant::Numbers(list, _)) if list.len() == 1 => match list[0] {
                ConstantValue::Int(known) => {
                    Expr { kind: ExprKind::Int(known), ty: Type::Sampler, span: bits.span }
                }
                ConstantValue::Float(_) => super::convert::reinterpret(bits, Type::Sampler),
            },
            _ => super::convert::reinterpret(bits, Type::Sampler),
        }
    }

    fn numbers(&self, expr: &Expr) -> Option<Vec<ConstantValue>> {
        let element = expr.ty.element()?;
        let lanes = usize::from(expr.ty.lanes());
        if let Some(n) = ConstantValue::of(expr) {
            return Some(vec![n; lanes]);
        }
        match &expr.kind {
            ExprKind::Load(place) => match place.kind {
                PlaceKind::Local(id) => {
                    self.current.as_ref()?.known.get(&id).map(|(bits, _)| vec![ConstantValue::Int(*bits)])
                }
                PlaceKind::Global(id) => self.value_of_constant(id, element, lanes),
                _ => None,
            },
            ExprKind::Unary(op, a) => {
                self.numbers(a)?.into_iter().map(|n| fold::unary_number(*op, n, element)).collect()
            }
            ExprKind::Binary(op, a, b) => {
                let (a, b) = (self.numbers(a)?, self.numbers(b)?);
                a.into_iter().zip(b).map(|(a, b)| fold::binary_number(*op, a, b, element)).collect()
            }
            ExprKind::Compare(op, a, b) => self.compared(*op, a, b, expr.ty.is_vector()),
            ExprKind::Convert { operand, saturate: false, .. } => {
                let from = operand.ty.element()?;
                Some(
                    self.numbers(operand)?
                        .into_iter()
                        .map(|n| fold::convert_number(n, from, element))
                        .collect(),
                )
            }
            ExprKind::Splat(a) => self.numbers(a).map(|n| vec![n[0]; lanes]),
            ExprKind::Vector(parts) => {
                let parts: Option<Vec<_>> = parts.iter().map(|p| self.numbers(p)).collect();
                parts.map(|p| p.concat())
            }
            ExprKind::Swizzle(a, list) => {
                let all = self.numbers(a)?;
                list.iter().map(|l| all.get(usize::from(*l)).copied()).collect()
            }
            ExprKind::Conditional { cond, then, otherwise } => match self.numbers(cond)?[..] {
                [ConstantValue::Int(0)] => self.numbers(otherwise),
                _ => self.numbers(then),
            },
            ExprKind::Logical(op, a, b) => self.logical_constant(*op, a, b),
            ExprKind::Reinterpret(a) => self.reinterpreted(a, element),
            _ => None,
        }
    }

    /// Returns the numbers of a scalar or vector in the constant address space.
    fn value_of_constant(&self, id: GlobalId, element: Scalar, lanes: usize) -> Option<Vec<ConstantValue>> {
        let global = self.globals.get(id.0 as usize)?;
        if global.space != Space::Constant || self.externs.contains_key(&id) {
            return None;
        }
        let size = element.size() as usize;
        let number = |bytes: &[u8]| {
            let mut wide = [0u8; 8];
            wide[..size].copy_from_slice(bytes);
            let bits = u64::from_le_bytes(wide);
            match element {
                Scalar::F16 => ConstantValue::Float(f32::from_bits(half_to_f32(bits as u32)).into()),
                Scalar::F32 => ConstantValue::Float(f32::from_bits(bits as u32).into()),
                Scalar::F64 => ConstantValue::Float(f64::from_bits(bits)),
                _ => ConstantValue::Int(bits),
            }
        };
        Some(global.data.get(..size * lanes)?.chunks_exact(size).map(number).collect())
    }

    fn compared(
        &self,
        op: crate::hir::CompareOp,
        a: &Expr,
        b: &Expr,
        vector: bool,
    ) -> Option<Vec<ConstantValue>> {
        let element = a.ty.element()?;
        let (a, b) = (self.numbers(a)?, self.numbers(b)?);
        let bits = |holds: bool| match (holds, vector) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => fold::wrap(u64::MAX, element.signed_of_width()),
        };
        let one = |(a, b)| fold::compare_number(op, a, b, element).map(|h| ConstantValue::Int(bits(h)));
        a.into_iter().zip(b).map(one).collect()
    }

    fn logical_constant(&self, op: crate::hir::LogicalOp, a: &Expr, b: &Expr) -> Option<Vec<ConstantValue>> {
        let truth = |n: Vec<ConstantValue>| n.first() != Some(&ConstantValue::Int(0));
        let a = truth(self.numbers(a)?);
        let decided = (op == crate::hir::LogicalOp::Or) == a;
        let value = if decided { a } else { truth(self.numbers(b)?) };
        Some(vec![ConstantValue::Int(u64::from(value))])
    }

    /// Evaluates `as_type` on constants, by their bytes.
    fn reinterpreted(&self, inner: &Expr, to: Scalar) -> Option<Vec<ConstantValue>> {
        let from = inner.ty.element()?;
        let bytes: Vec<u8> = self.numbers(inner)?.into_iter().flat_map(|n| n.bytes(from)).collect();
        let number = |chunk: &[u8]| {
            let mut raw = [0u8; 8];
            raw[..chunk.len()].copy_from_slice(chunk);
            let bits = u64::from_le_bytes(raw);
            match to {
                Scalar::F32 => Some(ConstantValue::Float(f32::from_bits(bits as u32).into())),
                Scalar::F64 => Some(ConstantValue::Float(f64::from_bits(bits))),
                Scalar::F16 => None,
                _ => Some(ConstantValue::Int(bits)),
            }
        };
        bytes.chunks(to.size() as usize).map(number).collect()
    }

    fn constant_address(&self, expr: &Expr) -> Option<Constant> {
        match &expr.kind {
            ExprKind::Int(bits) => Some(Constant::Numbers(vec![ConstantValue::Int(*bits)], Scalar::U64)),
            ExprKind::AddressOf(place) => self.place_address(place),
            ExprKind::Reinterpret(inner) if inner.ty.is_pointer() => self.constant_address(inner),
            ExprKind::Offset { pointer, index, scale } => {
                let Constant::Address(id, at) = self.constant_address(pointer)? else { return None };
                let [ConstantValue::Int(index)] = self.numbers(index)?[..] else { return None };
                Some(Constant::Address(id, at.checked_add((index as i64).checked_mul(*scale as i64)?)?))
            }
            _ => None,
        }
    }

    fn place_address(&self, place: &crate::hir::Place) -> Option<Constant> {
        match &place.kind {
            PlaceKind::Global(id) => Some(Constant::Address(*id, 0)),
            PlaceKind::Member { base, offset } => match self.place_address(base)? {
                Constant::Address(id, at) => Some(Constant::Address(id, at + *offset as i64)),
                Constant::Numbers(..) => None,
            },
            PlaceKind::Index { base, index, scale } => {
                let Constant::Address(id, at) = self.place_address(base)? else { return None };
                let [ConstantValue::Int(index)] = self.numbers(index)?[..] else { return None };
                Some(Constant::Address(id, at.checked_add((index as i64).checked_mul(*scale as i64)?)?))
            }
            _ => None,
        }
    }

    /// Returns the data of a program-scope variable; `[]` gets its length.
    pub(super) fn constant_data(
        &mut self,
        ty: Type,
        init: &ast::Initializer,
        span: Span,
    ) -> Option<(Type, Data)> {
        let (ty, parts) = self.flatten(ty, init, span)?;
        let size = self.types.size(ty);
        // A table of this size in a program's source is a mistake; its memory would be allocated before anything runs.
        if size > 1 << 28 {
            return self.error(span, "variable of program scope is too large");
        }
        let mut data = vec![0u8; size as usize];
        let mut relocations = Vec::new();
        for part in parts {
            let at = part.offset as usize;
            match self.constant(&part.value) {
                Some(Constant::Numbers(list, element)) => {
                    let bytes: Vec<u8> = list.into_iter().flat_map(|n| n.bytes(element)).collect();
                    if let Some(target) = data.get_mut(at..at + bytes.len()) {
                        target.copy_from_slice(&bytes);
                    }
                }
                Some(Constant::Address(target, addend)) => {
                    relocations.retain(|r: &Relocation| r.offset != part.offset);
                    relocations.push(Relocation { offset: part.offset, target, addend });
                }
                None => {
                    return self.error(part.value.span, "initializer element is not a compile-time constant");
                }
            }
        }
        Some((ty, (data, relocations)))
    }

    /// Returns the value of `{x}` for a scalar or vector, where braces are allowed.
    pub(super) fn braced_value(&mut self, ty: Type, init: &ast::Initializer, span: Span) -> Option<Expr> {
        let (_, parts) = self.flatten(ty, init, span)?;
        match (ty, parts.len()) {
            (_, 1) if parts[0].value.ty == ty => parts.into_iter().next().map(|p| p.value),
            (_, 0) => Some(super::convert::zero_of(ty, span)),
            (Type::Vector(s, lanes), _) => {
                let zero = super::convert::zero_of(Type::Scalar(s), span);
                let mut list = vec![zero; usize::from(lanes)];
                for part in parts {
                    if let Some(slot) = list.get_mut((part.offset / s.size()) as usize) {
                        *slot = part.value;
                    }
                }
                Some(Expr { kind: ExprKind::Vector(list), ty, span })
            }
            _ => self.error(span, "excess elements in scalar initializer"),
        }
    }

    /// Returns the bytes of an operand if it is an array of `char` from a string literal.
    pub(super) fn literal_bytes(&mut self, init: &ast::Initializer) -> Option<Vec<u8>> {
        let ast::Initializer::Expr(ast::Expr { kind: ast::ExprKind::Text(_), .. }) = init else {
            return None;
        };
        let ast::Initializer::Expr(expr) = init else { return None };
        match self.operand(expr)? {
            Operand::Place(lvalue) => match lvalue.place.kind {
                PlaceKind::Global(id) => self.globals.get(id.0 as usize).map(|g| g.data.clone()),
                _ => None,
            },
            Operand::Value(_) => None,
        }
    }
}
