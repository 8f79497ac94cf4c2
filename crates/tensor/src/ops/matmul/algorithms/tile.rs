//! Products by local-memory tiles with 8 x 8 registers per work-item, on any GPU. There are three rows: tiles of 128 x 128, the same with copies
//! that bypass registers, and tiles of 64 x 64.

use super::super::arguments::{Unused, add_tail, bind, bind_bias, geometry};
use super::super::epilogue::Epilogue;
use super::super::split_k::{self, Costs, Joining, SplitKSchedule, TICKETS, TileThroughput, Tiles};
use super::super::view::{MatmulProblem, Matrix};
use super::{MatmulAlgorithm, MatmulRequest, ProductPlan, finished, trees};
use crate::ops::counters::zeroed;
use crate::ops::prelude::*;
use netcl_device::Capabilities;
use netcl_kernel::Launch;
use netcl_kernel::tune::{Constant, Model};

const TILE_PARTS: &[&str] = &[cl_file!("../../include/tickets.cl"), cl_file!("matmul_tile_async.cl")];

/// Work-items of a tile's group.
pub(in crate::ops::matmul) const ITEMS: usize = 256;

/// Kernel with 128 x 128 of C per group and 8 x 8 per item. Above 128 registers, an NVIDIA multiprocessor holds one group instead of two.
pub(in crate::ops::matmul) static TILE: Kernel = Kernel::new("matmul_tile", cl_file!("matmul_tile.cl"))
    .include(TILE_PARTS)
    .tune(&[("BK", &[16, 8])])
    .requires(|device| device.local_mem >= 34 << 10 && device.max_group >= ITEMS)
    .options(|device| if device.sm().is_some() { "-cl-nv-maxrregcount=128" } else { "" });

/// The same kernel for f32 with copies that bypass registers: NVIDIA from sm_80 on.
static ASYNC_KERNEL: Kernel = Kernel::new("matmul_async_sm80", cl_file!("matmul_tile.cl"))
    .include(TILE_PARTS)
    .tune(&[("BK", &[32, 16])])
    .requires(|device| device.sm() >= Some(80) && device.max_group >= ITEMS)
    .options(|_| "-cl-nv-maxrregcount=128");

/// Kernel with 64 x 64 of C per group and 8 x 8 per item in several sets, for small products and devices with little local memory.
pub(in crate::ops::matmul) static TILE_SMALL: Kernel =
    Kernel::new("matmul_tile_small", cl_file!("matmul_tile.cl"))
        .include(TILE_PARTS)
        .tune(&[("BK", &[8])])
        .requires(|device| device.local_mem >= 18 << 10 && device.max_group >= ITEMS)
        .options(|device| if device.sm().is_some() { "-cl-nv-maxrregcount=128" } else { "" });

/// Sources that expressions use; they precede the rest.
const TREE_PARTS: &[&str] = &[netcl_kernel::generate::FUNCTIONS, TILE_PARTS[0], TILE_PARTS[1]];

/// The three kernels with expressions.
static TREE: Kernel =
    Kernel::new("matmul_tile", cl_file!("matmul_tile.cl")).include(TREE_PARTS).options(registers);
static ASYNC_TREE: Kernel =
    Kernel::new("matmul_async_sm80", cl_file!("matmul_tile.cl")).include(TREE_PARTS).options(registers);
static SMALL_TREE: Kernel =
    Kernel::new("matmul_tile_small", cl_file!("matmul_tile.cl")).include(TREE_PARTS).options(registers);

fn registers(device: &Capabilities) -> &'static str {
    if device.sm().is_some() { "-cl-nv-maxrregcount=128" } else { "" }
}

/// Returns the kernel of a row, compiled with or without an expression.
fn text(kernel: &'static Kernel, e: &Epilogue<'_>) -> &'static Kernel {
    match (e.tree(), kernel.name) {
        (None, _) => kernel,
        (_, name) if name == TILE_SMALL.name => &SMALL_TREE,
        (_, name) if name == ASYNC_KERNEL.name => &ASYNC_TREE,
        _ => &TREE,
    }
}

/// Adds the expression's defines and arguments.
fn tree<'a>(launch: Launch<'a>, e: &Epilogue<'_>) -> Launch<'a> {
    match e.tree() {
        Some(tree) => tree.bind(launch.define("VW", 4)),
        None => launch,
    }
}

/// Builds a row's model constants: `step` microseconds on GPUs, `alone` and `start` of [`TileThroughput`].
const fn constants(step: f64, alone: f64, start: f64, short: f64) -> [Constant; 7] {
    [
        Constant::new("launch_us", "a launch", 8.0).cpu(15.0),
        // A CPU runs the items of a group one after the other.
        Constant::new("step_us", "a step of a tile's sum, while two groups share a unit", step)
            .cpu(100.0 * step),
        Constant::new("alone", "slowdown of a step if the group is alone on its unit", alone),
        Constant::new("start_steps", "cost of starting a group and storing its tile, in steps", start),
        Constant::new("elementwise", "slowdown of operands that are loaded through registers", 1.3).cpu(1.0),
        Constant::new("short_16_us", "minimum time with 16-bit operands and one slice of a sum", short),
        Constant::new("long_16_us", "minimum time with 16-bit operands and several slices", 1.3 * short),
    ]
}
static LARGE_MODEL: Model = Model { name: "matmul_tile", constants: &constants(0.18, 1.5, 16.0, 8.0) };
static ASYNC_MODEL: Model = Model { name: "matmul_async_sm80", constants: &constants(0.18, 1.5, 16.0, 8.0) };
static SMALL_MODEL: Model = Model { name: "matmul_tile_small", constants: &constants(0.062, 1.0, 32.0, 8.0) };

pub(super) static ASYNC: MatmulAlgorithm = MatmulAlgorithm {
    kernel: &ASYNC_KERNEL,
    supports: copied,
    models: &[&ASYNC_MODEL, &split_k::MODEL],
    estimate: |r| estimate(&ASYNC_KERNEL, &ASYNC_MODEL, r),
    run: |r, plan| run(&ASYNC_KERNEL, r, plan),
    self_test: None,
};
pub(super) static LARGE: MatmulAlgorithm = MatmulAlgorithm {
    kernel: &TILE,
    supports: any,
    models: &[&LARGE_MODEL, &split_k::MODEL],
    estimate: |r| estimate(&TILE, &LARGE_MODEL, r),
    run: |r, plan| run(&TILE, r, plan),
    self_test: None,
};
pub(super) static SMALL: MatmulAlgorithm = MatmulAlgorithm {
    kernel: &TILE_SMALL,
    supports: any,
    models: &[&SMALL_MODEL, &split_k::MODEL],
    estimate: |r| estimate(&TILE_SMALL, &SMALL_MODEL, r),
    run: |r, plan| run(&TILE_SMALL, r, plan),
    self_test: None,
};

fn any(r: &MatmulRequest<'_>) -> Result<(), &'static str> {
    if r.widens() { Err("f32 results of 16-bit operands") } else { Ok(()) }
}

fn copied(r: &MatmulRequest<'_>) -> Result<(), &'static str> {
    match r.dtype() {
        DType::F32 if copies(r.p) => any(r),
        DType::F32 => Err("lines that do not start at multiples of 16 bytes"),
        _ => Err("storage other than f32"),
    }
}

/// Returns whether rows start where 16-byte copies may, in operands that are copied so: those with a stride other than 1 along k.
fn copies(p: &MatmulProblem) -> bool {
    let aligned = |x: &Matrix, along: usize, other: usize, batch: [usize; 2]| {
        let aligned = [along, batch[0], batch[1], x.offset()].iter().all(|v| v.is_multiple_of(4));
        along == 1 && other != 1 || other == 1 && aligned
    };
    aligned(&p.a, p.a.col_stride, p.a.row_stride, p.a_strides)
        && aligned(&p.b, p.b.row_stride, p.b.col_stride, p.b_strides)
}

/// Returns the sets of 64 items in a group of [`TILE_SMALL`]: four sets need 34 KiB of local memory.
fn slices(device: &Device) -> usize {
    if device.capabilities().local_mem >= 36 << 10 { 4 } else { 2 }
}

/// Returns the steps of the sum that groups process at once.
fn step(kernel: &'static Kernel, r: &MatmulRequest<'_>) -> (usize, usize) {
    let bk = Tuning::value(r.device(), kernel, 0, "BK");
    // Longer slices of B along k would make the compiler spill registers.
    let b_along_k = access(&r.p.b, (r.p.k, r.p.b.row_stride), (r.p.n, r.p.b.col_stride), r.p.b_strides).0;
    let bk = if kernel.name == ASYNC_KERNEL.name && b_along_k { bk.min(16) } else { bk };
    let slices = if kernel.name == TILE_SMALL.name { slices(r.device()) } else { 1 };
    (bk, slices)
}

/// Returns the rows and columns of a tile.
fn side(kernel: &Kernel) -> usize {
    if kernel.name == TILE_SMALL.name { 64 } else { 128 }
}

/// Returns whether the last group of a tile may add its parts. It must see the writes of other groups, as it does from sm_70 on.
pub(super) fn last_can_join(device: &Device) -> bool {
    device.capabilities().sm() >= Some(70)
}

fn estimate(kernel: &'static Kernel, model: &'static Model, r: &MatmulRequest<'_>) -> (f64, ProductPlan) {
    let [launch, step_us, alone, start, elementwise, short, long] = model.on(r.device());
    let (side, p, (bk, slices)) = (side(kernel), r.p, step(kernel, r));
    let tiles = p.m.div_ceil(side) * p.n.div_ceil(side) * p.batch();
    let costs = Costs {
        tile: TileThroughput { area: side * side, step: step_us, alone, start },
        joining: Joining::on(r.device()),
        units: r.units(),
        last: last_can_join(r.device()),
    };
    let schedule = SplitKSchedule::of(tiles, p.k, bk * slices, &costs);
    // Loads go through registers, and one element at a time if nothing else is possible.
    let slower = if copies(p) { 1.0 } else { elementwise };
    let micros = launch + slower * schedule.cost(p.k, &costs);
    // 16-bit operands are widened during loading. From the second slice on, groups wait for this.
    let least = match r.dtype() {
        DType::F32 => 0.0,
        _ if r.device().capabilities().is_cpu() => 0.0,
        _ if p.k <= 32 => short,
        _ => long,
    };
    (micros.max(least), ProductPlan::of(Tiles(schedule)))
}

/// Returns the axis along which a matrix is read (`true` for k) and the elements per read, from its stride along k, its other stride and its sizes.
fn access(x: &Matrix, along: (usize, usize), other: (usize, usize), batch: [usize; 2]) -> (bool, usize) {
    let ((k_size, k_stride), (size, stride)) = (along, other);
    let along_k = k_stride == 1 && stride != 1;
    let (unit, length, rest) = if along_k { (k_stride, k_size, stride) } else { (stride, size, k_stride) };
    let fours = [length, rest, batch[0], batch[1], x.offset()].iter().all(|v| v.is_multiple_of(4));
    (along_k, if unit == 1 && fours { 4 } else { 1 })
}

fn run(kernel: &'static Kernel, r: &MatmulRequest<'_>, plan: &ProductPlan) -> Result<Option<Tensor>> {
    finished(r, trees, |r| product(kernel, r, plan))
}

fn product(kernel: &'static Kernel, r: &MatmulRequest<'_>, plan: &ProductPlan) -> Result<Option<Tensor>> {
    let Tiles(schedule) = *plan.get(kernel)?;
    let MatmulRequest { c, p, e, .. } = *r;
    if c.count() == 0 {
        return Ok(None);
    }
    let device = c.device();
    let capabilities = device.capabilities();
    let small = kernel.name == TILE_SMALL.name;
    let (side, (bk, slices)) = (side(kernel), step(kernel, r));
    let items = side * side / 64;
    let (a_along_k, va) = access(&p.a, (p.k, p.a.col_stride), (p.m, p.a.row_stride), p.a_strides);
    let (b_along_k, vb) = access(&p.b, (p.k, p.b.row_stride), (p.n, p.b.col_stride), p.b_strides);
    // With fewer elements than items, elements are read one at a time.
    let widest = (side * bk / items).min(4);
    let (va, vb) = (if va > widest { 1 } else { va }, if vb > widest { 1 } else { vb });
    let step = bk * slices;
    let part = match schedule.tail {
        0 => None,
        tail => Some(c.empty_f32([schedule.splits, tail, side * side])?),
    };
    let launch = bind(text(kernel, e).launch("matmul_tile"), c, p, e)?;
    let launch = match &part {
        Some(part) => launch.write(part),
        None => launch.write_base(&Unused(c)),
    };
    let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
    let launch = geometry(launch, p)
        .scalar(int(schedule.k_part))
        .scalar(int(schedule.full))
        .scalar(int(schedule.tail.max(1)));
    let launch = launch.scalar(e.alpha).scalar(e.flags());
    let launch = if schedule.last {
        launch.define("LAST", 1).write_base(&zeroed(device, "matmul_tile", TICKETS)?)
    } else {
        launch
    };
    let whole = p.m.is_multiple_of(side) && p.n.is_multiple_of(side) && p.k.is_multiple_of(step);
    let async_small =
        small && capabilities.sm() >= Some(80) && c.dtype() == DType::F32 && copies(p) && slices == 4;
    let shape = |launch: Launch<'static>| {
        let launch = launch.define("A_ALONG_K", a_along_k).define("B_ALONG_K", b_along_k);
        let launch = launch.define("VA", va).define("VB", vb).define("WG", items * slices).define("BK", bk);
        let launch = launch.define("SLICES", slices);
        let launch = launch.define("BM", side).define("BN", side).define("TM", 8).define("TN", 8);
        if kernel.name == ASYNC_KERNEL.name || async_small {
            launch.define("ASYNC", 1).define("WHOLE_TILES", whole)
        } else {
            launch
        }
    };
    shape(tree(launch, e)).groups(schedule.groups()).run()?;
    let Some(part) = part.filter(|_| !schedule.last) else { return Ok(None) };
    add_tail(shape(text(kernel, e).launch("matmul_tile_sum")), &part, c, p, e, schedule, side).map(|()| None)
}

/// Runs [`add_tail`] for parts of 128 x 128 tiles that another kernel stored.
pub(in crate::ops::matmul) fn add_tail_of_128(
    part: &Tensor,
    c: &Tensor,
    p: &MatmulProblem,
    e: &Epilogue<'_>,
    schedule: SplitKSchedule,
) -> Result<()> {
    let launch = TILE.launch("matmul_tile_sum").define("WG", ITEMS);
    let launch = launch.define("BM", 128).define("BN", 128).define("TM", 8).define("TN", 8);
    add_tail(launch, part, c, p, e, schedule, 128)
}

/// Computes `c = epilogue(sum of the parts)`. Each part is as large as `c`; they are added in order.
pub(in crate::ops::matmul) fn add_parts(
    part: &Tensor,
    c: &Tensor,
    columns: usize,
    e: &Epilogue<'_>,
    splits: usize,
) -> Result<()> {
    let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
    let launch = TILE_SMALL.launch("matmul_parts_sum").define("DTYPE", c.dtype().code()).define("WG", ITEMS);
    let launch = bind_bias(launch.read(part), e, c)?;
    let launch = launch.write(c).scalar(c.count()).scalar(int(columns)).scalar(int(splits));
    launch.scalar(e.alpha).scalar(e.flags()).items(c.count()).run()
}
