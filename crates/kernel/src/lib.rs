//! netcl-kernel: takes OpenCL C and launches kernels. It does not know tensors.
//!
//! A [`Kernel`] is a source with defines and tuned parameters. [`Kernel::launch`] binds arguments, builds the source for the device on first use (or
//! loads it from the disk cache) and enqueues it.
#![forbid(unsafe_code)]

pub mod ahead;
mod cache;
pub mod ceiling;
mod choose;
mod define;
mod dtype;
pub mod generate;
mod guard;
pub mod hash;
mod kernel;
mod launch;
mod order;
mod programs;
mod text;
pub mod tune;
mod variants;
pub mod vendors;

pub use cache::{CacheEntry, DiskCache};
pub use define::{Text, Value};
pub use dtype::DType;
pub use guard::DriverRecord;
pub use kernel::{CHOSEN, Kernel, PRELUDE, Reload};
pub use launch::{Launch, Operand, ResolvedLaunch, Scalar, checked_only};
pub use order::Order;
pub use programs::{BuildStats, Programs};
pub use variants::{Usable, Variants};
