//! I8: plain elements without blocks.

use crate::quant::format::Format;
use crate::quant::parts::plain::read;

/// `[i8]`
pub static I8: Format = Format {
    name: "I8",
    number: 24,
    block: 1,
    bytes: 1,
    dequantise: |b, y| read(b, y, |b| f32::from(i8::from_le_bytes(b))),
    quantise: None,
    kernels: None,
};
