//! Loss and gradient from one read of the logits, for GPUs: a group holds its row on the way from the one to the other.

use super::{CrossEntropy, Reduction};
use crate::ops::prelude::*;

static KERNEL: Kernel = Kernel::new("cross_entropy_registers", cl_file!("cross_entropy_registers.cl"))
    .tune(&[("GROUP", &[512, 1024])])
    // Two groups of 512 items, or one of 1024, fill a multiprocessor with 64 registers an item.
    .options(|device| if device.sm().is_some() { "-cl-nv-maxrregcount=64" } else { "" });

/// Bytes of the vectors that rows lie in.
const VECTOR: usize = 16;
/// Vectors an item holds in registers at most: 32 of its 64 registers.
const IN_REGISTERS: usize = 8;
/// Bytes of local memory that hold vectors at most: with the scratch of three reductions, 48 KiB.
const KEPT_BYTES: usize = 40 << 10;
/// Work-groups that scale a gradient at most.
const SCALE_GROUPS: usize = 2048;

/// How a row is shared out over registers and local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub wg: usize,
    /// Vectors an item has in registers.
    pub in_registers: usize,
    /// Those it has in local memory.
    pub kept: usize,
}

impl Plan {
    /// For rows like those of `x`; `None` where they cannot be held or the gradient may not be rounded before `dy` is known.
    pub fn of(op: &CrossEntropy, x: &Tensor) -> Option<Self> {
        let fits =
            op.reduction != Reduction::None && !x.device().capabilities().is_cpu() && x.requires_grad();
        fits.then(|| Self::new(x)).flatten()
    }

    /// For rows like those of `x`, by their size alone.
    pub fn new(x: &Tensor) -> Option<Self> {
        let (rows, n) = x.shape().rows_cols();
        // f16 gradients would fall below its smallest number before the loss scale, which is dy, has lifted them.
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

/// The scalar loss, and the gradient for `dy` 1: in the memory of `x` if `overwrite`.
pub(super) fn forward(
    op: &CrossEntropy,
    plan: Plan,
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

/// The losses (R) of the rows of x, and their gradients times `scale` (1) in dx, which may be x. Targets are below `classes`.
pub(super) fn rows_into(
    op: &CrossEntropy,
    plan: Plan,
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

/// The gradient for `dy`, in the memory of that for 1.
pub(super) fn backward(plan: Plan, dx: &Tensor, dy: &Tensor) -> Result<Tensor> {
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

fn launch(entry: &'static str, x: &Tensor, plan: Plan) -> netcl_kernel::Launch<'static> {
    KERNEL.launch(entry).define("DTYPE", x.dtype().code()).define("WG", plan.wg)
}
