//! What the check for races remembers of a granule of memory: the last write and the last reads, in eight bytes each.

use super::shadow::Shadow;

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
        let met = |mark: Mark, wrote: bool| {
            mark.is_unordered(now, clock, sub_size).then_some(Met { mark, wrote, local: clock.local })
        };
        if load {
            self.read(at, now, clock, sub_size);
            return met(Mark(self.writes.peek(at)), true);
        }
        let write = self.writes.get(at)?;
        let before = Mark(*write);
        *write = after(before, now, clock, sub_size).0;
        met(before, true).or_else(|| met(Mark(self.reads.peek(at)), false))
    }

    /// Records a read by one work-item; or by several where [`Marks::is_quiet`] holds and no sub-group has passed a barrier of its own.
    #[inline(always)]
    pub fn read(&mut self, at: usize, now: Mark, clock: Clock, sub_size: u32) {
        let Some(entry) = self.reads.get(at) else { return };
        let r = Mark(*entry);
        // The same once more changes nothing.
        if r == now {
            return;
        }
        *entry = if r.stamp() == now.stamp() {
            // What another sub-group races with in the one it races with in the other.
            let passed =
                r.sub_epoch() != now.sub_epoch() && r.lane().sub(sub_size) == now.lane().sub(sub_size);
            match passed {
                true => now.0,
                false if r.lane() == now.lane() => r.0,
                false => r.with_lane(r.lane().and(now.lane(), sub_size)).0,
            }
        } else if clock.is_nobody(r.stamp()) || clock.is_own(r.stamp()) {
            now.0
        } else {
            r.with_stamp(Mark::SEVERAL).0
        };
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
