//! BF16: plain elements without blocks.

use crate::quant::format::Format;
use crate::quant::parts::plain::{read, write};
use half::bf16;

/// `[bf16]`, the upper half of an f32.
pub static BF16: Format = Format {
    name: "BF16",
    number: 30,
    block: 1,
    bytes: 2,
    dequantise: |b, y| read(b, y, |b| bf16::from_le_bytes(b).to_f32()),
    quantise: Some(|x, _, b| write(x, b, |x| bf16::from_f32(x).to_le_bytes())),
    kernels: None,
};
