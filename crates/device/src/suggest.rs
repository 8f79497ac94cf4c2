//! "Did you mean …?": suggests the name that was probably meant.

use strsim::osa_distance;

/// Returns the known name that is nearest to `name`. It differs in few letters for its length, or it is the only one that starts with `name`. Case is
/// ignored.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_lowercase();
    let known: Vec<(usize, &str)> =
        known.into_iter().map(|known| (osa_distance(&name, &known.to_lowercase()), known)).collect();
    let (edits, near) = known.iter().copied().min_by_key(|(edits, _)| *edits)?;
    if edits <= 1.max(name.chars().count() / 3) {
        return Some(near);
    }
    let mut longer =
        known.iter().filter(|(_, known)| name.len() > 1 && known.to_lowercase().starts_with(&name));
    longer.next().filter(|_| longer.next().is_none()).map(|(_, known)| *known)
}

/// Returns the suffix `; did you mean …?` for a message, or an empty string.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_was_probably_meant() {
        let names = ["constant", "linear", "cosine"];
        for (typed, meant) in [
            ("cosin", Some("cosine")),
            ("Cosine", Some("cosine")),
            ("lineer", Some("linear")),
            ("lienar", Some("linear")),
            ("con", Some("constant")),
            ("zigzag", None),
            ("", None),
            ("c", None),
        ] {
            assert_eq!(nearest(typed, names), meant, "{typed}");
        }
        assert_eq!(nearest("co", names), None, "two begin with it");
        assert_eq!(did_you_mean("pocl0", ["pocl:0", "sim"]), "; did you mean pocl:0?");
        assert_eq!(did_you_mean("nowhere:7", ["pocl:0"]), "");
    }
}
