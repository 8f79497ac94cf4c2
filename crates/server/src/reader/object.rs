//! Calls in the form of JSON objects, with streamed arguments.

use crate::answer::AnswerPart;
use serde_json::Value;

/// Parse state of a part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More text is needed.
    More,
    /// The part is complete; the following text is left.
    Done,
    /// The text is not such a part; nothing was taken.
    Not,
}

/// Finds the end of a JSON value with braces or brackets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    depth: usize,
    quoted: bool,
    escaped: bool,
}

/// End of a value in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueEnd {
    /// The text ends before the value does.
    Open,
    /// The value ends after this many bytes.
    At(usize),
    /// Invalid JSON follows after this many bytes.
    Broken(usize),
}

impl Scan {
    /// Starts inside this many open values.
    pub fn within(depth: usize) -> Self {
        Self { depth, ..Self::default() }
    }

    /// Scans more text.
    pub fn feed(&mut self, text: &str) -> ValueEnd {
        for (at, byte) in text.bytes().enumerate() {
            if self.quoted {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.quoted = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.quoted = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return ValueEnd::At(at + 1);
                    }
                }
                // The start of a mark.
                b'<' => return ValueEnd::Broken(at),
                _ => {}
            }
        }
        ValueEnd::Open
    }
}

/// Tracks whether a position in JSON text is inside a string.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strings {
    quoted: bool,
    escaped: bool,
}

impl Strings {
    /// Returns the next part of the text, with control characters inside strings escaped.
    pub fn escaped(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            let escaped = std::mem::replace(&mut self.escaped, false);
            match c {
                _ if !self.quoted => self.quoted = c == '"',
                c if c < ' ' => {
                    let word = Value::from(c.to_string()).to_string();
                    // After a backslash only the letter is missing.
                    out += &word[if escaped { 2 } else { 1 }..word.len() - 1];
                    continue;
                }
                _ if escaped => {}
                '\\' => self.escaped = true,
                '"' => self.quoted = false,
                _ => {}
            }
            out.push(c);
        }
        out
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Before the arguments.
    Head,
    Arguments(Scan),
    /// After the arguments, up to the object's end.
    Tail(Scan),
}

/// Parser of one call.
#[derive(Clone, Debug)]
pub struct Object {
    phase: Phase,
    /// Whether the arguments appear without a surrounding object.
    bare: bool,
}

impl Object {
    /// Parses `{"name": …, "arguments": {…}}`.
    pub fn new() -> Self {
        Self { phase: Phase::Head, bare: false }
    }

    /// Parses the arguments of a call whose name is already known.
    pub fn arguments() -> Self {
        Self { phase: Phase::Arguments(Scan::default()), bare: true }
    }

    /// Returns true if arguments were already sent.
    pub fn has_begun(&self) -> bool {
        !matches!(self.phase, Phase::Head)
    }

    /// Takes as much as possible from the start of `held`.
    pub fn take(&mut self, held: &mut String, parts: &mut Vec<AnswerPart>) -> Progress {
        loop {
            match &mut self.phase {
                Phase::Head => match head(held) {
                    Head::More => return Progress::More,
                    Head::Not => return Progress::Not,
                    Head::Whole(call, end) => {
                        parts.extend(call);
                        held.drain(..end);
                        return Progress::Done;
                    }
                    Head::Call(name, at) => {
                        parts.push(AnswerPart::CallBegin { name });
                        held.drain(..at);
                        self.phase = Phase::Arguments(Scan::default());
                    }
                },
                Phase::Arguments(scan) => {
                    let end = scan.feed(held);
                    let (ValueEnd::At(at) | ValueEnd::Broken(at)) = end else {
                        give(parts, std::mem::take(held));
                        return Progress::More;
                    };
                    let rest = held.split_off(at);
                    give(parts, std::mem::replace(held, rest));
                    parts.push(AnswerPart::CallEnd);
                    if self.bare || matches!(end, ValueEnd::Broken(_)) {
                        return Progress::Done;
                    }
                    self.phase = Phase::Tail(Scan::within(1));
                }
                Phase::Tail(scan) => {
                    return match scan.feed(held) {
                        ValueEnd::Open => {
                            held.clear();
                            Progress::More
                        }
                        ValueEnd::At(at) | ValueEnd::Broken(at) => {
                            held.drain(..at);
                            Progress::Done
                        }
                    };
                }
            }
        }
    }
}

fn give(parts: &mut Vec<AnswerPart>, text: String) {
    if !text.is_empty() {
        parts.push(AnswerPart::CallArguments(text));
    }
}

/// Kind of the start of an object.
enum Head {
    More,
    Not,
    /// A call whose arguments start after this many bytes.
    Call(String, usize),
    /// A call that is complete after this many bytes.
    Whole([AnswerPart; 3], usize),
}

/// Members that can precede the arguments in a call.
const BEFORE: [&str; 6] = ["name", "arguments", "parameters", "type", "id", "function"];

fn head(text: &str) -> Head {
    let Some(inside) = text.trim_start().strip_prefix('{') else {
        return if text.trim_start().is_empty() { Head::More } else { Head::Not };
    };
    let at = |rest: &str| text.len() - rest.len();
    let (mut rest, mut name) = (inside, None);
    loop {
        let (key, after) = match value(rest) {
            Some(Ok((Value::String(key), after))) if BEFORE.contains(&key.as_str()) => (key, after),
            None => return Head::More,
            _ => return Head::Not,
        };
        let after = match after.trim_start().strip_prefix(':') {
            Some(after) => after.trim_start(),
            None if after.trim_start().is_empty() => return Head::More,
            None => return Head::Not,
        };
        if matches!(key.as_str(), "arguments" | "parameters" | "function") {
            return match (name, after.chars().next()) {
                (_, None) => Head::More,
                (Some(name), Some('{')) if key != "function" => Head::Call(name, at(after)),
                // A string that contains an object, or arguments before the name.
                (_, Some('{' | '"')) => whole(text, at(inside) - 1),
                _ => Head::Not,
            };
        }
        let (found, after) = match value(after) {
            None => return Head::More,
            Some(Err(())) => return Head::Not,
            Some(Ok(found)) => found,
        };
        if key == "name" {
            match found {
                Value::String(found) => name = Some(found),
                _ => return Head::Not,
            }
        }
        rest = match after.trim_start().strip_prefix(',') {
            Some(rest) => rest,
            None if after.trim_start().is_empty() => return Head::More,
            None => return Head::Not,
        };
    }
}

/// Returns the JSON value at the start of a text and the following text; `None` while it is incomplete.
fn value(text: &str) -> Option<Result<(Value, &str), ()>> {
    if text.trim_start().is_empty() {
        return None;
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match values.next()? {
        Ok(value) => Some(Ok((value, &text[values.byte_offset()..]))),
        Err(error) if error.is_eof() => None,
        Err(_) => Some(Err(())),
    }
}

/// Parses an object that starts at `from` after it is complete.
fn whole(text: &str, from: usize) -> Head {
    match value(&text[from..]) {
        None => Head::More,
        Some(Err(())) => Head::Not,
        Some(Ok((found, rest))) => match call(&found) {
            Some(call) => Head::Whole(call, text.len() - rest.len()),
            None => Head::Not,
        },
    }
}

fn call(value: &Value) -> Option<[AnswerPart; 3]> {
    let function = value.get("function").filter(|function| function.is_object()).unwrap_or(value);
    let name = function["name"].as_str()?.to_owned();
    let arguments = function.get("arguments").or_else(|| function.get("parameters"))?;
    let arguments = match arguments {
        Value::Object(_) => arguments.to_string(),
        // Some models write the object as a string.
        Value::String(text) => serde_json::from_str::<Value>(text).ok().filter(Value::is_object)?.to_string(),
        _ => return None,
    };
    Some([AnswerPart::CallBegin { name }, AnswerPart::CallArguments(arguments), AnswerPart::CallEnd])
}
