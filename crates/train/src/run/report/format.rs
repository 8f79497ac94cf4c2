//! Formatting of numbers, and escaping of text for HTML.

/// Returns `text` with HTML's special characters escaped.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Other control characters are not allowed in HTML and XML.
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Formats `1234567` as `1,234,567`.
pub(super) fn integer(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats three digits and an SI letter: `31.1k`.
pub(super) fn short(value: f64) -> String {
    let (scale, letter) = match value.abs() {
        v if v >= 1e12 => (1e12, "T"),
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    format!("{}{letter}", three_digits(value / scale))
}

/// Formats bytes: `1.5 GiB`.
pub(super) fn bytes(value: f64) -> String {
    let (scale, unit) = byte_scale(value);
    format!("{} {unit}", three_digits(value / scale))
}

/// Returns the unit in which `value` bytes have one to four digits.
pub(super) fn byte_scale(value: f64) -> (f64, &'static str) {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let found = units.into_iter().find(|(scale, _)| value >= *scale as f64);
    found.map_or((1.0, "B"), |(scale, unit)| (scale as f64, unit))
}

/// Formats a duration: `2 min 51 s`, `36 ms`, `0.4 ms`.
pub(super) fn duration(seconds: f64) -> String {
    if seconds > 0.0 && seconds < 0.1 {
        return format!("{} ms", three_digits(seconds * 1e3));
    }
    let whole = seconds.max(0.0).round() as u64;
    match (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60) {
        (0, 0, 0, _) if seconds < 10.0 => format!("{} s", three_digits(seconds)),
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, min, s) => format!("{min} min {s} s"),
        (0, h, min, _) => format!("{h} h {min} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
}

/// Formats a number below 1000 with three significant digits, without trailing zeros.
pub(super) fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    if decimals == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}
