//! Tiles of the tensor-core product on sm_90, ways to split a sum, and their estimated times.

use netcl_device::Device;
use netcl_kernel::Value;
use netcl_kernel::tune::{Constant, Model};

/// Steps of the sum that one copy loads, in 16-bit elements.
pub(super) const BLOCK_K: usize = 64;
/// Steps of a sum above which a further pipeline stage is worth more than local memory for an epilogue.
const LONG_SUM_STEPS: usize = 1536;
/// Steps of a sum from which stream-K, with equal runs of steps per group, is considered.
const STREAM_K_FROM: usize = 8192;
/// Turn counters that are allocated; a tile uses two.
pub(super) const TICKETS: usize = 4096;

/// Division of a tile between the work-items of a group: see `matmul_wgmma_sm90.cl`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ops) struct Tile {
    /// Each warpgroup has separate tiles.
    ping_pong: bool,
    /// Blocks of 64 rows per warpgroup.
    blocks: usize,
    pub(super) columns: usize,
    stages: usize,
    /// Tile rows that are processed together.
    band: usize,
    /// Pipeline stages, and boxes per warp, if the epilogue goes through local memory.
    staged: [usize; 2],
    /// Speed of its main loop relative to the first tile's.
    speed: f64,
}

pub(in crate::ops) const TILES: [Tile; 6] = [
    Tile { ping_pong: true, blocks: 2, columns: 192, stages: 5, band: 64, staged: [4, 4], speed: 1.0 },
    Tile { ping_pong: false, blocks: 2, columns: 192, stages: 4, band: 16, staged: [3, 3], speed: 1.05 },
    Tile { ping_pong: false, blocks: 1, columns: 256, stages: 4, band: 16, staged: [4, 2], speed: 1.0 },
    Tile { ping_pong: true, blocks: 2, columns: 128, stages: 6, band: 16, staged: [5, 4], speed: 0.89 },
    Tile { ping_pong: true, blocks: 1, columns: 128, stages: 8, band: 16, staged: [6, 4], speed: 0.7 },
    Tile { ping_pong: true, blocks: 1, columns: 64, stages: 13, band: 16, staged: [8, 4], speed: 0.5 },
];

/// A tile of few columns and many rows, for products within other operations.
pub(in crate::ops) const NARROW: Tile =
    Tile { ping_pong: true, blocks: 2, columns: 64, stages: 9, band: 16, staged: [7, 4], speed: 0.6 };

/// Number of parts of the sum, and how they are combined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ops) enum SplitK {
    None,
    /// Each part is added to the one before it.
    Serial(usize),
    /// Serial, with part lengths that give each group the same number of steps.
    StreamK,
    /// A second kernel adds the parts.
    Workspace(usize),
    /// One part, stored in an f32 matrix: overwrites its contents, or adds to them.
    Accumulate {
        add: bool,
    },
}

impl SplitK {
    fn count(self) -> usize {
        match self {
            Self::None | Self::StreamK | Self::Accumulate { .. } => 1,
            Self::Serial(n) | Self::Workspace(n) => n,
        }
    }
    /// Returns the number of groups of the launch, and the maximum number of work items that share one of `tiles` tiles.
    pub(in crate::ops) fn groups(self, tiles: usize, k: usize, units: usize) -> (usize, usize) {
        match self {
            Self::StreamK => (units.min(tiles * k.div_ceil(BLOCK_K)), units.div_ceil(tiles) + 1),
            _ => ((tiles * self.count()).min(units), self.count()),
        }
    }
    /// Returns the value of the kernel's `SPLIT`.
    pub(super) fn code(self) -> i32 {
        match self {
            Self::None => 0,
            Self::Serial(_) | Self::StreamK => 1,
            Self::Workspace(_) | Self::Accumulate { add: false } => 2,
            Self::Accumulate { add: true } => 3,
        }
    }
}

/// Local memory of an epilogue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ops) struct Staging {
    /// Pipeline stages, in place of the tile's own number, which leaves no room.
    pub stages: usize,
    /// Number of boxes per warp, at least two.
    pub boxes: usize,
    /// Rows of a box, 8 or 16, of [`BOX_COLUMNS`] elements.
    pub rows: usize,
}

/// A tile, and the handling of its sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TilePlan {
    pub tile: Tile,
    pub split: SplitK,
    /// Local memory through which C and aux move, with [`SplitK::None`] and [`SplitK::Serial`].
    pub staging: Option<Staging>,
}

pub(in crate::ops) static MODEL: Model = Model {
    name: "matmul_wgmma_sm90",
    constants: &[
        Constant::new("launch_us", "a launch with its tensor maps", 4.5),
        Constant::new("flops_per_us", "operations of a unit in the first tile's main loop", 4.9e6),
        Constant::new("memory_bytes_per_us", "bytes that a unit stores to memory", 32e3),
        Constant::new("cache_bytes_per_us", "bytes that a unit stores to the last-level cache", 42e3),
        Constant::new(
            "start_us",
            "filling the pipeline of a launch whose epilogues overlap with products",
            3.0,
        ),
        Constant::new(
            "hand_on_us",
            "minimum time to signal a finished part to the next group of a tile",
            2.0,
        ),
        Constant::new(
            "serial_bytes_per_us",
            "partial sums of serial split-K in the cache, in addition to the operands",
            11e6,
        ),
        Constant::new("workspace_us", "a second launch that adds partial sums", 6.0),
        Constant::new(
            "workspace_cache_bytes_per_us",
            "bytes of partial sums that it adds from the cache",
            4e6,
        ),
        Constant::new(
            "workspace_memory_bytes_per_us",
            "bytes of partial sums that it adds from memory",
            1.9e6,
        ),
        Constant::new("stream_k", "slowdown of a product with stream-K", 1.06),
        Constant::new("stream_k_us", "handover from one group of a tile to the next, with stream-K", 2.8),
        Constant::new("stream_k_element_us", "the same handover, per element of a tile", 3.7e-5),
        Constant::new("copy_us", "copying an operand that is not contiguous along k, without its bytes", 3.0),
        Constant::new("copy_bytes_per_us", "bytes of that operand, read and written", 2.5e6),
    ],
};

/// Speeds of [`MODEL`] on a device, and the device's number of compute units.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Speeds {
    pub units: usize,
    pub launch: f64,
    flops: f64,
    memory: f64,
    cache: f64,
    start: f64,
    hand_on: f64,
    serial: f64,
    workspace: [f64; 3],
    stream_k: [f64; 3],
    /// Cost of a copy: microseconds, and bytes per microsecond.
    pub copy: [f64; 2],
}

impl Speeds {
    pub(in crate::ops) fn on(device: &Device) -> Self {
        let [launch, flops, memory, cache, start, hand_on, serial, w0, w1, w2, s0, s1, s2, c0, c1] =
            MODEL.on(device);
        let units = device.capabilities().compute_units.max(1) as usize;
        let (workspace, stream_k, copy) = ([w0, w1, w2], [s0, s1, s2], [c0, c1]);
        Self { units, launch, flops, memory, cache, start, hand_on, serial, workspace, stream_k, copy }
    }
}

/// Bytes of partial sums that a second launch still finds in the cache.
const CACHED_PARTS: f64 = 4e7;

impl Tile {
    pub(in crate::ops) fn rows(&self) -> usize {
        64 * self.blocks * if self.ping_pong { 1 } else { 2 }
    }
    pub(in crate::ops) fn columns(&self) -> usize {
        self.columns
    }
    pub(in crate::ops) fn defines(&self, staging: Option<Staging>) -> Vec<(&'static str, Value)> {
        let Staging { stages, boxes, rows } =
            staging.unwrap_or(Staging { stages: self.stages, boxes: 0, rows: 0 });
        vec![
            ("PP", self.ping_pong.into()),
            ("MT", self.blocks.into()),
            ("BN", self.columns.into()),
            ("STAGES", stages.into()),
            ("GROUP_M", self.band.into()),
            ("STAGED", boxes.into()),
            ("BOX_ROWS", rows.into()),
        ]
    }
    /// Returns the largest staging that does not slow the products down.
    pub(super) fn staging(&self) -> Staging {
        let [stages, boxes] = self.staged;
        Staging { stages, boxes, rows: 16 }
    }
    /// Returns the staging for an epilogue that reads or writes a second matrix, after sums over `k`. Measured on an H200 with the first tile
    /// (sweep.rs): short sums gain up to 1.29 with room for the epilogue, and sums of 3072 steps fall to 0.92, where the missing stage costs more.
    pub(super) fn staging_for(&self, k: usize) -> Option<Staging> {
        match (self.ping_pong, k <= LONG_SUM_STEPS, *self == TILES[0]) {
            (true, true, _) => Some(self.staging()),
            (true, false, true) => Some(Staging { stages: self.stages, boxes: 3, rows: 8 }),
            _ => None,
        }
    }
    pub(in crate::ops) fn count(&self, m: usize, n: usize) -> usize {
        m.div_ceil(self.rows()) * n.div_ceil(self.columns)
    }
    /// Estimates the microseconds of a product, without its launch.
    pub(in crate::ops) fn estimate(&self, [m, n, k]: [usize; 3], split: SplitK, on: &Speeds) -> f64 {
        let units = on.units;
        let area = (self.rows() * self.columns) as f64;
        let (tiles, splits) = (self.count(m, n), split.count());
        if split == SplitK::StreamK {
            // Add the handover from one group of a tile to the next, once per group of a tile.
            let run = (tiles * k.div_ceil(BLOCK_K)).div_ceil(units) as f64;
            let main = run * area * (2 * BLOCK_K) as f64 / (on.flops * self.speed);
            let [factor, next, element] = on.stream_k;
            return factor * (main + (next + element * area) * units as f64 / tiles as f64);
        }
        // Cache bandwidth limits tiles of 64 rows. If few tiles run, each has a larger share of it.
        let share = units as f64 / (tiles * splits).min(units) as f64;
        let speed = if self.rows() == 64 { (self.speed * share).min(1.0) } else { self.speed };
        let main =
            k.div_ceil(BLOCK_K).div_ceil(splits) as f64 * area * (2 * BLOCK_K) as f64 / (on.flops * speed);
        let rounds = (tiles * splits).div_ceil(units) as f64;
        let (store, after) = match split {
            SplitK::None | SplitK::StreamK => (area * 2.0 / on.memory, 0.0),
            SplitK::Accumulate { add } => (area * if add { 8.0 } else { 4.0 } / on.memory, 0.0),
            // Groups that work on the same tile wait in turn, and their partial sums take cache bandwidth from the multiplications.
            SplitK::Serial(_) => {
                // The next group waits for the signal and for its first bytes.
                let hand_on = (area * 8.0 / on.cache).max(on.hand_on);
                let traffic = ((splits - 1) * m * n * 2 * size_of::<f32>()) as f64 / on.serial;
                (hand_on, hand_on * (splits.min(units.div_ceil(tiles)) - 1) as f64 + traffic)
            }
            SplitK::Workspace(_) => {
                let bytes = (splits * m * n * size_of::<f32>()) as f64;
                let [launch, cached, far] = on.workspace;
                let speed = if bytes < CACHED_PARTS { cached } else { far };
                (area * 4.0 / on.memory, launch + bytes / speed)
            }
        };
        match self.ping_pong {
            true => on.start + rounds * main.max(store) + store + after,
            false => on.start + rounds * (main + store) + after,
        }
    }
}

impl TilePlan {
    /// Returns the cheapest plan; `parts` says whether the second kernel supports the epilogue.
    pub(super) fn of(sizes: [usize; 3], on: &Speeds, parts: bool) -> Self {
        let most = (sizes[2].div_ceil(BLOCK_K) / 4).clamp(1, 32);
        let mut best = (f64::INFINITY, Self { tile: TILES[0], split: SplitK::None, staging: None });
        for tile in TILES {
            let chains = tile.count(sizes[0], sizes[1]) * 2 <= TICKETS;
            let ways = (2..=most).flat_map(|n| [SplitK::Workspace(n), SplitK::Serial(n)]);
            let possible = |split: &SplitK| match split {
                SplitK::None => true,
                SplitK::Serial(_) => chains,
                // Measured for gradients of weights, whose epilogue does not have a second matrix.
                SplitK::StreamK => {
                    parts
                        && sizes[2] >= STREAM_K_FROM
                        && tile.rows() > 64
                        && tile.count(sizes[0], sizes[1]) < on.units
                }
                SplitK::Workspace(_) => parts,
                SplitK::Accumulate { .. } => false,
            };
            for split in ways.chain([SplitK::None, SplitK::StreamK]).filter(possible) {
                let cost = tile.estimate(sizes, split, on);
                if cost < best.0 {
                    best = (cost, Self { tile, split, staging: None });
                }
            }
        }
        best.1
    }
    /// Returns the cheapest plan that leaves its sums in f32.
    pub(super) fn sum(sizes: [usize; 3], on: &Speeds, add: bool) -> Self {
        let split = SplitK::Accumulate { add };
        let cost = |tile: &Tile| tile.estimate(sizes, split, on);
        let cheapest = TILES.into_iter().min_by(|a, b| cost(a).total_cmp(&cost(b)));
        Self { tile: cheapest.unwrap_or(TILES[0]), split, staging: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_device::null::NullDriver;
    use netcl_device::{Capabilities, DeviceKind, Settings};

    #[test]
    fn plans_fill_the_device_and_keep_to_its_limits() {
        for tile in TILES {
            let bytes = |stages| stages * (tile.rows() + tile.columns) * 128 + 1024;
            assert!(bytes(tile.stages) <= 232_448, "{tile:?}");
            let ways = [tile.staging_for(768), tile.staging_for(3072)];
            for Staging { stages, boxes, rows } in ways.into_iter().flatten().chain([tile.staging()]) {
                assert!(boxes >= 2 && stages <= tile.stages);
                assert!(bytes(stages) + 8 * boxes * rows * 128 <= 232_448, "{tile:?}");
                // Barriers use the last 1024 bytes.
                assert!(16 * tile.stages <= 1024 && 16 * stages + 8 * 8 * boxes <= 1024);
            }
        }
        let mut card = Capabilities::floor("null:0", DeviceKind::Gpu);
        card.compute_units = 132;
        let device = Device::from_driver(Box::new(NullDriver::new(card)), Settings::default());
        let speeds = Speeds::on(&device);
        let plan = |sizes| TilePlan::of(sizes, &speeds, true);
        // Measured (sweep.rs): the chosen plan takes at most 1.04 of the best time.
        for (sizes, tile) in [([768, 2304, 65_536], 1), ([768, 3072, 65_536], 1), ([3072, 768, 65_536], 1)] {
            assert_eq!(
                plan(sizes),
                TilePlan { tile: TILES[tile], split: SplitK::StreamK, staging: None },
                "{sizes:?}"
            );
        }
        for sizes in [[768, 2304, 16_384], [2304, 768, 16_384], [768, 3072, 16_384], [3072, 768, 16_384]] {
            assert_eq!(
                plan(sizes),
                TilePlan { tile: TILES[0], split: SplitK::StreamK, staging: None },
                "{sizes:?}"
            );
        }
        assert_eq!(
            plan([768, 768, 16_384]),
            TilePlan { tile: TILES[0], split: SplitK::Workspace(5), staging: None }
        );
        assert!(matches!(plan([768, 768, 65_536]).split, SplitK::Workspace(_)));
        assert_eq!(plan([16_384, 3072, 768]).split, SplitK::None);
        assert_eq!(plan([16_384, 50_304, 768]).split, SplitK::None);
        assert_eq!(plan([64, 768, 768]).tile.rows(), 64);
    }
}
