//! The expected result of a case, compared line by line.
//!
//! ```text
//! build fails:
//! case.cl:2:12: error: …        the whole log as a compiler prints it
//! ```
//! or
//! ```text
//! out: 1 2 3                    a buffer's contents
//! sums ~1e-6: 0.5 0.25          floats that may differ by this part of their value
//! prints: text                  one line of what the kernel printed
//! finding: race 4:12 …          a check's finding
//! ```

/// Describes the differences of two references.
pub fn compare(expected: &str, actual: &str) -> Result<(), String> {
    let (wanted, got): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), actual.lines().collect());
    for i in 0..wanted.len().max(got.len()) {
        let (w, g) =
            (wanted.get(i).copied().unwrap_or("(nothing)"), got.get(i).copied().unwrap_or("(nothing)"));
        if !same_line(w, g) {
            return Err(format!("  line {}\n  expected: {w}\n  got:      {g}", i + 1));
        }
    }
    Ok(())
}

/// `name ~tolerance: values` against `name: values`.
fn same_line(wanted: &str, got: &str) -> bool {
    if wanted == got {
        return true;
    }
    let (Some((head, wanted)), Some((name, got))) = (wanted.split_once(": "), got.split_once(": ")) else {
        return false;
    };
    let Some((wanted_name, tolerance)) = head.split_once(" ~") else { return false };
    let Ok(tolerance) = tolerance.parse::<f64>() else { return false };
    let (wanted, got): (Vec<&str>, Vec<&str>) = (wanted.split(' ').collect(), got.split(' ').collect());
    let close = |(w, g): (&&str, &&str)| match (w.parse::<f64>(), g.parse::<f64>()) {
        (Ok(w), Ok(g)) => {
            w == g || (w - g).abs() <= tolerance * w.abs().max(f64::MIN_POSITIVE) || w.is_nan() && g.is_nan()
        }
        _ => w == g,
    };
    wanted_name == name && wanted.len() == got.len() && wanted.iter().zip(&got).all(close)
}
