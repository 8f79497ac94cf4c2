//! Memory footprint of a launch: distinct sectors by kernel argument, in total and by work-group, and reuse distances.

use crate::counters::DISTANCES;
use crate::memory::address::{GLOBAL, argument};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Bytes of the transfer unit of DRAM and caches.
pub const SECTOR: u64 = 32;
/// Sectors per cache line.
pub const SECTORS: u64 = 4;

/// A fast hash for line numbers; no protection against crafted keys is needed.
#[derive(Default)]
pub struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }
    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// A cache line: sectors touched by any work-group, and those touched by the latest one.
#[derive(Clone, Copy, Default)]
struct Line {
    sectors: u8,
    argument: u8,
    group: u32,
    groups_sectors: u8,
    /// Value of `time` at the latest touch.
    stamp: u64,
}

/// Reuse distance in sectors from which a touch counts as another fetch of a small cache.
const SMALL_CACHE_SECTORS: u64 = 128;

/// Sectors of one argument.
#[derive(Clone, Copy, Default)]
struct Touched {
    /// Distinct sectors.
    different: u64,
    /// Sum over work-groups of their distinct sectors.
    by_groups: u64,
}

/// The sectors that loads, or stores, of a launch touched.
#[derive(Default)]
pub struct Footprint {
    lines: HashMap<u64, Line, BuildHasherDefault<LineHasher>>,
    arguments: Vec<Touched>,
    group: u32,
    /// Number of sectors fetched by a small cache: the unit of reuse distances.
    time: u64,
    /// Histogram of reuse distances (log2) of touches within a work-group.
    again: [u64; DISTANCES],
}

impl Footprint {
    /// Starts the next group.
    pub fn start_group(&mut self) {
        self.group += 1;
    }

    /// Records a touch of a sector; `pointer` identifies the kernel argument.
    pub fn touch(&mut self, sector: u64, pointer: u64) {
        let line = self.lines.entry(sector / SECTORS).or_default();
        let bit = 1u8 << (sector % SECTORS);
        if line.group != self.group {
            (line.group, line.groups_sectors, line.stamp) = (self.group, 0, self.time);
        }
        let between = self.time - line.stamp.min(self.time);
        let before = line.groups_sectors & bit != 0;
        self.time += u64::from(!before || between >= SMALL_CACHE_SECTORS);
        line.stamp = self.time;
        if before {
            self.again[(between.max(1).ilog2() as usize).min(DISTANCES - 1)] += 1;
            return;
        }
        line.groups_sectors |= bit;
        line.argument = argument(pointer).map_or(0, |a| a as u8 + 1);
        let first = line.sectors & bit == 0;
        line.sectors |= bit;
        let touched = slot(&mut self.arguments, line.argument);
        touched.by_groups += 1;
        touched.different += u64::from(first);
    }

    /// Merges the footprint of another thread.
    pub fn and(mut self, other: Footprint) -> Footprint {
        for (number, line) in other.lines {
            let mine =
                self.lines.entry(number).or_insert(Line { argument: line.argument, ..Line::default() });
            let fresh = line.sectors & !mine.sectors;
            mine.sectors |= line.sectors;
            slot(&mut self.arguments, mine.argument).different += u64::from(fresh.count_ones());
        }
        for (number, theirs) in (0u8..).zip(&other.arguments) {
            slot(&mut self.arguments, number).by_groups += theirs.by_groups;
        }
        self.again.iter_mut().zip(other.again).for_each(|(a, b)| *a += b);
        self
    }

    /// Touches of sectors that their group had touched before.
    pub fn again(&self) -> [u64; DISTANCES] {
        self.again
    }

    /// Bytes that each group touches, summed over the groups that ran.
    pub fn by_groups(&self) -> u64 {
        self.arguments.iter().map(|a| a.by_groups * SECTOR).sum()
    }

    /// Bytes touched at least once by `groups` work-groups, extrapolated from the `ran` work-groups that ran. `bytes`: sizes of the arguments.
    pub fn different(&self, ran: u64, groups: u64, bytes: impl Fn(usize) -> Option<u64>) -> u64 {
        let of = |(i, touched): (usize, &Touched)| {
            let most = i.checked_sub(1).and_then(&bytes).unwrap_or(u64::MAX);
            let seen = touched.different * SECTOR;
            match ran < groups {
                true => estimate(touched, ran, groups).min(most).max(seen),
                false => seen,
            }
        };
        self.arguments.iter().enumerate().map(of).sum()
    }
}

fn slot(arguments: &mut Vec<Touched>, number: u8) -> &mut Touched {
    let at = usize::from(number);
    if arguments.len() <= at {
        arguments.resize(at + 1, Touched::default());
    }
    &mut arguments[at]
}

/// Returns the bytes of an argument that all groups together touch, estimated from a sample. The method resembles the capture-recapture estimate of
/// animal populations. If every sector is touched by the same share `p` of the groups, `n` of them see a sector `n p / (1 - (1 - p)^n)` times on
/// average. This gives p, and p gives the number of sectors.
fn estimate(touched: &Touched, ran: u64, groups: u64) -> u64 {
    let (different, all) = (touched.different.max(1) as f64, touched.by_groups as f64);
    let n = ran.max(1) as f64;
    let times = |p: f64| n * p / (1.0 - (1.0 - p).powf(n));
    let (mut low, mut high) = (1.0 / groups.max(1) as f64, 1.0);
    for _ in 0..50 {
        let p = (low + high) / 2.0;
        // Subtract a rounding error: one group alone gives no information.
        if times(p) < all / different - 1e-9 { low = p } else { high = p }
    }
    let sectors = all / (n * low);
    (sectors * SECTOR as f64).round() as u64
}

/// Returns the sector of a byte.
pub fn sector(address: u64) -> u64 {
    (address & GLOBAL) / SECTOR
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the estimate for `groups` groups if each touches `per` separate sectors and all share `common`.
    fn sampled(ran: u64, groups: u64, per: u64, common: u64) -> u64 {
        let mut f = Footprint::default();
        for i in 0..ran {
            f.start_group();
            let group = i * groups / ran;
            (0..per).for_each(|s| f.touch(group * per + s, crate::memory::address::with_argument(0, 0)));
            let shared = crate::memory::address::with_argument(0, 1);
            (0..common).for_each(|s| f.touch((1 << 30) + s, shared));
        }
        f.different(ran, groups, |_| None) / SECTOR
    }

    #[test]
    fn own_and_shared_memory_are_told_apart() {
        assert_eq!(sampled(64, 64, 100, 7), 6407);
        let some = sampled(16, 1024, 100, 50);
        assert!((102_400..=102_600).contains(&some), "{some}");
    }

    #[test]
    fn rows_that_some_groups_share_are_estimated() {
        // 64 x 64 groups, each reads the sectors of its row: 64 rows of 100 sectors.
        let mut f = Footprint::default();
        for i in 0..64u64 {
            f.start_group();
            let group = i * 64 + i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 64;
            let row = group.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 58;
            (0..100).for_each(|s| f.touch(row * 100 + s, 0));
        }
        let sectors = f.different(64, 4096, |_| None) / SECTOR;
        assert!((4000..10_000).contains(&sectors), "{sectors}");
        // The estimate is limited to the size.
        let with_limit = {
            let mut f = Footprint::default();
            f.start_group();
            f.touch(1, crate::memory::address::with_argument(0, 0));
            f.different(1, 1000, |_| Some(320))
        };
        assert_eq!(with_limit, 320);
    }

    #[test]
    fn threads_add_up_without_counting_twice() {
        let part = |range: std::ops::Range<u64>| {
            let mut f = Footprint::default();
            f.start_group();
            range.for_each(|s| f.touch(s, 0));
            f
        };
        let both = part(0..10).and(part(5..20));
        assert_eq!((both.different(2, 2, |_| None), both.by_groups()), (20 * SECTOR, 25 * SECTOR));
    }
}
