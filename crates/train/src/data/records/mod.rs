//! Records to fine-tune on: conversations, instructions, prompts with completions, texts, preference pairs.
//!
//! ```text
//! files → RecordReader → Example::of → RecordEncoder → RecordSet
//!         a line each     by its keys   ids, trained    offsets and lengths
//! ```
//!
//! The tokens of all records are one sequence, in the cache on disk or in memory. A bit of each token says whether it is trained, another one that a
//! record begins. [`RecordSet`] keeps 16 bytes per record in memory.

mod alpaca;
mod comparison;
mod encoder;
mod example;
mod fields;
mod kind;
mod messages;
mod open;
mod order;
mod packing;
mod preference;
mod reader;
mod scan;
mod set;
mod table;

pub use encoder::{GivenTemplate, RecordTokenizer, builtin_template};
pub use kind::RecordKind;
pub(crate) use kind::ReferenceLogProbs;
pub(crate) use open::open;
pub use open::{RecordOptions, RecordReport};
pub use packing::Packing;
pub(crate) use preference::{VALUES, value};
pub use set::{RecordSet, RecordSplits};

#[cfg(test)]
mod tests;
