//! Training data: from `--data` to batches of token ids.
//!
//! [`Source::open`] finds the files, [`Source::into_corpus`] turns text into tokens, [`split`] cuts off the validation
//! part, [`Loader`] computes the batch of any position (nothing but the position is state), [`Prefetch`] computes ahead.

mod corpus;
mod files;
mod loader;
mod prefetch;
mod random;
mod shard;
mod source;
mod split;
mod tokens;

pub use corpus::Corpus;
pub use loader::{Batch, Eval, Loader, Position};
pub use prefetch::Prefetch;
pub use source::{Source, TextFile};
pub use split::{Splits, split};
pub use tokens::Tokens;
