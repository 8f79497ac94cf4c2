//! Replaceable decisions of the machine: the queue whose command is read next, and the pages of an allocation.
//!
//! Both have defaults: commands that can begin first are read first, and an allocation takes the first run of pages that is long enough. A
//! [`DispatchScheduler`] or a [`MemoryScheduler`] replaces them. A scheduler changes times and places, never results: commands of a queue run in
//! order, and a WAIT packet still waits.

use super::packet::Packet;
use std::fmt;

/// A queue whose next command can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyQueue {
    /// Number of the queue.
    pub queue: usize,
    /// Earliest start of the command, ns of the device clock.
    pub ready_ns: u64,
    /// Time of the doorbell, ns of the device clock.
    pub announced_ns: u64,
    /// The command.
    pub packet: Packet,
}

/// Chooses the queue whose command the command processor reads next.
pub trait DispatchScheduler: Send {
    /// Returns the index in `ready` of the queue to read. `ready` has at least one entry, in the order of queue numbers. An index out of range
    /// selects the command that can begin first.
    fn choose(&mut self, ready: &[ReadyQueue]) -> usize;
}

/// A run of adjacent pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// Number of the first page.
    pub start: u64,
    /// Number of pages.
    pub pages: u64,
}

/// An allocation whose content is in device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Address of its first byte.
    pub address: u64,
    /// Pages that it occupies.
    pub pages: u64,
    /// Time of its last use by a command, or of its allocation. Times are counted in commands.
    pub last_use: u64,
}

/// Chooses the pages of an allocation, and which allocations move to host memory when no page is free.
pub trait MemoryScheduler: Send {
    /// Returns the first page for `pages` adjacent pages, which must be free. `None`, or pages that are not free, selects the default: the first
    /// run that is long enough, or else pieces.
    fn place(&mut self, pages: u64, free: &[PageRun]) -> Option<u64>;
    /// Returns the address of an allocation to move to host memory, because `pages` pages are missing. It comes back when a command uses it.
    /// `None`, or an address that is not in `resident`, makes the allocation fail.
    fn evict(&mut self, _pages: u64, _resident: &[Resident]) -> Option<u64> {
        None
    }
}

/// Names of the dispatch schedulers in [`dispatch_by_name`].
pub const DISPATCH_NAMES: [&str; 3] = ["earliest", "round-robin", "priority"];
/// Names of the memory schedulers in [`memory_by_name`].
pub const MEMORY_NAMES: [&str; 4] = ["first-fit", "best-fit", "worst-fit", "lru"];

/// Returns the dispatch scheduler with this name, or `None` for an unknown name.
///
/// - `earliest`: the command that can begin first; on a tie, the queue with the lower number. This is the machine's default.
/// - `round-robin`: the queues in turn.
/// - `priority`: the queue with the lowest number.
pub fn dispatch_by_name(name: &str) -> Option<Box<dyn DispatchScheduler>> {
    match name {
        "earliest" => Some(Box::new(Earliest)),
        "round-robin" => Some(Box::new(RoundRobin { last: usize::MAX })),
        "priority" => Some(Box::new(Priority)),
        _ => None,
    }
}

/// Returns the memory scheduler with this name, or `None` for an unknown name.
///
/// - `first-fit`: the first run that is long enough. This is the machine's default.
/// - `best-fit`: the shortest run that is long enough.
/// - `worst-fit`: the longest run.
/// - `lru`: like `first-fit`, and moves the least recently used allocation to host memory when no page is free.
pub fn memory_by_name(name: &str) -> Option<Box<dyn MemoryScheduler>> {
    match name {
        "first-fit" => Some(Box::new(Fit::First)),
        "best-fit" => Some(Box::new(Fit::Best)),
        "worst-fit" => Some(Box::new(Fit::Worst)),
        "lru" => Some(Box::new(LeastRecentlyUsed)),
        _ => None,
    }
}

/// Returns the index of the command that can begin first.
pub(super) fn earliest(ready: &[ReadyQueue]) -> usize {
    (0..ready.len()).min_by_key(|i| ready[*i].ready_ns).unwrap_or(0)
}

struct Earliest;

impl DispatchScheduler for Earliest {
    fn choose(&mut self, ready: &[ReadyQueue]) -> usize {
        earliest(ready)
    }
}

struct RoundRobin {
    last: usize,
}

impl DispatchScheduler for RoundRobin {
    fn choose(&mut self, ready: &[ReadyQueue]) -> usize {
        let next = ready.iter().position(|q| self.last == usize::MAX || q.queue > self.last).unwrap_or(0);
        self.last = ready[next].queue;
        next
    }
}

struct Priority;

impl DispatchScheduler for Priority {
    fn choose(&mut self, _ready: &[ReadyQueue]) -> usize {
        0
    }
}

enum Fit {
    First,
    Best,
    Worst,
}

impl MemoryScheduler for Fit {
    fn place(&mut self, pages: u64, free: &[PageRun]) -> Option<u64> {
        let mut long = free.iter().filter(|run| run.pages >= pages);
        let run = match self {
            Self::First => long.next(),
            Self::Best => long.min_by_key(|run| (run.pages, run.start)),
            Self::Worst => long.min_by_key(|run| (u64::MAX - run.pages, run.start)),
        };
        run.map(|run| run.start)
    }
}

struct LeastRecentlyUsed;

impl MemoryScheduler for LeastRecentlyUsed {
    fn place(&mut self, pages: u64, free: &[PageRun]) -> Option<u64> {
        Fit::First.place(pages, free)
    }
    fn evict(&mut self, _pages: u64, resident: &[Resident]) -> Option<u64> {
        resident.iter().min_by_key(|r| (r.last_use, r.address)).map(|r| r.address)
    }
}

/// The schedulers of a machine; `None` is the default.
#[derive(Default)]
pub struct Schedulers {
    /// The order of commands.
    pub dispatch: Option<Box<dyn DispatchScheduler>>,
    /// Places of allocations.
    pub memory: Option<Box<dyn MemoryScheduler>>,
}

impl fmt::Debug for Schedulers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [dispatch, memory] = [self.dispatch.is_some(), self.memory.is_some()];
        write!(f, "Schedulers {{ dispatch: {dispatch}, memory: {memory} }}")
    }
}
