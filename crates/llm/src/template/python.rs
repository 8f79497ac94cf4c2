//! Formats values like Python: templates are written for Jinja2, and models were trained on its output.

use minijinja::value::{Enumerator, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write as _;
use std::sync::Arc;

/// Result of `map` and similar filters: items without a length, which `tojson` rejects.
#[derive(Debug)]
pub(super) struct Generator(pub Vec<Value>);

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let (this, mut at) = (self.clone(), 0);
        Enumerator::Iter(Box::new(std::iter::from_fn(move || {
            at += 1;
            this.0.get(at - 1).cloned()
        })))
    }
    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

/// Returns true if Python represents it as a list: slices and joined lists are also lists.
fn is_list(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Seq => true,
        ValueKind::Iterable => value.downcast_object_ref::<Generator>().is_none(),
        _ => false,
    }
}

/// Maximum bytes of a formatted value, and maximum number of values in one: 64 bytes count as a step.
const MAX_FORMATTED_BYTES: usize = super::MAX_STEPS as usize * 64;

/// Returns the number of values in a value, counting repeated ones; strings count once per 64 bytes. `check` is called for each.
///
/// # Errors
/// An error if there are more than the step limit; errors of `check`.
pub(super) fn measure(value: &Value, check: impl Fn(&Value) -> Result<(), Error>) -> Result<u64, Error> {
    let (mut open, mut count) = (vec![value.clone()], 0u64);
    while let Some(value) = open.pop() {
        check(&value)?;
        count += 1 + value.as_str().map_or(0, |text| text.len() as u64 / 64);
        if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
            for item in value.try_iter()? {
                if value.kind() == ValueKind::Map {
                    open.push(value.get_item(&item)?);
                }
                open.push(item);
                if open.len() as u64 + count > super::MAX_STEPS {
                    return Err(too_long());
                }
            }
        }
        if open.len() as u64 + count > super::MAX_STEPS {
            return Err(too_long());
        }
    }
    Ok(count)
}

fn too_long() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value of more than {} values", super::MAX_STEPS))
}

/// Returns an error if the output exceeds the limit.
fn check_length(out: &str) -> Result<(), Error> {
    match out.len() > MAX_FORMATTED_BYTES {
        true => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a text of more than {MAX_FORMATTED_BYTES} bytes"),
        )),
        false => Ok(()),
    }
}

/// Options of `json.dumps`.
pub(super) struct Json {
    pub indent: Option<String>,
    pub item: String,
    pub key: String,
    pub ascii: bool,
    pub sorted: bool,
}

/// Maximum nesting depth; Python has a similar limit.
const DEPTH: usize = 200;

impl Json {
    /// Formats a value like `json.dumps(value)`.
    pub fn text(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(value, 0, &mut out)?;
        Ok(out)
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEPTH {
            return Err(Error::new(ErrorKind::BadSerialization, "nested too deeply for tojson"));
        }
        check_length(out)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            _ if is_list(value) => {
                let items = value.try_iter()?;
                self.items(['[', ']'], items, depth, out, |item, out| self.write(&item, depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.items(['{', '}'], keys.into_iter(), depth, out, |key, out| {
                    match key.as_str() {
                        Some(text) => self.string(text, out),
                        None => self.string(&json_key(&key)?, out),
                    }
                    out.push_str(&self.key);
                    self.write(&value.get_item(&key)?, depth + 1, out)
                })?;
            }
            other => {
                let name = if other == ValueKind::Iterable { "generator".into() } else { other.to_string() };
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("Object of type {name} is not JSON serializable"),
                ));
            }
        }
        Ok(())
    }

    fn items(
        &self,
        [open, close]: [char; 2],
        items: impl Iterator<Item = Value>,
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |out: &mut String, depth: usize| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(open);
        let mut any = false;
        for item in items {
            if any {
                out.push_str(&self.item);
            }
            any = true;
            line(out, depth + 1);
            write(item, out)?;
        }
        if any {
            line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// Converts keys that are not strings like `json.dumps`.
fn json_key(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(key.is_true().to_string()),
        ValueKind::Number => Ok(number(key)),
        other => Err(Error::new(
            ErrorKind::BadSerialization,
            format!("a key of type {other} is not JSON serializable"),
        )),
    }
}

/// Formats a number like `repr` and `json.dumps`.
fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => self::float(float),
        _ => value.to_string(),
    }
}

fn float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    // The shortest digits that parse to the same number.
    let short = format!("{x:e}");
    let (digits, exponent) = short.split_once('e').unwrap_or((&short, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{x}");
        return if plain.contains('.') { plain } else { format!("{plain}.0") };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Formats a value like `str`: the output of `{{` and `}}`.
///
/// # Errors
/// An error if it exceeds the length limit.
pub(super) fn text(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None if value.is_undefined() => {}
        None => repr(value, 0, out)?,
    }
    Ok(())
}

fn repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    check_length(out)?;
    if depth > DEPTH {
        out.push_str("...");
        return Ok(());
    }
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&match number(value).as_str() {
            "NaN" => "nan".to_owned(),
            "Infinity" => "inf".to_owned(),
            "-Infinity" => "-inf".to_owned(),
            other => other.to_owned(),
        }),
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out),
        kind if kind == ValueKind::Map || is_list(value) => {
            let map = value.kind() == ValueKind::Map;
            out.push(if map { '{' } else { '[' });
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&item, depth + 1, out)?;
                if map {
                    out.push_str(": ");
                    repr(&value.get_item(&item).unwrap_or_default(), depth + 1, out)?;
                }
            }
            out.push(if map { '}' } else { ']' });
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

/// Quotes a string like `repr`.
fn quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c < ' ' || c == '\u{7f}' => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_pythons() {
        // `repr` of Python 3.11.
        let cases = [
            (0.1, "0.1"),
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.2345678901234568e22, "1.2345678901234568e+22"),
            (1e300, "1e+300"),
            (5e-324, "5e-324"),
            (123_456.789, "123456.789"),
        ];
        for (number, expected) in cases {
            assert_eq!(float(number), expected);
        }
    }

    #[test]
    fn values_are_pythons() {
        let json = serde_json::json!([null, true, 1, 2.5, "it's", "\"'\n\u{1}é", {"a": [false]}]);
        let value = crate::template::value_of_json(&json.to_string()).unwrap();
        let mut out = String::new();
        text(&value, &mut out).unwrap();
        assert_eq!(out, r#"[None, True, 1, 2.5, "it's", '"\'\n\x01é', {'a': [False]}]"#);
    }
}
