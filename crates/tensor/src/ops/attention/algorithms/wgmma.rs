//! 16-bit attention on NVIDIA's sm_90 tensor cores: the forward, and the gradients in two passes.

use super::super::problem::{AttentionProblem, ForwardResults, write};
use super::sm90::{
    self, BACKWARD_INCLUDES, FORWARD_INCLUDES, KEYS, MODEL, counters, map, start, statistics,
    supports_backward, supports_forward, units, with_maps,
};
use super::{AttentionBackward, AttentionPlan, BackwardRow, ForwardRow, macros, proof, shared_out};
use crate::ops::prelude::*;
use netcl_kernel::Launch;
use netcl_kernel::tune::{Constant, Model};
use netcl_kernel::vendors::nvidia::{MatrixStack, SM90A};

pub(in crate::ops::attention) static WGMMA: Kernel =
    Kernel::new("attention_wgmma_sm90", cl_file!("attention_wgmma_sm90.cl"))
        .include(FORWARD_INCLUDES)
        .generate(macros::macros)
        .reload(&SM90A)
        .requires(|device| device.sm() == Some(90));
const BWD_TEXT: &str = concat!(
    cl_file!("attention_wgmma_sm90_bwd.cl"),
    cl_file!("attention_wgmma_sm90_bwd_kv.cl"),
    cl_file!("attention_wgmma_sm90_bwd_q.cl")
);
pub(in crate::ops::attention) static WGMMA_BWD: Kernel = Kernel::new("attention_wgmma_sm90_bwd", BWD_TEXT)
    .include(BACKWARD_INCLUDES)
    .generate(macros::macros)
    .reload(&SM90A)
    .requires(|device| device.sm() == Some(90));

pub(super) static FORWARD: ForwardRow = ForwardRow {
    kernel: &WGMMA,
    supports: supports_forward,
    models: &[&FORWARD_MODEL, &MODEL],
    estimate: |r| {
        let warpgroups = warpgroups(r.p, units(r.device()));
        (forward_micros(r.p, r.device(), warpgroups), AttentionPlan::Warpgroups(warpgroups))
    },
    run: |r, plan| match *plan {
        AttentionPlan::Warpgroups(warpgroups) => sm90::forward(r, &WGMMA, warpgroups, KEYS),
        _ => Err(ForwardRow::foreign(&WGMMA)),
    },
    self_test: Some(|device| proof::forward(device, &FORWARD, &proof::PROBLEM)),
};
pub(super) static BACKWARD: BackwardRow = BackwardRow {
    kernel: &WGMMA_BWD,
    supports: supports_backward,
    models: &[&BACKWARD_MODEL, &MODEL],
    estimate: |r| (two_passes(r.p, r.device()), AttentionPlan::Direct),
    run: |r, _| backward(r),
    self_test: Some(|device| proof::backward(device, &BACKWARD, &proof::PROBLEM)),
};

/// Keys of a block in dq.
const DQ_KEYS: usize = 64;

const SMALL: &str = "operations of a unit, heads of up to 64";
const LARGE: &str = "operations of a unit, wider heads";
static FORWARD_MODEL: Model = Model {
    name: "attention_wgmma_sm90",
    constants: &[
        Constant::new("small_flops_per_us", SMALL, 2.6e6),
        Constant::new("wide_flops_per_us", LARGE, 4.4e6),
    ],
};
/// Model of the gradients, with all products counted.
pub(super) static BACKWARD_MODEL: Model = Model {
    name: "attention_wgmma_sm90_bwd",
    constants: &[
        Constant::new("small_flops_per_us", SMALL, 3.1e6),
        Constant::new("wide_flops_per_us", LARGE, 4.25e6),
    ],
};

/// Returns the number of tiles of `rows` query rows.
fn tiles(p: &AttentionProblem, rows: usize) -> usize {
    p.queries.div_ceil(rows) * p.heads * p.batch
}

/// Returns 3 warpgroups per block of keys if there are enough tiles for balance, otherwise 2. With dropout, registers suffice for 2 only.
fn warpgroups(p: &AttentionProblem, units: usize) -> usize {
    if p.small() && p.mask.is_none() && tiles(p, 192) >= 2 * units { 3 } else { 2 }
}

fn forward_micros(p: &AttentionProblem, device: &Device, warpgroups: usize) -> f64 {
    let [small, wide] = FORWARD_MODEL.on(device);
    let [launch, maps] = MODEL.on(device);
    let rows = 64 * warpgroups;
    let pair = 4.0 * p.size.next_multiple_of(64) as f64;
    let all = p.computed(rows, KEYS) * (p.batch * p.heads) as f64 * pair;
    let longest = (rows * p.keys.next_multiple_of(KEYS)) as f64 * pair;
    launch + maps + shared_out(all, longest, units(device)) / if p.small() { small } else { wide }
}

/// Queries of a block in dk and dv.
fn query_rows(p: &AttentionProblem) -> usize {
    if p.small() { 128 } else { 64 }
}

/// Estimates the microseconds of gradients with `columns` multiply-adds per pair of query and key, in three launches, `maps` of which use tensor
/// maps.
pub(super) fn backward_micros(p: &AttentionProblem, device: &Device, columns: f64, maps: f64) -> f64 {
    let rows = query_rows(p);
    let all = p.computed(rows, KEYS) * (p.batch * p.heads) as f64;
    // A tile of keys is multiplied by the queries of all heads of its group.
    let longest = (KEYS * p.queries.next_multiple_of(rows) * p.group()) as f64;
    let [small, wide] = BACKWARD_MODEL.on(device);
    let [launch, map] = MODEL.on(device);
    let throughput = if p.small() { small } else { wide };
    3.0 * launch + maps * map + shared_out(all, longest, units(device)) * 2.0 * columns / throughput
}

/// Estimates two passes: four products for dk and dv, three for dq.
fn two_passes(p: &AttentionProblem, device: &Device) -> f64 {
    backward_micros(p, device, 7.0 * p.size.max(64) as f64, 2.0)
}

/// Computes dq, dk, dv in three launches; see `attention_wgmma_sm90_bwd.cl`.
fn backward(r: &AttentionBackward<'_>) -> Result<()> {
    let (p, [dq, dk, dv], device) = (r.p, &r.grads, r.device());
    let (next, units) = (counters(device)?, units(device));
    let ForwardResults { q, k, v, dy, .. } = r.known;
    let stats = statistics(r, &WGMMA_BWD)?;

    let bound = |launch: Launch<'static>, maps: &[MatrixStack]| -> Result<Launch<'static>> {
        let launch = with_maps(launch, device, maps)?.read_base(q.tensor).read_base(dy.tensor);
        Ok(launch.read_base(k.tensor).read_base(v.tensor).read(&stats))
    };
    let rows = query_rows(p);
    let maps = |rows: usize, keys: usize| -> Result<[MatrixStack; 4]> {
        Ok([
            map(p, q, p.query_dims(), rows)?,
            map(p, dy, p.query_dims(), rows)?,
            map(p, k, p.key_dims(), keys)?,
            map(p, v, p.key_dims(), keys)?,
        ])
    };
    let tiles = p.keys.div_ceil(KEYS) * p.kv_heads * p.batch;
    let launch = start(p, &WGMMA_BWD, "attention_bwd_kv", 3, units.min(tiles), 4);
    let launch = write(write(bound(launch, &maps(rows, KEYS)?)?, dk), dv).write(&next).scalar(p.batch as u32);
    p.end_with(launch, p.together(device, p.queries * p.group())).run()?;

    let warpgroups = if p.small() { 3 } else { 2 };
    let tiles = p.queries.div_ceil(64 * warpgroups) * p.heads * p.batch;
    let launch = start(p, &WGMMA_BWD, "attention_bwd_q", warpgroups + 1, units.min(tiles), 3);
    let launch =
        write(bound(launch, &maps(64 * warpgroups, DQ_KEYS)?)?, dq).write(&next).scalar(p.batch as u32);
    p.end_with(launch, p.together(device, p.keys) * p.group()).run()
}
