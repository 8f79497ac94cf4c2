//! I32: plain elements without blocks.

use crate::quant::format::Format;
use crate::quant::parts::plain::read;

/// `[i32]`
pub static I32: Format = Format {
    name: "I32",
    number: 26,
    block: 1,
    bytes: 4,
    dequantise: |b, y| read(b, y, |b| i32::from_le_bytes(b) as f32),
    quantise: None,
    kernels: None,
};
