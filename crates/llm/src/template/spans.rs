//! Marks around the output of generation blocks.

use std::ops::Range;

/// Characters before and after the output of a block. They are for private use and are in no vocabulary.
pub(super) const OPEN: char = '\u{10fffc}';
pub(super) const CLOSE: char = '\u{10fffd}';

/// Removes the marks; returns the text and the byte ranges between them. `None` if marks are not in pairs.
pub(super) fn unmarked(text: &str) -> Option<(String, Vec<Range<usize>>)> {
    let (mut out, mut ranges, mut open) = (String::with_capacity(text.len()), Vec::new(), None);
    for c in text.chars() {
        match (c, open) {
            (OPEN, None) => open = Some(out.len()),
            (CLOSE, Some(start)) => {
                ranges.push(start..out.len());
                open = None;
            }
            (OPEN | CLOSE, _) => return None,
            _ => out.push(c),
        }
    }
    open.is_none().then_some((out, ranges))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_removed_in_pairs() {
        let text = |parts: &[&str]| parts.concat().replace('<', "\u{10fffc}").replace('>', "\u{10fffd}");
        assert_eq!(unmarked(&text(&["a<é>b<>"])), Some(("aéb".into(), vec![1..3, 4..4])));
        assert_eq!(unmarked("plain"), Some(("plain".into(), vec![])));
        for wrong in ["<", "a>", "<<>>", "<a<b>"] {
            assert_eq!(unmarked(&text(&[wrong])), None, "{wrong}");
        }
    }
}
