//! Block formats of quantised weights: ggml's, as GGUF files hold them.
//!
//! [`FORMATS`] is the table; the bytes of a block are drawn at the head of each family's file: [`legacy`], [`k`], [`codebook`], [`grid`],
//! [`ternary`], and [`plain`] for formats without blocks. This is the host's side; kernels unpack the same bytes on the device ([`blocks`],
//! `unpack.cl`).

pub mod blocks;
pub mod codebook;
mod fit;
mod format;
pub mod grid;
pub mod grids;
#[cfg(test)]
mod int8_tests;
pub mod k;
pub mod legacy;
pub(crate) mod panels;
pub mod plain;
mod planes;
mod super_block;
pub mod ternary;
#[cfg(test)]
mod tests;
mod threads;

pub use blocks::{Activations, Blocks};
pub(crate) use blocks::{BlockOrder, Stored};
pub use codebook::{IQ4_NL, IQ4_XS, MXFP4, NVFP4};
pub use format::Format;
pub(crate) use format::{CODES, PLANES, UNPACK};
pub use grid::{IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
pub use k::{Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K};
pub use legacy::{Q1_0, Q2_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1};
pub use plain::{BF16, F16, F32, F64, I8, I16, I32, I64};
pub use ternary::{TQ1_0, TQ2_0};

use netcl_device::{Error, Result};

/// Every format, by its number in files.
pub static FORMATS: [&Format; 35] = [
    &F32, &F16, &Q4_0, &Q4_1, &Q5_0, &Q5_1, &Q8_0, &Q8_1, &Q2_K, &Q3_K, &Q4_K, &Q5_K, &Q6_K, &Q8_K, &IQ2_XXS,
    &IQ2_XS, &IQ3_XXS, &IQ1_S, &IQ4_NL, &IQ3_S, &IQ2_S, &IQ4_XS, &I8, &I16, &I32, &I64, &F64, &IQ1_M, &BF16,
    &TQ1_0, &TQ2_0, &MXFP4, &NVFP4, &Q1_0, &Q2_0,
];

impl Format {
    /// The format with this number in files.
    pub fn of(number: u32) -> Option<&'static Format> {
        FORMATS.iter().find(|f| f.number == number).copied()
    }

    /// The format of this name, in capitals or not.
    ///
    /// # Errors
    /// `Unsupported` with all names.
    pub fn named(name: &str) -> Result<&'static Format> {
        FORMATS.iter().find(|f| f.name.eq_ignore_ascii_case(name)).copied().ok_or_else(|| {
            let names = FORMATS.iter().map(|f| f.name).collect::<Vec<_>>().join(", ");
            Error::unsupported(format!("no format {name:?}; there are {names}"))
        })
    }
}
