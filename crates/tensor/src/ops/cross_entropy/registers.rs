//! Loss and gradient from one read of the logits, for GPUs: a group holds its row between the two computations.

use super::{CrossEntropy, Reduction};
use crate::ops::prelude::*;

static KERNEL: Kernel = Kernel::new("cross_entropy_registers", cl_file!("cross_entropy_registers.cl"))
    .tune(&[("GROUP", &[512, 1024])])
    // Two groups of 512 items, or one of 1024, fill a multiprocessor with 64 registers per item.
    .options(|device| if device.sm().is_some() { "-cl-nv-maxrregcount=64" } else { "" });

/// Bytes of the vectors in which rows are held.
const VECTOR: usize = 16;
/// Maximum number of vectors that an item holds in registers: 32 of its 64 registers.
const IN_REGISTERS: usize = 8;
/// Maximum bytes of local memory for vectors; with the scratch of three reductions this gives 48 KiB.
const KEPT_BYTES: usize = 40 << 10;
/// Maximum number of work-groups that scale a gradient.
const SCALE_GROUPS: usize = 2048;

/// Division of a row between registers and local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterPlan {
    pub wg: usize,
    /// Vectors per item in registers.
    pub in_registers: usize,
    /// Vectors per item in local memory.
    pub kept: usize,
}

impl RegisterPlan {
    /// Returns the plan for rows like those of `x`, or `None` if they do not fit or the gradient may not be rounded before `dy` is known.
    pub fn of(op: &CrossEntropy, x: &Tensor) -> Option<Self> {
        let fits =
            op.reduction != Reduction::None && !x.device().capabilities().is_cpu() && x.requires_grad();
        fits.then(|| Self::new(x)).flatten()
    }

    /// Returns the plan for rows like those of `x`, by their size alone.
    pub fn new(x: &Tensor) -> Option<Self> {
        let (rows, n) = x.shape().rows_cols();
        // f16 gradients would underflow before the loss scale, which is dy, is applied.
        if x.dtype() == DType::F16 || rows == 0 || n == 0 || !(n * x.dtype().size()).is_multiple_of(VECTOR) {
            return None;
        }
        let vectors = n * x.dtype().size() / VECTOR;
        let group = Tuning::value(x.device(), &KERNEL, 0, "GROUP").min(largest_group(x.device()));
        if group < 32 {
            return None;
        }
        let small = vectors.div_ceil(IN_REGISTERS).next_power_of_two().clamp(32, group);
        let capabilities = x.device().capabilities();
        let local = usize::try_from(capabilities.local_mem).unwrap_or(usize::MAX);
        [small, 1024].into_iter().filter(|wg| *wg <= capabilities.max_group).find_map(|wg| {
            let each = vectors.div_ceil(wg);
            let kept = each.saturating_sub(IN_REGISTERS);
            let fits = kept * wg * VECTOR <= KEPT_BYTES && kept * wg * VECTOR + 12 * wg + 4 <= local;
            fits.then_some(Self { wg, in_registers: each.min(IN_REGISTERS), kept })
        })
    }
}

/// Computes the scalar loss, and the gradient for `dy` 1, in the memory of `x` if `overwrite`.
pub(super) fn forward(
    op: &CrossEntropy,
    plan: RegisterPlan,
    x: &Tensor,
    targets: &Tensor,
    overwrite: bool,
) -> Result<(Tensor, Tensor)> {
    let (rows, _) = x.shape().rows_cols(); // x seen as (R, V)
    let dx = if overwrite { x.detach() } else { x.empty_like()? };
    let loss = x.empty_f32([rows])?;
    let scale = match op.reduction {
        Reduction::Mean => {
            let scale = x.empty_f32([1])?;
            let launch = launch("cross_entropy_count", x, plan).groups(1).read(targets).write(&scale);
            launch.scalar(rows).scalar(op.ignored()).run()?;
            scale
        }
        _ => Tensor::ones(x.device(), [1], DType::F32)?,
    };
    rows_into(op, plan, [x, targets, &scale], [&loss, &dx], x.shape().last())?;
    let sum = loss.sum(&[], false)?.reshape([])?;
    let y = if op.reduction == Reduction::Mean { sum.mul(&scale.reshape([])?)? } else { sum };
    Ok((y, dx))
}

/// Computes the losses (R) of the rows of x, and their gradients times `scale` (1) in dx, which may be x. Valid targets are below `classes`.
pub(super) fn rows_into(
    op: &CrossEntropy,
    plan: RegisterPlan,
    [x, targets, scale]: [&Tensor; 3],
    [loss, dx]: [&Tensor; 2],
    classes: usize,
) -> Result<()> {
    let (rows, n) = x.shape().rows_cols(); // x seen as (R, V)
    let smooth = op.label_smoothing > 0.0;
    let launch = launch("cross_entropy_registers", x, plan).define("SMOOTH", smooth).groups(rows);
    let launch = launch.define("VECTORS", n * x.dtype().size() / VECTOR);
    let launch = launch.define("IN_REGISTERS", plan.in_registers).define("KEPT", plan.kept);
    let launch = launch.define("NATIVE", x.device().capabilities().sm().is_some());
    let launch = launch.read(x).read(targets).read(scale).write(loss).write(dx);
    let classes = i32::try_from(classes).unwrap_or(i32::MAX);
    launch.scalar(op.ignored()).scalar(op.label_smoothing).scalar(classes).scalar(0u32).run()
}

/// Computes the gradient for `dy` in the memory of the gradient for 1.
pub(super) fn backward(plan: RegisterPlan, dx: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let vectors = dx.count() * dx.dtype().size() / VECTOR;
    let groups = vectors.div_ceil(plan.wg).min(SCALE_GROUPS);
    launch("cross_entropy_scale", dx, plan)
        .groups(groups)
        .write(dx)
        .read(&dy.contiguous()?)
        .scalar(vectors)
        .run()?;
    Ok(dx.clone())
}

fn launch(entry: &'static str, x: &Tensor, plan: RegisterPlan) -> netcl_kernel::Launch<'static> {
    KERNEL.launch(entry).define("DTYPE", x.dtype().code()).define("WG", plan.wg)
}
