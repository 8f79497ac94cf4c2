//! NumPy files: writes arrays of one dimension, reads arrays of any shape in C order.

use super::number::Number;
use std::path::Path;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Returns whether a path names such a file.
pub fn is_one(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "npy")
}

/// Returns the name of a type, little endian.
fn code(number: Number) -> String {
    let kind = match number {
        Number::F16 | Number::F32 | Number::F64 => 'f',
        Number::I8 | Number::I16 | Number::I32 | Number::I64 => 'i',
        Number::U8 | Number::U16 | Number::U32 | Number::U64 => 'u',
    };
    let order = if number.size() == 1 { '|' } else { '<' };
    format!("{order}{kind}{}", number.size())
}

/// Returns a file of version 1.0 with these values.
pub fn file(number: Number, data: &[u8]) -> Vec<u8> {
    let (code, count) = (code(number), data.len() / number.size());
    let mut header = format!("{{'descr': '{code}', 'fortran_order': False, 'shape': ({count},), }}");
    // With the bytes before it, the header is a multiple of 64 bytes and ends with a line end.
    let length = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.extend(std::iter::repeat_n(' ', length - header.len() - 1));
    header.push('\n');
    let mut out = MAGIC.to_vec();
    out.extend([1, 0]);
    out.extend((length as u16).to_le_bytes());
    out.extend(header.bytes());
    out.extend(data);
    out
}

/// Returns the values of a file, which must have this type.
pub fn values(bytes: &[u8], number: Number) -> Result<Vec<u8>, String> {
    let short = || "it ends within its header".to_string();
    let rest = bytes.strip_prefix(MAGIC).ok_or("it is not a NumPy file")?;
    let (length, begin) = match *rest.get(..6).ok_or_else(short)? {
        [1, 0, a, b, ..] => (usize::from(u16::from_le_bytes([a, b])), 4),
        [2 | 3, 0, a, b, c, d] => (u32::from_le_bytes([a, b, c, d]) as usize, 6),
        _ => return Err("its version is not 1.0, 2.0 or 3.0".into()),
    };
    let header = rest.get(begin..begin + length).ok_or_else(short)?;
    let header = String::from_utf8_lossy(header);
    let wanted = code(number);
    let same = [wanted.clone(), wanted.replace(['<', '|'], "="), wanted.replace('<', "|")];
    if !same.iter().any(|c| header.contains(&format!("'descr': '{c}'"))) {
        return Err(format!("its header is {}, expected values of '{wanted}'", header.trim()));
    }
    if header.contains("'fortran_order': True") {
        return Err("it has Fortran order, expected C order".into());
    }
    Ok(rest[begin + length..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_out_comes_back() {
        let data: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let file = file(Number::F32, &data);
        assert_eq!((file.len() - data.len()) % 64, 0);
        assert!(
            String::from_utf8_lossy(&file)
                .contains("'descr': '<f4', 'fortran_order': False, 'shape': (2,), }")
        );
        assert_eq!(values(&file, Number::F32), Ok(data));
        assert!(values(&file, Number::I32).unwrap_err().contains("<i4"));
        assert!(values(&file[..20], Number::F32).is_err() && values(b"x", Number::F32).is_err());
    }
}
