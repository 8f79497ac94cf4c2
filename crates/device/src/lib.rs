//! Devices.
pub mod error;
pub mod host;
pub use error::{Error, ErrorKind, Result};
pub use host::MappedFile;
