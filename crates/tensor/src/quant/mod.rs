//! Block formats of quantised weights: ggml's, as GGUF files hold them.
//!
//! [`FORMATS`] is the table; a file of `formats` has all that is known of one: the layout of its blocks, how the host reads and makes them, and the
//! text by which kernels read them on devices ([`blocks`]). Code that several formats share is in `parts`.

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
