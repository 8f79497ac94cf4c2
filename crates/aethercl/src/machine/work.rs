//! What a launch descriptor stands for, and what comes back from it.

use crate::Finding;
use crate::counters::Counters;
use crate::memory::Memory;
use crate::model::{Estimate, Profile};
use std::fmt;
use std::sync::Arc;

/// A kernel with its arguments and sizes, ready to run. The machine knows no language: it runs what a descriptor points to.
pub trait Work: Send + Sync {
    /// The kernel's name.
    fn name(&self) -> &str;
    /// Equal for launches that take equally long: same kernel, sizes and scalars.
    fn signature(&self) -> u64;
    /// Whether its time is wanted on a device that does not count by itself.
    fn timed(&self) -> bool {
        false
    }
    /// Program and sizes.
    fn origin(&self) -> Origin {
        Origin::default()
    }
    /// Texts of its program: name and content.
    fn sources(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// Whether a device has what one of its work-groups takes; else what it takes and what there is. Asked before it runs.
    ///
    /// # Errors
    /// Both sizes, in words.
    fn check_resources(&self, _on: &Profile) -> Result<(), String> {
        Ok(())
    }
    /// Runs it to its end on this memory; with `count`, counting what the hardware would do.
    ///
    /// # Errors
    /// Where it cannot run, or does not end.
    fn run(&self, memory: &Memory, count: bool) -> Result<Done, Failure>;
}

/// Where a launch comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Tells the programs of a process apart.
    pub program: u64,
    /// Work-items.
    pub global: [u64; 3],
    /// Work-items of a group.
    pub local: [u64; 3],
}

/// What a kernel left behind beside its results in memory.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// What it did, where that was counted.
    pub counters: Option<Counters>,
    /// What the checks found.
    pub findings: Vec<Finding>,
    /// What it printed.
    pub printed: String,
}

/// Why a kernel did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It cannot run, or did something that ends it.
    Trap(String),
    /// It was still running after as many steps as are allowed.
    Endless(String),
}

/// How a command went.
#[derive(Clone, Debug)]
pub struct Completion {
    /// When the host announced it, ns of the simulated clock.
    pub queued_ns: u64,
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// What came of it.
    pub outcome: Result<Outcome, super::GpuError>,
}

/// What came of a command that went well.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Of a read-back: the bytes.
    pub data: Vec<u8>,
    /// Of a kernel: its name.
    pub kernel: String,
    /// Of a kernel: what it left.
    pub done: Done,
    /// Of a kernel: what the model says. Shared with later launches of the same signature.
    pub estimate: Option<Arc<Estimate>>,
}

/// Called once a command is done, in order of the fences of its queue.
pub type Callback = Box<dyn FnOnce(Completion) + Send>;

/// A command's place in its queue: done once the queue's fence register has reached `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence {
    /// The queue.
    pub queue: usize,
    /// What its fence will be.
    pub value: u64,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fence {} of queue {}", self.value, self.queue)
    }
}
