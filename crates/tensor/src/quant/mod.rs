//! Block formats of quantized weights: those of ggml and GGUF files.
//!
//! [`FORMATS`] is the table. Each file of `formats` defines one format: the layout of its blocks, how the host reads and writes them, and the
//! OpenCL source with which kernels read them on devices ([`blocks`]). Code that several formats share is in `parts`.

pub mod blocks;
mod fit;
mod format;
mod formats;
pub mod grids;
#[cfg(test)]
mod int8_tests;
pub(crate) mod panels;
mod parts;
mod pieces;
mod planes;
mod super_block;
#[cfg(test)]
mod tests;
mod texts;
mod threads;

pub use blocks::{Activations, Blocks};
pub(crate) use blocks::{BlockOrder, Stored};
pub use format::Format;
pub use formats::*;
pub(crate) use texts::{CODES, FORMAT, FORMAT_LIST, PLANES, UNPACK, list_of, of_format, texts};

use netcl_device::{Error, Result};

impl Format {
    /// Returns the format with this number in files.
    pub fn of(number: u32) -> Option<&'static Format> {
        FORMATS.iter().find(|f| f.number == number).copied()
    }

    /// Returns the format with this name, in upper or lower case.
    ///
    /// # Errors
    /// `Unsupported`, with all names.
    pub fn named(name: &str) -> Result<&'static Format> {
        FORMATS.iter().find(|f| f.name.eq_ignore_ascii_case(name)).copied().ok_or_else(|| {
            let names = FORMATS.iter().map(|f| f.name).collect::<Vec<_>>().join(", ");
            Error::unsupported(format!("unknown format {name:?}, expected one of {names}"))
        })
    }
}
