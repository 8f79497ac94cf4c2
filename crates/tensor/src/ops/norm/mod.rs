//! Shared parts of layer norm and root-mean-square norm: the launches of their kernels, and the division of rows on a device.

use super::prelude::*;
use netcl_kernel::{Launch, Variants};

/// Kernel that keeps rows in registers, for GPUs. It is limited to 168 of NVIDIA's registers, so that 384 items fit on a compute unit. The values
/// are from docs/log/norms-and-elementwise.md, "Norms ask ahead": layer norm's two sums per column leave too few registers for larger groups.
pub static ROWS: Kernel = rows("norm_rows").tune(&[
    ("VECTORS", &[3, 1, 2, 4]),
    ("GROUP", &[128, 256, 384]),
    ("RESIDENT", &[768, 384, 512]),
    ("ROWS_AHEAD", &[2, 0, 1, 3]),
]);
/// The same kernel for root-mean-square norm, with one sum per column.
pub static RMS_ROWS: Kernel = rows("rms_norm_rows").tune(&[
    ("VECTORS", &[3, 1, 2, 4]),
    ("GROUP", &[384, 128, 256]),
    ("RESIDENT", &[384, 512, 768]),
    ("ROWS_AHEAD", &[1, 0, 2, 3]),
]);
const fn rows(name: &'static str) -> Kernel {
    Kernel::new(name, cl_file!("norm_rows.cl"))
        .include(&[cl_file!("../include/vector16.cl")])
        // PoCL 3.1 sometimes adds columns of other rows: docs/log/drivers.md. CPUs have a separate kernel.
        .requires(|device| device.max_group >= ADDERS && !device.is_cpu())
        .options(|device| if device.sm().is_some() { "-cl-nv-maxrregcount=168" } else { "" })
}
/// Forward pass of the same kernel. It needs fewer registers, so five groups fit on a compute unit.
static ROWS_FWD: Kernel = Kernel::new("norm_rows_fwd", cl_file!("norm_rows.cl"))
    .include(&[cl_file!("../include/vector16.cl")])
    .options(|device| if device.sm().is_some() { "-cl-nv-maxrregcount=96" } else { "" })
    .tune(&[("RESIDENT", &[640, 1024, 2048, 8192])]);

/// Maximum items per row in [`ROWS`].
const MAX_ITEMS: usize = 512;

/// Items of a group in the forward.
const FORWARD_GROUP: usize = 128;

/// Items of a group that adds parts; `ADDERS` in the kernel.
const ADDERS: usize = 256;

/// x `(R, N)` and its factors, contiguous.
pub struct NormRows<'a> {
    pub x: &'a Tensor,
    pub gamma: &'a Tensor,
    /// Whether it is a layer norm; root-mean-square norm subtracts no mean.
    pub center: bool,
}

/// Results of a backward: dx, dgamma, dbeta.
pub type NormGradients = (Tensor, Tensor, Option<Tensor>);

impl NormRows<'_> {
    /// Returns the kernel that keeps rows in registers.
    fn rows(&self) -> &'static Kernel {
        if self.center { &ROWS } else { &RMS_ROWS }
    }
    /// Chooses the variant of `job` for these rows and, if it is [`ROWS`], the division of rows over groups of `group` items or the tuned number.
    fn choose(
        &self,
        job: &'static Variants,
        group: Option<usize>,
    ) -> Result<(&'static Kernel, Option<Share>)> {
        let rows = self.rows();
        let share = Share::of(rows, self.x, group);
        let kernel = job.choose_where(self.x.device(), 0, |k| k.name != rows.name || share.is_some())?;
        Ok((kernel, share.filter(|_| kernel.name == rows.name)))
    }
    fn start(&self, kernel: &'static Kernel, share: Option<&Share>, entry: &'static str) -> Launch<'static> {
        let launch = kernel.launch(entry).define("DTYPE", self.x.dtype().code());
        let launch = launch.define("CENTER", self.center);
        match share {
            Some(share) => share.define(launch, self.x.device()),
            None => launch,
        }
    }
    /// Computes y like x, mean (R) for layer norm, and rstd (R).
    pub fn forward(
        &self,
        job: &'static Variants,
        beta: Option<&Tensor>,
        eps: f32,
    ) -> Result<(Tensor, Option<Tensor>, Tensor)> {
        let (rows, n) = self.x.shape().rows_cols();
        let (y, rstd) = (self.x.empty_like()?, self.x.empty_f32([rows])?);
        let mean = if self.center { Some(self.x.empty_f32([rows])?) } else { None };
        if y.count() > 0 {
            let (kernel, share) = self.choose(job, Some(FORWARD_GROUP))?;
            let groups = match &share {
                Some(share) => share.groups(&ROWS_FWD, self.x.device(), rows),
                None => row_groups(self.x.device(), rows, n),
            };
            let kernel = if share.is_some() { &ROWS_FWD } else { kernel };
            let launch = self.start(kernel, share.as_ref(), "norm_fwd").groups(groups);
            let launch = beta.into_iter().fold(launch.read(self.x).read(self.gamma), Launch::read);
            let launch = mean.iter().fold(launch.write(&y), Launch::write);
            launch.write(&rstd).scalar(rows).scalar(n).scalar(eps).run()?;
        }
        Ok((y, mean, rstd))
    }
    /// Computes the gradients from the values that the forward saved. `residual_grad` (R, N), the gradient that reaches x without the norm, is
    /// added to dx in the same pass.
    pub fn backward(
        &self,
        job: &'static Variants,
        (mean, rstd): (Option<&Tensor>, &Tensor),
        dy: &Tensor,
        residual_grad: Option<&Tensor>,
    ) -> Result<NormGradients> {
        let (rows, n) = self.x.shape().rows_cols();
        let (kernel, share) = self.choose(job, None)?;
        let parts = match &share {
            Some(share) => share.groups(self.rows(), self.x.device(), rows),
            None => blocks(self.x.device(), rows, n),
        };
        let (dx, dgamma) = (self.x.empty_like()?, self.gamma.empty_like()?);
        let part_gamma = self.x.empty_f32([parts, n])?;
        let part_beta = if self.center { Some(self.x.empty_f32([parts, n])?) } else { None };
        let dbeta = if self.center { Some(self.gamma.empty_like()?) } else { None };
        let launch = self
            .start(kernel, share.as_ref(), "norm_bwd")
            .define("RESIDUAL_GRAD", residual_grad.is_some())
            .groups(parts);
        let launch =
            residual_grad.into_iter().fold(launch.read(self.x).read(self.gamma).read(dy), Launch::read);
        let launch = mean.into_iter().fold(launch, Launch::read);
        let launch = launch.read(rstd).write(&dx).write(&part_gamma);
        part_beta.iter().fold(launch, Launch::write).scalar(rows).scalar(n).run()?;
        let launch = self.start(kernel, share.as_ref(), "norm_bwd_params");
        let launch = part_beta.iter().fold(launch.read(&part_gamma), Launch::read).write(&dgamma);
        let launch = dbeta.iter().fold(launch, Launch::write);
        let launch = match share {
            Some(_) => launch.local([2, ADDERS / 2, 1]).groups((n / 4).div_ceil(2)),
            None => columns(kernel, self.x.device(), launch, n),
        };
        launch.scalar(parts).scalar(n).run()?;
        Ok((dx, dgamma, dbeta))
    }
}

/// Division of rows in [`ROWS`].
struct Share {
    n: usize,
    /// Elements of a 16-byte vector.
    lanes: usize,
    /// Items per row: a power of two up to 32, or a multiple of 32.
    items: usize,
    /// Rows per group.
    rows: usize,
}

impl Share {
    /// Returns the division, or `None` if rows are not whole vectors or are too long for the registers of a group.
    fn of(kernel: &'static Kernel, x: &Tensor, group: Option<usize>) -> Option<Self> {
        let (device, (_, n)) = (x.device(), x.shape().rows_cols());
        let value = |name| Tuning::value(device, kernel, 0, name);
        let lanes = 16 / x.dtype().size();
        // Tuned values are read only if they are used; the tuner would otherwise try them.
        if !kernel.runs_on(device.capabilities()) || n == 0 || !n.is_multiple_of(lanes) {
            return None;
        }
        let vectors = n / lanes;
        let items = if vectors <= 32 {
            vectors.next_power_of_two()
        } else {
            vectors.div_ceil(value("VECTORS")).next_multiple_of(32)
        };
        let most = device.capabilities().max_group;
        let fits = items <= MAX_ITEMS.min(most);
        fits.then(|| Self {
            n,
            lanes,
            items,
            rows: (group.unwrap_or_else(|| value("GROUP")).min(most) / items).max(1),
        })
    }
    fn define<'l>(&self, launch: Launch<'l>, device: &Device) -> Launch<'l> {
        launch
            .define("N", self.n)
            .define("VW", self.lanes)
            .define("ITEMS", self.items)
            .define("ROWS", self.rows)
            .define("WG", self.items * self.rows)
            .define("NVIDIA", device.capabilities().sm() >= Some(80))
    }
    /// Returns the number of groups that a device runs at once; each processes several rows.
    fn groups(&self, kernel: &'static Kernel, device: &Device, rows: usize) -> usize {
        let resident = Tuning::value(device, kernel, 0, "RESIDENT") / (self.items * self.rows);
        let units = device.capabilities().compute_units.max(1) as usize;
        rows.div_ceil(self.rows).clamp(1, units * resident.max(1))
    }
}

/// Returns the blocks of rows in the backward. Each sums its rows' part of the parameters' gradients separately.
fn blocks(device: &Device, rows: usize, n: usize) -> usize {
    if device.capabilities().is_cpu() {
        return sum_parts(device, rows * n).min(rows.max(1));
    }
    rows.div_ceil(4).clamp(1, 8 * device.capabilities().compute_units as usize)
}

/// Items of the group that adds the blocks' parts: 8 adjacent vectors, so that a narrow row still gives many groups.
const COLUMNS_GROUP: usize = 256;

/// Sets the groups of `norm_bwd_params` for `n` columns.
fn columns(kernel: &'static Kernel, device: &Device, launch: Launch<'static>, n: usize) -> Launch<'static> {
    let vectors = n.div_ceil(Tuning::value(device, kernel, 0, "VW"));
    if device.capabilities().is_cpu() {
        return launch.groups(vectors);
    }
    let group = COLUMNS_GROUP.min(largest_group(device));
    let across = group.min(8);
    let launch = launch.define("WG", group).local([across, group / across, 1]);
    launch.groups(vectors.div_ceil(across))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::residual_norm::{residual_layer_norm, residual_rms_norm};
    use crate::ops::{layer_norm::layer_norm, rms_norm::rms_norm};
    use crate::random::Generator;
    use crate::suite::test_device;

    /// Computes y and the gradients of all inputs; with an odd number of rows, those of a norm with a residual gradient.
    fn results(center: bool, [x, gamma, beta]: &[Tensor; 3], dy: &Tensor) -> Vec<Vec<f32>> {
        let inputs = [x, gamma, beta];
        inputs.iter().for_each(|input| input.set_grad(None));
        let y = if x.dims()[0] % 2 == 1 {
            let both = match center {
                true => residual_layer_norm(x, gamma, beta, 1e-5),
                false => residual_rms_norm(x, gamma, 1e-5),
            };
            let (x_again, y) = both.unwrap();
            crate::tape::backward_all(&[(&x_again, dy), (&y, dy)]).unwrap();
            y
        } else {
            let y = if center { layer_norm(x, gamma, beta, 1e-5) } else { rms_norm(x, gamma, 1e-5) }.unwrap();
            y.backward_with(dy).unwrap();
            y
        };
        let grads = inputs.iter().filter_map(|input| input.grad());
        [y.to_vec().unwrap()].into_iter().chain(grads.map(|g| g.to_vec().unwrap())).collect()
    }

    /// Compares the other variants with the one that the device prefers, which the suite tests. Covers one item per row, several rows per hardware
    /// group, several hardware groups per row, sums that are folded first, row ends, and rows shorter than a vector.
    #[test]
    fn variants_agree() {
        let device = test_device().unwrap();
        let tuning = Tuning::of(&device);
        let mut generator = Generator::new(5);
        // Kernels with barriers take a CPU driver many seconds to compile.
        let mut cases = vec![
            (300, 40, DType::F16, false),
            (37, 768, DType::Bf16, true),
            (3, 772, DType::F32, true),
            (2, 37, DType::F32, false),
        ];
        let widths: &[usize] = match device.settings().exact_memory {
            _ if device.capabilities().is_cpu() => &[],
            // A sanitizer would take hours for the wide ones.
            true => &[1, 75],
            false => &[1, 8, 37, 75, 768, 1000, 1024, 1600, 4096, 5120],
        };
        let rows = if widths.len() > 2 { 3000 } else { 70 };
        for &n in widths {
            for dtype in DType::FLOATS {
                cases.extend([(1, n, dtype, true), (rows, n, dtype, true), (rows / 10, n, dtype, false)]);
            }
        }
        for (rows, n, dtype, center) in cases {
            let mut draw =
                |dims: &[usize]| Tensor::normal(&device, dims, 0.5, 1.0, dtype, &mut generator).unwrap();
            let inputs = [draw(&[rows, n]), draw(&[n]), draw(&[n])].map(|x| x.parameter("x"));
            let dy = draw(&[rows, n]);
            let job = if center { "layer_norm_variant" } else { "rms_norm_variant" };
            let expected = results(center, &inputs, &dy);
            for variant in tuning.candidates(job) {
                tuning.try_out(job, 0, Some(variant.clone()));
                let got = results(center, &inputs, &dy);
                for (part, (first, second)) in got.iter().zip(results(center, &inputs, &dy)).enumerate() {
                    let pairs = first.iter().zip(&second).enumerate();
                    let differ: Vec<_> = pairs.filter(|(_, (a, b))| a.to_bits() != b.to_bits()).collect();
                    assert!(
                        differ.is_empty(),
                        "{variant:?} {rows} x {n} {dtype}: result {part} changes: {differ:?}"
                    );
                }
                tuning.try_out(job, 0, None);
                assert_eq!(got.len(), expected.len());
                for (part, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    let scale = expected.iter().fold(1.0f32, |m, v| m.max(v.abs()));
                    let tolerance = 8.0 * dtype.epsilon() * f64::from(scale);
                    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
                        assert!(
                            f64::from((g - e).abs()) <= tolerance,
                            "{variant:?} {rows} x {n} {dtype}: result {part}, element {i}: {g}, expected {e}"
                        );
                    }
                }
            }
        }
    }
}
