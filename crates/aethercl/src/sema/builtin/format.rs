//! `printf`: parses the format here, so that execution only prints.

use super::super::{Sema, fold};
use crate::hir::{Expr, ExprKind, FormatPiece};
use crate::lex::parse_text;
use crate::parse::ast;
use crate::source::Span;
use crate::types::{INT, Scalar, Type};

impl Sema<'_> {
    /// Analyzes a call of `printf`.
    pub(super) fn printf(&mut self, asts: &[ast::Expr], args: Vec<Expr>, span: Span) -> Option<Expr> {
        let Some(ast::ExprKind::Text(texts)) = asts.first().map(|a| &a.kind) else {
            return self.error(span, "the format of 'printf' must be a string literal");
        };
        let mut bytes = Vec::new();
        for text in texts {
            match parse_text(self.text(*text)) {
                Ok(more) => bytes.extend(more),
                Err(why) => return self.error(span, why),
            }
        }
        let format = match pieces(&bytes) {
            Ok(format) => format,
            Err(why) => return self.error(asts[0].span, why),
        };
        let wanted = format.iter().filter(|p| matches!(p, FormatPiece::Value { .. })).count();
        let have = args.len() - 1;
        if have < wanted {
            return self.error(span, format!("'printf' format takes {wanted} arguments, have {have}"));
        }
        let values = format.iter().filter_map(|p| match p {
            FormatPiece::Value { conversion, lanes, .. } => Some((*conversion, *lanes)),
            FormatPiece::Text(_) => None,
        });
        let values: Vec<(u8, u8)> = values.collect();
        let mut converted = Vec::with_capacity(wanted);
        for ((conversion, lanes), arg) in values.into_iter().zip(args.into_iter().skip(1)) {
            converted.push(self.printf_argument(conversion, lanes, arg)?);
        }
        Some(Expr { kind: ExprKind::Printf { format, args: converted }, ty: INT, span })
    }

    /// Returns an argument promoted, and checked against its conversion.
    fn printf_argument(&mut self, conversion: u8, lanes: u8, arg: Expr) -> Option<Expr> {
        let span = arg.span;
        let name = self.type_name(arg.ty);
        let letter = char::from(conversion);
        let wrong = format!("'printf' conversion '%{letter}' does not fit argument of type '{name}'");
        match conversion {
            b'p' if arg.ty.is_pointer() => return Some(arg),
            b's' if self
                .types
                .pointee(arg.ty)
                .is_some_and(|p| p.to.element().is_some_and(|s| s.size() == 1)) =>
            {
                return Some(arg);
            }
            b'p' | b's' => return self.error(span, wrong),
            _ => {}
        }
        let Some(element) = arg.ty.element().filter(|_| arg.ty.lanes() == lanes) else {
            return self.error(span, wrong);
        };
        let floats = matches!(conversion.to_ascii_lowercase(), b'a' | b'e' | b'f' | b'g');
        if floats != element.is_float() {
            return self.error(span, wrong);
        }
        match arg.ty {
            Type::Scalar(Scalar::F16 | Scalar::F32) => Some(fold::convert(arg, Type::Scalar(Scalar::F64))),
            _ => Some(self.promote(arg)),
        }
    }
}

/// Returns a format's pieces.
fn pieces(bytes: &[u8]) -> Result<Vec<FormatPiece>, String> {
    let mut out = Vec::new();
    let mut text = Vec::new();
    let mut rest = bytes;
    while let Some((c, tail)) = rest.split_first() {
        rest = tail;
        if *c != b'%' {
            text.push(*c);
            continue;
        }
        if rest.first() == Some(&b'%') {
            text.push(b'%');
            rest = &rest[1..];
            continue;
        }
        let (piece, after) = conversion(rest)?;
        if !text.is_empty() {
            out.push(FormatPiece::Text(std::mem::take(&mut text)));
        }
        out.push(piece);
        rest = after;
    }
    if !text.is_empty() {
        out.push(FormatPiece::Text(text));
    }
    Ok(out)
}

/// Parses one conversion after its `%`, and returns the rest.
fn conversion(bytes: &[u8]) -> Result<(FormatPiece, &[u8]), String> {
    let mut rest = bytes;
    let mut flags = String::new();
    while let Some((c @ (b'-' | b'+' | b' ' | b'#' | b'0'), tail)) = rest.split_first() {
        flags.push(char::from(*c));
        rest = tail;
    }
    let width;
    (width, rest) = digits(rest)?;
    let mut precision = None;
    if let Some((b'.', tail)) = rest.split_first() {
        let (number, after) = digits(tail)?;
        (precision, rest) = (Some(number.unwrap_or(0)), after);
    }
    let mut lanes = 1;
    if let Some((b'v', tail)) = rest.split_first() {
        let (number, after) = digits(tail)?;
        lanes = number
            .filter(|n| matches!(n, 2 | 3 | 4 | 8 | 16))
            .ok_or("invalid vector width in 'printf' format")? as u8;
        rest = after;
    }
    let (mut size, skip) = match rest {
        [b'h', b'h', ..] => (1, 2),
        [b'h', b'l', ..] => (4, 2),
        [b'h', ..] => (2, 1),
        [b'l', b'l', ..] => (8, 2),
        [b'l' | b'z' | b't' | b'j', ..] => (8, 1),
        _ => (4, 0),
    };
    rest = &rest[skip..];
    let Some((conversion, tail)) = rest.split_first() else {
        return Err("incomplete 'printf' format".into());
    };
    if !b"diouxXfFeEgGaAcsp".contains(conversion) {
        return Err(format!("invalid conversion '%{}' in 'printf' format", char::from(*conversion)));
    }
    if matches!(conversion, b'p') {
        size = 8;
    }
    let piece = FormatPiece::Value { flags, width, precision, lanes, size, conversion: *conversion };
    Ok((piece, tail))
}

fn digits(bytes: &[u8]) -> Result<(Option<u32>, &[u8]), String> {
    let len = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    if bytes.first() == Some(&b'*') {
        return Err("'*' in a 'printf' format is not allowed in OpenCL C".into());
    }
    if len == 0 {
        return Ok((None, bytes));
    }
    // Larger field widths would only fill memory.
    let number =
        std::str::from_utf8(&bytes[..len]).ok().and_then(|t| t.parse::<u32>().ok()).filter(|n| *n <= 1024);
    Ok((Some(number.ok_or("number too large in 'printf' format")?), &bytes[len..]))
}
