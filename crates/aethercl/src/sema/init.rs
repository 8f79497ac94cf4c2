//! Initializers, flattened to stores at byte offsets.

use super::{Sema, fold};
use crate::hir::{Expr, ExprKind, Init, InitPart, LocalId, Place, PlaceKind};
use crate::parse::ast::{self, Designator, Initializer};
use crate::source::Span;
use crate::types::{INT, Scalar, Type};

/// Entries of a list in braces.
type Items = [(Vec<Designator>, Initializer)];

/// A scalar, vector, pointer or record inside a larger object.
struct Leaf {
    offset: u64,
    ty: Type,
}

/// Maximum number of stores that set one compound literal to zero.
const MAX_LEAVES: usize = 4096;

impl Sema<'_> {
    /// Handles the initializer of a local variable; gives `[]` its length.
    pub(super) fn initializer(&mut self, id: LocalId, ty: Type, init: &Initializer) -> Option<Init> {
        let span = init_span(init);
        let by_value = match (ty, init) {
            (Type::Array(_), _) => false,
            (Type::Record(_), Initializer::List(..)) => false,
            (_, Initializer::Expr(_)) => true,
            (_, Initializer::List(..)) => {
                return self.braced_value(ty, init, span).map(Init::Value);
            }
        };
        if by_value {
            let Initializer::Expr(expr) = init else { return None };
            let value = self.rvalue(expr)?;
            return self.implicit(value, ty, "initializing", expr.span).map(Init::Value);
        }
        let (ty, parts) = self.flatten(ty, init, span)?;
        if let Some(local) = self.current.as_mut().and_then(|c| c.locals.get_mut(id.0 as usize)) {
            local.ty = ty;
        }
        self.check_object(ty, span)?;
        Some(Init::List { zero_rest: true, parts })
    }

    /// Returns assignments that give a place the value of a list, including zeros.
    pub(super) fn stores_into(&mut self, place: &Place, init: &Initializer, span: Span) -> Option<Vec<Expr>> {
        let (_, parts) = self.flatten(place.ty, init, span)?;
        let mut leaves = Vec::new();
        self.leaves(place.ty, 0, &mut leaves);
        if leaves.len() > MAX_LEAVES {
            return self.error(span, "compound literal is too large");
        }
        let zero = |l: Leaf| InitPart { offset: l.offset, value: super::convert::zero_of(l.ty, span) };
        let zeros: Vec<InitPart> = leaves.into_iter().map(zero).collect();
        let store = |part: InitPart| {
            let ty = part.value.ty;
            let kind = PlaceKind::Member { base: Box::new(place.clone()), offset: part.offset };
            let member = Place { kind, ty, space: place.space, span };
            Expr { kind: ExprKind::Assign { place: Box::new(member), value: Box::new(part.value) }, ty, span }
        };
        Some(zeros.into_iter().chain(parts).map(store).collect())
    }

    fn leaves(&self, ty: Type, offset: u64, out: &mut Vec<Leaf>) {
        if out.len() > MAX_LEAVES {
            return;
        }
        match ty {
            Type::Array(id) => {
                let array = self.types.array(id);
                let size = self.types.size(array.of).max(1);
                for i in 0..array.len.min(MAX_LEAVES as u64 + 1) {
                    self.leaves(array.of, offset + i * size, out);
                }
            }
            Type::Record(id) => {
                for field in self.types.record(id).fields.iter().filter(|f| !f.inherited) {
                    self.leaves(field.ty, offset + field.offset, out);
                }
            }
            ty => out.push(Leaf { offset, ty }),
        }
    }

    /// Returns the stores of an initializer; an array without length gets one.
    pub(super) fn flatten(
        &mut self,
        ty: Type,
        init: &Initializer,
        span: Span,
    ) -> Option<(Type, Vec<InitPart>)> {
        let mut out = Vec::new();
        if let Some(bytes) = self.text_for(ty, init) {
            return self.text_parts(ty, bytes, 0, span, &mut out).map(|ty| (ty, out));
        }
        match init {
            Initializer::List(items, span) => {
                let ty = self.braced(ty, 0, items, *span, &mut out)?;
                Some((ty, out))
            }
            Initializer::Expr(_) if matches!(ty, Type::Array(_)) => {
                self.error(span, "array initializer must be an initializer list or string literal")
            }
            Initializer::Expr(expr) => {
                let value = self.rvalue(expr)?;
                let value = self.implicit(value, ty, "initializing", expr.span)?;
                Some((ty, vec![InitPart { offset: 0, value }]))
            }
        }
    }

    /// Returns the bytes of a string literal that initializes an array of `char`, with or without braces.
    fn text_for(&mut self, ty: Type, init: &Initializer) -> Option<Vec<u8>> {
        let Type::Array(id) = ty else { return None };
        if !matches!(self.types.array(id).of, Type::Scalar(Scalar::I8 | Scalar::U8)) {
            return None;
        }
        match init {
            Initializer::List(items, _) => match &items[..] {
                [(designators, inner)] if designators.is_empty() => self.literal_bytes(inner),
                _ => None,
            },
            Initializer::Expr(_) => self.literal_bytes(init),
        }
    }

    fn text_parts(
        &mut self,
        ty: Type,
        bytes: Vec<u8>,
        offset: u64,
        span: Span,
        out: &mut Vec<InitPart>,
    ) -> Option<Type> {
        let Type::Array(id) = ty else { return None };
        let array = self.types.array(id);
        let len = if array.len == 0 { bytes.len() as u64 } else { array.len };
        // The terminating zero is omitted if it does not fit.
        if bytes.len() as u64 > len + 1 {
            self.diagnostics.warning(span, "initializer-string for char array is too long");
        }
        for (i, byte) in bytes.into_iter().take(len as usize).enumerate() {
            let value = fold::convert(fold::int(byte.into(), INT, span), array.of);
            out.push(InitPart { offset: offset + i as u64, value });
        }
        Some(self.types.array_of(array.of, len))
    }

    /// Handles `{ … }` for an object at an offset; returns the object's type, which is now known for `[]`.
    fn braced(
        &mut self,
        ty: Type,
        offset: u64,
        items: &Items,
        span: Span,
        out: &mut Vec<InitPart>,
    ) -> Option<Type> {
        let mut at = 0;
        match ty {
            Type::Array(id) => {
                let array = self.types.array(id);
                let len = self.fill_array(array.of, array.len, offset, items, &mut at, true, out)?;
                self.no_excess(items, at);
                Some(self.types.array_of(array.of, len))
            }
            Type::Record(_) => {
                self.fill_record(ty, offset, items, &mut at, true, out)?;
                self.no_excess(items, at);
                Some(ty)
            }
            Type::Vector(s, lanes) if items.len() > 1 => {
                self.braced_vector(s, lanes, offset, items, span, out)
            }
            _ => {
                if let Some((_, first)) = items.first() {
                    if let Initializer::List(..) = first {
                        return self.error(span, "too many braces around scalar initializer");
                    }
                    self.element(ty, offset, items, &mut at, out)?;
                }
                self.no_excess(items, at);
                Some(ty)
            }
        }
    }

    fn braced_vector(
        &mut self,
        s: Scalar,
        lanes: u8,
        offset: u64,
        items: &Items,
        span: Span,
        out: &mut Vec<InitPart>,
    ) -> Option<Type> {
        let mut lane = 0u64;
        for (_, item) in items {
            let Initializer::Expr(expr) = item else {
                return self.error(span, "a list inside a vector's initializer");
            };
            let value = self.rvalue(expr)?;
            let value = match value.ty {
                Type::Vector(e, _) if e == s => value,
                _ => self.implicit(value, Type::Scalar(s), "initializing", expr.span)?,
            };
            let width = u64::from(value.ty.lanes());
            if lane + width > lanes.into() {
                return self.error(expr.span, "excess elements in vector initializer");
            }
            for l in 0..width {
                let part = match value.ty {
                    Type::Vector(..) => Expr {
                        kind: ExprKind::Swizzle(Box::new(value.clone()), vec![l as u8]),
                        ty: Type::Scalar(s),
                        span: expr.span,
                    },
                    _ => value.clone(),
                };
                out.push(InitPart { offset: offset + (lane + l) * s.size(), value: part });
            }
            lane += width;
        }
        Some(Type::Vector(s, lanes))
    }

    fn no_excess(&mut self, items: &Items, at: usize) {
        if let Some((_, extra)) = items.get(at) {
            self.diagnostics.warning(init_span(extra), "excess elements in initializer are dropped");
        }
    }

    /// Handles one object from the entry at `at`; without braces it takes as many entries as it needs.
    fn element(
        &mut self,
        ty: Type,
        offset: u64,
        items: &Items,
        at: &mut usize,
        out: &mut Vec<InitPart>,
    ) -> Option<()> {
        let (_, item) = items.get(*at)?;
        if let Some(bytes) = self.text_for(ty, item) {
            *at += 1;
            return self.text_parts(ty, bytes, offset, init_span(item), out).map(|_| ());
        }
        let expr = match item {
            Initializer::List(list, span) => {
                *at += 1;
                return self.braced(ty, offset, list, *span, out).map(|_| ());
            }
            Initializer::Expr(expr) => expr,
        };
        match ty {
            Type::Array(id) => {
                let array = self.types.array(id);
                return self.fill_array(array.of, array.len, offset, items, at, false, out).map(|_| ());
            }
            Type::Record(_) if !self.is_of_type(expr, ty) => {
                return self.fill_record(ty, offset, items, at, false, out);
            }
            _ => {}
        }
        let value = self.rvalue(expr)?;
        let value = self.implicit(value, ty, "initializing", expr.span)?;
        *at += 1;
        out.push(InitPart { offset, value });
        Some(())
    }

    fn is_of_type(&mut self, expr: &ast::Expr, ty: Type) -> bool {
        self.unevaluated(|s| s.operand(expr).map(|o| s.operand_type(&o))) == Some(ty)
    }

    /// Handles the elements of an array; returns their number.
    #[expect(clippy::too_many_arguments, reason = "the state of one walk over a list")]
    fn fill_array(
        &mut self,
        of: Type,
        len: u64,
        offset: u64,
        items: &Items,
        at: &mut usize,
        braced: bool,
        out: &mut Vec<InitPart>,
    ) -> Option<u64> {
        let size = self.types.size(of);
        let (mut index, mut most) = (0u64, 0u64);
        while let Some((designators, item)) = items.get(*at) {
            let before = *at;
            if !designators.is_empty() {
                if !braced {
                    break;
                }
                let (Some(Designator::Index(expr, span)), rest) = (designators.first(), &designators[1..])
                else {
                    return self.error(init_span(item), "field designator cannot initialize an array");
                };
                index = self.constant_integer(expr)?.0;
                if index >= if len == 0 { 1 << 32 } else { len } {
                    return self.error(*span, "array designator index exceeds array bounds");
                }
                self.designated(of, offset + index * size, rest, items, at, out)?;
            } else if len != 0 && index >= len {
                break;
            } else {
                self.element(of, offset + index * size, items, at, out)?;
            }
            index += 1;
            most = most.max(index);
            if *at == before && len == 0 {
                return self.error(init_span(item), "initializer for an element without members");
            }
        }
        Some(if len == 0 { most } else { len })
    }

    /// Handles the members of a record; for a union, the first or the designated one.
    fn fill_record(
        &mut self,
        ty: Type,
        offset: u64,
        items: &Items,
        at: &mut usize,
        braced: bool,
        out: &mut Vec<InitPart>,
    ) -> Option<()> {
        let Type::Record(id) = ty else { return None };
        let record = self.types.record(id).clone();
        let mut next = 0;
        while let Some((designators, item)) = items.get(*at) {
            let mut rest = &designators[..];
            if let Some((first, tail)) = designators.split_first() {
                if !braced {
                    break;
                }
                let Designator::Member(name, span) = first else {
                    return self.error(init_span(item), "array designator cannot initialize a structure");
                };
                let text = self.text(*name).to_string();
                let Some(found) = record.fields.iter().position(|f| f.name == text) else {
                    let name = self.type_name(ty);
                    return self.error(
                        *span,
                        format!("field designator '{text}' does not refer to any field in '{name}'"),
                    );
                };
                (next, rest) = (found, tail);
            }
            while designators.is_empty() && record.fields.get(next).is_some_and(|f| f.inherited) {
                next += 1;
            }
            let Some(field) = record.fields.get(next) else { break };
            if designators.is_empty() && record.is_union && next > 0 {
                break;
            }
            if designators.is_empty() {
                self.element(field.ty, offset + field.offset, items, at, out)?;
            } else {
                self.designated(field.ty, offset + field.offset, rest, items, at, out)?;
            }
            next += 1;
        }
        Some(())
    }

    /// Handles the object that the rest of a designator names.
    fn designated(
        &mut self,
        ty: Type,
        offset: u64,
        rest: &[Designator],
        items: &Items,
        at: &mut usize,
        out: &mut Vec<InitPart>,
    ) -> Option<()> {
        let (mut ty, mut offset) = (ty, offset);
        for designator in rest {
            match (designator, ty) {
                (Designator::Index(expr, span), Type::Array(id)) => {
                    let array = self.types.array(id);
                    let index = self.constant_integer(expr)?.0;
                    if index >= array.len {
                        return self.error(*span, "array designator index exceeds array bounds");
                    }
                    offset += index * self.types.size(array.of);
                    ty = array.of;
                }
                (Designator::Member(name, span), Type::Record(id)) => {
                    let text = self.text(*name).to_string();
                    let Some(field) = self.types.record(id).fields.iter().find(|f| f.name == text) else {
                        return self.error(*span, format!("no field '{text}' to initialize"));
                    };
                    (offset, ty) = (offset + field.offset, field.ty);
                }
                (Designator::Index(_, span) | Designator::Member(_, span), _) => {
                    return self.error(*span, "designator does not fit the type it names a part of");
                }
            }
        }
        // The entry's own designators are consumed: it alone initializes this object.
        let (_, item) = items.get(*at)?;
        *at += 1;
        match item {
            Initializer::List(list, span) => self.braced(ty, offset, list, *span, out).map(|_| ()),
            Initializer::Expr(expr) => {
                if let Some(bytes) = self.text_for(ty, item) {
                    return self.text_parts(ty, bytes, offset, expr.span, out).map(|_| ());
                }
                let value = self.rvalue(expr)?;
                let value = self.implicit(value, ty, "initializing", expr.span)?;
                out.push(InitPart { offset, value });
                Some(())
            }
        }
    }
}

/// Returns the start of an initializer.
fn init_span(init: &Initializer) -> Span {
    match init {
        Initializer::Expr(expr) => expr.span,
        Initializer::List(_, span) => *span,
    }
}
