//! Arguments of a kernel as the command line writes them: `buffer:f32:4096:random`, `i32:7`, `f32x4:1,2,3,4`, `local:f32:64`.

use netcl::device::{counted, did_you_mean};
use std::path::PathBuf;
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
        // What tensors are also called by: float32, half, …
        let stored = netcl::prelude::DType::parse(s).map(|dtype| dtype.to_string());
        let found = NUMBERS.iter().find(|(name, ..)| *name == s || stored.as_deref() == Some(*name));
        found.map(|f| f.1).ok_or_else(|| {
            format!("no type {s:?}; there are {}{}", names.join(", "), did_you_mean(s, names.iter().copied()))
        })
    }
}

impl Number {
    /// Bytes.
    pub fn size(self) -> usize {
        NUMBERS.iter().find(|(_, n, _)| *n == self).map_or(0, |(.., size)| *size)
    }

    /// Whether it holds fractions.
    fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64)
    }

    /// A value as its bytes.
    fn bytes(self, text: &str) -> Result<Vec<u8>, String> {
        let wrong = || format!("{text:?} is no {self:?}").to_lowercase();
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

    /// The value of some bytes, for people.
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

/// What a buffer holds before the launch.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// Nothing: reading it is a defect.
    Unwritten,
    /// Floats in [-1, 1), integers in 0..100, the same in every run.
    Random,
    /// 0, 1, 2, …
    Iota,
    /// One value everywhere.
    Value(Vec<u8>),
    /// The bytes of a file, which must be enough.
    File(PathBuf),
}

/// One argument.
#[derive(Clone, Debug, PartialEq)]
pub enum KernelArg {
    /// `buffer:<type>:<count>[:<content>][:read]`
    Buffer {
        /// Type of its elements.
        number: Number,
        /// Elements.
        count: usize,
        /// Before the launch.
        init: Init,
        /// The kernel must not write to it.
        read: bool,
    },
    /// `<type>:<value>`, or `<type>x<n>:<value>,<value>,…`
    Scalar(Vec<u8>),
    /// `local:<type>:<count>`
    Local(usize),
}

impl FromStr for KernelArg {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let parts: Vec<&str> = s.split(':').collect();
        match parts.as_slice() {
            ["buffer", number, count, rest @ ..] if rest.len() <= 2 => buffer(number, count, rest),
            ["buffer", ..] => Err("expected buffer:<type>:<count>[:<content>][:read]".into()),
            ["local", number, count] => Ok(Self::Local(number.parse::<Number>()?.size() * whole(count)?)),
            ["local", ..] => Err("expected local:<type>:<count>".into()),
            [number, values] => scalar(number, values),
            _ => Err(format!(
                "{s:?}: expected buffer:<type>:<count>[:<content>][:read], local:<type>:<count>, or <type>:<value>"
            )),
        }
    }
}

fn whole(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text:?} is no number of elements"))
}

fn buffer(number: &str, count: &str, rest: &[&str]) -> Result<KernelArg, String> {
    let number: Number = number.parse()?;
    let (content, read) = match rest {
        [] => ("unwritten", false),
        ["read"] => ("random", true),
        [content] => (*content, false),
        [content, "read"] => (*content, true),
        [_, other, ..] => return Err(format!("{other:?} after a buffer's content; there is only read")),
    };
    let init = match content {
        "unwritten" => Init::Unwritten,
        "random" => Init::Random,
        "iota" => Init::Iota,
        "zero" => Init::Value(number.bytes("0")?),
        file if file.starts_with('@') => Init::File(PathBuf::from(&file[1..])),
        value => Init::Value(number.bytes(value).map_err(|e| {
            format!("{e}; a buffer's content is unwritten, random, iota, zero, a value, or @FILE")
        })?),
    };
    Ok(KernelArg::Buffer { number, count: whole(count)?, init, read })
}

fn scalar(number: &str, values: &str) -> Result<KernelArg, String> {
    let (base, lanes) = match number.split_once('x') {
        Some((base, lanes)) => (base, whole(lanes)?),
        None => (number, 1),
    };
    let number: Number = base.parse()?;
    let mut bytes = Vec::new();
    let mut found = 0;
    for value in values.split(',') {
        bytes.extend(number.bytes(value.trim())?);
        found += 1;
    }
    if found != lanes {
        return Err(format!("{} for {}", counted(found, "value"), counted(lanes, "lane")));
    }
    // A vector of three takes the room of four.
    if lanes == 3 {
        bytes.extend(vec![0; number.size()]);
    }
    Ok(KernelArg::Scalar(bytes))
}

/// The bytes of a buffer before the launch; none where it is not written. `seed` tells buffers apart.
pub fn content(number: Number, count: usize, init: &Init, seed: u64) -> std::io::Result<Option<Vec<u8>>> {
    let bytes = count * number.size();
    Ok(Some(match init {
        Init::Unwritten => return Ok(None),
        Init::Value(value) => value.repeat(count),
        Init::File(path) => {
            let mut data = std::fs::read(path)?;
            if data.len() < bytes {
                let why = format!("{} bytes, and the buffer has {bytes}", data.len());
                return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, why));
            }
            data.truncate(bytes);
            data
        }
        Init::Iota => (0..count).flat_map(|i| encode(number, i as f64)).collect(),
        Init::Random => {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (0..count).flat_map(|_| encode(number, draw(number, &mut state))).collect()
        }
    }))
}

/// The next value of a splitmix64 stream.
fn draw(number: Number, state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    let unit = (z ^ z >> 31) as f64 / 2f64.powi(64);
    if number.is_float() { 2.0 * unit - 1.0 } else { (unit * 100.0).floor() }
}

fn encode(number: Number, value: f64) -> Vec<u8> {
    match number {
        Number::F16 => half::f16::from_f64(value).to_le_bytes().to_vec(),
        Number::F32 => (value as f32).to_le_bytes().to_vec(),
        Number::F64 => value.to_le_bytes().to_vec(),
        _ => (value as i64).to_le_bytes()[..number.size()].to_vec(),
    }
}

/// Sizes of one to three dimensions: `64,8`.
pub fn sizes(text: &str) -> Result<[u64; 3], String> {
    let mut out = [1; 3];
    let parts: Vec<&str> = text.split(',').collect();
    if parts.len() > 3 {
        return Err(format!("{}; there are at most three", counted(parts.len(), "dimension")));
    }
    for (slot, part) in out.iter_mut().zip(parts) {
        *slot = part.trim().parse().ok().filter(|n| *n > 0).ok_or_else(|| format!("{part:?} is no size"))?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        let buffer = |init, read| KernelArg::Buffer { number: Number::F32, count: 4096, init, read };
        for (text, expected) in [
            ("buffer:f32:4096:random", buffer(Init::Random, false)),
            ("buffer:f32:4096", buffer(Init::Unwritten, false)),
            ("buffer:f32:4096:read", buffer(Init::Random, true)),
            ("buffer:f32:4096:iota:read", buffer(Init::Iota, true)),
            ("buffer:f32:4096:1.5", buffer(Init::Value(1.5f32.to_le_bytes().to_vec()), false)),
            ("buffer:f32:4096:@x.bin", buffer(Init::File("x.bin".into()), false)),
            ("i32:-7", KernelArg::Scalar((-7i32).to_le_bytes().to_vec())),
            ("u8x4:1,2,3,4", KernelArg::Scalar(vec![1, 2, 3, 4])),
            ("u8x3:1,2,3", KernelArg::Scalar(vec![1, 2, 3, 0])),
            ("local:f32:64", KernelArg::Local(256)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn mistakes_say_what_was_expected() {
        for (text, part) in [
            ("buffer:f33:10", "f32"),
            ("buffer:f32:ten", "ten"),
            ("buffer:f32:10:loud", "random"),
            ("buffer:f32:10:zero:write", "read"),
            ("buffer:f32", "<count>"),
            ("local:f32", "local:<type>:<count>"),
            ("i32:1.5", "1.5"),
            ("i32:300000000000", "i32"),
            ("f32x4:1,2", "4 lanes"),
            ("seven", "<type>:<value>"),
        ] {
            let e = text.parse::<KernelArg>().unwrap_err();
            assert!(e.contains(part), "{text}: {e}");
        }
        assert_eq!(sizes("64,8"), Ok([64, 8, 1]));
        assert!(sizes("0").is_err() && sizes("1,2,3,4").is_err() && sizes("").is_err());
    }

    #[test]
    fn contents_are_what_they_say_and_random_ones_repeat() {
        let iota = content(Number::U16, 3, &Init::Iota, 0).unwrap().unwrap();
        assert_eq!(iota, [0, 0, 1, 0, 2, 0]);
        let random = |seed| content(Number::F32, 100, &Init::Random, seed).unwrap().unwrap();
        assert_eq!(random(1), random(1));
        assert_ne!(random(1), random(2));
        for value in random(1).chunks_exact(4) {
            let value: f32 = Number::F32.show(value).parse().unwrap();
            assert!((-1.0..1.0).contains(&value));
        }
        assert_eq!(content(Number::F32, 1, &Init::Unwritten, 0).unwrap(), None);
        assert!(content(Number::F32, 1, &Init::File("/nonexistent".into()), 0).is_err());
        assert_eq!(Number::I8.show(&[255]), "-1");
        assert_eq!(Number::F16.show(&[0, 60]), "1");
    }
}
