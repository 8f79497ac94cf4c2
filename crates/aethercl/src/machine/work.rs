//! Content of a launch descriptor, and results of its execution.

use crate::Finding;
use crate::counters::Counters;
use crate::memory::Memory;
use crate::model::{Estimate, Profile};
use std::fmt;
use std::sync::Arc;

/// A kernel with its arguments and sizes, ready to run. The machine is independent of the language: it runs whatever a descriptor refers to.
pub trait Work: Send + Sync {
    /// Returns the kernel's name.
    fn name(&self) -> &str;
    /// Returns a value that is equal for launches of equal duration: same kernel, sizes and scalars.
    fn signature(&self) -> u64;
    /// Returns true if its time is requested on a device that does not count by default.
    fn timed(&self) -> bool {
        false
    }
    /// Program and sizes.
    fn origin(&self) -> Origin {
        Origin::default()
    }
    /// Returns the sources of its program: name and content.
    fn sources(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// Returns the addresses of the device memory that it uses, one per argument.
    fn addresses(&self) -> Vec<u64> {
        Vec::new()
    }
    /// Checks that a device has the resources for one of its work-groups. Called before it runs.
    ///
    /// # Errors
    /// Required and available resources, as text.
    fn check_resources(&self, _on: &Profile) -> Result<(), String> {
        Ok(())
    }
    /// Runs it to its end on this memory. With `count`, counts hardware operations.
    ///
    /// # Errors
    /// If it cannot run or does not end.
    fn run(&self, memory: &Memory, count: bool) -> Result<Done, Failure>;
}

/// Origin of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Identifies the program within the process.
    pub program: u64,
    /// Work-items.
    pub global: [u64; 3],
    /// Work-items per group.
    pub local: [u64; 3],
}

/// Results of a kernel in addition to memory.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Its counters, if counted.
    pub counters: Option<Counters>,
    /// Findings of the checks.
    pub findings: Vec<Finding>,
    /// Its output.
    pub printed: String,
}

/// Reason why a kernel did not end normally.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It cannot run, or performed an operation that ends it.
    Trap(String),
    /// It was still running after the maximum number of steps.
    Endless(String),
}

/// Result of a command.
#[derive(Clone, Debug)]
pub struct Completion {
    /// Announcement time, ns of the simulated clock.
    pub queued_ns: u64,
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Its outcome.
    pub outcome: Result<CommandOutcome, super::GpuError>,
}

/// Outcome of a successful command.
#[derive(Clone, Debug, Default)]
pub struct CommandOutcome {
    /// For a read-back: the bytes.
    pub data: Vec<u8>,
    /// For a kernel: its name.
    pub kernel: String,
    /// For a kernel: its results.
    pub done: Done,
    /// For a kernel: the model's estimate. Shared with later launches of the same signature.
    pub estimate: Option<Arc<Estimate>>,
}

/// Called after a command is complete, in fence order of its queue.
pub type Callback = Box<dyn FnOnce(Completion) + Send>;

/// Position of a command in its queue: it is complete when the queue's fence register has reached `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence {
    /// The queue.
    pub queue: usize,
    /// Its fence value.
    pub value: u64,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fence {} of queue {}", self.value, self.queue)
    }
}
