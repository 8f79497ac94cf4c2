//! Race-check state of a granule of memory: the last write and the last reads, in eight bytes each.

use super::shadow::Shadow;
use std::ops::Range;

/// Time stamps of accesses in one kind of memory. The start of a group and each of its barriers take the next stamp. One thread runs its groups in
/// sequence, so stamps before the first one of the running group belong to other groups.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Whether the memory is local to the group: accesses of other groups no longer matter.
    local: bool,
    /// The first stamp of the running group.
    first: u32,
    /// The present.
    pub now: u32,
    /// The last available stamp.
    pub last: u32,
}

impl Clock {
    /// Returns a clock before the first group.
    pub fn new(local: bool) -> Clock {
        Clock::ending(local, Mark::SEVERAL - 1)
    }

    /// Returns a clock that ends at stamp `last`.
    pub fn ending(local: bool, last: u32) -> Clock {
        Clock { local, first: 1, now: 0, last }
    }

    /// Starts the next group.
    pub fn start_group(&mut self) {
        self.now += 1;
        self.first = self.now;
    }

    /// Returns true if no stamp after this one is available.
    pub fn is_full(&self) -> bool {
        self.now >= self.last
    }

    /// Returns a clock whose running group starts with this stamp and has passed a barrier since.
    pub fn restarted(&self, first: u32) -> Clock {
        Clock { first, now: first + 1, ..*self }
    }

    /// Converts a stamp for [`Clock::restarted`]; `number` returns the new stamps of other groups, starting at 1.
    pub fn restamp(&self, stamp: u32, first: u32, number: impl Fn(u32) -> u32) -> u32 {
        match stamp {
            0 | Mark::SEVERAL => stamp,
            _ if stamp < self.first => number(stamp),
            _ => first + u32::from(stamp == self.now),
        }
    }

    fn is_own(&self, stamp: u32) -> bool {
        stamp >= self.first && stamp != Mark::SEVERAL
    }

    /// Returns true if no relevant access has this stamp.
    fn is_nobody(&self, stamp: u32) -> bool {
        stamp == 0 || self.local && stamp < self.first
    }
}

/// One or several work-items of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane(u16);

impl Lane {
    /// Numbers from this value represent several work-items of one sub-group.
    const OF_SUB: u16 = 1 << 11;
    /// Several work-items of several sub-groups.
    const SEVERAL_SUB_GROUPS: Lane = Lane(1 << 12);

    /// Returns one lane. Groups have at most 1024, and the copy engine counts as one more.
    pub fn one(lane: usize) -> Lane {
        debug_assert!(lane < usize::from(Lane::OF_SUB));
        Lane(lane as u16)
    }

    /// Returns the work-item, if it is one.
    pub fn number(self) -> Option<u32> {
        (self.0 < Lane::OF_SUB).then_some(u32::from(self.0))
    }

    /// Returns the sub-group, if it is one.
    fn sub(self, sub_size: u32) -> Option<u16> {
        match self.0 {
            lane if lane < Lane::OF_SUB => Some((u32::from(lane) / sub_size) as u16),
            lane if self != Lane::SEVERAL_SUB_GROUPS => Some(lane - Lane::OF_SUB),
            _ => None,
        }
    }

    /// Returns the union of two different lanes.
    pub fn and(self, other: Lane, sub_size: u32) -> Lane {
        if self == Lane::SEVERAL_SUB_GROUPS {
            return self;
        }
        match self.sub(sub_size) {
            Some(sub) if other.sub(sub_size) == Some(sub) => Lane(Lane::OF_SUB + sub),
            _ => Lane::SEVERAL_SUB_GROUPS,
        }
    }
}

/// One or several accesses: stamp (32 bits), whether it was atomic (2), the work-item (14), and the number of sub-group barriers before it (16).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// The stamp of several groups.
    pub const SEVERAL: u32 = u32::MAX;
    /// Every access of this stamp was atomic.
    const ATOMIC: u64 = 1 << 31;
    /// Every access of this group was atomic.
    const ALWAYS_ATOMIC: u64 = 1 << 30;
    /// No access.
    const NOBODY: Mark = Mark(0);
    const WHO: u64 = 0x1fff << 16;

    /// Returns an access.
    #[inline(always)]
    pub fn new(stamp: u32, who: Lane, sub_epoch: u16, atomic: bool) -> Mark {
        let flags = if atomic { Mark::ATOMIC | Mark::ALWAYS_ATOMIC } else { 0 };
        Mark(u64::from(stamp) << 32 | flags | u64::from(who.0) << 16 | u64::from(sub_epoch))
    }

    /// Returns the stamp; 0 for no access.
    #[inline(always)]
    pub fn stamp(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the lane of the access.
    pub fn lane(self) -> Lane {
        Lane(((self.0 & Mark::WHO) >> 16) as u16)
    }

    fn sub_epoch(self) -> u16 {
        self.0 as u16
    }

    fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    fn with_stamp(self, stamp: u32) -> Mark {
        Mark(self.0 & u64::from(u32::MAX) | u64::from(stamp) << 32)
    }

    fn with_lane(self, who: Lane) -> Mark {
        Mark(self.0 & !Mark::WHO | u64::from(who.0) << 16)
    }

    /// Returns true if nothing orders this access before an access now.
    #[inline(always)]
    fn is_unordered(self, now: Mark, clock: Clock, sub_size: u32) -> bool {
        let stamp = self.stamp();
        if stamp == now.stamp() {
            let within = || {
                self.sub_epoch() != now.sub_epoch() && self.lane().sub(sub_size) == now.lane().sub(sub_size)
            };
            let atomic = self.has(Mark::ATOMIC) && now.has(Mark::ATOMIC);
            return self.lane() != now.lane() && !atomic && !within();
        }
        let other = !clock.is_nobody(stamp) && !clock.is_own(stamp);
        other && !(self.has(Mark::ALWAYS_ATOMIC) && now.has(Mark::ATOMIC))
    }
}

/// The other access of a race.
#[derive(Debug, Clone, Copy)]
pub struct Met {
    /// The other side.
    pub mark: Mark,
    /// Whether the access wrote.
    pub wrote: bool,
    /// Whether it is in local memory.
    pub local: bool,
}

/// The last accesses to each granule of an allocation. Read-only data uses no memory for writes, and write-only data none for reads.
pub struct Marks {
    writes: Shadow<u64>,
    reads: Shadow<u64>,
}

impl Marks {
    /// Returns marks for this many untouched granules.
    pub fn new(granules: usize) -> Marks {
        Marks { writes: Shadow::new(granules), reads: Shadow::new(granules) }
    }

    /// Returns true if a granule is written in one and accessed in the other.
    pub fn conflicts(&self, other: &Marks) -> bool {
        let clash = |a: &Shadow<u64>, b: &Shadow<u64>| a.common(b).any(|(a, b)| *a != 0 && *b != 0);
        clash(&self.writes, &other.writes)
            || clash(&self.writes, &other.reads)
            || clash(&self.reads, &other.writes)
    }

    /// Replaces the stamps of all marks; 0 removes a mark.
    pub fn restamp(&mut self, stamp: impl Fn(u32) -> u32) {
        for mark in self.writes.touched().chain(self.reads.touched()) {
            let new = stamp(Mark(*mark).stamp());
            *mark = if new == 0 { 0 } else { Mark(*mark).with_stamp(new).0 };
        }
    }

    /// Returns true if a read now by any lane is free of races.
    #[inline(always)]
    pub fn is_quiet(&self, at: usize, clock: Clock) -> bool {
        let stamp = Mark(self.writes.peek(at)).stamp();
        clock.is_nobody(stamp) || clock.is_own(stamp) && stamp != clock.now
    }

    /// Records an access of one work-item and returns the accesses that it races with.
    #[inline(always)]
    pub fn visit(&mut self, at: usize, now: Mark, load: bool, clock: Clock, sub_size: u32) -> Option<Met> {
        let (own, others) = match load {
            true => (&mut self.reads, &self.writes),
            false => (&mut self.writes, &self.reads),
        };
        let entry = own.get(at)?;
        let (mark, met) = step(Mark(*entry), Mark(others.peek(at)), now, load, clock, sub_size);
        *entry = mark.0;
        met
    }

    /// Records accesses of consecutive lanes, each `1 << more` granules after the previous lane's. Calls `hit` with the accesses that they race with.
    /// `now` is a mark of any of these lanes.
    #[inline(always)]
    pub fn visit_run(
        &mut self,
        (mut at, more): (usize, u32),
        lanes: Range<usize>,
        (now, load): (Mark, bool),
        (clock, sub_size): (Clock, u32),
        mut hit: impl FnMut(usize, Met),
    ) {
        let (own, others) = match load {
            true => (&mut self.reads, &self.writes),
            false => (&mut self.writes, &self.reads),
        };
        let (start, end) = (at, at + (lanes.len() << more));
        while at < end {
            let entries = own.run(at, end - at);
            let seen = others.peek_run(at, entries.len());
            let count = entries.len();
            for (i, entry) in entries.iter_mut().enumerate() {
                let lane = lanes.start + ((at - start + i) >> more);
                let other = Mark(seen.map_or(0, |seen| seen[i]));
                let now = now.with_lane(Lane::one(lane));
                let (mark, met) = step(Mark(*entry), other, now, load, clock, sub_size);
                *entry = mark.0;
                if let Some(met) = met {
                    hit(lane, met);
                }
            }
            if count == 0 {
                return;
            }
            at += count;
        }
    }

    /// Records a read by several work-items if [`Marks::is_quiet`] is true and no sub-group has passed a separate barrier.
    #[inline(always)]
    pub fn read(&mut self, at: usize, now: Mark, clock: Clock, sub_size: u32) {
        if let Some(entry) = self.reads.get(at) {
            *entry = after_read(Mark(*entry), now, clock, sub_size).0;
        }
    }
}

/// Returns the mark after an access that follows one of the same kind, and the accesses of both kinds that it races with.
#[inline(always)]
fn step(own: Mark, other: Mark, now: Mark, load: bool, clock: Clock, sub_size: u32) -> (Mark, Option<Met>) {
    let met = |mark: Mark, wrote: bool| {
        let races = mark != Mark::NOBODY && mark.is_unordered(now, clock, sub_size);
        races.then_some(Met { mark, wrote, local: clock.local })
    };
    match load {
        true => (after_read(own, now, clock, sub_size), met(other, true)),
        false => (after(own, now, clock, sub_size), met(own, true).or_else(|| met(other, false))),
    }
}

/// Returns the mark after a read.
#[inline(always)]
fn after_read(before: Mark, now: Mark, clock: Clock, sub_size: u32) -> Mark {
    // Repeating the same access changes nothing.
    if before == Mark::NOBODY || before == now {
        return now;
    }
    if before.stamp() == now.stamp() {
        // A race with one mark is also a race with the other for another sub-group.
        let passed =
            before.sub_epoch() != now.sub_epoch() && before.lane().sub(sub_size) == now.lane().sub(sub_size);
        return match passed {
            true => now,
            false if before.lane() == now.lane() => before,
            false => before.with_lane(before.lane().and(now.lane(), sub_size)),
        };
    }
    match clock.is_nobody(before.stamp()) || clock.is_own(before.stamp()) {
        true => now,
        false => before.with_stamp(Mark::SEVERAL),
    }
}

/// Returns the mark after a write: atomic writes do not replace plain ones, and one lane does not replace another.
#[inline(always)]
fn after(before: Mark, now: Mark, clock: Clock, sub_size: u32) -> Mark {
    let stamp = before.stamp();
    if clock.is_nobody(stamp) {
        return now;
    }
    if !clock.is_own(stamp) {
        let both = before.has(Mark::ALWAYS_ATOMIC) && now.has(Mark::ATOMIC);
        return if both { now.with_stamp(Mark::SEVERAL) } else { now };
    }
    let mut mark = now;
    if !before.has(Mark::ALWAYS_ATOMIC) {
        mark.0 &= !Mark::ALWAYS_ATOMIC;
    }
    if stamp == now.stamp() {
        let same = before.lane() == now.lane();
        if same && !before.has(Mark::ATOMIC) {
            mark.0 &= !Mark::ATOMIC;
        }
        if !same && now.has(Mark::ATOMIC) && before.has(Mark::ATOMIC) {
            mark = mark.with_lane(before.lane().and(now.lane(), sub_size));
        }
    }
    mark
}
