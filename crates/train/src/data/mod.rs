//! Training data: from `--data` to batches of token ids.
//!
//! [`DataSource::open`] finds the files. [`DataSource::into_corpus`] encodes text ([`TokenCache`] caches the tokens). [`split`] splits off the
//! validation part. [`records`] reads conversations and other records, and encodes them with a mask. [`Loader`] computes the batch of a position (the position is the only state). [`Prefetch`] computes batches ahead.

mod batch;
mod corpus;
mod encoding;
mod files;
mod foreign;
mod format;
mod id_file;
mod left_out;
mod loader;
mod pieces;
mod prefetch;
mod progress;
pub(crate) mod random;
mod record;
pub mod records;
mod role;
mod shard;
mod source;
mod split;
mod strided;
mod text;
mod token_cache;
mod tokens;

pub use batch::{Batch, IGNORED_TARGET};
pub use corpus::Corpus;
pub use encoding::TextEncoding;
pub use loader::{Eval, Loader};
pub use netcl_model::checkpoint::Position;
pub use prefetch::Prefetch;
pub(crate) use prefetch::ahead;
pub use progress::{DataProgress, DataWatch, Stage};
pub(crate) use progress::{DataWatcher, done};
pub use record::{DATA_FILE, DataRecord};
pub use source::{DataSource, Reading};
pub use split::{Splits, split};
pub use strided::{Scored, Strided};
pub use text::TextFile;
pub use token_cache::{TokenCache, TokenEntry};
pub use tokens::Tokens;
