//! Launches of attention in f32 on sm_90's tensor cores, each operand in three bf16.

use super::kernels::{Known, Problem, View, read, write};
use super::sm90::{blocks_fit, counters};
use super::wgmma;
use crate::ops::prelude::*;
use netcl_kernel::Launch;
use netcl_kernel::vendors::nvidia::SM90A;

const INCLUDES: &[&str] = &[
    include_str!("../include/philox.cl"),
    include_str!("../include/sm90.cl"),
    include_str!("attention_sm90.cl"),
];
pub(super) static BF16X3: Kernel =
    Kernel::new("attention_bf16x3_sm90", include_str!("attention_bf16x3_sm90.cl"))
        .include(INCLUDES)
        .generate(wgmma::macros)
        .reload(&SM90A)
        .requires(|device| device.sm() == Some(90));
const BWD_TEXT: &str = concat!(
    "#define BACKWARD 1\n",
    include_str!("attention_bf16x3_sm90.cl"),
    include_str!("attention_bf16x3_sm90_bwd.cl")
);
pub(super) static BF16X3_BWD: Kernel = Kernel::new("attention_bf16x3_sm90_bwd", BWD_TEXT)
    .include(INCLUDES)
    .generate(wgmma::macros)
    .reload(&SM90A)
    .requires(|device| device.sm() == Some(90));

/// Rows and columns of a block.
const BLOCK: usize = 64;
/// Bytes of a block's three planes.
const BLOCK_BYTES: usize = 3 * 2 * BLOCK * BLOCK;
/// What of the L2 cache the images of the heads in progress may take.
const L2_SHARE: usize = 24 << 20;
/// Operations of a product below which its further launches cost more than it gains.
const LEAST: u64 = 500_000_000;

/// Whether the kernels take this problem.
pub(super) fn fits_forward(p: &Problem, o: &Tensor) -> bool {
    let takes = p.dtype == DType::F32 && p.size <= BLOCK && p.size.is_multiple_of(2) && blocks_fit(p);
    takes && o.layout().offset.is_multiple_of(2)
}

/// Whether a problem is large enough for them to be faster than what comes after.
pub(super) fn pays(p: &Problem) -> bool {
    p.product_flops() >= LEAST
}

/// The same for the gradients, which are stored in pairs.
pub(super) fn fits_backward(p: &Problem, known: &Known<'_>, grads: &[View<'_>; 3]) -> bool {
    let pairs =
        |view: &View<'_>| view.offset.is_multiple_of(2) && view.strides.iter().all(|s| s.is_multiple_of(2));
    grads.iter().all(pairs) && fits_forward(p, known.o)
}

/// The problem as the texts see it: their products are of bf16.
fn of_parts(p: &Problem) -> Problem {
    Problem { dtype: DType::Bf16, ..p.clone() }
}

/// Heads, keys' or queries', whose two images of `rows` stay in the L2 cache together.
fn together(p: &Problem, rows: usize) -> usize {
    (L2_SHARE / (2 * BLOCK_BYTES * rows.div_ceil(BLOCK))).clamp(1, p.batch * p.kv_heads)
}

/// The image of x: (B,heads,rows / 64 rounded up,3,8,64,8).
fn image(kernel: &'static Kernel, p: &Problem, x: &View<'_>, heads: usize, rows: usize) -> Result<Tensor> {
    let blocks = rows.div_ceil(BLOCK);
    let out = Tensor::empty(x.tensor.device(), [p.batch * heads * blocks, BLOCK_BYTES / 2], DType::Bf16)?;
    let launch = of_parts(p).defined(kernel.launch("attention_planes")).local([256, 1, 1]);
    let launch = read(launch.groups3([blocks, heads, p.batch]), x).write(&out);
    launch.scalar(rows as u32).run()?;
    Ok(out)
}

fn start(
    kernel: &'static Kernel,
    p: &Problem,
    entry: &'static str,
    device: &Device,
    tiles: usize,
    products: u64,
) -> Launch<'static> {
    let units = device.capabilities().compute_units.max(1) as usize;
    let launch = of_parts(p).defined(kernel.launch(entry)).local([384, 1, 1]).groups(units.min(tiles));
    launch.flops(products * p.product_flops())
}

/// Tiles of two blocks of `rows`.
fn tiles(rows: usize, heads: usize) -> usize {
    rows.div_ceil(2 * BLOCK) * heads
}

/// o and lse; see `attention_bf16x3_sm90.cl`.
pub(super) fn forward(p: &Problem, [q, k, v]: [View<'_>; 3], o: &Tensor, lse: &Tensor) -> Result<()> {
    let device = o.device();
    let q = image(&BF16X3, p, &q, p.heads, p.queries)?;
    let [k, v] = [image(&BF16X3, p, &k, p.kv_heads, p.keys)?, image(&BF16X3, p, &v, p.kv_heads, p.keys)?];
    let launch = start(&BF16X3, p, "attention_fwd", device, tiles(p.queries, p.heads * p.batch), 2);
    let launch = launch.read(&q).read(&k).read(&v).write(o).write(lse).write(&counters(device)?);
    of_parts(p).end_with(launch.scalar(p.batch as u32), together(p, p.keys) * (p.heads / p.kv_heads)).run()
}

/// dq, dk, dv; see `attention_bf16x3_sm90_bwd.cl`.
pub(super) fn backward(p: &Problem, known: &Known<'_>, [dq, dk, dv]: [View<'_>; 3]) -> Result<()> {
    let device = known.o.device();
    let Known { q, k, v, o, lse, dy } = known;
    let blocks = p.batch * p.heads * p.queries.div_ceil(BLOCK);
    let stats = o.empty_f32([blocks, 2, BLOCK])?;
    let launch =
        of_parts(p).defined(BF16X3_BWD.launch("attention_bwd_stats")).local([256, 1, 1]).groups(blocks);
    let launch = read(launch.read(*o).read(*lse), dy).write(&stats);
    launch.scalar(p.heads as u32).scalar(p.queries as u32).run()?;

    let queries = |x: &View<'_>| image(&BF16X3_BWD, p, x, p.heads, p.queries);
    let keys = |x: &View<'_>| image(&BF16X3_BWD, p, x, p.kv_heads, p.keys);
    let (q, g, k, v) = (queries(q)?, queries(dy)?, keys(k)?, keys(v)?);
    let next = counters(device)?;
    let bound = |launch: Launch<'static>| launch.read(&q).read(&g).read(&k).read(&v).read(&stats);
    let group = p.heads / p.kv_heads;

    let launch = start(&BF16X3_BWD, p, "attention_bwd_kv", device, tiles(p.keys, p.kv_heads * p.batch), 4);
    let launch = write(write(bound(launch), &dk), &dv).write(&next).scalar(p.batch as u32);
    of_parts(p).end_with(launch, together(p, p.queries * group)).run()?;

    let launch = start(&BF16X3_BWD, p, "attention_bwd_q", device, tiles(p.queries, p.heads * p.batch), 3);
    let launch = write(bound(launch), &dq).write(&next).scalar(p.batch as u32);
    of_parts(p).end_with(launch, together(p, p.keys) * group).run()
}
