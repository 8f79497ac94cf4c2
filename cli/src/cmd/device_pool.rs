//! `netcl devices --pool`: the memory pool of a device under a mixed load, as numbers and as a picture.
//!
//! The load is that of a training step with texts of different lengths: weights that stay, many small buffers, and activations of any size that are
//! freed in a random order. It runs twice. The second pass shows whether the pool can use all of the freed memory again.

use netcl::device::draw::Draw;
use netcl::device::{BlockPlace, Buffer, Device, MemoryStats, human};
use netcl::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Allocations and frees of one pass.
const TURNS: usize = 3000;
/// Live buffers besides the weights.
const MAX_LIVE: usize = 150;
/// Largest sizes of small buffers, of rows, and of activations, in bytes.
const LARGEST_BYTES: [usize; 3] = [2_000, 100_000, 2 << 20];
/// Characters of a row of the map.
const COLUMNS: usize = 64;

/// Memory at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Moment {
    /// Requested by live buffers.
    pub requested: usize,
    /// Occupied by them, rounded up to size classes.
    pub live: usize,
    /// Reserved from the driver.
    pub reserved: usize,
}

/// An allocation of the driver with its live and free blocks.
#[derive(Debug, Serialize)]
pub struct Allocation {
    /// Size in bytes.
    pub bytes: usize,
    /// Start and size of live blocks, in bytes.
    pub live: Vec<(usize, usize)>,
    /// Start and size of free blocks, in bytes.
    pub free: Vec<(usize, usize)>,
}

/// The pool under the load.
#[derive(Debug, Serialize)]
pub struct PoolReport {
    /// The device.
    pub device: String,
    /// Buffers that the load allocated, in both passes.
    pub requests: usize,
    /// The moment of the first pass with the most live bytes.
    pub peak: Moment,
    /// Allocations requested from the driver: after the first pass, and in the second pass.
    pub driver_allocations: [usize; 2],
    /// Bytes that the second pass reserved in addition.
    pub more_reserved: usize,
    /// One moment after each allocation and each free of the first pass.
    pub trace: Vec<Moment>,
    /// Allocations of the driver in the middle of the second pass, the largest first.
    pub map: Vec<Allocation>,
}

/// Runs the load on a device that nothing else uses.
pub fn run(device: &Device) -> Result<PoolReport> {
    let id = device.capabilities().id.clone();
    let mut requests = 0;
    let mut trace = Vec::with_capacity(TURNS);
    pass(device, &mut requests, |live, stats| {
        trace.push(Moment { requested: requested(live), live: stats.live, reserved: stats.reserved });
    })?;
    let first = device.memory();
    let (mut map, mut turn) = (Vec::new(), 0);
    pass(device, &mut requests, |live, _| {
        turn += 1;
        if turn == TURNS / 2 {
            map = picture(live, &device.free_blocks());
        }
    })?;
    let second = device.memory();
    let peak = trace.iter().copied().max_by_key(|moment| moment.live).unwrap_or_default();
    let more = second.driver_allocations - first.driver_allocations;
    Ok(PoolReport {
        device: id,
        requests,
        peak,
        driver_allocations: [first.driver_allocations, more],
        more_reserved: second.reserved.saturating_sub(first.reserved),
        trace,
        map,
    })
}

fn requested(live: &[Buffer]) -> usize {
    live.iter().map(Buffer::bytes).sum()
}

/// Allocates and frees buffers, and calls `look` after each change.
fn pass(device: &Device, requests: &mut usize, mut look: impl FnMut(&[Buffer], &MemoryStats)) -> Result<()> {
    let mut draw = Draw::new(1);
    let mut next = |below: usize| draw.below(below);
    // Weights of a small model.
    let mut live = (0..24).map(|i| device.allocate(4096 << (i % 8))).collect::<Result<Vec<_>>>()?;
    let weights = live.len();
    *requests += weights;
    for _ in 0..TURNS {
        let others = live.len() - weights;
        // Two of five turns free a buffer, so that the number of live ones grows to its limit and stays near it.
        if others > 0 && (others == MAX_LIVE || next(5) < 2) {
            live.swap_remove(weights + next(others));
        } else {
            let largest = LARGEST_BYTES[next(LARGEST_BYTES.len())];
            live.push(device.allocate(1 + next(largest))?);
            *requests += 1;
        }
        look(&live, &device.memory());
    }
    Ok(())
}

/// Sorts live and free blocks by the allocation that contains them.
fn picture(live: &[Buffer], free: &[BlockPlace]) -> Vec<Allocation> {
    let mut found: BTreeMap<usize, Allocation> = BTreeMap::new();
    let places = live.iter().filter_map(Buffer::place).map(|place| (place, true));
    for (place, is_live) in places.chain(free.iter().map(|place| (*place, false))) {
        let new = || Allocation { bytes: place.allocation_bytes, live: Vec::new(), free: Vec::new() };
        let allocation = found.entry(place.allocation).or_insert_with(new);
        let list = if is_live { &mut allocation.live } else { &mut allocation.free };
        list.push((place.offset, place.bytes));
    }
    let mut all: Vec<Allocation> = found.into_values().collect();
    all.sort_by_key(|a| (std::cmp::Reverse(a.bytes), a.live.first().copied()));
    all.iter_mut().for_each(|a| a.live.sort_unstable());
    all
}

impl Allocation {
    /// Returns whether several blocks share it.
    pub fn is_slab(&self) -> bool {
        self.live.iter().chain(&self.free).any(|(_, bytes)| *bytes < self.bytes)
    }
    fn live_bytes(&self) -> usize {
        self.live.iter().map(|(_, bytes)| bytes).sum()
    }
    /// Returns a row of characters: `#` is live, `.` is free, and `+` is both.
    fn row(&self) -> String {
        let touches = |list: &[(usize, usize)], from: usize, to: usize| {
            list.iter().any(|(start, bytes)| *start < to && start + bytes > from)
        };
        let column = |i: usize| {
            let (from, to) = (i * self.bytes / COLUMNS, (i + 1) * self.bytes / COLUMNS);
            match (touches(&self.live, from, to), touches(&self.free, from, to)) {
                (true, true) => '+',
                (true, false) => '#',
                _ => '.',
            }
        };
        (0..COLUMNS).map(column).collect()
    }
}

impl PoolReport {
    /// Returns the report for people.
    pub fn text(&self) -> String {
        let size = |bytes: usize| human(bytes as u64);
        let share = |part: usize, whole: usize| format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64);
        let Moment { requested, live, reserved } = self.peak;
        let slabs: Vec<&Allocation> = self.map.iter().filter(|a| a.is_slab()).collect();
        let (slab_bytes, slab_live) =
            (slabs.iter().map(|a| a.bytes).sum(), slabs.iter().map(|a| a.live_bytes()).sum());
        let mut out = format!("{}: {} buffers in two passes\n", self.device, self.requests);
        let lines = [
            ("requested at the peak", size(requested)),
            ("occupied", format!("{}, {} of it rounding", size(live), share(live - requested, live))),
            (
                "reserved",
                format!("{}, {} of it free blocks", size(reserved), share(reserved - live, reserved)),
            ),
            (
                "driver allocations",
                format!(
                    "{}, then {} in the second pass",
                    self.driver_allocations[0], self.driver_allocations[1]
                ),
            ),
            ("reserved in addition in the second pass", size(self.more_reserved)),
            (
                "slabs",
                format!(
                    "{}, together {}, {} occupied",
                    slabs.len(),
                    size(slab_bytes),
                    share(slab_live, slab_bytes)
                ),
            ),
        ];
        for (what, value) in lines {
            let _ = writeln!(out, "{what:<40} {value}");
        }
        out += "\nSlabs in the second pass; # live, . free, + both\n";
        for slab in slabs {
            let _ = writeln!(out, "{} {}", slab.row(), size(slab.bytes));
        }
        let whole = self.map.iter().filter(|a| !a.is_slab());
        let (used, kept): (Vec<_>, Vec<_>) = whole.partition(|a| !a.live.is_empty());
        let bytes = |list: &[&Allocation]| size(list.iter().map(|a| a.bytes).sum());
        let _ = write!(
            out,
            "Blocks with a separate allocation: {} live ({}), {} free ({})",
            used.len(),
            bytes(&used),
            kept.len(),
            bytes(&kept)
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_215_a_mixed_load_is_shown_and_reuses_its_memory() {
        let device = Device::open("sim", &Settings::from_env()).unwrap();
        let report = run(&device).unwrap();
        assert_eq!((report.driver_allocations[1], report.more_reserved), (0, 0), "{}", report.text());
        assert!(report.requests > TURNS && report.driver_allocations[0] * 10 < report.requests);
        assert_eq!(report.trace.len(), TURNS);
        assert!(report.trace.iter().all(|m| m.requested <= m.live && m.live <= m.reserved));
        let slabs: Vec<&Allocation> = report.map.iter().filter(|a| a.is_slab()).collect();
        assert!(!slabs.is_empty() && slabs.iter().any(|a| a.live.len() > 20), "{}", report.text());
        let text = report.text();
        assert!(
            text.contains("sim") && text.contains("0 in the second pass") && text.contains('#'),
            "{text}"
        );
        assert_eq!(device.memory().live, 0);
    }

    #[test]
    fn a_row_shows_live_and_free_parts() {
        let slab = Allocation { bytes: 640, live: vec![(0, 20), (40, 5)], free: vec![(20, 20), (45, 595)] };
        assert!(slab.is_slab() && slab.row().starts_with("##..+.") && slab.row().len() == COLUMNS);
        let whole = Allocation { bytes: 640, live: vec![(0, 640)], free: vec![] };
        assert!(!whole.is_slab() && whole.row() == "#".repeat(COLUMNS));
    }
}
