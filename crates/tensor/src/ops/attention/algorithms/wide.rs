//! 16-bit attention with heads of 129 to 256 on NVIDIA's sm_90 tensor cores.

use super::super::problem::{AttentionProblem, ForwardResults, write};
use super::sm90::{
    self, BACKWARD_INCLUDES, FORWARD_INCLUDES, MODEL, WIDE as WGMMA_SIZE, aligned_backward, aligned_forward,
    counters, map, start, statistics, units, with_maps,
};
use super::{AttentionBackward, AttentionPlan, BackwardRow, ForwardRow, macros, proof, shared_out};
use crate::ops::prelude::*;
use netcl_kernel::tune::{Constant, Model};
use netcl_kernel::vendors::nvidia::SM90A;

pub(in crate::ops::attention) static WIDE: Kernel =
    Kernel::new("attention_wide_sm90", cl_file!("attention_wide_sm90.cl"))
        .include(FORWARD_INCLUDES)
        .generate(macros::wide_macros)
        .reload(&SM90A)
        .requires(|device| device.sm() == Some(90));
const BWD_TEXT: &str = concat!(
    cl_file!("attention_wide_sm90_bwd.cl"),
    cl_file!("attention_wide_sm90_bwd_kv.cl"),
    cl_file!("attention_wide_sm90_bwd_q.cl")
);
pub(in crate::ops::attention) static WIDE_BWD: Kernel = Kernel::new("attention_wide_sm90_bwd", BWD_TEXT)
    .include(BACKWARD_INCLUDES)
    .generate(macros::wide_macros)
    .reload(&SM90A)
    .requires(|device| device.sm() == Some(90));

pub(in crate::ops::attention) static FORWARD: ForwardRow = ForwardRow {
    kernel: &WIDE,
    supports: |r| takes(r.p).and_then(|()| aligned_forward(r)),
    models: &[&FORWARD_MODEL, &MODEL],
    estimate: |r| (forward_micros(r.p, r.device()), AttentionPlan::Direct),
    run: |r, _| sm90::forward(r, &WIDE, ROWS / 64, keys(r.p)),
    self_test: Some(|device| {
        Tuning::of(device)
            .proven(device, &WIDE, || TESTS.iter().try_for_each(|p| proof::same_forward(device, p, &FORWARD)))
    }),
};
pub(in crate::ops::attention) static BACKWARD: BackwardRow = BackwardRow {
    kernel: &WIDE_BWD,
    supports: supports_backward,
    models: &[&BACKWARD_MODEL, &MODEL],
    estimate: |r| {
        let heads = heads_at_once(r.p, r.device());
        (backward_micros(r.p, r.device(), heads), AttentionPlan::KeyHeads(heads))
    },
    run: |r, plan| match *plan {
        AttentionPlan::KeyHeads(heads) => backward(r, heads),
        _ => Err(BackwardRow::foreign(&WIDE_BWD)),
    },
    self_test: Some(|device| {
        Tuning::of(device).proven(device, &WIDE_BWD, || {
            TESTS.iter().try_for_each(|p| proof::same_backward(device, p, &BACKWARD))
        })
    }),
};

/// Self-test problems: the widest heads; and heads that do not fill a half, with more keys than queries.
static TESTS: [AttentionProblem; 2] = [
    AttentionProblem { size: 256, scale: 0.0625, ..proof::PROBLEM },
    AttentionProblem { size: 136, keys: 333, scale: 0.0857, ..proof::PROBLEM },
];

/// Queries of a tile in the forward and in dq.
const ROWS: usize = 128;
/// Queries and keys of a block of the gradients.
const BLOCK: usize = 64;
/// Parts of the device's memory for dS of a launch: the target (1/32), and the limit if one key head needs more (1/8).
const TARGET_MEMORY_DIVISOR: u64 = 32;
const MAX_MEMORY_DIVISOR: u64 = 8;

/// Returns the keys of a block in the forward, as in the kernel. The sums of wider heads leave fewer registers for scores.
fn keys(p: &AttentionProblem) -> usize {
    if p.size <= 192 { 96 } else { 80 }
}

fn takes(p: &AttentionProblem) -> Result<(), &'static str> {
    sm90::stored_in_16_bits(p)?;
    match () {
        () if p.size <= WGMMA_SIZE => Err("heads of at most 128"),
        () if p.mask.is_some() => Err("dropout"),
        () => sm90::plain(p),
    }
}

fn supports_backward(r: &AttentionBackward<'_>) -> Result<(), &'static str> {
    takes(r.p)?;
    match scores_of_key_head(r.p) as u64 > r.device().capabilities().global_mem / MAX_MEMORY_DIVISOR {
        true => Err("score gradients of a key head that take more than an eighth of memory"),
        false => aligned_backward(r),
    }
}

/// Returns the bytes of dS for the queries of a key head, in whole blocks.
fn scores_of_key_head(p: &AttentionProblem) -> usize {
    p.group() * p.queries.div_ceil(BLOCK) * p.keys.div_ceil(BLOCK) * BLOCK * BLOCK * p.dtype.size()
}

/// Returns the key heads per launch.
fn heads_at_once(p: &AttentionProblem, device: &Device) -> usize {
    let room =
        usize::try_from(device.capabilities().global_mem / TARGET_MEMORY_DIVISOR).unwrap_or(usize::MAX);
    (room / scores_of_key_head(p)).clamp(1, p.pairs())
}

static FORWARD_MODEL: Model = Model {
    name: "attention_wide_sm90",
    constants: &[Constant::new("flops_per_us", "operations of a unit", 5.1e6)],
};
static BACKWARD_MODEL: Model = Model {
    name: "attention_wide_sm90_bwd",
    constants: &[Constant::new("flops_per_us", "operations of a unit", 4.4e6)],
};

/// Returns the multiply-adds per pair of query and key: in a product over D, and in one whose columns are D.
fn columns(p: &AttentionProblem) -> [f64; 2] {
    [p.size.next_multiple_of(16) as f64, p.size.next_multiple_of(64) as f64]
}

fn forward_micros(p: &AttentionProblem, device: &Device) -> f64 {
    let ([flops], [launch, maps]) = (FORWARD_MODEL.on(device), MODEL.on(device));
    let [over, wide] = columns(p);
    let all = p.computed(ROWS, keys(p)) * (p.batch * p.heads) as f64;
    let longest = (ROWS * p.most_keys().next_multiple_of(keys(p))) as f64;
    launch + maps + shared_out(all, longest, units(device)) * 2.0 * (over + wide) / flops
}

/// Estimates the microseconds of statistics, then of dk and dv, and dq, with `heads` key heads at a time.
fn backward_micros(p: &AttentionProblem, device: &Device, heads: usize) -> f64 {
    let [flops] = BACKWARD_MODEL.on(device);
    let [launch, maps] = MODEL.on(device);
    let units = units(device);
    let [over, wide] = columns(p);
    let all = p.computed(BLOCK, BLOCK) * (p.batch * p.heads) as f64;
    let walked = p.window.map_or(p.queries, |window| window.min(p.queries)).next_multiple_of(BLOCK);
    let longest = (BLOCK * walked * p.group()) as f64;
    let launches = p.pairs().div_ceil(heads) as f64;
    let by_keys = shared_out(all, longest, units) * 4.0 * (over + wide);
    let by_queries = all / units as f64 * 2.0 * wide;
    launch + launches * 2.0 * (launch + maps) + (by_keys + by_queries) / flops
}

/// Tiles per multiprocessor (in units of the longest) from which the heads are divided into sets. Below it, idle units at the end of a set cost
/// more than the cache gains. An H200 at D 256, causal: with 16 (4 x 16 heads, T 4096) sets that fit the L2 cache take 3.08 ms, all heads together
/// 3.63; with 4 (2 x 8/4, T 8192) 3.39 and 3.12 to 3.25.
const MIN_CACHED_SETS: f64 = 8.0;

/// Returns the number of key heads, of `count`, whose queries fit in the L2 cache at the same time. Returns all if there are few tiles, which then
/// start longest first.
fn together(p: &AttentionProblem, device: &Device, count: usize) -> usize {
    let units = units(device);
    let longest = p.keys.div_ceil(BLOCK) * count;
    let tiles = longest as f64 * p.seen() / (p.queries * p.keys) as f64 / units as f64;
    if tiles < MIN_CACHED_SETS { count } else { p.together(device, p.rows()).min(count) }
}

/// Computes dq, dk, dv; see `attention_wide_sm90_bwd.cl`.
fn backward(r: &AttentionBackward<'_>, heads: usize) -> Result<()> {
    let (p, [dq, dk, dv], device) = (r.p, &r.grads, r.device());
    let ForwardResults { q, k, v, dy, .. } = r.known;
    let (stats, next, units) = (statistics(r, &WIDE_BWD)?, counters(device)?, units(device));
    let maps = [
        map(p, q, p.query_dims(), BLOCK)?,
        map(p, dy, p.query_dims(), BLOCK)?,
        map(p, k, p.key_dims(), BLOCK)?,
        map(p, v, p.key_dims(), BLOCK)?,
    ];
    let ds = Tensor::empty(device, [heads, scores_of_key_head(p) / p.dtype.size()], p.dtype)?;
    for first in (0..p.pairs()).step_by(heads) {
        let count = heads.min(p.pairs() - first);
        let flops = |products: u64| products * p.product_flops() * count as u64 / p.pairs() as u64;
        let start = |entry, tiles: usize| start(p, &WIDE_BWD, entry, 3, units.min(tiles), 0);

        let launch = start("attention_bwd_kv", p.keys.div_ceil(BLOCK) * count).flops(flops(4));
        let launch = with_maps(launch, device, &maps)?.read_base(q.tensor).read_base(dy.tensor);
        let launch = launch.read_base(k.tensor).read_base(v.tensor).read(&stats);
        let launch = write(write(launch, dk), dv).write(&ds).write(&next);
        let launch = launch.scalar(first as u32).scalar(count as u32);
        p.end_with(launch, together(p, device, count)).run()?;

        let launch = start("attention_bwd_q", p.queries.div_ceil(ROWS) * count * p.group()).flops(flops(1));
        let launch = with_maps(launch, device, &maps)?.read_base(k.tensor).read(&ds);
        let launch = write(launch, dq).write(&next).scalar(first as u32).scalar(count as u32);
        // Only keys are shared here, so twice as many heads fit in the cache.
        p.end_with(launch, (2 * p.together(device, p.keys)).min(count) * p.group()).run()?;
    }
    Ok(())
}
