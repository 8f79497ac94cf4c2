//! `struct`, `union`, `enum` and `typeof`.

use super::ast::{EnumSpec, Member, RecordSpec, TypeSpec};
use super::{Meaning, Parser};

impl Parser<'_> {
    /// Returns the type that begins with one of these words.
    pub(super) fn tagged_type(&mut self, word: &str) -> Option<TypeSpec> {
        self.nested(|p| match word {
            "enum" => p.enum_spec(),
            "struct" | "union" => p.record_spec(word == "union"),
            _ => p.typeof_spec(),
        })
    }

    fn typeof_spec(&mut self) -> Option<TypeSpec> {
        self.next();
        self.expect("(", " after 'typeof'")?;
        let spec = if self.starts_type() {
            TypeSpec::TypeofType(Box::new(self.type_name()?))
        } else {
            TypeSpec::TypeofExpr(Box::new(self.expression()?))
        };
        self.expect(")", "")?;
        Some(spec)
    }

    fn record_spec(&mut self, is_union: bool) -> Option<TypeSpec> {
        let mut span = self.next().span;
        let mut attributes = Vec::new();
        self.attributes(&mut attributes)?;
        let token = self.peek();
        let tag = token.name();
        if tag.is_some() {
            span = self.next().span;
        }
        let members = if self.eat("{") { Some(self.members()?) } else { None };
        if tag.is_none() && members.is_none() {
            return self.unexpected("a tag or '{'");
        }
        self.attributes(&mut attributes)?;
        Some(TypeSpec::Record(Box::new(RecordSpec { is_union, tag, members, attributes, span })))
    }

    fn members(&mut self) -> Option<Vec<Member>> {
        let mut members = Vec::new();
        while !self.eat("}") {
            if self.eat(";") {
                continue;
            }
            let specs = self.specs()?;
            let mut declarators = Vec::new();
            while !self.is(";") {
                let declarator = self.declarator()?;
                if self.is(":") {
                    return self.error(self.peek().span, "bit-fields are not supported in OpenCL C");
                }
                if declarator.name.is_none() {
                    return self.unexpected("a member's name");
                }
                declarators.push(declarator);
                if !self.eat(",") {
                    break;
                }
            }
            self.expect(";", " at end of member declaration")?;
            members.push(Member { specs, declarators });
        }
        Some(members)
    }

    fn enum_spec(&mut self) -> Option<TypeSpec> {
        let mut span = self.next().span;
        let tag = self.peek().name();
        if tag.is_some() {
            span = self.next().span;
        }
        let mut constants = None;
        if self.eat("{") {
            let mut list = Vec::new();
            while !self.eat("}") {
                let token = self.peek();
                let Some(name) = token.name() else { return self.unexpected("identifier") };
                self.next();
                self.declare(name, Meaning::Other);
                let value = if self.eat("=") { Some(self.conditional()?) } else { None };
                list.push((name, token.span, value));
                if !self.eat(",") && !self.is("}") {
                    return self.unexpected("',' or '}'");
                }
            }
            constants = Some(list);
        }
        if tag.is_none() && constants.is_none() {
            return self.unexpected("a tag or '{'");
        }
        Some(TypeSpec::Enum(EnumSpec { tag, constants, span }))
    }
}
