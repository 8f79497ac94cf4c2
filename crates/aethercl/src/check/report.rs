//! Findings: kind, place, work-items, count.

use crate::exec::Shared;
use crate::program::Program;
use std::fmt;

/// Kind of finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FindingKind {
    /// A read outside its object.
    ReadOutside,
    /// A write outside its object.
    WriteOutside,
    /// An index outside an array that is a row or a member of a larger object.
    IndexOutside,
    /// An address that violates the alignment of its type.
    Misaligned,
    /// An access to memory that was freed.
    UseAfterFree,
    /// A read of uninitialized bytes.
    Uninitialized,
    /// Two unordered accesses within a work-group.
    RaceInGroup,
    /// Two accesses of different work-groups.
    RaceBetweenGroups,
    /// A barrier that not all work-items reach.
    DivergentBarrier,
    /// An integer divided by 0.
    DivisionByZero,
    /// A write to a buffer that the launch declared read-only.
    WriteToRead,
    /// A loop that waits for a value that no work-group writes.
    EndlessWait,
    /// Memory that was never freed.
    Leak,
}

impl FindingKind {
    /// Returns a short name for scripts, the same in every release.
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::ReadOutside => "read-outside",
            FindingKind::WriteOutside => "write-outside",
            FindingKind::IndexOutside => "index-outside",
            FindingKind::Misaligned => "misaligned",
            FindingKind::UseAfterFree => "use-after-free",
            FindingKind::Uninitialized => "uninitialized",
            FindingKind::RaceInGroup => "race-in-group",
            FindingKind::RaceBetweenGroups => "race-between-groups",
            FindingKind::DivergentBarrier => "divergent-barrier",
            FindingKind::DivisionByZero => "division-by-zero",
            FindingKind::WriteToRead => "write-to-read",
            FindingKind::EndlessWait => "endless-wait",
            FindingKind::Leak => "leak",
        }
    }

    /// Returns the usual fix in one line.
    pub fn hint(self) -> &'static str {
        match self {
            FindingKind::ReadOutside | FindingKind::WriteOutside => {
                "compare the index with the number of elements before the access, or make the buffer larger"
            }
            FindingKind::IndexOutside => "keep the index below the length of the inner array",
            FindingKind::Misaligned => {
                "use vloadN/vstoreN, which only require the element's alignment, or align the offset"
            }
            FindingKind::UseAfterFree => "release the buffer after the last command that uses it",
            FindingKind::Uninitialized => {
                "write the bytes first, or do not read bytes that no work-item wrote"
            }
            FindingKind::RaceInGroup => {
                "put barrier(CLK_LOCAL_MEM_FENCE) for local or barrier(CLK_GLOBAL_MEM_FENCE) for global memory between the \
                 two, or use atomic operations"
            }
            FindingKind::RaceBetweenGroups => {
                "give each work-group its own elements, use atomic operations with release and acquire, or use two launches"
            }
            FindingKind::DivergentBarrier => {
                "move the barrier out of the branch or loop that not all work-items take"
            }
            FindingKind::DivisionByZero => "test the divisor before the division",
            FindingKind::WriteToRead => "declare the buffer as written, or do not store to it",
            FindingKind::EndlessWait => {
                "end the kernel here and launch another one for the rest, or launch no more work-groups than the device holds at a time"
            }
            FindingKind::Leak => "release it before the program ends",
        }
    }
}

/// A work-item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemIds {
    /// Its global id.
    pub global: [u64; 3],
    /// Its local id.
    pub local: [u64; 3],
    /// Its group.
    pub group: [u64; 3],
    /// Its action, for findings with several: `read`, `written`.
    pub did: &'static str,
}

impl ItemIds {
    /// Returns the work-item of a lane of a group.
    pub(crate) fn of(shared: &Shared<'_>, group: [u64; 3], size: [u64; 3], lane: usize) -> ItemIds {
        let l = lane as u64;
        let local = [l % size[0].max(1), l / size[0].max(1) % size[1].max(1), l / (size[0] * size[1]).max(1)];
        let [offset, _, full] = shared.range;
        let global = [0, 1, 2].map(|d| offset[d] + group[d] * full[d] + local[d]);
        ItemIds { global, local, group, did: "" }
    }
}

impl fmt::Display for ItemIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = |v: [u64; 3]| format!("({},{},{})", v[0], v[1], v[2]);
        write!(f, "global {} local {} group {}", t(self.global), t(self.local), t(self.group))?;
        if self.did.is_empty() { Ok(()) } else { write!(f, ", {}", self.did) }
    }
}

/// One finding at one place in the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Kind of defect.
    pub kind: FindingKind,
    /// The kernel.
    pub kernel: String,
    /// File of the place in the program.
    pub file: String,
    /// Line from 1.
    pub line: u32,
    /// Column from 1.
    pub column: u32,
    /// Description of the first occurrence, in one line.
    pub message: String,
    /// Work-items of the first occurrence: the one that caused it, and for a race the other one.
    pub items: Vec<ItemIds>,
    /// Buffer or variable.
    pub object: String,
    /// Byte offset in it.
    pub offset: i64,
    /// Bytes touched.
    pub bytes: u32,
    /// Number of occurrences at this place.
    pub count: u64,
    /// Values of the first occurrence, if any: the content of memory, the value to be stored.
    pub values: Vec<String>,
    /// Place, line and caret, in the format of a compiler message.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.trim_end())?;
        for item in &self.items {
            write!(f, "\n  by work-item {item}")?;
        }
        for value in &self.values {
            write!(f, "\n  {value}")?;
        }
        write!(f, "\n  hint: {}", self.kind.hint())?;
        write!(f, "\n  in kernel {}", self.kernel)?;
        if self.count > 1 { write!(f, ", {} times", self.count) } else { Ok(()) }
    }
}

/// A finding before its line is resolved.
#[derive(Debug, Clone)]
pub struct Raw {
    kind: FindingKind,
    pc: usize,
    message: String,
    items: Vec<ItemIds>,
    object: String,
    offset: i64,
    bytes: u32,
    count: u64,
    values: Vec<String>,
}

/// Maximum number of different findings; a launch with more has one common cause.
const MAX_FINDINGS: usize = 64;

/// Collects findings.
#[derive(Debug, Default)]
pub struct FindingCollector {
    list: Vec<Raw>,
}

impl FindingCollector {
    /// Adds a finding. `details` is called only for the first one at an instruction.
    pub fn add(&mut self, kind: FindingKind, pc: usize, details: impl FnOnce() -> Details) {
        if let Some(known) = self.list.iter_mut().find(|r| r.kind == kind && r.pc == pc) {
            known.count += 1;
        } else if self.list.len() < MAX_FINDINGS {
            let Details { message, items, object, offset, bytes, values } = details();
            self.list.push(Raw { kind, pc, message, items, object, offset, bytes, count: 1, values });
        }
    }

    /// Returns true if nothing was found.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Merges the findings of another thread.
    pub fn join(&mut self, other: FindingCollector) {
        self.list.extend(other.list);
    }

    /// Returns the findings with their places; those of one line and kind are merged.
    pub(crate) fn finish(self, program: &Program, shared: &Shared<'_>) -> Vec<Finding> {
        let mut out: Vec<Finding> = Vec::new();
        for raw in self.list {
            let span = shared.code.spans[raw.pc];
            let place = program.hir().sources.locate(program.hir().sources.outermost(span));
            let same = |f: &&mut Finding| {
                f.kind == raw.kind && f.line == place.line && f.file == place.file && f.object == raw.object
            };
            if let Some(known) = out.iter_mut().find(same) {
                known.count += raw.count;
                continue;
            }
            out.push(Finding {
                kind: raw.kind,
                kernel: shared.code.name.clone(),
                file: place.file,
                line: place.line,
                column: place.column,
                text: program.message(span, raw.kind.name(), &raw.message),
                message: raw.message,
                items: raw.items,
                object: raw.object,
                offset: raw.offset,
                bytes: raw.bytes,
                count: raw.count,
                values: raw.values,
            });
        }
        out
    }
}

/// Details of a finding in addition to its kind and place.
#[derive(Debug, Clone, Default)]
pub struct Details {
    /// The values involved, one phrase each.
    pub values: Vec<String>,
    /// Description in one line.
    pub message: String,
    /// Work-items that made the access.
    pub items: Vec<ItemIds>,
    /// Buffer or variable.
    pub object: String,
    /// Byte offset in the object.
    pub offset: i64,
    /// Bytes touched.
    pub bytes: u32,
}
