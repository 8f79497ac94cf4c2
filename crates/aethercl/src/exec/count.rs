//! Counters of instructions, memory transactions and bank conflicts, by SIMD group of the simulated device.

use super::bytecode::{Code, File, Inst};
use super::chain::Chains;
use super::footprint::{Footprint, SECTOR, SECTORS, sector};
use super::lanes::{Binary32, Binary64, Ternary32, Ternary64, Unary32, Unary64};
use super::mask::Mask;
use super::shared::Shared;
use super::values::Values;
use crate::check::{Kind, MemoryAccess, Touch};
use crate::counters::{Counters, Tally, Traffic};
use crate::launch::NdRange;
use crate::memory::address::PointerSpace;

/// Banks of local memory, four bytes wide.
const BANKS: usize = 32;

/// Counts.
pub struct Counting {
    counters: Counters,
    width: usize,
    /// Counters of each instruction if counters by line are requested, else one for all instructions.
    tallies: Vec<Tally>,
    /// Index of the entry of `tallies` for the current instruction.
    at: usize,
    /// Sectors that the launch loads, and those that it stores.
    loaded: Footprint,
    stored: Footprint,
    /// Bytes of the buffers by argument.
    buffers: Vec<Option<u64>>,
    /// Critical paths of the work-groups.
    chains: Chains,
    /// Values that the current work-group has computed.
    values: Values,
    /// Scratch memory for the addresses of one SIMD group.
    seen: Vec<u64>,
}

/// The class of an instruction.
enum Class {
    Integer,
    Float,
    Fma,
    Double,
    DoubleFma,
    Special,
    Branch,
    Barrier,
    Other,
}

fn class(inst: &Inst) -> Class {
    match *inst {
        Inst::Binary32 { op, .. } => class_binary32(op),
        Inst::Binary64 { op, .. } => {
            let name = format_class64(op);
            if name { Class::Double } else { Class::Integer }
        }
        Inst::Ternary32 { op: Ternary32::FmaF | Ternary32::MadF, .. } => Class::Fma,
        Inst::Ternary64 { op: Ternary64::FmaF | Ternary64::MadF, .. } => Class::DoubleFma,
        Inst::Unary32 { op, .. } => class_unary32(op),
        Inst::Unary64 { op: Unary64::SqrtF, .. } => Class::Special,
        Inst::Unary64 {
            op: Unary64::NegF | Unary64::AbsF | Unary64::CeilF | Unary64::FloorF | Unary64::RintF,
            ..
        } => Class::Double,
        Inst::Math32 { .. } | Inst::Math64 { .. } => Class::Special,
        Inst::Compare64 { .. }
        | Inst::Ternary32 { .. }
        | Inst::Ternary64 { .. }
        | Inst::Unary64 { .. }
        | Inst::Widen { .. }
        | Inst::Narrow { .. } => Class::Integer,
        Inst::JumpIf { .. } | Inst::IfBegin { .. } | Inst::LoopCond { .. } | Inst::Case { .. } => {
            Class::Branch
        }
        Inst::Barrier { .. } => Class::Barrier,
        _ => Class::Other,
    }
}

fn class_binary32(op: Binary32) -> Class {
    use Binary32::*;
    match op {
        AddF | SubF | MulF | EqF | NeF | LtF | LeF | FminF | FmaxF | MinF | MaxF | StepF | CopysignF => {
            Class::Float
        }
        DivF | Atan2F | Atan2piF | FmodF | HypotF | PowF | PowrF | RemainderF | PownF | RootnF | LdexpF
        | RemquoF | RemquoQuotientF | NextafterF | FdimF | MaxmagF | MinmagF => Class::Special,
        _ => Class::Integer,
    }
}

fn format_class64(op: Binary64) -> bool {
    use Binary64::*;
    matches!(
        op,
        AddF | SubF
            | MulF
            | DivF
            | FminF
            | FmaxF
            | MinF
            | MaxF
            | StepF
            | CopysignF
            | NextafterF
            | Atan2F
            | Atan2piF
            | FdimF
            | FmodF
            | HypotF
            | MaxmagF
            | MinmagF
            | PowF
            | PowrF
            | RemainderF
            | PownF
            | RootnF
            | LdexpF
            | RemquoF
            | RemquoQuotientF
    )
}

fn class_unary32(op: Unary32) -> Class {
    use Unary32::*;
    match op {
        SqrtF | RsqrtF | RecipF | ExpF | Exp2F | Exp10F | Expm1F | LogF | Log2F | Log10F | Log1pF | TanhF
        | SinF | CosF | TanF => Class::Special,
        NegF | AbsF | CeilF | FloorF | TruncF | RoundF | RintF | HalfToF | FToHalf | S32ToF | U32ToF
        | FToS32 | FToU32 => Class::Float,
        _ => Class::Integer,
    }
}

/// Number of device instructions for a bytecode instruction, on a GPU with 32-bit registers and no divider. Divisions count as the code that
/// compilers emit for them: a reciprocal with corrections, and a subroutine for 64 bits.
fn weight(inst: &Inst) -> u64 {
    use Binary64::{
        Add, AddSatS, AddSatU, DivS, DivU, Mul, MulHiS, MulHiU, RemS, RemU, Rotate, Shl, ShrS, ShrU, Sub,
    };
    match *inst {
        Inst::Binary32 { op: Binary32::DivS | Binary32::DivU | Binary32::RemS | Binary32::RemU, .. } => 18,
        Inst::Binary32 { op: Binary32::DivF, .. } => 8,
        // The fast path of these subroutines, for operands that fit 32 bits.
        Inst::Binary64 { op: DivS | DivU | RemS | RemU, .. } => 30,
        Inst::Binary64 { op: MulHiS | MulHiU, .. } => 12,
        Inst::Binary64 { op: Mul, .. } => 4,
        Inst::Binary64 { op: Shl | ShrS | ShrU | Rotate | AddSatS | AddSatU, .. } => 3,
        Inst::Binary64 { op: Add | Sub, .. } => 2,
        Inst::Compare64 { .. } => 2,
        _ => 1,
    }
}

impl Counting {
    /// Nothing counted yet.
    pub fn new(shared: &Shared<'_>, lines: bool) -> Counting {
        let code = shared.code;
        let counters = Counters {
            simd_width: shared.sub_group,
            local_bytes: u64::from(shared.local_bytes),
            registers: code.registers() + code.private_bytes / 4,
            ..Counters::default()
        };
        Counting {
            counters,
            tallies: vec![Tally::default(); if lines { code.insts.len().max(1) } else { 1 }],
            at: 0,
            width: shared.sub_group as usize,
            loaded: Footprint::default(),
            stored: Footprint::default(),
            chains: Chains::default(),
            values: Values::default(),
            buffers: shared.buffers.iter().map(|b| b.as_ref().map(|b| b.bytes)).collect(),
            seen: Vec::new(),
        }
    }

    /// A group starts.
    pub fn start_group(&mut self, items: usize, code: &Code) {
        self.counters.groups += 1;
        self.loaded.start_group();
        self.stored.start_group();
        self.chains.start_group(code);
        self.values.start_group(code);
        self.counters.items += items as u64;
        self.counters.simd_groups += items.div_ceil(self.width) as u64;
    }

    /// Merges the counters of another thread.
    pub fn and(mut self, mut other: Counting) -> Counting {
        other.chains.end_group();
        self.counters.add(&other.counters);
        self.tallies.iter_mut().zip(&other.tallies).for_each(|(mine, theirs)| mine.add(theirs));
        self.loaded = self.loaded.and(other.loaded);
        self.stored = self.stored.and(other.stored);
        self.chains.end_group();
        self.chains.sum.add(&other.chains.sum);
        self
    }

    /// Returns the counters, extrapolated to all `groups` if only a sample ran; and those of each instruction, if counters by line are requested.
    pub fn finish(mut self, groups: u64, range: &NdRange) -> (Counters, Vec<Tally>) {
        self.chains.end_group();
        let mut counters = self.counters;
        let mut all = Tally::default();
        self.tallies.iter().for_each(|t| all.add(t));
        counters.take(all);
        let ran = counters.groups;
        let bytes = |argument: usize| self.buffers.get(argument).copied().flatten();
        counters.chain = self.chains.sum;
        (counters.load_again, counters.store_again) = (self.loaded.again(), self.stored.again());
        counters.group_footprint = self.loaded.by_groups();
        counters.global_footprint = self.loaded.different(ran, groups, bytes);
        counters.store_footprint = self.stored.different(ran, groups, bytes);
        if ran < groups {
            counters.scale(ran, groups);
            self.tallies.iter_mut().for_each(|t| t.scale(ran, groups));
            counters.items = range.global.iter().product();
        }
        (counters, if self.tallies.len() > 1 { self.tallies } else { Vec::new() })
    }

    /// Selects the instruction that the following events are counted for.
    fn at(&mut self, pc: usize) {
        self.at = pc.min(self.tallies.len() - 1);
    }

    /// Handles an instruction that is about to run. `argument` is the kernel argument that a global address came from.
    pub fn instruction(
        &mut self,
        pc: usize,
        (code, argument): (&Code, Option<usize>),
        mask: &Mask,
        items: usize,
    ) {
        let inst = &code.insts[pc];
        let active = mask.count() as u64;
        if active == 0 {
            return;
        }
        self.at(pc);
        self.tallies[self.at].executions += active;
        let folded = self.chains.is_folded(inst, code);
        if self.values.is_known(pc, inst, code, active == items as u64) {
            self.chains.kept(inst, code);
            return;
        }
        if folded {
            return;
        }
        let weight = weight(inst);
        let special = matches!(class(inst), Class::Special);
        self.chains.instruction(inst, code, (weight, special), argument);
        let uniform = match inst {
            _ if is_access(inst) => false,
            Inst::JumpIf { .. } => true,
            _ => inst.destination().is_some_and(|d| d.file == File::Uniform),
        };
        let o = &mut self.tallies[self.at].operations;
        match class(inst) {
            Class::Other if !is_access(inst) => return,
            Class::Other => {}
            Class::Barrier => o.barrier += active,
            Class::Branch => o.branch += active,
            _ if uniform => {}
            Class::Integer => o.integer += active * weight,
            Class::Float => o.float += active,
            Class::Fma => {
                o.float += active;
                o.fma += active;
            }
            Class::Double => o.double += active,
            Class::DoubleFma => {
                o.double += active;
                o.fma += active;
            }
            Class::Special => o.special += active,
        }
        if uniform {
            self.tallies[self.at].uniform += weight;
            return;
        }
        let issued = issued(mask, self.width, items) * weight;
        let tally = &mut self.tallies[self.at];
        tally.issued += issued;
        tally.lanes_idle += (issued * self.width as u64).saturating_sub(active * weight);
    }

    /// Handles a memory access that is about to run.
    pub fn access(&mut self, access: &MemoryAccess<'_>) {
        self.at(access.pc);
        let width = self.width;
        let mut from = 0;
        while from < access.touches.len() {
            let simd = access.touches[from].lane / width;
            let more = access.touches[from..].iter().take_while(|t| t.lane / width == simd).count();
            self.simd_access(access, from, from + more);
            from += more;
        }
    }

    fn simd_access(&mut self, access: &MemoryAccess<'_>, from: usize, to: usize) {
        let touches = &access.touches[from..to];
        let n = touches.len() as u64;
        let o = &mut self.tallies[self.at].operations;
        let space = touches[0].space;
        let counter = match (access.kind, space) {
            (Kind::Load, PointerSpace::Global) => &mut o.load_global,
            (Kind::Load, PointerSpace::Local) => &mut o.load_local,
            (Kind::Load, PointerSpace::Private) => &mut o.load_private,
            (Kind::Load, PointerSpace::Constant) => &mut o.load_constant,
            (Kind::Store, PointerSpace::Local) => &mut o.store_local,
            (Kind::Store, PointerSpace::Private) => &mut o.store_private,
            (Kind::Store, _) => &mut o.store_global,
            (Kind::Atomic, PointerSpace::Local) => &mut o.atomic_local,
            (Kind::Atomic, _) => &mut o.atomic_global,
        };
        *counter += n;
        match space {
            PointerSpace::Global => self.global(access, from, to),
            PointerSpace::Local => self.local(access, from, to),
            _ => {}
        }
    }

    fn global(&mut self, access: &MemoryAccess<'_>, from: usize, to: usize) {
        let bytes = u64::from(access.bytes);
        self.seen.clear();
        for t in &access.touches[from..to] {
            self.seen.extend(sector(t.at)..=sector(t.at + bytes - 1));
        }
        let load = access.kind == Kind::Load;
        let asked = bytes * (to - from) as u64;
        let traffic = self.traffic(load);
        traffic.requests += 1;
        traffic.bytes += asked;
        self.sectors(load, access.touches[from].at, asked);
    }

    fn traffic(&mut self, load: bool) -> &mut Traffic {
        let tally = &mut self.tallies[self.at];
        if load { &mut tally.global_load } else { &mut tally.global_store }
    }

    /// Counts the sectors in `seen` of one request for `asked` bytes; `pointer` identifies the kernel argument.
    fn sectors(&mut self, load: bool, pointer: u64, asked: u64) {
        self.seen.sort_unstable();
        self.seen.dedup();
        let touched = self.seen.len() as u64;
        let tally = &mut self.tallies[self.at];
        tally.ideal_sectors += asked.div_ceil(SECTOR).min(touched);
        let traffic = if load { &mut tally.global_load } else { &mut tally.global_store };
        traffic.sectors += touched;
        let footprint = if load { &mut self.loaded } else { &mut self.stored };
        let mut last = u64::MAX;
        for sector in &self.seen {
            footprint.touch(*sector, pointer);
            if sector / SECTORS != last {
                traffic.lines += 1;
                last = sector / SECTORS;
            }
        }
    }

    /// Handles an image access by `items` work-items: texels of `bytes` bytes at `touches`, at most `taps` per work-item of a filtered read. A
    /// texture unit reads four texels of four bytes in one step, through the L1 cache.
    pub fn image(&mut self, pc: usize, kind: Kind, bytes: u32, taps: u64, items: u64, touches: &mut [Touch]) {
        self.at(pc);
        let load = kind == Kind::Load;
        let o = &mut self.tallies[self.at].operations;
        if load {
            o.load_image += touches.len() as u64;
            self.tallies[self.at].texture_steps += items * taps.div_ceil(4) * u64::from(bytes).div_ceil(4);
        } else {
            o.store_image += touches.len() as u64;
        }
        touches.sort_by_key(|t| t.lane);
        let bytes = u64::from(bytes);
        let width = self.width;
        for part in touches.chunk_by(|a, b| a.lane / width == b.lane / width) {
            self.seen.clear();
            for t in part {
                self.seen.extend(sector(t.at)..=sector(t.at + bytes - 1));
            }
            let asked = bytes * part.len() as u64;
            let traffic = self.traffic(load);
            // Reads do not use the address units of loads.
            traffic.requests += u64::from(!load);
            traffic.bytes += asked;
            self.sectors(load, part[0].at, asked);
        }
    }

    /// Counts the passes of a local memory request. Vectors are moved in parts of 16, 8 or 4 bytes, depending on their known alignment.
    fn local(&mut self, access: &MemoryAccess<'_>, from: usize, to: usize) {
        let (bytes, align) = (u64::from(access.bytes), u64::from(access.align.max(1)));
        let piece = [16, 8].into_iter().find(|p| bytes % p == 0 && align % p == 0).unwrap_or(4);
        // A pass serves this many lanes, or twice as many if neighboring lanes read the same address.
        let lanes = self.width * 4 / piece as usize;
        let touches = &access.touches[from..to];
        for start in (0..bytes).step_by(piece as usize) {
            self.tallies[self.at].local_requests += 1;
            let mut rest = touches;
            while let Some(first) = rest.first() {
                let part = |n: usize| {
                    let block = first.lane / n;
                    rest.iter().take_while(|t| t.lane / n == block).count()
                };
                let twice = part(2 * lanes);
                let n = if piece > 4 && neighbours_share(&rest[..twice]) { twice } else { part(lanes) };
                self.tallies[self.at].local_passes +=
                    passes(&mut self.seen, access.kind, &rest[..n], start..start + piece);
                rest = &rest[n..];
            }
        }
    }
}

/// Returns true if all lanes pairwise access the same address, with a lane distance of 1 or of 2.
fn neighbours_share(touches: &[Touch]) -> bool {
    [1, 2].into_iter().any(|apart| {
        touches.iter().all(|t| {
            let mut others = touches.iter().filter(|o| o.lane == t.lane ^ apart);
            others.all(|o| o.place == t.place)
        })
    })
}

/// Returns the number of passes: the maximum number of different words in one bank. Equal words are broadcast, except for atomic operations.
fn passes(seen: &mut Vec<u64>, kind: Kind, touches: &[Touch], bytes: std::ops::Range<u64>) -> u64 {
    seen.clear();
    for word in 0..(bytes.end - bytes.start).div_ceil(4) {
        seen.extend(touches.iter().map(|t| (t.place as u64 + bytes.start) / 4 + word));
    }
    seen.sort_unstable();
    if kind != Kind::Atomic {
        seen.dedup();
    }
    let mut passes = [0u64; BANKS];
    seen.iter().for_each(|w| passes[*w as usize % BANKS] += 1);
    passes.iter().max().copied().unwrap_or(1)
}

/// Returns true if it reads or writes memory.
fn is_access(inst: &Inst) -> bool {
    use Inst::{Atomic, Load, ReadImage, Store, WriteImage};
    matches!(inst, Load { .. } | Store { .. } | Atomic { .. } | ReadImage { .. } | WriteImage { .. })
}

/// Returns the number of SIMD groups with at least one active lane.
fn issued(mask: &Mask, width: usize, items: usize) -> u64 {
    if mask.is_dense() {
        let range = mask.range();
        return (range.end.div_ceil(width) - range.start / width) as u64;
    }
    let bits = &mask.bits()[..items];
    bits.chunks(width).filter(|c| c.iter().any(|b| *b != 0)).count() as u64
}
