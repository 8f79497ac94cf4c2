//! The report's data. Times are ns, sizes bytes, rates 10⁹ a second.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What ran.
    pub title: String,
    /// The devices that were used.
    pub devices: Vec<Device>,
    /// Calls of OpenCL's functions by the program, in the order in which they ended, on the host's own clock.
    pub calls: Vec<Call>,
    /// Calls beyond those.
    pub calls_left_out: u64,
    /// All calls by function, the longest first.
    pub functions: Vec<Function>,
    /// What checks found.
    pub findings: Vec<Finding>,
    /// Commands that failed, in words.
    pub failures: Vec<String>,
    /// Objects that were not released at the end, by kind.
    pub leaked: BTreeMap<String, usize>,
}

impl Report {
    /// Adds what another process did.
    pub fn add(&mut self, other: Self) {
        let process = self.devices.iter().map(|d| d.process + 1).max().unwrap_or(0);
        self.devices.extend(other.devices.into_iter().map(|d| Device { process, ..d }));
        let room = super::KEPT.saturating_sub(self.calls.len());
        self.calls_left_out += other.calls_left_out + other.calls.len().saturating_sub(room) as u64;
        self.calls.extend(other.calls.into_iter().take(room).map(|c| Call { process, ..c }));
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

/// A call of one of OpenCL's functions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Process of the run, from 0.
    pub process: u32,
    /// Thread of the process, from 0 in the order of their first calls.
    pub thread: u32,
    /// Its name.
    pub name: String,
    /// When it began, from the process's first call on, by the host's own clock.
    pub start_ns: u64,
    /// How long it took.
    pub ns: u64,
    /// What it returned: 0, or an error.
    pub code: i32,
}

/// All calls of a function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// How many.
    pub calls: u64,
    /// Those that returned an error.
    pub errors: u64,
    /// Time in all of them, by the host's own clock.
    pub ns: u64,
}

/// A device of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Process of the run, from 0.
    pub process: u32,
    /// Name of its profile.
    pub name: String,
    /// How it calls itself.
    pub title: String,
    /// Where the profile's figures come from.
    pub basis: String,
    /// Clock of its units, MHz.
    pub clock_mhz: u32,
    /// Compute units.
    pub units: u32,
    /// The rates of which kernels reach a part.
    pub ceilings: Ceilings,
    /// Commands in the order in which they were read.
    pub commands: Vec<Command>,
    /// Commands beyond those.
    pub commands_left_out: u64,
    /// Its memory.
    pub memory: MemoryCurve,
    /// Transfers by kind.
    pub transfers: Vec<Transfer>,
    /// Kernels, the longest first.
    pub kernels: Vec<Kernel>,
    /// Texts of their programs.
    pub sources: Vec<Source>,
}

/// What a device could do at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// f32 operations, a fused multiply-add being two.
    pub f32: f64,
    /// f64 operations.
    pub f64: f64,
    /// Integer operations.
    pub integer: f64,
    /// Bytes of device memory.
    pub dram: f64,
    /// Bytes of the shared cache.
    pub l2: f64,
    /// Bytes of all units' own caches.
    pub l1: f64,
}

/// A command. Times are of the device's clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// Its queue.
    pub queue: u32,
    /// `kernel`, `copy in`, `copy out`, `copy` or `fill`.
    pub kind: String,
    /// Of a kernel, its name.
    pub name: String,
    /// The copy engine that it ran on; none of a kernel.
    pub engine: Option<u32>,
    /// Bytes moved.
    pub bytes: u64,
    /// When the program asked for it.
    pub queued_ns: u64,
    /// When it was announced to the device.
    pub submitted_ns: u64,
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Whether it failed.
    pub failed: bool,
    /// Of a kernel, what its compute units ran; empty where no time was modelled.
    #[serde(default)]
    pub units: Vec<UnitRun>,
    /// Of a kernel, groups that a unit holds at a time.
    #[serde(default)]
    pub resident: u64,
}

/// What neighbouring compute units ran of a launch, the same on each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitRun {
    /// The first of the units.
    pub first: u32,
    /// The last of them.
    pub last: u32,
    /// Groups that each of them ran; 0 of a launch that did not end.
    pub groups: u64,
    /// When they began.
    pub start_ns: u64,
    /// When they were done with their last group.
    pub end_ns: u64,
}

/// Device memory over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryCurve {
    /// What there is.
    pub capacity: u64,
    /// The most that was in use at a time.
    pub peak: u64,
    /// Allocations and releases.
    pub events: Vec<MemoryEvent>,
    /// Those beyond.
    pub left_out: u64,
}

/// An allocation or release.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryEvent {
    /// When, by the device's clock.
    pub at_ns: u64,
    /// Bytes taken; below zero, given back.
    pub bytes: i64,
    /// Bytes in use afterwards.
    pub used: u64,
    /// What it is for.
    pub name: String,
}

/// All transfers of a kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// As [`Command::kind`].
    pub kind: String,
    /// How many.
    pub count: u64,
    /// Bytes of all.
    pub bytes: u64,
    /// Time of all.
    pub ns: u64,
}

/// A kernel of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its program: that of the [`Source`]s with the same number.
    pub program: u64,
    /// How often it ran to its end.
    pub launches: u64,
    /// Modelled time of all launches.
    pub ns: u64,
    /// What all launches did.
    pub all: Figures,
    /// The same by source line.
    pub lines: Vec<Line>,
    /// Its longest launch.
    pub longest: Launch,
}

/// What instructions did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Work-items that came through: of a line, through that one of its instructions that most came through.
    pub executions: u64,
    /// Instructions issued, in SIMD groups.
    pub issued: u64,
    /// Lanes of these.
    pub lanes_issued: u64,
    /// Those of them that were not masked off.
    pub lanes_active: u64,
    /// Instructions done once for a work-group.
    pub uniform: u64,
    /// Floating-point operations, a fused multiply-add being two.
    pub flops: u64,
    /// Integer operations.
    pub integer: u64,
    /// Branch decisions of work-items.
    pub branches: u64,
    /// Arrivals of work-items at barriers.
    pub barriers: u64,
    /// Atomic operations of work-items on global memory.
    pub atomics: u64,
    /// Bytes of global memory that work-items asked for.
    pub global_bytes: u64,
    /// Loads and stores of global memory by SIMD groups.
    pub global_requests: u64,
    /// Sectors of 32 bytes that these touched.
    pub global_sectors: u64,
    /// Sectors that they would touch if what they ask for lay side by side.
    pub ideal_sectors: u64,
    /// Accesses to local memory by SIMD groups.
    pub local_requests: u64,
    /// Passes that these took: one each where no two lanes meet in a bank.
    pub local_passes: u64,
    /// Modelled time, in clocks of a unit: the kernel's, divided among its lines by what each part of the device did for them.
    pub cycles: f64,
}

/// A source line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// File.
    pub file: String,
    /// Line from 1.
    pub line: u32,
    /// What its instructions did, in all launches.
    pub did: Figures,
}

/// One launch, and what the model says of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// Work-items.
    pub global: [u64; 3],
    /// Work-items of a group.
    pub local: [u64; 3],
    /// Groups.
    pub groups: u64,
    /// Modelled time on the units.
    pub ns: u64,
    /// What held it up.
    pub bound: String,
    /// What each part of the device would take alone, the longest first.
    pub parts: Vec<Part>,
    /// Groups on a unit at a time.
    pub resident: u64,
    /// Waves on a unit at a time.
    pub waves: u64,
    /// Waves that a unit could hold.
    pub waves_most: u64,
    /// What keeps more groups away.
    pub limit: String,
    /// Groups that each limit would allow.
    pub limits: Vec<Limit>,
    /// 32-bit registers of a work-item.
    pub registers: u64,
    /// Bytes of local memory of a group.
    pub local_bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
    /// Those of them that are f64.
    pub f64_flops: u64,
    /// Integer operations.
    pub integer: u64,
    /// Bytes between units and their own caches.
    pub l1_bytes: u64,
    /// Bytes through the shared cache.
    pub l2_bytes: u64,
    /// Bytes of device memory.
    pub dram_bytes: u64,
}

/// A part of the device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// What it would take alone.
    pub ns: f64,
}

/// What limits the groups on a unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Its name.
    pub name: String,
    /// Groups that it allows; none where it sets no limit.
    pub groups: Option<u64>,
}

/// A text of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// The program.
    pub program: u64,
    /// File, as messages name it.
    pub name: String,
    /// The text, perhaps only its beginning.
    pub text: String,
    /// Whether that is all of it.
    pub whole: bool,
}

/// What a check found, as reports have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
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
    /// What happened.
    pub message: String,
    /// Buffer or variable.
    #[serde(default)]
    pub object: String,
    /// Byte offset in it.
    #[serde(default)]
    pub offset: i64,
    /// How often, in all launches.
    pub count: u64,
    /// The usual remedy.
    #[serde(default)]
    pub hint: String,
    /// The values of the first time: what memory held, what was to be stored.
    #[serde(default)]
    pub values: Vec<String>,
    /// The work-items of the first time.
    #[serde(default)]
    pub items: Vec<WorkItem>,
    /// All of it as text.
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
    /// What it did, where a finding has several: `read`, `written`.
    pub did: String,
}
