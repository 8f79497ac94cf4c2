//! Split-K for tile kernels: the tiles whose sum over k is divided between several groups, and how the partial sums are combined.

use crate::ops::prelude::*;
use netcl_kernel::tune::model::{Constant, DEVICE, Model};

/// Maximum number of tiles whose last group can add their partial sums.
pub(super) const TICKETS: usize = 4096;

/// Division of a product in a tile kernel. Each of the `full` tiles has one group. Each of the remaining `tail` tiles has `splits` groups with
/// `k_part` steps of the sum each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SplitKSchedule {
    pub full: usize,
    pub tail: usize,
    pub splits: usize,
    pub k_part: usize,
    /// Whether the last group of each tile adds its partial sums, instead of a second launch.
    pub last: bool,
}

/// The plan of a tile algorithm.
#[derive(Debug)]
pub(super) struct Tiles(pub SplitKSchedule);

/// Speed at which a compute unit sums a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct TileThroughput {
    /// Elements of the tile.
    pub area: usize,
    /// Microseconds per step of the sum while one or two groups share the compute unit.
    pub step: f64,
    /// Slowdown of a step if the group is alone on its unit and cannot hide latency.
    pub alone: f64,
    /// Cost of starting a group and storing its tile, in steps.
    pub start: f64,
}

/// Cost of combining partial sums.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joining {
    /// Microseconds of a second launch.
    pub launch: f64,
    /// Memory bandwidth in bytes per microsecond.
    pub memory: f64,
    /// Microseconds until the last group of a tile knows that it is the last.
    pub ticket: f64,
    /// Bytes that one group adds per microsecond.
    pub group: f64,
}

pub(super) static MODEL: Model = Model {
    name: "split_k",
    constants: &[
        Constant::new("join_launch_us", "a second launch that adds partial sums", 6.0).cpu(15.0),
        Constant::new("ticket_us", "time until the last group of a tile knows that it is the last", 2.0),
        Constant::new("group_bytes_per_us", "bytes of partial sums that one group adds", 5e4).cpu(5e3),
    ],
};

impl Joining {
    pub fn on(device: &Device) -> Self {
        let [launch, ticket, group] = MODEL.on(device);
        let [memory, _] = DEVICE.on(device);
        Self { launch, memory, ticket, group }
    }
}

/// Costs by which schedules are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    pub tile: TileThroughput,
    pub joining: Joining,
    pub units: usize,
    /// Whether a tile's last group can add its partial sums.
    pub last: bool,
}

impl SplitKSchedule {
    /// Gives each tile one group.
    pub fn whole(tiles: usize, k_part: usize) -> Self {
        Self { full: tiles, tail: 0, splits: 1, k_part, last: false }
    }

    /// Returns the cheapest schedule for `tiles` tiles and sums of `k`, in slices of `bk`.
    pub fn of(tiles: usize, k: usize, bk: usize, costs: &Costs) -> Self {
        let whole = Self::whole(tiles, k.next_multiple_of(bk).max(bk));
        let units = costs.units;
        let rounds = tiles / units * units;
        let candidates = [rounds, rounds.saturating_sub(units), 0].into_iter().flat_map(|full| {
            (2..=32).map(move |splits| {
                let k_part = k.div_ceil(splits).next_multiple_of(bk).max(bk);
                Self { full, tail: tiles - full, splits: k.div_ceil(k_part), k_part, last: false }
            })
        });
        let useful = candidates.filter(|c| c.tail > 0 && c.splits > 1);
        let useful = useful.map(|c| if costs.last { c.joined(costs.tile.area, &costs.joining) } else { c });
        let cost = |c: &Self| c.cost(k, costs);
        useful.fold(whole, |best, c| if cost(&c) < cost(&best) { c } else { best })
    }

    /// Estimates the microseconds for combining the partial sums of tiles of `area` elements.
    pub fn joining(&self, area: usize, joining: &Joining) -> f64 {
        let bytes = (area * size_of::<f32>()) as f64;
        match self.last {
            true => joining.ticket + bytes * self.splits as f64 / joining.group,
            false => joining.launch + 2.0 * bytes * (self.tail * self.splits) as f64 / joining.memory,
        }
    }

    /// Returns the same schedule with the cheaper way to add partial sums.
    pub fn joined(self, area: usize, joining: &Joining) -> Self {
        let [launch, last] = [false, true].map(|last| Self { last, ..self });
        let cheaper = last.joining(area, joining) < launch.joining(area, joining);
        if self.tail <= TICKETS && cheaper { last } else { launch }
    }

    /// Returns the number of work-groups of the product.
    pub fn groups(&self) -> usize {
        self.full + self.tail * self.splits
    }

    /// Estimates the time in microseconds.
    pub fn cost(&self, k: usize, costs: &Costs) -> f64 {
        let Costs { tile: TileThroughput { area, step, alone, start }, units, .. } = *costs;
        let (whole, part) = (k as f64 + start, self.k_part as f64 + start);
        // The busiest unit's groups: long groups in pairs, the odd long group paired with short ones, then short groups in pairs.
        let short = (self.tail * self.splits).div_ceil(units);
        let long = self.full.div_ceil(units);
        let mut time = (long / 2 * 2) as f64 * whole;
        let shorts = short as f64 * part;
        if long % 2 == 1 {
            let together = shorts.min(whole);
            time += 2.0 * together + (whole - together) * alone + (shorts - together);
        } else {
            time += (short / 2 * 2) as f64 * part + (short % 2) as f64 * part * alone;
        }
        time * step + if self.tail > 0 { self.joining(area, &costs.joining) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        tile: TileThroughput { area: 128 * 128, step: 0.09, alone: 1.5, start: 16.0 },
        joining: Joining { launch: 4.0, memory: 2.5e6, ticket: 1.5, group: 1e5 },
        units: 132,
        last: false,
    };

    #[test]
    fn shares_cover_every_tile_and_step_and_fill_the_last_round() {
        for (tiles, k) in
            [(1, 64), (36, 4096), (144, 4096), (192, 768), (576, 768), (1024, 4096), (64, 1000), (5, 0)]
        {
            let s = SplitKSchedule::of(tiles, k, 16, &Costs { last: k % 3 == 0, ..COSTS });
            assert_eq!(s.full + s.tail, tiles);
            assert!(s.splits * s.k_part >= k && s.k_part.is_multiple_of(16), "{s:?}");
            assert!((s.splits - 1) * s.k_part < k.max(1), "a part without steps: {s:?}");
            assert_eq!(s.tail == 0, s.splits == 1, "{s:?}");
            assert!(!s.last || k % 3 == 0 && s.tail > 0, "{s:?}");
        }
        // Less than a round of long sums is split. A tiny product and whole rounds are not.
        assert!(SplitKSchedule::of(36, 4096, 16, &COSTS).groups() > 132);
        let small = TileThroughput { area: 64 * 64, step: 0.031, alone: 1.0, start: 32.0 };
        assert_eq!(SplitKSchedule::of(1, 64, 16, &Costs { tile: small, last: true, ..COSTS }).tail, 0);
        assert_eq!(SplitKSchedule::of(264, 768, 16, &COSTS).tail, 0);
    }

    #[test]
    fn a_few_parts_are_added_by_the_last_group_and_many_by_a_launch() {
        let parts = |tail, splits| {
            SplitKSchedule { full: 0, tail, splits, k_part: 64, last: false }
                .joined(128 * 128, &COSTS.joining)
        };
        assert!(parts(100, 2).last && !parts(4, 32).last && !parts(TICKETS + 1, 2).last);
    }
}
