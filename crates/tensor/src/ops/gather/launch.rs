//! Launches of gather and scatter, off the tape.

use super::super::copy::storage;
use super::super::map::CPU_CHUNK;
use super::super::prelude::*;
use super::super::{MultiOp, sort};
use netcl_kernel::Launch;

static KERNEL: Kernel =
    Kernel::new("gather", cl_file!("gather.cl")).tune(&[("WG", &[128])]).tune_cpu(&[("WG", &[1])]);

/// If the lines are long and fewer than this, a GPU sorts the indices and processes runs of equal indices.
const FEW_LINES: usize = 2048;
const LONG_LINE: usize = 128;

/// A tensor of size `n` and indices of size `m` along one axis, seen as (O, N, I) and (O, M, I).
#[derive(Clone, Copy)]
pub(super) struct GatherAxis {
    outer: usize,
    n: usize,
    m: usize,
    inner: usize,
}

impl GatherAxis {
    pub(super) fn of(x: &Tensor, ids: &Tensor, axis: usize) -> Self {
        let (before, after) = (&x.dims()[..axis], &x.dims()[axis + 1..]);
        Self {
            outer: before.iter().product(),
            n: x.dims()[axis],
            m: ids.dims()[axis],
            inner: after.iter().product(),
        }
    }

    /// Starts a launch whose items divide `count` elements with `work` each.
    fn start(self, entry: &'static str, of: &Tensor, count: usize, work: usize) -> Launch<'static> {
        let device = of.device();
        let each = match device.capabilities().is_cpu() {
            true => (CPU_CHUNK / work.max(1)).max(1),
            false => Tuning::value(device, &KERNEL, 0, "WG"),
        };
        KERNEL
            .launch(entry)
            .define("DTYPE", storage(of.dtype()).code())
            .groups(count.div_ceil(each).clamp(1, 1 << 16))
    }
    fn run(self, launch: Launch<'static>) -> Result<()> {
        launch.scalar(self.outer).scalar(self.n).scalar(self.m).scalar(self.inner).run()
    }

    /// Gathers; an invalid index gives NaN if `outside`, otherwise 0.
    pub(super) fn gather(self, x: &Tensor, ids: &Tensor, y: &Tensor, outside: bool) -> Result<()> {
        if y.count() == 0 {
            return Ok(());
        }
        let launch = self.start("gather", x, y.count(), 1).read(x).read(ids).write(y);
        self.run(launch.define("ZERO", !outside))
    }

    /// Returns the sorted indices of every line and their original positions, both (O, I, M). Returns `None` if lines are many or short.
    fn runs(self, ids: &Tensor) -> Result<Option<[Tensor; 2]>> {
        let lines = self.outer * self.inner;
        if ids.device().capabilities().is_cpu() || lines >= FEW_LINES || self.m <= LONG_LINE {
            return Ok(None);
        }
        let lines = ids.reshape([self.outer, self.m, self.inner])?.transpose(1, 2)?.contiguous()?;
        let ([keys, order], _) = MultiOp::forward(&sort::Sort { descending: false }, [&lines])?;
        Ok(Some([keys, order]))
    }

    /// Adds `source` to `sums`, f32 (O, N, I).
    pub(super) fn add(self, ids: &Tensor, source: &Tensor, sums: &Tensor) -> Result<()> {
        if source.count() == 0 || sums.count() == 0 {
            return Ok(());
        }
        let launch = match self.runs(ids)? {
            Some([keys, order]) => {
                let launch = self.start("add_runs", source, source.count(), 1).read(&keys).read(&order);
                launch.read(source).write(sums)
            }
            None => {
                let lines = self.outer * self.inner;
                self.start("add_lines", source, lines, self.m).read(ids).read(source).write(sums)
            }
        };
        self.run(launch)
    }

    /// Returns for each element of (O, N, I) the last position along the axis with its index, counted from 1, or 0 without one.
    pub(super) fn winners(self, x: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let won = Tensor::zeros(x.device(), x.shape(), DType::U32)?;
        if ids.count() == 0 || won.count() == 0 {
            return Ok(won);
        }
        let launch = match self.runs(ids)? {
            Some([keys, order]) => {
                self.start("winner_runs", x, ids.count(), 1).read(&keys).read(&order).write(&won)
            }
            None => self.start("winner_lines", x, self.outer * self.inner, self.m).read(ids).write(&won),
        };
        self.run(launch)?;
        Ok(won)
    }

    pub(super) fn pick(self, x: &Tensor, source: &Tensor, won: &Tensor, y: &Tensor) -> Result<()> {
        if y.count() == 0 {
            return Ok(());
        }
        let launch = self.start("pick", x, y.count(), 1).read(x).read(source).read(won).write(y);
        self.run(launch)
    }

    pub(super) fn won_grad(self, dy: &Tensor, ids: &Tensor, won: &Tensor, dsource: &Tensor) -> Result<()> {
        if dsource.count() == 0 {
            return Ok(());
        }
        let launch =
            self.start("won_grad", dy, dsource.count(), 1).read(dy).read(ids).read(won).write(dsource);
        self.run(launch)
    }
}
