//! The content of buffers and images before a launch.

use super::number::Number;
use netcl::device::draw::Draw;
use std::path::PathBuf;

/// The content of a buffer before the launch.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// Unwritten: reading it is a defect.
    Unwritten,
    /// Floats in [-1, 1), integers in 0..100, the same in every run.
    Random,
    /// 0, 1, 2, …
    Iota,
    /// One value everywhere.
    Value(Vec<u8>),
    /// The bytes of a file, which must be long enough.
    File(PathBuf),
}

/// Parses a number of elements.
///
/// # Errors
/// If the text is not a number.
pub fn whole(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number of elements"))
}

/// Parses the content, and whether the kernel only reads it.
///
/// # Errors
/// The possible values.
pub fn init(number: Number, rest: &[&str]) -> Result<(Init, bool), String> {
    let (content, read) = match rest {
        [] => ("unwritten", false),
        ["read"] => ("random", true),
        [content] => (*content, false),
        [content, "read"] => (*content, true),
        [_, other, ..] => return Err(format!("{other:?} after a buffer's content; only read is possible")),
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
    Ok((init, read))
}

/// Returns the bytes of a buffer before the launch; `None` if it is unwritten. `seed` differs between buffers.
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
                let why = format!("{} bytes, but the buffer has {bytes}", data.len());
                return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, why));
            }
            data.truncate(bytes);
            data
        }
        Init::Iota => (0..count).flat_map(|i| encode(number, i as f64)).collect(),
        Init::Random => {
            let mut draw = Draw::from_state(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            (0..count).flat_map(|_| encode(number, drawn(number, &mut draw))).collect()
        }
    }))
}

/// Returns the next value of a stream: in [-1, 1) for floats, a whole number below 100 for others.
fn drawn(number: Number, draw: &mut Draw) -> f64 {
    let unit = draw.word() as f64 / 2f64.powi(64);
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

#[cfg(test)]
mod tests {
    use super::*;

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
