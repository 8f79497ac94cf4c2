//! The HTML page: one self-contained file.

/// The page without data.
const PAGE: &str = include_str!("page.html");
/// Placeholder for the data.
const PLACE: &str = "{{data}}";

/// Returns the page of a report, given as the JSON text of a [`RunReport`](super::RunReport).
///
/// The text is in an element that browsers do not execute. Nothing in it can end that element, because every `<` is written as its JSON escape. This
/// is possible because JSON contains that character only in strings.
pub fn page(json: &str) -> String {
    let (before, after) = PAGE.split_once(PLACE).unwrap_or((PAGE, ""));
    let mut out = String::with_capacity(PAGE.len() + json.len() + 64);
    out.push_str(before);
    for c in json.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
    }
    out.push_str(after);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_leave_its_element_and_nothing_comes_from_outside() {
        let text = page(r#"{"title":"</script><script>alert(1)</script><!--"}"#);
        assert!(text.contains(r#"{"title":"\u003c/script>\u003cscript>alert(1)\u003c/script>\u003c!--"}"#));
        assert_eq!(text.matches("</script>").count(), PAGE.matches("</script>").count());
        assert!(!text.contains(PLACE));
        for outside in ["src=", "href=\"http", "@import", "eval(", "new Function", "innerHTML", "fetch("] {
            assert!(!PAGE.contains(outside), "{outside}");
        }
        assert_eq!(PAGE.matches("url(").count(), PAGE.matches("url(#").count());
    }
}
