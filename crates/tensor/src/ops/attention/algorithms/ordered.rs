//! The gradients of wide 16-bit heads on NVIDIA's sm_90 tensor cores, in one pass: five products instead of seven. The sums of dq are in f32 in
//! memory, and the blocks of keys add to them in order.

use super::super::problem::{AttentionProblem, ForwardResults, read, write};
use super::sm90::{
    self, BACKWARD_INCLUDES, KEYS, WIDE, counters, map, start, supports_backward, units, with_maps,
};
use super::wgmma::{self, backward_micros};
use super::{AttentionBackward, AttentionPlan, BackwardRow, macros, proof};
use crate::ops::prelude::*;
use netcl_kernel::tune::{Constant, Model};
use netcl_kernel::vendors::nvidia::SM90A;

const TEXT: &str = concat!(
    cl_file!("attention_wgmma_sm90_bwd.cl"),
    cl_file!("attention_wgmma_sm90_bwd_ordered.cl"),
    cl_file!("attention_wgmma_sm90_bwd_kv.cl")
);
pub(in crate::ops::attention) static ORDERED_BWD: Kernel = Kernel::new("attention_ordered_sm90_bwd", TEXT)
    .include(BACKWARD_INCLUDES)
    .generate(macros::macros)
    .reload(&SM90A)
    .requires(|device| device.sm() == Some(90));

pub(super) static BACKWARD: BackwardRow = BackwardRow {
    kernel: &ORDERED_BWD,
    supports,
    models: &[&MODEL, &wgmma::BACKWARD_MODEL, &sm90::MODEL],
    estimate: |r| (micros(r.p, r.device()), AttentionPlan::Direct),
    run: |r, _| run(r),
    self_test: Some(|device| proof::backward(device, &BACKWARD, &proof::WIDE)),
};

/// Checks the request. The sums may use a sixteenth of the device's memory.
fn supports(r: &AttentionBackward<'_>) -> Result<(), &'static str> {
    let bytes = 4 * r.p.query_blocks() * 64 * WIDE;
    supports_backward(r)?;
    match () {
        () if r.p.small() => Err("heads of 64 or less"),
        () if bytes as u64 > r.device().capabilities().global_mem / 16 => {
            Err("sums of dq that take more than a sixteenth of memory")
        }
        () => Ok(()),
    }
}

static MODEL: Model = Model {
    name: "attention_ordered_sm90_bwd",
    constants: &[
        // Fitted to the ratio of two passes to this one on an H200: 0.94 and 0.97 at D 80 and 96, T 1024; 1.21 at D 128, T 4096.
        Constant::new("sum_columns", "adding one pair's part of dq, in columns of a product", 60.0),
        Constant::new(
            "waiting_columns",
            "waits of blocks of keys at their start, divided by the number of keys",
            168e3,
        ),
    ],
};

fn micros(p: &AttentionProblem, device: &Device) -> f64 {
    let [sums, waiting] = MODEL.on(device);
    let blocks = p.keys.div_ceil(KEYS) as f64;
    let waiting = waiting * (blocks - 1.0) / blocks / p.keys as f64;
    backward_micros(p, device, 5.0 * p.size as f64 + sums + waiting, 1.0)
}

/// Computes dq, dk, dv; see `attention_wgmma_sm90_bwd_ordered.cl`.
fn run(r: &AttentionBackward<'_>) -> Result<()> {
    let (p, [dq, dk, dv], device) = (r.p, &r.grads, r.device());
    let ForwardResults { q, k, v, o, lse, dy } = r.known;
    let blocks = p.query_blocks();
    let (stats, sums) = (o.empty_f32([blocks, 2, 64])?, o.empty_f32([blocks, 64, WIDE])?);
    let tickets = Tensor::empty(device, [blocks, 2], DType::I32)?;
    let start = |entry, warpgroups, groups, products| {
        start(p, &ORDERED_BWD, entry, warpgroups, groups, products).define("ORDERED", 1)
    };
    let launch = read(start("attention_bwd_stats", 2, blocks, 0).read(*o).read(*lse), dy);
    launch.write(&stats).write(&tickets).scalar(p.heads as u32).scalar(p.queries as u32).run()?;

    let maps = [
        map(p, q, p.query_dims(), 64)?,
        map(p, dy, p.query_dims(), 64)?,
        map(p, k, p.key_dims(), KEYS)?,
        map(p, v, p.key_dims(), KEYS)?,
    ];
    let tiles = p.keys.div_ceil(KEYS) * p.kv_heads * p.batch;
    let launch = with_maps(start("attention_bwd_kv", 3, units(device).min(tiles), 5), device, &maps)?;
    let launch = launch.read_base(q.tensor).read_base(dy.tensor).read_base(k.tensor).read_base(v.tensor);
    let launch = write(write(launch.read(&stats), dk), dv).write(&sums).write(&tickets);
    let launch = launch.write(&counters(device)?).scalar(p.batch as u32);
    // Key blocks of a head process its queries in step. A set therefore has at least enough blocks to fill the device, even beyond the L2 cache.
    let in_step = units(device) / p.keys.div_ceil(KEYS);
    let together = p.together(device, p.rows()).max(in_step).min(p.pairs());
    p.end_with(launch, together).run()?;

    let launch = write(start("attention_bwd_round", 1, blocks, 0).read(&sums), dq);
    launch.scalar(p.heads as u32).scalar(p.queries as u32).scalar(p.scale).run()
}
