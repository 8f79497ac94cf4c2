//! Device memory pool: size classes, small blocks carved from slabs, statistics by tag.
//!
//! Commands in the queue may still read a released block. Reusing it is safe because the commands of both users go through the same in-order compute
//! queue.

use crate::driver::{Driver, Memory, QueueKind};
use crate::quick::QuickMap;
use crate::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Maximum size of blocks carved from slabs. For these sizes a driver call and its page rounding cost more than the block itself.
const MAX_SLAB_BLOCK: usize = 128 << 10;
const SLAB: usize = 4 << 20;

/// A block of device memory. `memory` is the object to bind. `root` and `offset` give its position, because OpenCL forbids a sub-buffer of a
/// sub-buffer.
#[derive(Clone)]
pub(crate) struct Block {
    pub memory: Memory,
    pub root: Memory,
    pub offset: usize,
    pub bytes: usize,
    /// The block's address in the device's address space, after the first query.
    pub address: Arc<OnceLock<u64>>,
    pub home: Home,
}

/// Destination of a block that is no longer used.
#[derive(Clone)]
pub(crate) enum Home {
    /// The pool, for the next request of the same size.
    Pool,
    /// The driver.
    Driver,
    /// None: the block is a part of a buffer, and its parent keeps the memory.
    Part,
    /// None: memory is not allocated. The unique address replaces the block's own address.
    Nowhere(u64),
}

/// Bytes of the guard zones before and after each watched buffer; a multiple of the sub-buffer alignment of devices.
pub(crate) const ZONE: usize = 4096;

pub(crate) struct Pool {
    /// Disables classes, slabs and reuse: see [`Settings::exact_memory`](crate::Settings::exact_memory).
    exact: bool,
    /// With `exact`: keeps freed blocks and does not reuse them.
    keep: bool,
    /// Bytes of the guard zones around each buffer; 0 disables them. They require `exact`.
    zone: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: QuickMap<usize, Vec<Block>>,
    slab: Option<(Memory, usize)>,
    stats: MemoryStats,
    /// Bytes that may be reserved.
    limit: Option<usize>,
}

/// Memory use of one device, in bytes.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct MemoryStats {
    /// In use by live buffers, rounded up to size classes.
    pub live: usize,
    /// Reserved from the driver, in use or kept for reuse.
    pub reserved: usize,
    /// Highest `live` so far, or since [`reset_peak`](crate::Device::reset_memory_peak).
    pub peak: usize,
    /// Number of live buffers.
    pub buffers: usize,
    /// Number of allocations requested from the driver.
    pub driver_allocations: usize,
    /// Live bytes by tag.
    pub by_tag: Vec<(&'static str, usize)>,
}

/// Place of a block: a range of one allocation of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct BlockPlace {
    /// Number of the allocation. Live allocations have different numbers.
    pub allocation: usize,
    /// Size of the allocation in bytes. A slab contains several blocks.
    pub allocation_bytes: usize,
    /// First byte of the block.
    pub offset: usize,
    /// Size of the block in bytes: its size class.
    pub bytes: usize,
}

/// Rounds up to a size class: eight steps between powers of two, so at most 12.5 % is wasted.
pub fn size_class(bytes: usize) -> usize {
    let bytes = bytes.max(256);
    let step = (bytes.next_power_of_two() / 16).max(256);
    bytes.next_multiple_of(step)
}

impl Pool {
    /// `limit`: bytes that may be reserved from the driver.
    pub fn new(exact: bool, keep: bool, zones: bool, limit: Option<u64>) -> Self {
        let zone = if zones { ZONE } else { 0 };
        let limit = limit.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        Self { exact: exact || zones, keep, zone, state: Mutex::new(State { limit, ..State::default() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes that a buffer of `bytes` occupies.
    pub fn class(&self, bytes: usize) -> usize {
        if self.exact { bytes.max(1) } else { size_class(bytes) }
    }

    pub fn take(&self, driver: &dyn Driver, bytes: usize, tag: &'static str) -> Result<Block> {
        let class = self.class(bytes);
        let mut state = self.state();
        let kept = if self.exact { None } else { state.free.get_mut(&class).and_then(Vec::pop) };
        let block = match kept {
            Some(block) => block,
            None => {
                check_limit(driver, class)?;
                state
                    .grow(driver, class, (self.exact, self.zone), tag)
                    .map_err(|e| state.exhausted(driver, bytes, e))?
            }
        };
        state.count(&block, tag);
        Ok(block)
    }

    /// Allocates a separate block of exactly `bytes` that returns to the driver when freed.
    pub fn take_own(&self, driver: &dyn Driver, bytes: usize, tag: &'static str) -> Result<Block> {
        check_limit(driver, bytes)?;
        let mut state = self.state();
        let block = state
            .grow(driver, bytes, (true, self.zone), tag)
            .map_err(|e| state.exhausted(driver, bytes, e))?;
        state.count(&block, tag);
        Ok(Block { home: Home::Driver, ..block })
    }

    /// Counts a block as in use again after [`Pool::release`] removed it from the statistics.
    pub fn take_again(&self, block: &Block, tag: &'static str) {
        self.state().count(block, tag);
    }

    /// Counts a block as unused although its owner keeps it.
    pub fn release(&self, bytes: usize, tag: &'static str) {
        self.state().discount(bytes, tag);
    }
    pub fn give_back(&self, block: Block, tag: &'static str) {
        let mut state = self.state();
        state.discount(block.bytes, tag);
        if (self.exact && !self.keep) || matches!(block.home, Home::Driver) {
            state.stats.reserved = state.stats.reserved.saturating_sub(block.bytes + 2 * self.zone);
        } else {
            state.free.entry(block.bytes).or_default().push(block);
        }
    }

    /// Returns the place of a block that belongs to the pool or the driver, not to a larger buffer.
    pub fn place(&self, block: &Block) -> Option<BlockPlace> {
        let Block { memory, root, offset, bytes, home, .. } = block;
        let (offset, bytes) = (*offset, *bytes);
        let allocation_bytes = match home {
            Home::Part | Home::Nowhere(_) => return None,
            _ if root.same(memory) => bytes,
            _ if self.zone > 0 => bytes + 2 * self.zone,
            _ => SLAB,
        };
        Some(BlockPlace { allocation: root.identity(), allocation_bytes, offset, bytes })
    }

    /// Returns the blocks that are kept for reuse, and the unused end of the current slab, sorted by place.
    pub fn free_blocks(&self) -> Vec<BlockPlace> {
        let state = self.state();
        let mut out: Vec<BlockPlace> =
            state.free.values().flatten().filter_map(|block| self.place(block)).collect();
        if let Some((slab, at)) = state.slab.as_ref().filter(|(_, at)| *at < SLAB) {
            let (allocation, bytes) = (slab.identity(), SLAB - at);
            out.push(BlockPlace { allocation, allocation_bytes: SLAB, offset: *at, bytes });
        }
        out.sort();
        out
    }

    /// Returns every cached block to the driver.
    pub fn trim(&self) {
        self.state().trim();
    }

    pub fn stats(&self) -> MemoryStats {
        self.state().stats.clone()
    }

    pub fn reset_peak(&self) {
        let mut state = self.state();
        state.stats.peak = state.stats.live;
    }
}

/// Checks that the device supports one allocation of this size.
fn check_limit(driver: &dyn Driver, bytes: usize) -> Result<()> {
    let limit = driver.capabilities().max_alloc;
    if bytes as u64 <= limit.max(256) {
        return Ok(());
    }
    Err(Error::memory(format!(
        "one buffer of {} exceeds the allocation limit of {}, {}: use a smaller batch, context or vocabulary",
        human(bytes as u64),
        driver.capabilities().id,
        human(limit)
    )))
}

impl State {
    fn count(&mut self, block: &Block, tag: &'static str) {
        self.stats.live += block.bytes;
        self.stats.peak = self.stats.peak.max(self.stats.live);
        self.stats.buffers += 1;
        self.add_tag(tag, block.bytes, true);
    }

    fn discount(&mut self, bytes: usize, tag: &'static str) {
        self.stats.live = self.stats.live.saturating_sub(bytes);
        self.stats.buffers = self.stats.buffers.saturating_sub(1);
        self.add_tag(tag, bytes, false);
    }

    fn grow(
        &mut self,
        driver: &dyn Driver,
        class: usize,
        (exact, zone): (bool, usize),
        tag: &'static str,
    ) -> Result<Block> {
        if zone > 0 {
            let root = self.allocate(driver, class + 2 * zone, tag)?;
            let memory = driver.sub_allocate(&root, zone, class)?;
            let (address, home) = (Arc::default(), Home::Pool);
            return Ok(Block { memory, root, offset: zone, bytes: class, address, home });
        }
        if exact || class > MAX_SLAB_BLOCK {
            let memory = self.allocate(driver, class, tag)?;
            let address = Arc::default();
            let home = Home::Pool;
            return Ok(Block { root: memory.clone(), memory, offset: 0, bytes: class, address, home });
        }
        let align = driver.capabilities().base_align;
        let (slab, at) = match self.slab.take() {
            Some((slab, at)) if at + class <= SLAB => (slab, at),
            _ => (self.allocate(driver, SLAB, "small buffers")?, 0),
        };
        let memory = driver.sub_allocate(&slab, at, class);
        self.slab = Some((slab.clone(), at + class.next_multiple_of(align)));
        let (address, home) = (Arc::default(), Home::Pool);
        Ok(Block { memory: memory?, root: slab, offset: at, bytes: class, address, home })
    }

    /// Allocates from the driver. If the driver is out of memory, releases the cache and retries once.
    fn allocate(&mut self, driver: &dyn Driver, bytes: usize, tag: &'static str) -> Result<Memory> {
        self.stay_below_limit(driver, bytes)?;
        let memory = match driver.allocate(bytes, tag) {
            Err(e) if e.kind() == ErrorKind::Memory && self.cached() > 0 => {
                tracing::info!(
                    "out of device memory: releasing {} of cached blocks",
                    human(self.cached() as u64)
                );
                self.trim();
                driver.allocate(bytes, tag)?
            }
            other => other?,
        };
        self.stats.driver_allocations += 1;
        self.stats.reserved += bytes;
        Ok(memory)
    }

    /// Releases unused blocks, the largest first, until `bytes` more are within the limit.
    fn stay_below_limit(&mut self, driver: &dyn Driver, bytes: usize) -> Result<()> {
        let Some(limit) = self.limit else { return Ok(()) };
        let mut released = false;
        while self.stats.reserved.saturating_add(bytes) > limit {
            let classes =
                self.free.iter().filter(|(class, blocks)| **class > MAX_SLAB_BLOCK && !blocks.is_empty());
            let Some(class) = classes.map(|(class, _)| *class).max() else {
                return Err(Error::memory(format!(
                    "the limit of --memory or NETCL_MEMORY leaves {} for buffers",
                    human(limit as u64)
                )));
            };
            drop(self.free.get_mut(&class).and_then(Vec::pop));
            self.stats.reserved = self.stats.reserved.saturating_sub(class);
            released = true;
        }
        // Commands that still run keep the memory of released blocks.
        if released { driver.finish(QueueKind::Compute) } else { Ok(()) }
    }

    fn cached(&self) -> usize {
        self.stats.reserved.saturating_sub(self.stats.live)
    }

    fn trim(&mut self) {
        for (class, blocks) in self.free.drain() {
            if class > MAX_SLAB_BLOCK {
                self.stats.reserved = self.stats.reserved.saturating_sub(class * blocks.len());
            }
        }
        // A slab stays alive while one of its blocks does; an unused slab is freed here.
        self.slab = None;
    }

    fn add_tag(&mut self, tag: &'static str, bytes: usize, up: bool) {
        let tags = &mut self.stats.by_tag;
        let at = tags.iter().position(|(t, _)| std::ptr::eq(*t, tag) || *t == tag).unwrap_or_else(|| {
            tags.push((tag, 0));
            tags.len() - 1
        });
        tags[at].1 = if up { tags[at].1 + bytes } else { tags[at].1.saturating_sub(bytes) };
    }

    fn exhausted(&self, driver: &dyn Driver, bytes: usize, cause: Error) -> Error {
        if cause.kind() != ErrorKind::Memory {
            return cause;
        }
        let total = driver.capabilities().global_mem;
        let mut tags = self.stats.by_tag.clone();
        tags.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let largest: Vec<String> =
            tags.iter().take(3).map(|(t, n)| format!("{t} {}", human(*n as u64))).collect();
        Error::memory(format!(
            "out of memory on {}: requested {}, {} of {} free, peak {}; largest: {}. Use a smaller batch or context, or accumulate gradients over \
             more, smaller batches ({})",
            driver.capabilities().id,
            human(bytes as u64),
            human(total.saturating_sub(self.stats.reserved as u64)),
            human(total),
            human(self.stats.peak as u64),
            if largest.is_empty() { "nothing".into() } else { largest.join(", ") },
            cause.message()
        ))
    }
}

/// Formats bytes for people: `1.5 GiB`.
pub fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_little_and_never_shrink() {
        for bytes in [0, 1, 255, 256, 257, 1000, 4097, 65_537, 1 << 20, (1 << 20) + 1, 123_456_789] {
            let class = size_class(bytes);
            assert!(class >= bytes.max(256));
            assert!(bytes < 4096 || class as f64 <= bytes as f64 * 1.126, "{bytes} -> {class}");
            assert_eq!(size_class(class), class);
        }
    }

    #[test]
    fn human_sizes() {
        assert_eq!(human(17), "17 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(3 << 30), "3.0 GiB");
    }
}
