//! Values of numbers, characters and strings.

use crate::types::Scalar;

/// A number's value and type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// An integer as bits.
    Int(u64, Scalar),
    /// A floating constant, rounded to its type.
    Float(f64, Scalar),
}

/// Returns the value of a number in source form. A floating constant without suffix is `default_float`.
///
/// # Errors
/// The problem, as the end of a message.
pub fn parse_number(text: &str, default_float: Scalar) -> Result<Number, String> {
    let lower = text.to_ascii_lowercase();
    let hex = lower.starts_with("0x");
    let is_float = lower.contains('.') || if hex { lower.contains('p') } else { lower.contains('e') };
    if is_float {
        return parse_float(&lower, hex, default_float)
            .ok_or_else(|| format!("invalid floating constant '{text}'"));
    }
    parse_integer(&lower).map_err(|why| format!("{why} '{text}'"))
}

fn parse_integer(lower: &str) -> Result<Number, &'static str> {
    let (digits, radix) = match lower.strip_prefix("0x") {
        Some(hex) => (hex, 16),
        None => match lower.strip_prefix("0b") {
            Some(bits) => (bits, 2),
            None if lower.len() > 1 && lower.starts_with('0') => (&lower[1..], 8),
            None => (lower, 10),
        },
    };
    let split = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let (digits, suffix) = digits.split_at(split);
    let leading_zero_only = lower.starts_with('0') && radix == 8;
    if digits.is_empty() && !leading_zero_only {
        return Err("invalid integer constant");
    }
    let value = if digits.is_empty() { Ok(0) } else { u64::from_str_radix(digits, radix) };
    let value = value.map_err(|_| "integer constant too large for any type:")?;
    // OpenCL C reserves `long long`; compilers accept its suffixes for `long`, which has the same number of bits.
    let (unsigned, long) = match suffix {
        "" => (false, false),
        "u" => (true, false),
        "l" | "ll" => (false, true),
        "ul" | "lu" | "ull" | "llu" => (true, true),
        _ => return Err("invalid suffix on integer constant"),
    };
    // The first type of the list that can hold it; decimal constants do not become unsigned automatically.
    let fits = |t: Scalar| match t {
        Scalar::I32 => value <= i32::MAX as u64,
        Scalar::U32 => value <= u64::from(u32::MAX),
        Scalar::I64 => value <= i64::MAX as u64,
        _ => true,
    };
    let allowed = |t: Scalar| {
        let is_unsigned = matches!(t, Scalar::U32 | Scalar::U64);
        let is_long = matches!(t, Scalar::I64 | Scalar::U64);
        (is_long || !long)
            && if unsigned { is_unsigned } else { !is_unsigned || radix != 10 || t == Scalar::U64 }
    };
    let order = [Scalar::I32, Scalar::U32, Scalar::I64, Scalar::U64];
    let ty = order.into_iter().find(|t| allowed(*t) && fits(*t)).unwrap_or(Scalar::U64);
    Ok(Number::Int(value, ty))
}

fn parse_float(lower: &str, hex: bool, default_float: Scalar) -> Option<Number> {
    // In hexadecimal, 'f' is a digit until the exponent, which such a constant must have.
    let body = if hex { &lower[lower.find('p')?..] } else { lower };
    let (cut, ty) = match body.as_bytes().last()? {
        b'f' => (1, Scalar::F32),
        b'h' => (1, Scalar::F16),
        b'l' => (1, Scalar::F64),
        _ => (0, default_float),
    };
    let digits = &lower[..lower.len() - cut];
    let value = if hex { parse_hex_float(digits)? } else { parse_decimal(digits, ty)? };
    Some(Number::Float(round_to(value, ty), ty))
}

/// Parses decimal digits to the nearest value of the type; `float` is parsed directly, because rounding twice could be off by one bit.
fn parse_decimal(digits: &str, ty: Scalar) -> Option<f64> {
    let ok = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | '+' | '-');
    if !digits.chars().all(ok) || digits.ends_with(['e', '+', '-']) {
        return None;
    }
    match ty {
        Scalar::F32 => digits.parse::<f32>().ok().map(f64::from),
        _ => digits.parse::<f64>().ok(),
    }
}

/// Parses `0x1.8p3`: digits beyond the 60th bit only count as nonzero, which suffices for rounding.
fn parse_hex_float(text: &str) -> Option<f64> {
    let (mantissa, exponent) = text.strip_prefix("0x")?.split_once('p')?;
    let mut exponent: i64 = exponent.parse().ok()?;
    let (mut bits, mut digits, mut after_point) = (0u64, 0, false);
    for c in mantissa.chars() {
        if c == '.' && !after_point {
            after_point = true;
            continue;
        }
        let d = u64::from(c.to_digit(16)?);
        digits += 1;
        if bits >> 56 == 0 {
            bits = bits << 4 | d;
            exponent = exponent.saturating_sub(if after_point { 4 } else { 0 });
        } else {
            bits |= u64::from(d != 0);
            exponent = exponent.saturating_add(if after_point { 0 } else { 4 });
        }
    }
    if digits == 0 {
        return None;
    }
    Some(scale(bits as f64, exponent.clamp(-5000, 5000) as i32))
}

/// Computes `x · 2^e` in steps that stay normal as long as the result is normal.
fn scale(mut x: f64, mut e: i32) -> f64 {
    while e > 0 && x != 0.0 && x.is_finite() {
        let step = e.min(1000);
        x *= 2f64.powi(step);
        e -= step;
    }
    while e < 0 && x != 0.0 {
        let step = (-e).min(900);
        x /= 2f64.powi(step);
        e += step;
    }
    x
}

/// Returns the nearest value of a floating type.
pub fn round_to(value: f64, ty: Scalar) -> f64 {
    match ty {
        Scalar::F32 => f64::from(value as f32),
        Scalar::F16 => round_to_half(value),
        _ => value,
    }
}

/// Returns the nearest `half`, ties to even; infinity beyond 65,520.
fn round_to_half(value: f64) -> f64 {
    if !value.is_finite() || value == 0.0 {
        return value;
    }
    let exponent = (value.abs().to_bits() >> 52) as i32 - 1023;
    // Halves have 10 bits after the leading one down to 2^-14, and no bit below 2^-24.
    let unit = 2f64.powi((exponent - 10).max(-24));
    let rounded = (value / unit).round_ties_even() * unit;
    if rounded.abs() > 65504.0 { f64::INFINITY.copysign(value) } else { rounded }
}

/// Returns the value of a character constant with its quotes: an `int`.
///
/// # Errors
/// The problem, as a message.
pub fn parse_char(text: &str) -> Result<i64, String> {
    let bytes = parse_quoted(text)?;
    match bytes[..] {
        [] => Err("empty character constant".into()),
        [one] => Ok(i64::from(one as i8)),
        _ => Err("character constant too long".into()),
    }
}

/// Returns the bytes of a string literal with its quotes, without the final zero.
///
/// # Errors
/// The problem, as a message.
pub fn parse_text(text: &str) -> Result<Vec<u8>, String> {
    parse_quoted(text)
}

fn parse_quoted(text: &str) -> Result<Vec<u8>, String> {
    let inner = text.as_bytes().get(1..text.len().saturating_sub(1)).unwrap_or(&[]);
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let [first, tail @ ..] = rest {
        if *first == b'\\' {
            rest = escape(tail, &mut bytes)?;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    Ok(bytes)
}

/// Parses one escape sequence without its backslash; returns the rest.
fn escape<'a>(rest: &'a [u8], bytes: &mut Vec<u8>) -> Result<&'a [u8], String> {
    let Some((c, tail)) = rest.split_first() else { return Err("unfinished escape sequence".into()) };
    let plain = match c {
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'a' => 7,
        b'b' => 8,
        b'f' => 12,
        b'v' => 11,
        b'\\' | b'\'' | b'"' | b'?' => *c,
        b'0'..=b'7' | b'x' => return numeric_escape(rest, bytes),
        other => return Err(format!("unknown escape sequence '\\{}'", char::from(*other))),
    };
    bytes.push(plain);
    Ok(tail)
}

fn numeric_escape<'a>(rest: &'a [u8], bytes: &mut Vec<u8>) -> Result<&'a [u8], String> {
    let (mut digits, radix, most) = if rest[0] == b'x' { (&rest[1..], 16, usize::MAX) } else { (rest, 8, 3) };
    let (mut value, mut count) = (0u32, 0);
    while let Some((c, tail)) = digits.split_first()
        && let Some(d) = char::from(*c).to_digit(radix)
        && count < most
    {
        value = value.saturating_mul(radix).saturating_add(d);
        (digits, count) = (tail, count + 1);
    }
    if count == 0 {
        return Err("\\x used with no following hex digits".into());
    }
    if value > 255 {
        return Err("escape sequence out of range".into());
    }
    bytes.push(value as u8);
    Ok(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(text: &str) -> f64 {
        match parse_number(text, Scalar::F64) {
            Ok(Number::Float(value, _)) => value,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn integer(text: &str) -> (u64, Scalar) {
        match parse_number(text, Scalar::F64) {
            Ok(Number::Int(bits, ty)) => (bits, ty),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn integers_have_the_first_type_that_holds_them() {
        assert_eq!(integer("2147483647"), (2147483647, Scalar::I32));
        assert_eq!(integer("2147483648"), (2147483648, Scalar::I64));
        assert_eq!(integer("0x80000000"), (0x8000_0000, Scalar::U32));
        assert_eq!(integer("4294967296u"), (1 << 32, Scalar::U64));
        assert_eq!(integer("0xffffffffffffffff"), (u64::MAX, Scalar::U64));
        assert_eq!(integer("017"), (15, Scalar::I32));
        assert_eq!(integer("0"), (0, Scalar::I32));
        assert_eq!(integer("1UL"), (1, Scalar::U64));
    }

    #[test]
    fn floats_are_rounded_once() {
        assert_eq!(float("0.1f"), f64::from(0.1f32));
        assert_eq!(float("0.1"), 0.1);
        assert_eq!(float("0x1.fffffep127f"), f64::from(f32::MAX));
        assert_eq!(float("0x1p-149f"), f64::from(f32::from_bits(1)));
        // Halfway between two floats when read as a double: it must not be rounded to double first.
        assert_eq!(float("1.00000005960464477540f"), f64::from(1.000_000_1_f32));
        assert_eq!(float("1e400"), f64::INFINITY);
        assert!(parse_number("1e", Scalar::F64).is_err());
        assert!(parse_number("0x1.8", Scalar::F64).is_err());
        assert!(parse_number("1.0.0", Scalar::F64).is_err());
    }

    #[test]
    fn halves_round_to_even_and_overflow_to_infinity() {
        assert_eq!(round_to(65504.0, Scalar::F16), 65504.0);
        assert_eq!(round_to(65519.9, Scalar::F16), 65504.0);
        assert_eq!(round_to(65520.0, Scalar::F16), f64::INFINITY);
        assert_eq!(round_to(1.0 + 1.0 / 2048.0, Scalar::F16), 1.0);
        assert_eq!(round_to(1.0 + 3.0 / 2048.0, Scalar::F16), 1.0 + 4.0 / 2048.0);
        assert_eq!(round_to(2f64.powi(-25), Scalar::F16), 0.0);
        assert_eq!(round_to(1.5 * 2f64.powi(-25), Scalar::F16), 2f64.powi(-24));
    }

    #[test]
    fn characters_and_texts() {
        assert_eq!(parse_char("'a'"), Ok(97));
        assert_eq!(parse_char("'\\xff'"), Ok(-1));
        assert_eq!(parse_char("'\\0'"), Ok(0));
        assert!(parse_char("'\\x100'").is_err());
        assert_eq!(parse_text("\"a\\tb\\101\""), Ok(b"a\tbA".to_vec()));
    }
}
