//! Division of a product in the CPU kernel: blocks that fit the caches, and work-groups that fit the cores.

use super::super::prelude::*;
use super::view::MatmulProblem;

/// The CPU kernel's register tile and the blocks it copies.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuBlocks {
    pub mr: usize,
    pub nv: usize,
    lanes: usize,
    pub kc: usize,
    pub mc: usize,
    pub nc: usize,
}

/// Sizes of the part that one work-group of the CPU kernel computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MatmulPlan {
    pub mg: usize,
    pub ng: usize,
    pub mc: usize,
    pub nc: usize,
    pub kc: usize,
}

/// Cycles of a core in addition to the multiplications: per element copied into a panel, per element of C whenever sums are added to it, and per
/// group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cycles {
    pub copy: f64,
    pub store: f64,
    pub group: f64,
}

impl CpuBlocks {
    /// Returns the values tuned for `kernel`, reduced to the limits of this device.
    pub fn of(device: &Device, kernel: &'static Kernel) -> Self {
        let capabilities = device.capabilities();
        let tuned = |name| Tuning::value(device, kernel, 0, name);
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
    /// Shrinks the blocks until both copies fit in `floats` floats of local memory.
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
    /// Returns the cheapest division of a product between `cores`, and its estimated cycles. These include multiplying, copying B once per block of
    /// rows and A once per nc columns, and updating C once per kc. Ties are decided for more groups, which balance other load.
    pub fn plan(
        &self,
        p: &MatmulProblem,
        copies_a: bool,
        cores: usize,
        Cycles { copy, store, group }: Cycles,
    ) -> (f64, MatmulPlan) {
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
                let cycles =
                    m * n * k / (2 * self.lanes) as f64 + copy * copies + store * m * n * passes as f64;
                let cost = made.div_ceil(cores) as f64 * (cycles + group);
                if best.is_none_or(|(least, ..)| cost < 0.98 * least) {
                    best = Some((cost, mg, ng));
                }
                by_rows *= 2;
            }
        }
        let (cost, mg, ng) = best.unwrap_or((0.0, mr, nr));
        let nc = blocks_of(ng, ng.div_ceil(nc_most), nr);
        let mc = blocks_of(mg, mg.div_ceil(mc_most), mr);
        (cost, MatmulPlan { mg, ng, mc, nc, kc })
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::Matrix;
    use super::*;

    const AVX2: CpuBlocks = CpuBlocks { mr: 6, nv: 2, lanes: 8, kc: 256, mc: 48, nc: 192 };

    fn whole(sizes: [(usize, usize); 4]) -> bool {
        sizes.iter().all(|(size, unit)| size.is_multiple_of(*unit))
    }

    fn problem(m: usize, n: usize, k: usize) -> MatmulProblem {
        let device = crate::suite::test_device().unwrap();
        let zeros = |shape: [usize; 2]| Tensor::empty(&device, shape, DType::F32).unwrap();
        let matrix = |t: Tensor| Matrix::of("matmul", "a", &t).unwrap();
        MatmulProblem::new(matrix(zeros([m, k])), matrix(zeros([k, n])), &[]).unwrap()
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
                let plan = AVX2
                    .plan(&problem(m, n, k), true, cores, Cycles { copy: 0.6, store: 0.3, group: 1000.0 })
                    .1;
                assert!(plan.kc <= 256 && plan.kc.is_multiple_of(4));
                assert!(plan.nc * plan.kc <= AVX2.nc * AVX2.kc && plan.mc * plan.kc <= AVX2.mc * AVX2.kc);
                assert!(whole([(plan.mg, 6), (plan.ng, 16), (plan.mc, 6), (plan.nc, 16)]));
                let groups = m.div_ceil(plan.mg) * n.div_ceil(plan.ng);
                let room = m.div_ceil(6) * n.div_ceil(16);
                assert!(groups >= cores.min(room).min(2), "{m} {n} {k} on {cores}: {plan:?}");
            }
        }
    }
}
