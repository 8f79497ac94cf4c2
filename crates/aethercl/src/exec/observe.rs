//! Passes each instruction to the checks and counters before it is executed.

use super::bytecode::{Address, AtomicOp, Extend, File, Inst, MemType, Reg};
use super::group::Group;
use super::observer::Observer;
use crate::check::{GroupContext, Kind, Lanes, MemoryAccess, Touch, Whole};
use crate::memory::address::{self, PointerSpace};

/// Maximum number of elements of an asynchronous copy that are checked.
const MAX_COPY: u64 = 1 << 20;

/// Returns the context of a group for the checks.
pub(super) fn context<'c>(g: &'c Group<'_>) -> GroupContext<'c> {
    GroupContext { shared: g.shared, group: g.id, size: g.size, lanes: g.lanes, mask: &g.mask }
}

impl Group<'_> {
    /// Called when a work-group starts.
    pub(super) fn observe_start(&mut self) {
        let Some(mut o) = self.observer.take() else { return };
        let cx = context(self);
        o.checks.iter_mut().for_each(|c| c.start_group(&cx));
        if let Some(counting) = &mut o.counting {
            counting.start_group(self.items, self.shared.code);
        }
        self.observer = Some(o);
    }

    /// Returns the argument that the address of a load or a store came from, according to its first work-item.
    fn argument_of(&self, inst: &Inst) -> Option<usize> {
        let (Inst::Load { address, .. } | Inst::Store { address, .. }) = *inst else { return None };
        let base = self.shared.code.addresses[address as usize].base;
        let value = match base.file {
            File::Uniform => self.uniforms[base.index as usize],
            File::Long => self.lane_value(base, self.mask.lanes().next()?),
            File::Word => return None,
        };
        (address::space(value) == PointerSpace::Global).then(|| address::argument(value))?
    }

    /// Called before each instruction.
    pub(super) fn observe(&mut self, pc: usize) {
        let code = self.shared.code;
        let inst = &code.insts[pc];
        // Most instructions only compute.
        if inst.is_arithmetic() && self.observer.as_ref().is_none_or(|o| o.counting.is_none()) {
            return;
        }
        let Some(mut o) = self.observer.take() else { return };
        if let Some(counting) = &mut o.counting {
            counting.instruction(pc, (code, self.argument_of(inst)), &self.mask, self.items);
        }
        if !self.mask.is_empty() {
            match *inst {
                Inst::Load { ty, count, list, address, copies } => {
                    self.observe_access(
                        &mut o,
                        pc,
                        (Kind::Load, !copies),
                        (ty, count),
                        code.listed(list, count),
                        address,
                    );
                }
                Inst::Store { ty, count, list, address } => {
                    self.observe_access(
                        &mut o,
                        pc,
                        (Kind::Store, false),
                        (ty, count),
                        code.listed(list, count),
                        address,
                    );
                }
                Inst::Atomic { op, wide, list, address, .. } => {
                    let ty = if wide { MemType::B64 } else { MemType::B32 };
                    let reads = !matches!(op, AtomicOp::Store | AtomicOp::Exchange);
                    let kind = (Kind::Atomic, reads);
                    self.observe_access(&mut o, pc, kind, (ty, 1), code.listed(list, 2), address);
                }
                _ if self.observe_image(&mut o, pc, inst) => {}
                _ => self.observe_rare(&mut o, pc, inst),
            }
        }
        self.observer = Some(o);
    }

    fn observe_rare(&mut self, o: &mut Observer, pc: usize, inst: &Inst) {
        let code = self.shared.code;
        let cx = context(self);
        match *inst {
            Inst::Barrier { flags } => {
                let lane = self.mask.lanes().next().unwrap_or(0);
                let flags = self.lane_value(flags, lane) as u32;
                o.checks.iter_mut().for_each(|c| c.barrier(pc, flags, &cx, &mut o.report));
            }
            Inst::SubGroupBarrier { flags } => {
                let lane = self.mask.lanes().next().unwrap_or(0);
                let flags = self.lane_value(flags, lane) as u32;
                o.checks.iter_mut().for_each(|c| c.sub_barrier(flags, &cx));
            }
            Inst::Fence { order, flags } => {
                let lane = self.mask.lanes().next().unwrap_or(0);
                let flags = self.lane_value(flags, lane) as u32;
                o.checks.iter_mut().for_each(|c| c.fence(order, flags, &cx));
            }
            Inst::CheckDivisor { divisor, wide } => {
                let mask = if wide { u64::MAX } else { u64::from(u32::MAX) };
                let value = |lane: usize| self.lane_value(divisor, lane) & mask;
                o.checks.iter_mut().for_each(|c| c.divide(pc, &value, &cx, &mut o.report));
            }
            Inst::Undefine { offset, bytes } => {
                o.checks.iter_mut().for_each(|c| c.undefine(offset, bytes, &cx));
            }
            Inst::CheckIndex { index, len } => {
                let value = |lane: usize| self.lane_value(index, lane);
                o.checks.iter_mut().for_each(|c| c.index(pc, &value, len, &cx, &mut o.report));
            }
            Inst::AsyncCopy { bytes, list, strided } => {
                let operands = code.listed(list, 4);
                let differs = |r: &Reg| {
                    let mut values = self.mask.lanes().map(|l| self.lane_value(*r, l));
                    let first = values.next();
                    values.any(|v| Some(v) != first)
                };
                let same = !operands.iter().any(differs);
                o.checks.iter_mut().for_each(|c| c.collective(pc, same, &cx, &mut o.report));
                self.observe_copy(o, pc, bytes, code.listed(list, 4), strided);
            }
            _ => {}
        }
    }

    /// Handles an asynchronous copy. Its accesses are attributed to an extra lane after the work-items, which represents the copy engine.
    fn observe_copy(&self, o: &mut Observer, pc: usize, bytes: u32, operands: &[Reg], strided: bool) {
        let cx = context(self);
        let Some(lane) = self.mask.lanes().next() else { return };
        let [to, from, count, stride] = [0, 1, 2, 3].map(|i| self.lane_value(operands[i], lane));
        let to_global = address::space(to) == PointerSpace::Global;
        let (to_step, from_step) = match (strided, to_global) {
            (false, _) => (1, 1),
            (true, true) => (stride, 1),
            (true, false) => (1, stride),
        };
        let ty = match bytes % 4 {
            0 => MemType::B32,
            2 => MemType::U16,
            _ => MemType::U8,
        };
        for (start, step, kind) in [(from, from_step, Kind::Load), (to, to_step, Kind::Store)] {
            for i in 0..count.min(MAX_COPY) {
                let at = start.wrapping_add(i.wrapping_mul(step).wrapping_mul(u64::from(bytes)));
                let touches = [Touch { lane: self.items, ..cx.touch(lane, at, bytes) }];
                let access = MemoryAccess {
                    pc,
                    kind,
                    reads: kind == Kind::Load,
                    ty,
                    bytes,
                    align: 1,
                    touches: &touches,
                    stored: &|_, _| u64::MAX,
                    memory: &|_, _| 0,
                    atomic: None,
                };
                o.checks.iter_mut().for_each(|c| c.access(&access, &cx, &mut o.report));
            }
        }
    }

    /// Passes a whole access to the checks. Returns true if a check, marked in `open`, needs every lane.
    fn settle(&mut self, o: &mut Observer, does: (Kind, bool), bytes: u32, a: &Address) -> bool {
        o.open.clear();
        if o.checks.is_empty() {
            return false;
        }
        if self.near(a).is_none() {
            self.lane_addresses(a);
        }
        let cx = context(self);
        let lanes = self.near(a).unwrap_or(Lanes::Each(&self.addresses));
        let mut whole = Whole::of(lanes, does, bytes, a.align, &cx);
        if whole.is_none() && matches!(lanes, Lanes::Indexed { .. }) {
            self.lane_addresses(a);
            whole = Whole::of(Lanes::Each(&self.addresses), does, bytes, a.align, &context(self));
        }
        let cx = context(self);
        match whole {
            Some(whole) => o.open.extend(o.checks.iter_mut().map(|c| !c.settles(&whole, &cx))),
            None => o.open.resize(o.checks.len(), true),
        }
        o.open.contains(&true)
    }

    /// Returns the lanes' addresses, if they can be described without computing each one.
    fn near(&self, a: &Address) -> Option<Lanes<'_>> {
        if a.base.file != File::Uniform {
            return None;
        }
        let base = self.uniform_address(a);
        let Some(index) = a.index else { return Some(Lanes::Same(base)) };
        match index.reg.file {
            File::Uniform => Some(Lanes::Same(base.wrapping_add(self.index_value(index) as u64))),
            File::Word => {
                let signed = index.extend != Extend::Unsigned;
                let index_of = &self.words[index.reg.index as usize];
                Some(Lanes::Indexed { base, index: index_of, signed, scale: index.scale })
            }
            File::Long => None,
        }
    }

    fn observe_access(
        &mut self,
        o: &mut Observer,
        pc: usize,
        (kind, reads): (Kind, bool),
        (ty, count): (MemType, u8),
        list: &[Reg],
        address: u32,
    ) {
        let a: &Address = &self.shared.code.addresses[address as usize];
        let bytes = ty.size() * u32::from(count);
        if !self.settle(o, (kind, reads), bytes, a) && o.counting.is_none() {
            return;
        }
        self.lane_addresses(a);
        let cx = context(self);
        let mut touches = std::mem::take(&mut o.touches);
        touches.clear();
        touches.reserve(self.mask.count());
        for lane in self.mask.range() {
            if self.mask.has(lane) {
                touches.push(cx.touch(lane, self.addresses[lane], bytes));
            }
        }
        let stored = |lane: usize, element: usize| list.get(element).map_or(0, |r| self.lane_value(*r, lane));
        let memory = |at: u64, lane: usize| self.read_lane(at, ty, lane);
        let access = MemoryAccess {
            pc,
            kind,
            reads,
            ty,
            bytes,
            align: a.align,
            touches: &touches,
            stored: &stored,
            memory: &memory,
            atomic: match self.shared.code.insts[pc] {
                Inst::Atomic { op, order, .. } => Some((op, order)),
                _ => None,
            },
        };
        for (check, _) in o.checks.iter_mut().zip(&o.open).filter(|(_, open)| **open) {
            check.access(&access, &cx, &mut o.report);
        }
        if let Some(counting) = &mut o.counting {
            counting.access(&access);
        }
        o.touches = touches;
    }
}
