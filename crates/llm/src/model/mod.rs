//! Models on disk: Hugging Face folders, training run folders and GGUF files, and conversions between them.
//!
//! `source` reads a model in any layout, `convert` writes it in another one, and `mix` chooses the format of each tensor. Metadata that would not
//! read back as the same model are refused before the work begins.

pub mod adapter;
mod architecture;
mod convert;
mod generation;
mod mix;
mod names;
mod pooling;
mod presets;
mod probe;
mod random;
mod source;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tokenizer_tests;
mod tokens;

pub use architecture::{ARCHITECTURES, Architecture, read_config, write_config};
pub(crate) use convert::stored_as;
pub use convert::{
    Importance, OutputFormat, Progress, WriteOptions, convert, planned, write_adapter, write_description,
};
pub use mix::{MIXES, Mix};
pub use names::{Change, Placed};
pub(crate) use pooling::Pooling;
pub use presets::{Preset, known};
pub use probe::tokenizer_file;
pub use random::RandomModel;
pub use source::{Origin, Source, Stored};
