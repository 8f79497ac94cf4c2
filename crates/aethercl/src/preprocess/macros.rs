//! Macro definitions.

use super::Preprocessor;
use crate::lex::{Symbol, Token, TokenKind};
use crate::source::Span;

/// A macro.
#[derive(Clone, Debug)]
pub struct Macro {
    /// Its name.
    pub name: Symbol,
    /// Parameters of a function-like macro.
    pub params: Option<Vec<Symbol>>,
    /// Whether the last parameter takes all further arguments.
    pub variadic: bool,
    /// Its replacement list.
    pub body: Vec<Token>,
    /// Span of its definition.
    pub span: Span,
}

impl Macro {
    /// Returns the index of the parameter that a name of the body refers to.
    pub fn param(&self, token: Token) -> Option<usize> {
        let name = token.name()?;
        self.params.as_ref()?.iter().position(|p| *p == name)
    }

    /// Returns true if a second definition is identical.
    fn same(&self, other: &Self) -> bool {
        let same_token = |(a, b): (&Token, &Token)| a.kind == b.kind && a.spaced == b.spaced;
        self.params == other.params
            && self.variadic == other.variadic
            && self.body.len() == other.body.len()
            && self.body.iter().zip(&other.body).skip(1).all(same_token)
            && self.body.first().map(|t| t.kind) == other.body.first().map(|t| t.kind)
    }
}

impl Preprocessor<'_> {
    /// Handles `#define`, given the rest of its line.
    pub(super) fn define(&mut self, line: &[Token], at: Span) {
        let Some((head, rest)) = line.split_first() else {
            self.diagnostics.error(at, "macro name missing");
            return;
        };
        let Some(name) = head.name() else {
            self.diagnostics.error(head.span, "macro name must be an identifier");
            return;
        };
        if name == self.well_known.defined {
            self.diagnostics.error(head.span, "'defined' cannot be used as a macro name");
            return;
        }
        let mut definition =
            Macro { name, params: None, variadic: false, body: rest.to_vec(), span: head.span };
        if rest.first().is_some_and(|t| t.is("(") && !t.spaced) {
            let Some(used) = self.parameters(&rest[1..], &mut definition) else { return };
            definition.body = rest[1 + used..].to_vec();
        }
        if !self.check_body(&definition) {
            return;
        }
        if let Some(old) = self.macros.get(&name)
            && !old.same(&definition)
        {
            let text = self.names.text(name).to_string();
            self.diagnostics.warning(head.span, format!("'{text}' macro redefined"));
        }
        self.macros.insert(name, definition.into());
    }

    /// Parses `a, b, ...)`; returns the number of tokens used.
    fn parameters(&mut self, tokens: &[Token], definition: &mut Macro) -> Option<usize> {
        let mut params = Vec::new();
        let mut at = 0;
        let mut expect_name = true;
        loop {
            let Some(t) = tokens.get(at) else {
                self.diagnostics.error(definition.span, "missing ')' in macro parameter list");
                return None;
            };
            at += 1;
            match t.kind {
                TokenKind::Punct(")") if !expect_name || params.is_empty() => break,
                TokenKind::Punct(",") if !expect_name && !definition.variadic => expect_name = true,
                TokenKind::Punct("...") if !definition.variadic => {
                    // GNU's `args...` names the rest; plain `...` is __VA_ARGS__.
                    if expect_name {
                        params.push(self.well_known.va_args);
                    }
                    definition.variadic = true;
                    expect_name = false;
                }
                TokenKind::Name(p) if expect_name => {
                    if params.contains(&p) {
                        let text = self.names.text(p).to_string();
                        self.diagnostics.error(t.span, format!("duplicate macro parameter name '{text}'"));
                        return None;
                    }
                    params.push(p);
                    expect_name = false;
                }
                _ => {
                    self.diagnostics.error(t.span, "invalid token in macro parameter list");
                    return None;
                }
            }
        }
        definition.params = Some(params);
        Some(at)
    }

    /// Checks that `##` is between two tokens, and `#` before a parameter.
    fn check_body(&mut self, definition: &Macro) -> bool {
        let body = &definition.body;
        if let Some(t) = body.first().filter(|t| t.is("##")).or(body.last().filter(|t| t.is("##"))) {
            self.diagnostics.error(t.span, "'##' cannot appear at either end of a macro expansion");
            return false;
        }
        if definition.params.is_none() {
            return true;
        }
        for (i, t) in body.iter().enumerate() {
            if t.is("#") && body.get(i + 1).is_none_or(|n| definition.param(*n).is_none()) {
                self.diagnostics.error(t.span, "'#' is not followed by a macro parameter");
                return false;
            }
        }
        true
    }

    /// `#undef`.
    pub(super) fn undefine(&mut self, line: &[Token], at: Span) {
        match line.first().and_then(|t| t.name()) {
            Some(name) => {
                self.macros.remove(&name);
            }
            None => self.diagnostics.error(at, "macro name missing"),
        }
    }

    /// Returns true if a name is a macro.
    pub(super) fn is_defined(&self, name: Symbol) -> bool {
        let w = &self.well_known;
        self.macros.contains_key(&name) || [w.line, w.file, w.counter].contains(&name)
    }
}
