//! Changes to the text of a template before the engine reads it. No line moves.
//!
//! `{% generation %}` marks what a model said, for training; nothing is different in the text. The block becomes a condition that always
//! holds, with the white space around it treated as before.
//!
//! What stands to the left of a `+` goes through the filter [`WHOLE`], because the engine joins lists without counting what that costs: a
//! list that is added to itself again and again would have more items than any memory holds.

/// The filter that what stands to the left of a `+` goes through.
pub(super) const WHOLE: &str = "__whole";
/// Words that a `+` behind is a sign of, not a sum.
const WORDS: [&str; 14] = [
    "and",
    "or",
    "not",
    "in",
    "if",
    "else",
    "elif",
    "is",
    "for",
    "set",
    "recursive",
    "with",
    "filter",
    "call",
];

/// The text with both changes.
pub(super) fn rewritten(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("{#") {
            let end = rest.find("#}").map_or(rest.len(), |end| end + 2);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        } else if rest.starts_with("{{") || rest.starts_with("{%") {
            let (tag, length) = tag(rest);
            rest = &rest[length..];
            let raw = word(&tag) == "raw";
            out.push_str(&tag);
            if raw {
                let end = end_of_raw(rest);
                out.push_str(&rest[..end]);
                rest = &rest[end..];
            }
        } else {
            out.push('{');
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    out
}

/// The first word of a tag.
fn word(tag: &str) -> &str {
    let inside = tag.strip_prefix("{%").unwrap_or_default().trim_start_matches(['-', '+']).trim_start();
    inside.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default()
}

/// Where the tag that ends a raw part begins.
fn end_of_raw(text: &str) -> usize {
    let ends = text.match_indices("{%").find(|(at, _)| word(&text[*at..]) == "endraw");
    ends.map_or(text.len(), |(at, _)| at)
}

/// A tag with the changes, and its length in the text.
fn tag(text: &str) -> (String, usize) {
    let close = if text.starts_with("{{") { "}}" } else { "%}" };
    let bytes = text.as_bytes();
    let mut out = String::from(&text[..2]);
    let (mut at, mut depth, mut operand) = (2, 0usize, false);
    // A mark of white space behind the brackets.
    if matches!(bytes.get(2), Some(b'+' | b'-')) {
        out.push(char::from(bytes[2]));
        at = 3;
    }
    while at < text.len() {
        let rest = &text[at..];
        let marked = rest.strip_prefix(['+', '-']).is_some_and(|rest| rest.starts_with(close));
        if depth == 0 && (marked || rest.starts_with(close)) {
            let end = if marked { 3 } else { 2 };
            out.push_str(&rest[..end]);
            at += end;
            break;
        }
        let c = rest.chars().next().unwrap_or_default();
        let length = match c {
            '\'' | '"' => string(rest, c),
            c if c.is_alphanumeric() || c == '_' => {
                rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len())
            }
            _ => c.len_utf8(),
        };
        let piece = &rest[..length];
        if c == '+' && operand {
            out.push('|');
            out.push_str(WHOLE);
            out.push(' ');
        }
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if !c.is_whitespace() {
            let ends = matches!(c, '\'' | '"' | ')' | ']' | '}');
            operand = ends || ((c.is_alphanumeric() || c == '_') && !WORDS.contains(&piece));
        }
        out.push_str(piece);
        at += length;
    }
    match word(&out) {
        "generation" => (out.replacen("generation", "if true", 1), at),
        "endgeneration" => (out.replacen("endgeneration", "endif", 1), at),
        _ => (out, at),
    }
}

/// The length of a string in quotes, which may not end.
fn string(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == quote && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sums_are_changed() {
        let cases = [
            ("a + b {{ a + b }} {# a + b #}", "a + b {{ a |__whole + b }} {# a + b #}"),
            ("{{+ a['+'] + f(1)+'x' +}}", "{{+ a['+'] |__whole + f(1)|__whole +'x' +}}"),
            ("{%- if not +a or b(+1) -%}", "{%- if not +a or b(+1) -%}"),
            ("{{ {'a': {'b': 1}} + x }}+", "{{ {'a': {'b': 1}} |__whole + x }}+"),
            (
                "{% raw %}{{ a + b }}{% endraw %}{{ a+b }}",
                "{% raw %}{{ a + b }}{% endraw %}{{ a|__whole +b }}",
            ),
            ("{{ 'it\\'s' + \"}}\" }}", "{{ 'it\\'s' |__whole + \"}}\" }}"),
            ("{%- generation -%}x{% endgeneration %}", "{%- if true -%}x{% endif %}"),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            ("{ {% } {{ a + ", "{ {% } {{ a |__whole + "),
            ("{{ a '+ ", "{{ a '+ "),
            ("{{ a + ", "{{ a |__whole + "),
        ];
        for (text, expected) in cases {
            assert_eq!(rewritten(text), expected);
        }
    }
}
