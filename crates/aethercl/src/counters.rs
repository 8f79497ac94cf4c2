//! Counts of a launch: the input of the timing model.
//!
//! One "lane operation" is one instruction for one work-item. Suppose a work-group executes an instruction with half of its items masked off. It
//! counts as `issued` for all of them and as a lane operation for half of them.

use std::sync::Arc;

/// Lane operations by class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operations {
    /// Integer, logic, comparison, selection, conversion between integers.
    pub integer: u64,
    /// f32 and f16: add, multiply, compare, convert. A fused multiply-add counts once here and once in `fma`.
    pub float: u64,
    /// The fused multiply-adds in `float` and `double` (two operations each).
    pub fma: u64,
    /// f64 arithmetic.
    pub double: u64,
    /// Division, square root, exponential, logarithm, sine: instructions of the special-function unit.
    pub special: u64,
    /// Loads by space.
    pub load_global: u64,
    /// Loads from local memory.
    pub load_local: u64,
    /// Loads from private memory (arrays that are not held in registers).
    pub load_private: u64,
    /// Loads from program-scope constants.
    pub load_constant: u64,
    /// Stores by space.
    pub store_global: u64,
    /// Stores to local memory.
    pub store_local: u64,
    /// Stores to private memory.
    pub store_private: u64,
    /// Atomic operations on global memory.
    pub atomic_global: u64,
    /// Atomic operations on local memory.
    pub atomic_local: u64,
    /// Texels requested by image reads; a filtered read counts once for each texel.
    pub load_image: u64,
    /// Texels written to images.
    pub store_image: u64,
    /// Branch decisions.
    pub branch: u64,
    /// Arrivals at a barrier.
    pub barrier: u64,
}

/// Traffic of the SIMD groups of `Counters::simd_width` work-items.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests: one load or store instruction of one SIMD group.
    pub requests: u64,
    /// Bytes that the work-items requested.
    pub bytes: u64,
    /// Different 32-byte sectors that the requests touched, summed over requests.
    pub sectors: u64,
    /// Different 128-byte lines that the requests touched, summed over requests.
    pub lines: u64,
}

/// Counts of some instructions of a launch: those of one line, or all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of work-items that executed them. For a line, the count of the instruction that most work-items executed.
    pub executions: u64,
    /// Lane operations by class.
    pub operations: Operations,
    /// Same as [`Counters::issued`].
    pub issued: u64,
    /// Same as [`Counters::lanes_idle`].
    pub lanes_idle: u64,
    /// Same as [`Counters::uniform`].
    pub uniform: u64,
    /// Global loads.
    pub global_load: Traffic,
    /// Global stores.
    pub global_store: Traffic,
    /// Sectors that the same requests would touch if the requested bytes were contiguous; at most the number that they touched.
    pub ideal_sectors: u64,
    /// Same as [`Counters::texture_steps`].
    pub texture_steps: u64,
    /// Same as [`Counters::local_requests`].
    pub local_requests: u64,
    /// Same as [`Counters::local_passes`].
    pub local_passes: u64,
}

impl Tally {
    /// Adds another one.
    pub(crate) fn add(&mut self, other: &Tally) {
        self.operations.add(&other.operations);
        self.global_load.add(&other.global_load);
        self.global_store.add(&other.global_store);
        self.executions += other.executions;
        self.issued += other.issued;
        self.lanes_idle += other.lanes_idle;
        self.uniform += other.uniform;
        self.ideal_sectors += other.ideal_sectors;
        self.texture_steps += other.texture_steps;
        self.local_requests += other.local_requests;
        self.local_passes += other.local_passes;
    }

    /// Multiplies every number by `to / from`.
    pub(crate) fn scale(&mut self, from: u64, to: u64) {
        let by = |v: &mut u64| *v = scaled(*v, from, to);
        self.operations.each(by);
        self.global_load.each(by);
        self.global_store.each(by);
        let Tally { executions, issued, lanes_idle, uniform, .. } = self;
        [executions, issued, lanes_idle, uniform].into_iter().for_each(by);
        let Tally { ideal_sectors, texture_steps, local_requests, local_passes, .. } = self;
        [ideal_sectors, texture_steps, local_requests, local_passes].into_iter().for_each(by);
    }
}

/// Counts of one source line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineCounters {
    /// File name in messages.
    pub file: Arc<str>,
    /// Line from 1.
    pub line: u32,
    /// Their counts.
    pub tally: Tally,
}

/// A chain of instructions, each of which needs the result of the previous one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Chain {
    /// Loads from global memory.
    pub global_loads: u64,
    /// Loads from local memory.
    pub local_loads: u64,
    /// Other operations.
    pub operations: u64,
    /// Barriers.
    pub barriers: u64,
}

impl Chain {
    /// Adds another one.
    pub(crate) fn add(&mut self, other: &Chain) {
        self.global_loads += other.global_loads;
        self.local_loads += other.local_loads;
        self.operations += other.operations;
        self.barriers += other.barriers;
    }
}

/// Classes of reuse distances: 1, 2 to 3, 4 to 7 and so on.
pub const DISTANCES: usize = 24;

/// All counts of one launch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Work-items per SIMD group in the counts below.
    pub simd_width: u32,
    /// Work-groups executed.
    pub groups: u64,
    /// Work-items executed.
    pub items: u64,
    /// SIMD groups executed.
    pub simd_groups: u64,
    /// Lane operations by class.
    pub operations: Operations,
    /// Vector instructions issued, in SIMD groups, for a machine with 32-bit registers: two for an addition of 64 bits, dozens for a division. An
    /// instruction of a group whose items are all masked off is not issued.
    pub issued: u64,
    /// Masked-off lanes of the issued instructions.
    pub lanes_idle: u64,
    /// Instructions whose operands are the same for the whole work-group, executed once per group.
    pub uniform: u64,
    /// The longest dependency chain of each group, summed over groups.
    pub chain: Chain,
    /// Sectors loaded again by the same group, by the logarithm of the number of other sectors in between.
    pub load_again: [u64; DISTANCES],
    /// The same for stores.
    pub store_again: [u64; DISTANCES],
    /// Global loads.
    pub global_load: Traffic,
    /// Global stores.
    pub global_store: Traffic,
    /// Bytes of global memory loaded at least once in the launch, in sectors of 32 bytes.
    pub global_footprint: u64,
    /// The same within each group, summed over groups: the traffic of a cache that is emptied after each group.
    pub group_footprint: u64,
    /// Bytes of global memory stored at least once in the launch, in sectors of 32 bytes.
    pub store_footprint: u64,
    /// Image reads in steps of a texture unit: one per work-item for up to four texels of up to four bytes, more for larger ones.
    pub texture_steps: u64,
    /// Local requests: loads, stores and atomics of SIMD groups.
    pub local_requests: u64,
    /// Passes that the local requests take on 32 banks of 4 bytes: 1 per request without conflict.
    pub local_passes: u64,
    /// Bytes of local memory that a work-group uses.
    pub local_bytes: u64,
    /// 32-bit registers per work-item, in this compiler's allocation (an upper estimate).
    pub registers: u32,
    /// The same by source line, in order of file and line, if requested.
    pub lines: Vec<LineCounters>,
}

impl Counters {
    /// Adds the counts of all instructions together.
    pub(crate) fn take(&mut self, all: Tally) {
        let Tally { operations, issued, lanes_idle, uniform, global_load, global_store, .. } = all;
        (self.operations, self.global_load, self.global_store) = (operations, global_load, global_store);
        (self.issued, self.lanes_idle, self.uniform) = (issued, lanes_idle, uniform);
        self.texture_steps = all.texture_steps;
        (self.local_requests, self.local_passes) = (all.local_requests, all.local_passes);
    }

    /// Returns the requested bytes divided by the bytes of the moved sectors: 1 is perfect coalescing.
    pub fn coalescing(&self) -> f64 {
        let bytes = self.global_load.bytes + self.global_store.bytes;
        let moved = 32 * (self.global_load.sectors + self.global_store.sectors);
        if moved == 0 { 1.0 } else { bytes as f64 / moved as f64 }
    }

    /// Returns the share of masked-off lanes over all vector instructions.
    pub fn divergence(&self) -> f64 {
        let lanes = self.issued * u64::from(self.simd_width);
        if lanes == 0 { 0.0 } else { self.lanes_idle as f64 / lanes as f64 }
    }

    /// Returns the mean passes per local request: 1 means no bank conflicts.
    pub fn bank_conflicts(&self) -> f64 {
        if self.local_requests == 0 { 1.0 } else { self.local_passes as f64 / self.local_requests as f64 }
    }

    /// Adds the counts of another part of the same launch.
    pub fn add(&mut self, other: &Counters) {
        self.simd_width = self.simd_width.max(other.simd_width);
        self.groups += other.groups;
        self.items += other.items;
        self.simd_groups += other.simd_groups;
        self.operations.add(&other.operations);
        self.issued += other.issued;
        self.lanes_idle += other.lanes_idle;
        self.uniform += other.uniform;
        self.global_load.add(&other.global_load);
        self.global_store.add(&other.global_store);
        self.global_footprint += other.global_footprint;
        self.group_footprint += other.group_footprint;
        self.store_footprint += other.store_footprint;
        self.chain.add(&other.chain);
        let ours = self.distances();
        ours.into_iter().zip(other.clone().distances()).for_each(|(a, b)| {
            a.iter_mut().zip(b).for_each(|(a, b)| *a += *b);
        });
        self.texture_steps += other.texture_steps;
        self.local_requests += other.local_requests;
        self.local_passes += other.local_passes;
        self.local_bytes = self.local_bytes.max(other.local_bytes);
        self.registers = self.registers.max(other.registers);
    }

    /// Multiplies every sum by `to / from`: a sample of `from` groups represents `to` groups. Footprints are not sums and stay unchanged.
    pub(crate) fn scale(&mut self, from: u64, to: u64) {
        let by = |v: &mut u64| *v = scaled(*v, from, to);
        self.operations.each(by);
        self.global_load.each(by);
        self.global_store.each(by);
        self.distances().into_iter().flatten().for_each(by);
        let Chain { global_loads, local_loads, operations, barriers } = &mut self.chain;
        [global_loads, local_loads, operations, barriers].into_iter().for_each(by);
        let Counters { groups, items, simd_groups, issued, lanes_idle, uniform, .. } = self;
        [groups, items, simd_groups, issued, lanes_idle, uniform].into_iter().for_each(by);
        let Counters { group_footprint, local_requests, local_passes, texture_steps, .. } = self;
        [group_footprint, local_requests, local_passes, texture_steps].into_iter().for_each(by);
    }
}

impl Counters {
    fn distances(&mut self) -> [&mut [u64; DISTANCES]; 2] {
        [&mut self.load_again, &mut self.store_again]
    }
}

/// Returns `value * to / from`, rounded.
pub(crate) fn scaled(value: u64, from: u64, to: u64) -> u64 {
    let from = u128::from(from.max(1));
    ((u128::from(value) * u128::from(to) + from / 2) / from) as u64
}

impl Traffic {
    fn add(&mut self, other: &Traffic) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.sectors += other.sectors;
        self.lines += other.lines;
    }

    fn each(&mut self, f: impl FnMut(&mut u64)) {
        [&mut self.requests, &mut self.bytes, &mut self.sectors, &mut self.lines].into_iter().for_each(f);
    }
}

impl Operations {
    fn add(&mut self, other: &Operations) {
        let mut other = other.clone();
        let mut theirs = Vec::new();
        other.each(|v| theirs.push(*v));
        let mut theirs = theirs.into_iter();
        self.each(|v| *v += theirs.next().unwrap_or(0));
    }

    fn each(&mut self, f: impl FnMut(&mut u64)) {
        [
            &mut self.integer,
            &mut self.float,
            &mut self.fma,
            &mut self.double,
            &mut self.special,
            &mut self.load_global,
            &mut self.load_local,
            &mut self.load_private,
            &mut self.load_constant,
            &mut self.store_global,
            &mut self.store_local,
            &mut self.store_private,
            &mut self.atomic_global,
            &mut self.atomic_local,
            &mut self.load_image,
            &mut self.store_image,
            &mut self.branch,
            &mut self.barrier,
        ]
        .into_iter()
        .for_each(f);
    }
}
