//! Tokens, and the table of their spellings.

use std::collections::HashMap;

use crate::source::Span;

/// Index of a spelling in [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(pub u32);

/// Every spelling of one build, each once.
#[derive(Clone, Debug, Default)]
pub struct Names {
    ids: HashMap<Box<str>, Symbol>,
    list: Vec<Box<str>>,
}

impl Names {
    /// The symbol of a spelling.
    pub fn intern(&mut self, text: &str) -> Symbol {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = Symbol(self.list.len() as u32);
        self.list.push(text.into());
        self.ids.insert(text.into(), id);
        id
    }

    /// The spelling of a symbol.
    pub fn text(&self, symbol: Symbol) -> &str {
        &self.list[symbol.0 as usize]
    }
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Identifier or keyword.
    Name(Symbol),
    /// A number as the preprocessor sees it, not parsed yet.
    Number(Symbol),
    /// A string literal with its quotes.
    Text(Symbol),
    /// A character constant with its quotes.
    Char(Symbol),
    /// An operator or bracket.
    Punct(&'static str),
    /// A byte that begins no token, or an unfinished literal.
    Stray(Symbol),
    /// Behind the last token.
    End,
}

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// What it is.
    pub kind: TokenKind,
    /// Where it is spelled, and the macro it came out of.
    pub span: Span,
    /// Blank or comment before it.
    pub spaced: bool,
    /// First of its line.
    pub starts_line: bool,
    /// A macro's name inside that macro's expansion: never expanded again.
    pub blocked: bool,
}

impl Token {
    /// The name, if it is one.
    pub fn name(self) -> Option<Symbol> {
        match self.kind {
            TokenKind::Name(s) => Some(s),
            _ => None,
        }
    }

    /// Whether it is this operator or bracket.
    pub fn is(self, punct: &str) -> bool {
        matches!(self.kind, TokenKind::Punct(p) if p == punct)
    }

    /// Whether it is the last.
    pub fn is_end(self) -> bool {
        self.kind == TokenKind::End
    }

    /// The token as it would be written.
    pub fn spelling(self, names: &Names) -> &str {
        match self.kind {
            TokenKind::Name(s)
            | TokenKind::Number(s)
            | TokenKind::Text(s)
            | TokenKind::Char(s)
            | TokenKind::Stray(s) => names.text(s),
            TokenKind::Punct(p) => p,
            TokenKind::End => "",
        }
    }
}

/// Binding strength of an operator between two operands; higher binds tighter. Comma and assignment stand apart.
pub(crate) fn strength(op: &str) -> Option<u8> {
    Some(match op {
        "||" => 1,
        "&&" => 2,
        "|" => 3,
        "^" => 4,
        "&" => 5,
        "==" | "!=" => 6,
        "<" | ">" | "<=" | ">=" => 7,
        "<<" | ">>" => 8,
        "+" | "-" => 9,
        "*" | "/" | "%" => 10,
        _ => return None,
    })
}
