//! Data races: unordered accesses of two work-items to the same bytes, at least one of them a write.
//!
//! Shadow memory stores the last write and the last reads ([`Marks`]) of each granule, which has the size of the kernel's smallest access. A mark is
//! a time stamp, which identifies the group and the barriers passed, and the lane. Within a group, a barrier orders the accesses on its two sides. A
//! sub-group barrier does the same for its sub-group. Between groups, only atomic operations order accesses. Two writes of the same value are
//! permitted, because every device gives the same result.

use super::granule::{Clock, Lane, Mark, Marks, Met};
use super::report::Details;
use super::{Check, FindingCollector, FindingKind, GroupContext, Kind, MemoryAccess, Touch, Whole};
use crate::exec::Shared;
use crate::memory::address::PointerSpace;

/// Index of local memory in the clocks.
const LOCAL: usize = 0;
/// Index of global memory.
const GLOBAL: usize = 1;

/// State of the check.
pub struct Races {
    /// log2 of the granule's size in bytes.
    shift: u32,
    local: Marks,
    /// For each kernel argument, the index of its allocation in `global`.
    allocations: Vec<usize>,
    global: Vec<Marks>,
    /// Allocations that an argument may write. Loads from the others cannot race; a store to them violates the launch's contract.
    written: Vec<bool>,
    /// Clocks of local and global memory.
    clocks: [Clock; 2],
    /// For each group that ran, its first stamp in global memory and its number + 1.
    groups: Vec<(u32, u32)>,
    /// Work-items per sub-group.
    sub_size: u32,
    /// Number of barriers that each sub-group of the group passed separately: local, global.
    sub_epochs: Vec<[u16; 2]>,
    /// Races of the current access: lane and the other side.
    hits: Vec<(usize, Met)>,
}

impl Races {
    /// Nothing touched yet.
    pub fn new(shared: &Shared<'_>) -> Races {
        let shift = shared.code.granule.max(1).trailing_zeros();
        let size = 1usize << shift;
        let (allocations, known) = number_allocations(shared);
        let written = known.iter().map(|(.., written)| *written).collect();
        let shadow = |(_, bytes, _): (u64, u64, bool)| Marks::new((bytes as usize).div_ceil(size));
        Races {
            shift,
            local: Marks::new((shared.local_bytes as usize).div_ceil(size)),
            allocations,
            global: known.into_iter().map(shadow).collect(),
            written,
            clocks: [Clock::new(true), Clock::new(false)],
            groups: Vec::new(),
            sub_size: shared.sub_group.max(1),
            sub_epochs: Vec::new(),
            hits: Vec::new(),
        }
    }

    /// Returns true if work-groups of two threads conflict: both access the same granule, and one of them writes.
    pub fn conflicts(&self, other: &Races) -> bool {
        self.global.iter().zip(&other.global).any(|(a, b)| a.conflicts(b))
    }

    /// Returns the index of an argument's allocation in the shadow.
    fn number(&self, object: u32) -> usize {
        self.allocations.get(object as usize).copied().unwrap_or(usize::MAX)
    }

    /// Records an access of these lanes to bytes from their position, and collects its races.
    #[inline(always)]
    fn note(
        &mut self,
        lanes: impl Iterator<Item = (usize, usize)>,
        (side, number): (usize, usize),
        bytes: u32,
        kind: Kind,
    ) {
        let marks = match side {
            LOCAL => Some(&mut self.local),
            _ => self.global.get_mut(number),
        };
        let Some(marks) = marks else { return };
        let (clock, sub_size, shift) = (self.clocks[side], self.sub_size, self.shift);
        for (lane, place) in lanes {
            let passed = match self.sub_epochs.is_empty() {
                true => 0,
                false => self.sub_epochs.get(lane / sub_size as usize).map_or(0, |passed| passed[side]),
            };
            let now = Mark::new(clock.now, Lane::one(lane), passed, kind == Kind::Atomic);
            for at in place >> shift..=(place + bytes as usize - 1) >> shift {
                if let Some(met) = marks.visit(at, now, kind == Kind::Load, clock, sub_size) {
                    self.hits.push((lane, met));
                }
            }
        }
    }

    /// Records that several lanes, given as first and last, read the same bytes. Fails if the read may race or a sub-group has passed a separate
    /// barrier; each lane must then be recorded individually.
    fn note_same(
        &mut self,
        (side, number): (usize, usize),
        places: std::ops::Range<usize>,
        (first, last): (usize, usize),
    ) -> bool {
        let marks = match side {
            LOCAL => Some(&mut self.local),
            _ => self.global.get_mut(number),
        };
        let (Some(marks), true) = (marks, self.sub_epochs.is_empty() && first < last) else { return false };
        let (clock, sub_size) = (self.clocks[side], self.sub_size);
        let who = Lane::one(first).and(Lane::one(last), sub_size);
        let now = Mark::new(clock.now, who, 0, false);
        let granules = places.start >> self.shift..=(places.end - 1) >> self.shift;
        if !granules.clone().all(|at| marks.is_quiet(at, clock)) {
            return false;
        }
        granules.for_each(|at| marks.read(at, now, clock, sub_size));
        true
    }

    /// Starts a group with the given number + 1.
    fn begin(&mut self, group: u32) {
        for side in [LOCAL, GLOBAL] {
            if self.clocks[side].is_full() {
                self.renumber(side);
            }
            self.clocks[side].start_group();
        }
        self.groups.push((self.clocks[GLOBAL].now, group));
        self.sub_epochs.clear();
    }

    /// Passes a barrier of the group.
    fn pass(&mut self, flags: u32) {
        for side in [LOCAL, GLOBAL] {
            if flags >> side & 1 != 0 {
                if self.clocks[side].is_full() {
                    self.renumber(side);
                }
                self.clocks[side].now += 1;
            }
        }
    }

    /// Records an access of consecutive lanes to consecutive bytes in one step, if possible.
    fn note_run(
        &mut self,
        (side, number): (usize, usize),
        place: usize,
        lanes: std::ops::Range<usize>,
        (bytes, kind): (u32, Kind),
    ) -> bool {
        let granules = bytes >> self.shift;
        let fits = granules.is_power_of_two() && bytes.trailing_zeros() >= self.shift;
        if !fits || !place.is_multiple_of(1 << self.shift) || !self.sub_epochs.is_empty() {
            return false;
        }
        let marks = match side {
            LOCAL => Some(&mut self.local),
            _ => self.global.get_mut(number),
        };
        let Some(marks) = marks else { return false };
        let clock = self.clocks[side];
        let now = Mark::new(clock.now, Lane::one(lanes.start), 0, kind == Kind::Atomic);
        let hits = &mut self.hits;
        marks.visit_run(
            (place >> self.shift, granules.trailing_zeros()),
            lanes,
            (now, kind == Kind::Load),
            (clock, self.sub_size),
            |lane, met| hits.push((lane, met)),
        );
        true
    }

    /// Returns the group and lane of a mark.
    fn other(&self, met: Met) -> Other {
        let group = match met.mark.stamp() {
            stamp if stamp == Mark::SEVERAL => 0,
            // Only the running group has marks in local memory.
            _ if met.local => self.groups.last().map_or(0, |(_, group)| *group),
            stamp => {
                let behind = self.groups.partition_point(|(first, _)| *first <= stamp);
                behind.checked_sub(1).map_or(0, |at| self.groups[at].1)
            }
        };
        let lane = if group == 0 { None } else { met.mark.lane().number() };
        Other { group, lane, wrote: met.wrote }
    }

    /// Takes the races of the current access.
    fn take_hits(&mut self) -> Vec<(usize, Other)> {
        let hits = std::mem::take(&mut self.hits);
        hits.into_iter().map(|(lane, met)| (lane, self.other(met))).collect()
    }

    /// Restarts the stamps after they are used up. Stamps of earlier groups become the group numbers in execution order. Stamps of the running group
    /// before this point become one stamp.
    fn renumber(&mut self, side: usize) {
        let clock = self.clocks[side];
        if side == LOCAL {
            self.local.restamp(|stamp| clock.restamp(stamp, 1, |_| 0));
            self.clocks[LOCAL] = clock.restarted(1);
            return;
        }
        let running = self.groups.pop();
        // There are more groups than half of all stamps. Forget which other group it was, but not that it was another group.
        if self.groups.len() >= clock.last as usize / 2 {
            self.groups = vec![(1, 0)];
        }
        let groups = std::mem::take(&mut self.groups);
        let first = groups.len() as u32 + 1;
        let number = |stamp: u32| groups.partition_point(|(first, _)| *first <= stamp).max(1) as u32;
        for marks in &mut self.global {
            marks.restamp(|stamp| clock.restamp(stamp, first, number));
        }
        self.groups = groups.into_iter().zip(1..).map(|((_, group), at)| (at, group)).collect();
        self.groups.extend(running.map(|(_, group)| (first, group)));
        self.clocks[GLOBAL] = clock.restarted(first);
    }
}

/// Reports the hits (lane and the other side) that are not writes of the same value.
pub(super) fn report_hits(
    hits: Vec<(usize, Other)>,
    access: &MemoryAccess<'_>,
    cx: &GroupContext<'_>,
    report: &mut FindingCollector,
) {
    let group = cx.group_number() as u32 + 1;
    let mut last = None;
    for (lane, other) in hits {
        // Report one finding per lane.
        if last == Some(lane) {
            continue;
        }
        let Some(touch) = access.touches.iter().find(|t| t.lane == lane) else { continue };
        if access.kind == Kind::Store && other.wrote && same_value(access, touch, &other, group) {
            continue;
        }
        found(access, touch, &other, group, cx, report);
        last = Some(lane);
    }
}

/// Returns the allocation index by argument index. Also returns address, size, and whether an argument may write it, for each allocation.
pub(super) fn number_allocations(shared: &Shared<'_>) -> (Vec<usize>, Vec<(u64, u64, bool)>) {
    let mut known: Vec<(u64, u64, bool)> = Vec::new();
    let mut numbers = Vec::new();
    for buffer in &shared.buffers {
        let Some(buffer) = buffer else {
            numbers.push(usize::MAX);
            continue;
        };
        let address = buffer.allocation.address;
        let number = known.iter().position(|(a, ..)| *a == address).unwrap_or_else(|| {
            known.push((address, buffer.allocation.bytes, false));
            known.len() - 1
        });
        known[number].2 |= buffer.writable;
        numbers.push(number);
    }
    (numbers, known)
}

/// The other side of a race.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Other {
    /// The group's number + 1; 0 for one of several groups.
    pub group: u32,
    /// The work-item in the group; `None` for one of several.
    pub lane: Option<u32>,
    /// Kind of its access.
    pub wrote: bool,
}

impl Check for Races {
    fn start_group(&mut self, cx: &GroupContext<'_>) {
        self.begin(cx.group_number() as u32 + 1);
    }

    fn sub_barrier(&mut self, flags: u32, cx: &GroupContext<'_>) {
        self.sub_epochs.resize(cx.lanes.div_ceil(self.sub_size as usize), [0; 2]);
        let mut last = None;
        for sub in cx.mask.lanes().map(|lane| lane / self.sub_size as usize) {
            if last == Some(sub) {
                continue;
            }
            last = Some(sub);
            if let Some(passed) = self.sub_epochs.get_mut(sub) {
                // If the counter saturates, it orders nothing.
                passed[0] = passed[0].saturating_add((flags & 1) as u16);
                passed[1] = passed[1].saturating_add((flags >> 1 & 1) as u16);
            }
        }
    }

    fn barrier(&mut self, _pc: usize, flags: u32, _cx: &GroupContext<'_>, _report: &mut FindingCollector) {
        self.pass(flags);
    }

    fn races(&self) -> Option<&Races> {
        Some(self)
    }

    fn settles(&mut self, whole: &Whole<'_>, cx: &GroupContext<'_>) -> bool {
        let number = self.number(whole.object);
        let side = match whole.space {
            PointerSpace::Local => LOCAL,
            PointerSpace::Global => {
                if whole.kind == Kind::Load && !self.written.get(number).copied().unwrap_or(true) {
                    return true;
                }
                GLOBAL
            }
            _ => return true,
        };
        let ends = (cx.mask.range().start, cx.mask.range().end - 1);
        if whole.kind == Kind::Load
            && whole.is_same()
            && self.note_same((side, number), whole.places.clone(), ends)
        {
            return true;
        }
        let (to, does) = ((side, number), (whole.bytes, whole.kind));
        if !(whole.is_consecutive(cx) && self.note_run(to, whole.places.start, cx.mask.range(), does)) {
            let lanes = cx.mask.lanes().map(|lane| (lane, whole.place(lane)));
            self.note(lanes, to, whole.bytes, whole.kind);
        }
        self.hits.is_empty()
    }

    fn access(&mut self, access: &MemoryAccess<'_>, cx: &GroupContext<'_>, report: &mut FindingCollector) {
        if self.hits.is_empty() {
            for touch in access.touches.iter().filter(|t| t.inside) {
                let side = match touch.space {
                    PointerSpace::Local => LOCAL,
                    PointerSpace::Global => GLOBAL,
                    _ => continue,
                };
                let to = (side, self.number(touch.object));
                self.note(std::iter::once((touch.lane, touch.place as usize)), to, access.bytes, access.kind);
            }
        }
        report_hits(self.take_hits(), access, cx, report);
    }
}

/// Returns true if the written value equals the content of memory, or the value that the other lane writes in this instruction.
pub(super) fn same_value(access: &MemoryAccess<'_>, touch: &Touch, other: &Other, group: u32) -> bool {
    let size = access.ty.size();
    let elements = (access.bytes / size) as usize;
    let mask = u64::MAX >> (64 - 8 * size);
    let own = |e: usize| (access.stored)(touch.lane, e) & mask;
    let at = |e: usize| touch.at.wrapping_add(e as u64 * u64::from(size));
    // A lane that writes in this instruction has not written yet.
    let is_twin = |t: &&Touch| other.group == group && other.lane == Some(t.lane as u32) && t.at == touch.at;
    match access.touches.iter().find(is_twin) {
        Some(t) => (0..elements).all(|e| (access.stored)(t.lane, e) & mask == own(e)),
        None => (0..elements).all(|e| (access.memory)(at(e), touch.lane) & mask == own(e)),
    }
}

fn found(
    access: &MemoryAccess<'_>,
    touch: &Touch,
    other: &Other,
    group: u32,
    cx: &GroupContext<'_>,
    report: &mut FindingCollector,
) {
    let between = other.group != group;
    let kind = if between { FindingKind::RaceBetweenGroups } else { FindingKind::RaceInGroup };
    report.add(kind, access.pc, || {
        let (name, _) = cx.object(touch.space, touch.object);
        let did = if other.wrote { "written" } else { "read" };
        let who = match between {
            true => "by another work-group",
            false => "by another work-item since the last barrier",
        };
        let does = match access.kind {
            Kind::Load => "read",
            Kind::Store => "written",
            Kind::Atomic => "changed atomically",
        };
        let message = format!(
            "offset {} of {} `{name}` is {does} here and was {did} {who}",
            touch.offset,
            touch.space.name()
        );
        let this = cx.item_of(cx.group_number(), touch.lane, does);
        let that = other
            .lane
            .and_then(|lane| cx.item_of(u64::from(other.group.checked_sub(1)?), lane as usize, did));
        let items = this.into_iter().chain(that).collect();
        let values = access.values(touch, cx);
        Details { message, items, object: name, offset: touch.offset, bytes: access.bytes, values }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a check for a buffer of eight granules and the same amount of local memory, with few stamps.
    fn check(last: u32) -> Races {
        let clock = |local| Clock::ending(local, last);
        Races {
            shift: 2,
            local: Marks::new(8),
            allocations: vec![0],
            global: vec![Marks::new(8)],
            written: vec![true],
            clocks: [clock(true), clock(false)],
            groups: Vec::new(),
            sub_size: 4,
            sub_epochs: Vec::new(),
            hits: Vec::new(),
        }
    }

    #[test]
    fn stamps_that_start_over_find_the_same_races() {
        let never = Mark::SEVERAL - 1;
        let (mut plain, mut short, mut shorter) = (check(never), check(800), check(40));
        [&mut plain, &mut short, &mut shorter].into_iter().for_each(|check| check.begin(1));
        let mut seed = 1u32;
        let mut draw = |n: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % n
        };
        let (mut races, mut named) = (0, 0);
        for step in 0..20_000 {
            let (what, lane, side, at) = (draw(64), draw(12) as usize, draw(2) as usize, draw(8) as usize);
            let kind = [Kind::Load, Kind::Load, Kind::Store, Kind::Atomic][draw(4) as usize];
            let mut found = [&mut plain, &mut short, &mut shorter].map(|check| {
                match what {
                    0 => check.begin(step + 2),
                    1..=8 => check.pass(1 + what % 2),
                    _ => check.note(std::iter::once((lane, 4 * at)), (side, 0), 4, kind),
                }
                check.take_hits()
            });
            assert_eq!(found[0], found[1], "step {step}");
            // With few stamps, groups lose their identity, but the race is still found.
            races += found[0].len();
            named += found[2].iter().filter(|(_, other)| other.group > 0).count();
            for (_, other) in found.iter_mut().flatten() {
                (other.group, other.lane) = (0, None);
            }
            assert_eq!(found[0], found[2], "step {step}");
        }
        assert!(races > 1000 && named > 0 && named < races, "{named} of {races}");
    }

    #[test]
    fn lanes_side_by_side_at_once_are_what_they_are_one_by_one() {
        let never = Mark::SEVERAL - 1;
        let (mut each, mut whole) = (check(never), check(never));
        for check in [&mut each, &mut whole] {
            // More than a page, so that runs cross its end.
            (check.local, check.global) = (Marks::new(1030), vec![Marks::new(1030)]);
        }
        let mut seed = 3u32;
        let mut draw = |n: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % n
        };
        let mut races = 0;
        for step in 0..20_000 {
            let (what, side, first) = (draw(64), draw(2) as usize, draw(12) as usize);
            let (bytes, count) = (4u32 << draw(3), 1 + draw(12 - first as u32) as usize);
            let place = 4 * (1016 + draw(14) as usize);
            let kind = [Kind::Load, Kind::Load, Kind::Store, Kind::Atomic][draw(4) as usize];
            let mut found = Vec::new();
            for (check, at_once) in [(&mut each, false), (&mut whole, true)] {
                match what {
                    _ if step == 0 => check.begin(1),
                    0 => check.begin(step + 1),
                    1..=8 => check.pass(1 + what % 2),
                    _ if at_once => {
                        assert!(check.note_run((side, 0), place, first..first + count, (bytes, kind)))
                    }
                    _ => {
                        let lanes = (0..count).map(|i| (first + i, place + i * bytes as usize));
                        check.note(lanes, (side, 0), bytes, kind);
                    }
                }
                found.push(check.take_hits());
            }
            assert_eq!(found[0], found[1], "step {step}");
            races += found[0].len();
        }
        assert!(races > 1000, "{races}");
    }

    #[test]
    fn several_readers_at_once_are_what_they_are_one_by_one() {
        let never = Mark::SEVERAL - 1;
        let (mut each, mut whole) = (check(never), check(never));
        let mut seed = 7u32;
        let mut draw = |n: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % n
        };
        let (mut together, mut races) = (0, 0);
        for step in 0..20_000 {
            let (what, side, at) = (draw(32), draw(2) as usize, draw(8) as usize);
            let (first, more) = (draw(11) as usize, draw(3) as usize);
            let last = first + draw(12 - first as u32) as usize;
            let lanes = (first..=last).filter(|l| *l == first || *l == last || (l + more) % 3 == 0);
            let lanes: Vec<_> = lanes.map(|lane| (lane, 4 * at)).collect();
            let kind = [Kind::Load, Kind::Store, Kind::Atomic][draw(3) as usize];
            let mut found = Vec::new();
            for (check, at_once) in [(&mut each, false), (&mut whole, true)] {
                match what {
                    _ if step == 0 => check.begin(1),
                    0 => check.begin(step + 1),
                    1..=4 => check.pass(1 + what % 2),
                    5..=12 => check.note(lanes[..1].iter().copied(), (side, 0), 4, kind),
                    _ if at_once && check.note_same((side, 0), 4 * at..4 * at + 4, (first, last)) => {
                        together += 1
                    }
                    _ => check.note(lanes.iter().copied(), (side, 0), 4, Kind::Load),
                }
                found.push(check.take_hits());
            }
            assert_eq!(found[0], found[1], "step {step}");
            races += found[0].len();
        }
        assert!(together > 1000 && races > 1000, "{together} {races}");
    }
}
