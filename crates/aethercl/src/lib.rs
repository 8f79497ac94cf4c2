//! A simulated GPU that executes OpenCL C, checks every access, counts what the hardware would do, and models its time.
//!
//! The line of data: text → [`preprocess`] → [`lex`] → `parse` → `sema` → [`hir`] (typed program) → execution.

pub mod hir;
pub mod source;
pub mod types;
