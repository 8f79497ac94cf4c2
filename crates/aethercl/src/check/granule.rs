//! What the check for races remembers of a granule of memory: the last write and the last reads, in eight bytes each.

use super::shadow::Shadow;
use std::ops::Range;

/// When accesses happen, in one kind of memory: a group that starts, and every barrier of it, takes the next stamp. One thread runs groups
/// one after the other, so that stamps before the first of the running group are those of other groups.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Memory of the group alone: what others did there is gone.
    local: bool,
    /// The first stamp of the running group.
    first: u32,
    /// The present.
    pub now: u32,
    /// The last stamp that there is.
    pub last: u32,
}

impl Clock {
    /// Before the first group.
    pub fn new(local: bool) -> Clock {
        Clock::ending(local, Mark::SEVERAL - 1)
    }

    /// One that has no stamps after `last`.
    pub fn ending(local: bool, last: u32) -> Clock {
        Clock { local, first: 1, now: 0, last }
    }

    /// The next group starts.
    pub fn start_group(&mut self) {
        self.now += 1;
        self.first = self.now;
    }

    /// Whether there is no stamp after this one.
    pub fn is_full(&self) -> bool {
        self.now >= self.last
    }

    /// A clock whose running group begins with this stamp, and has passed a barrier since.
    pub fn restarted(&self, first: u32) -> Clock {
        Clock { first, now: first + 1, ..*self }
    }

    /// A stamp as it is after [`Clock::restarted`]; `number` gives those of other groups, from 1 on.
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

    /// Whether nobody whose accesses matter left this stamp.
    fn is_nobody(&self, stamp: u32) -> bool {
        stamp == 0 || self.local && stamp < self.first
    }
}

/// A work-item of a group, or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane(u16);

impl Lane {
    /// Numbers from here on stand for several work-items of one sub-group.
    const OF_SUB: u16 = 1 << 11;
    /// Several work-items of several sub-groups.
    const MANY: Lane = Lane(1 << 12);

    /// One; groups have at most 1024, and the copy engine counts as one more.
    pub fn one(lane: usize) -> Lane {
        debug_assert!(lane < usize::from(Lane::OF_SUB));
        Lane(lane as u16)
    }

    /// The work-item, if it is one.
    pub fn number(self) -> Option<u32> {
        (self.0 < Lane::OF_SUB).then_some(u32::from(self.0))
    }

    /// The sub-group, if it is one.
    fn sub(self, sub_size: u32) -> Option<u16> {
        match self.0 {
            lane if lane < Lane::OF_SUB => Some((u32::from(lane) / sub_size) as u16),
            lane if self != Lane::MANY => Some(lane - Lane::OF_SUB),
            _ => None,
        }
    }

    /// Both of two that are not the same.
    pub fn and(self, other: Lane, sub_size: u32) -> Lane {
        if self == Lane::MANY {
            return self;
        }
        match self.sub(sub_size) {
            Some(sub) if other.sub(sub_size) == Some(sub) => Lane(Lane::OF_SUB + sub),
            _ => Lane::MANY,
        }
    }
}

/// An access, or several: stamp (32 bits), whether it was atomic (2), the work-item (14), and the barriers that its sub-group had passed
/// by itself (16).
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

    /// An access.
    #[inline(always)]
    pub fn new(stamp: u32, who: Lane, sub_epoch: u16, atomic: bool) -> Mark {
        let flags = if atomic { Mark::ATOMIC | Mark::ALWAYS_ATOMIC } else { 0 };
        Mark(u64::from(stamp) << 32 | flags | u64::from(who.0) << 16 | u64::from(sub_epoch))
    }

    /// When: 0 for never.
    #[inline(always)]
    pub fn stamp(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Who.
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

    /// Whether nothing orders it before an access now.
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

/// What an access races with.
#[derive(Debug, Clone, Copy)]
pub struct Met {
    /// The other side.
    pub mark: Mark,
    /// It wrote.
    pub wrote: bool,
    /// It is in local memory.
    pub local: bool,
}

/// The last accesses to each granule of an allocation. What is only read takes no room for writes, nor the other way around.
pub struct Marks {
    writes: Shadow<u64>,
    reads: Shadow<u64>,
}

impl Marks {
    /// Of so many granules that nobody touched.
    pub fn new(granules: usize) -> Marks {
        Marks { writes: Shadow::new(granules), reads: Shadow::new(granules) }
    }

    /// Whether some granule is written in one of two and touched in the other.
    pub fn conflicts(&self, other: &Marks) -> bool {
        let clash = |a: &Shadow<u64>, b: &Shadow<u64>| a.common(b).any(|(a, b)| *a != 0 && *b != 0);
        clash(&self.writes, &other.writes)
            || clash(&self.writes, &other.reads)
            || clash(&self.reads, &other.writes)
    }

    /// Gives all marks other stamps; 0 forgets one.
    pub fn restamp(&mut self, stamp: impl Fn(u32) -> u32) {
        for mark in self.writes.touched().chain(self.reads.touched()) {
            let new = stamp(Mark(*mark).stamp());
            *mark = if new == 0 { 0 } else { Mark(*mark).with_stamp(new).0 };
        }
    }

    /// Whether a read now races with nothing, whoever reads.
    #[inline(always)]
    pub fn is_quiet(&self, at: usize, clock: Clock) -> bool {
        let stamp = Mark(self.writes.peek(at)).stamp();
        clock.is_nobody(stamp) || clock.is_own(stamp) && stamp != clock.now
    }

    /// Records an access of one work-item; returns what it races with.
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

    /// Records accesses of lanes one behind the other, each to `1 << more` granules behind those of the lane before it; tells `hit` what
    /// they race with. `now` is a mark of any of them.
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

    /// Records a read by several work-items where [`Marks::is_quiet`] holds and no sub-group has passed a barrier of its own.
    #[inline(always)]
    pub fn read(&mut self, at: usize, now: Mark, clock: Clock, sub_size: u32) {
        if let Some(entry) = self.reads.get(at) {
            *entry = after_read(Mark(*entry), now, clock, sub_size).0;
        }
    }
}

/// The mark that stays of an access now behind one of its own kind, and what it races with of that and the other kind.
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

/// The mark that stays after a read.
#[inline(always)]
fn after_read(before: Mark, now: Mark, clock: Clock, sub_size: u32) -> Mark {
    // The same once more changes nothing.
    if before == Mark::NOBODY || before == now {
        return now;
    }
    if before.stamp() == now.stamp() {
        // What another sub-group races with in the one it races with in the other.
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

/// The mark that stays after a write: plain ones are not forgotten over atomic ones, nor one lane over another.
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
