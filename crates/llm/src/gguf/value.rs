//! GGUF metadata values: the thirteen types in file format.

use super::cursor::Cursor;
use netcl_tensor::{Error, Result};

/// The type of a value, by its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// One byte.
    U8 = 0,
    /// One byte, signed.
    I8 = 1,
    /// Two bytes.
    U16 = 2,
    /// Two bytes, signed.
    I16 = 3,
    /// Four bytes.
    U32 = 4,
    /// Four bytes, signed.
    I32 = 5,
    /// Single precision.
    F32 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// A length in eight bytes and as many bytes of UTF-8.
    String = 8,
    /// The type of the elements, their number in eight bytes, the elements.
    Array = 9,
    /// Eight bytes.
    U64 = 10,
    /// Eight bytes, signed.
    I64 = 11,
    /// Double precision.
    F64 = 12,
}

impl Kind {
    const ALL: [Kind; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// Returns the type with this number.
    pub(super) fn of(number: u32) -> Result<Self> {
        Self::ALL
            .get(number as usize)
            .copied()
            .ok_or_else(|| Error::format(format!("a value of type {number}, expected 0 to 12")))
    }

    /// Returns the bytes of a value, if the size is fixed.
    pub(super) fn size(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }
}

/// A value, read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Any integer type.
    Whole(i128),
    /// Either precision.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// Text.
    Str(&'a str),
    /// Several values of one type.
    Array(Array<'a>),
}

impl std::fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(n) => write!(f, "{n}"),
            Self::Float(x) => write!(f, "{x}"),
            Self::Bool(b) => write!(f, "{b}"),
            Self::Str(text) => {
                let short: String = text.chars().take(60).collect();
                let more = if short.len() < text.len() { "…" } else { "" };
                write!(f, "{short:?}{more}")
            }
            Self::Array(array) => write!(f, "an array of {} {:?}", array.len, array.kind),
        }
    }
}

impl<'a> Value<'a> {
    /// Reads the value of a type that begins at the cursor.
    pub(super) fn read(kind: Kind, at: &mut Cursor<'a>) -> Result<Self> {
        Ok(match kind {
            Kind::U8 => Self::Whole(u8::from_le_bytes(at.array()?).into()),
            Kind::I8 => Self::Whole(i8::from_le_bytes(at.array()?).into()),
            Kind::U16 => Self::Whole(u16::from_le_bytes(at.array()?).into()),
            Kind::I16 => Self::Whole(i16::from_le_bytes(at.array()?).into()),
            Kind::U32 => Self::Whole(at.u32()?.into()),
            Kind::I32 => Self::Whole(i32::from_le_bytes(at.array()?).into()),
            Kind::U64 => Self::Whole(at.u64()?.into()),
            Kind::I64 => Self::Whole(i64::from_le_bytes(at.array()?).into()),
            Kind::F32 => Self::Float(f32::from_le_bytes(at.array()?).into()),
            Kind::F64 => Self::Float(f64::from_le_bytes(at.array()?)),
            Kind::Bool => match at.array::<1>()? {
                [0] => Self::Bool(false),
                [1] => Self::Bool(true),
                [other] => return Err(Error::format(format!("a truth value of {other}, expected 0 or 1"))),
            },
            Kind::String => Self::Str(at.text()?),
            Kind::Array => Self::Array(Array::read(at)?),
        })
    }
}

/// Several values of one type, read lazily from the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    /// Type of its elements; never an array.
    pub kind: Kind,
    /// Number of elements.
    pub len: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Reads its bounds and skips every string.
    fn read(at: &mut Cursor<'a>) -> Result<Self> {
        let (kind, len) = (Kind::of(at.u32()?)?, at.length()?);
        let start = at.place();
        match kind.size() {
            Some(size) => {
                let bytes = len.checked_mul(size);
                at.take(bytes.ok_or_else(|| Error::format(format!("an array of {len} elements")))?)?;
            }
            None if kind == Kind::Array => return Err(Error::format("an array of arrays")),
            None => {
                // Each takes at least 8 bytes for its length, so the file size bounds this loop.
                for _ in 0..len {
                    let length = at.length()?;
                    at.take(length)?;
                }
            }
        }
        Ok(Self { kind, len, bytes: at.since(start) })
    }

    /// Returns its elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>>> + use<'a> {
        let (kind, mut at) = (self.kind, Cursor::new(self.bytes));
        (0..self.len).map(move |_| Value::read(kind, &mut at))
    }

    /// Returns its bytes in file format.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}
