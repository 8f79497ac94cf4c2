//! "Did you mean": the name nearest to a mistyped one.

/// Returns `; did you mean 'x'?` with the candidate that needs the fewest edits, or an empty string if all are too different.
pub(crate) fn did_you_mean<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    // A third of the letters may differ, the same as in clang.
    let most = (word.len() / 3).min(3);
    let near = candidates.filter(|c| c.len().abs_diff(word.len()) <= most);
    let best =
        near.map(|c| (edits(word.as_bytes(), c.as_bytes()), c)).filter(|(d, _)| *d > 0 && *d <= most).min();
    best.map_or(String::new(), |(_, c)| format!("; did you mean '{c}'?"))
}

/// Returns the number of letters to insert, delete, replace, or swap with the next one.
fn edits(a: &[u8], b: &[u8]) -> usize {
    // For longer names, the quadratic cost is not worthwhile.
    if a.len().max(b.len()) > 64 {
        return usize::MAX;
    }
    let width = b.len() + 1;
    let mut table: Vec<usize> = (0..(a.len() + 1) * width).map(|i| if i < width { i } else { 0 }).collect();
    for i in 1..=a.len() {
        table[i * width] = i;
        for j in 1..width {
            let differs = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (table[(i - 1) * width + j - 1] + differs)
                .min(table[(i - 1) * width + j] + 1)
                .min(table[i * width + j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(table[(i - 2) * width + j - 2] + 1);
            }
            table[i * width + j] = best;
        }
    }
    table[a.len() * width + b.len()]
}
