//! Products on NVIDIA's tensor cores from sm_80 on, through instructions that the driver's compiler supports.

use super::super::arguments::{Unused, bind, geometry};
use super::super::epilogue::Epilogue;
use super::super::proof;
use super::super::view::{MatmulProblem, Matrix};
use super::tile::add_parts;
use super::{MatmulAlgorithm, MatmulRequest, ProductPlan, finished, no_aux};
use crate::ops::prelude::*;
use netcl_device::MatmulPrecision;
use netcl_kernel::tune::{Constant, Model};

pub(in crate::ops::matmul) static MMA: Kernel =
    Kernel::new("matmul_mma_sm80", cl_file!("matmul_mma_sm80.cl")).requires(|device| device.sm() >= Some(80));

/// Rows and columns of a tile.
const SIDE: usize = 128;
/// Groups that a multiprocessor holds at a time.
const RESIDENT: usize = 2;

/// Returns whether products of this type may use tensor cores on this device.
pub(in crate::ops::matmul) fn allowed(device: &Device, dtype: DType) -> bool {
    match dtype {
        DType::F16 | DType::Bf16 => true,
        DType::F32 => device.settings().matmul_precision == MatmulPrecision::High,
        DType::I32 | DType::U32 | DType::Bool => false,
    }
}

/// Returns the number of elements in 16 bytes.
pub(in crate::ops::matmul) fn lanes(dtype: DType) -> usize {
    16 / dtype.size()
}

/// Layout of an operand: whether k is the axis of stride 1, and whether its lines and batches start at multiples of 16 bytes.
#[derive(Clone, Copy)]
struct Lines {
    along_k: bool,
    aligned: bool,
}

/// Returns the layout of x with these strides `(along k, other)`. Returns `None` if neither is 1, or for unaligned f32.
fn lines(x: &Matrix, (k, other): (usize, usize), batch: [usize; 2]) -> Option<Lines> {
    let dtype = x.tensor.dtype();
    let aligned =
        |line: usize| [x.offset(), batch[0], batch[1], line].iter().all(|v| v.is_multiple_of(lanes(dtype)));
    let both = [(k == 1, other), (other == 1, k)].into_iter().enumerate().filter(|(_, (one, _))| *one);
    let mut both = both.map(|(i, (_, line))| Lines { along_k: i == 0, aligned: aligned(line) });
    let first = both.next()?;
    let best =
        if first.aligned { first } else { both.next().filter(|second| second.aligned).unwrap_or(first) };
    (best.aligned || dtype != DType::F32).then_some(best)
}

fn layouts(p: &MatmulProblem) -> Option<[Lines; 2]> {
    let a = lines(&p.a, (p.a.col_stride, p.a.row_stride), p.a_strides)?;
    let b = lines(&p.b, (p.b.row_stride, p.b.col_stride), p.b_strides)?;
    Some([a, b])
}

pub(super) static ALGORITHM: MatmulAlgorithm = MatmulAlgorithm {
    kernel: &MMA,
    supports,
    models: &[&MODEL],
    estimate,
    run: |r, plan| finished(r, no_aux, |r| run(r.c, r.p, r.e, plan).map(|()| None)),
    self_test: Some(proven),
};

fn supports(r: &MatmulRequest<'_>) -> Result<(), &'static str> {
    let (c, p) = (r.c, r.p);
    match () {
        () if !allowed(c.device(), r.dtype()) => Err("f32 at the highest precision"),
        () if r.widens() => Err("f32 results of 16-bit operands"),
        () if !aligned_rows(c, p) && c.dtype() == DType::F32 => {
            Err("rows of C that do not start at multiples of 16 bytes")
        }
        () if p.m * p.n < 256 || p.k < 16 => Err("smaller than an instruction's tile"),
        () if layouts(p).is_none() => Err("no contiguous axis, or f32 not aligned to 16 bytes"),
        () => Ok(()),
    }
}

/// Returns whether C's rows can be stored 16 bytes at a time.
fn aligned_rows(c: &Tensor, p: &MatmulProblem) -> bool {
    p.n.is_multiple_of(lanes(c.dtype())) && c.layout().offset.is_multiple_of(lanes(c.dtype()))
}

static MODEL: Model = Model {
    name: "matmul_mma_sm80",
    constants: &[
        Constant::new("launch_us", "a launch", 6.0),
        Constant::new("flops_per_us", "operations of a unit, if there are enough tiles", 1.36e6),
        Constant::new("block_us", "a block of a tile's sum, while two groups share a unit", 0.7),
        Constant::new(
            "unaligned_flops_per_us",
            "operations of a unit if lines are loaded through registers",
            2.65e5,
        ),
        Constant::new("unaligned_wait", "slowdown of a block per operand with such lines", 1.5),
        Constant::new("join_us", "a second launch that adds partial sums", 6.0),
        Constant::new("join_bytes_per_us", "bytes of partial sums that it reads and writes", 3e6),
        Constant::new("tf32_launch_us", "a launch with tf32 operands", 3.0),
        Constant::new("tf32_flops_per_us", "operations of a unit with tf32", 7.58e5),
        Constant::new("tf32_step_us", "minimum time of a step of the sum with tf32", 0.02),
    ],
};

/// The number of parts of each sum, and the steps of a part.
#[derive(Debug)]
struct Parts {
    splits: usize,
    steps: usize,
}

/// Estimates the larger of two times: all multiplications, and the blocks of one group with their waits. Waits are longer if lines of 16-bit
/// operands are loaded through registers.
fn estimate(r: &MatmulRequest<'_>) -> (f64, ProductPlan) {
    let [launch, flops, block_us, unaligned, wait, join, join_bytes, tf32_launch, tf32_flops, tf32_step] =
        MODEL.on(r.device());
    let p = r.p;
    let block = 4 * lanes(r.dtype());
    let tiles = p.m.div_ceil(SIDE) * p.n.div_ceil(SIDE);
    let idle = RESIDENT * r.units() / (tiles * p.batch()).max(1);
    let most = (p.k / (4 * block)).clamp(1, 64);
    // Adding the parts takes a launch, and reads and writes their bytes.
    let time = |splits: usize| {
        let parts = if splits > 1 { join + (splits * r.c.count() * 8) as f64 / join_bytes } else { 0.0 };
        p.k.div_ceil(splits * block) as f64 * block_us + parts
    };
    let splits = (1..=idle.clamp(1, most)).min_by(|a, b| time(*a).total_cmp(&time(*b))).unwrap_or(1);
    let steps = p.k.div_ceil(splits).next_multiple_of(block).max(block);
    let splits = p.k.div_ceil(steps).max(1);
    let units = r.units() as f64;
    let micros = if r.dtype() == DType::F32 {
        tf32_launch + (r.flops() / (tf32_flops * units)).max(p.k as f64 * tf32_step)
    } else {
        let through_registers = layouts(p).map_or(0, |both| both.iter().filter(|x| !x.aligned).count());
        let flops = if through_registers == 0 { flops } else { unaligned };
        launch + (r.flops() / (flops * units)).max(time(splits) * wait.powi(through_registers as i32))
    };
    (micros, ProductPlan::of(Parts { splits, steps }))
}

/// Computes `c = epilogue(a b)` for epilogues without another matrix.
fn run(c: &Tensor, p: &MatmulProblem, e: &Epilogue<'_>, plan: &ProductPlan) -> Result<()> {
    let Parts { splits, steps: k_part } = *plan.get(&MMA)?;
    let Some([a, b]) = layouts(p) else { return Err(MatmulAlgorithm::foreign(&MMA)) };
    let tiles = p.m.div_ceil(SIDE) * p.n.div_ceil(SIDE);
    let part = if splits > 1 { Some(c.empty_f32([splits, c.count()])?) } else { None };
    let launch = bind(MMA.launch("matmul_mma"), c, p, e)?.define("A_ALONG_K", a.along_k);
    let launch =
        launch.define("B_ALONG_K", b.along_k).define("A_ALIGNED", a.aligned).define("B_ALIGNED", b.aligned);
    let launch = launch.define("C_ALIGNED", aligned_rows(c, p));
    let launch = match &part {
        Some(part) => launch.write(part),
        None => launch.write_base(&Unused(c)),
    };
    let k_part = i32::try_from(k_part).unwrap_or(i32::MAX);
    let launch = geometry(launch, p).scalar(k_part).scalar(e.alpha).scalar(e.flags());
    launch.local([128, 1, 1]).groups3([tiles, splits, p.batch()]).run()?;
    part.map_or(Ok(()), |part| add_parts(&part, c, p.n, e, splits))
}

/// Checks that small products are exact in the layouts of a forward and of both gradients. See [`Tuning::proven`].
fn proven(device: &Device) -> bool {
    Tuning::of(device).proven(device, &MMA, || {
        let dtypes =
            if allowed(device, DType::F32) { &[DType::Bf16, DType::F32][..] } else { &[DType::Bf16] };
        dtypes.iter().try_for_each(|dtype| {
            [[false, false], [false, true], [true, false]].into_iter().try_for_each(|transposed| {
                proof::exact(device, *dtype, proof::ALIGNED, transposed, |c, p| {
                    let request = MatmulRequest { c, p, e: &Epilogue::NONE, column_sums: false };
                    run(c, p, &Epilogue::NONE, &estimate(&request).1).map(|()| None)
                })
            })
        })
    })
}
