//! Sources, positions in them, and messages about them.

mod diagnostics;
mod map;
mod spelling;

pub use diagnostics::{Diagnostic, Diagnostics, Severity};
pub use map::{Expansion, Location, SourceMap, Span};
pub(crate) use spelling::did_you_mean;
