//! Parses tokens to the syntax tree. The parser reports an error once and continues after the next `;` or `}`, so that one build reports several.

pub mod ast;
mod declaration;
mod declarator;
mod expression;
mod initializer;
mod record;
mod statement;
mod switch;
mod words;

pub(crate) use words::type_named;

use std::collections::HashMap;

use crate::lex::{Names, Symbol, Token, TokenKind};
use crate::source::{Diagnostics, Span};
use ast::Item;

/// Maximum nesting of brackets, statements and operators; each `else if` counts as one level.
const MAX_NESTING: usize = 1000;
/// Maximum depth of an expression tree: `a + b + …` adds one level per term.
const MAX_DEPTH: u16 = 1000;

/// Meaning of a name for the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// A type; whether it is a vector decides how `(T)(a, b)` reads.
    Type { vector: bool },
    /// Anything else.
    Other,
}

/// The parser of one unit.
pub(crate) struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    names: &'a Names,
    diagnostics: &'a mut Diagnostics,
    scopes: Vec<HashMap<Symbol, Meaning>>,
    nesting: usize,
    /// Deepest expression since the last reset: types and initializers inside an expression add to its depth.
    deepest: u16,
    /// Names for generated labels.
    labels: Vec<Symbol>,
}

/// Returns the syntax tree of a unit; errors are in `diagnostics`.
pub(crate) fn parse(tokens: &[Token], names: &mut Names, diagnostics: &mut Diagnostics) -> Vec<Item> {
    let labels = switch::labels(tokens, names);
    let scopes = vec![HashMap::new()];
    let mut parser = Parser { tokens, at: 0, names, diagnostics, scopes, nesting: 0, deepest: 0, labels };
    parser.unit()
}

impl<'a> Parser<'a> {
    fn unit(&mut self) -> Vec<Item> {
        let mut items = Vec::new();
        while !self.peek().is_end() && !self.diagnostics.too_many() {
            if self.eat(";") {
                continue;
            }
            let before = self.at;
            self.nesting = 0;
            self.scopes.truncate(1);
            match self.item() {
                Some(item) => items.push(item),
                None => self.skip_item(before),
            }
        }
        items
    }

    fn peek(&self) -> Token {
        self.token(self.at)
    }

    /// Returns the token at an index, or the last one.
    fn token(&self, index: usize) -> Token {
        let last = self.tokens.len().saturating_sub(1);
        self.tokens.get(index.min(last)).copied().unwrap_or(Token {
            kind: TokenKind::End,
            span: Span::default(),
            spaced: false,
            starts_line: false,
            blocked: false,
        })
    }

    fn next(&mut self) -> Token {
        let token = self.peek();
        if !token.is_end() {
            self.at += 1;
        }
        token
    }

    /// Returns the word at this place, or an empty one.
    fn word(&self) -> &'a str {
        self.word_at(self.at)
    }

    fn word_at(&self, index: usize) -> &'a str {
        self.token(index).name().map_or("", |s| self.names.text(s))
    }

    fn is(&self, punct: &str) -> bool {
        self.peek().is(punct)
    }

    fn eat(&mut self, punct: &str) -> bool {
        let yes = self.is(punct);
        self.at += usize::from(yes);
        yes
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let yes = self.word() == word;
        self.at += usize::from(yes);
        yes
    }

    fn error<T>(&mut self, span: Span, message: impl Into<String>) -> Option<T> {
        self.diagnostics.error(span, message);
        None
    }

    /// Takes `punct`, or reports it as missing after the last token: `expected ';' after expression`.
    fn expect(&mut self, punct: &str, context: &str) -> Option<Span> {
        let token = self.peek();
        if self.eat(punct) {
            return Some(token.span);
        }
        let found = match token.kind {
            TokenKind::End => "end of input".to_string(),
            _ => format!("'{}'", token.spelling(self.names)),
        };
        let at = self.behind_last();
        self.error(at, format!("expected '{punct}'{context}, found {found}"))
    }

    /// Returns the position after the last token, where something is missing.
    fn behind_last(&self) -> Span {
        let last = self.token(self.at.saturating_sub(1)).span;
        let here = self.peek().span;
        if (last.expansion == here.expansion || self.peek().is_end() && last.expansion == 0) && self.at > 0 {
            Span { lo: last.hi, hi: last.hi + 1, expansion: last.expansion }
        } else {
            here
        }
    }

    /// Reports an unexpected token.
    fn unexpected<T>(&mut self, wanted: &str) -> Option<T> {
        let token = self.peek();
        match token.kind {
            TokenKind::End => self.error(token.span, format!("expected {wanted}, found end of input")),
            TokenKind::Stray(s) if matches!(self.names.text(s), "\"" | "'") => {
                self.error(token.span, format!("missing terminating {} character", self.names.text(s)))
            }
            TokenKind::Stray(s) if self.names.text(s) == "/*" => {
                self.error(token.span, "unterminated /* comment")
            }
            TokenKind::Stray(s) => {
                self.error(token.span, format!("unexpected character {:?}", self.names.text(s)))
            }
            _ => {
                let found = token.spelling(self.names);
                self.error(token.span, format!("expected {wanted}, found '{found}'"))
            }
        }
    }

    /// Runs a parse function one level deeper, up to the limit.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.nesting >= MAX_NESTING {
            let at = self.peek().span;
            // Further parsing would only repeat the message at each level.
            self.at = self.tokens.len().saturating_sub(1);
            return self.error(at, format!("nested more than {MAX_NESTING} levels deep"));
        }
        self.nesting += 1;
        let result = parse(self);
        self.nesting -= 1;
        result
    }

    /// Skips to after the `;` or the block that ends a faulty declaration.
    fn skip_item(&mut self, before: usize) {
        if self.at == before {
            self.at += 1;
        }
        let mut braces = 0usize;
        for token in &self.tokens[before.min(self.at)..self.at.min(self.tokens.len())] {
            braces = (braces + usize::from(token.is("{"))).saturating_sub(usize::from(token.is("}")));
        }
        while !self.peek().is_end() {
            let token = self.next();
            if token.is("{") {
                braces += 1;
            } else if token.is("}") {
                braces = braces.saturating_sub(1);
                if braces == 0 {
                    self.eat(";");
                    return;
                }
            } else if token.is(";") && braces == 0 {
                return;
            }
        }
    }

    /// Skips to after the `;` that ends a faulty statement, or to the `}` that ends its block.
    fn skip_statement(&mut self) {
        let mut braces = 0usize;
        while !self.peek().is_end() {
            if braces == 0 && self.is("}") {
                return;
            }
            let token = self.next();
            if token.is("{") {
                braces += 1;
            } else if token.is("}") {
                braces -= 1;
                if braces == 0 {
                    return;
                }
            } else if token.is(";") && braces == 0 {
                return;
            }
        }
    }

    fn meaning(&self, name: Symbol) -> Option<Meaning> {
        self.scopes.iter().rev().find_map(|s| s.get(&name)).copied()
    }

    fn declare(&mut self, name: Symbol, meaning: Meaning) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, meaning);
        }
    }

    /// Runs a parse function in a separate scope.
    fn scoped<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let depth = self.scopes.len();
        self.scopes.push(HashMap::new());
        let result = parse(self);
        self.scopes.truncate(depth);
        result
    }
}
