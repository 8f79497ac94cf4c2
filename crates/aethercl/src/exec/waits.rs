//! Where an in-order machine waits for loads: at the first use of what one brings, if it has not come by then.

use super::bytecode::{Address, Code, Inst, Reg};
use crate::counters::DISTANCES;
use crate::memory::address::Space;

/// A load on its way.
struct Pending {
    to: Reg,
    local: bool,
    /// When it was issued.
    at: u64,
}

/// Waits of the groups so far.
#[derive(Default)]
pub struct Waits {
    /// For global loads, by the logarithm of the instructions between.
    pub global: [u64; DISTANCES],
    /// For local ones.
    pub local: [u64; DISTANCES],
    pending: Vec<Pending>,
    now: u64,
}

fn same(a: Reg, b: Reg) -> bool {
    (a.file, a.index) == (b.file, b.index)
}

impl Waits {
    /// The next group starts.
    pub fn start_group(&mut self) {
        self.pending.clear();
    }

    /// With another thread's.
    pub fn add(&mut self, other: &Waits) {
        self.global.iter_mut().zip(other.global).for_each(|(a, b)| *a += b);
        self.local.iter_mut().zip(other.local).for_each(|(a, b)| *a += b);
    }

    /// An instruction that some lanes run, as so many of the machine's.
    pub fn instruction(&mut self, inst: &Inst, code: &Code, weight: u64) {
        if !self.pending.is_empty() {
            let mut latest = None;
            reads(inst, code, |r| {
                let found = self.pending.iter().rev().find(|p| same(p.to, r));
                latest = latest.max(found.map(|p| (p.at, p.local)));
            });
            if let Some((at, local)) = latest {
                let list = if local { &mut self.local } else { &mut self.global };
                list[((self.now - at).max(1).ilog2() as usize).min(DISTANCES - 1)] += 1;
                // Loads come back in order; global ones outlast local ones.
                self.pending.retain(|p| p.at > at || (local && !p.local));
            }
            if let Some(to) = inst.destination() {
                self.pending.retain(|p| !same(p.to, to));
            }
        }
        if let Inst::Load { count, list, address, .. } = *inst {
            let space = code.addresses[address as usize].space;
            let local = space == Some(Space::Local);
            if local || matches!(space, None | Some(Space::Global)) {
                for to in code.listed(list, count) {
                    self.pending.retain(|p| !same(p.to, *to));
                    self.pending.push(Pending { to: *to, local, at: self.now });
                }
            }
        }
        if !matches!(inst, Inst::Join { .. } | Inst::Clear { .. } | Inst::Park { .. } | Inst::Resume { .. }) {
            self.now += weight;
        }
    }
}

/// Registers that an instruction reads.
fn reads(inst: &Inst, code: &Code, mut f: impl FnMut(Reg)) {
    let address = |a: u32, f: &mut dyn FnMut(Reg)| {
        let a: &Address = &code.addresses[a as usize];
        f(a.base);
        a.index.iter().chain(&a.uniform).for_each(|i| f(i.reg));
    };
    match *inst {
        Inst::Binary32 { a, b, .. } | Inst::Binary64 { a, b, .. } | Inst::Compare64 { a, b, .. } => {
            f(a);
            f(b);
        }
        Inst::Ternary32 { s, .. } | Inst::Ternary64 { s, .. } => s.into_iter().for_each(f),
        Inst::Unary32 { a, .. }
        | Inst::Unary64 { a, .. }
        | Inst::Widen { a, .. }
        | Inst::Narrow { a, .. }
        | Inst::Math32 { a, .. }
        | Inst::Math64 { a, .. } => f(a),
        Inst::Load { address: a, .. } | Inst::AddressOf { address: a, .. } => address(a, &mut f),
        Inst::Store { count, list, address: a, .. } => {
            code.listed(list, count).iter().for_each(|r| f(*r));
            address(a, &mut f);
        }
        Inst::Atomic { list, address: a, .. } => {
            code.listed(list, 2).iter().for_each(|r| f(*r));
            address(a, &mut f);
        }
        Inst::JumpIf { cond, .. }
        | Inst::IfBegin { cond, .. }
        | Inst::LoopCond { cond, .. }
        | Inst::Case { cond, .. } => f(cond),
        Inst::Collective { list, .. } => f(code.listed(list, 1)[0]),
        _ => {}
    }
}
