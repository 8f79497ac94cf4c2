//! Command lines that can be pasted into a shell, and text that is safe on a terminal.

pub use netcl::device::{quote, quote_path as path};
use std::borrow::Cow;

/// Returns this program's name as it was called, so that pasted commands run.
pub fn program() -> String {
    std::env::args_os()
        .next()
        .filter(|name| !name.is_empty())
        .map_or_else(|| "netcl".into(), |name| quote(&name))
}

/// Replaces everything that a terminal interprets by its numbers: control characters except line ends and tabs, and marks that reverse the direction
/// of text.
pub fn printable(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| {
        c.is_control() && c != '\n' && c != '\t'
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(obeyed) {
        return text.into();
    }
    let shown = |c: char| if obeyed(c) { c.escape_unicode().to_string() } else { c.to_string() };
    text.chars().map(shown).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_a_text_do_not_reach_the_terminal() {
        let evil = "\x1b]0;title\x07 \u{9b}31m \r\x08 \u{202e}abc\u{2066}\x7f";
        let shown = printable(evil);
        assert!(
            !shown.chars().any(|c| c.is_control() || ('\u{202a}'..='\u{2069}').contains(&c)),
            "{shown:?}"
        );
        assert!(shown.contains(r"\u{1b}]0;title\u{7}") && shown.contains(r"\u{202e}abc"), "{shown}");
        assert!(matches!(printable("line\n\tü 字 🙂"), Cow::Borrowed(_)));
    }
}
