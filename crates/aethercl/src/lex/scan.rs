//! Splits a source into tokens. Nothing is an error here: a byte that starts no token becomes [`TokenKind::Stray`], so that code skipped by `#if 0`
//! may contain anything.

use super::{Names, Token, TokenKind};
use crate::source::Span;

/// Operators and brackets, longer ones before their prefixes.
const PUNCTS: [&str; 55] = [
    "...", "<<=", ">>=", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "*=", "/=", "%=",
    "+=", "-=", "&=", "^=", "|=", "##", "::", "<:", ":>", "<%", "%>", "[", "]", "(", ")", "{", "}", ".", "&",
    "*", "+", "-", "~", "!", "/", "%", "<", ">", "^", "|", "?", ":", ";", "=", ",", "#", "@", "%:",
];

/// Returns the tokens of `text`, whose first byte has offset `base`; the last one is [`TokenKind::End`].
pub fn scan(text: &str, base: u32, names: &mut Names) -> Vec<Token> {
    let mut scanner = Scanner { bytes: text.as_bytes(), text, at: 0 };
    let mut tokens = Vec::with_capacity(text.len() / 4);
    let (mut spaced, mut starts_line) = (false, true);
    loop {
        match scanner.skip_blank() {
            Blank::None => {}
            Blank::Space => spaced = true,
            Blank::Line => (spaced, starts_line) = (true, true),
        }
        let lo = scanner.at;
        let kind = scanner.token(names);
        let span = Span { lo: base + lo as u32, hi: base + scanner.at as u32, expansion: 0 };
        tokens.push(Token { kind, span, spaced, starts_line, blocked: false });
        if kind == TokenKind::End {
            return tokens;
        }
        (spaced, starts_line) = (false, false);
    }
}

/// White space between two tokens.
#[derive(PartialEq, Eq)]
enum Blank {
    None,
    Space,
    Line,
}

struct Scanner<'a> {
    bytes: &'a [u8],
    text: &'a str,
    at: usize,
}

impl Scanner<'_> {
    /// Skips backslashes at line ends: they join the lines.
    fn splice(&mut self) {
        while self.bytes.get(self.at) == Some(&b'\\') {
            match &self.bytes[self.at + 1..] {
                [b'\n', ..] => self.at += 2,
                [b'\r', b'\n', ..] => self.at += 3,
                _ => return,
            }
        }
    }

    /// Returns the current byte, or 0 at the end.
    fn peek(&mut self) -> u8 {
        self.splice();
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    /// Returns the byte `n` after the current one, if no line is spliced.
    fn ahead(&self, n: usize) -> u8 {
        self.bytes.get(self.at + n).copied().unwrap_or(0)
    }

    fn skip_blank(&mut self) -> Blank {
        let mut seen = Blank::None;
        loop {
            match self.peek() {
                b'\n' => {
                    seen = Blank::Line;
                    self.at += 1;
                    continue;
                }
                b' ' | b'\t' | b'\r' | 0x0b | 0x0c => self.at += 1,
                b'/' if self.ahead(1) == b'*' && !self.unfinished_comment() => self.block_comment(),
                b'/' if self.ahead(1) == b'/' => self.line_comment(),
                _ => return seen,
            }
            if seen == Blank::None {
                seen = Blank::Space;
            }
        }
    }

    fn unfinished_comment(&self) -> bool {
        !self.bytes[self.at + 2..].windows(2).any(|w| w == b"*/")
    }

    fn block_comment(&mut self) {
        let rest = &self.bytes[self.at + 2..];
        let end = rest.windows(2).position(|w| w == b"*/").map_or(rest.len(), |i| i + 2);
        self.at += 2 + end;
    }

    fn line_comment(&mut self) {
        while !matches!(self.peek(), b'\n') && self.at < self.bytes.len() {
            self.at += 1;
        }
    }

    fn token(&mut self, names: &mut Names) -> TokenKind {
        let c = self.peek();
        let lo = self.at;
        if self.at >= self.bytes.len() {
            return TokenKind::End;
        }
        if c == b'/' && self.ahead(1) == b'*' {
            self.at = self.bytes.len();
            return TokenKind::Stray(names.intern("/*"));
        }
        if is_name_start(c) {
            self.take_while(is_name_byte);
            return TokenKind::Name(names.intern(&self.spelling(lo)));
        }
        if c.is_ascii_digit() || c == b'.' && self.ahead(1).is_ascii_digit() {
            self.number();
            return TokenKind::Number(names.intern(&self.spelling(lo)));
        }
        if c == b'"' || c == b'\'' {
            return self.quoted(c, names);
        }
        let rest = &self.bytes[self.at..];
        if let Some(p) = PUNCTS.iter().find(|p| rest.starts_with(p.as_bytes())) {
            self.at += p.len();
            return TokenKind::Punct(digraph(p));
        }
        let width = self.text.get(self.at..).and_then(|t| t.chars().next()).map_or(1, char::len_utf8);
        self.at += width;
        TokenKind::Stray(names.intern(&self.spelling(lo)))
    }

    fn take_while(&mut self, wanted: fn(u8) -> bool) {
        while self.at < self.bytes.len() && wanted(self.peek()) {
            self.at += 1;
        }
    }

    fn number(&mut self) {
        loop {
            let c = self.peek();
            let sign = matches!(c, b'e' | b'E' | b'p' | b'P') && matches!(self.ahead(1), b'+' | b'-');
            if !(is_name_byte(c) || c == b'.') {
                return;
            }
            self.at += 1 + usize::from(sign);
        }
    }

    /// Scans a string or character constant; one that does not end on its line is stray.
    fn quoted(&mut self, quote: u8, names: &mut Names) -> TokenKind {
        let lo = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                _ if self.at >= self.bytes.len() => break,
                b'\n' => break,
                b'\\' if self.at + 1 < self.bytes.len() => self.at += 2,
                c if c == quote => {
                    self.at += 1;
                    let text = names.intern(&self.spelling(lo));
                    return if quote == b'"' { TokenKind::Text(text) } else { TokenKind::Char(text) };
                }
                _ => self.at += 1,
            }
        }
        self.at = lo + 1;
        TokenKind::Stray(names.intern(if quote == b'"' { "\"" } else { "'" }))
    }

    /// Returns the bytes from `lo` to the current position, without spliced line ends.
    fn spelling(&self, lo: usize) -> String {
        let raw = String::from_utf8_lossy(&self.bytes[lo..self.at.min(self.bytes.len())]);
        if raw.contains('\n') { raw.replace("\\\r\n", "").replace("\\\n", "") } else { raw.into_owned() }
    }
}

fn is_name_start(c: u8) -> bool {
    c.is_ascii_alphabetic() || c == b'_' || c == b'$'
}

fn is_name_byte(c: u8) -> bool {
    is_name_start(c) || c.is_ascii_digit()
}

/// Returns the usual spelling of the six digraphs.
fn digraph(p: &'static str) -> &'static str {
    match p {
        "<:" => "[",
        ":>" => "]",
        "<%" => "{",
        "%>" => "}",
        "%:" => "#",
        other => other,
    }
}
