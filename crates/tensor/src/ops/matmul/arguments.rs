//! Arguments shared by several product kernels, and the second launch of split-K, which adds up the tail tiles.

use super::super::prelude::*;
use super::epilogue::Epilogue;
use super::split_k::SplitKSchedule;
use super::view::MatmulProblem;
use netcl_device::Buffer;
use netcl_kernel::Launch;

/// Placeholder argument: this launch does not access the buffer.
pub(in crate::ops) struct Unused<'a>(pub &'a Tensor);

impl Operand for Unused<'_> {
    fn buffer(&self) -> &Buffer {
        self.0.storage()
    }
    fn bytes(&self) -> usize {
        0
    }
}

/// Binds the first arguments of a product's kernel: a, b (each from its buffer's start), bias (b again without a bias), c. Sets the define
/// `DTYPE`. The kernel's other buffers come next, then [`geometry`].
pub(super) fn bind<'a>(
    launch: Launch<'a>,
    c: &Tensor,
    p: &MatmulProblem,
    e: &Epilogue<'_>,
) -> Result<Launch<'a>> {
    let launch = launch.flops((2 * p.m * p.n * p.k * p.batch()) as u64);
    let launch = launch.define("DTYPE", c.dtype().code()).read_base(&p.a.tensor).read_base(&p.b.tensor);
    Ok(bind_bias(launch, e, &p.b.tensor)?.write(c))
}

/// Binds the bias, or `other` as a placeholder without a bias.
pub(super) fn bind_bias<'a>(launch: Launch<'a>, e: &Epilogue<'_>, other: &Tensor) -> Result<Launch<'a>> {
    Ok(match e.bias {
        Some(bias) => launch.read(&bias.detach().contiguous()?),
        None => launch.read_base(&Unused(other)),
    })
}

/// Binds the first scalars of a product's kernel: a_off, b_off, m, n, k, z1 (size of the inner batch axis), strides of a and b along the outer and
/// the inner batch axis, a_rs, a_cs, b_rs, b_cs (strides of rows and of columns). Offsets and strides are `long`, all others `int`.
pub(super) fn geometry<'a>(launch: Launch<'a>, p: &MatmulProblem) -> Launch<'a> {
    let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
    let launch = launch.scalar(p.a.offset()).scalar(p.b.offset());
    let launch = launch.scalar(int(p.m)).scalar(int(p.n)).scalar(int(p.k)).scalar(int(p.z[1].max(1)));
    let [a0, a1] = p.a_strides;
    let [b0, b1] = p.b_strides;
    let strides = [a0, a1, b0, b1, p.a.row_stride, p.a.col_stride, p.b.row_stride, p.b.col_stride];
    strides.into_iter().fold(launch, |launch, stride| launch.scalar(stride))
}

/// Computes the last tiles, `side` x `side` each, of `c = epilogue(sum of the parts)`. `part` has shape (splits, tail, side, side). `launch` is a
/// launch of matmul_tile_sum with the defines of its tile shape.
pub(super) fn add_tail(
    launch: Launch<'static>,
    part: &Tensor,
    c: &Tensor,
    p: &MatmulProblem,
    e: &Epilogue<'_>,
    schedule: SplitKSchedule,
    side: usize,
) -> Result<()> {
    let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
    let launch = bind_bias(launch.define("DTYPE", c.dtype().code()).read(part), e, c)?;
    let launch = launch.write(c).scalar(int(p.m)).scalar(int(p.n));
    let launch = launch.scalar(int(schedule.full)).scalar(int(schedule.tail)).scalar(int(schedule.splits));
    let launch = launch.scalar(e.alpha).scalar(e.flags()).items(schedule.tail * side * side / 4);
    match e.tree() {
        Some(tree) => tree.bind(launch.define("VW", 4)).run(),
        None => launch.run(),
    }
}
