//! Formats without blocks: an element has its own bits, little-endian.

use super::format::Format;
use half::{bf16, f16};

/// Each N bytes are an element.
fn read<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let (chunks, _) = bytes.as_chunks::<N>();
    out.iter_mut().zip(chunks).for_each(|(out, bytes)| *out = value(*bytes));
}

/// Each element is N bytes.
fn write<const N: usize>(values: &[f32], bytes: &mut [u8], of: impl Fn(f32) -> [u8; N]) {
    let (chunks, _) = bytes.as_chunks_mut::<N>();
    chunks.iter_mut().zip(values).for_each(|(bytes, value)| *bytes = of(*value));
}

/// `[f32]`
pub static F32: Format = Format {
    name: "F32",
    number: 0,
    block: 1,
    bytes: 4,
    dequantise: |b, y| read(b, y, f32::from_le_bytes),
    quantise: Some(|x, _, b| write(x, b, |x| x.to_le_bytes())),
};
/// `[f16]`, IEEE 754 binary16.
pub static F16: Format = Format {
    name: "F16",
    number: 1,
    block: 1,
    bytes: 2,
    dequantise: |b, y| read(b, y, |b| f16::from_le_bytes(b).to_f32()),
    quantise: Some(|x, _, b| write(x, b, |x| f16::from_f32(x).to_le_bytes())),
};
/// `[bf16]`, the upper half of an f32.
pub static BF16: Format = Format {
    name: "BF16",
    number: 30,
    block: 1,
    bytes: 2,
    dequantise: |b, y| read(b, y, |b| bf16::from_le_bytes(b).to_f32()),
    quantise: Some(|x, _, b| write(x, b, |x| bf16::from_f32(x).to_le_bytes())),
};
/// `[f64]`
pub static F64: Format = Format {
    name: "F64",
    number: 28,
    block: 1,
    bytes: 8,
    dequantise: |b, y| read(b, y, |b| f64::from_le_bytes(b) as f32),
    quantise: Some(|x, _, b| write(x, b, |x| f64::from(x).to_le_bytes())),
};
/// `[i8]`
pub static I8: Format = Format {
    name: "I8",
    number: 24,
    block: 1,
    bytes: 1,
    dequantise: |b, y| read(b, y, |b| f32::from(i8::from_le_bytes(b))),
    quantise: None,
};
/// `[i16]`
pub static I16: Format = Format {
    name: "I16",
    number: 25,
    block: 1,
    bytes: 2,
    dequantise: |b, y| read(b, y, |b| f32::from(i16::from_le_bytes(b))),
    quantise: None,
};
/// `[i32]`
pub static I32: Format = Format {
    name: "I32",
    number: 26,
    block: 1,
    bytes: 4,
    dequantise: |b, y| read(b, y, |b| i32::from_le_bytes(b) as f32),
    quantise: None,
};
/// `[i64]`
pub static I64: Format = Format {
    name: "I64",
    number: 27,
    block: 1,
    bytes: 8,
    dequantise: |b, y| read(b, y, |b| i64::from_le_bytes(b) as f32),
    quantise: None,
};
