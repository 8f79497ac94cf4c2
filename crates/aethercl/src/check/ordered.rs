//! Data races of kernels whose atomic operations and fences order memory. Each granule stores every access that a later access does not know.
//! [`HappensBefore`] determines which these are.

use super::order::{HappensBefore, Moment};
use super::race::{Other, number_allocations, report_hits};
use super::{Check, FindingCollector, GroupContext, Kind, MemoryAccess, Whole};
use crate::exec::Shared;
use crate::exec::bytecode::AtomicOp;
use crate::hir::MemoryOrder;
use crate::memory::address::PointerSpace;
use std::collections::HashMap;

/// Index of local memory in the allocations.
const LOCAL: usize = usize::MAX;
/// Maximum number of stored accesses per granule and kind. Beyond it, an arbitrary one is dropped and a race may be missed.
const MAX_STORED_ACCESSES: usize = 4096;

/// Accesses of one kind: the last one of each work-item (group + 1, lane).
#[derive(Default)]
struct Marks(HashMap<(u32, u32), Moment>);

impl Marks {
    /// Returns an access that is not ordered before the work-item, if any.
    fn unknown(&self, order: &mut HappensBefore, side: usize, lane: usize) -> Option<Moment> {
        self.0.values().filter(|m| !order.is_before(m, side, lane)).min_by_key(|m| (m.group, m.lane)).copied()
    }

    fn add(&mut self, now: Moment) {
        if self.0.len() >= MAX_STORED_ACCESSES
            && let Some(first) = self.0.keys().next().copied()
        {
            self.0.remove(&first);
        }
        self.0.insert((now.group, now.lane), now);
    }

    fn forget_known(&mut self, order: &mut HappensBefore, side: usize, lane: usize) {
        self.0.retain(|_, m| !order.is_before(m, side, lane));
    }
}

#[derive(Default)]
struct Cell {
    writes: Marks,
    reads: Marks,
    atomic_writes: Marks,
    atomic_reads: Marks,
}

impl Cell {
    /// Records an access and returns the access that it races with.
    fn visit(&mut self, now: Moment, order: &mut HappensBefore, side: usize, does: Does) -> Option<Other> {
        let lane = now.lane as usize;
        let mut other = None;
        let lists: [(&Marks, bool, bool); 4] = [
            (&self.writes, true, true),
            (&self.atomic_writes, true, !does.atomic),
            (&self.reads, false, does.writes),
            (&self.atomic_reads, false, does.writes && !does.atomic),
        ];
        for (marks, wrote, races) in lists {
            if other.is_none() && races {
                other = marks.unknown(order, side, lane).map(|m| Other {
                    group: m.group,
                    lane: Some(m.lane),
                    wrote,
                });
            }
        }
        // An access that races with one ordered before this write also races with the write itself.
        if does.writes && !does.atomic {
            for marks in [&mut self.writes, &mut self.reads, &mut self.atomic_writes, &mut self.atomic_reads]
            {
                marks.forget_known(order, side, lane);
            }
        }
        let list = match (does.atomic, does.writes) {
            (false, false) => &mut self.reads,
            (false, true) => &mut self.writes,
            (true, false) => &mut self.atomic_reads,
            (true, true) => &mut self.atomic_writes,
        };
        list.add(now);
        other
    }
}

/// Properties of an access for race detection.
#[derive(Clone, Copy)]
struct Does {
    writes: bool,
    atomic: bool,
}

/// Check for races in kernels with ordered atomic operations.
pub struct OrderedRaces {
    /// Bytes of a granule, as a power of two.
    shift: u32,
    /// Index of the allocation by argument index.
    allocations: Vec<usize>,
    /// By allocation: whether an argument may write it.
    written: Vec<bool>,
    cells: HashMap<(usize, usize), Cell>,
    order: HappensBefore,
}

impl OrderedRaces {
    /// Nothing touched yet.
    pub fn new(shared: &Shared<'_>) -> OrderedRaces {
        let (allocations, known) = number_allocations(shared);
        OrderedRaces {
            shift: shared.code.granule.max(1).trailing_zeros(),
            allocations,
            written: known.iter().map(|(.., written)| *written).collect(),
            cells: HashMap::new(),
            order: HappensBefore::new(shared.sub_group),
        }
    }

    /// Returns the number of the accessed memory and its order: 0 local memory, 1 global memory.
    fn place(&self, space: PointerSpace, object: u32) -> Option<(usize, usize)> {
        match space {
            PointerSpace::Local => Some((LOCAL, 0)),
            PointerSpace::Global => Some((self.allocations.get(object as usize).copied()?, 1)),
            _ => None,
        }
    }

    /// Handles the atomic operations of one instruction, one work-item at a time.
    fn synchronize(&mut self, access: &MemoryAccess<'_>, (op, order): (AtomicOp, MemoryOrder)) {
        // Memory content after these operations, where they change it.
        let mut after: HashMap<u64, u64> = HashMap::new();
        for touch in access.touches.iter().filter(|t| t.inside) {
            let Some((number, side)) = self.place(touch.space, touch.object) else { continue };
            let place = (number, touch.place as usize);
            if op == AtomicOp::CompareExchange {
                let holds = after.get(&touch.at).copied();
                let holds = holds.unwrap_or_else(|| (access.memory)(touch.at, touch.lane));
                if !access.is_equal(holds, (access.stored)(touch.lane, 0)) {
                    self.order.failed(place, side, touch.lane, order);
                    continue;
                }
                after.insert(touch.at, (access.stored)(touch.lane, 1));
            }
            let does = (op != AtomicOp::Store, op != AtomicOp::Load);
            self.order.atomic(place, side, touch.lane, order, does);
        }
    }
}

impl Check for OrderedRaces {
    fn start_group(&mut self, cx: &GroupContext<'_>) {
        let items = cx.size.iter().product::<u64>() as usize;
        self.order.start_group(cx.group_number() as u32 + 1, items, LOCAL);
        self.cells.retain(|(number, _), _| *number != LOCAL);
    }

    fn sub_barrier(&mut self, flags: u32, cx: &GroupContext<'_>) {
        self.order.sub_barrier(cx.mask.lanes(), flags);
    }

    fn barrier(&mut self, _pc: usize, flags: u32, _cx: &GroupContext<'_>, _report: &mut FindingCollector) {
        self.order.barrier(flags);
    }

    fn fence(&mut self, order: MemoryOrder, flags: u32, cx: &GroupContext<'_>) {
        cx.mask.lanes().for_each(|lane| self.order.fence(lane, order, flags));
    }

    fn settles(&mut self, whole: &Whole<'_>, _cx: &GroupContext<'_>) -> bool {
        let Some((number, side)) = self.place(whole.space, whole.object) else { return true };
        let constant = side == 1 && !self.written.get(number).copied().unwrap_or(true);
        constant && whole.kind == Kind::Load
    }

    fn access(&mut self, access: &MemoryAccess<'_>, cx: &GroupContext<'_>, report: &mut FindingCollector) {
        let load = matches!(access.atomic, Some((AtomicOp::Load, _)));
        let does = Does { writes: access.kind != Kind::Load && !load, atomic: access.kind == Kind::Atomic };
        let mut hits = Vec::new();
        for touch in access.touches.iter().filter(|t| t.inside) {
            let Some((number, side)) = self.place(touch.space, touch.object) else { continue };
            let now = self.order.now(side, touch.lane);
            let (first, last) = (touch.place as usize, touch.place as usize + access.bytes as usize - 1);
            for at in first >> self.shift..=last >> self.shift {
                let cell = self.cells.entry((number, at)).or_default();
                if let Some(other) = cell.visit(now, &mut self.order, side, does) {
                    hits.push((touch.lane, other));
                }
            }
        }
        if let Some(atomic) = access.atomic {
            self.synchronize(access, atomic);
        }
        report_hits(hits, access, cx, report);
    }
}
