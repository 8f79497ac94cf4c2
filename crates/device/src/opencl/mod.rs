//! OpenCL in three floors: `sys` (table of optional functions), `result` (one call, one `Result`), `safe` (the driver) over
//! `objects` (owners).
#![allow(unsafe_code)]

mod args;
mod codes;
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
