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
pub mod source;
pub mod types;
