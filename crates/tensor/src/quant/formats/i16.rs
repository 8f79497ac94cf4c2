//! I16: plain elements without blocks.

use crate::quant::format::Format;
use crate::quant::parts::plain::read;

/// `[i16]`
pub static I16: Format = Format {
    name: "I16",
    number: 25,
    block: 1,
    bytes: 2,
    dequantise: |b, y| read(b, y, |b| f32::from(i16::from_le_bytes(b))),
    quantise: None,
    kernels: None,
};
