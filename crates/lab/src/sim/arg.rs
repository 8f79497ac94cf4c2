//! Arguments of a kernel on the command line: `buffer:f32:4096:random`, `i32:7`, `f32x4:1,2,3,4`, `local:f32:64`.

use super::content::{Init, init, whole};
use super::image::{self, ImageArg};
use super::number::Number;
use aethercl::image::Sampler;
use netcl::device::counted;
use std::str::FromStr;

/// One argument.
#[derive(Clone, Debug, PartialEq)]
pub enum KernelArg {
    /// `buffer:<type>:<count>[:<content>][:read]`
    Buffer {
        /// Type of its elements.
        number: Number,
        /// Number of elements.
        count: usize,
        /// Content before the launch.
        init: Init,
        /// The kernel must not write to it.
        read: bool,
    },
    /// `<type>:<value>`, or `<type>x<n>:<value>,<value>,…`
    Scalar(Value),
    /// `{<type>:<value>,…}`: a structure or array by its fields.
    Fields(Vec<Part>),
    /// `image:<channels>:<type>:<width>[x<height>[x<depth>]][:<content>][:read]`
    Image(ImageArg),
    /// `sampler:<mode>,…`
    Sampler(Sampler),
    /// `local:<type>:<count>`
    Local(usize),
    /// `null`: a null pointer.
    Null,
}

/// A number or a vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Type of its elements.
    pub number: Number,
    /// Number of elements; 1 for a scalar.
    pub lanes: usize,
    /// Bytes in memory.
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
        if let Some(rest) = s.strip_prefix("image:") {
            return image::image(rest).map(Self::Image);
        }
        if let Some(rest) = s.strip_prefix("sampler:") {
            return image::sampler(rest).map(Self::Sampler);
        }
        let parts: Vec<&str> = s.splitn(5, ':').collect();
        match parts.as_slice() {
            ["buffer", number, count, rest @ ..] if rest.len() <= 2 => buffer(number, count, rest),
            ["buffer", ..] => Err("expected buffer:<type>:<count>[:<content>][:read]".into()),
            ["local", number, count] => Ok(Self::Local(number.parse::<Number>()?.size() * whole(count)?)),
            ["local", ..] => Err("expected local:<type>:<count>".into()),
            [number, values] => scalar(number, values, ',').map(Self::Scalar),
            _ => Err(format!(
                "{s:?}: expected buffer:<type>:<count>[:<content>][:read], image:…, sampler:…, local:<type>:<count>, <type>:<value>, {{<type>:<value>,…}} or null"
            )),
        }
    }
}

fn buffer(number: &str, count: &str, rest: &[&str]) -> Result<KernelArg, String> {
    let number: Number = number.parse()?;
    let (init, read) = init(number, rest)?;
    Ok(KernelArg::Buffer { number, count: whole(count)?, init, read })
}

/// Parses `{i32:7,f32x4:1 2 3 4,{u8:1,u8:2}}`: commas between fields, spaces between the values of a vector.
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
    // A vector of three takes the space of four.
    if lanes == 3 {
        bytes.extend(vec![0; number.size()]);
    }
    Ok(Value { number, lanes, bytes })
}

/// Numbers of one to three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Size per dimension; missing ones have their default.
    pub of: [u64; 3],
    /// Number of given dimensions.
    pub dimensions: u32,
}

fn dimensions(text: &str, otherwise: u64, least: u64, what: &str) -> Result<Sizes, String> {
    let mut of = [otherwise; 3];
    let parts: Vec<&str> = text.split(',').collect();
    if parts.len() > 3 {
        return Err(format!("{}; at most three are possible", counted(parts.len(), "dimension")));
    }
    let dimensions = parts.len() as u32;
    for (slot, part) in of.iter_mut().zip(parts) {
        let number = part.trim().parse().ok().filter(|n| *n >= least);
        *slot = number.ok_or_else(|| format!("{part:?} is not a valid {what}"))?;
    }
    Ok(Sizes { of, dimensions })
}

/// Parses sizes of one to three dimensions: `64,8`.
pub fn sizes(text: &str) -> Result<Sizes, String> {
    dimensions(text, 1, 1, "size")
}

/// Parses offsets of one to three dimensions.
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
}
