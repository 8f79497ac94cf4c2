//! Values of `#define`s.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A define's value: a number, a token, or a string created at run time (a generated expression).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// An integer.
    Int(i64),
    /// A fixed token such as a type name.
    Token(&'static str),
    /// Generated text.
    Text(Text),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(n) => write!(f, "{n}"),
            Self::Token(t) => f.write_str(t),
            Self::Text(t) => f.write_str(&t.text),
        }
    }
}

impl From<usize> for Value {
    fn from(n: usize) -> Self {
        Self::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }
}
impl From<i64> for Value {
    fn from(n: i64) -> Self {
        Self::Int(n)
    }
}
impl From<i32> for Value {
    fn from(n: i32) -> Self {
        Self::Int(n.into())
    }
}
impl From<bool> for Value {
    fn from(on: bool) -> Self {
        Self::Int(on.into())
    }
}
impl From<&'static str> for Value {
    fn from(t: &'static str) -> Self {
        Self::Token(t)
    }
}
impl From<Text> for Value {
    fn from(t: Text) -> Self {
        Self::Text(t)
    }
}

/// Generated text, hashed once when it is created: launches look up kernels by their defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    text: Arc<str>,
    hash: [u8; 16],
}

impl Text {
    /// Stores `text` with its hash.
    pub fn new(text: &str) -> Self {
        let mut hash = [0; 16];
        hash.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..16]);
        // A define must be one line.
        Self { text: text.replace('\n', " ").into(), hash }
    }
    /// Returns the text on one line.
    pub fn as_str(&self) -> &str {
        &self.text
    }
    /// Returns the first 12 digits of its hash, for names.
    pub fn digits(&self) -> String {
        self.hash[..6].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}
