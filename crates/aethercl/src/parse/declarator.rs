//! Declarators: pointers, arrays and functions around a name.

use super::Parser;
use super::ast::{Declarator, Derived, Param, Qualifiers, TypeSpec};
use super::words::is_reserved;
use crate::types::Type;

/// Maximum number of pointers, arrays and functions around one name.
const MAX_PARTS: usize = 32;

impl Parser<'_> {
    /// Parses a declarator, with or without a name.
    pub(super) fn declarator(&mut self) -> Option<Declarator> {
        let mut declarator = self.nested(Self::declarator_inner)?;
        if declarator.parts.len() > MAX_PARTS {
            return self.error(self.peek().span, "declarator nested too deeply");
        }
        self.attributes(&mut declarator.attributes)?;
        Some(declarator)
    }

    fn declarator_inner(&mut self) -> Option<Declarator> {
        let mut attributes = Vec::new();
        self.attributes(&mut attributes)?;
        if self.eat("*") {
            let mut qualifiers = Qualifiers::default();
            loop {
                self.attributes(&mut attributes)?;
                if !self.qualifier(&mut qualifiers)? {
                    break;
                }
            }
            let mut inner = self.nested(Self::declarator_inner)?;
            inner.parts.push(Derived::Pointer(qualifiers));
            inner.attributes.append(&mut attributes);
            return Some(inner);
        }
        let mut declarator = self.direct_declarator()?;
        declarator.attributes.append(&mut attributes);
        Some(declarator)
    }

    fn direct_declarator(&mut self) -> Option<Declarator> {
        let mut declarator = Declarator::default();
        let token = self.peek();
        if let Some(name) = token.name()
            && !is_reserved(self.word())
        {
            self.next();
            declarator.name = Some((name, token.span));
        } else if token.name().is_some() && !matches!(self.word(), "__attribute__" | "__attribute") {
            return self.unexpected("identifier");
        } else if token.is("(") && self.opens_declarator() {
            self.next();
            declarator = self.nested(Self::declarator_inner)?;
            self.expect(")", "")?;
        }
        loop {
            let span = self.peek().span;
            if self.eat("[") {
                while matches!(self.word(), "static" | "const" | "restrict" | "volatile") {
                    self.next();
                }
                let size = if self.is("]") { None } else { Some(Box::new(self.assignment()?)) };
                self.expect("]", "")?;
                declarator.parts.push(Derived::Array(size, span));
            } else if self.eat("(") {
                let params = self.scoped(Self::params)?;
                declarator.parts.push(Derived::Function(params, span));
            } else {
                return Some(declarator);
            }
            if declarator.parts.len() > MAX_PARTS {
                return self.error(span, "declarator nested too deeply");
            }
        }
    }

    /// Returns true if `(` groups a declarator and does not start parameters.
    fn opens_declarator(&self) -> bool {
        let next = self.token(self.at + 1);
        let word = self.word_at(self.at + 1);
        next.is("*")
            || next.is("(")
            || (next.name().is_some() && !self.type_at(self.at + 1) && !is_reserved(word))
    }

    fn type_at(&self, index: usize) -> bool {
        let Some(name) = self.token(index).name() else { return false };
        match self.meaning(name) {
            Some(super::Meaning::Type { .. }) => true,
            Some(super::Meaning::Other) => false,
            None => super::words::type_named(self.names.text(name)).is_some(),
        }
    }

    /// `(a, b)` with names alone.
    fn is_identifier_list(&self) -> bool {
        let next = self.token(self.at + 1);
        let word = self.word();
        !word.is_empty() && !is_reserved(word) && !self.starts_declaration() && (next.is(",") || next.is(")"))
    }

    /// Parameters up to and with the closing parenthesis.
    fn params(&mut self) -> Option<Vec<Param>> {
        let mut params = Vec::new();
        if self.eat(")") {
            return Some(params);
        }
        if self.word() == "void" && self.token(self.at + 1).is(")") {
            self.at += 2;
            return Some(params);
        }
        if self.is_identifier_list() {
            let at = self.peek().span;
            while !self.peek().is_end() && !self.is("{") {
                self.next();
            }
            self.next();
            return self.error(at, "parameters without types (K&R style) are not OpenCL C");
        }
        loop {
            if self.is("...") {
                return self.error(self.peek().span, "variadic functions are not allowed in OpenCL C");
            }
            let specs = self.specs()?;
            let declarator = self.declarator()?;
            if let (TypeSpec::Plain(Type::Void), true) = (&specs.base, declarator.parts.is_empty()) {
                return self.error(specs.span, "a parameter cannot have type 'void'");
            }
            if let Some((name, _)) = declarator.name {
                self.declare(name, super::Meaning::Other);
            }
            params.push(Param { specs, declarator });
            if self.eat(")") {
                return Some(params);
            }
            self.expect(",", " or ')' in the parameter list")?;
        }
    }
}
