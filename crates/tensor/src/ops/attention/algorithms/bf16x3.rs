//! Attention in f32 on NVIDIA's sm_90 tensor cores, with each operand as the sum of three bf16 parts.

use super::super::problem::{AttentionProblem, ForwardResults, View, read, write};
use super::sm90::{self, BF16X3_INCLUDES, blocks_fit, cache_share, counters, units};
use super::{AttentionBackward, AttentionPlan, BackwardRow, Forward, ForwardRow, macros, proof, shared_out};
use crate::ops::prelude::*;
use netcl_kernel::Launch;
use netcl_kernel::tune::Constant;
use netcl_kernel::tune::model::{DEVICE, Model};
use netcl_kernel::vendors::nvidia::SM90A;

const FWD_TEXT: &str =
    concat!(cl_file!("attention_bf16x3_sm90.cl"), cl_file!("attention_bf16x3_sm90_fwd.cl"));
pub(in crate::ops::attention) static BF16X3: Kernel = Kernel::new("attention_bf16x3_sm90", FWD_TEXT)
    .include(BF16X3_INCLUDES)
    .generate(macros::macros)
    .reload(&SM90A)
    .requires(|device| device.sm() == Some(90));
const BWD_TEXT: &str = concat!(
    cl_file!("attention_bf16x3_sm90.cl"),
    cl_file!("attention_bf16x3_sm90_bwd.cl"),
    cl_file!("attention_bf16x3_sm90_bwd_kv.cl"),
    cl_file!("attention_bf16x3_sm90_bwd_q.cl")
);
pub(in crate::ops::attention) static BF16X3_BWD: Kernel = Kernel::new("attention_bf16x3_sm90_bwd", BWD_TEXT)
    .include(BF16X3_INCLUDES)
    .generate(macros::macros)
    .reload(&SM90A)
    .requires(|device| device.sm() == Some(90));

/// Rows and columns of a block.
const BLOCK: usize = 64;
/// Bytes of a block's three planes.
const BLOCK_BYTES: usize = 3 * 2 * BLOCK * BLOCK;

pub(in crate::ops::attention) static FORWARD: ForwardRow = ForwardRow {
    kernel: &BF16X3,
    supports: |r| takes(r.p, r.o),
    models: &[&MODEL, &sm90::MODEL, &DEVICE],
    estimate: |r| (forward_micros(r.p, r.device()), AttentionPlan::Direct),
    run: |r, _| forward(r),
    self_test: Some(|device| proof::forward(device, &FORWARD, &proof::IN_F32)),
};
pub(in crate::ops::attention) static BACKWARD: BackwardRow = BackwardRow {
    kernel: &BF16X3_BWD,
    supports: supports_backward,
    models: &[&MODEL, &sm90::MODEL, &DEVICE],
    estimate: |r| (backward_micros(r.p, r.device()), AttentionPlan::Direct),
    run: |r, _| backward(r),
    self_test: Some(|device| proof::backward(device, &BACKWARD, &proof::IN_F32)),
};

fn takes(p: &AttentionProblem, o: &Tensor) -> Result<(), &'static str> {
    match () {
        () if p.dtype != DType::F32 => Err("storage other than f32"),
        () if p.size > BLOCK => Err("heads of more than 64"),
        () if !p.size.is_multiple_of(2) => Err("heads of an odd size"),
        () if !o.layout().offset.is_multiple_of(2) => Err("a result that is not aligned to 8 bytes"),
        () => blocks_fit(p),
    }
}

/// Checks the same for the gradients, which are stored in pairs of elements.
fn supports_backward(r: &AttentionBackward<'_>) -> Result<(), &'static str> {
    let pairs =
        |view: &View<'_>| view.offset.is_multiple_of(2) && view.strides.iter().all(|s| s.is_multiple_of(2));
    takes(r.p, r.known.o)?;
    if r.grads.iter().all(pairs) { Ok(()) } else { Err("gradients whose rows are not 8-byte aligned") }
}

static MODEL: Model = Model {
    name: "attention_bf16x3_sm90",
    constants: &[
        Constant::new("flops_per_us", "operations of a unit, in f32", 0.54e6),
        Constant::new("image_us", "an image without its bytes: a launch and an allocation", 9.0),
    ],
};

/// Estimates the microseconds of splitting `queries` tensors of query rows and `keys` of key rows. Each element is read as f32 and written as three
/// bf16.
fn images(p: &AttentionProblem, device: &Device, [queries, keys]: [usize; 2]) -> f64 {
    let ([_, image], [memory, _]) = (MODEL.on(device), DEVICE.on(device));
    let rows = queries * p.heads * p.queries + keys * p.kv_heads * p.keys;
    (queries + keys) as f64 * image + (p.batch * rows * (4 * p.size + 6 * BLOCK)) as f64 / memory
}

/// Estimates the microseconds of tiles of two blocks of rows, each processing `walked` rows, at `operations` per pair and column.
fn walk(p: &AttentionProblem, device: &Device, walked: usize, operations: f64) -> f64 {
    let [flops, _] = MODEL.on(device);
    let rows = 2 * BLOCK;
    let all = p.computed(rows, BLOCK) * (p.batch * p.heads) as f64;
    let pair = operations * BLOCK as f64;
    shared_out(all, (rows * walked.next_multiple_of(BLOCK)) as f64, units(device)) * pair / flops
}

fn forward_micros(p: &AttentionProblem, device: &Device) -> f64 {
    let [launch, _] = sm90::MODEL.on(device);
    images(p, device, [1, 2]) + launch + walk(p, device, p.keys, 4.0)
}

/// Estimates the microseconds of statistics, then dk and dv, then dq.
fn backward_micros(p: &AttentionProblem, device: &Device) -> f64 {
    let [launch, _] = sm90::MODEL.on(device);
    let passes = walk(p, device, p.queries * p.group(), 8.0) + walk(p, device, p.keys, 6.0);
    images(p, device, [2, 2]) + 3.0 * launch + passes
}

/// Returns the problem with the type of the kernels' products, bf16.
fn of_parts(p: &AttentionProblem) -> AttentionProblem {
    AttentionProblem { dtype: DType::Bf16, ..p.clone() }
}

/// Returns the number of key heads whose two images of `rows` rows fit in the L2 cache at the same time.
fn together(p: &AttentionProblem, device: &Device, rows: usize) -> usize {
    (cache_share(device) / (2 * BLOCK_BYTES * rows.div_ceil(BLOCK))).clamp(1, p.batch * p.kv_heads)
}

/// Splits x to an image of its bf16 parts: (B,heads,rows / 64 rounded up,3,8,64,8).
fn image(
    kernel: &'static Kernel,
    p: &AttentionProblem,
    x: &View<'_>,
    heads: usize,
    rows: usize,
) -> Result<Tensor> {
    let blocks = rows.div_ceil(BLOCK);
    let out = Tensor::empty(x.tensor.device(), [p.batch * heads * blocks, BLOCK_BYTES / 2], DType::Bf16)?;
    let launch = of_parts(p).defined(kernel.launch("attention_planes")).local([256, 1, 1]);
    let launch = read(launch.groups3([blocks, heads, p.batch]), x).write(&out);
    launch.scalar(rows as u32).run()?;
    Ok(out)
}

fn start(
    kernel: &'static Kernel,
    p: &AttentionProblem,
    entry: &'static str,
    device: &Device,
    tiles: usize,
    products: u64,
) -> Launch<'static> {
    let groups = units(device).min(tiles);
    let launch = of_parts(p).defined(kernel.launch(entry)).local([384, 1, 1]).groups(groups);
    launch.flops(products * p.product_flops())
}

/// Returns the number of tiles of two blocks of `rows`.
fn tiles(rows: usize, heads: usize) -> usize {
    rows.div_ceil(2 * BLOCK) * heads
}

/// Computes o and lse; see `attention_bf16x3_sm90_fwd.cl`.
fn forward(r: &Forward<'_>) -> Result<()> {
    let (p, [q, k, v], device) = (r.p, &r.inputs, r.device());
    let q = image(&BF16X3, p, q, p.heads, p.queries)?;
    let [k, v] = [image(&BF16X3, p, k, p.kv_heads, p.keys)?, image(&BF16X3, p, v, p.kv_heads, p.keys)?];
    let launch = start(&BF16X3, p, "attention_fwd", device, tiles(p.queries, p.heads * p.batch), 2);
    let launch = launch.read(&q).read(&k).read(&v).write(r.o).write(r.lse).write(&counters(device)?);
    of_parts(p).end_with(launch.scalar(p.batch as u32), together(p, device, p.keys) * p.group()).run()
}

/// Computes dq, dk, dv; see `attention_bf16x3_sm90_bwd.cl`.
fn backward(r: &AttentionBackward<'_>) -> Result<()> {
    let (p, [dq, dk, dv], device) = (r.p, &r.grads, r.device());
    let ForwardResults { q, k, v, o, lse, dy } = r.known;
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
    let group = p.group();

    let launch = start(&BF16X3_BWD, p, "attention_bwd_kv", device, tiles(p.keys, p.kv_heads * p.batch), 4);
    let launch = write(write(bound(launch), dk), dv).write(&next).scalar(p.batch as u32);
    of_parts(p).end_with(launch, together(p, device, p.queries * group)).run()?;

    let launch = start(&BF16X3_BWD, p, "attention_bwd_q", device, tiles(p.queries, p.heads * p.batch), 3);
    let launch = write(bound(launch), dq).write(&next).scalar(p.batch as u32);
    of_parts(p).end_with(launch, together(p, device, p.keys) * group).run()
}
