//! A simulated GPU that executes OpenCL C, checks every access, counts hardware operations, and models its time.
//!
//! Data flow: source → [`preprocess`] → [`lex`] → `parse` → `sema` → [`hir`] (typed program) → execution.

#![forbid(unsafe_code)]

mod builtins;
pub mod check;
mod compile;
pub mod counters;
mod exec;
pub mod hir;
pub mod image;
mod launch;
pub mod lex;
pub mod machine;
pub mod memory;
pub mod model;
pub mod options;
mod parse;
pub mod preprocess;
mod program;
pub mod report;
mod sema;
pub mod source;
mod text;
pub mod types;

pub use check::{Checks, Finding, FindingKind, ItemIds};
pub use compile::{BuildError, Source, check_unit, compile, compile_for, preprocessed};
pub use counters::Counters;
pub use launch::{Access, Arg, LaunchError, LaunchOptions, LaunchOutcome, MAX_STEPS, MAX_TIME, NdRange};
pub use memory::Memory;
pub use options::{Includes, Target};
pub use program::{ArgInfo, ArgKind, KernelInfo, Program};
pub use text::counted;
