//! Arguments of a kernel as the command line writes them: `buffer:f32:4096:random`, `i32:7`, `f32x4:1,2,3,4`, `local:f32:64`.

use super::number::Number;
use netcl::device::counted;
use std::path::PathBuf;
use std::str::FromStr;

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
    Scalar(Value),
    /// `{<type>:<value>,…}`: a structure or array by its fields.
    Fields(Vec<Part>),
    /// `local:<type>:<count>`
    Local(usize),
    /// `null`: a pointer to nothing.
    Null,
}

/// A number or a vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Type of its elements.
    pub number: Number,
    /// Elements, 1 of a number.
    pub lanes: usize,
    /// As memory holds it.
    pub bytes: Vec<u8>,
}

/// A field of a structure, or an element of an array in one.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// A number or a vector.
    Value(Value),
    /// A structure or an array.
    Fields(Vec<Part>),
}

impl FromStr for KernelArg {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        if s == "null" {
            return Ok(Self::Null);
        }
        if s.starts_with('{') {
            return fields(s).map(Self::Fields);
        }
        let parts: Vec<&str> = s.splitn(5, ':').collect();
        match parts.as_slice() {
            ["buffer", number, count, rest @ ..] if rest.len() <= 2 => buffer(number, count, rest),
            ["buffer", ..] => Err("expected buffer:<type>:<count>[:<content>][:read]".into()),
            ["local", number, count] => Ok(Self::Local(number.parse::<Number>()?.size() * whole(count)?)),
            ["local", ..] => Err("expected local:<type>:<count>".into()),
            [number, values] => scalar(number, values, ',').map(Self::Scalar),
            _ => Err(format!(
                "{s:?}: expected buffer:<type>:<count>[:<content>][:read], local:<type>:<count>, <type>:<value>, {{<type>:<value>,…}} or null"
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

/// `{i32:7,f32x4:1 2 3 4,{u8:1,u8:2}}`: commas between fields, blanks between the values of a vector.
fn fields(text: &str) -> Result<Vec<Part>, String> {
    let inner = text.strip_prefix('{').and_then(|t| t.strip_suffix('}'));
    let inner = inner.ok_or_else(|| format!("{text:?}: expected a structure's fields within {{ and }}"))?;
    let (mut depth, mut start, mut parts) = (0i32, 0, Vec::new());
    for (i, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(inner[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    let one = |part: &str| match part.split_once(':') {
        _ if part.starts_with('{') => fields(part).map(Part::Fields),
        Some((number, values)) => scalar(number, values, ' ').map(Part::Value),
        None => Err(format!("{part:?}: expected a field as <type>:<value> or {{…}}")),
    };
    parts.into_iter().map(one).collect()
}

fn scalar(number: &str, values: &str, between: char) -> Result<Value, String> {
    let (base, lanes) = match number.split_once('x') {
        Some((base, lanes)) => (base, whole(lanes)?),
        None => (number, 1),
    };
    let number: Number = base.parse()?;
    let mut bytes = Vec::new();
    let mut found = 0;
    for value in values.split(between).filter(|v| between != ' ' || !v.is_empty()) {
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
    Ok(Value { number, lanes, bytes })
}

/// The bytes of a buffer before the launch; none where it is not written. `seed` tells buffers apart.
pub fn content(number: Number, count: usize, init: &Init, seed: u64) -> std::io::Result<Option<Vec<u8>>> {
    let bytes = count * number.size();
    Ok(Some(match init {
        Init::Unwritten => return Ok(None),
        Init::Value(value) => value.repeat(count),
        Init::File(path) => {
            let mut data = std::fs::read(path)?;
            if super::npy::is_one(path) {
                let invalid = |why| std::io::Error::new(std::io::ErrorKind::InvalidData, why);
                data = super::npy::values(&data, number).map_err(invalid)?;
            }
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

/// Numbers of one to three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// By dimension; of those that are not named what leaves them out.
    pub of: [u64; 3],
    /// How many are named.
    pub dimensions: u32,
}

fn dimensions(text: &str, otherwise: u64, least: u64, what: &str) -> Result<Sizes, String> {
    let mut of = [otherwise; 3];
    let parts: Vec<&str> = text.split(',').collect();
    if parts.len() > 3 {
        return Err(format!("{}; there are at most three", counted(parts.len(), "dimension")));
    }
    let dimensions = parts.len() as u32;
    for (slot, part) in of.iter_mut().zip(parts) {
        let number = part.trim().parse().ok().filter(|n| *n >= least);
        *slot = number.ok_or_else(|| format!("{part:?} is no {what}"))?;
    }
    Ok(Sizes { of, dimensions })
}

/// Sizes of one to three dimensions: `64,8`.
pub fn sizes(text: &str) -> Result<Sizes, String> {
    dimensions(text, 1, 1, "size")
}

/// Offsets of one to three dimensions.
pub fn offsets(text: &str) -> Result<Sizes, String> {
    dimensions(text, 0, 0, "offset")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        let buffer = |init, read| KernelArg::Buffer { number: Number::F32, count: 4096, init, read };
        let value = |number, lanes, bytes: &[u8]| Value { number, lanes, bytes: bytes.to_vec() };
        let scalar = |number, lanes, bytes: &[u8]| KernelArg::Scalar(value(number, lanes, bytes));
        let one = |n: u8| Part::Value(value(Number::U8, 1, &[n]));
        for (text, expected) in [
            ("buffer:f32:4096:random", buffer(Init::Random, false)),
            ("buffer:f32:4096", buffer(Init::Unwritten, false)),
            ("buffer:f32:4096:read", buffer(Init::Random, true)),
            ("buffer:f32:4096:iota:read", buffer(Init::Iota, true)),
            ("buffer:f32:4096:1.5", buffer(Init::Value(1.5f32.to_le_bytes().to_vec()), false)),
            ("buffer:f32:4096:@x.bin", buffer(Init::File("x.bin".into()), false)),
            ("i32:-7", scalar(Number::I32, 1, &(-7i32).to_le_bytes())),
            ("u8x4:1,2,3,4", scalar(Number::U8, 4, &[1, 2, 3, 4])),
            ("u8x3:1,2,3", scalar(Number::U8, 3, &[1, 2, 3, 0])),
            ("null", KernelArg::Null),
            (
                "{u8:1, {u8:2,u8:3}, u8x2:4 5}",
                KernelArg::Fields(vec![
                    one(1),
                    Part::Fields(vec![one(2), one(3)]),
                    Part::Value(value(Number::U8, 2, &[4, 5])),
                ]),
            ),
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
            ("{i32:1", "within"),
            ("{i32}", "field"),
            ("{f32x4:1 2}", "4 lanes"),
        ] {
            let e = text.parse::<KernelArg>().unwrap_err();
            assert!(e.contains(part), "{text}: {e}");
        }
        assert_eq!(sizes("64,8"), Ok(Sizes { of: [64, 8, 1], dimensions: 2 }));
        assert_eq!(sizes("4,1"), Ok(Sizes { of: [4, 1, 1], dimensions: 2 }));
        assert_eq!(offsets("0,8"), Ok(Sizes { of: [0, 8, 0], dimensions: 2 }));
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
