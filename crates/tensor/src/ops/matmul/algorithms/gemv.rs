//! Products of few rows: what a decoder makes of one token, or of one for each of a few texts. The matrix is read once, so the kernels are
//! built for the memory's bandwidth and not for arithmetic, and what comes before and after the product rides along.

use super::super::arguments::Unused;
use super::super::epilogue::Epilogue;
use super::super::view::Problem;
use super::tile::add_parts;
use super::{Algorithm, Aux, Plan, Request, finished};
use crate::ops::gated::Gate;
use crate::ops::prelude::*;
use crate::quant::Stored;
use netcl_kernel::Launch;
use netcl_kernel::tune::{Constant, Model};

pub(super) const ENDS: &[&str] =
    &[cl_file!("../../include/activation.cl"), crate::quant::UNPACK, cl_file!("matmul_gemv_ends.cl")];

/// CPUs.
static GEMV_VECTOR: Kernel = Kernel::new("matmul_gemv_vector", cl_file!("matmul_gemv_vector.cl"))
    .include(ENDS)
    .tune(&[("VW", &[0])])
    .requires(|device| device.is_cpu());

/// GPUs.
static GEMV: Kernel = Kernel::new("matmul_gemv", cl_file!("matmul_gemv.cl"))
    .include(ENDS)
    .tune(&[("WG", &[256, 128])])
    .requires(|device| device.local_mem >= 40 << 10 && device.max_group >= LEAST_GROUP);

/// Rows that the kernels take at most.
const MOST_ROWS: usize = 8;

/// The smallest group of [`GEMV`]: four sets of a line's items.
const LEAST_GROUP: usize = 128;

/// Bytes of A in local memory of a GPU's group.
const STAGED: usize = 16 << 10;

/// The norm that A's rows go through before the product.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Norm<'a> {
    /// (K).
    pub gamma: &'a Tensor,
    /// (K): layer norm; without it root mean square norm.
    pub beta: Option<&'a Tensor>,
    /// Whether the factor is 1 + gamma.
    pub unit_offset: bool,
    pub eps: f32,
}

/// `c = act(alpha * norm(a) b + bias) (* value | + c | + residual)`.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Fused<'a> {
    pub alpha: f32,
    pub norm: Option<Norm<'a>>,
    /// Of as many elements as b has columns.
    pub bias: Option<&'a Tensor>,
    /// The activation, and whether b's second half are values that it is multiplied by.
    pub activation: Option<(Gate, bool)>,
    /// Add to what c holds.
    pub add: bool,
    /// Like c, dense.
    pub residual: Option<&'a Tensor>,
    /// b's lines along k are quantised blocks, with strides and offset in bytes.
    pub blocks: Option<Stored>,
}

impl Fused<'_> {
    pub(in crate::ops) const NONE: Fused<'static> = Fused {
        alpha: 1.0,
        norm: None,
        bias: None,
        activation: None,
        add: false,
        residual: None,
        blocks: None,
    };

    pub(in crate::ops::matmul) fn parts(&self) -> usize {
        if matches!(self.activation, Some((_, true))) { 2 } else { 1 }
    }
    /// Whether only the epilogue's bias and sum come after the product.
    fn is_plain(&self) -> bool {
        self.norm.is_none() && self.activation.is_none() && self.residual.is_none()
    }
}

/// Whether the lines of B, along k or along n, lie without gaps, and along which: `true` along k.
fn along_k(p: &Problem) -> Option<bool> {
    match (p.b.row_stride, p.b.col_stride) {
        // A single column has its elements along k however far apart columns would be.
        (1, _) => Some(true),
        (_, 1) => Some(false),
        _ => None,
    }
}

pub(super) static ON_PROCESSORS: Algorithm = Algorithm {
    kernel: &GEMV_VECTOR,
    supports: supports_staged,
    models: &[&MODEL],
    estimate: estimate_on_processors,
    run: |r, _| run(&GEMV_VECTOR, r),
    self_test: None,
};
pub(super) static ON_GPUS: Algorithm = Algorithm {
    kernel: &GEMV,
    supports,
    models: &[&GPU_MODEL],
    estimate: |r| (estimate_on_gpus(r), Plan::Direct),
    run: |r, _| run(&GEMV, r),
    self_test: None,
};

fn supports(r: &Request<'_>) -> Result<(), &'static str> {
    let p = r.p;
    match () {
        () if !(1..=MOST_ROWS).contains(&p.m) => Err("not between 1 and 8 rows"),
        () if p.batch() != 1 || p.n == 0 || p.k == 0 => Err("several products, or an empty one"),
        () if r.widens() => Err("results in f32 of 16-bit operands"),
        () if r.column_sums => Err("it makes no sums of columns"),
        () if along_k(p).is_none() => Err("lines of B with gaps"),
        () => Ok(()),
    }
}

/// The same where A is staged whole in local memory.
fn supports_staged(r: &Request<'_>) -> Result<(), &'static str> {
    let room = usize::try_from(r.device().capabilities().local_mem).unwrap_or(usize::MAX);
    if r.p.m * r.p.k * size_of::<f32>() > room {
        return Err("more rows than local memory holds");
    }
    supports(r)
}

static MODEL: Model = Model {
    name: "matmul_gemv_vector",
    constants: &[
        Constant::new("launch_us", "a launch", 4.4),
        Constant::new("core_bytes_per_us", "what memory brings to a core", 2.8e4),
        Constant::new("scalar_per_us", "multiply-adds of a core, one by one", 1000.0),
    ],
};

static GPU_MODEL: Model = Model {
    name: "matmul_gemv",
    constants: &[
        Constant::new("launch_us", "a launch", 10.0).cpu(30.0),
        Constant::new("bytes_per_us", "what memory brings of B", 2e5).cpu(2e3),
        Constant::new(
            "part_us",
            "a part of A staged in local memory and multiplied, where memory is faster",
            0.05,
        )
        .cpu(10.0),
    ],
};

/// B is read once; a group stages as much of A as its local memory takes, one part after the other.
fn estimate_on_gpus(r: &Request<'_>) -> f64 {
    let [launch, bandwidth, part] = GPU_MODEL.on(r.device());
    let bytes = (r.p.n * r.p.k * r.dtype().size()) as f64;
    launch + (bytes / bandwidth).max(r.p.k.div_ceil(staged(r.p)) as f64 * part)
}

/// Elements of a row of A that are staged at once.
fn staged(p: &Problem) -> usize {
    (STAGED / size_of::<f32>() / p.m).min(p.k.next_multiple_of(8)) / 8 * 8
}

/// What is left of lines after whole vectors is multiplied element by element: at the end of each line, or for the last columns, which
/// one group has.
fn estimate_on_processors(r: &Request<'_>) -> (f64, Plan) {
    let [launch, bandwidth, scalar] = MODEL.on(r.device());
    let (p, lanes, cores) = (r.p, r.device().capabilities().vector_lanes(), r.units() as f64);
    let rest = match along_k(p) {
        Some(true) => (p.m * p.n * (p.k % lanes)) as f64 / cores,
        _ => (p.m * p.k * (p.n % lanes)) as f64,
    };
    let bytes = (p.n * p.k * r.dtype().size()) as f64;
    (launch + bytes / (bandwidth * cores) + rest / scalar, Plan::Direct)
}

/// The product with an epilogue as the other kernels have it.
fn run(kernel: &'static Kernel, r: &Request<'_>) -> Result<Option<Tensor>> {
    finished(r, |aux| matches!(aux, Aux::None | Aux::Residual(_)), |r| product(kernel, r))
}

fn product(kernel: &'static Kernel, r: &Request<'_>) -> Result<Option<Tensor>> {
    let e = r.e;
    let residual = if let Aux::Residual(x) = e.aux { Some(x) } else { None };
    let fused = Fused { alpha: e.alpha, bias: e.bias, add: e.add, residual, ..Fused::NONE };
    run_fused(kernel, r.c, r.p, &fused).map(|()| None)
}

/// `c (M, N)` from `a (M, K)` and `b (K, N)`, or `(K, 2N)` with a gate.
pub(in crate::ops::matmul) fn run_fused(
    kernel: &'static Kernel,
    c: &Tensor,
    p: &Problem,
    f: &Fused<'_>,
) -> Result<()> {
    let Some(along_k) = along_k(p) else { return Err(Error::internal("gemv: lines with gaps")) };
    match kernel.name == GEMV_VECTOR.name {
        true => vector(c, p, f, along_k),
        false => groups(c, p, f, along_k),
    }
}

pub(super) fn int(v: usize) -> i32 {
    i32::try_from(v).unwrap_or(i32::MAX)
}

/// The tensor, where it starts at a place that every device binds.
pub(super) fn bindable(x: &Tensor) -> Result<Tensor> {
    let x = x.detach().contiguous()?;
    if x.layout().offset == 0 { Ok(x) } else { map("x0", &[&x], &[], x.shape(), x.dtype()) }
}

/// a, b, bias and c, and the defines that both texts take.
fn bind(
    kernel: &'static Kernel,
    c: &Tensor,
    p: &Problem,
    f: &Fused<'_>,
    along_k: bool,
) -> Result<Launch<'static>> {
    let launch = kernel.launch("matmul_gemv").define("DTYPE", c.dtype().code()).define("M", p.m);
    let launch = launch.define("B_ALONG_K", along_k).flops((2 * p.m * p.n * p.k) as u64);
    let launch = fused_defines(launch, f);
    let launch = match f.blocks {
        Some(stored) => launch.define("QUANT", stored.format.number as usize),
        None => launch,
    };
    let launch = launch.read_base(&p.a.tensor).read_base(&p.b.tensor);
    let launch = match f.bias {
        Some(bias) => launch.read(&bindable(bias)?),
        None => launch.read_base(&Unused(&p.b.tensor)),
    };
    Ok(launch.write(c))
}

/// The defines of what stands around a product.
pub(super) fn fused_defines(launch: Launch<'static>, f: &Fused<'_>) -> Launch<'static> {
    let launch = match f.norm {
        Some(norm) => {
            let kind = if norm.beta.is_some() { 2 } else { 1 };
            launch.define("NORM", kind).define("UNIT", norm.unit_offset)
        }
        None => launch,
    };
    let launch = match f.activation {
        Some((gate, gated)) => launch.define("ACT", gate as usize).define("GATED", gated),
        None => launch.define("ACT", -1),
    };
    if f.residual.is_some() { launch.define("RESIDUAL", 1) } else { launch }
}

/// The sizes and strides that follow the buffers.
fn geometry<'l>(launch: Launch<'l>, p: &Problem, n: usize) -> Launch<'l> {
    let launch = launch.scalar(p.a.offset()).scalar(p.b.offset()).scalar(int(n)).scalar(int(p.k));
    let strides = [p.a.row_stride, p.a.col_stride, p.b.row_stride, p.b.col_stride];
    strides.into_iter().fold(launch, Launch::scalar)
}

/// The norm's and the residual's arguments.
pub(super) fn finish<'l>(launch: Launch<'l>, f: &Fused<'_>) -> Result<Launch<'l>> {
    let flags = Epilogue { alpha: 1.0, bias: f.bias, add: f.add, aux: Aux::None }.flags();
    let mut launch = launch.scalar(f.alpha).scalar(flags);
    if let Some(norm) = f.norm {
        launch = launch.read(&bindable(norm.gamma)?);
        if let Some(beta) = norm.beta {
            launch = launch.read(&bindable(beta)?);
        }
        launch = launch.scalar(norm.eps);
    }
    Ok(match f.residual {
        Some(residual) => launch.read(&bindable(residual)?),
        None => launch,
    })
}

fn vector(c: &Tensor, p: &Problem, f: &Fused<'_>, along_k: bool) -> Result<()> {
    let device = c.device();
    let capabilities = device.capabilities();
    let (n, lanes) = (p.n / f.parts(), Tuning::value(device, &GEMV_VECTOR, 0, "VW"));
    // Columns that the kernel takes at a time: its LINES.
    let lines = match (along_k, lanes) {
        (true, _) => 16,
        (false, 16) => (24 / p.m).min(12) * lanes,
        (false, _) => (12 / p.m).clamp(1, 6) * lanes,
    };
    let blocks = n.div_ceil(lines);
    let bytes = f.blocks.map_or(p.n * p.k * c.dtype().size(), |_| p.n * p.b.col_stride);
    let groups = (bytes / LEAST_SHARE).clamp(1, 4 * capabilities.compute_units.max(1) as usize).min(blocks);
    let per = blocks.div_ceil(groups) * lines;
    let launch = bind(&GEMV_VECTOR, c, p, f, along_k)?.local_memory(p.m * p.k * size_of::<f32>());
    let launch = geometry(launch, p, n).scalar(int(per));
    finish(launch, f)?.groups(n.div_ceil(per)).run()
}

/// Bytes of a matrix that a CPU's work-group should at least get.
const LEAST_SHARE: usize = 16 << 10;

fn groups(c: &Tensor, p: &Problem, f: &Fused<'_>, along_k: bool) -> Result<()> {
    let device = c.device();
    let units = device.capabilities().compute_units.max(1) as usize;
    let n = p.n / f.parts();
    let wg = Tuning::value(device, &GEMV, 0, "WG").min(largest_group(device));
    let lanes = 16 / c.dtype().size();
    let line = if along_k { p.b.col_stride } else { p.b.row_stride };
    // Lines of the values start where the gate's end.
    let aligned = f.blocks.is_none()
        && [line, p.b.offset(), if f.parts() == 2 { n } else { 0 }].iter().all(|v| v.is_multiple_of(lanes));
    // Sums of vectors are registers: 8 rows of a gate and a value would be 128 of them.
    let vw = if p.m * f.parts() > 8 && lanes > 4 { 4 } else { lanes };
    let launch = bind(&GEMV, c, p, f, along_k)?.define("WG", wg).define("VW", vw).define("AV", "float");
    let launch = launch.define("KC", staged(p)).define("ALIGNED_VECTORS", aligned);
    let (launch, lines) = match along_k {
        true => {
            let side = if p.m == 1 && f.parts() == 1 && n >= 16 * units * wg / 32 { 2 } else { 1 };
            // Items that share a line: as few as leave every unit two groups, while each has a vector.
            let mut share = 32;
            while share < wg && 2 * share * vw <= p.k && n * share < 2 * units * wg {
                share *= 2;
            }
            (launch.define("LANES", share).define("SIDE", side), wg / share * side)
        }
        false => {
            let mut across = 8;
            while across > 2 && n.div_ceil(across * vw) < units {
                across /= 2;
            }
            (launch.define("ACROSS", across), across * vw)
        }
    };
    let blocks = n.div_ceil(lines);
    // A long sum with few columns is shared out; whoever adds the parts up knows bias and sum alone.
    let splits = match f.is_plain() && 2 * blocks <= units {
        true => (units / blocks).min(p.k / LEAST_PART).max(1),
        false => 1,
    };
    let k_part = p.k.div_ceil(splits).next_multiple_of(64);
    let splits = p.k.div_ceil(k_part);
    let part = if splits > 1 { Some(c.empty_f32([splits, p.m, n])?) } else { None };
    let launch = match &part {
        Some(part) => launch.define("SPLIT", 1).write(part),
        None => launch.write_base(&Unused(c)),
    };
    let launch = geometry(launch, p, n).scalar(int(k_part));
    let most = blocks.min(8 * units).max(1);
    finish(launch, f)?.groups3([most, splits, 1]).run()?;
    let Some(part) = part else { return Ok(()) };
    let e = Epilogue { alpha: f.alpha, bias: f.bias, add: f.add, aux: Aux::None };
    add_parts(&part, c, p, &e, splits)
}

/// Steps of a sum that a group should at least get.
const LEAST_PART: usize = 512;
