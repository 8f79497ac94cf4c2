//! What a launch is given and what it gives back: arguments, range, options; outcome or error.

use crate::check::{Checks, Finding};
use crate::counters::Counters;
use crate::image::{Image, Sampler};
use crate::memory::MemoryError;
use std::fmt;
use std::time::Duration;

/// What a kernel may do with a buffer: the launch's contract, which checks hold the kernel to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only read.
    Read,
    /// Written, and perhaps read.
    Write,
}

/// An argument of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arg<'a> {
    /// A range of device memory. Address 0 and no bytes: a null pointer.
    Buffer {
        /// Its first byte.
        address: u64,
        /// How many bytes the kernel may touch.
        bytes: u64,
        /// What it may do with them.
        access: Access,
    },
    /// A value's bytes.
    Scalar(&'a [u8]),
    /// Local memory of so many bytes.
    Local(usize),
    /// An image, and what the kernel may do with it.
    Image(Image, Access),
    /// A sampler.
    Sampler(Sampler),
    /// Device memory that the kernel reaches by addresses which it reads, behind the arguments of its parameters.
    Indirect {
        /// Its first byte.
        address: u64,
        /// How many bytes the kernel may touch.
        bytes: u64,
        /// What it may do with them.
        access: Access,
    },
}

/// How many work-items, in which groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NdRange {
    /// Work-items in each dimension; 1 in those not used.
    pub global: [u64; 3],
    /// Work-items of a group in each dimension. Groups at the end may be smaller.
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

/// How to launch.
#[derive(Debug, Clone)]
pub struct LaunchOptions {
    /// Checks to run. What they find is what groups that run in order make them find.
    pub checks: Checks,
    /// Count what the kernel does.
    pub counters: bool,
    /// With `counters`: count by source line too.
    pub lines: bool,
    /// Threads over work-groups. Results do not depend on it.
    pub threads: usize,
    /// Instructions a group may execute before it counts as hanging.
    pub max_steps: u64,
    /// Processor time that a group may take before it counts as hanging; none for as long as it takes. Instructions take longer the
    /// more work-items a group has and the more is checked.
    pub max_time: Option<Duration>,
    /// Work-items to a sub-group and to a SIMD group in the counters, of kernels that do not require a number of them.
    pub sub_group: u32,
    /// Run only so many groups, spread over the launch and the same ones every time, and scale the counters up to all of
    /// them: for the time of launches that are too large to be computed. Buffers keep what they held where a group that
    /// was left out would have written.
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

/// What a launch leaves behind besides memory.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What the checks found.
    pub findings: Vec<Finding>,
    /// What was counted.
    pub counters: Counters,
    /// What the kernel printed, in the order of its groups.
    pub printf: String,
}

/// Why a launch failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaunchError {
    /// No kernel of this name.
    NoKernel(String),
    /// An argument does not fit its parameter.
    Argument {
        /// Number of the argument from 0.
        index: usize,
        /// What is wrong.
        message: String,
    },
    /// The range cannot be executed.
    Range(String),
    /// A construct that this crate cannot execute, as a compiler says it.
    Unsupported(String),
    /// The kernel ran too long, or into what it must not reach: the message with the line.
    Stopped(String),
    /// A buffer is not in memory.
    Memory(MemoryError),
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LaunchError::NoKernel(name) => write!(f, "there is no kernel `{name}`"),
            LaunchError::Argument { index, message } => write!(f, "argument {index}: {message}"),
            LaunchError::Range(message)
            | LaunchError::Unsupported(message)
            | LaunchError::Stopped(message) => f.write_str(message),
            LaunchError::Memory(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LaunchError {}

/// Instructions a group may execute by default: a loop of nothing comes to its end in seconds, and the longest groups of
/// common kernels take a thousandth of them.
pub const MAX_STEPS: u64 = 100_000_000;
/// Time that a group may take by default. The longest groups of common kernels take a second or two with every check.
pub const MAX_TIME: Duration = Duration::from_secs(30);

/// Work-items of a group at most.
pub const MAX_GROUP: u64 = 1024;
