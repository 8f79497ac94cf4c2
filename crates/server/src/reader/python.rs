//! Python literals, which some models write for arguments: `True`, `None`, `{'a': (1, 2)}`.

use serde_json::{Map, Value};

/// Maximum nesting depth of lists.
const DEEPEST: usize = 64;

/// Parses a Python literal; `None` if the text is not one.
pub fn literal(text: &str) -> Option<Value> {
    let (value, rest) = value(text.trim(), 0)?;
    rest.trim().is_empty().then_some(value)
}

/// Returns the value at the start of a text, and the following text.
fn value(text: &str, depth: usize) -> Option<(Value, &str)> {
    if depth > DEEPEST {
        return None;
    }
    match text.chars().next()? {
        '[' => list(&text[1..], ']', depth),
        '(' => list(&text[1..], ')', depth),
        '{' => dict(&text[1..], depth),
        quote @ ('\'' | '"') => string(&text[1..], quote).map(|(text, rest)| (text.into(), rest)),
        _ => {
            let end = text.find(|c: char| ",]}):".contains(c) || c.is_whitespace()).unwrap_or(text.len());
            let (word, rest) = text.split_at(end);
            let value = match word {
                word if word.eq_ignore_ascii_case("true") => true.into(),
                word if word.eq_ignore_ascii_case("false") => false.into(),
                "None" | "null" => Value::Null,
                number => serde_json::from_str::<Value>(number).ok().filter(Value::is_number)?,
            };
            Some((value, rest))
        }
    }
}

fn string(text: &str, quote: char) -> Option<(String, &str)> {
    let (mut out, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == quote => return Some((out, &text[at + c.len_utf8()..])),
            '\\' => match chars.next()?.1 {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                c @ ('\\' | '\'' | '"') => out.push(c),
                _ => return None,
            },
            '\n' => return None,
            c => out.push(c),
        }
    }
    None
}

fn list(text: &str, end: char, depth: usize) -> Option<(Value, &str)> {
    let (mut all, mut rest) = (Vec::new(), text.trim_start());
    loop {
        if let Some(rest) = rest.strip_prefix(end) {
            return Some((all.into(), rest));
        }
        let (one, after) = value(rest, depth + 1)?;
        all.push(one);
        rest = separated(after, end)?;
    }
}

fn dict(text: &str, depth: usize) -> Option<(Value, &str)> {
    let (mut all, mut rest) = (Map::new(), text.trim_start());
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((all.into(), rest));
        }
        let quote = rest.chars().next().filter(|c| "'\"".contains(*c))?;
        let (key, after) = string(&rest[1..], quote)?;
        let (one, after) = value(after.trim_start().strip_prefix(':')?.trim_start(), depth + 1)?;
        all.insert(key, one);
        rest = separated(after, '}')?;
    }
}

/// Returns the text after a comma, or at the end mark.
fn separated(text: &str, end: char) -> Option<&str> {
    let text = text.trim_start();
    match text.strip_prefix(',') {
        Some(rest) => Some(rest.trim_start()),
        None => text.starts_with(end).then_some(text),
    }
}
