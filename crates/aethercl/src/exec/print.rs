//! `printf`.

use super::bytecode::{MemType, Reg};
use super::group::Group;
use crate::hir::FormatPiece;
use crate::memory::address;

/// Maximum length of a `%s` argument.
const MAX_TEXT: usize = 4096;
/// Maximum output of a group; devices have a buffer of about this size for all groups.
const MAX_PRINTED: usize = 1 << 20;

impl Group<'_> {
    pub(super) fn print(&mut self, format: &[FormatPiece], values: &[Reg]) {
        let lanes: Vec<usize> = self.mask.lanes().collect();
        for lane in lanes {
            if self.printed.len() > MAX_PRINTED {
                return;
            }
            let mut at = 0;
            let mut out: Vec<u8> = Vec::new();
            for piece in format {
                match piece {
                    FormatPiece::Text(text) => out.extend(text),
                    FormatPiece::Value { lanes: n, .. } => {
                        for i in 0..usize::from(*n) {
                            if i > 0 {
                                out.push(b',');
                            }
                            let Some(reg) = values.get(at) else { break };
                            let bits = self.lane_value(*reg, lane);
                            out.extend(self.format(piece, bits, lane).bytes());
                            at += 1;
                        }
                    }
                }
            }
            self.printed.push_str(&String::from_utf8_lossy(&out));
            if self.printed.len() > MAX_PRINTED {
                self.printed.push_str("\n[a work-group printed more than 1 MiB: the rest is left out]\n");
            }
        }
    }

    fn format(&self, piece: &FormatPiece, bits: u64, lane: usize) -> String {
        let FormatPiece::Value { flags, width, precision, size, conversion, lanes } = piece else {
            return String::new();
        };
        let has = |c: char| flags.contains(c);
        let digits = match conversion {
            b's' => self.text(bits, lane),
            b'c' => (bits as u8 as char).to_string(),
            b'p' => format!("{bits:#x}"),
            b'd' | b'i' => {
                let value = match size {
                    1 => i64::from(bits as i8),
                    2 => i64::from(bits as i16),
                    4 => i64::from(bits as i32),
                    _ => bits as i64,
                };
                sign(value < 0, has('+'), has(' ')) + &at_least(value.unsigned_abs().to_string(), *precision)
            }
            b'u' | b'o' | b'x' | b'X' => {
                let value = if *size >= 8 { bits } else { bits & (u64::MAX >> (64 - 8 * u32::from(*size))) };
                unsigned(value, *conversion, has('#'), *precision)
            }
            _ => {
                // A scalar float was promoted to a double; a vector keeps its type.
                let value = if *lanes > 1 && *size <= 4 {
                    f64::from(f32::from_bits(bits as u32))
                } else {
                    f64::from_bits(bits)
                };
                sign(value.is_sign_negative() && !value.is_nan(), has('+'), has(' '))
                    + &float(value.abs(), *conversion, *precision, has('#'))
            }
        };
        let number = !matches!(conversion, b's' | b'c' | b'p');
        pad(
            digits,
            width.unwrap_or(0) as usize,
            has('-'),
            has('0') && number && (precision.is_none() || is_float(*conversion)),
        )
    }

    fn text(&self, at: u64, lane: usize) -> String {
        let bytes = (0..MAX_TEXT as u64).map(|i| self.read_lane(at.wrapping_add(i), MemType::U8, lane) as u8);
        let known = address::space(at) != address::PointerSpace::Global || at != 0;
        let text: Vec<u8> = bytes.take_while(|b| *b != 0).collect();
        if known { String::from_utf8_lossy(&text).into_owned() } else { "(null)".to_string() }
    }
}

fn is_float(conversion: u8) -> bool {
    matches!(conversion, b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A')
}

fn sign(negative: bool, plus: bool, space: bool) -> String {
    match (negative, plus, space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    }
    .to_string()
}

fn at_least(digits: String, precision: Option<u32>) -> String {
    let missing = (precision.unwrap_or(1) as usize).saturating_sub(digits.len());
    "0".repeat(missing) + &digits
}

fn unsigned(value: u64, conversion: u8, alternate: bool, precision: Option<u32>) -> String {
    let digits = match conversion {
        b'o' => format!("{value:o}"),
        b'x' => format!("{value:x}"),
        b'X' => format!("{value:X}"),
        _ => value.to_string(),
    };
    let prefix = match conversion {
        b'o' if alternate => "0",
        b'x' if alternate && value != 0 => "0x",
        b'X' if alternate && value != 0 => "0X",
        _ => "",
    };
    prefix.to_string() + &at_least(digits, precision)
}

/// Formats a float that is not negative, in C format.
fn float(value: f64, conversion: u8, precision: Option<u32>, alternate: bool) -> String {
    let upper = conversion.is_ascii_uppercase();
    let digits = precision.unwrap_or(6) as usize;
    let text = if value.is_nan() {
        "nan".to_string()
    } else if value.is_infinite() {
        "inf".to_string()
    } else {
        match conversion.to_ascii_lowercase() {
            b'f' => format!("{value:.digits$}"),
            b'e' => exponential(value, digits),
            b'g' => general(value, digits.max(1), alternate),
            _ => hexadecimal(value, precision),
        }
    };
    if upper { text.to_uppercase() } else { text }
}

fn exponential(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let number: i32 = exponent.parse().unwrap_or(0);
    format!("{mantissa}e{}{:02}", if number < 0 { '-' } else { '+' }, number.abs())
}

fn general(value: f64, digits: usize, alternate: bool) -> String {
    let text = exponential(value, digits - 1);
    let exponent: i32 = text.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |t: &str| {
        if alternate || !t.contains('.') {
            t.to_string()
        } else {
            t.trim_end_matches('0').trim_end_matches('.').to_string()
        }
    };
    if exponent < -4 || exponent >= digits as i32 {
        let (mantissa, rest) = text.split_once('e').unwrap_or((&text, ""));
        format!("{}e{rest}", trim(mantissa))
    } else {
        let places = (digits as i32 - 1 - exponent).max(0) as usize;
        trim(&format!("{value:.places$}"))
    }
}

fn hexadecimal(value: f64, precision: Option<u32>) -> String {
    let bits = value.to_bits();
    let (exponent, mut fraction) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
    let (mut lead, power) = match (exponent, fraction) {
        (0, 0) => (0, 0),
        (0, _) => (0, -1022),
        (e, _) => (1, e - 1023),
    };
    let mut digits = format!("{fraction:013x}");
    match precision {
        None => digits = digits.trim_end_matches('0').to_string(),
        Some(p) if p < 13 => {
            let drop = 52 - 4 * p;
            let (rest, half) = (fraction & ((1 << drop) - 1), 1u64 << (drop - 1));
            fraction >>= drop;
            let odd = if p == 0 { lead & 1 } else { fraction & 1 };
            if rest > half || (rest == half && odd == 1) {
                fraction += 1;
            }
            lead += fraction >> (4 * p);
            fraction &= (1u64 << (4 * p)) - 1;
            digits = if p == 0 { String::new() } else { format!("{fraction:0width$x}", width = p as usize) };
        }
        Some(p) => digits += &"0".repeat(p as usize - 13),
    }
    let point = if digits.is_empty() { "" } else { "." };
    format!("0x{lead}{point}{digits}p{power:+}")
}

fn pad(text: String, width: usize, left: bool, zeros: bool) -> String {
    let missing = width.saturating_sub(text.chars().count());
    if left {
        return text + &" ".repeat(missing);
    }
    if zeros && !text.ends_with(['n', 'f', 'N', 'F']) {
        let start = text.len() - text.trim_start_matches(['+', '-', ' ']).len();
        return format!("{}{}{}", &text[..start], "0".repeat(missing), &text[start..]);
    }
    " ".repeat(missing) + &text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_c() {
        assert_eq!(float(1.5, b'f', None, false), "1.500000");
        assert_eq!(float(12345.678, b'e', Some(2), false), "1.23e+04");
        assert_eq!(float(0.0001, b'g', None, false), "0.0001");
        assert_eq!(float(1e-5, b'g', None, false), "1e-05");
        assert_eq!(float(1e6, b'g', None, false), "1e+06");
        assert_eq!(float(100_000.0, b'g', None, false), "100000");
        assert_eq!(float(1.0, b'a', None, false), "0x1p+0");
        assert_eq!(float(0.1, b'a', Some(3), false), "0x1.99ap-4");
        assert_eq!(pad("-1.5".into(), 8, false, true), "-00001.5");
    }
}
