//! Initializers.

use super::Parser;
use super::ast::{Designator, Initializer};

impl Parser<'_> {
    /// Parses the initializer after `=`.
    pub(super) fn initializer(&mut self) -> Option<Initializer> {
        if self.is("{") {
            return self.nested(Self::initializer_list);
        }
        self.assignment().map(Initializer::Expr)
    }

    /// `{ a, .b = c, [d] = e }`.
    pub(super) fn initializer_list(&mut self) -> Option<Initializer> {
        let span = self.expect("{", "")?;
        let mut list = Vec::new();
        while !self.eat("}") {
            let mut designators = Vec::new();
            loop {
                let at = self.peek().span;
                if self.eat(".") {
                    let Some(name) = self.peek().name() else { return self.unexpected("a member's name") };
                    self.next();
                    designators.push(Designator::Member(name, at));
                } else if self.eat("[") {
                    let index = self.conditional()?;
                    self.expect("]", "")?;
                    designators.push(Designator::Index(index, at));
                } else {
                    break;
                }
            }
            if !designators.is_empty() {
                self.expect("=", " after the designator")?;
            }
            list.push((designators, self.initializer()?));
            if !self.eat(",") && !self.is("}") {
                return self.unexpected("',' or '}' in the initializer list");
            }
        }
        Some(Initializer::List(list, span))
    }
}
