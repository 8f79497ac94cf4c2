//! Reports of programs on simulated GPUs, as data, text and HTML page. `aethercl` and `netcl sim` share them, and therefore also their exit codes.
//!
//! The machine records its data if [`MachineOptions::journal`](crate::machine::MachineOptions::journal) is set; its host adds API calls and findings.
//! Lists that grow with the run are limited and report the number of omitted entries; sums include everything.

mod data;
mod fill;
mod page;
mod summary;
mod text;

pub use data::{
    ApiCall, Ceilings, Command, Device, Figures, FunctionCalls, GroupLimit, KernelSummary, LaunchEstimate,
    Line, MemoryCurve, MemoryEvent, Part, ReportedFinding, RunReport, SourceFile, Transfer, UnitRun,
    WorkItem,
};
pub use fill::{ceilings, figures, finding, launch};
pub use page::page;
pub use summary::{FAILED, FOUND, KernelRow, Summary, TransferRow};
pub use text::{findings, text};

/// Maximum number of entries of each list in a report.
pub const MAX_ENTRIES: usize = 10_000;
