//! OpenCL in three layers: `sys` (table of optional functions), `result` (one `Result` per call), and `safe` (the driver) on top of `objects`
//! (owners).
#![allow(unsafe_code)]

mod args;
mod codes;
mod context;
mod discover;
mod load;
mod objects;
mod parts;
mod pinned;
mod result;
mod safe;
mod staging;
mod sys;
mod transfers;

pub use codes::{code_name, hint};
pub use discover::{OpenClDevice, devices};
pub use load::{LoaderReport, report};
pub use safe::OpenClDriver;
