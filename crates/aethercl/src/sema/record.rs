//! Structures, unions and enumerations.

use super::Sema;
use super::scope::{Entity, Tag};
use crate::lex::Symbol;
use crate::parse::ast::{EnumSpec, RecordSpec};
use crate::source::Span;
use crate::types::{Field, Record, RecordId, Scalar, Space, Type};

/// Maximum nesting of structures: visiting them is recursive.
const MAX_RECORD_DEPTH: usize = 32;

impl Sema<'_> {
    /// Returns the type of `struct tag` or `struct { … }`.
    pub(super) fn record_type(&mut self, spec: &RecordSpec) -> Option<Type> {
        let known =
            spec.tag.and_then(|t| if spec.members.is_some() { self.tag_here(t) } else { self.tag(t) });
        let id = match known {
            Some(Tag::Record(id)) => {
                if self.types.record(id).is_union != spec.is_union {
                    return self.wrong_tag(spec.tag, spec.span);
                }
                id
            }
            Some(Tag::Enum(_)) => return self.wrong_tag(spec.tag, spec.span),
            None => self.new_record(spec),
        };
        if spec.members.is_some() {
            if self.types.record(id).complete {
                return self.same_again(id, spec);
            }
            self.lay_out(id, spec)?;
        }
        Some(Type::Record(id))
    }

    /// Handles a second definition of a record, which must have the same members as the first: linked units may each define it.
    fn same_again(&mut self, first: RecordId, spec: &RecordSpec) -> Option<Type> {
        let again = self.new_record_untagged(spec);
        self.lay_out(again, spec)?;
        let (a, b) = (self.types.record(first), self.types.record(again));
        if (a.is_union, a.size, a.align) != (b.is_union, b.size, b.align) || a.fields != b.fields {
            let name = self.type_name(Type::Record(first));
            return self.error(spec.span, format!("redefinition of '{name}'"));
        }
        Some(Type::Record(first))
    }

    fn wrong_tag<T>(&mut self, tag: Option<Symbol>, span: Span) -> Option<T> {
        let name = tag.map_or(String::new(), |t| self.text(t).to_string());
        self.error(span, format!("use of '{name}' with tag type that does not match previous declaration"))
    }

    fn new_record_untagged(&mut self, spec: &RecordSpec) -> RecordId {
        let tag = spec.tag.map_or(String::new(), |t| self.text(t).to_string());
        self.types.new_record(Record {
            tag,
            is_union: spec.is_union,
            complete: false,
            fields: Vec::new(),
            size: 0,
            align: 1,
        })
    }

    fn new_record(&mut self, spec: &RecordSpec) -> RecordId {
        let id = self.new_record_untagged(spec);
        if let Some(tag) = spec.tag {
            self.bind_tag(tag, Tag::Record(id));
        }
        id
    }

    fn lay_out(&mut self, id: RecordId, spec: &RecordSpec) -> Option<()> {
        let packed = spec.attributes.iter().any(|a| a.name == "packed");
        let mut record = Record { complete: true, ..self.types.record(id).clone() };
        let (mut size, mut depth) = (0u64, 0);
        for member in spec.members.as_deref().unwrap_or(&[]) {
            let base = self.base_type(&member.specs)?;
            if member.declarators.is_empty() {
                let Type::Record(_) = base.ty else {
                    return self.error(member.specs.span, "declaration does not declare anything");
                };
                depth = depth.max(self.depth_of(base.ty));
                self.add_anonymous(&mut record, base.ty, &mut size, packed);
            }
            for declarator in &member.declarators {
                let (name, span) = declarator.name?;
                let q = self.declared_type(base, declarator, false)?;
                self.check_variable(q.ty, span)?;
                if q.space.is_some_and(|s| s != Space::Private) {
                    return self.error(span, "field may not be qualified with an address space");
                }
                let name = self.text(name).to_string();
                if record.fields.iter().any(|f| f.name == name) {
                    return self.error(span, format!("duplicate member '{name}'"));
                }
                depth = depth.max(self.depth_of(q.ty));
                let align =
                    declarator.attributes.iter().chain(&member.specs.attributes).any(|a| a.name == "packed");
                let align = self.field_align(q.ty, q.aligned, packed || align);
                let offset = place_field(&mut record, &mut size, self.types.size(q.ty), align);
                record.fields.push(Field { name, ty: q.ty, offset, is_const: q.is_const, inherited: false });
            }
        }
        self.finish_layout(id, record, size, depth, spec)
    }

    fn finish_layout(
        &mut self,
        id: RecordId,
        mut record: Record,
        size: u64,
        depth: usize,
        spec: &RecordSpec,
    ) -> Option<()> {
        if depth >= MAX_RECORD_DEPTH {
            return self.error(spec.span, "structures nested too deeply");
        }
        for attribute in spec.attributes.iter().filter(|a| a.name == "aligned") {
            let bytes = match attribute.args.first() {
                Some(arg) => self.constant_integer(arg)?.0,
                None => 16,
            };
            if !bytes.is_power_of_two() || bytes > 1 << 20 {
                return self.error(attribute.span, "requested alignment is not a power of 2");
            }
            record.align = record.align.max(bytes);
        }
        record.size = size.next_multiple_of(record.align);
        if record.size > 1 << 40 {
            return self.error(spec.span, "structure is too large");
        }
        self.types.complete_record(id, record);
        self.record_depth.insert(Type::Record(id), depth + 1);
        Some(())
    }

    fn depth_of(&self, mut ty: Type) -> usize {
        while let Type::Array(id) = ty {
            ty = self.types.array(id).of;
        }
        self.record_depth.get(&ty).copied().unwrap_or(0)
    }

    fn field_align(&self, ty: Type, aligned: u32, packed: bool) -> u64 {
        let natural = if packed { 1 } else { self.types.align(ty) };
        natural.max(u64::from(aligned))
    }

    /// Adds the members of an unnamed member to the outer record.
    fn add_anonymous(&mut self, record: &mut Record, ty: Type, size: &mut u64, packed: bool) {
        let Type::Record(inner) = ty else { return };
        let align = self.field_align(ty, 0, packed);
        let offset = place_field(record, size, self.types.size(ty), align);
        let inner = self.types.record(inner).clone();
        record.fields.push(Field { name: String::new(), ty, offset, is_const: false, inherited: false });
        for field in inner.fields.iter().filter(|f| !f.name.is_empty()) {
            record.fields.push(Field { offset: offset + field.offset, inherited: true, ..field.clone() });
        }
    }

    /// Returns the type of `enum { … }`: `int`, or the first of `uint`, `long`, `ulong` that can hold all of its values.
    pub(super) fn enum_type(&mut self, spec: &EnumSpec) -> Option<Type> {
        let Some(constants) = &spec.constants else {
            return match spec.tag.and_then(|t| self.tag(t)) {
                Some(Tag::Enum(ty)) => Some(ty),
                Some(Tag::Record(_)) => self.wrong_tag(spec.tag, spec.span),
                None => self.error(spec.span, "use of an enumeration that is not defined"),
            };
        };
        let mut next = 0i128;
        let mut values = Vec::with_capacity(constants.len());
        for (name, span, value) in constants {
            if let Some(value) = value {
                let (bits, ty) = self.constant_integer(value)?;
                let signed = i128::from(super::fold::signed(bits, ty));
                let is_signed = ty.element().is_some_and(Scalar::is_signed);
                next = if is_signed { signed } else { i128::from(bits) };
            }
            let ty = holding(next, next);
            let Some(ty) = ty else {
                return self.error(*span, "enumerator value is not representable in any integer type");
            };
            // Later constants may use it.
            self.bind(*name, Entity::Constant(super::fold::wrap(next as u64, ty), Type::Scalar(ty)), *span)?;
            values.push((*name, *span, next));
            next += 1;
        }
        let least = values.iter().map(|v| v.2).min().unwrap_or(0);
        let most = values.iter().map(|v| v.2).max().unwrap_or(0);
        let Some(all) = holding(least, most) else {
            return self.error(spec.span, "no integer type holds all values of the enumeration");
        };
        // Values that fit in `int` have that type; the others have the enumeration's type.
        for (name, span, value) in values.into_iter().filter(|v| i32::try_from(v.2).is_err()) {
            self.rebind(
                name,
                Entity::Constant(super::fold::wrap(value as u64, all), Type::Scalar(all)),
                span,
            );
        }
        if let Some(tag) = spec.tag {
            if self.tag_here(tag).is_some() {
                return self.error(spec.span, "redefinition of an enumeration");
            }
            self.bind_tag(tag, Tag::Enum(Type::Scalar(all)));
        }
        Some(Type::Scalar(all))
    }
}

/// Returns the first enumeration type that holds all values from `least` to `most`.
fn holding(least: i128, most: i128) -> Option<Scalar> {
    let ranges = [
        (Scalar::I32, i128::from(i32::MIN), i128::from(i32::MAX)),
        (Scalar::U32, 0, i128::from(u32::MAX)),
        (Scalar::I64, i128::from(i64::MIN), i128::from(i64::MAX)),
        (Scalar::U64, 0, i128::from(u64::MAX)),
    ];
    ranges.iter().find(|(_, low, high)| *low <= least && most <= *high).map(|(scalar, ..)| *scalar)
}

/// Returns the offset of the next field and extends the record.
fn place_field(record: &mut Record, size: &mut u64, bytes: u64, align: u64) -> u64 {
    record.align = record.align.max(align);
    let offset = if record.is_union { 0 } else { size.next_multiple_of(align) };
    *size = (*size).max(offset.saturating_add(bytes)).min(1 << 60);
    offset
}
