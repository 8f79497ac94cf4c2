//! Batch norm on GPUs: groups own strips of columns and parts of the rows, and keep the values of a column in registers.

use super::Activation;
use crate::ops::prelude::*;
use netcl_device::Capabilities;
use netcl_kernel::Launch;

/// Items of a group.
const ITEMS: usize = 256;
/// Columns per group in the kernels that join parts.
const JOINED: usize = 4;

pub(super) static KERNEL: Kernel =
    Kernel::new("batch_norm_strips", cl_file!("batch_norm_strips.cl")).requires(runs_on);

/// Returns whether a device supports these kernels.
pub(super) fn runs_on(device: &Capabilities) -> bool {
    !device.is_cpu() && device.max_group >= ITEMS && device.local_mem >= 20 << 10
}

/// Division of a matrix (R, C).
pub(super) struct Strips<'a> {
    /// Matrix `(.., C)`, contiguous.
    x: &'a Tensor,
    rows: usize,
    columns: usize,
    /// Columns that an item reads at once, whether that is one access, and vectors of a strip.
    vector: usize,
    aligned: bool,
    across: usize,
    parts: usize,
    each: usize,
}

impl<'a> Strips<'a> {
    /// Divides x. `others` have the layout of x, or are (C).
    pub(super) fn of(x: &'a Tensor, others: &[&Tensor]) -> Self {
        let (rows, columns) = x.shape().rows_cols();
        let widest = 16 / x.dtype().size();
        let vector = [widest, widest / 2, 1].into_iter().find(|v| columns.is_multiple_of(*v)).unwrap_or(1);
        let aligned =
            vector > 1 && [&[x], others].concat().iter().all(|t| t.layout().offset.is_multiple_of(widest));
        let vectors = columns / vector;
        let across = vectors.next_power_of_two().min(32);
        let strips = vectors.div_ceil(across).max(1);
        let down = ITEMS / across;
        let units = x.device().capabilities().compute_units.max(1) as usize;
        let parts = (RESIDENT / ITEMS * units / strips).clamp(1, rows.div_ceil(8 * down).max(1));
        let each = rows.div_ceil(parts).max(1);
        Self { x, rows, columns, vector, aligned, across, parts: rows.div_ceil(each).max(1), each }
    }

    /// Starts one of the kernels over groups of `across` vectors of `vector` columns.
    fn launch(&self, entry: &'static str, vector: usize, across: usize, act: Activation) -> Launch<'static> {
        let launch = KERNEL.launch(entry).define("DTYPE", self.x.dtype().code()).define("WG", ITEMS);
        let launch = launch.define("VW", vector).define("TX", across).define("ACT", act as i64);
        launch.local([ITEMS, 1, 1])
    }
    /// Starts a kernel that reads all rows, with one group per strip and part.
    fn start(&self, entry: &'static str, activation: Activation) -> Launch<'static> {
        let launch = self.launch(entry, self.vector, self.across, activation);
        let launch = if self.aligned { launch.define("ALIGNED_VECTORS", 1) } else { launch };
        let strips = (self.columns / self.vector).div_ceil(self.across);
        launch.groups3([strips, self.parts, 1])
    }
    /// Starts a kernel that joins parts, with [`JOINED`] columns per group: many items per column read its parts at once.
    fn join(&self, entry: &'static str) -> Launch<'static> {
        self.launch(entry, 1, JOINED, Activation::None).groups(self.columns.div_ceil(JOINED))
    }
    fn columns(&self) -> i32 {
        int(self.columns)
    }
    fn row(&self) -> Result<Tensor> {
        self.x.empty_f32([self.columns])
    }
    fn part(&self) -> Result<Tensor> {
        self.x.empty_f32([self.parts, self.columns])
    }
    fn sized<'b>(&self, launch: Launch<'b>) -> Launch<'b> {
        launch.scalar(self.rows).scalar(self.columns()).scalar(self.each)
    }

    /// Computes for each part the mean and the squared distances from it.
    fn part_statistics(&self) -> Result<[Tensor; 2]> {
        let (means, squares) = (self.part()?, self.part()?);
        let launch = self.start("strip_stats", Activation::None);
        self.sized(launch.read(self.x).write(&means).write(&squares)).run()?;
        Ok([means, squares])
    }

    /// Computes mean and variance, (2, C).
    pub(super) fn moments(&self) -> Result<Tensor> {
        let [means, squares] = self.part_statistics()?;
        let found = self.x.empty_f32([2, self.columns])?;
        let launch = self.join("strip_moments").read(&means).read(&squares).write(&found);
        self.sized(launch).scalar(int(self.parts)).run()?;
        Ok(found)
    }

    /// Computes mean, variance, 1 / sqrt(variance + eps) and that times gamma.
    pub(super) fn statistics(&self, gamma: &Tensor, eps: f32) -> Result<[Tensor; 4]> {
        let [means, squares] = self.part_statistics()?;
        let found = [self.row()?, self.row()?, self.row()?, self.row()?];
        let launch = self.join("strip_stats_join").read(&means).read(&squares);
        let launch = found.iter().fold(launch.read(gamma), Launch::write);
        self.sized(launch).scalar(int(self.parts)).scalar(eps).run()?;
        Ok(found)
    }

    /// Computes the normalized rows.
    pub(super) fn apply(&self, [mean, scale, beta]: [&Tensor; 3], activation: Activation) -> Result<Tensor> {
        let y = Tensor::empty(self.x.device(), self.x.shape(), self.x.dtype())?;
        let launch = self.start("strip_apply", activation).read(self.x).read(mean);
        self.sized(launch.read(scale).read(beta).write(&y)).run()?;
        Ok(y)
    }

    /// Computes the gradients of x, gamma and beta. `columns` are mean, rstd, scale and beta. `extra` is added to the gradient of x: one part times
    /// the distance from the mean, one unchanged.
    pub(super) fn gradients(
        &self,
        dy: &Tensor,
        columns: [&Tensor; 4],
        activation: Activation,
        extra: Option<[&Tensor; 2]>,
    ) -> Result<[Tensor; 3]> {
        let [mean, rstd, scale, beta] = columns;
        let (sums, products) = (self.part()?, self.part()?);
        let launch = self.start("strip_grad_sums", activation).read(self.x).read(dy);
        let launch = columns.into_iter().fold(launch, Launch::read);
        self.sized(launch.write(&sums).write(&products)).run()?;
        let like = || Tensor::empty(self.x.device(), [self.columns], self.x.dtype());
        let dgamma = like()?;
        let dbeta = like()?;
        let of_dy = self.row()?;
        let slope = self.row()?;
        let [steeper, more] = extra.unwrap_or([scale, scale]);
        let launch = self.join("strip_grad_join").define("EXTRA", extra.is_some());
        let launch = launch.read(&sums).read(&products).read(rstd).read(scale).read(steeper);
        let launch = launch.write(&dgamma).write(&dbeta).write(&of_dy).write(&slope).scalar(self.columns());
        launch.scalar(int(self.parts)).scalar(1.0 / self.rows as f32).run()?;
        let dx = Tensor::empty(self.x.device(), self.x.shape(), self.x.dtype())?;
        let launch = self.start("strip_dx", activation).define("EXTRA", extra.is_some());
        let launch = launch.read(self.x).read(dy).read(mean).read(scale).read(beta).read(&of_dy).read(&slope);
        self.sized(launch.read(more).write(&dx)).run()?;
        Ok([dx, dgamma, dbeta])
    }
}

fn int(v: usize) -> i32 {
    i32::try_from(v).unwrap_or(i32::MAX)
}
