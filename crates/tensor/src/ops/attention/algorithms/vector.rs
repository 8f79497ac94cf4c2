//! Attention on CPUs: a work-item owns rows of queries, one per lane.

use super::super::problem::{AttentionProblem, read, write};
use super::{AttentionBackward, AttentionPlan, BackwardRow, Forward, ForwardRow, shared_out};
use crate::ops::prelude::*;
use netcl_kernel::tune::{Constant, Model};

static VECTOR: Kernel = Kernel::new("attention_vector", cl_file!("attention_vector.cl"))
    .include(&[cl_file!("../../include/philox.cl"), cl_file!("attention_lanes.cl")])
    .requires(|device| device.is_cpu())
    .tune(&[("VW", &[0])]);
static VECTOR_BWD: Kernel = Kernel::new("attention_vector_bwd", cl_file!("attention_vector_bwd.cl"))
    .include(&[cl_file!("../../include/philox.cl"), cl_file!("attention_lanes.cl")])
    .requires(|device| device.is_cpu())
    .tune(&[("VW", &[0])]);

pub(super) static FORWARD: ForwardRow = ForwardRow {
    kernel: &VECTOR,
    supports: |_| Ok(()),
    models: &[&FORWARD_MODEL],
    estimate: |r| {
        let rows = block(r.device(), &VECTOR).rows;
        (micros(&FORWARD_MODEL, r.p, r.device(), rows, 4.0), AttentionPlan::Direct)
    },
    run: |r, _| forward(r),
    self_test: None,
};
pub(super) static BACKWARD: BackwardRow = BackwardRow {
    kernel: &VECTOR_BWD,
    supports: |_| Ok(()),
    models: &[&BACKWARD_MODEL],
    estimate: |r| {
        let rows = block(r.device(), &VECTOR_BWD).rows;
        (micros(&BACKWARD_MODEL, r.p, r.device(), rows, 10.0), AttentionPlan::Parts(parts(r.p, r.device())))
    },
    run: backward,
    self_test: None,
};

/// Vectors of queries in a block (`QV` in the kernels).
const QUERY_VECTORS: usize = 2;

/// Sizes of the block that a work-item processes at once.
struct Block {
    lanes: usize,
    /// Query rows of a block.
    rows: usize,
    /// Key rows of the register block (`MR`).
    keys: usize,
}

fn block(device: &Device, kernel: &'static Kernel) -> Block {
    let lanes = Tuning::value(device, kernel, 0, "VW");
    Block { lanes, rows: QUERY_VECTORS * lanes, keys: if lanes == 8 { 6 } else { 12 } }
}

const fn constants(launch: f64, flops: f64) -> [Constant; 2] {
    [
        Constant::new("launch_us", "the launches", launch),
        Constant::new(
            "lane_flops_per_us",
            "operations of a lane of a core's vectors, over whole blocks",
            flops,
        ),
    ]
}
static FORWARD_MODEL: Model = Model { name: "attention_vector", constants: &constants(27.0, 3.7e3) };
static BACKWARD_MODEL: Model = Model { name: "attention_vector_bwd", constants: &constants(59.0, 3.0e3) };

/// Estimates the microseconds with `operations` per pair of query and key and element of D.
fn micros(model: &'static Model, p: &AttentionProblem, device: &Device, rows: usize, operations: f64) -> f64 {
    let [launch, flops] = model.on(device);
    let cores = device.capabilities().compute_units.max(1) as usize;
    let pair = operations * p.size as f64;
    // A partial block takes as long as a full one.
    let full = p.rows().next_multiple_of(rows) as f64 / p.rows() as f64;
    let all = p.seen() * (p.batch * p.heads) as f64 * full;
    let longest = (rows * p.most_keys()) as f64;
    launch + shared_out(all, longest, cores) * pair / (flops * (rows / QUERY_VECTORS) as f64)
}

fn forward(r: &Forward<'_>) -> Result<()> {
    let (p, [q, k, v]) = (r.p, &r.inputs);
    let blocks = p.rows().div_ceil(block(r.device(), &VECTOR).rows);
    let launch = p.start(&VECTOR, "attention_fwd", blocks, 2);
    let launch = read(read(read(launch, q), k), v).write(r.o).write(r.lse);
    p.end(launch).run()
}

/// Returns the number of parts of the query rows. With few key heads on many cores, rows are divided too, at least two blocks per part. The parts'
/// sums are added in order.
fn parts(p: &AttentionProblem, device: &Device) -> usize {
    let rows = 2 * block(device, &VECTOR_BWD).rows;
    sum_parts(device, usize::MAX).div_ceil(p.pairs()).min(p.rows().div_ceil(rows)).max(1)
}

fn backward(r: &AttentionBackward<'_>, plan: &AttentionPlan) -> Result<()> {
    let AttentionPlan::Parts(parts) = *plan else { return Err(BackwardRow::foreign(&VECTOR_BWD)) };
    let (p, known, [dq, dk, dv]) = (r.p, r.known, &r.grads);
    let Block { lanes, keys, .. } = block(r.device(), &VECTOR_BWD);
    let acc = [parts, p.pairs(), 2, p.keys.next_multiple_of(keys), p.size.next_multiple_of(lanes)];
    let acc = known.o.empty_f32(acc)?;
    let launch = p.start(&VECTOR_BWD, "attention_bwd", parts, 5);
    let launch = read(read(read(launch, &known.q), &known.k), &known.v).read(known.o).read(known.lse);
    let launch = write(write(write(read(launch, &known.dy), dq), dk), dv).write(&acc);
    p.end(launch).run()?;
    if parts == 1 {
        return Ok(());
    }
    let launch = p.start(&VECTOR_BWD, "attention_bwd_sum", p.keys.div_ceil(keys), 0).read(&acc);
    write(write(launch, dk), dv).scalar(p.keys as u32).scalar(parts as u32).run()
}
