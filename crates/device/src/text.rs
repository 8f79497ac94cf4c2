//! Words for messages. AetherCL does not depend on netcl and has its own copy.

/// Formats a number with its noun, given in the singular: `1 finding`, `2 findings`, `0 axes`.
pub fn counted(n: impl TryInto<u64>, noun: &str) -> String {
    // A number that does not fit in 64 bits is negative, which no count can be.
    let n = n.try_into().unwrap_or_default();
    if n == 1 { format!("1 {noun}") } else { format!("{n} {}", plural(noun)) }
}

/// Returns the plural. In a phrase of several words only the last changes: `simulated device`.
fn plural(noun: &str) -> String {
    let consonant = |c: char| !"aeiou".contains(c);
    if let Some(stem) = noun.strip_suffix("axis") {
        return format!("{stem}axes");
    }
    if let Some(stem) = noun.strip_suffix('y')
        && stem.ends_with(consonant)
    {
        return format!("{stem}ies");
    }
    let sibilant = ["s", "x", "ch", "sh"].iter().any(|end| noun.ends_with(end));
    format!("{noun}{}", if sibilant { "es" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_the_rest_are_plural() {
        assert_eq!(counted(1u64, "finding"), "1 finding");
        assert_eq!(counted(0usize, "finding"), "0 findings");
        let two = |noun| counted(2u32, noun);
        assert_eq!(
            ["entry", "axis", "batch", "key", "index", "class", "simulated device"].map(two),
            ["2 entries", "2 axes", "2 batches", "2 keys", "2 indexes", "2 classes", "2 simulated devices"]
        );
    }
}
