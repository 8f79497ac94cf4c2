//! Values of attributes, and the Rust types that can read them.

use crate::DType;

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value, for attributes that may have none.
    None,
    /// A number. An integer is accepted where a number is expected.
    Float(f64),
    /// An integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// A shape, axes or lengths. A single integer is a list of length one.
    Ints(Vec<i64>),
    /// One of the names that the attribute lists.
    Text(String),
    /// A storage type.
    DType(DType),
}

/// Kind of an attribute's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeKind {
    /// A number, stored as f32.
    Float,
    /// An integer.
    Int,
    /// A boolean.
    Bool,
    /// A list of integers.
    Ints,
    /// One of these names.
    Choice(&'static [&'static str]),
    /// Any text.
    Text,
    /// A storage type.
    DType,
    /// Key of a random stream, an integer. Callers with a generator draw it if it is not given.
    Seed,
}

impl AttributeKind {
    /// Returns the text after "expected" in errors.
    pub(super) fn expected(self) -> String {
        match self {
            Self::Float => "a number".into(),
            Self::Int | Self::Seed => "an integer".into(),
            Self::Bool => "true or false".into(),
            Self::Ints => "integers".into(),
            Self::Choice(names) => format!("one of {}", names.join(", ")),
            Self::Text => "a text".into(),
            Self::DType => "a storage type".into(),
        }
    }
}

impl Value {
    pub(super) fn kind(&self) -> AttributeKind {
        match self {
            Self::Float(_) => AttributeKind::Float,
            Self::None | Self::Int(_) => AttributeKind::Int,
            Self::Bool(_) => AttributeKind::Bool,
            Self::Ints(_) => AttributeKind::Ints,
            Self::Text(_) => AttributeKind::Choice(&[]),
            Self::DType(_) => AttributeKind::DType,
        }
    }
    /// Formats the value for messages.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::None => "none".into(),
            Self::Float(v) => v.to_string(),
            Self::Int(v) => v.to_string(),
            Self::Bool(v) => v.to_string(),
            Self::Ints(v) => format!("{v:?}"),
            Self::Text(v) => format!("{v:?}"),
            Self::DType(v) => v.to_string(),
        }
    }
}

/// A type as which an attribute can be read.
pub trait FromValue: Sized {
    /// The text after "expected" if the value does not fit.
    const EXPECTED: &'static str;
    /// Converts the value to this type.
    fn from_value(value: &Value) -> Option<Self>;
}

impl FromValue for f32 {
    const EXPECTED: &'static str = "a number";
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Float(v) = value { Some(*v as Self) } else { None }
    }
}
impl FromValue for bool {
    const EXPECTED: &'static str = "true or false";
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Bool(v) = value { Some(*v) } else { None }
    }
}
impl FromValue for i64 {
    const EXPECTED: &'static str = "an integer";
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Int(v) = value { Some(*v) } else { None }
    }
}
impl FromValue for i32 {
    const EXPECTED: &'static str = "a 32-bit integer";
    fn from_value(value: &Value) -> Option<Self> {
        i64::from_value(value)?.try_into().ok()
    }
}
impl FromValue for isize {
    const EXPECTED: &'static str = "an integer";
    fn from_value(value: &Value) -> Option<Self> {
        i64::from_value(value)?.try_into().ok()
    }
}
impl FromValue for usize {
    const EXPECTED: &'static str = "an integer of at least 0";
    fn from_value(value: &Value) -> Option<Self> {
        i64::from_value(value)?.try_into().ok()
    }
}
impl FromValue for Vec<i64> {
    const EXPECTED: &'static str = "integers";
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Ints(v) = value { Some(v.clone()) } else { None }
    }
}
impl FromValue for Vec<isize> {
    const EXPECTED: &'static str = "integers";
    fn from_value(value: &Value) -> Option<Self> {
        Vec::<i64>::from_value(value)?.into_iter().map(|v| v.try_into().ok()).collect()
    }
}
impl FromValue for Vec<usize> {
    const EXPECTED: &'static str = "integers of at least 0";
    fn from_value(value: &Value) -> Option<Self> {
        Vec::<i64>::from_value(value)?.into_iter().map(|v| v.try_into().ok()).collect()
    }
}
impl FromValue for String {
    const EXPECTED: &'static str = "a name";
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Text(v) = value { Some(v.clone()) } else { None }
    }
}
impl FromValue for DType {
    const EXPECTED: &'static str = "a storage type";
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::DType(v) = value { Some(*v) } else { None }
    }
}

impl From<f64> for Value {
    fn from(v: f64) -> Self {
        Self::Float(v)
    }
}
impl From<f32> for Value {
    fn from(v: f32) -> Self {
        Self::Float(v.into())
    }
}
impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Self::Bool(v)
    }
}
impl From<i32> for Value {
    fn from(v: i32) -> Self {
        Self::Int(v.into())
    }
}
impl From<usize> for Value {
    fn from(v: usize) -> Self {
        Self::Int(v.cast_signed() as i64)
    }
}
impl From<u64> for Value {
    fn from(v: u64) -> Self {
        Self::Int(v.cast_signed())
    }
}
impl From<&[usize]> for Value {
    fn from(v: &[usize]) -> Self {
        Self::Ints(v.iter().map(|v| v.cast_signed() as i64).collect())
    }
}
impl<const N: usize> From<[i64; N]> for Value {
    fn from(v: [i64; N]) -> Self {
        Self::Ints(v.into())
    }
}
impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Self::Text(v.into())
    }
}
impl From<DType> for Value {
    fn from(v: DType) -> Self {
        Self::DType(v)
    }
}
impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(v: Option<T>) -> Self {
        v.map_or(Self::None, Into::into)
    }
}
