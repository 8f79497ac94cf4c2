//! The critical path of a work-group: its latency on a machine with unlimited issue width.
//!
//! Each register has the length of the dependency chain that produced its value. A barrier depends on everything before it, and instructions after a
//! branch depend on its condition. Work-items execute in order.
//!
//! A load of global memory also depends on the operands of the stores before it. A compiler does not move it before a store that may have the same
//! address. Any store may, except one through another pointer if one of the two is `restrict`. Other loads overlap, because compilers schedule them.
//! In a loop the overlap is limited to 16 bytes in flight per load instruction and lane, which is about the extent of compiler unrolling.

use super::bytecode::{Address, Code, File, Inst, READ, Reg, WRITE};
use crate::counters::Chain;
use crate::memory::address::PointerSpace;

/// Bytes in flight per lane and load instruction of a loop.
const BYTES_IN_FLIGHT: u32 = 16;
/// Approximate latencies in clocks, used to compare chains: global load, local load, operation, barrier.
const CLOCKS: [u64; 4] = [600, 30, 4, 30];
/// Latency of a special function, in operations.
const SPECIAL: u64 = 5;

impl Chain {
    fn length(&self) -> u64 {
        let each = [self.global_loads, self.local_loads, self.operations, self.barriers];
        each.iter().zip(CLOCKS).map(|(n, clocks)| n * clocks).sum()
    }

    /// Returns the longer of two chains.
    fn or(self, other: Chain) -> Chain {
        if other.length() > self.length() { other } else { self }
    }
}

/// Chains of the current work-group, and the sum over earlier ones.
#[derive(Default)]
pub struct Chains {
    /// Sum of the longest chains of the groups before.
    pub sum: Chain,
    words: Vec<Chain>,
    longs: Vec<Chain>,
    uniforms: Vec<Chain>,
    /// Uniform registers whose values are compile-time constants.
    fixed: Vec<bool>,
    /// Lower bound for the start of every instruction: the last barrier and the conditions of branches.
    floor: Chain,
    /// The longest chain so far.
    longest: Chain,
    /// For each load instruction: the chains of its latest executions, newest last.
    rounds: Vec<Vec<Chain>>,
    /// The longest chain of a store to global memory since the group started, by the argument that its address came from.
    stored: Vec<(Option<usize>, Chain)>,
}

/// Returns true if a compiler must assume that accesses through pointers from these arguments may alias.
fn may_alias(code: &Code, a: Option<usize>, b: Option<usize>) -> bool {
    let restricted = |x: Option<usize>| x.is_some_and(|i| code.restricted.get(i) == Some(&true));
    a == b || !(restricted(a) || restricted(b))
}

impl Chains {
    /// Starts the next group.
    pub fn start_group(&mut self, code: &Code) {
        self.end_group();
        for (list, n) in [
            (&mut self.words, usize::from(code.words)),
            (&mut self.longs, usize::from(code.longs)),
            (&mut self.uniforms, usize::from(code.uniforms)),
        ] {
            list.clear();
            list.resize(n, Chain::default());
        }
        self.fixed.clear();
        self.fixed.resize(code.uniforms.into(), false);
        code.constants.iter().for_each(|(register, _)| self.fixed[usize::from(*register)] = true);
        self.rounds.iter_mut().for_each(Vec::clear);
        self.rounds.resize_with(code.addresses.len(), Vec::new);
        (self.floor, self.longest) = (Chain::default(), Chain::default());
        self.stored.clear();
    }

    /// Adds the group's chain to the sum.
    pub fn end_group(&mut self) {
        self.sum.add(&self.longest);
        self.longest = Chain::default();
    }

    fn of(&mut self, r: Reg) -> Option<&mut Chain> {
        let list = match r.file {
            File::Uniform => &mut self.uniforms,
            File::Word => &mut self.words,
            File::Long => &mut self.longs,
        };
        list.get_mut(r.index as usize)
    }

    fn set(&mut self, r: Reg, chain: Chain) {
        if let Some(place) = self.of(r) {
            *place = chain;
        }
        self.longest = self.longest.or(chain);
    }

    /// Returns true if the result of an instruction is a compile-time constant after loop unrolling. Call it for every instruction in order.
    pub fn is_folded(&mut self, inst: &Inst, code: &Code) -> bool {
        let to = inst.destination().filter(|to| to.file == File::Uniform);
        if to.is_none() && !matches!(inst, Inst::JumpIf { .. }) {
            return false;
        }
        let mut fixed = !matches!(inst, Inst::Load { .. } | Inst::Atomic { .. } | Inst::Collective { .. });
        reads(inst, code, |r| {
            fixed &=
                r.file == File::Uniform && self.fixed.get(usize::from(r.index)).copied().unwrap_or(false);
        });
        if let Some(place) = to.and_then(|to| self.fixed.get_mut(usize::from(to.index))) {
            *place = fixed;
        }
        fixed
    }

    /// Handles an instruction whose result is already in a register (common subexpression): it adds no latency.
    pub fn kept(&mut self, inst: &Inst, code: &Code) {
        let mut chain = self.floor;
        reads(inst, code, |r| {
            if let Some(c) = self.of(r) {
                chain = chain.or(*c);
            }
        });
        if let Some(to) = inst.destination() {
            self.set(to, chain);
        }
    }

    /// Handles an executed instruction, which counts as `weight` device instructions. `argument` is the kernel argument that a global address came
    /// from.
    pub fn instruction(
        &mut self,
        inst: &Inst,
        code: &Code,
        (weight, special): (u64, bool),
        argument: Option<usize>,
    ) {
        let mut chain = self.floor;
        reads(inst, code, |r| {
            if let Some(c) = self.of(r) {
                chain = chain.or(*c);
            }
        });
        match *inst {
            Inst::Load { ty, count, list, address, .. } => {
                if is_global(code, address) {
                    let before = self.stored.iter().filter(|(by, _)| may_alias(code, *by, argument));
                    chain = before.fold(chain, |longest, (_, c)| longest.or(*c));
                }
                self.load(chain, code, (ty.size(), count, list), address)
            }
            Inst::Store { address, .. } => {
                chain.operations += weight;
                if is_global(code, address) {
                    match self.stored.iter_mut().find(|(by, _)| *by == argument) {
                        Some((_, longest)) => *longest = longest.or(chain),
                        None => self.stored.push((argument, chain)),
                    }
                }
            }
            Inst::ReadImage { .. } => {
                // Texture reads are assumed to have the latency of a load.
                chain.global_loads += 1;
                inst.results(code).iter().for_each(|to| self.set(*to, chain));
            }
            Inst::Barrier { .. } => {
                chain = self.longest.or(chain);
                chain.barriers += 1;
                self.floor = chain;
            }
            Inst::JumpIf { .. } | Inst::IfBegin { .. } | Inst::LoopCond { .. } | Inst::Case { .. } => {
                chain.operations += weight;
                self.floor = self.floor.or(chain);
            }
            Inst::Atomic { dst, .. } => {
                chain.global_loads += 1;
                self.set(dst, chain);
            }
            _ => {
                chain.operations += if special { SPECIAL.max(weight) } else { weight };
                if let Some(to) = inst.destination() {
                    self.set(to, chain);
                }
            }
        }
        self.longest = self.longest.or(chain);
    }

    fn load(&mut self, mut chain: Chain, code: &Code, (size, count, list): (u32, u8, u32), address: u32) {
        match code.addresses[address as usize].space {
            Some(PointerSpace::Local) => chain.local_loads += 1,
            None | Some(PointerSpace::Global) => {
                let ahead = (BYTES_IN_FLIGHT / (size * u32::from(count)).max(1)).max(1) as usize;
                let rounds = &mut self.rounds[address as usize];
                if rounds.len() >= ahead {
                    chain = chain.or(rounds.remove(0));
                }
                chain.global_loads += 1;
                rounds.push(chain);
            }
            _ => chain.operations += 1,
        }
        for to in code.listed(list, count) {
            self.set(*to, chain);
        }
    }
}

/// Returns true if an address may be one of global memory.
fn is_global(code: &Code, address: u32) -> bool {
    matches!(code.addresses[address as usize].space, None | Some(PointerSpace::Global))
}

/// Calls `f` with the registers that an instruction reads.
pub fn reads(inst: &Inst, code: &Code, mut f: impl FnMut(Reg)) {
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
        Inst::ReadImage { list, .. } => code.listed(list, READ).iter().skip(4).for_each(|r| f(*r)),
        Inst::WriteImage { list, .. } => code.listed(list, WRITE).iter().for_each(|r| f(*r)),
        Inst::JumpIf { cond, .. }
        | Inst::IfBegin { cond, .. }
        | Inst::LoopCond { cond, .. }
        | Inst::Case { cond, .. } => f(cond),
        Inst::Collective { list, .. } => f(code.listed(list, 1)[0]),
        _ => {}
    }
}
