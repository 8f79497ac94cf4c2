//! F16: plain elements without blocks.

use crate::quant::format::Format;
use crate::quant::parts::plain::{read, write};
use half::f16;

/// `[f16]`, IEEE 754 binary16.
pub static F16: Format = Format {
    name: "F16",
    number: 1,
    block: 1,
    bytes: 2,
    dequantise: |b, y| read(b, y, |b| f16::from_le_bytes(b).to_f32()),
    quantise: Some(|x, _, b| write(x, b, |x| f16::from_f32(x).to_le_bytes())),
    kernels: None,
};
