//! Numbers of bytes with units, as in flags and variables.

/// Parses `512`, `16M`, `20G`, `1.5GiB`.
pub fn parse_bytes(text: &str) -> std::result::Result<u64, String> {
    let lower = text.trim().to_lowercase();
    let lower = lower.trim_end_matches('b').trim_end_matches('i');
    let (number, factor) = match lower.char_indices().last() {
        Some((at, 'k')) => (&lower[..at], 1u64 << 10),
        Some((at, 'm')) => (&lower[..at], 1 << 20),
        Some((at, 'g')) => (&lower[..at], 1 << 30),
        _ => (lower, 1),
    };
    let number: Option<f64> = number.trim().parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    number
        .map(|n| (n * factor as f64) as u64)
        .ok_or_else(|| format!("expected bytes such as 512M or 20G, found {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(
            (parse_bytes("512"), parse_bytes("16M"), parse_bytes("1.5GiB")),
            (Ok(512), Ok(16 << 20), Ok(3 << 29))
        );
        assert!(parse_bytes("x").is_err() && parse_bytes("-1G").is_err() && parse_bytes("").is_err());
    }
}
