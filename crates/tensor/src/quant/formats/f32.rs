//! F32: plain elements without blocks.

use crate::quant::format::Format;
use crate::quant::parts::plain::{read, write};

/// `[f32]`
pub static F32: Format = Format {
    name: "F32",
    number: 0,
    block: 1,
    bytes: 4,
    dequantise: |b, y| read(b, y, f32::from_le_bytes),
    quantise: Some(|x, _, b| write(x, b, |x| x.to_le_bytes())),
    kernels: None,
};
