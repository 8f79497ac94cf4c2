//! F64: plain elements without blocks.

use crate::quant::format::Format;
use crate::quant::parts::plain::{read, write};

/// `[f64]`
pub static F64: Format = Format {
    name: "F64",
    number: 28,
    block: 1,
    bytes: 8,
    dequantise: |b, y| read(b, y, |b| f64::from_le_bytes(b) as f32),
    quantise: Some(|x, _, b| write(x, b, |x| f64::from(x).to_le_bytes())),
    kernels: None,
};
