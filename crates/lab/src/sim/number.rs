//! Types of numbers on the command line, and their values as bytes, text and JSON.

use netcl::device::did_you_mean;
use std::str::FromStr;

/// Type of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
}

const NUMBERS: [(&str, Number, usize); 11] = [
    ("i8", Number::I8, 1),
    ("u8", Number::U8, 1),
    ("i16", Number::I16, 2),
    ("u16", Number::U16, 2),
    ("i32", Number::I32, 4),
    ("u32", Number::U32, 4),
    ("i64", Number::I64, 8),
    ("u64", Number::U64, 8),
    ("f16", Number::F16, 2),
    ("f32", Number::F32, 4),
    ("f64", Number::F64, 8),
];

impl FromStr for Number {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let names: Vec<&str> = NUMBERS.iter().map(|(name, ..)| *name).collect();
        // Other names of types in tensors: float32, half, …
        let stored = netcl::prelude::DType::parse(s).map(|dtype| dtype.to_string());
        let found = NUMBERS.iter().find(|(name, ..)| *name == s || stored.as_deref() == Some(*name));
        found.map(|f| f.1).ok_or_else(|| {
            format!(
                "unknown type {s:?}; the types are {}{}",
                names.join(", "),
                did_you_mean(s, names.iter().copied())
            )
        })
    }
}

impl Number {
    /// Returns the size in bytes.
    pub fn size(self) -> usize {
        NUMBERS.iter().find(|(_, n, _)| *n == self).map_or(0, |(.., size)| *size)
    }

    /// Converts a value to JSON: a number, or text if it is not finite.
    pub fn json(self, bytes: &[u8]) -> serde_json::Value {
        let text = self.show(bytes);
        match (self, text.parse::<f64>()) {
            (Self::U64, _) => text.parse::<u64>().map_or(text.into(), Into::into),
            (_, Ok(value)) if self.is_float() && value.is_finite() => value.into(),
            _ if self.is_float() => text.into(),
            _ => text.parse::<i64>().map_or(text.into(), Into::into),
        }
    }

    /// Returns whether it holds fractions.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64)
    }

    /// Converts a value to its bytes.
    pub fn bytes(self, text: &str) -> Result<Vec<u8>, String> {
        let wrong = || format!("{text:?} is not of type {self:?}").to_lowercase();
        macro_rules! parse {
            ($type:ty) => {
                text.parse::<$type>().map(|v| v.to_le_bytes().to_vec()).map_err(|_| wrong())
            };
        }
        match self {
            Self::I8 => parse!(i8),
            Self::U8 => parse!(u8),
            Self::I16 => parse!(i16),
            Self::U16 => parse!(u16),
            Self::I32 => parse!(i32),
            Self::U32 => parse!(u32),
            Self::I64 => parse!(i64),
            Self::U64 => parse!(u64),
            Self::F32 => parse!(f32),
            Self::F64 => parse!(f64),
            Self::F16 => {
                let value: f32 = text.parse().map_err(|_| wrong())?;
                Ok(half::f16::from_f32(value).to_le_bytes().to_vec())
            }
        }
    }

    /// Formats the value of some bytes.
    pub fn show(self, bytes: &[u8]) -> String {
        let mut wide = [0u8; 8];
        wide[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
        let raw = u64::from_le_bytes(wide);
        match self {
            Self::I8 => (raw as i8).to_string(),
            Self::U8 => (raw as u8).to_string(),
            Self::I16 => (raw as i16).to_string(),
            Self::U16 => (raw as u16).to_string(),
            Self::I32 => (raw as i32).to_string(),
            Self::U32 => (raw as u32).to_string(),
            Self::I64 => (raw as i64).to_string(),
            Self::U64 => raw.to_string(),
            Self::F16 => half::f16::from_bits(raw as u16).to_string(),
            Self::F32 => f32::from_bits(raw as u32).to_string(),
            Self::F64 => f64::from_bits(raw).to_string(),
        }
    }
}
