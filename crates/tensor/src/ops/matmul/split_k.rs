//! Split-K for kernels of tiles: which tiles have their sum over k shared out among several groups, and how the parts come together.

/// Tiles whose last group can add their parts up.
pub(super) const TICKETS: usize = 4096;

/// How the tiled kernel shares a product out: `full` tiles to a group each, and `splits` groups to each of the `tail`
/// that is left, of `k_part` steps of the sum each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SplitKSchedule {
    pub full: usize,
    pub tail: usize,
    pub splits: usize,
    pub k_part: usize,
}

/// How fast a multiprocessor of an H200 sums a tile.
pub(super) struct TileThroughput {
    /// Elements of the tile.
    pub area: usize,
    /// Microseconds of a step of the sum, while one group or two share the multiprocessor.
    step: f64,
    /// How much longer a step of a group takes that is alone there and cannot hide its waits.
    alone: f64,
    /// Steps that a group costs to start and to store.
    start: f64,
}

/// 128 by 128 by f32 units.
pub(super) const LARGE: TileThroughput =
    TileThroughput { area: 128 * 128, step: 0.09, alone: 1.0 / 0.65, start: 16.0 };
/// 64 by 64.
pub(super) const SMALL: TileThroughput =
    TileThroughput { area: 64 * 64, step: 0.031, alone: 1.0, start: 32.0 };

impl SplitKSchedule {
    /// The cheapest for `tiles` tiles and sums of `k`, in slices of `bk`, on `units` multiprocessors; `last`: where a tile's last
    /// group can add its parts up.
    pub fn of(
        tiles: usize,
        k: usize,
        bk: usize,
        throughput: &TileThroughput,
        units: usize,
        last: bool,
    ) -> Self {
        let whole = Self { full: tiles, tail: 0, splits: 1, k_part: k.next_multiple_of(bk).max(bk) };
        let rounds = tiles / units * units;
        let candidates = [rounds, rounds.saturating_sub(units), 0].into_iter().flat_map(|full| {
            (2..=32).map(move |splits| {
                let k_part = k.div_ceil(splits).next_multiple_of(bk).max(bk);
                Self { full, tail: tiles - full, splits: k.div_ceil(k_part), k_part }
            })
        });
        let useful = candidates.filter(|c| c.tail > 0 && c.splits > 1);
        let cost = |c: &Self| c.cost(k, throughput, units, last);
        useful.fold(whole, |best, c| if cost(&c) < cost(&best) { c } else { best })
    }

    /// Microseconds on an H200 that parts take until they are one sum: in a second launch (4 us, 2.5 TB/s), and by the last group
    /// of each tile (100 kB/us).
    pub fn joining(&self, area: usize) -> [f64; 2] {
        let bytes = (area * size_of::<f32>()) as f64;
        [4.0 + 2.0 * bytes * (self.tail * self.splits) as f64 / 2.5e6, 1.5 + bytes * self.splits as f64 / 1e5]
    }

    /// Whether the last group of each tile should do it.
    pub fn last_joins(&self, area: usize) -> bool {
        let [launch, last] = self.joining(area);
        self.tail <= TICKETS && last < launch
    }

    /// Work-groups of the product.
    pub fn groups(&self) -> usize {
        self.full + self.tail * self.splits
    }

    /// Microseconds on an H200.
    pub fn cost(
        &self,
        k: usize,
        &TileThroughput { area, step, alone, start }: &TileThroughput,
        units: usize,
        last: bool,
    ) -> f64 {
        let (whole, part) = (k as f64 + start, self.k_part as f64 + start);
        // The busiest multiprocessor's groups: long ones in pairs, the odd one beside short ones, short ones in pairs.
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
        let join = self.joining(area)[usize::from(last && self.last_joins(area))];
        time * step + if self.tail > 0 { join } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_every_tile_and_step_and_fill_the_last_round() {
        for (tiles, k) in
            [(1, 64), (36, 4096), (144, 4096), (192, 768), (576, 768), (1024, 4096), (64, 1000), (5, 0)]
        {
            let s = SplitKSchedule::of(tiles, k, 16, &LARGE, 132, k % 3 == 0);
            assert_eq!(s.full + s.tail, tiles);
            assert!(s.splits * s.k_part >= k && s.k_part.is_multiple_of(16), "{s:?}");
            assert!((s.splits - 1) * s.k_part < k.max(1), "a part without steps: {s:?}");
            assert_eq!(s.tail == 0, s.splits == 1, "{s:?}");
        }
        // Less than a round of long sums is shared; a tiny product, and whole rounds, are not.
        assert!(SplitKSchedule::of(36, 4096, 16, &LARGE, 132, false).groups() > 132);
        assert_eq!(SplitKSchedule::of(1, 64, 16, &SMALL, 132, true).tail, 0);
        assert_eq!(SplitKSchedule::of(264, 768, 16, &LARGE, 132, false).tail, 0);
    }
}
