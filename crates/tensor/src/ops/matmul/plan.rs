//! How the CPU kernel shares a product out: blocks that fit the caches, groups that fit the cores.

use super::super::prelude::*;
use super::launch::VECTOR;
use super::view::Problem;

/// The CPU kernel's register tile and the blocks it copies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    pub mr: usize,
    pub nv: usize,
    lanes: usize,
    pub kc: usize,
    pub mc: usize,
    pub nc: usize,
}

/// What one work-group of the CPU kernel does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Plan {
    pub mg: usize,
    pub ng: usize,
    pub mc: usize,
    pub nc: usize,
    pub kc: usize,
}

impl Blocks {
    /// The tuned ones, as far as they fit this device.
    pub fn of(device: &Device) -> Self {
        let capabilities = device.capabilities();
        let tuned = |name| Tuning::value(device, &VECTOR, 0, name);
        let lanes = capabilities.vector_lanes();
        // Registers: 32 of 16 lanes (AVX-512), 16 of 8 (AVX2), 16 of 4 (8 lanes are then two registers).
        let mr = if lanes == 16 { 12 } else { 6 };
        let nv = if capabilities.float_lanes < 8 { 1 } else { 2 };
        let blocks = Self { mr, nv, lanes, kc: tuned("KC"), mc: tuned("MC"), nc: tuned("NC") };
        blocks.within(capabilities.local_mem as usize / 4)
    }
    pub fn nr(&self) -> usize {
        self.nv * self.lanes
    }
    /// Smaller blocks until both copies fit in `floats` of local memory.
    fn within(mut self, floats: usize) -> Self {
        let least = self.nr();
        while (self.mc + self.nc) * self.kc > floats {
            if self.kc > 64 {
                self.kc /= 2;
            } else if self.nc > least {
                self.nc = (self.nc / 2).next_multiple_of(least).min(self.nc - least);
            } else if self.mc > self.mr {
                self.mc -= self.mr;
            } else {
                break;
            }
        }
        self
    }
    /// The cheapest way to give a product to `cores`, in estimated cycles: multiplying, copying B once for each block of
    /// rows and A once for each nc columns, C once for each kc. Among equals more groups, which even out other load.
    pub fn plan(&self, p: &Problem, copies_a: bool, cores: usize) -> Plan {
        let (mr, nr) = (self.mr, self.nr());
        let passes = p.k.div_ceil(self.kc).max(1);
        let kc = p.k.div_ceil(passes).next_multiple_of(4).clamp(4, self.kc);
        let nc_most = (self.nc * self.kc / kc / nr * nr).max(nr);
        let mc_most = (self.mc * self.kc / kc / mr * mr).max(mr) * if copies_a { 1 } else { 2 };
        let blocks_of = |size: usize, parts: usize, unit: usize| {
            size.div_ceil(parts.clamp(1, size.max(1))).next_multiple_of(unit)
        };
        let mut best: Option<(f64, usize, usize)> = None;
        for groups in [4 * cores, 2 * cores, cores] {
            let wanted = groups.div_ceil(p.batch().max(1));
            let mut by_rows = 1;
            while by_rows <= wanted {
                let mg = blocks_of(p.m, by_rows, mr).max(mr);
                let ng = blocks_of(p.n, wanted.div_ceil(by_rows), nr).max(nr);
                let made = p.m.div_ceil(mg) * p.n.div_ceil(ng) * p.batch();
                let (k, m, n) = (p.k as f64, mg as f64, ng as f64);
                let copies = k * n + if copies_a { k * m * ng.div_ceil(nc_most) as f64 } else { 0.0 };
                let cycles = m * n * k / (2 * self.lanes) as f64 + 0.6 * copies + 0.3 * m * n * passes as f64;
                let cost = made.div_ceil(cores) as f64 * (cycles + 1000.0);
                if best.is_none_or(|(least, ..)| cost < 0.98 * least) {
                    best = Some((cost, mg, ng));
                }
                by_rows *= 2;
            }
        }
        let (_, mg, ng) = best.unwrap_or((0.0, mr, nr));
        let nc = blocks_of(ng, ng.div_ceil(nc_most), nr);
        let mc = blocks_of(mg, mg.div_ceil(mc_most), mr);
        Plan { mg, ng, mc, nc, kc }
    }
}

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
    use super::super::view::Matrix;
    use super::*;

    const AVX2: Blocks = Blocks { mr: 6, nv: 2, lanes: 8, kc: 256, mc: 48, nc: 192 };

    fn whole(sizes: [(usize, usize); 4]) -> bool {
        sizes.iter().all(|(size, unit)| size.is_multiple_of(*unit))
    }

    fn problem(m: usize, n: usize, k: usize) -> Problem {
        let device = crate::suite::test_device().unwrap();
        let zeros = |shape: [usize; 2]| Tensor::empty(&device, shape, DType::F32).unwrap();
        let matrix = |t: Tensor| Matrix::of("matmul", "a", &t).unwrap();
        Problem::new(matrix(zeros([m, k])), matrix(zeros([k, n])), &[]).unwrap()
    }

    #[test]
    fn blocks_fit_in_local_memory() {
        for kib in [16, 32, 64, 256, 512] {
            let b = AVX2.within(kib << 8);
            assert!((b.mc + b.nc) * b.kc * 4 <= kib << 10, "{b:?} in {kib} KiB");
            assert!(whole([(b.nc, b.nr()), (b.mc, b.mr), (b.kc, 4), (0, 1)]), "{b:?}");
        }
        assert_eq!(AVX2.within(1 << 20).kc, 256);
    }

    #[test]
    fn plans_give_every_core_work_and_keep_to_the_blocks() {
        for (m, n, k) in [(1, 1, 0), (768, 384, 128), (128, 65, 768), (5, 4000, 30), (2304, 2304, 2304)] {
            for cores in [1, 2, 12, 64] {
                let plan = AVX2.plan(&problem(m, n, k), true, cores);
                assert!(plan.kc <= 256 && plan.kc.is_multiple_of(4));
                assert!(plan.nc * plan.kc <= AVX2.nc * AVX2.kc && plan.mc * plan.kc <= AVX2.mc * AVX2.kc);
                assert!(whole([(plan.mg, 6), (plan.ng, 16), (plan.mc, 6), (plan.nc, 16)]));
                let groups = m.div_ceil(plan.mg) * n.div_ceil(plan.ng);
                let room = m.div_ceil(6) * n.div_ceil(16);
                assert!(groups >= cores.min(room).min(2), "{m} {n} {k} on {cores}: {plan:?}");
            }
        }
    }

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
