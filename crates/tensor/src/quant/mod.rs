//! Block formats of quantized weights: ggml's formats, as GGUF files store them.
//!
//! [`FORMATS`] is the table. Each file in `formats` describes one format: the layout of its blocks, reading and writing on the host, and
//! the kernel source for reading on devices ([`blocks`]). `parts` has code that several formats share.
//!
//! Values read from blocks equal ggml's to the bit. The kernels for few rows read a matrix through one function, `unpack`, which the
//! source of each format defines. A program includes only the sources of the formats that its launch names with the define `FORMAT`;
//! shared sources do not depend on a format. Products of more rows write the dense matrix once and multiply that.
//!
//! With activations in bytes ([`Activations`]), products use integers: 32 elements of A are rounded once and multiplied by codes. GPUs
//! read row by row. CPUs read 16 adjacent rows (`panels`), for prompts as well. The single-launch decoding step reads rows in `planes`.
//! With planes, tensor cores multiply up to 128 rows as 16-bit floats.

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

    /// Returns the format with this name, ignoring case.
    ///
    /// # Errors
    /// `Unsupported` with all names.
    pub fn named(name: &str) -> Result<&'static Format> {
        FORMATS.iter().find(|f| f.name.eq_ignore_ascii_case(name)).copied().ok_or_else(|| {
            let names = FORMATS.iter().map(|f| f.name).collect::<Vec<_>>().join(", ");
            Error::unsupported(format!("no format {name:?}; expected one of {names}"))
        })
    }
}
