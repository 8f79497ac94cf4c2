//! Places: dereferences, elements, members, addresses.

use super::convert::reinterpret;
use super::scope::Entity;
use super::swizzle::{lanes_named, lanes_of_place};
use super::{Lvalue, Operand, Sema, fold};
use crate::hir::{BinaryOp, Expr, ExprKind, Place, PlaceKind};
use crate::lex::Symbol;
use crate::parse::ast;
use crate::source::Span;
use crate::types::{Scalar, Type};

/// `long`, the type of indices.
pub(super) const LONG: Type = Type::Scalar(Scalar::I64);

impl Sema<'_> {
    /// Analyzes `*p`. If `p` is the sum of an array's name and an index, the result is that element, without a pointer to the array.
    pub(super) fn dereference(&mut self, operand: &ast::Expr, span: Span) -> Option<Operand> {
        if let ast::ExprKind::Binary("+", a, b) = &operand.kind {
            for (array, index) in [(a, b), (b, a)] {
                let Some(lvalue) = self.named_array(array) else { continue };
                let index = self.rvalue(index)?;
                if index.ty.is_integer() {
                    return self.array_element(lvalue, fold::convert(index, LONG), span).map(Operand::Place);
                }
            }
        }
        let pointer = self.rvalue(operand)?;
        self.deref(pointer, span).map(Operand::Place)
    }

    /// Returns the array variable that an expression names.
    fn named_array(&mut self, e: &ast::Expr) -> Option<Lvalue> {
        let ast::ExprKind::Name(name) = e.kind else { return None };
        let Some(Entity::Local(_) | Entity::Global(_)) = self.lookup(name) else { return None };
        match self.operand(e)? {
            Operand::Place(lvalue) if matches!(lvalue.place.ty, Type::Array(_)) => Some(lvalue),
            _ => None,
        }
    }

    /// Returns the target of a pointer.
    pub(super) fn deref(&mut self, pointer: Expr, span: Span) -> Option<Lvalue> {
        let Some(target) = self.types.pointee(pointer.ty) else {
            let name = self.type_name(pointer.ty);
            return self.error(span, format!("indirection requires pointer operand ('{name}' invalid)"));
        };
        if target.to == Type::Void {
            return self.error(span, "a pointer to 'void' cannot be dereferenced");
        }
        if let Type::Record(id) = target.to
            && !self.types.record(id).complete
        {
            let name = self.type_name(target.to);
            return self.error(span, format!("incomplete type '{name}'"));
        }
        // `*&x` is x.
        let (is_const, is_volatile, aligned) = (target.is_const, target.is_volatile, target.aligned);
        let place = match pointer.kind {
            ExprKind::AddressOf(place) if place.ty == target.to && aligned == 0 => *place,
            kind => {
                let pointer = Expr { kind, ..pointer };
                Place { kind: PlaceKind::Deref(Box::new(pointer)), ty: target.to, space: target.space, span }
            }
        };
        Some(Lvalue { place, is_const, is_volatile, aligned })
    }

    /// `&x`.
    pub(super) fn address_of(&mut self, operand: &ast::Expr, span: Span) -> Option<Expr> {
        let lvalue = match self.operand(operand)? {
            Operand::Place(lvalue) => lvalue,
            Operand::Value(value) => {
                let name = self.type_name(value.ty);
                return self.error(span, format!("cannot take the address of an rvalue of type '{name}'"));
            }
        };
        if let PlaceKind::Lanes { lanes, .. } = &lvalue.place.kind {
            return match lanes[..] {
                [lane] => self.lane_address(lvalue, lane, span),
                _ => self.error(span, "address of vector element requested"),
            };
        }
        let ty = self.pointer_to_place(&lvalue, lvalue.place.ty);
        self.take_address(&lvalue.place);
        Some(match lvalue.place.kind {
            PlaceKind::Deref(pointer) => reinterpret(*pointer, ty),
            kind => Expr { kind: ExprKind::AddressOf(Box::new(Place { kind, ..lvalue.place })), ty, span },
        })
    }

    /// `&v.x`: one element of a vector in memory.
    fn lane_address(&mut self, lvalue: Lvalue, lane: u8, span: Span) -> Option<Expr> {
        let element = lvalue.place.ty;
        let PlaceKind::Lanes { base, .. } = lvalue.place.kind else { return None };
        let base = Lvalue { place: *base, aligned: 0, ..lvalue };
        let index = fold::int(lane.into(), LONG, span);
        self.element_pointer(base, element, index, span)
    }

    /// Returns a pointer to an element of a vector place.
    fn element_pointer(&mut self, base: Lvalue, element: Type, index: Expr, span: Span) -> Option<Expr> {
        let whole = self.pointer_to_place(&base, base.place.ty);
        let ty = self.pointer_to_place(&base, element);
        self.take_address(&base.place);
        let address = match base.place.kind {
            PlaceKind::Deref(pointer) => *pointer,
            kind => {
                Expr { kind: ExprKind::AddressOf(Box::new(Place { kind, ..base.place })), ty: whole, span }
            }
        };
        let first = reinterpret(address, ty);
        let scale = self.types.size(element);
        let kind = ExprKind::Offset { pointer: Box::new(first), index: Box::new(index), scale };
        Some(Expr { kind, ty, span })
    }

    /// `a[i]`.
    pub(super) fn index(&mut self, base: &ast::Expr, index: &ast::Expr, span: Span) -> Option<Operand> {
        let base = self.operand(base);
        let index = self.operand(index);
        let (mut base, mut index) = (base?, index?);
        let is_index = |s: &Self, o: &Operand| s.operand_type(o).is_integer();
        if is_index(self, &base) && !is_index(self, &index) {
            std::mem::swap(&mut base, &mut index);
        }
        let index = self.value(index);
        if !index.ty.is_integer() {
            return self.error(span, "array subscript is not an integer");
        }
        let index = fold::convert(index, LONG);
        match base {
            Operand::Place(lvalue) if matches!(lvalue.place.ty, Type::Array(_)) => {
                self.array_element(lvalue, index, span).map(Operand::Place)
            }
            base if self.operand_type(&base).is_vector() => self.vector_element(base, index, span),
            base => {
                let pointer = self.value(base);
                if !pointer.ty.is_pointer() {
                    return self.error(span, "subscripted value is not an array, pointer, or vector");
                }
                let element = self.offset(pointer, index, span)?;
                self.deref(element, span).map(Operand::Place)
            }
        }
    }

    fn array_element(&mut self, lvalue: Lvalue, index: Expr, span: Span) -> Option<Lvalue> {
        let Type::Array(id) = lvalue.place.ty else { return None };
        let of = self.types.array(id).of;
        let (scale, space) = (self.types.size(of), lvalue.place.space);
        let kind = PlaceKind::Index { base: Box::new(lvalue.place), index: Box::new(index), scale };
        Some(Lvalue { place: Place { kind, ty: of, space, span }, ..lvalue })
    }

    /// Analyzes `v[i]` of a vector. A constant index selects a lane; any other index selects an element by its address.
    fn vector_element(&mut self, base: Operand, index: Expr, span: Span) -> Option<Operand> {
        let ty = self.operand_type(&base);
        let element = Type::Scalar(ty.element()?);
        if let ExprKind::Int(lane) = index.kind {
            if lane >= ty.lanes().into() {
                let name = self.type_name(ty);
                return self.error(span, format!("index {lane} is out of range for vector type '{name}'"));
            }
            return self.lanes(base, vec![lane as u8], span);
        }
        let lvalue = match base {
            Operand::Place(lvalue) if !matches!(lvalue.place.kind, PlaceKind::Lanes { .. }) => lvalue,
            other => {
                let value = self.value(other);
                let (setup, lvalue) = self.stored(value, span)?;
                let pointer = self.element_pointer(lvalue, element, index, span)?;
                let ty = pointer.ty;
                let kind = ExprKind::Comma(Box::new(setup), Box::new(pointer));
                return self.deref(Expr { kind, ty, span }, span).map(Operand::Place);
            }
        };
        let pointer = self.element_pointer(lvalue, element, index, span)?;
        self.deref(pointer, span).map(Operand::Place)
    }

    /// Stores a value in a temporary; returns the store and the place.
    pub(super) fn stored(&mut self, value: Expr, span: Span) -> Option<(Expr, Lvalue)> {
        let ty = value.ty;
        let Some(lvalue) = self.temporary(ty, span) else {
            return self.error(span, "not a constant expression");
        };
        let kind = ExprKind::Assign { place: Box::new(lvalue.place.clone()), value: Box::new(value) };
        Some((Expr { kind, ty, span }, lvalue))
    }

    /// `pointer + index` elements.
    pub(super) fn offset(&mut self, pointer: Expr, index: Expr, span: Span) -> Option<Expr> {
        let target = self.types.pointee(pointer.ty)?;
        if let Type::Record(id) = target.to
            && !self.types.record(id).complete
        {
            return self.error(span, "arithmetic on a pointer to an incomplete type");
        }
        let ty = pointer.ty;
        let scale = self.types.size(target.to);
        let kind = ExprKind::Offset { pointer: Box::new(pointer), index: Box::new(index), scale };
        Some(Expr { kind, ty, span })
    }

    /// `a.b` and `a->b`: a member of a record, or lanes of a vector.
    pub(super) fn member(
        &mut self,
        base: &ast::Expr,
        name: Symbol,
        arrow: bool,
        span: Span,
    ) -> Option<Operand> {
        let base = if arrow {
            let pointer = self.rvalue(base)?;
            if !pointer.ty.is_pointer() {
                let ty = self.type_name(pointer.ty);
                return self.error(
                    span,
                    format!("member reference type '{ty}' is not a pointer; did you mean to use '.'?"),
                );
            }
            Operand::Place(self.deref(pointer, span)?)
        } else {
            self.operand(base)?
        };
        let ty = self.operand_type(&base);
        match ty {
            Type::Vector(_, lanes) => {
                let text = self.text(name);
                match lanes_named(text, lanes) {
                    Ok(list) => self.lanes(base, list, span),
                    Err(why) => {
                        let message = format!("{why} '{text}' for vector type '{}'", self.types.name(ty));
                        self.error(span, message)
                    }
                }
            }
            Type::Record(_) => self.record_member(base, name, span),
            Type::Pointer(_) => {
                let name = self.type_name(ty);
                self.error(
                    span,
                    format!("member reference type '{name}' is a pointer; did you mean to use '->'?"),
                )
            }
            _ => {
                let name = self.type_name(ty);
                self.error(
                    span,
                    format!("member reference base type '{name}' is not a structure, union or vector"),
                )
            }
        }
    }

    fn record_member(&mut self, base: Operand, name: Symbol, span: Span) -> Option<Operand> {
        let ty = self.operand_type(&base);
        let Type::Record(id) = ty else { return None };
        let text = self.text(name).to_string();
        let record = self.types.record(id);
        let Some(field) = record.fields.iter().find(|f| f.name == text && !text.is_empty()).cloned() else {
            let hint = crate::source::did_you_mean(&text, record.fields.iter().map(|f| f.name.as_str()));
            let name = self.type_name(ty);
            return self.error(span, format!("no member named '{text}' in '{name}'{hint}"));
        };
        let (setup, lvalue) = match base {
            Operand::Place(lvalue) => (None, lvalue),
            Operand::Value(value) => {
                let (setup, lvalue) = self.stored(value, span)?;
                (Some(setup), lvalue)
            }
        };
        let space = lvalue.place.space;
        let kind = PlaceKind::Member { base: Box::new(lvalue.place), offset: field.offset };
        let member = Lvalue {
            place: Place { kind, ty: field.ty, space, span },
            is_const: lvalue.is_const || field.is_const,
            is_volatile: lvalue.is_volatile,
            aligned: 0,
        };
        let Some(setup) = setup else { return Some(Operand::Place(member)) };
        let value = self.value(Operand::Place(member));
        let ty = value.ty;
        let kind = ExprKind::Comma(Box::new(setup), Box::new(value));
        Some(Operand::Value(Expr { kind, ty, span }))
    }

    /// Returns lanes of a vector, as a place if it is one.
    fn lanes(&mut self, base: Operand, list: Vec<u8>, span: Span) -> Option<Operand> {
        let element = self.operand_type(&base).element()?;
        let ty = Type::of_lanes(element, list.len() as u8);
        Some(match base {
            Operand::Place(lvalue) => {
                let place = lanes_of_place(lvalue.place, &list, ty, span);
                Operand::Place(Lvalue { place, aligned: 0, ..lvalue })
            }
            Operand::Value(value) => {
                let kind = ExprKind::Swizzle(Box::new(value), list);
                Operand::Value(Expr { kind, ty, span })
            }
        })
    }

    /// Converts an index of elements to bytes, for updates of pointers.
    pub(super) fn byte_offset(&mut self, index: Expr, pointer: Type, span: Span) -> Expr {
        let scale = self.types.pointee(pointer).map_or(1, |p| self.types.size(p.to));
        let scale = fold::int(scale, LONG, span);
        fold::binary(BinaryOp::Mul, fold::convert(index, LONG), scale, LONG, span)
    }
}
