//! What programs did on simulated GPUs, as data, as text and as a page. `aethercl` and `netcl sim` share it, and so their exit codes.
//!
//! The machine fills in what it saw where [`Options::journal`](crate::machine::Options::journal) is set; its host adds calls of its own and
//! what checks found. Lists that grow with the run have an end, and say how many entries were left out; sums are of everything.

mod data;
mod fill;
mod page;
mod summary;
mod text;

pub use data::{
    Call, Ceilings, Command, Device, Figures, Finding, Function, Kernel, Launch, Limit, Line, MemoryCurve,
    MemoryEvent, Part, Report, Source, Transfer, UnitRun, WorkItem,
};
pub use fill::{ceilings, figures, finding, launch};
pub use page::page;
pub use summary::{FAILED, FOUND, KernelRow, Summary, TransferRow};
pub use text::{findings, text};

/// Entries that each list of a report has at most.
pub const KEPT: usize = 10_000;
