//! One product onto the device: which kernel, which blocks, how many groups.

use super::super::counters::zeroed;
use super::super::elementwise::UNARY;
use super::super::map::map_into;
use super::super::memo::remembered;
use super::super::prelude::*;
use super::bf16x3::{self, BF16X3};
use super::gemv::{self, FEW_ROWS, GEMV, GEMV_VECTOR, MOST_ROWS};
use super::mma::{self, MMA};
use super::plan::{self, Blocks, SplitKSchedule, TICKETS, TileThroughput};
use super::view::{Matrix, Problem};
use super::wgmma::{self, WGMMA};
use netcl_device::{Buffer, ErrorKind};
use netcl_kernel::{Launch, Variants};

/// CPUs, and what cannot run a tile of any size.
pub(super) static VECTOR: Kernel = Kernel::new("matmul_vector", include_str!("matmul_vector.cl"))
    .include(&[include_str!("matmul_panels.cl")])
    .tune(&[("VW", &[0]), ("KC", &[384, 256]), ("NC", &[192, 256, 128]), ("MC", &[48, 96])])
    .requires(|device| device.is_cpu() || device.local_mem < 18 << 10 || device.max_group < ITEMS);

const TILE_PARTS: &[&str] = &[include_str!("../include/tickets.cl"), include_str!("matmul_tile_async.cl")];

/// 128 x 128 of C a group, 8 x 8 an item. Over 128 registers an NVIDIA multiprocessor holds one group instead of two.
static TILE: Kernel = Kernel::new("matmul_tile", include_str!("matmul_tile.cl"))
    .include(TILE_PARTS)
    .tune(&[("BK", &[16, 8])])
    .requires(|device| device.local_mem >= 34 << 10 && device.max_group >= ITEMS)
    .options(|device| if device.nvidia_cc > 0 { "-cl-nv-maxrregcount=128" } else { "" });

/// The same for f32 with copies that pass no registers: NVIDIA from sm_80 on.
static ASYNC: Kernel = Kernel::new("matmul_async_sm80", include_str!("matmul_tile.cl"))
    .include(TILE_PARTS)
    .tune(&[("BK", &[32, 16])])
    .requires(|device| device.nvidia_cc >= 80 && device.max_group >= ITEMS)
    .options(|_| "-cl-nv-maxrregcount=128");

/// 64 x 64 of C a group, 8 x 8 an item of several sets: small products, and devices with little local memory.
static TILE_SMALL: Kernel = Kernel::new("matmul_tile_small", include_str!("matmul_tile.cl"))
    .include(TILE_PARTS)
    .tune(&[("BK", &[8])])
    .requires(|device| device.local_mem >= 18 << 10 && device.max_group >= ITEMS)
    .options(|device| if device.nvidia_cc > 0 { "-cl-nv-maxrregcount=128" } else { "" });

static MATMUL: Variants = Variants::new(
    "matmul",
    &[&GEMV_VECTOR, &VECTOR, &GEMV, &WGMMA, &MMA, &BF16X3, &ASYNC, &TILE, &TILE_SMALL],
);

/// Work-items of a tile's group.
const ITEMS: usize = 256;

/// Bits of the kernels' `flags`.
const ADD_C: i32 = 1;
const BIAS: i32 = 2;
const COLUMN_SUMS: i32 = 4;

/// What happens to a sum on its way into C.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Epilogue<'a> {
    /// Factor of the product.
    pub alpha: f32,
    /// Added to each row: `(n)`, of C's type.
    pub bias: Option<&'a Tensor>,
    /// Add to what C holds.
    pub add: bool,
    /// What else is done: on the way where the kernel can, after it where not.
    pub aux: Aux<'a>,
}

/// What an epilogue does with another matrix of C's shape and type, dense.
#[derive(Clone, Copy)]
pub(in crate::ops) enum Aux<'a> {
    /// Nothing.
    None,
    /// Adds it.
    Residual(&'a Tensor),
    /// C becomes GELU (tanh) of the sum, and the matrix the sum.
    Gelu(&'a Tensor),
    /// C is multiplied by the derivative of GELU (tanh) there.
    GeluGrad(&'a Tensor),
}

impl<'a> Aux<'a> {
    /// The other matrix.
    pub(super) fn tensor(&self) -> Option<&'a Tensor> {
        match self {
            Self::None => None,
            Self::Residual(x) | Self::Gelu(x) | Self::GeluGrad(x) => Some(x),
        }
    }
}

impl Epilogue<'_> {
    /// C is the product.
    pub(in crate::ops) const NONE: Epilogue<'static> =
        Epilogue { alpha: 1.0, bias: None, add: false, aux: Aux::None };

    pub(super) fn flags(&self) -> i32 {
        (if self.add { ADD_C } else { 0 }) | (if self.bias.is_some() { BIAS } else { 0 })
    }
}

/// An argument that this launch does not touch.
pub(super) struct Unused<'a>(pub &'a Tensor);

impl Operand for Unused<'_> {
    fn buffer(&self) -> &Buffer {
        self.0.storage()
    }
    fn bytes(&self) -> usize {
        0
    }
}

/// `c = epilogue(a b)`; `c` is dense and has as many elements as the product. Returns the sums of the columns of `b`
/// (summed in f32) where they were asked for and this device's kernel makes them on the way.
pub(in crate::ops) fn run(
    c: &Tensor,
    p: &Problem,
    epilogue: &Epilogue<'_>,
    column_sums: bool,
) -> Result<Option<Tensor>> {
    let largest = i32::MAX.cast_unsigned() as usize;
    if p.m.max(p.n).max(p.k).max(p.batch()) > largest {
        return Err(Error::shape(format!(
            "matmul: {} products of ({}, {}) and ({}, {}) have an axis above {largest}; split it",
            p.batch(),
            p.m,
            p.k,
            p.k,
            p.n
        )));
    }
    let kernel = choose(c, p, column_sums)?;
    let tf32 = c.dtype() == DType::F32;
    if kernel.name == WGMMA.name && !tf32 {
        match wgmma::run(c, p, epilogue, column_sums) {
            Err(e) if refused(&e) => Tuning::of(c.device()).retire(c.device(), &WGMMA, e.message()),
            outcome => return outcome,
        }
        return run(c, p, epilogue, column_sums);
    }
    let plain = Epilogue { aux: Aux::None, ..*epilogue };
    let sum = if let Aux::Gelu(before) = epilogue.aux { before } else { c };
    let sums = match kernel.name == VECTOR.name {
        true => vector(sum, p, &plain, column_sums && p.batch() == 1)?,
        false if c.count() == 0 => None,
        false if is_gemv(kernel) => {
            let with = if let Aux::Residual(_) = epilogue.aux { epilogue } else { &plain };
            gemv::run(kernel, sum, p, with).map(|()| None)?
        }
        false if [MMA.name, WGMMA.name, BF16X3.name].contains(&kernel.name) => {
            let multiply = match kernel.name {
                name if name == MMA.name => mma::run,
                name if name == BF16X3.name => bf16x3::run,
                _ => wgmma::run_tf32,
            };
            match multiply(sum, p, &plain) {
                Err(e) if refused(&e) => {
                    Tuning::of(c.device()).retire(c.device(), kernel, e.message());
                    return run(c, p, epilogue, column_sums);
                }
                outcome => outcome.map(|()| None)?,
            }
        }
        false => tile(kernel, sum, p, &plain).map(|()| None)?,
    };
    match epilogue.aux {
        Aux::None => {}
        Aux::Residual(_) if is_gemv(kernel) && c.count() > 0 => {}
        Aux::Residual(x) => map_into("x0 + x1", &[x, c], &[], c)?,
        Aux::Gelu(before) => map_into(gelu()?.0, &[before], &[], c)?,
        Aux::GeluGrad(before) => map_into(gelu()?.1, &[before, c], &[], c)?,
    }
    Ok(sums)
}

/// One of the kernels that take a product of f32 to `c`.
#[cfg(test)]
pub(super) type Way<'a> = (&'static str, Box<dyn Fn(&Tensor) -> Result<()> + 'a>);

/// Those by tensor cores and by f32 units in large and in small tiles, in this order.
#[cfg(test)]
pub(super) fn f32_ways<'a>(device: &Device, p: &'a Problem) -> Vec<Way<'a>> {
    let units = if copies(p) && ASYNC.runs_on(device.capabilities()) { &ASYNC } else { &TILE };
    let by_units = |kernel: &'static Kernel| -> Way<'a> {
        (kernel.name, Box::new(move |c| tile(kernel, c, p, &Epilogue::NONE)))
    };
    let mut ways = vec![by_units(units), by_units(&TILE_SMALL)];
    if BF16X3.runs_on(device.capabilities()) {
        ways.insert(0, (BF16X3.name, Box::new(move |c| bf16x3::run(c, p, &Epilogue::NONE))));
    }
    ways
}

/// Whether the driver's assembler does not like one of a variant's many texts; the other kernels take every product.
fn refused(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Build | ErrorKind::Unsupported)
}

/// `sum = a b`, or `sum += a b` where it is not the first of several products; `sum` (m, n) is f32, whatever a and b are.
pub(in crate::ops) fn accumulate(sum: &Tensor, p: &Problem, first: bool) -> Result<()> {
    let device = sum.device();
    let dtype = p.a.tensor.dtype();
    if dtype == DType::F32 {
        return run(sum, p, &Epilogue { add: !first, ..Epilogue::NONE }, false).map(drop);
    }
    let takes = |kernel: &Kernel| kernel.name == WGMMA.name && wgmma::fits_sum(p) && wgmma::proven(device);
    if MATMUL.choose_where(device, 0, takes).is_ok() {
        match wgmma::run_sum(sum, p, first) {
            Err(e) if refused(&e) => Tuning::of(device).retire(device, &WGMMA, e.message()),
            outcome => return outcome,
        }
    }
    // Each part is rounded once before it is added: what their sum is rounded to in the end.
    let part = Tensor::empty(device, [p.m, p.n], dtype)?;
    run(&part, p, &Epilogue::NONE, false)?;
    match first {
        true => map_into("x0", &[&part], &[], sum),
        false => map_into("x0 + x1", &[sum, &part], &[], sum),
    }
}

/// Expressions of GELU (tanh) and of its gradient, as the element-wise op has them.
fn gelu() -> Result<(&'static str, &'static str)> {
    let row = UNARY.iter().find(|row| row.name == "gelu_tanh");
    row.map(|row| (row.y, row.dx)).ok_or_else(|| Error::internal("no element-wise op gelu_tanh"))
}

static GELU_RECOMPUTED: Kernel = Kernel::new("gelu_sm90", include_str!("gelu_sm90.cl"));

/// GELU of what [`Aux::Gelu`] left in `before` for the product `p`, with the bits of the launch that left it.
pub(in crate::ops) fn gelu_recomputed(before: &Tensor, p: &Problem) -> Result<Tensor> {
    // Only its kernel for 16 bits has the GELU within.
    let within =
        before.dtype() != DType::F32 && before.count() > 0 && choose(before, p, false)?.name == WGMMA.name;
    if !within {
        return map(gelu()?.0, &[before], &[], before.shape(), before.dtype());
    }
    let y = before.empty_like()?;
    let launch =
        GELU_RECOMPUTED.launch("gelu_recomputed").define("DTYPE", before.dtype().code()).local([256, 1, 1]);
    launch.items(before.count().div_ceil(2)).read(before).write(&y).scalar(before.count()).run()?;
    Ok(y)
}

/// `c (M, N)` of few rows with all that `fused` says, in one launch; `false` where no kernel here takes it.
pub(in crate::ops) fn run_few_rows(c: &Tensor, p: &Problem, fused: &gemv::Fused<'_>) -> Result<bool> {
    let takes = |kernel: &Kernel| is_gemv(kernel) && gemv::fits(kernel, c, p);
    match MATMUL.choose_where(c.device(), FEW_ROWS, takes) {
        Ok(kernel) => gemv::run_fused(kernel, c, p, fused).map(|()| true),
        Err(_) => Ok(false),
    }
}

fn is_gemv(kernel: &Kernel) -> bool {
    [GEMV.name, GEMV_VECTOR.name].contains(&kernel.name)
}

fn choose(c: &Tensor, p: &Problem, column_sums: bool) -> Result<&'static Kernel> {
    let device = c.device();
    let bucket = if p.m <= MOST_ROWS { FEW_ROWS } else { 0 };
    // What is only slower is no reason against the one that is being tried.
    let tried = |kernel| Tuning::tries(device, &MATMUL, kernel);
    MATMUL
        .choose_where(device, bucket, |kernel| match kernel.name {
            name if name == GEMV.name || name == GEMV_VECTOR.name => !column_sums && gemv::fits(kernel, c, p),
            name if name == TILE.name => fills(device, p) || tried(&TILE),
            name if name == ASYNC.name => {
                c.dtype() == DType::F32 && copies(p) && (fills_split_k(device, p) || tried(&ASYNC))
            }
            name if name == WGMMA.name => {
                (wgmma::fits(c, p) || tf32_pays(c, p, wgmma::cost_tf32(c, p), true)) && wgmma::proven(device)
            }
            name if name == MMA.name => {
                mma::fits(c, p)
                    && (c.dtype() != DType::F32 || tf32_pays(c, p, Some(mma::cost(p, c.dtype())), false))
                    && mma::proven(device)
            }
            name if name == BF16X3.name => {
                (bf16x3::fits(c, p) || (tried(&BF16X3) && bf16x3::cost(c, p).is_some()))
                    && bf16x3::proven(device)
            }
            _ => true,
        })
        .or_else(|_| MATMUL.choose_where(device, bucket, |kernel| !is_gemv(kernel)))
}

/// Whether a kernel that takes f32 as tf32 in `cost` microseconds is faster than what comes after it.
fn tf32_pays(c: &Tensor, p: &Problem, cost: Option<f64>, before_mma: bool) -> bool {
    let Some(cost) = cost else { return false };
    let runs = |kernel: &Kernel| kernel.runs_on(c.device().capabilities());
    let others = [
        (before_mma && runs(&MMA) && mma::fits(c, p)).then(|| mma::cost(p, c.dtype())),
        if runs(&BF16X3) && bf16x3::suits(p) { bf16x3::cost(c, p) } else { None },
    ];
    others.into_iter().flatten().all(|other| cost <= other)
}

/// Whether rows start where copies of 16 bytes may, in operands that are copied so: those whose stride along k is not 1.
fn copies(p: &Problem) -> bool {
    let aligned = |x: &Matrix, along: usize, other: usize, batch: [usize; 2]| {
        let aligned = [along, batch[0], batch[1], x.offset()].iter().all(|v| v.is_multiple_of(4));
        along == 1 && other != 1 || other == 1 && aligned
    };
    aligned(&p.a, p.a.col_stride, p.a.row_stride, p.a_strides)
        && aligned(&p.b, p.b.row_stride, p.b.col_stride, p.b_strides)
}

/// Estimated microseconds of a product in f32 by f32 units, on a device like an H200, in large tiles where they keep it busy or in
/// small ones.
pub(super) fn cost_of_units(device: &Device, p: &Problem) -> f64 {
    let capabilities = device.capabilities();
    let (units, last) = (capabilities.compute_units.max(1) as usize, capabilities.nvidia_cc >= 70);
    let tiles = p.m.div_ceil(64) * p.n.div_ceil(64) * p.batch();
    let step = Tuning::value(device, &TILE_SMALL, 0, "BK") * slices(device);
    let small = remembered(device, "matmul_small_cost", [tiles, p.k, step, 0], || {
        SplitKSchedule::of(tiles, p.k, step, &plan::SMALL, units, last).cost(p.k, &plan::SMALL, units, last)
    });
    // Through registers, and element by element where nothing else is possible.
    let small = if copies(p) { small } else { 1.3 * small };
    let large = fills(device, p) || copies(p) && fills_split_k(device, p);
    if !large {
        return LAUNCH + small;
    }
    let (tiles, step) =
        (p.m.div_ceil(128) * p.n.div_ceil(128) * p.batch(), Tuning::value(device, &ASYNC, 0, "BK"));
    let large = remembered(device, "matmul_large_cost", [tiles, p.k, step, 0], || {
        SplitKSchedule::of(tiles, p.k, step, &plan::LARGE, units, last).cost(p.k, &plan::LARGE, units, last)
    });
    LAUNCH + small.min(large)
}

/// Microseconds of a launch.
const LAUNCH: f64 = 5.5;

/// Sets of 64 items of a group of [`TILE_SMALL`]: four need 34 KiB of local memory.
fn slices(device: &Device) -> usize {
    if device.capabilities().local_mem >= 36 << 10 { 4 } else { 2 }
}

/// Whether large tiles keep a device busy.
fn fills(device: &Device, p: &Problem) -> bool {
    let tiles = p.m.div_ceil(128) * p.n.div_ceil(128) * p.batch();
    tiles >= device.capabilities().compute_units as usize && p.m >= 96 && p.n >= 96
}

/// Whether they do when a long sum is shared out, at least sixteen slices to a group.
fn fills_split_k(device: &Device, p: &Problem) -> bool {
    let works = p.m.div_ceil(128) * p.n.div_ceil(128) * p.batch() * (p.k / 256).max(1);
    works >= device.capabilities().compute_units as usize / 2 && p.m >= 96 && p.n >= 96
}

pub(super) fn bind<'a>(launch: Launch<'a>, c: &Tensor, p: &Problem, e: &Epilogue<'_>) -> Result<Launch<'a>> {
    let launch = launch.flops((2 * p.m * p.n * p.k * p.batch()) as u64);
    let launch = launch.define("DTYPE", c.dtype().code()).read_base(&p.a.tensor).read_base(&p.b.tensor);
    Ok(bind_bias(launch, e, &p.b.tensor)?.write(c))
}

/// The bias, or `other` in its place where there is none.
fn bind_bias<'a>(launch: Launch<'a>, e: &Epilogue<'_>, other: &Tensor) -> Result<Launch<'a>> {
    Ok(match e.bias {
        Some(bias) => launch.read(&bias.detach().contiguous()?),
        None => launch.read_base(&Unused(other)),
    })
}

/// The scalars that both kernels begin with.
pub(super) fn geometry<'a>(launch: Launch<'a>, p: &Problem) -> Launch<'a> {
    let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
    let launch = launch.scalar(p.a.offset()).scalar(p.b.offset());
    let launch = launch.scalar(int(p.m)).scalar(int(p.n)).scalar(int(p.k)).scalar(int(p.z[1].max(1)));
    let [a0, a1] = p.a_strides;
    let [b0, b1] = p.b_strides;
    let strides = [a0, a1, b0, b1, p.a.row_stride, p.a.col_stride, p.b.row_stride, p.b.col_stride];
    strides.into_iter().fold(launch, |launch, stride| launch.scalar(stride))
}

fn vector(c: &Tensor, p: &Problem, e: &Epilogue<'_>, column_sums: bool) -> Result<Option<Tensor>> {
    let device = c.device();
    let blocks = Blocks::of(device);
    let narrow = c.dtype() != DType::F32;
    let copies_a = narrow || p.a.col_stride != 1;
    let plan = blocks.plan(p, copies_a, device.capabilities().compute_units as usize);
    let sums = if column_sums { Some(c.empty_f32([p.n])?) } else { None };
    let launch = bind(VECTOR.launch("matmul_vector"), c, p, e)?;
    let launch = match &sums {
        Some(sums) => launch.write(sums),
        None => launch.write_base(&Unused(c)),
    };
    let launch = match narrow {
        true if p.k > plan.kc => launch.write(&c.empty_f32([p.batch(), p.m, p.n])?),
        true => launch.write_base(&Unused(c)),
        false => launch,
    };
    let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
    let launch = [plan.mg, plan.ng, plan.mc, plan.nc, plan.kc]
        .into_iter()
        .fold(geometry(launch, p), |launch, v| launch.scalar(int(v)));
    let flags = e.flags() | if column_sums { COLUMN_SUMS } else { 0 };
    let launch = launch.scalar(e.alpha).scalar(flags).define("MR", blocks.mr).define("NV", blocks.nv);
    let launch = launch.define("KC", blocks.kc).define("MC", blocks.mc).define("NC", blocks.nc);
    // Without rows there are still column sums to make.
    let rows = if column_sums { p.m.max(1) } else { p.m };
    launch.groups3([rows.div_ceil(plan.mg), p.n.div_ceil(plan.ng), p.batch()]).run()?;
    Ok(sums)
}

/// Along which axis a matrix is read, and how many elements at once: its stride along k, its other stride and size.
fn access(x: &Matrix, along: (usize, usize), other: (usize, usize), batch: [usize; 2]) -> (bool, usize) {
    let ((k_size, k_stride), (size, stride)) = (along, other);
    let along_k = k_stride == 1 && stride != 1;
    let (unit, length, rest) = if along_k { (k_stride, k_size, stride) } else { (stride, size, k_stride) };
    let fours = [length, rest, batch[0], batch[1], x.offset()].iter().all(|v| v.is_multiple_of(4));
    (along_k, if unit == 1 && fours { 4 } else { 1 })
}

fn tile(kernel: &'static Kernel, c: &Tensor, p: &Problem, e: &Epilogue<'_>) -> Result<()> {
    let device = c.device();
    let capabilities = device.capabilities();
    let small = kernel.name == TILE_SMALL.name;
    let (throughput, slices): (&TileThroughput, _) =
        if small { (&plan::SMALL, slices(device)) } else { (&plan::LARGE, 1) };
    let side = throughput.area.isqrt();
    let items = throughput.area / 64;
    let (a_along_k, va) = access(&p.a, (p.k, p.a.col_stride), (p.m, p.a.row_stride), p.a_strides);
    let (b_along_k, vb) = access(&p.b, (p.k, p.b.row_stride), (p.n, p.b.col_stride), p.b_strides);
    let bk = Tuning::value(device, kernel, 0, "BK");
    // Longer slices of B along k cost the compiler its registers.
    let bk = if kernel.name == ASYNC.name && b_along_k { bk.min(16) } else { bk };
    // Fewer elements than items: one at a time.
    let widest = (side * bk / items).min(4);
    let (va, vb) = (if va > widest { 1 } else { va }, if vb > widest { 1 } else { vb });
    let tiles = p.m.div_ceil(side) * p.n.div_ceil(side) * p.batch();
    let last = capabilities.nvidia_cc >= 70;
    let units = capabilities.compute_units as usize;
    let step = bk * slices;
    let schedule = remembered(device, kernel.name, [tiles, p.k, step, side], || {
        SplitKSchedule::of(tiles, p.k, step, throughput, units, last)
    });
    let last = last && schedule.tail > 0 && schedule.last_joins(throughput.area);
    let part = match schedule.tail {
        0 => None,
        tail => Some(c.empty_f32([schedule.splits, tail, side * side])?),
    };
    let launch = bind(kernel.launch("matmul_tile"), c, p, e)?;
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
    let launch = if last {
        launch.define("LAST", 1).write_base(&zeroed(device, "matmul_tile", TICKETS)?)
    } else {
        launch
    };
    let whole = p.m.is_multiple_of(side) && p.n.is_multiple_of(side) && p.k.is_multiple_of(step);
    let async_small =
        small && capabilities.nvidia_cc >= 80 && c.dtype() == DType::F32 && copies(p) && slices == 4;
    let shape = |launch: Launch<'static>| {
        let launch = launch.define("A_ALONG_K", a_along_k).define("B_ALONG_K", b_along_k);
        let launch = launch.define("VA", va).define("VB", vb).define("WG", items * slices).define("BK", bk);
        let launch = launch.define("SLICES", slices);
        let launch = launch.define("BM", side).define("BN", side).define("TM", 8).define("TN", 8);
        if kernel.name == ASYNC.name || async_small {
            launch.define("ASYNC", 1).define("WHOLE_TILES", whole)
        } else {
            launch
        }
    };
    shape(launch).groups(schedule.groups()).run()?;
    let Some(part) = part.filter(|_| !last) else { return Ok(()) };
    add_tail(shape(kernel.launch("matmul_tile_sum")), &part, c, p, e, schedule, side)
}

/// [`add_tail`] for parts of tiles of 128 x 128 that another kernel left.
pub(super) fn add_tail_of_128(
    part: &Tensor,
    c: &Tensor,
    p: &Problem,
    e: &Epilogue<'_>,
    schedule: SplitKSchedule,
) -> Result<()> {
    let launch = TILE.launch("matmul_tile_sum").define("WG", ITEMS);
    let launch = launch.define("BM", 128).define("BN", 128).define("TM", 8).define("TN", 8);
    add_tail(launch, part, c, p, e, schedule, 128)
}

/// The last tiles, `side` x `side` each, of `c = epilogue(sum of the parts)`: `part` (splits, tail, side, side). `launch` is of
/// matmul_tile_sum and knows the shape of its tiles.
fn add_tail(
    launch: Launch<'static>,
    part: &Tensor,
    c: &Tensor,
    p: &Problem,
    e: &Epilogue<'_>,
    schedule: SplitKSchedule,
    side: usize,
) -> Result<()> {
    let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
    let launch = bind_bias(launch.define("DTYPE", c.dtype().code()).read(part), e, c)?;
    let launch = launch.write(c).scalar(int(p.m)).scalar(int(p.n));
    let launch = launch.scalar(int(schedule.full)).scalar(int(schedule.tail)).scalar(int(schedule.splits));
    launch.scalar(e.alpha).scalar(e.flags()).items(schedule.tail * side * side / 4).run()
}

/// `c = epilogue(sum of the parts)`, each as large as `c`, in their order.
pub(super) fn add_parts(
    part: &Tensor,
    c: &Tensor,
    p: &Problem,
    e: &Epilogue<'_>,
    splits: usize,
) -> Result<()> {
    let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
    let launch = TILE_SMALL.launch("matmul_parts_sum").define("DTYPE", c.dtype().code()).define("WG", ITEMS);
    let launch = bind_bias(launch.read(part), e, c)?;
    let launch = launch.write(c).scalar(c.count()).scalar(int(p.n)).scalar(int(splits));
    launch.scalar(e.alpha).scalar(e.flags()).items(c.count()).run()
}
