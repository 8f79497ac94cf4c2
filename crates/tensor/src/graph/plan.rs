//! Assigns memory to the buffers of a step. Buffers whose live ranges do not overlap share memory.
//!
//! There are two ways to share. *Slots* are whole driver allocations that several buffers use in turn. *Gaps* place buffers of any size
//! next to each other in one allocation. Gaps need the least memory. Slots need little more if sizes repeat, as in a stack of equal layers,
//! and their launches are cheaper: NVIDIA's driver takes up to 13 us more for a launch whose arguments are parts of one buffer.
//!
//! Live ranges come from a normal step. Then the step runs again, recorded instead of executed, and the allocator returns the planned
//! places. Tensor maps are therefore encoded for the final addresses, and nothing is patched afterward. If the live ranges differ from
//! those of the step before, the capture is refused.

use super::overlap::Overlaps;
use super::record::{LiveRange, Trace};
use crate::{Device, Error, Result};
use netcl_device::record::Placement;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// A buffer with its assigned memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Description of the buffer and its use.
    pub range: LiveRange,
    /// Offset of its start, counted through all chunks of memory.
    pub offset: usize,
}

impl Assignment {
    fn end(&self) -> usize {
        self.offset + self.range.bytes
    }
}

/// Memory assignments of a step's buffers.
#[derive(Clone, Debug)]
pub struct BufferPlan {
    /// Assignments in the order in which the step allocates them.
    pub assignments: Vec<Assignment>,
    /// Name of each command.
    pub names: Vec<&'static str>,
    /// Total number of bytes.
    pub bytes: usize,
    /// Largest number of bytes in use at one command, and that command: a lower bound for every plan.
    pub peak: (usize, usize),
    /// Size of each allocation in bytes, in order.
    chunks: Vec<usize>,
    /// Whether the allocations are slots, each of which a buffer uses as a whole.
    slots: bool,
}

/// Sort key of buffers before they are placed.
type Order = fn(&LiveRange) -> (usize, usize);

/// Orders in which buffers are placed. The best result is used.
const ORDERS: [Order; 3] =
    [|s| (s.bytes, length(s)), |s| (s.bytes.saturating_mul(length(s)), s.bytes), |s| (length(s), s.bytes)];

/// Number of buffers above which only one order is tried: the host's time grows with the pairs of buffers in use at the same time.
const MANY_BUFFERS: usize = 8000;

/// Slots are used if they need at most this share more than gaps, or if their total is less than this share of the device.
const MORE: f64 = 0.03;
const LITTLE: u64 = 200;
/// Slots are also used if they need at most this share more than gaps, and their total is less than a third of the device. A step of
/// ResNet-50 in f32 on an H100 takes 107 ms with slots that need 0.13 more, and 154 ms with gaps.
const MORE_WITH_ROOM: f64 = 0.15;
const ROOM: u64 = 3;

fn length(range: &LiveRange) -> usize {
    range.commands.map_or(0, |(first, last)| last - first)
}

impl BufferPlan {
    /// Places the buffers of `trace` for `device`. Buffers start where the device allows a sub-buffer to start, and chunks do not exceed
    /// its allocation limit.
    ///
    /// Each buffer is placed into the smallest gap that is free while it is in use (Pisarchyk and Lee, "Efficient memory management for
    /// deep neural net inference", 2020). Several orders are tried, including largest first.
    ///
    /// # Errors
    /// `Memory` if a buffer is larger than a chunk.
    pub fn new(device: &Device, trace: &Trace) -> Result<Self> {
        let capabilities = device.capabilities();
        let align = capabilities.base_align.max(1);
        let limit = usize::try_from(capabilities.max_alloc).unwrap_or(usize::MAX) / align * align;
        let limit = limit.min(isize::MAX as usize / 2).max(align);
        let part = |of: u64| (capabilities.global_mem / of) as usize;
        Self::with(trace, align, limit, [part(LITTLE), part(ROOM)])
    }

    /// Chooses slots or gaps. `little` is the size below which slots are always used; `room` is the limit if slots need little more than
    /// gaps.
    fn with(trace: &Trace, align: usize, chunk: usize, [little, room]: [usize; 2]) -> Result<Self> {
        let gaps = Self::gaps(trace, align, chunk)?;
        let (assignments, chunks) = slots(trace, align);
        let bytes: usize = chunks.iter().sum();
        let times = |more: f64| bytes as f64 <= gaps.bytes as f64 * (1.0 + more);
        tracing::debug!(slots = bytes, gaps = gaps.bytes, peak = gaps.peak.0, "memory of a plan");
        if times(MORE) || bytes <= little || (times(MORE_WITH_ROOM) && bytes <= room) {
            return Ok(Self { assignments, bytes, chunks, slots: true, ..gaps });
        }
        Ok(gaps)
    }

    fn gaps(trace: &Trace, align: usize, chunk: usize) -> Result<Self> {
        if let Some(range) = trace.ranges.iter().find(|s| s.bytes > chunk) {
            return Err(Error::memory(format!(
                "a buffer has {} bytes, but the device allows {chunk} per allocation",
                range.bytes
            )));
        }
        let orders = if trace.ranges.len() > MANY_BUFFERS { &ORDERS[..1] } else { &ORDERS[..] };
        let best =
            orders.iter().map(|order| place(trace, align, chunk, *order)).min_by_key(|(_, bytes)| *bytes);
        let (assignments, bytes) = best.unwrap_or_default();
        let chunks = (0..bytes.div_ceil(chunk)).map(|i| (bytes - i * chunk).min(chunk)).collect();
        let peak = peak(&trace.ranges, trace.names.len());
        Ok(Self { assignments, names: trace.names.clone(), bytes, peak, chunks, slots: false })
    }

    /// Allocates the memory and returns what a capture needs to know about it.
    pub(super) fn allocate(&self, device: &Device) -> Result<Placement> {
        let _tag = device.tag("graph");
        let chunks = self.chunks.iter().map(|bytes| device.allocate_own(*bytes)).collect::<Result<_>>()?;
        let mut starts = Vec::with_capacity(self.chunks.len());
        let mut end = 0;
        for bytes in &self.chunks {
            starts.push(end);
            end += bytes;
        }
        let place = |u: &Assignment| {
            let chunk = starts.partition_point(|start| *start <= u.offset).saturating_sub(1);
            let within = (!self.slots).then(|| u.offset - starts.get(chunk).unwrap_or(&0));
            (chunk, within, u.range.bytes)
        };
        Ok(Placement { chunks, places: self.assignments.iter().map(place).collect() })
    }

    /// Checks that a captured step uses its buffers as this plan expects.
    ///
    /// # Errors
    /// `Unsupported` if two buffers in use at the same command share bytes.
    pub(super) fn check(&self, captured: &Trace) -> Result<()> {
        let mut ranges: Vec<(usize, &LiveRange)> =
            self.assignments.iter().map(|planned| planned.offset).zip(&captured.ranges).collect();
        ranges.retain(|(_, range)| range.commands.is_some() && range.bytes > 0);
        ranges.sort_by_key(|(_, range)| range.commands);
        // Buffers in use, sorted by start and by end of use. They do not share bytes, so a new buffer can only overlap its neighbors.
        let mut in_use: BTreeMap<usize, &LiveRange> = BTreeMap::new();
        let mut ends: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
        for (offset, range) in ranges {
            let Some((first, last)) = range.commands else { continue };
            while let Some(Reverse((_, gone))) = ends.peek().filter(|Reverse((end, _))| *end < first) {
                in_use.remove(gone);
                ends.pop();
            }
            let before = in_use.range(..=offset).next_back().filter(|(at, other)| *at + other.bytes > offset);
            let after = in_use.range(offset..offset + range.bytes).next();
            if let Some((_, other)) = before.or(after) {
                return Err(Error::unsupported(format!(
                    "capture: two buffers ({} bytes of {}, {} bytes of {}) are in use for longer than in the planned step",
                    other.bytes, other.made_by, range.bytes, range.made_by
                )));
            }
            in_use.insert(offset, range);
            ends.push(Reverse((last, offset)));
        }
        Ok(())
    }
}

/// Places every range, the one with the largest key first. Returns their positions and the end of the last one.
fn place(
    trace: &Trace,
    align: usize,
    chunk: usize,
    order: fn(&LiveRange) -> (usize, usize),
) -> (Vec<Assignment>, usize) {
    let mut by_key: Vec<usize> = (0..trace.ranges.len()).collect();
    // The sort is stable, so that the same step gets the same plan.
    by_key.sort_by_key(|i| Reverse(order(&trace.ranges[*i])));
    let mut assignments: Vec<Assignment> =
        trace.ranges.iter().map(|s| Assignment { range: s.clone(), offset: 0 }).collect();
    let (mut overlaps, mut met) = (Overlaps::of(&trace.ranges), Vec::new());
    let mut end = 0;
    for i in by_key {
        if assignments[i].range.commands.is_none() || assignments[i].range.bytes == 0 {
            end = end.max(assignments[i].end());
            continue;
        }
        overlaps.with(i, &mut met);
        met.sort_unstable_by_key(|other| (assignments[*other].offset, *other));
        let offset =
            gap(met.iter().map(|other| &assignments[*other]), assignments[i].range.bytes, align, chunk);
        assignments[i].offset = offset;
        end = end.max(assignments[i].end());
        overlaps.insert(i);
    }
    (assignments, end)
}

/// Assigns a slot to every range, the largest first: the smallest slot that is free while the range is in use. Returns the assignments and
/// the slots' sizes. The first range of a slot sets its size, rounded up to `align`.
fn slots(trace: &Trace, align: usize) -> (Vec<Assignment>, Vec<usize>) {
    let mut by_size: Vec<usize> = (0..trace.ranges.len()).collect();
    by_size.sort_by_key(|i| Reverse(trace.ranges[*i].bytes));
    let mut sizes: Vec<usize> = Vec::new();
    let mut slot_of = vec![0; trace.ranges.len()];
    let (mut overlaps, mut met) = (Overlaps::of(&trace.ranges), Vec::new());
    for i in by_size {
        overlaps.with(i, &mut met);
        let mut taken: Vec<usize> = met.iter().map(|other| slot_of[*other]).collect();
        taken.sort_unstable_by_key(|slot| Reverse(*slot));
        // The last slots are the smallest.
        let mut free = sizes.len().checked_sub(1);
        for slot in taken {
            if free == Some(slot) {
                free = slot.checked_sub(1);
            }
        }
        slot_of[i] = free.unwrap_or_else(|| {
            sizes.push(trace.ranges[i].bytes.max(1).next_multiple_of(align));
            sizes.len() - 1
        });
        overlaps.insert(i);
    }
    let mut starts = Vec::with_capacity(sizes.len());
    let mut end = 0;
    for bytes in &sizes {
        starts.push(end);
        end += bytes;
    }
    let place =
        |(range, slot): (&LiveRange, usize)| Assignment { range: range.clone(), offset: starts[slot] };
    (trace.ranges.iter().zip(slot_of).map(place).collect(), sizes)
}

/// Returns the smallest gap for `bytes` between the sorted `taken` assignments, or else the position after the last one.
fn gap<'a>(taken: impl Iterator<Item = &'a Assignment>, bytes: usize, align: usize, chunk: usize) -> usize {
    let start = |at: usize| {
        let at = at.next_multiple_of(align);
        // A buffer does not span two chunks.
        if at % chunk + bytes > chunk { at.next_multiple_of(chunk) } else { at }
    };
    let (mut free, mut best) = (0, None);
    for other in taken {
        let at = start(free);
        if at + bytes <= other.offset && best.is_none_or(|(room, _)| other.offset - free < room) {
            best = Some((other.offset - free, at));
        }
        free = free.max(other.end());
    }
    best.map_or_else(|| start(free), |(_, at)| at)
}

/// Returns the largest number of bytes in use at one of `commands` commands, and that command.
fn peak(ranges: &[LiveRange], commands: usize) -> (usize, usize) {
    let mut change = vec![0isize; commands + 1];
    for range in ranges {
        if let Some((first, last)) = range.commands {
            change[first.min(commands)] += range.bytes as isize;
            change[last.saturating_add(1).min(commands)] -= range.bytes as isize;
        }
    }
    let (mut live, mut best) = (0isize, (0, 0));
    for (at, step) in change.iter().take(commands).enumerate() {
        live += step;
        if live > best.0 {
            best = (live, at);
        }
    }
    (best.0.max(0) as usize, best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(bytes: usize, first: usize, last: usize) -> LiveRange {
        LiveRange {
            bytes,
            tag: "",
            layer: 0,
            op: "",
            made_by: "",
            commands: Some((first, last)),
            survives: false,
        }
    }

    fn planned(ranges: Vec<LiveRange>, chunk: usize) -> BufferPlan {
        let commands =
            ranges.iter().filter_map(|s| s.commands).map(|c| c.0.max(c.1.min(1000)) + 1).max().unwrap_or(0);
        let trace = Trace { ranges, names: vec![""; commands] };
        let slots = BufferPlan::with(&trace, 128, chunk, [usize::MAX; 2]).unwrap();
        slots.check(&trace).unwrap();
        assert!(slots.bytes >= slots.peak.0 && slots.chunks.iter().all(|bytes| *bytes <= chunk));
        let starts: Vec<usize> = (0..slots.chunks.len()).map(|i| slots.chunks[..i].iter().sum()).collect();
        for u in &slots.assignments {
            let slot = starts.iter().position(|start| *start == u.offset).unwrap();
            assert!(u.range.bytes <= slots.chunks[slot]);
        }
        let plan = BufferPlan::gaps(&trace, 128, chunk).unwrap();
        plan.check(&trace).unwrap();
        for u in &plan.assignments {
            assert!(u.offset % 128 == 0 && (u.range.bytes == 0 || u.offset / chunk == (u.end() - 1) / chunk));
        }
        plan
    }

    #[test]
    fn disjoint_live_ranges_share_memory_and_overlapping_ones_do_not() {
        let plan = planned(vec![range(1000, 0, 1), range(1000, 1, 2), range(1000, 2, 3)], 1 << 20);
        assert_eq!(plan.bytes, 2024);
        assert_eq!(plan.peak, (2000, 1));
    }

    /// Plans a forward and a backward pass, in which activations that are created earlier live longer. The plan is close to the peak.
    #[test]
    fn a_stack_of_layers_takes_little_more_than_its_peak() {
        let mut ranges = Vec::new();
        for i in 0..40 {
            for (k, bytes) in [4096, 12_288, 16_384, 512].into_iter().enumerate() {
                ranges.push(range(bytes, 4 * i + k, 400 - 4 * i - k));
                ranges.push(range(3 * bytes / 2, 400 - 4 * i - k, 401 - 4 * i - k));
            }
        }
        let plan = planned(ranges, 1 << 30);
        assert!(plan.bytes as f64 <= 1.03 * plan.peak.0 as f64, "{} for {}", plan.bytes, plan.peak.0);
    }

    #[test]
    fn chunks_are_not_spanned() {
        let plan = planned((0..10).map(|_| range(700, 0, 1)).collect(), 1024);
        assert_eq!(plan.bytes, 9 * 1024 + 700);
        assert!(
            BufferPlan::with(
                &Trace { ranges: vec![range(2000, 0, 1)], names: vec![""; 2] },
                128,
                1024,
                [0; 2]
            )
            .is_err()
        );
    }

    #[test]
    fn what_survives_shares_with_nobody_and_what_is_not_touched_takes_nothing() {
        let mut ranges = vec![range(1000, 0, 0), range(1000, 5, 5), range(5000, 0, 0)];
        ranges[0].commands = Some((0, usize::MAX));
        ranges[2].commands = None;
        let plan = planned(ranges, 1 << 20);
        assert_ne!(plan.assignments[0].offset, plan.assignments[1].offset);
        assert_eq!(plan.bytes, 5000, "an untouched buffer is bound, but shares memory");
    }

    #[test]
    fn whole_buffers_are_taken_where_there_is_room() {
        // Two buffers of 640 bytes share the memory of an earlier one of 1280: as parts, but not as slots.
        let ranges = vec![range(5120, 0, 1), range(1280, 0, 0), range(640, 1, 1), range(640, 1, 1)];
        let trace = Trace { ranges, names: vec![""; 2] };
        let plan = |room| BufferPlan::with(&trace, 128, 1 << 20, [0, room]).unwrap();
        assert_eq!((plan(7040).slots, plan(7040).bytes), (true, 7040));
        assert_eq!((plan(7039).slots, plan(7039).bytes), (false, 6400));
    }

    #[test]
    fn another_step_is_refused() {
        let plan = planned(vec![range(1000, 0, 1), range(1000, 2, 3)], 1 << 20);
        let longer = Trace { ranges: vec![range(1000, 0, 2), range(1000, 2, 3)], names: vec![""; 4] };
        assert!(plan.check(&longer).is_err());
    }
}
