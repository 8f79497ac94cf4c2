//! Attention by tiles in local memory, each computed by a grid of items, on any GPU.

use super::super::problem::{AttentionProblem, read, write};
use super::{AttentionBackward, AttentionPlan, BackwardRow, Forward, ForwardRow, shared_out};
use crate::ops::prelude::*;
use netcl_device::Capabilities;
use netcl_kernel::tune::{Constant, Model};

static TILE: Kernel = Kernel::new("attention_tile", cl_file!("attention_tile.cl"))
    .include(&[cl_file!("../../include/philox.cl"), cl_file!("attention_grid.cl")])
    .requires(|device| device.max_group >= 8)
    .tune(&[("WG", &[128])]);
static TILE_BWD: Kernel = Kernel::new("attention_tile_bwd", cl_file!("attention_tile_bwd.cl"))
    .include(&[cl_file!("../../include/philox.cl"), cl_file!("attention_grid.cl")])
    .requires(|device| device.max_group >= 8);

pub(super) static FORWARD: ForwardRow = ForwardRow {
    kernel: &TILE,
    supports: |r| forward_tile(r.p, r.device()).map_or(Err(NO_ROOM), |_| Ok(())),
    models: &[&FORWARD_MODEL],
    estimate: |r| match forward_tile(r.p, r.device()) {
        Some((rows, keys)) => (forward_micros(r, rows, keys), AttentionPlan::Tile { rows, keys }),
        None => (f64::INFINITY, AttentionPlan::Direct),
    },
    run: |r, plan| match *plan {
        AttentionPlan::Tile { rows, keys } => forward(r, (rows, keys)),
        _ => Err(ForwardRow::foreign(&TILE)),
    },
    self_test: None,
};
pub(super) static BACKWARD: BackwardRow = BackwardRow {
    kernel: &TILE_BWD,
    supports: |r| backward_tile(r.p, r.device()).map_or(Err(NO_ROOM), |_| Ok(())),
    models: &[&BACKWARD_MODEL],
    estimate: |r| match backward_tile(r.p, r.device()) {
        Some((rows, items)) => (backward_micros(r, rows), AttentionPlan::Square { rows, items }),
        None => (f64::INFINITY, AttentionPlan::Direct),
    },
    run: |r, plan| match *plan {
        AttentionPlan::Square { rows, items } => backward(r, (rows, items)),
        _ => Err(BackwardRow::foreign(&TILE_BWD)),
    },
    self_test: None,
};

const NO_ROOM: &str = "local memory too small for a tile of this head size";

/// Query rows and keys of a forward tile, and rows and work-items of a backward tile. The first that fits is chosen: from the second on for heads
/// above 64, from the third on above 128, because of registers.
const FORWARD_TILES: [(usize, usize); 5] = [(64, 64), (64, 32), (32, 32), (16, 16), (16, 8)];
const BACKWARD_TILES: [(usize, usize); 4] = [(64, 128), (32, 128), (16, 128), (8, 64)];

/// Returns the local memory per group with two groups on a multiprocessor. NVIDIA's OpenCL reports 48 KiB, which limits kernel arguments only: on
/// sm_90, arrays of a kernel may use 227 KiB.
fn local_room(device: &Capabilities) -> usize {
    let bytes = if device.sm() == Some(90) { 113 << 10 } else { device.local_mem };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Returns the first of `tiles` that is allowed for this head size and fits in the device's local memory.
fn first_that_fits<const N: usize>(
    p: &AttentionProblem,
    device: &Device,
    tiles: [(usize, usize); N],
    bytes: impl Fn((usize, usize)) -> usize,
) -> Option<(usize, usize)> {
    let first = usize::from(p.size > 64) + usize::from(p.size > 128);
    let room = local_room(device.capabilities());
    tiles.into_iter().skip(first).find(|tile| bytes(*tile) <= room)
}

/// Returns the bytes of `rows` rows of D in a tile, and of `tables` tables of `scores` floats, plus dropout's mask.
fn bytes(p: &AttentionProblem, rows: usize, tables: usize, scores: usize) -> usize {
    rows * (p.size.div_ceil(32) * 8 + 1) * 16 + (tables + usize::from(p.mask.is_some())) * scores * 4
}

/// Returns the query rows and keys of a tile, if the device has room for one.
fn forward_tile(p: &AttentionProblem, device: &Device) -> Option<(usize, usize)> {
    let bytes = |(q, k): (usize, usize)| bytes(p, q + k, 1, q * (k + 4)) + q * 36;
    first_that_fits(p, device, FORWARD_TILES, bytes)
}

/// Returns the rows and work-items of a tile, if the device has room for one.
fn backward_tile(p: &AttentionProblem, device: &Device) -> Option<(usize, usize)> {
    let bytes = |(t, _): (usize, usize)| bytes(p, 4 * t, 2, t * (t + 4));
    first_that_fits(p, device, BACKWARD_TILES, bytes)
}

/// Model constants. A CPU runs the items of a group one after the other.
const CONSTANTS: [Constant; 2] = [
    Constant::new("launch_us", "a launch", 8.0).cpu(15.0),
    Constant::new("flops_per_us", "operations of a unit with two groups of a tile of 64 rows", 0.16e6)
        .cpu(0.016e6),
];
static FORWARD_MODEL: Model = Model { name: "attention_tile", constants: &CONSTANTS };
static BACKWARD_MODEL: Model = Model { name: "attention_tile_bwd", constants: &CONSTANTS };

/// Estimates the microseconds of groups that compute `all` pairs of a head, of which the longest group computes `longest`; `operations` per pair
/// and element of D.
fn micros(
    model: &'static Model,
    p: &AttentionProblem,
    device: &Device,
    (all, longest): (f64, usize),
    operations: f64,
) -> f64 {
    let [launch, flops] = model.on(device);
    // D is padded to fours for each of eight items.
    let pair = operations * p.size.next_multiple_of(32) as f64;
    let all = all * (p.batch * p.heads) as f64;
    let units = device.capabilities().compute_units.max(1) as usize;
    launch + shared_out(all, longest as f64, units) * pair / flops
}

/// Returns the pairs that groups of `rows` query rows compute, with `keys` keys at a time: of a head, and of the longest group.
fn by_queries(p: &AttentionProblem, rows: usize, keys: usize) -> (f64, usize) {
    // Rows are those of all heads that share a key head.
    let queries = rows.div_ceil(p.group());
    (p.computed(queries, keys), rows * p.most_keys().next_multiple_of(keys))
}

fn forward_micros(r: &Forward<'_>, rows: usize, keys: usize) -> f64 {
    micros(&FORWARD_MODEL, r.p, r.device(), by_queries(r.p, rows, keys), 4.0)
}

/// Estimates the passes by groups of query rows, then by groups of keys.
fn backward_micros(r: &AttentionBackward<'_>, rows: usize) -> f64 {
    let (p, device) = (r.p, r.device());
    let (all, queries) = by_queries(p, rows, rows);
    let walked = p.window.map_or(p.rows(), |window| window * p.group()).next_multiple_of(rows);
    let pass = |longest, operations| micros(&BACKWARD_MODEL, p, device, (all, longest), operations);
    pass(queries, 6.0) + pass(rows * walked, 8.0)
}

/// Computes o and lse by the kernel that others are compared with. Returns `None` if its tile does not fit on the device.
pub(super) fn portable_forward(r: &Forward<'_>) -> Option<Result<()>> {
    forward_tile(r.p, r.device()).map(|tile| forward(r, tile))
}

/// Computes the same for the gradients.
pub(super) fn portable_backward(r: &AttentionBackward<'_>) -> Option<Result<()>> {
    backward_tile(r.p, r.device()).map(|tile| backward(r, tile))
}

fn forward(r: &Forward<'_>, (rows, keys): (usize, usize)) -> Result<()> {
    let (p, [q, k, v]) = (r.p, &r.inputs);
    let launch = p.start(&TILE, "attention_fwd", p.rows().div_ceil(rows), 2);
    let launch = launch.define("BQ", rows).define("BK", keys);
    let launch = p.grouped(launch, &r.inputs);
    let launch = read(read(read(launch, q), k), v).write(r.o).write(r.lse);
    p.end_grouped(launch).run()
}

fn backward(r: &AttentionBackward<'_>, (tile, items): (usize, usize)) -> Result<()> {
    let (p, known, [dq, dk, dv]) = (r.p, r.known, &r.grads);
    let most = r.device().capabilities().max_group.max(1);
    let delta = known.lse.empty_like()?;
    let views = [known.q, known.k, known.v, known.dy, *dq, *dk, *dv];
    let start = |entry, groups, products| {
        p.grouped(p.start(&TILE_BWD, entry, groups, products), &views)
            .define("BT", tile)
            .define("WG", items.min(1 << most.ilog2()))
    };
    let launch = start("attention_bwd_q", p.rows().div_ceil(tile), 3);
    let launch = read(read(read(launch, &known.q), &known.k), &known.v).read(known.o).read(known.lse);
    p.end_grouped(write(read(launch, &known.dy), dq).write(&delta)).run()?;
    let launch = start("attention_bwd_kv", p.keys.div_ceil(tile), 4);
    let launch = read(read(read(launch, &known.q), &known.k), &known.v).read(known.lse);
    p.end_grouped(write(write(read(launch, &known.dy), dk), dv).read(&delta)).run()
}
