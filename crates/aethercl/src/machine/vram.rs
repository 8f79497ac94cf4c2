//! Physical device memory: pages that back the addresses that kernels see.
//!
//! [`Memory`](crate::memory::Memory) never returns the same address twice, so that a use after free is detected. A device has a fixed number of pages
//! for these addresses. An allocation takes whole pages, first fit, in one run if possible, or in several pieces, the same as with a page table.
//! Memory is full only when no page is free, never because of fragmentation.

use super::scheduling::PageRun;
use std::collections::BTreeMap;

/// Bytes per page, the size that large GPUs use for their own memory.
pub const PAGE: u64 = 64 << 10;

/// Returns the pages that an allocation of this many bytes takes.
pub(super) fn pages(bytes: u64) -> u64 {
    bytes.max(1).div_ceil(PAGE)
}

/// A run of pages: first page and count.
type Run = (u64, u64);

/// The pages of a device.
#[derive(Clone, Debug)]
pub struct Vram {
    pages: u64,
    free: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Vec<Run>>,
    used: u64,
    peak: u64,
}

impl Vram {
    /// Returns pages for this many bytes; a partial page at the end is unused.
    pub fn new(bytes: u64) -> Self {
        let pages = bytes / PAGE;
        let free = if pages > 0 { BTreeMap::from([(0, pages)]) } else { BTreeMap::new() };
        Self { pages, free, mapped: BTreeMap::new(), used: 0, peak: 0 }
    }

    /// Returns the bytes of all pages.
    pub fn capacity(&self) -> u64 {
        self.pages * PAGE
    }
    /// Returns the bytes of pages in use.
    pub fn used(&self) -> u64 {
        self.used * PAGE
    }
    /// Returns the peak bytes of pages in use.
    pub fn peak(&self) -> u64 {
        self.peak * PAGE
    }
    /// Returns the bytes of free pages.
    pub fn free(&self) -> u64 {
        (self.pages - self.used) * PAGE
    }
    /// Returns the bytes of the longest run of free pages.
    pub fn longest_run(&self) -> u64 {
        self.free.values().max().copied().unwrap_or(0) * PAGE
    }

    /// Returns the runs of free pages in order.
    pub fn free_runs(&self) -> Vec<PageRun> {
        self.free.iter().map(|(start, pages)| PageRun { start: *start, pages: *pages }).collect()
    }
    /// Returns the mapped addresses and their number of pages, in order.
    pub(super) fn mapped(&self) -> impl Iterator<Item = (u64, u64)> {
        self.mapped.iter().map(|(address, runs)| (*address, runs.iter().map(|run| run.1).sum()))
    }
    /// Returns true if pages are mapped at this address.
    pub(super) fn is_mapped(&self, address: u64) -> bool {
        self.mapped.contains_key(&address)
    }

    /// Returns true if this many bytes fit, with at most `limit` bytes in use.
    pub fn fits(&self, bytes: u64, limit: Option<u64>) -> bool {
        let pages = pages(bytes);
        let most = limit.map_or(self.pages, |limit| (limit / PAGE).min(self.pages));
        self.used.checked_add(pages).is_some_and(|sum| sum <= most)
    }

    /// Maps pages for `bytes` at `address` and returns the runs. `None` if there are not enough pages, or the address is already mapped.
    pub fn map(&mut self, address: u64, bytes: u64) -> Option<&[Run]> {
        self.map_at(address, bytes, None)
    }

    /// Same as [`Vram::map`], in one run from page `start` on if all its pages are free.
    pub(super) fn map_at(&mut self, address: u64, bytes: u64, start: Option<u64>) -> Option<&[Run]> {
        if !self.fits(bytes, None) || self.mapped.contains_key(&address) {
            return None;
        }
        let mut missing = pages(bytes);
        let mut runs = Vec::new();
        // Use one run if any is long enough, otherwise start at the first free page.
        if let Some(run) = start.and_then(|start| self.take_at(start, missing)) {
            runs.push(run);
        } else if let Some(start) = self.free.iter().find(|(_, n)| **n >= missing).map(|(start, _)| *start) {
            runs.push(self.take(start, missing));
        } else {
            while missing > 0 {
                let start = *self.free.first_key_value()?.0;
                let run = self.take(start, missing);
                missing -= run.1;
                runs.push(run);
            }
        }
        self.used += runs.iter().map(|r| r.1).sum::<u64>();
        self.peak = self.peak.max(self.used);
        Some(self.mapped.entry(address).or_insert(runs))
    }

    /// Takes `wanted` pages from page `start` on. `None` if not all of them are free.
    fn take_at(&mut self, start: u64, wanted: u64) -> Option<Run> {
        let (first, count) = self.free.range(..=start).next_back().map(|(first, count)| (*first, *count))?;
        let (before, end) = (start - first, start.checked_add(wanted)?);
        if end > first + count {
            return None;
        }
        self.free.remove(&first);
        if before > 0 {
            self.free.insert(first, before);
        }
        if first + count > end {
            self.free.insert(end, first + count - end);
        }
        Some((start, wanted))
    }

    /// Takes up to `wanted` pages from the run that starts at `start`.
    fn take(&mut self, start: u64, wanted: u64) -> Run {
        let there = self.free.remove(&start).unwrap_or(0);
        let taken = there.min(wanted);
        if there > taken {
            self.free.insert(start + taken, there - taken);
        }
        (start, taken)
    }

    /// Unmaps the pages at `address`. Returns false if none are mapped.
    pub fn unmap(&mut self, address: u64) -> bool {
        let Some(runs) = self.mapped.remove(&address) else { return false };
        for (start, count) in runs {
            self.used -= count;
            self.give_back(start, count);
        }
        true
    }

    fn give_back(&mut self, mut start: u64, mut count: u64) {
        if let Some((before, n)) = self.free.range(..start).next_back().map(|(s, n)| (*s, *n))
            && before + n == start
        {
            self.free.remove(&before);
            (start, count) = (before, n + count);
        }
        if let Some(n) = self.free.remove(&(start + count)) {
            count += n;
        }
        self.free.insert(start, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_back_and_runs_join() {
        let mut v = Vram::new(10 * PAGE + 5);
        assert_eq!(v.capacity(), 10 * PAGE);
        assert_eq!(v.map(1, 1).unwrap(), [(0, 1)]);
        assert_eq!(v.map(2, 3 * PAGE).unwrap(), [(1, 3)]);
        assert_eq!(v.map(3, PAGE + 1).unwrap(), [(4, 2)]);
        assert!(v.unmap(2) && !v.unmap(2));
        assert_eq!((v.free(), v.longest_run()), (7 * PAGE, 4 * PAGE));
        // Fits only in pieces.
        assert_eq!(v.map(4, 6 * PAGE).unwrap(), [(1, 3), (6, 3)]);
        assert!(v.map(5, 2 * PAGE).is_none() && v.map(3, 1).is_none());
        assert!(v.unmap(1) && v.unmap(3) && v.unmap(4));
        assert_eq!((v.used(), v.peak(), v.longest_run()), (0, 9 * PAGE, 10 * PAGE));
    }

    #[test]
    fn many_allocations_in_any_order_lose_nothing() {
        let mut v = Vram::new(1000 * PAGE);
        let mut state = 1u64;
        let mut live = Vec::new();
        for address in 0..5000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bytes = (state >> 33) % (40 * PAGE);
            if v.map(address, bytes).is_some() {
                live.push(address);
            } else {
                assert!(v.free() < bytes.max(1).next_multiple_of(PAGE));
            }
            if state >> 63 == 1 && !live.is_empty() {
                let at = (state >> 20) as usize % live.len();
                assert!(v.unmap(live.swap_remove(at)));
            }
        }
        live.into_iter().for_each(|a| assert!(v.unmap(a)));
        assert_eq!((v.used(), v.longest_run()), (0, 1000 * PAGE));
    }

    #[test]
    fn a_limit_counts_whole_pages() {
        let mut v = Vram::new(10 * PAGE);
        assert!(v.fits(2 * PAGE, Some(2 * PAGE)) && !v.fits(2 * PAGE + 1, Some(2 * PAGE)));
        v.map(0, PAGE);
        assert!(!v.fits(2 * PAGE, Some(2 * PAGE)) && !v.fits(u64::MAX, None));
    }
}
