//! What a device did, for a report: commands, memory, and each kernel's counters by source line.

use super::packet::Packet;
use super::work::{Done, Outcome, Work};
use super::GpuError;
use crate::counters::{Counters, Tally};
use crate::model::{Estimate, Profile, line_shares};
use crate::report::{self, Command, Device, KEPT, Kernel, Launch, Line, MemoryCurve, MemoryEvent, Source, Transfer};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Signatures of a kernel whose counters are held; those of others are counted again when they come again.
const SIGNATURES: usize = 64;
/// Bytes of a program's texts that are kept.
const TEXT: usize = 2 << 20;

/// Launches of one signature.
struct Alike {
    /// What one of them does; the lines have their part of the estimate's time.
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
    longest: Launch,
    /// By file and line: what launches did whose signature is not held any more, and clocks.
    lines: Lines,
}

type Lines = BTreeMap<(Arc<str>, u32), (Tally, f64)>;

/// What happened so far.
pub struct Journal {
    /// When the program asked for what comes next.
    pub asked: u64,
    /// The copy engine of the command at hand.
    pub engine: Option<u32>,
    commands: Vec<Command>,
    commands_left_out: u64,
    memory: MemoryCurve,
    used: u64,
    /// Allocations that live: size and name.
    live: HashMap<u64, (u64, String)>,
    transfers: Vec<Transfer>,
    kernels: BTreeMap<(u64, String), Seen>,
    sources: BTreeMap<u64, Vec<Source>>,
    /// Clocks a ns.
    clocks: f64,
}

impl Journal {
    /// Nothing yet, on a device with so much memory.
    pub fn new(profile: &Profile, capacity: u64) -> Self {
        Self {
            asked: 0,
            engine: None,
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

    /// An allocation.
    pub fn allocated(&mut self, at: u64, address: u64, bytes: u64, name: &str) {
        self.used += bytes;
        self.memory.peak = self.memory.peak.max(self.used);
        self.live.insert(address, (bytes, name.to_string()));
        self.remember(at, bytes as i64, name.to_string());
    }

    /// Its end.
    pub fn freed(&mut self, at: u64, address: u64) {
        if let Some((bytes, name)) = self.live.remove(&address) {
            self.used -= bytes;
            self.remember(at, -(bytes as i64), name);
        }
    }

    fn remember(&mut self, at: u64, bytes: i64, name: String) {
        if self.memory.events.len() >= KEPT {
            self.memory.left_out += 1;
            return;
        }
        // Threads of a program may tell their moments out of order.
        let before = self.memory.events.last().map_or(0, |e| e.at_ns);
        let at_ns = at.max(self.asked).max(before);
        self.memory.events.push(MemoryEvent { at_ns, bytes, used: self.used, name });
    }

    /// A command that was done.
    pub fn command(
        &mut self,
        packet: &Packet,
        (queue, submitted_ns): (usize, u64),
        (start_ns, end_ns): (u64, u64),
        outcome: &Result<Outcome, GpuError>,
    ) {
        let engine = self.engine.take();
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
        if self.commands.len() >= KEPT {
            self.commands_left_out += 1;
            return;
        }
        let name = match outcome {
            Ok(outcome) => outcome.kernel.clone(),
            Err(GpuError::Hang { name, .. } | GpuError::Kernel { name, .. } | GpuError::Resources { name, .. }) => {
                name.clone()
            }
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

    /// Whether what a launch of this signature does is held.
    pub fn knows(&self, work: &dyn Work, signature: u64) -> bool {
        self.seen(work).is_some_and(|k| k.alike.contains_key(&signature))
    }

    /// A launch that was done; of one that was counted, with the counters.
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
            // Where a launch of the same signature was counted again, the earlier ones keep what they did.
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

    /// All of it as a report shows it.
    pub fn device(&self, profile: &Profile) -> Device {
        let one = |((program, name), seen): (&(u64, String), &Seen)| self.kernel(profile, *program, name, seen);
        let mut kernels: Vec<Kernel> = self.kernels.iter().map(one).collect();
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
            // Texts of which nothing ran, those of macros that are always defined among them, are of no interest.
            sources: self.sources.values().flatten().filter(|s| ran(&kernels, s)).cloned().collect(),
            kernels,
        }
    }

    fn kernel(&self, profile: &Profile, program: u64, name: &str, seen: &Seen) -> Kernel {
        let mut lines = seen.lines.clone();
        seen.alike.values().for_each(|alike| fold(&mut lines, profile, alike, self.clocks));
        let mut all = Tally::default();
        let mut cycles = 0.0;
        for (tally, clocks) in lines.values() {
            all.add(tally);
            cycles += clocks;
        }
        // Of all lines together the one that most work-items executed would say nothing.
        all.executions = lines.values().map(|(t, _)| t.executions).max().unwrap_or(0);
        let line = |((file, line), (tally, clocks)): ((Arc<str>, u32), (Tally, f64))| Line {
            file: file.to_string(),
            line,
            did: report::figures(&tally, seen.width, clocks),
        };
        Kernel {
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

fn ran(kernels: &[Kernel], source: &Source) -> bool {
    kernels.iter().any(|k| k.program == source.program && k.lines.iter().any(|l| l.file == source.name))
}

/// Adds what launches of one signature did, line by line, with their clocks.
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

/// As much of the texts as is kept.
fn sources(program: u64, texts: Vec<(String, String)>) -> Vec<Source> {
    let mut room = TEXT;
    let mut out = Vec::new();
    for (name, mut text) in texts {
        let all = text.len();
        let end = (0..=room.min(all)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        room -= text.len();
        out.push(Source { program, whole: text.len() == all, name, text });
    }
    out
}
