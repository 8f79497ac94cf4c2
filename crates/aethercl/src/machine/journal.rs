//! Records the data of a report: commands, memory allocations, and counters of each kernel by source line.

use super::GpuError;
use super::engines::Share;
use super::packet::Packet;
use super::work::{CommandOutcome, Done, Work};
use crate::counters::{Counters, Tally};
use crate::model::{Estimate, Profile, line_shares};
use crate::report::{
    self, Command, Device, KernelSummary, LaunchEstimate, Line, MAX_ENTRIES, MemoryCurve, MemoryEvent,
    SourceFile, Transfer, UnitRun,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Maximum number of launch signatures of a kernel whose counters are cached; launches with other signatures are counted again.
const SIGNATURES: usize = 64;
/// Maximum size of the sources kept for a program, bytes.
const TEXT: usize = 2 << 20;

/// Launches of one signature.
struct Alike {
    /// Counters of one launch.
    counters: Counters,
    estimate: Arc<Estimate>,
    launches: u64,
}

/// A kernel.
#[derive(Default)]
struct Seen {
    alike: HashMap<u64, Alike>,
    launches: u64,
    ns: u64,
    width: u32,
    longest: LaunchEstimate,
    /// Counters and clocks by file and line, for launches whose signature is no longer cached.
    lines: Lines,
}

type Lines = BTreeMap<(Arc<str>, u32), (Tally, f64)>;

/// The record of one device.
pub struct Journal {
    /// Time at which the program enqueued the next command, ns of its clock.
    pub asked: u64,
    /// The copy engine of the current command.
    pub engine: Option<u32>,
    /// Groups of the current command by compute unit.
    pub units: Vec<UnitRun>,
    /// Groups of the current command that a unit holds at a time.
    pub resident: u64,
    commands: Vec<Command>,
    commands_left_out: u64,
    memory: MemoryCurve,
    used: u64,
    /// Live allocations: size and name by address.
    live: HashMap<u64, (u64, String)>,
    transfers: Vec<Transfer>,
    kernels: BTreeMap<(u64, String), Seen>,
    sources: BTreeMap<u64, Vec<SourceFile>>,
    /// Clock of a compute unit, cycles per ns.
    clocks: f64,
}

impl Journal {
    /// Returns an empty record for a device with this much memory.
    pub fn new(profile: &Profile, capacity: u64) -> Self {
        Self {
            asked: 0,
            engine: None,
            units: Vec::new(),
            resident: 0,
            commands: Vec::new(),
            commands_left_out: 0,
            memory: MemoryCurve { capacity, ..MemoryCurve::default() },
            used: 0,
            live: HashMap::new(),
            transfers: Vec::new(),
            kernels: BTreeMap::new(),
            sources: BTreeMap::new(),
            clocks: profile.clocks_per_ns(),
        }
    }

    /// Records an allocation.
    pub fn allocated(&mut self, at: u64, address: u64, bytes: u64, name: &str) {
        self.used += bytes;
        self.memory.peak = self.memory.peak.max(self.used);
        self.live.insert(address, (bytes, name.to_string()));
        self.remember(at, bytes as i64, name.to_string());
    }

    /// Records a release.
    pub fn freed(&mut self, at: u64, address: u64) {
        if let Some((bytes, name)) = self.live.remove(&address) {
            self.used -= bytes;
            self.remember(at, -(bytes as i64), name);
        }
    }

    fn remember(&mut self, at: u64, bytes: i64, name: String) {
        if self.memory.events.len() >= MAX_ENTRIES {
            self.memory.left_out += 1;
            return;
        }
        // Host threads may report times out of order; the curve has to be monotone in time.
        let before = self.memory.events.last().map_or(0, |e| e.at_ns);
        let at_ns = at.max(self.asked).max(before);
        self.memory.events.push(MemoryEvent { at_ns, bytes, used: self.used, name });
    }

    /// Records a finished command.
    pub fn command(
        &mut self,
        packet: &Packet,
        (queue, submitted_ns): (usize, u64),
        (start_ns, end_ns): (u64, u64),
        outcome: &Result<CommandOutcome, GpuError>,
    ) {
        let engine = self.engine.take();
        let (units, resident) = (std::mem::take(&mut self.units), std::mem::take(&mut self.resident));
        let (kind, bytes) = match *packet {
            Packet::CopyIn { bytes, .. } => ("copy in", bytes),
            Packet::CopyOut { bytes, .. } => ("copy out", bytes),
            Packet::Copy { bytes, .. } => ("copy", bytes),
            Packet::Fill { bytes, .. } => ("fill", bytes),
            _ => ("kernel", 0),
        };
        if kind != "kernel" && outcome.is_ok() {
            self.transferred(kind, bytes, end_ns - start_ns);
        }
        if self.commands.len() >= MAX_ENTRIES {
            self.commands_left_out += 1;
            return;
        }
        let name = match outcome {
            Ok(outcome) => outcome.kernel.clone(),
            Err(
                GpuError::Hang { name, .. }
                | GpuError::Kernel { name, .. }
                | GpuError::Resources { name, .. },
            ) => name.clone(),
            Err(_) => String::new(),
        };
        let queued_ns = self.asked.min(submitted_ns);
        let (kind, queue, failed) = (kind.to_string(), queue as u32, outcome.is_err());
        self.commands.push(Command {
            queue,
            kind,
            name,
            engine,
            bytes,
            queued_ns,
            submitted_ns,
            start_ns,
            end_ns,
            failed,
            units,
            resident,
        });
    }

    fn transferred(&mut self, kind: &str, bytes: u64, ns: u64) {
        let at = self.transfers.iter().position(|t| t.kind == kind).unwrap_or_else(|| {
            self.transfers.push(Transfer { kind: kind.into(), ..Transfer::default() });
            self.transfers.len() - 1
        });
        let row = &mut self.transfers[at];
        (row.count, row.bytes, row.ns) = (row.count + 1, row.bytes + bytes, row.ns + ns);
    }

    fn seen(&self, work: &dyn Work) -> Option<&Seen> {
        self.kernels.get(&(work.origin().program, work.name().to_string()))
    }

    /// Returns true if the counters of this signature are cached.
    pub fn knows(&self, work: &dyn Work, signature: u64) -> bool {
        self.seen(work).is_some_and(|k| k.alike.contains_key(&signature))
    }

    /// Records a finished launch; `done` has counters if it was counted.
    pub fn launched(
        &mut self,
        profile: &Profile,
        work: &dyn Work,
        signature: u64,
        (done, estimate): (&Done, &Arc<Estimate>),
    ) {
        let origin = work.origin();
        self.sources.entry(origin.program).or_insert_with(|| sources(origin.program, work.sources()));
        let seen = self.kernels.entry((origin.program, work.name().to_string())).or_default();
        seen.launches += 1;
        seen.ns += estimate.ns;
        if let Some(counters) = &done.counters {
            if seen.launches == 1 || estimate.ns > seen.longest.ns {
                seen.longest = report::launch(profile, counters, estimate, [origin.global, origin.local]);
            }
            seen.width = counters.simd_width;
            // A launch of this signature was counted again: the counters of earlier launches are added up first.
            if let Some(before) = seen.alike.remove(&signature) {
                fold(&mut seen.lines, profile, &before, self.clocks);
            }
            if seen.alike.len() >= SIGNATURES
                && let Some(oldest) = seen.alike.keys().min().copied()
                && let Some(before) = seen.alike.remove(&oldest)
            {
                fold(&mut seen.lines, profile, &before, self.clocks);
            }
            let estimate = Arc::clone(estimate);
            seen.alike.insert(signature, Alike { counters: counters.clone(), estimate, launches: 0 });
        }
        if let Some(alike) = seen.alike.get_mut(&signature) {
            alike.launches += 1;
        }
    }

    /// Returns the record as report data.
    pub fn device(&self, profile: &Profile) -> Device {
        let one =
            |((program, name), seen): (&(u64, String), &Seen)| self.kernel(profile, *program, name, seen);
        let mut kernels: Vec<KernelSummary> = self.kernels.iter().map(one).collect();
        kernels.sort_by_key(|k| std::cmp::Reverse(k.ns));
        Device {
            process: 0,
            name: profile.name.clone(),
            title: profile.title.clone(),
            basis: profile.basis.clone(),
            clock_mhz: profile.compute.clock_mhz,
            units: profile.compute.units,
            ceilings: report::ceilings(profile),
            commands: self.commands.clone(),
            commands_left_out: self.commands_left_out,
            memory: self.memory.clone(),
            transfers: self.transfers.clone(),
            // Sources without executed lines, such as the predefined macros, are omitted.
            sources: self.sources.values().flatten().filter(|s| ran(&kernels, s)).cloned().collect(),
            kernels,
        }
    }

    fn kernel(&self, profile: &Profile, program: u64, name: &str, seen: &Seen) -> KernelSummary {
        let mut lines = seen.lines.clone();
        seen.alike.values().for_each(|alike| fold(&mut lines, profile, alike, self.clocks));
        let mut all = Tally::default();
        let mut cycles = 0.0;
        for (tally, clocks) in lines.values() {
            all.add(tally);
            cycles += clocks;
        }
        // A sum over lines would count each work-item once for every line.
        all.executions = lines.values().map(|(t, _)| t.executions).max().unwrap_or(0);
        let line = |((file, line), (tally, clocks)): ((Arc<str>, u32), (Tally, f64))| Line {
            file: file.to_string(),
            line,
            did: report::figures(&tally, seen.width, clocks),
        };
        KernelSummary {
            name: name.to_string(),
            program,
            launches: seen.launches,
            ns: seen.ns,
            all: report::figures(&all, seen.width, cycles),
            lines: lines.into_iter().map(line).collect(),
            longest: seen.longest.clone(),
        }
    }
}

fn ran(kernels: &[KernelSummary], source: &SourceFile) -> bool {
    kernels.iter().any(|k| k.program == source.program && k.lines.iter().any(|l| l.file == source.name))
}

/// Adds the counters and clocks of all launches of one signature to the lines.
fn fold(lines: &mut Lines, profile: &Profile, alike: &Alike, clocks: f64) {
    let shares = line_shares(profile, &alike.counters, &alike.estimate);
    let all = (alike.estimate.ns * alike.launches) as f64 * clocks;
    for (line, share) in alike.counters.lines.iter().zip(shares) {
        let mut tally = line.tally.clone();
        tally.scale(1, alike.launches);
        let to = lines.entry((Arc::clone(&line.file), line.line)).or_default();
        to.0.add(&tally);
        to.1 += share * all;
    }
}

/// Merges adjacent units that ran the same number of groups.
pub fn unit_runs(shares: &[Share]) -> Vec<UnitRun> {
    let mut shares = shares.to_vec();
    shares.sort_unstable_by_key(|s| s.unit);
    let mut runs: Vec<UnitRun> = Vec::new();
    for Share { unit, groups, time } in shares {
        let unit = unit as u32;
        let one = UnitRun { first: unit, last: unit, groups, start_ns: time.start, end_ns: time.end };
        match runs.last_mut() {
            Some(run)
                if run.last + 1 == unit && *run == (UnitRun { first: run.first, last: run.last, ..one }) =>
            {
                run.last = unit;
            }
            _ => runs.push(one),
        }
    }
    runs
}

/// Truncates the sources to the maximum size.
fn sources(program: u64, texts: Vec<(String, String)>) -> Vec<SourceFile> {
    let mut room = TEXT;
    let mut out = Vec::new();
    for (name, mut text) in texts {
        let all = text.len();
        let end = (0..=room.min(all)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        room -= text.len();
        out.push(SourceFile { program, whole: text.len() == all, name, text });
    }
    out
}
