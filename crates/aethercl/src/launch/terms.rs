//! Input and output of a launch: arguments, range, options; outcome or error.

use crate::check::{Checks, Finding};
use crate::counters::Counters;
use crate::image::{Image, Sampler};
use crate::memory::MemoryError;
use std::fmt;
use std::time::Duration;

/// Permitted accesses of a kernel to a buffer: the launch's contract, which a check enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only read.
    Read,
    /// Written, and possibly read.
    Write,
}

/// An argument of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arg<'a> {
    /// A range of device memory. Address 0 and no bytes: a null pointer.
    Buffer {
        /// Its first byte.
        address: u64,
        /// Number of bytes that the kernel may access.
        bytes: u64,
        /// Permitted access.
        access: Access,
    },
    /// A value's bytes.
    Scalar(&'a [u8]),
    /// Local memory of this many bytes.
    Local(usize),
    /// An image, and the permitted access.
    Image(Image, Access),
    /// A sampler.
    Sampler(Sampler),
    /// Device memory that the kernel reaches through loaded addresses. These arguments follow those of its parameters.
    Indirect {
        /// Its first byte.
        address: u64,
        /// Number of bytes that the kernel may access.
        bytes: u64,
        /// Permitted access.
        access: Access,
    },
}

/// Number of work-items and group sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NdRange {
    /// Work-items in each dimension; 1 in unused dimensions.
    pub global: [u64; 3],
    /// Work-items per group in each dimension. Groups at the end may be smaller.
    pub local: [u64; 3],
    /// The first global id.
    pub offset: [u64; 3],
    /// Dimensions in use, 1 to 3.
    pub dimensions: u32,
}

impl NdRange {
    /// One dimension.
    pub fn line(global: u64, local: u64) -> NdRange {
        NdRange { global: [global, 1, 1], local: [local, 1, 1], offset: [0; 3], dimensions: 1 }
    }

    /// Two dimensions.
    pub fn plane(global: [u64; 2], local: [u64; 2]) -> NdRange {
        NdRange {
            global: [global[0], global[1], 1],
            local: [local[0], local[1], 1],
            offset: [0; 3],
            dimensions: 2,
        }
    }
}

/// Options of a launch.
#[derive(Debug, Clone)]
pub struct LaunchOptions {
    /// Checks to run. Findings are those of groups that run in order.
    pub checks: Checks,
    /// Whether to count operations of the kernel.
    pub counters: bool,
    /// With `counters`: whether to count by source line too.
    pub lines: bool,
    /// Number of threads. Results do not depend on it.
    pub threads: usize,
    /// Number of instructions after which a group counts as hanging.
    pub max_steps: u64,
    /// CPU time after which a group counts as hanging; `None` for no limit. Instructions take longer with more work-items per group and more checks.
    pub max_time: Option<Duration>,
    /// Work-items per sub-group, and per SIMD group in the counters, for kernels that do not require a number.
    pub sub_group: u32,
    /// Runs only this many groups, spread over the launch and always the same ones, and scales the counters up to all groups. Gives times of launches
    /// that are too large to compute. Buffers keep their content where a skipped group would have written.
    pub sample: Option<u64>,
}

impl Default for LaunchOptions {
    fn default() -> LaunchOptions {
        LaunchOptions {
            checks: Checks::NONE,
            counters: false,
            lines: false,
            threads: 1,
            max_steps: MAX_STEPS,
            max_time: Some(MAX_TIME),
            sub_group: 32,
            sample: None,
        }
    }
}

/// Result of a launch in addition to memory.
#[derive(Debug, Clone, Default)]
pub struct LaunchOutcome {
    /// Findings of the checks.
    pub findings: Vec<Finding>,
    /// Counters.
    pub counters: Counters,
    /// Output of the kernel's `printf`, in group order.
    pub printf: String,
}

/// Reason for the failure of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaunchError {
    /// No kernel of this name.
    NoKernel(String),
    /// An argument does not match its parameter.
    Argument {
        /// Index of the argument from 0.
        index: usize,
        /// The problem.
        message: String,
    },
    /// The range cannot be executed.
    Range(String),
    /// A construct that this crate cannot execute, in the form of a compiler message.
    Unsupported(String),
    /// The kernel ran too long or reached unreachable code: the message with the line.
    Stopped(String),
    /// A buffer is not in memory.
    Memory(MemoryError),
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LaunchError::NoKernel(name) => write!(f, "kernel `{name}` does not exist"),
            LaunchError::Argument { index, message } => write!(f, "argument {index}: {message}"),
            LaunchError::Range(message)
            | LaunchError::Unsupported(message)
            | LaunchError::Stopped(message) => f.write_str(message),
            LaunchError::Memory(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LaunchError {}

/// Default maximum number of instructions per group. An empty loop reaches it within seconds, and the longest groups of common kernels need a
/// thousandth of it.
pub const MAX_STEPS: u64 = 100_000_000;
/// Default time limit per group. The longest groups of common kernels take a second or two with every check.
pub const MAX_TIME: Duration = Duration::from_secs(30);

/// Maximum number of work-items per group.
pub const MAX_GROUP: u64 = 1024;
