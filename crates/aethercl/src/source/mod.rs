//! Source texts, positions in them, and messages about them.

mod diagnostics;
mod map;

pub use diagnostics::{Diagnostic, Diagnostics, Severity};
pub use map::{Expansion, Location, SourceMap, Span};
