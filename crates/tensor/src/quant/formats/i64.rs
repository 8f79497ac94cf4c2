//! I64: plain elements without blocks.

use crate::quant::format::Format;
use crate::quant::parts::plain::read;

/// `[i64]`
pub static I64: Format = Format {
    name: "I64",
    number: 27,
    block: 1,
    bytes: 8,
    dequantise: |b, y| read(b, y, |b| i64::from_le_bytes(b) as f32),
    quantise: None,
    kernels: None,
};
