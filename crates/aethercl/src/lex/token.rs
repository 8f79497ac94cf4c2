//! Tokens, and the table of their spellings.

use std::collections::HashMap;

use crate::source::Span;

/// Index of a spelling in [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(pub u32);

/// All spellings of one build, without duplicates.
#[derive(Clone, Debug, Default)]
pub struct Names {
    ids: HashMap<Box<str>, Symbol>,
    list: Vec<Box<str>>,
}

impl Names {
    /// Returns the symbol of a spelling.
    pub fn intern(&mut self, text: &str) -> Symbol {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = Symbol(self.list.len() as u32);
        self.list.push(text.into());
        self.ids.insert(text.into(), id);
        id
    }

    /// Returns the spelling of a symbol.
    pub fn text(&self, symbol: Symbol) -> &str {
        &self.list[symbol.0 as usize]
    }
}

/// Kind of token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Identifier or keyword.
    Name(Symbol),
    /// A preprocessing number, not parsed yet.
    Number(Symbol),
    /// A string literal with its quotes.
    Text(Symbol),
    /// A character constant with its quotes.
    Char(Symbol),
    /// An operator or bracket.
    Punct(&'static str),
    /// A byte that starts no token, or an unfinished literal.
    Stray(Symbol),
    /// After the last token.
    End,
}

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Kind of token.
    pub kind: TokenKind,
    /// Source position, and the macro that it came from.
    pub span: Span,
    /// Whether white space or a comment precedes it.
    pub spaced: bool,
    /// Whether it is the first on its line.
    pub starts_line: bool,
    /// A macro's name inside its own expansion: never expanded again.
    pub blocked: bool,
}

impl Token {
    /// Returns the name, if it is one.
    pub fn name(self) -> Option<Symbol> {
        match self.kind {
            TokenKind::Name(s) => Some(s),
            _ => None,
        }
    }

    /// Returns true if it is this operator or bracket.
    pub fn is(self, punct: &str) -> bool {
        matches!(self.kind, TokenKind::Punct(p) if p == punct)
    }

    /// Returns true if it is the last token.
    pub fn is_end(self) -> bool {
        self.kind == TokenKind::End
    }

    /// Returns the token in source form.
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

/// Returns the precedence of a binary operator; higher binds tighter. Comma and assignment are handled separately.
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
