//! Expansion of macros.

use std::rc::Rc;

use super::macros::Macro;
use super::{Preprocessor, end_token};
use crate::lex::{Symbol, Token, TokenKind, scan};
use crate::source::Span;

/// Tokens to read before those of the file: a macro's expansion, or tokens that were put back.
pub(super) struct PendingTokens {
    tokens: Rc<[Token]>,
    at: usize,
    /// The macro that is not expanded again inside.
    name: Option<Symbol>,
    /// Whether reading stops at its end, for separately expanded arguments.
    barrier: bool,
}

/// Arguments inside arguments.
const MAX_DEPTH: usize = 100;

/// A macro argument in source form and, if needed, expanded.
struct Argument {
    raw: Vec<Token>,
    expanded: Option<Vec<Token>>,
}

impl Preprocessor<'_> {
    /// Returns the next token with macros expanded.
    pub(super) fn next_expanded(&mut self) -> Token {
        loop {
            let mut token = self.next_raw();
            if self.spend(1, token.span) {
                return end_token(token.span);
            }
            let Some(name) = token.name().filter(|_| !token.blocked) else { return token };
            if self.dynamic(name, &mut token) {
                return token;
            }
            if name == self.well_known.pragma {
                self.pragma_operator(token.span);
                continue;
            }
            let Some(definition) = self.macros.get(&name).cloned() else { return token };
            if self.contexts.iter().any(|c| c.name == Some(name)) {
                token.blocked = true;
                return token;
            }
            if !self.expand(&definition, token) {
                return token;
            }
        }
    }

    /// Returns the next token, not expanded.
    fn next_raw(&mut self) -> Token {
        while let Some(context) = self.contexts.last_mut() {
            if let Some(token) = context.tokens.get(context.at) {
                context.at += 1;
                return *token;
            }
            if context.barrier {
                return end_token(Span::default());
            }
            self.contexts.pop();
        }
        self.next_of_files()
    }

    fn put_back(&mut self, token: Token) {
        if !token.is_end() {
            self.contexts.push(PendingTokens { tokens: [token].into(), at: 0, name: None, barrier: false });
        }
    }

    /// Returns a separately expanded list of tokens.
    pub(super) fn expand_list(&mut self, tokens: &[Token]) -> Vec<Token> {
        let Some(first) = tokens.first() else { return Vec::new() };
        if self.depth >= MAX_DEPTH {
            self.diagnostics.error(first.span, "macro arguments nested too deeply");
            self.stopped = true;
            return Vec::new();
        }
        self.depth += 1;
        let below = self.contexts.len();
        self.contexts.push(PendingTokens { tokens: tokens.into(), at: 0, name: None, barrier: true });
        let mut out = Vec::with_capacity(tokens.len());
        loop {
            let token = self.next_expanded();
            if token.is_end() {
                break;
            }
            out.push(token);
        }
        self.contexts.truncate(below);
        self.depth -= 1;
        out
    }

    /// Replaces `__LINE__` and similar macros with their value.
    fn dynamic(&mut self, name: Symbol, token: &mut Token) -> bool {
        let w = &self.well_known;
        if ![w.line, w.file, w.counter].contains(&name) {
            return false;
        }
        let place = self.sources.locate(self.sources.outermost(token.span));
        token.kind = if name == w.line {
            TokenKind::Number(self.names.intern(&place.line.to_string()))
        } else if name == w.file {
            TokenKind::Text(self.names.intern(&format!("{:?}", place.file)))
        } else {
            self.counter += 1;
            TokenKind::Number(self.names.intern(&(self.counter - 1).to_string()))
        };
        true
    }

    /// `_Pragma("…")`.
    fn pragma_operator(&mut self, at: Span) {
        let (open, text, close) = (self.next_raw(), self.next_raw(), self.next_raw());
        let TokenKind::Text(symbol) = text.kind else {
            self.diagnostics.error(at, "_Pragma takes a parenthesized string literal");
            return;
        };
        if !open.is("(") || !close.is(")") {
            self.diagnostics.error(at, "_Pragma takes a parenthesized string literal");
            return;
        }
        let inner = self.names.text(symbol).trim_matches('"').replace("\\\"", "\"");
        let tokens = scan(&inner, text.span.lo, self.names);
        self.pragma(&tokens[..tokens.len() - 1], at);
    }

    /// Queues a macro's expansion before the next tokens; returns false if a function-like macro is not called.
    fn expand(&mut self, definition: &Rc<Macro>, token: Token) -> bool {
        let mut arguments = Vec::new();
        if definition.params.is_some() {
            let next = self.next_raw();
            if !next.is("(") {
                self.put_back(next);
                return false;
            }
            match self.arguments(definition, token) {
                Some(list) => arguments = list,
                None => return true,
            }
        }
        let name = self.names.text(definition.name).to_string();
        let expansion = self.sources.expand(&name, token.span);
        let mut tokens = self.substitute(definition, &mut arguments, expansion);
        if let Some(first) = tokens.first_mut() {
            first.spaced = token.spaced;
        }
        self.spend(tokens.len(), token.span);
        self.contexts.push(PendingTokens {
            tokens: tokens.into(),
            at: 0,
            name: Some(definition.name),
            barrier: false,
        });
        true
    }

    /// Reads arguments up to the closing parenthesis.
    fn arguments(&mut self, definition: &Macro, call: Token) -> Option<Vec<Argument>> {
        let params = definition.params.as_ref().map_or(0, Vec::len);
        let mut list = vec![Vec::new()];
        let mut parens = 0;
        loop {
            let token = self.next_raw();
            if token.is_end() || self.spend(1, token.span) {
                let name = self.names.text(definition.name).to_string();
                let note = (definition.span, format!("macro '{name}' defined here"));
                let message = format!("unterminated argument list invoking macro '{name}'");
                self.diagnostics.error_with(call.span, message, vec![note]);
                return None;
            }
            match token.kind {
                TokenKind::Punct("(") => parens += 1,
                TokenKind::Punct(")") if parens == 0 => break,
                TokenKind::Punct(")") => parens -= 1,
                TokenKind::Punct(",") if parens == 0 && !(definition.variadic && list.len() >= params) => {
                    list.push(Vec::new());
                    continue;
                }
                _ => {}
            }
            if let Some(last) = list.last_mut() {
                last.push(token);
            }
        }
        if params == 0 && list.len() == 1 && list[0].is_empty() {
            list.clear();
        }
        if definition.variadic && list.len() + 1 == params {
            list.push(Vec::new());
        }
        if list.len() != params {
            let few = if list.len() < params { "too few" } else { "too many" };
            let name = self.names.text(definition.name).to_string();
            let note = (definition.span, format!("macro '{name}' defined here"));
            let message =
                format!("{few} arguments provided to function-like macro invocation: {name} takes {params}");
            self.diagnostics.error_with(call.span, message, vec![note]);
            return None;
        }
        Some(list.into_iter().map(|raw| Argument { raw, expanded: None }).collect())
    }

    /// Returns the body with substituted arguments and evaluated `#` and `##`.
    fn substitute(&mut self, m: &Macro, arguments: &mut [Argument], expansion: u32) -> Vec<Token> {
        let mut out: Vec<Token> = Vec::with_capacity(m.body.len());
        let (mut paste, mut last_empty) = (false, false);
        let mut i = 0;
        while let Some(&token) = m.body.get(i) {
            i += 1;
            if token.is("##") {
                paste = true;
                continue;
            }
            let mut own = token;
            own.span.expansion = expansion;
            let pasted_next = m.body.get(i).is_some_and(|t| t.is("##"));
            let operand = if token.is("#") && m.params.is_some() {
                let index = m.body.get(i).and_then(|t| m.param(*t)).unwrap_or(0);
                i += 1;
                vec![self.stringize(&arguments[index].raw, own)]
            } else if let Some(index) = m.param(token) {
                let is_rest = m.variadic && index + 1 == arguments.len();
                if paste && is_rest && out.last().is_some_and(|t| t.is(",")) {
                    // GNU: `, ## __VA_ARGS__` drops the comma if no further arguments follow.
                    if arguments[index].raw.is_empty() {
                        out.pop();
                    }
                    paste = false;
                }
                self.argument(&mut arguments[index], paste || pasted_next, token)
            } else {
                vec![own]
            };
            let join = paste && !last_empty;
            match operand.split_first() {
                Some((right, tail)) if join => {
                    if let Some(left) = out.pop() {
                        out.extend(self.paste(left, *right));
                    }
                    out.extend_from_slice(tail);
                }
                _ => out.extend_from_slice(&operand),
            }
            // Pasting with an empty operand leaves the left side for further pasting.
            last_empty = operand.is_empty() && !join;
            paste = false;
        }
        out
    }

    /// Returns an argument's tokens for its parameter: in source form next to `#` and `##`, otherwise expanded.
    fn argument(&mut self, argument: &mut Argument, raw: bool, param: Token) -> Vec<Token> {
        let mut tokens = if raw {
            argument.raw.clone()
        } else if let Some(expanded) = &argument.expanded {
            expanded.clone()
        } else {
            let expanded = self.expand_list(&argument.raw);
            argument.expanded = Some(expanded.clone());
            expanded
        };
        self.spend(tokens.len(), param.span);
        if let Some(first) = tokens.first_mut() {
            first.spaced = param.spaced;
        }
        tokens
    }

    /// Implements `#x`: the argument's source as a string literal.
    fn stringize(&mut self, tokens: &[Token], like: Token) -> Token {
        let mut text = String::from("\"");
        for (i, t) in tokens.iter().enumerate() {
            if i > 0 && (t.spaced || t.starts_line) {
                text.push(' ');
            }
            let spelling = t.spelling(self.names);
            if matches!(t.kind, TokenKind::Text(_) | TokenKind::Char(_)) {
                text.push_str(&spelling.replace('\\', "\\\\").replace('"', "\\\""));
            } else {
                text.push_str(spelling);
            }
        }
        text.push('"');
        Token { kind: TokenKind::Text(self.names.intern(&text)), ..like }
    }

    /// Implements `left ## right`: returns one token, or both if the result is not a token.
    fn paste(&mut self, left: Token, right: Token) -> Vec<Token> {
        let text = format!("{}{}", left.spelling(self.names), right.spelling(self.names));
        let tokens = scan(&text, 0, self.names);
        if let [one, end] = tokens[..]
            && end.is_end()
            && !matches!(one.kind, TokenKind::Stray(_))
        {
            return vec![Token { kind: one.kind, ..left }];
        }
        self.diagnostics.error(left.span, format!("pasting formed '{text}', an invalid preprocessing token"));
        vec![left, right]
    }
}
