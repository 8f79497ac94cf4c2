//! Directives: lines that start with `#`.

use super::{Conditional, Preprocessor};
use crate::lex::{Token, TokenKind, parse_number, parse_text};
use crate::source::Span;
use crate::types::Scalar;

impl Preprocessor<'_> {
    /// Executes a directive; its `#` has been read.
    pub(super) fn directive(&mut self, hash: Token) {
        let line = self.rest_of_line();
        let Some((head, rest)) = line.split_first() else { return };
        let word = head.spelling(self.names).to_string();
        let active = self.files.last().is_none_or(|f| f.conditionals.last().is_none_or(|c| c.active));
        match word.as_str() {
            "if" | "ifdef" | "ifndef" => {
                let taken = active && self.decide(&word, rest, head.span);
                self.open(Conditional {
                    span: hash.span,
                    taken: taken || !active,
                    active: taken,
                    after_else: false,
                });
            }
            "elif" | "elifdef" | "elifndef" | "else" => self.alternative(&word, rest, head.span),
            "endif" => {
                if self.files.last_mut().is_none_or(|f| f.conditionals.pop().is_none()) {
                    self.diagnostics.error(head.span, "#endif without #if");
                }
            }
            _ if !active => {}
            "define" => self.define(rest, head.span),
            "undef" => self.undefine(rest, head.span),
            "include" | "import" => self.include(rest, head.span),
            "pragma" => self.pragma(rest, head.span),
            "line" => self.line(rest, head.span),
            "error" => {
                let text = self.line_text(rest);
                self.diagnostics.error(head.span, format!("#error: {text}"));
            }
            "warning" => {
                let text = self.line_text(rest);
                self.diagnostics.warning(head.span, text);
            }
            _ if matches!(head.kind, TokenKind::Number(_)) => self.line(&line, head.span),
            _ => self.diagnostics.error(head.span, format!("invalid preprocessing directive '#{word}'")),
        }
    }

    fn rest_of_line(&mut self) -> Vec<Token> {
        let Some(file) = self.files.last_mut() else { return Vec::new() };
        let rest = &file.tokens[file.at..];
        let len = rest.iter().position(|t| t.starts_line || t.is_end()).unwrap_or(0);
        file.at += len;
        rest[..len].to_vec()
    }

    fn line_text(&self, tokens: &[Token]) -> String {
        let mut text = String::new();
        for t in tokens {
            if !text.is_empty() && t.spaced {
                text.push(' ');
            }
            text.push_str(t.spelling(self.names));
        }
        text
    }

    fn open(&mut self, conditional: Conditional) {
        if let Some(file) = self.files.last_mut() {
            file.conditionals.push(conditional);
        }
    }

    /// Evaluates the condition of `#if`, `#ifdef`, `#ifndef` and their `#el…` forms.
    fn decide(&mut self, word: &str, rest: &[Token], at: Span) -> bool {
        if word.ends_with("def") {
            let Some(name) = rest.first().and_then(|t| t.name()) else {
                self.diagnostics.error(at, "macro name missing");
                return false;
            };
            return self.is_defined(name) != word.contains("ifn");
        }
        self.condition(rest, at)
    }

    /// `#elif` and `#else`.
    fn alternative(&mut self, word: &str, rest: &[Token], at: Span) {
        let Some(open) = self.files.last_mut().and_then(|f| f.conditionals.last_mut()) else {
            self.diagnostics.error(at, format!("#{word} without #if"));
            return;
        };
        if open.after_else {
            self.diagnostics.error(at, format!("#{word} after #else"));
            return;
        }
        open.after_else = word == "else";
        if open.taken {
            open.active = false;
            return;
        }
        let taken = word == "else" || self.decide(word, rest, at);
        if let Some(open) = self.files.last_mut().and_then(|f| f.conditionals.last_mut()) {
            (open.taken, open.active) = (taken, taken);
        }
    }

    fn include(&mut self, rest: &[Token], at: Span) {
        let expanded;
        let mut rest = rest;
        if rest.first().is_some_and(|t| matches!(t.kind, TokenKind::Name(_))) {
            expanded = self.expand_list(rest);
            rest = &expanded;
        }
        let mut beside = None;
        let name = match rest {
            [Token { kind: TokenKind::Text(s), .. }, ..] => {
                beside = self.files.last().map(|file| file.symbol);
                self.names.text(*s).trim_matches('"').to_string()
            }
            [open, inner @ .., close] if open.is("<") && close.is(">") => self.line_text(inner),
            _ => {
                self.diagnostics.error(at, "expected \"FILENAME\" or <FILENAME>");
                return;
            }
        };
        let Some((path, text)) = self.includes.find(&name, beside.map(|file| self.names.text(file))) else {
            self.diagnostics.error(at, format!("'{name}' file not found"));
            return;
        };
        let symbol = self.names.intern(&path);
        if !self.once.contains(&symbol) && !self.spend(text.len() / 16, at) {
            self.enter(&path, text, at);
        }
    }

    /// `#line 12 "name"` and `# 12 "name"`.
    fn line(&mut self, rest: &[Token], at: Span) {
        let rest = if rest.len() > 1 && rest[0].spelling(self.names) == "line" { &rest[1..] } else { rest };
        let rest = self.expand_list(rest);
        let number = rest.first().and_then(|t| match t.kind {
            TokenKind::Number(s) => self.names.text(s).parse::<u32>().ok(),
            _ => None,
        });
        let Some(number) = number else {
            self.diagnostics.error(at, "#line directive requires a positive integer argument");
            return;
        };
        let name = match rest.get(1).map(|t| t.kind) {
            None => None,
            Some(TokenKind::Text(s)) => parse_text(self.names.text(s)).ok(),
            Some(_) => {
                self.diagnostics.error(at, "invalid filename for #line directive");
                return;
            }
        };
        self.sources.rename(at.lo, number, name.map(|n| String::from_utf8_lossy(&n).into_owned()));
    }

    /// Handles `#pragma` and `_Pragma`: extensions are recorded; everything else is a hint for code generators.
    pub(super) fn pragma(&mut self, rest: &[Token], at: Span) {
        let words: Vec<&str> = rest.iter().map(|t| t.spelling(self.names)).collect();
        match words[..] {
            ["once"] => {
                if let Some(file) = self.files.last() {
                    self.once.insert(file.symbol);
                }
            }
            ["OPENCL", "EXTENSION", name, ":", how] => {
                let name = name.to_string();
                let known = name == "all" || self.target.extensions.contains(&name);
                match how {
                    // An extension is available without enabling it, the same as in current compilers.
                    "disable" => {}
                    "enable" if known => {}
                    "enable" => {
                        let message = format!("unsupported OpenCL extension '{name}' - ignoring");
                        self.diagnostics.warning(at, message);
                    }
                    _ => self.diagnostics.warning(at, "expected 'enable' or 'disable' - ignoring"),
                }
            }
            _ => {}
        }
    }

    /// Returns a number's value in `#if`.
    pub(super) fn integer(&mut self, token: Token) -> Option<(i64, bool)> {
        match parse_number(token.spelling(self.names), Scalar::F64) {
            // Every type has 64 bits here: only a suffix, or a value that needs all bits, makes a number unsigned.
            Ok(crate::lex::Number::Int(bits, _)) => {
                let unsigned = bits > i64::MAX as u64 || token.spelling(self.names).contains(['u', 'U']);
                Some((bits as i64, unsigned))
            }
            Ok(_) => {
                self.diagnostics.error(token.span, "floating point literal in preprocessor expression");
                None
            }
            Err(why) => {
                self.diagnostics.error(token.span, why);
                None
            }
        }
    }
}
