//! Rewrites the source of a template before the engine reads it. Line numbers stay the same.
//!
//! `{% generation %}` marks the model's messages, for training; it does not change the output. The block becomes a condition that is always true,
//! with the same treatment of surrounding white space. [`Generation::Marked`] makes it a filter that puts marks around its output.
//!
//! The left operand of a `+` goes through the filter [`WHOLE`], because the engine joins lists without counting the cost. A list that is repeatedly
//! added to itself would exceed any memory.
//!
//! List and dictionary literals go through [`HELD`], and values assigned to attributes through [`KEPT`], because the engine does not count the
//! content of a value. Repeating `[x, x]` creates more values than could ever be written.
//!
//! Brackets nested deeper than [`DEEPEST`] are rejected, because the engine does not bound them everywhere: loop variables inside ten thousand of
//! them overflow its stack.

/// Filter for the left operand of a `+`.
pub(super) const WHOLE: &str = "__whole";
/// Filter for list and dictionary literals.
pub(super) const HELD: &str = "__held";
/// Closes such literals.
const HELD_BEHIND: &str = "|__held)";
/// Filter for values assigned to attributes.
pub(super) const KEPT: &str = "__kept";
/// Filter for the output of a generation block.
pub(super) const GENERATED: &str = "__generated";
/// Maximum nesting of brackets.
pub(super) const DEEPEST: usize = 128;
/// Words after which a `+` is a sign, not an addition.
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

/// Treatment of `{% generation %}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generation {
    /// The output of the block, unchanged.
    Shown,
    /// The output between marks.
    Marked,
}

/// Returns the rewritten source, or the line of a tag with brackets nested deeper than [`DEEPEST`].
pub(super) fn rewritten(text: &str, generation: Generation) -> Result<String, usize> {
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
            let line = || text[..text.len() - rest.len()].matches('\n').count() + 1;
            let (tag, length) = tag(rest, generation).ok_or_else(line)?;
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
    Ok(out)
}

/// Returns the first word of a tag.
fn word(tag: &str) -> &str {
    let inside = tag.strip_prefix("{%").unwrap_or_default().trim_start_matches(['-', '+']).trim_start();
    inside.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default()
}

/// Returns the position of the tag that ends a raw block.
fn end_of_raw(text: &str) -> usize {
    let ends = text.match_indices("{%").find(|(at, _)| word(&text[*at..]) == "endraw");
    ends.map_or(text.len(), |(at, _)| at)
}

/// Returns a rewritten tag, and its length in the source; `None` if its brackets are nested too deeply.
fn tag(text: &str, generation: Generation) -> Option<(String, usize)> {
    let close = if text.starts_with("{{") { "}}" } else { "%}" };
    let bytes = text.as_bytes();
    let mut out = String::from(&text[..2]);
    let (mut at, mut operand) = (2, false);
    let mut brackets = Brackets { open: Vec::new(), target: target(text) };
    // White-space control after the brackets.
    if matches!(bytes.get(2), Some(b'+' | b'-')) {
        out.push(char::from(bytes[2]));
        at = 3;
    }
    while at < text.len() {
        let rest = &text[at..];
        let marked = rest.strip_prefix(['+', '-']).is_some_and(|rest| rest.starts_with(close));
        if brackets.open.is_empty() && (marked || rest.starts_with(close)) {
            let end = if marked { 3 } else { 2 };
            if brackets.target == Target::Set {
                out.truncate(out.trim_end().len());
                out.push_str(&format!(")|{KEPT} "));
            }
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
        let behind = brackets.pass(c, operand, &mut out);
        if brackets.open.len() > DEEPEST {
            return None;
        }
        if !c.is_whitespace() {
            let ends = matches!(c, '\'' | '"' | ')' | ']' | '}');
            operand = ends || ((c.is_alphanumeric() || c == '_') && !WORDS.contains(&piece));
        }
        out.push_str(piece);
        out.push_str(behind);
        at += length;
    }
    let marked = generation == Generation::Marked;
    let out = match word(&out) {
        "generation" if marked => out.replacen("generation", &format!("filter {GENERATED}"), 1),
        "endgeneration" if marked => out.replacen("endgeneration", "endfilter", 1),
        "generation" => out.replacen("generation", "if true", 1),
        "endgeneration" => out.replacen("endgeneration", "endif", 1),
        _ => out,
    };
    Some((out, at))
}

/// Target of an assignment in a tag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    /// None, or a name.
    Other,
    /// An attribute of a namespace, before the `=`.
    Attribute,
    /// The same, after the `=`.
    Set,
}

/// Open brackets in a tag.
struct Brackets {
    /// For each open bracket, whether it starts a list or a dictionary.
    open: Vec<bool>,
    target: Target,
}

impl Brackets {
    /// Passes `c`: writes the required prefix to `out` and returns the required suffix.
    fn pass(&mut self, c: char, operand: bool, out: &mut String) -> &'static str {
        match c {
            '(' | '[' | '{' => {
                let holds = c != '(' && !operand;
                self.open.push(holds);
                out.push_str(if holds { "(" } else { "" });
                ""
            }
            ')' | ']' | '}' if self.open.pop() == Some(true) => HELD_BEHIND,
            '=' if self.target == Target::Attribute && self.open.is_empty() => {
                self.target = Target::Set;
                "("
            }
            _ => "",
        }
    }
}

fn target(tag: &str) -> Target {
    let inside = tag.strip_prefix("{%").unwrap_or_default().trim_start_matches(['-', '+']).trim_start();
    let name = inside.strip_prefix("set").filter(|rest| rest.starts_with(char::is_whitespace));
    let known = |c: char| c.is_alphanumeric() || c == '_' || c == '.' || c.is_whitespace();
    let name = name.and_then(|rest| rest.split_once('=')).map(|(name, _)| name);
    match name.is_some_and(|name| name.contains('.') && name.chars().all(known)) {
        true => Target::Attribute,
        false => Target::Other,
    }
}

/// Returns the length of a quoted string, which may be unterminated.
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
            ("{{ {'a': {'b': 1}} + x }}+", "{{ ({'a': ({'b': 1}|__held)}|__held) |__whole + x }}+"),
            ("{{ a[0] }}{% if x in ['a', b[1:]] %}", "{{ a[0] }}{% if x in (['a', b[1:]]|__held) %}"),
            ("{%- set ns.a = [x, x] -%}", "{%- set ns.a =( ([x, x]|__held))|__kept -%}"),
            ("{% set a = ns.b %}{% set ns.b=a == 1%}", "{% set a = ns.b %}{% set ns.b=(a == 1)|__kept %}"),
            (
                "{% raw %}{{ a + b }}{% endraw %}{{ a+b }}",
                "{% raw %}{{ a + b }}{% endraw %}{{ a|__whole +b }}",
            ),
            ("{{ 'it\\'s' + \"}}\" }}", "{{ 'it\\'s' |__whole + \"}}\" }}"),
            ("{%- generation -%}x{% endgeneration %}", "{%- if true -%}x{% endif %}"),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            ("{ {% } {{ a + ", "{ {% } {({ a |__whole + "),
            ("{{ a '+ ", "{{ a '+ "),
            ("{{ a + ", "{{ a |__whole + "),
        ];
        for (text, expected) in cases {
            assert_eq!(rewritten(text, Generation::Shown).as_deref(), Ok(expected));
        }
        assert_eq!(
            rewritten("{%- generation -%}x{% endgeneration %}", Generation::Marked).as_deref(),
            Ok("{%- filter __generated -%}x{% endfilter %}")
        );
        let rewritten = |text: &str| rewritten(text, Generation::Shown);
        let deep = |n: usize| format!("{{{{ 'a(' }}}}\n{{{{ {}1{} }}}}", "(".repeat(n), ")".repeat(n));
        assert!(rewritten(&deep(DEEPEST)).is_ok());
        assert_eq!(rewritten(&deep(DEEPEST + 1)), Err(2));
    }
}
