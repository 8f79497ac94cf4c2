//! The report's data. Times are in ns, sizes in bytes, rates in 10⁹ per second.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// The program that ran.
    pub title: String,
    /// The devices used.
    pub devices: Vec<Device>,
    /// OpenCL calls of the program in the order in which they ended, on the host clock.
    pub calls: Vec<ApiCall>,
    /// Calls beyond those.
    pub calls_left_out: u64,
    /// All calls by function, longest total first.
    pub functions: Vec<FunctionCalls>,
    /// Findings of the checks.
    pub findings: Vec<ReportedFinding>,
    /// Descriptions of failed commands.
    pub failures: Vec<String>,
    /// Objects that were not released at the end, by kind.
    pub leaked: BTreeMap<String, usize>,
}

impl RunReport {
    /// Merges the report of another process.
    pub fn add(&mut self, other: Self) {
        let process = self.devices.iter().map(|d| d.process + 1).max().unwrap_or(0);
        self.devices.extend(other.devices.into_iter().map(|d| Device { process, ..d }));
        let room = super::MAX_ENTRIES.saturating_sub(self.calls.len());
        self.calls_left_out += other.calls_left_out + other.calls.len().saturating_sub(room) as u64;
        self.calls.extend(other.calls.into_iter().take(room).map(|c| ApiCall { process, ..c }));
        for one in other.functions {
            match self.functions.iter_mut().find(|f| f.name == one.name) {
                Some(f) => {
                    (f.calls, f.errors, f.ns) = (f.calls + one.calls, f.errors + one.errors, f.ns + one.ns)
                }
                None => self.functions.push(one),
            }
        }
        self.functions.sort_by_key(|f| std::cmp::Reverse(f.ns));
        self.findings.extend(other.findings);
        self.failures.extend(other.failures);
        for (name, count) in other.leaked {
            *self.leaked.entry(name).or_default() += count;
        }
    }
}

/// An OpenCL call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ApiCall {
    /// Process of the run, from 0.
    pub process: u32,
    /// Thread of the process, from 0 in the order of their first calls.
    pub thread: u32,
    /// Its name.
    pub name: String,
    /// Start, relative to the process's first call, on the host clock.
    pub start_ns: u64,
    /// Duration.
    pub ns: u64,
    /// Return code: 0, or an error.
    pub code: i32,
}

/// All calls of a function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionCalls {
    /// Its name.
    pub name: String,
    /// Number of calls.
    pub calls: u64,
    /// Calls that returned an error.
    pub errors: u64,
    /// Total time on the host clock.
    pub ns: u64,
}

/// A device of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Process of the run, from 0.
    pub process: u32,
    /// Name of its profile.
    pub name: String,
    /// Device name.
    pub title: String,
    /// Origin of the profile's figures.
    pub basis: String,
    /// Clock of its units, MHz.
    pub clock_mhz: u32,
    /// Compute units.
    pub units: u32,
    /// Peak rates for comparison with kernels.
    pub ceilings: Ceilings,
    /// Commands in read order.
    pub commands: Vec<Command>,
    /// Commands beyond those.
    pub commands_left_out: u64,
    /// Its memory.
    pub memory: MemoryCurve,
    /// Transfers by kind.
    pub transfers: Vec<Transfer>,
    /// Kernels, longest first.
    pub kernels: Vec<KernelSummary>,
    /// Sources of their programs.
    pub sources: Vec<SourceFile>,
}

/// Peak rates of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// f32 operations; a fused multiply-add counts as two.
    pub f32: f64,
    /// f64 operations.
    pub f64: f64,
    /// Integer operations.
    pub integer: f64,
    /// Bytes of device memory.
    pub dram: f64,
    /// Bytes of the L2 cache.
    pub l2: f64,
    /// Bytes of all L1 caches.
    pub l1: f64,
}

/// A command. Times are on the device clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// Its queue.
    pub queue: u32,
    /// `kernel`, `copy in`, `copy out`, `copy` or `fill`.
    pub kind: String,
    /// For a kernel, its name.
    pub name: String,
    /// Its copy engine; `None` for a kernel.
    pub engine: Option<u32>,
    /// Bytes moved.
    pub bytes: u64,
    /// Time of the program's request.
    pub queued_ns: u64,
    /// Time of the announcement to the device.
    pub submitted_ns: u64,
    /// Start time, ns.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Whether it failed.
    pub failed: bool,
    /// For a kernel, the groups by compute unit; empty if no time was modeled.
    #[serde(default)]
    pub units: Vec<UnitRun>,
    /// For a kernel, the groups that a unit holds at a time.
    #[serde(default)]
    pub resident: u64,
}

/// Adjacent compute units that ran the same number of groups of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitRun {
    /// The first unit.
    pub first: u32,
    /// The last unit.
    pub last: u32,
    /// Groups per unit; 0 for a launch that did not end.
    pub groups: u64,
    /// Start time, ns.
    pub start_ns: u64,
    /// End of their last group.
    pub end_ns: u64,
}

/// Device memory over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryCurve {
    /// Bytes of device memory.
    pub capacity: u64,
    /// The peak.
    pub peak: u64,
    /// Allocations and releases.
    pub events: Vec<MemoryEvent>,
    /// Those beyond.
    pub left_out: u64,
}

/// An allocation or release.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryEvent {
    /// Time on the device clock.
    pub at_ns: u64,
    /// Allocated bytes; negative if freed.
    pub bytes: i64,
    /// Bytes in use afterwards.
    pub used: u64,
    /// Its purpose.
    pub name: String,
}

/// All transfers of a kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// Same as [`Command::kind`].
    pub kind: String,
    /// Number of transfers.
    pub count: u64,
    /// Bytes of all.
    pub bytes: u64,
    /// Time of all.
    pub ns: u64,
}

/// A kernel of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelSummary {
    /// Its name.
    pub name: String,
    /// Its program: the [`SourceFile`]s with the same number.
    pub program: u64,
    /// Number of completed launches.
    pub launches: u64,
    /// Modeled time of all launches.
    pub ns: u64,
    /// Counts of all launches.
    pub all: Figures,
    /// The same by source line.
    pub lines: Vec<Line>,
    /// Its longest launch.
    pub longest: LaunchEstimate,
}

/// Counts of instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Number of work-items that executed it. For a line, the count of the instruction that most work-items executed.
    pub executions: u64,
    /// Instructions issued, in SIMD groups.
    pub issued: u64,
    /// Lanes of these.
    pub lanes_issued: u64,
    /// Lanes that were not masked off.
    pub lanes_active: u64,
    /// Instructions executed once per work-group.
    pub uniform: u64,
    /// Floating-point operations; a fused multiply-add counts as two.
    pub flops: u64,
    /// Integer operations.
    pub integer: u64,
    /// Branch decisions of work-items.
    pub branches: u64,
    /// Arrivals of work-items at barriers.
    pub barriers: u64,
    /// Atomic operations of work-items on global memory.
    pub atomics: u64,
    /// Bytes of global memory that work-items requested.
    pub global_bytes: u64,
    /// Loads and stores of global memory by SIMD groups.
    pub global_requests: u64,
    /// Sectors of 32 bytes that these requests touched.
    pub global_sectors: u64,
    /// Sectors that they would touch if the requested bytes were contiguous.
    pub ideal_sectors: u64,
    /// Accesses to local memory by SIMD groups.
    pub local_requests: u64,
    /// Passes of these accesses: one per access without bank conflicts.
    pub local_passes: u64,
    /// Modeled time in clocks of a unit. The kernel's time is distributed over its lines by the work of each part of the device.
    pub cycles: f64,
}

/// A source line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// File.
    pub file: String,
    /// Line from 1.
    pub line: u32,
    /// Counts of its instructions, over all launches.
    pub did: Figures,
}

/// One launch with its estimate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LaunchEstimate {
    /// Work-items.
    pub global: [u64; 3],
    /// Work-items per group.
    pub local: [u64; 3],
    /// Groups.
    pub groups: u64,
    /// Modeled time on the units.
    pub ns: u64,
    /// Its bottleneck.
    pub bound: String,
    /// Time of each part of the device alone, longest first.
    pub parts: Vec<Part>,
    /// Groups per unit at a time.
    pub resident: u64,
    /// Waves per unit at a time.
    pub waves: u64,
    /// Maximum waves per unit.
    pub waves_most: u64,
    /// The resource that limits the number of groups.
    pub limit: String,
    /// Groups that each limit allows.
    pub limits: Vec<GroupLimit>,
    /// 32-bit registers per work-item.
    pub registers: u64,
    /// Bytes of local memory per group.
    pub local_bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
    /// The f64 operations.
    pub f64_flops: u64,
    /// Integer operations.
    pub integer: u64,
    /// Bytes between units and L1 caches.
    pub l1_bytes: u64,
    /// Bytes through the L2 cache.
    pub l2_bytes: u64,
    /// Bytes of device memory.
    pub dram_bytes: u64,
}

/// A part of the device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its time alone.
    pub ns: f64,
}

/// A limit of the groups per unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupLimit {
    /// Its name.
    pub name: String,
    /// Number of groups that it allows; `None` for no limit.
    pub groups: Option<u64>,
}

/// A source of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceFile {
    /// The program.
    pub program: u64,
    /// File name in messages.
    pub name: String,
    /// The content, possibly truncated.
    pub text: String,
    /// Whether the content is complete.
    pub whole: bool,
}

/// A finding of a check, in report format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedFinding {
    /// Name of its kind, the same in every release.
    pub kind: String,
    /// The kernel.
    pub kernel: String,
    /// File of the place.
    pub file: String,
    /// Line from 1.
    pub line: u32,
    /// Column from 1.
    pub column: u32,
    /// Description of the finding.
    pub message: String,
    /// Buffer or variable.
    #[serde(default)]
    pub object: String,
    /// Byte offset in the object.
    #[serde(default)]
    pub offset: i64,
    /// Number of occurrences in all launches.
    pub count: u64,
    /// The usual remedy.
    #[serde(default)]
    pub hint: String,
    /// Values of the first occurrence: the content of memory, the value to be stored.
    #[serde(default)]
    pub values: Vec<String>,
    /// Work-items of the first occurrence.
    #[serde(default)]
    pub items: Vec<WorkItem>,
    /// The complete text.
    pub text: String,
}

/// A work-item of a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkItem {
    /// Its global id.
    pub global: [u64; 3],
    /// Its local id.
    pub local: [u64; 3],
    /// Its group.
    pub group: [u64; 3],
    /// Its action, for findings with several: `read`, `written`.
    pub did: String,
}
