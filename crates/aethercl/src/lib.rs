//! A simulated GPU that executes OpenCL C, checks every access, counts what the hardware would do, and models its time.
//!
//! The line of data: text → [`preprocess`] → [`lex`] → `parse` → `sema` → [`hir`] (typed program) → execution.

#![forbid(unsafe_code)]

mod builtins;
pub mod counters;
pub mod exec;
pub mod hir;
pub mod machine;
pub mod memory;
pub mod model;
mod compile;
pub mod lex;
pub mod options;
mod parse;
pub mod preprocess;
mod sema;
pub mod source;
pub mod types;

pub use compile::{BuildError, Source, compile, compile_for};
pub use options::{Includes, Target};
