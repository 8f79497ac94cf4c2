//! `#if` expressions: 64-bit integers, unsigned if an operand is.

use super::Preprocessor;
use crate::lex::{Token, TokenKind, parse_char, strength};
use crate::source::Span;

/// A value and whether it is unsigned.
type Value = (i64, bool);

/// Maximum nesting of parentheses and operators.
const MAX_DEPTH: usize = 200;

struct Condition<'p, 'a> {
    pp: &'p mut Preprocessor<'a>,
    tokens: Vec<Token>,
    at: usize,
    line: Span,
    depth: usize,
    /// Nesting depth of operands that are not evaluated: division by zero is not an error there.
    skipped: usize,
}

impl Preprocessor<'_> {
    /// Evaluates the rest of an `#if` line; an invalid one is reported and returns false.
    pub(super) fn condition(&mut self, line: &[Token], at: Span) -> bool {
        let Some(replaced) = self.replace_defined(line) else { return false };
        let tokens = self.expand_list(&replaced);
        let mut condition = Condition { pp: self, tokens, at: 0, line: at, depth: 0, skipped: 0 };
        let Some((value, _)) = condition.ternary() else { return false };
        if let Some(extra) = condition.tokens.get(condition.at) {
            let span = extra.span;
            condition
                .pp
                .diagnostics
                .error(span, "token is not a valid binary operator in a preprocessor expression");
            return false;
        }
        value != 0
    }

    /// Replaces `defined X` and `__has_…(…)` with 0 or 1 before macro expansion.
    fn replace_defined(&mut self, line: &[Token]) -> Option<Vec<Token>> {
        let mut out = Vec::with_capacity(line.len());
        let mut rest = line;
        while let Some((token, tail)) = rest.split_first() {
            rest = tail;
            let is_defined = token.name() == Some(self.well_known.defined);
            if !is_defined && !token.spelling(self.names).starts_with("__has_") {
                out.push(*token);
                continue;
            }
            let (name, after) = match tail {
                [open, name, close, after @ ..] if open.is("(") && close.is(")") => (*name, after),
                [name, after @ ..] if is_defined => (*name, after),
                _ => (*token, &[][..]),
            };
            rest = after;
            let Some(symbol) = name.name().filter(|_| name != *token) else {
                self.diagnostics.error(token.span, "macro name must be an identifier");
                return None;
            };
            let yes = is_defined && self.is_defined(symbol);
            let digit = self.names.intern(if yes { "1" } else { "0" });
            out.push(Token { kind: TokenKind::Number(digit), ..*token });
        }
        Some(out)
    }
}

impl Condition<'_, '_> {
    fn error<T>(&mut self, span: Span, message: &str) -> Option<T> {
        self.pp.diagnostics.error(span, message);
        None
    }

    fn punct(&self) -> Option<&'static str> {
        match self.tokens.get(self.at)?.kind {
            TokenKind::Punct(p) => Some(p),
            _ => None,
        }
    }

    fn ternary(&mut self) -> Option<Value> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.error(self.line, "preprocessor expression nested too deeply");
        }
        let cond = self.binary(1)?;
        let value = if self.punct() == Some("?") {
            self.at += 1;
            let then = self.skipping(cond.0 == 0, Self::ternary)?;
            if self.punct() != Some(":") {
                return self.error(self.line, "expected ':' in preprocessor expression");
            }
            self.at += 1;
            let otherwise = self.skipping(cond.0 != 0, Self::ternary)?;
            let unsigned = then.1 || otherwise.1;
            (if cond.0 != 0 { then.0 } else { otherwise.0 }, unsigned)
        } else {
            cond
        };
        self.depth -= 1;
        Some(value)
    }

    fn skipping(&mut self, skip: bool, parse: fn(&mut Self) -> Option<Value>) -> Option<Value> {
        self.skipped += usize::from(skip);
        let value = parse(self);
        self.skipped -= usize::from(skip);
        value
    }

    fn binary(&mut self, least: u8) -> Option<Value> {
        let mut left = self.unary()?;
        while let Some(op) = self.punct()
            && let Some(s) = strength(op)
            && s >= least
        {
            let at = self.tokens[self.at].span;
            self.at += 1;
            let skip = op == "&&" && left.0 == 0 || op == "||" && left.0 != 0;
            self.skipped += usize::from(skip);
            let right = self.binary(s + 1);
            self.skipped -= usize::from(skip);
            left = self.apply(op, left, right?, at)?;
        }
        Some(left)
    }

    fn apply(&mut self, op: &str, (a, ua): Value, (b, ub): Value, at: Span) -> Option<Value> {
        let unsigned = ua || ub;
        let (x, y) = (a as u64, b as u64);
        let truth = |t: bool| Some((i64::from(t), false));
        if matches!(op, "/" | "%") && b == 0 {
            if self.skipped > 0 {
                return Some((0, unsigned));
            }
            return self.error(at, "division by zero in preprocessor expression");
        }
        let value = match op {
            "||" => return truth(a != 0 || b != 0),
            "&&" => return truth(a != 0 && b != 0),
            "==" => return truth(a == b),
            "!=" => return truth(a != b),
            "<" => return truth(if unsigned { x < y } else { a < b }),
            ">" => return truth(if unsigned { x > y } else { a > b }),
            "<=" => return truth(if unsigned { x <= y } else { a <= b }),
            ">=" => return truth(if unsigned { x >= y } else { a >= b }),
            "<<" => return Some((a.wrapping_shl(b as u32), ua)),
            ">>" if ua => return Some((x.wrapping_shr(b as u32) as i64, true)),
            ">>" => return Some((a.wrapping_shr(b as u32), false)),
            "|" => a | b,
            "^" => a ^ b,
            "&" => a & b,
            "+" => a.wrapping_add(b),
            "-" => a.wrapping_sub(b),
            "*" => a.wrapping_mul(b),
            "/" if unsigned => (x / y) as i64,
            "/" => a.wrapping_div(b),
            _ if unsigned => (x % y) as i64,
            _ => a.wrapping_rem(b),
        };
        Some((value, unsigned))
    }

    fn unary(&mut self) -> Option<Value> {
        let Some(token) = self.tokens.get(self.at).copied() else {
            return self.error(self.line, "expected value in preprocessor expression");
        };
        self.at += 1;
        match token.kind {
            TokenKind::Number(_) => self.pp.integer(token),
            TokenKind::Char(s) => match parse_char(self.pp.names.text(s)) {
                Ok(value) => Some((value, false)),
                Err(why) => self.error(token.span, &why),
            },
            // Names that are not macros are 0; `true` is not C.
            TokenKind::Name(_) => Some((0, false)),
            TokenKind::Punct(op @ ("-" | "+" | "!" | "~")) => {
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return self.error(token.span, "preprocessor expression nested too deeply");
                }
                let (value, unsigned) = self.unary()?;
                self.depth -= 1;
                Some(match op {
                    "-" => (value.wrapping_neg(), unsigned),
                    "~" => (!value, unsigned),
                    "!" => (i64::from(value == 0), false),
                    _ => (value, unsigned),
                })
            }
            TokenKind::Punct("(") => {
                let value = self.ternary()?;
                if self.punct() != Some(")") {
                    return self.error(token.span, "expected ')' in preprocessor expression");
                }
                self.at += 1;
                Some(value)
            }
            _ => self.error(token.span, "invalid token at start of a preprocessor expression"),
        }
    }
}
