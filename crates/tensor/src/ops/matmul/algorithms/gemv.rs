//! Products of few rows, as in decoding one token, or one token of each of a few texts. The matrix is read once, so the kernels are limited by
//! memory bandwidth rather than arithmetic. Operations before and after the product are fused in.

use super::super::arguments::Unused;
use super::super::epilogue::Epilogue;
use super::super::groups::Groups;
use super::super::split_k::{Joining, TICKETS};
use super::super::view::MatmulProblem;
use super::tile::{add_parts, last_can_join};
use super::{Direct, EpilogueInputs, MATMUL, MatmulAlgorithm, MatmulRequest, ProductPlan, finished};
use crate::ops::counters::zeroed;
use crate::ops::gated::Gate;
use crate::ops::prelude::*;
use crate::quant::{FORMAT, Stored, UNPACK, of_format, texts};
use netcl_kernel::Launch;
use netcl_kernel::tune::{Constant, Model};
use std::borrow::Cow;

/// Sources for norms, activations and stores around a product.
pub(in crate::ops::matmul) const ENDS: [&str; 2] =
    [cl_file!("../../include/activation.cl"), cl_file!("matmul_gemv_ends.cl")];
const PARTS: &[&str] = &[ENDS[0], UNPACK[0], UNPACK[1], ENDS[1]];
const GPU_PARTS: &[&str] = &[ENDS[0], UNPACK[0], UNPACK[1], ENDS[1], cl_file!("../../include/tickets.cl")];

/// Kernel for CPUs.
static GEMV_VECTOR: Kernel = Kernel::new("matmul_gemv_vector", cl_file!("matmul_gemv_vector.cl"))
    .include(PARTS)
    .choose(FORMAT, texts)
    .tune(&[("VW", &[0])])
    .requires(|device| device.is_cpu());

/// Kernel for GPUs.
static GEMV: Kernel = Kernel::new("matmul_gemv", cl_file!("matmul_gemv.cl"))
    .include(GPU_PARTS)
    .choose(FORMAT, texts)
    .tune(&[("WG", &[256, 128])])
    .requires(|device| device.local_mem >= 40 << 10 && device.max_group >= MIN_GROUP);

/// Maximum number of rows in both kernels, with everything that can be fused.
const MAX_ROWS: usize = 8;

/// Maximum number of rows in [`GEMV`] for a plain product.
const MAX_ROWS_ON_GPUS: usize = 16;

/// Minimum group size of [`GEMV`]: four sets of the items that share a line.
const MIN_GROUP: usize = 128;

/// Bytes of A in local memory of a group on GPUs.
const STAGED: usize = 16 << 10;

/// The norm that is applied to A's rows before the product.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Norm<'a> {
    /// Gain (K).
    pub gamma: &'a Tensor,
    /// Bias (K) of a layer norm; [`None`] for a root-mean-square norm.
    pub beta: Option<&'a Tensor>,
    /// Whether the factor is 1 + gamma instead of gamma.
    pub unit_offset: bool,
    pub eps: f32,
}

/// A stack of matrices (E, N, K), or (E, 2N, K) with a gate, and the matrix that multiplies each row of C.
#[derive(Clone, Copy)]
pub(in crate::ops) enum Stack<'a> {
    /// Row r is row `r / slots` of A times matrix `ids[r]` (contiguous u32 or i32). The row is zero if the id is not less than `matrices`.
    ByRow { ids: &'a Tensor, matrices: usize, slots: usize },
    /// Rows sorted by matrix: row r is row r of A, or row `lines[r]`.
    Sorted { groups: &'a Groups, lines: Option<&'a Tensor> },
}

/// `c = act(alpha * norm(a) b + bias) (* value | + c | + residual)`.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Fused<'a> {
    pub alpha: f32,
    pub norm: Option<Norm<'a>>,
    /// Bias with one element per column of b.
    pub bias: Option<&'a Tensor>,
    /// The activation, and whether the second half of b's columns gives values that multiply it (a gated activation).
    pub activation: Option<(Gate, bool)>,
    /// Adds to the present contents of c.
    pub add: bool,
    /// Dense residual of c's shape.
    pub residual: Option<&'a Tensor>,
    /// Quantized blocks: b's lines along k are blocks, with strides and offset in bytes.
    pub blocks: Option<Stored>,
    /// b is a stack of matrices, one of which multiplies each row of C.
    pub stack: Option<Stack<'a>>,
    /// The product is the transpose of C: C has few columns, and the bias has one element per row. Plain products only.
    pub swapped: bool,
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
        stack: None,
        swapped: false,
    };

    /// Returns the number of columns of b that one column of C needs: 2 with a gate.
    pub(in crate::ops) fn parts(&self) -> usize {
        if matches!(self.activation, Some((_, true))) { 2 } else { 1 }
    }
    /// Returns the rows of C that a group sums at a time for a launch of `m` rows, and the groups in the second dimension.
    pub(in crate::ops::matmul) fn rows(&self, m: usize) -> [usize; 2] {
        if matches!(self.stack, Some(Stack::ByRow { .. })) { [1, m] } else { [m, 1] }
    }
    /// Returns whether the epilogue can run where partial sums are added.
    fn is_plain(&self, device: &Device) -> bool {
        let added = self.residual.is_none() || last_can_join(device);
        self.stack.is_none() && self.norm.is_none() && self.activation.is_none() && added
    }
}

/// Returns whether the contiguous lines of B run along k (`true`) or along n (`false`), or `None` if B is not contiguous along either axis.
fn along_k(p: &MatmulProblem) -> Option<bool> {
    match (p.b.row_stride, p.b.col_stride) {
        // A single column is contiguous along k at any column stride.
        (1, _) => Some(true),
        (_, 1) => Some(false),
        _ => None,
    }
}

pub(super) static ON_PROCESSORS: MatmulAlgorithm = MatmulAlgorithm {
    kernel: &GEMV_VECTOR,
    supports: supports_staged,
    models: &[&MODEL],
    estimate: estimate_on_processors,
    run: |r, _| run(&GEMV_VECTOR, r),
    self_test: None,
};
pub(super) static ON_GPUS: MatmulAlgorithm = MatmulAlgorithm {
    kernel: &GEMV,
    supports,
    models: &[&GPU_MODEL],
    estimate: |r| (estimate_on_gpus(r), ProductPlan::of(Direct)),
    run: |r, _| run(&GEMV, r),
    self_test: None,
};

/// Returns the product, or its transpose (`true`) if that has fewer rows. C then has few columns.
pub(super) fn oriented(p: &MatmulProblem) -> (Cow<'_, MatmulProblem>, bool) {
    match p.n < p.m && p.batch() == 1 {
        true => (Cow::Owned(p.transposed()), true),
        false => (Cow::Borrowed(p), false),
    }
}

fn supports(r: &MatmulRequest<'_>) -> Result<(), &'static str> {
    supports_rows(r, &oriented(r.p).0, MAX_ROWS_ON_GPUS)
}

fn supports_rows(r: &MatmulRequest<'_>, p: &MatmulProblem, most: usize) -> Result<(), &'static str> {
    match () {
        () if p.m == 0 || p.m > most => Err("too many rows and columns: one of them must be small"),
        () if p.batch() != 1 || p.n == 0 || p.k == 0 => Err("requires a single non-empty product"),
        () if r.widens() => Err("f32 results of 16-bit operands"),
        () if r.column_sums => Err("does not compute column sums"),
        () if along_k(p).is_none() => Err("the larger operand is not contiguous along either axis"),
        () => Ok(()),
    }
}

/// Checks the request for the kernel that stages all of A in local memory.
fn supports_staged(r: &MatmulRequest<'_>) -> Result<(), &'static str> {
    staged_rows(r, &oriented(r.p).0)
}

fn staged_rows(r: &MatmulRequest<'_>, p: &MatmulProblem) -> Result<(), &'static str> {
    let room = usize::try_from(r.device().capabilities().local_mem).unwrap_or(usize::MAX);
    if p.m * p.k * size_of::<f32>() > room {
        return Err("the rows of A do not fit in local memory");
    }
    supports_rows(r, p, MAX_ROWS)
}

/// Returns this device's kernel for a product of few rows with fused operations, if it supports them.
pub(in crate::ops::matmul) fn of_few_rows(r: &MatmulRequest<'_>, f: &Fused<'_>) -> Option<&'static Kernel> {
    // With a stack, each row is a separate product.
    let p = MatmulProblem { m: f.rows(r.p.m)[0], ..r.p.clone() };
    let on_processors = MATMUL.has(&ON_PROCESSORS, r) && staged_rows(r, &p).is_ok();
    let on_gpus = MATMUL.has(&ON_GPUS, r) && supports_rows(r, &p, MAX_ROWS).is_ok();
    on_processors.then_some(&GEMV_VECTOR).or(on_gpus.then_some(&GEMV))
}

static MODEL: Model = Model {
    name: "matmul_gemv_vector",
    constants: &[
        Constant::new("launch_us", "a launch", 4.4),
        Constant::new("core_bytes_per_us", "bytes that a core reads from memory", 2.8e4),
        Constant::new("scalar_per_us", "multiply-adds of a core, one by one", 1000.0),
    ],
};

static GPU_MODEL: Model = Model {
    name: "matmul_gemv",
    constants: &[
        Constant::new("launch_us", "a launch", 8.0).cpu(30.0),
        Constant::new("bytes_per_us", "bytes of B read from memory", 2e5).cpu(2e3),
        Constant::new("part_us", "staging a part of A and multiplying it by a block of B", 0.5).cpu(10.0),
        Constant::new("row_us", "combining the sums of a row of a block", 0.1).cpu(1.0),
        Constant::new("along_k_per_us", "multiply-adds if lines of B are along k", 1e6).cpu(1e4),
        Constant::new("along_n_per_us", "multiply-adds if lines of B are along n", 2e6).cpu(1e4),
    ],
};

/// Groups that a unit runs at the same time. On most GPUs, local memory allows this many.
const RESIDENT: usize = 4;

/// Estimates one read of B, during which groups wait for staged parts of A. A group stages as much of A as its local memory holds, one part after
/// the other, and combines the sums of its items. With several rows, multiplying takes longer than reading.
pub(super) fn estimate_on_gpus(r: &MatmulRequest<'_>) -> f64 {
    let [launch, bandwidth, part, row, products_along_k, products_along_n] = GPU_MODEL.on(r.device());
    let (p, _) = oriented(r.p);
    let along_k = along_k(&p).unwrap_or(true);
    let added = matches!(r.e.aux, EpilogueInputs::None) || last_can_join(r.device());
    let split = WorkSplit::of(r.c, &p, 1, added, along_k);
    let products = (p.m * p.n * p.k) as f64 / if along_k { products_along_k } else { products_along_n };
    let streamed = products.max((p.n * p.k * r.dtype().size()) as f64 / bandwidth);
    let blocks = split.blocks.div_ceil(split.groups);
    let parts = split.k_part.div_ceil(staged(&p));
    let waves = (split.groups * split.splits).div_ceil(RESIDENT * r.units());
    let block = parts as f64 * part + p.m as f64 * row;
    let joining = match split.splits {
        1 => 0.0,
        splits => {
            let (all, costs) = (splits * p.m * split.lines * size_of::<f32>(), Joining::on(r.device()));
            if split.last { costs.ticket + all as f64 / costs.group } else { costs.launch }
        }
    };
    launch + joining + ((blocks * waves) as f64 * block).max(streamed + block)
}

/// Returns the elements of a row of A that are staged at once.
fn staged(p: &MatmulProblem) -> usize {
    (STAGED / size_of::<f32>() / p.m).min(p.k.next_multiple_of(8)) / 8 * 8
}

/// Estimates one read of B. The remainders after whole vectors are multiplied one element at a time: at the end of each line, or in the last
/// columns, which belong to one group.
fn estimate_on_processors(r: &MatmulRequest<'_>) -> (f64, ProductPlan) {
    let [launch, bandwidth, scalar] = MODEL.on(r.device());
    let (p, lanes, cores) = (&oriented(r.p).0, r.device().capabilities().vector_lanes(), r.units() as f64);
    let rest = match along_k(p) {
        Some(true) => (p.m * p.n * (p.k % lanes)) as f64 / cores,
        _ => (p.m * p.k * (p.n % lanes)) as f64,
    };
    let bytes = (p.n * p.k * r.dtype().size()) as f64;
    (launch + bytes / (bandwidth * cores) + rest / scalar, ProductPlan::of(Direct))
}

/// Computes the product with the epilogue that all kernels support.
fn run(kernel: &'static Kernel, r: &MatmulRequest<'_>) -> Result<Option<Tensor>> {
    finished(
        r,
        |aux| matches!(aux, EpilogueInputs::None | EpilogueInputs::Residual(_)),
        |r| product(kernel, r),
    )
}

fn product(kernel: &'static Kernel, r: &MatmulRequest<'_>) -> Result<Option<Tensor>> {
    let e = r.e;
    let residual = if let EpilogueInputs::Residual(x) = e.aux { Some(x) } else { None };
    let (p, swapped) = oriented(r.p);
    let fused = Fused { alpha: e.alpha, bias: e.bias, add: e.add, residual, swapped, ..Fused::NONE };
    run_fused(kernel, r.c, &p, &fused).map(|()| None)
}

/// Computes `c (M, N)` from `a (M, K)` and `b (K, N)`, or `(K, 2N)` with a gate.
pub(in crate::ops::matmul) fn run_fused(
    kernel: &'static Kernel,
    c: &Tensor,
    p: &MatmulProblem,
    f: &Fused<'_>,
) -> Result<()> {
    let Some(along_k) = along_k(p) else {
        return Err(Error::internal("gemv: b does not have a contiguous axis"));
    };
    match kernel.name == GEMV_VECTOR.name {
        true => vector(c, p, f, along_k),
        false => groups(c, p, f, along_k),
    }
}

pub(in crate::ops::matmul) fn int(v: usize) -> i32 {
    i32::try_from(v).unwrap_or(i32::MAX)
}

/// Returns the tensor at an offset that every device can bind, as a copy if necessary.
pub(in crate::ops::matmul) fn bindable(x: &Tensor) -> Result<Tensor> {
    let x = x.detach().contiguous()?;
    if x.layout().offset == 0 { Ok(x) } else { map("x0", &[&x], &[], x.shape(), x.dtype()) }
}

/// Binds a, b, bias and c, and the defines that both kernels use.
fn bind(
    kernel: &'static Kernel,
    c: &Tensor,
    p: &MatmulProblem,
    f: &Fused<'_>,
    along_k: bool,
) -> Result<Launch<'static>> {
    let launch = kernel.launch("matmul_gemv").define("DTYPE", c.dtype().code()).define("M", f.rows(p.m)[0]);
    let launch = launch.define("B_ALONG_K", along_k).flops((2 * p.m * p.n * p.k) as u64);
    let launch = if f.swapped { launch.define("SWAPPED", 1) } else { launch };
    let launch = fused_defines(launch, f);
    let launch = match f.blocks {
        Some(stored) => of_format(launch, stored.format),
        None => launch,
    };
    let launch = launch.read_base(&p.a.tensor).read_base(&p.b.tensor);
    let launch = match f.bias {
        Some(bias) => launch.read(&bindable(bias)?),
        None => launch.read_base(&Unused(&p.b.tensor)),
    };
    Ok(launch.write(c))
}

/// Adds the defines of the fused operations.
pub(in crate::ops::matmul) fn fused_defines(launch: Launch<'static>, f: &Fused<'_>) -> Launch<'static> {
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
    let launch = match f.stack {
        Some(Stack::ByRow { .. }) => launch.define("STACK", 1),
        Some(Stack::Sorted { lines, .. }) => launch.define("SORTED", 1).define("GATHER", lines.is_some()),
        None => launch,
    };
    if f.residual.is_some() { launch.define("RESIDUAL", 1) } else { launch }
}

/// Adds the sizes and strides, which follow the buffers.
fn geometry<'l>(launch: Launch<'l>, p: &MatmulProblem, n: usize) -> Launch<'l> {
    let launch = launch.scalar(p.a.offset()).scalar(p.b.offset()).scalar(int(n)).scalar(int(p.k));
    let strides = [p.a.row_stride, p.a.col_stride, p.b.row_stride, p.b.col_stride];
    strides.into_iter().fold(launch, Launch::scalar)
}

/// Binds the arguments of the norm, the residual and the stack.
pub(in crate::ops::matmul) fn finish<'l>(launch: Launch<'l>, f: &Fused<'_>) -> Result<Launch<'l>> {
    let flags = Epilogue { alpha: 1.0, bias: f.bias, add: f.add, aux: EpilogueInputs::None }.flags();
    let mut launch = launch.scalar(f.alpha).scalar(flags);
    if let Some(norm) = f.norm {
        launch = launch.read(&bindable(norm.gamma)?);
        if let Some(beta) = norm.beta {
            launch = launch.read(&bindable(beta)?);
        }
        launch = launch.scalar(norm.eps);
    }
    if let Some(residual) = f.residual {
        launch = launch.read(&bindable(residual)?);
    }
    Ok(match f.stack {
        Some(Stack::ByRow { ids, matrices, slots }) => {
            launch.read(ids).scalar(matrices as u32).scalar(slots as u32)
        }
        Some(Stack::Sorted { groups: Groups { offsets, tiles, experts, .. }, lines }) => {
            let launch = match lines {
                Some(lines) => launch.read(lines),
                None => launch.read_base(&Unused(offsets)),
            };
            launch.read(offsets).read(tiles).scalar(int(*experts))
        }
        None => launch,
    })
}

fn vector(c: &Tensor, p: &MatmulProblem, f: &Fused<'_>, along_k: bool) -> Result<()> {
    let device = c.device();
    let capabilities = device.capabilities();
    let [m, rows] = f.rows(p.m);
    let (n, lanes) = (p.n / f.parts(), Tuning::value(device, &GEMV_VECTOR, 0, "VW"));
    // Columns that the kernel processes at a time: its LINES.
    let lines = match (along_k, lanes) {
        (true, _) => 16,
        (false, 16) => (24 / m).min(12) * lanes,
        (false, _) => (12 / m).clamp(1, 6) * lanes,
    };
    let blocks = n.div_ceil(lines);
    let bytes = f.blocks.map_or(p.n * p.k * c.dtype().size(), |_| p.n * p.b.col_stride);
    let groups = (bytes / MIN_SHARE).clamp(1, 4 * capabilities.compute_units.max(1) as usize).min(blocks);
    let per = blocks.div_ceil(groups) * lines;
    let launch = bind(&GEMV_VECTOR, c, p, f, along_k)?.local_memory(m * p.k * size_of::<f32>());
    let launch = geometry(launch, p, n).scalar(int(per));
    finish(launch, f)?.groups3([n.div_ceil(per), rows, 1]).run()
}

/// Minimum bytes of a matrix for a work-group on a CPU.
const MIN_SHARE: usize = 16 << 10;

/// Division of a product between the work-items and groups of [`GEMV`].
struct WorkSplit {
    /// Items of a group.
    items: usize,
    /// Elements of a vector of B.
    vector: usize,
    /// Items that share a line along k, or adjacent items across n.
    lanes: usize,
    /// Lines of B per set of items.
    side: usize,
    /// Columns of a block.
    lines: usize,
    blocks: usize,
    /// Groups that process the blocks of columns in turn.
    groups: usize,
    /// Parts of the sum, with `k_part` steps each.
    splits: usize,
    k_part: usize,
    /// Whether the last group of a block adds its partial sums.
    last: bool,
}

impl WorkSplit {
    /// Divides a product of `parts` matrices. Only plain sums are split.
    fn of(c: &Tensor, p: &MatmulProblem, parts: usize, plain: bool, along_k: bool) -> Self {
        let device = c.device();
        let units = device.capabilities().compute_units.max(1) as usize;
        let n = p.n / parts;
        let items = Tuning::value(device, &GEMV, 0, "WG").min(largest_group(device));
        let widest = 16 / c.dtype().size();
        // The sums of a vector are in registers: 8 rows of a gate and a value would need 128 registers.
        let vector = if p.m * parts > 8 && widest > 4 { 4 } else { widest };
        let (lanes, side) = match along_k {
            true => {
                // Number of items that share a line: the smallest with two groups per unit. Each item has at least one vector.
                let mut share = 32;
                while share < items && 2 * share * vector <= p.k && n * share < 2 * units * items {
                    share *= 2;
                }
                (share, if p.m == 1 && parts == 1 && n >= 16 * units * items / 32 { 2 } else { 1 })
            }
            false => {
                let mut across = 8;
                while across > 2 && n.div_ceil(across * vector) < units {
                    across /= 2;
                }
                (across, 1)
            }
        };
        let lines = if along_k { items / lanes * side } else { lanes * vector };
        let blocks = n.div_ceil(lines);
        // Long sums with few columns are split, and into more parts if no second launch follows.
        let last = blocks <= TICKETS && last_can_join(device);
        let wanted = if last { 2 * units } else { units };
        let splits = match plain && 2 * blocks <= wanted {
            true => (wanted / blocks).min(p.k / MIN_PART).max(1),
            false => 1,
        };
        let k_part = p.k.div_ceil(splits).next_multiple_of(64);
        let (splits, groups) = (p.k.div_ceil(k_part), blocks.min(8 * units).max(1));
        let last = last && splits > 1;
        Self { items, vector, lanes, side, lines, blocks, groups, splits, k_part, last }
    }
}

fn groups(c: &Tensor, p: &MatmulProblem, f: &Fused<'_>, along_k: bool) -> Result<()> {
    let (n, [m, rows]) = (p.n / f.parts(), f.rows(p.m));
    let one = MatmulProblem { m, ..p.clone() };
    let split = WorkSplit::of(c, &one, f.parts(), f.is_plain(c.device()), along_k);
    let vectors = 16 / c.dtype().size();
    let line = if along_k { p.b.col_stride } else { p.b.row_stride };
    // The lines of the values start at the end of the gate's lines.
    let aligned = f.blocks.is_none()
        && [line, p.b.offset(), if f.parts() == 2 { n } else { 0 }].iter().all(|v| v.is_multiple_of(vectors));
    let launch = bind(&GEMV, c, p, f, along_k)?.define("WG", split.items).define("VW", split.vector);
    let launch = launch.define("AV", "float").define("KC", staged(&one)).define("ALIGNED_VECTORS", aligned);
    let launch = match along_k {
        true => launch.define("LANES", split.lanes).define("SIDE", split.side),
        false => launch.define("ACROSS", split.lanes),
    };
    let part = match split.splits {
        1 => None,
        splits => Some(c.empty_f32([splits, p.m, n])?),
    };
    let launch = match &part {
        Some(part) => launch.define("SPLIT", 1).write(part),
        None => launch.write_base(&Unused(c)),
    };
    let launch = finish(geometry(launch, p, n).scalar(int(split.k_part)), f)?;
    let launch = match split.last {
        true => launch.define("LAST", 1).write_base(&zeroed(c.device(), "matmul_gemv", TICKETS)?),
        false => launch,
    };
    launch.groups3([split.groups, split.splits * rows, 1]).run()?;
    let Some(part) = part.filter(|_| !split.last) else { return Ok(()) };
    let e = Epilogue { alpha: f.alpha, bias: f.bias, add: f.add, aux: EpilogueInputs::None };
    let columns = if f.swapped { p.m } else { p.n };
    add_parts(&part, c, columns, &e, split.splits)
}

/// Minimum steps of a sum per group.
const MIN_PART: usize = 512;

#[cfg(test)]
mod tests {
    use super::super::super::tests::{near, ramp, rounding};
    use super::super::super::view::Matrix;
    use super::super::super::*;
    use super::*;
    use crate::suite::test_device;

    /// Tests that few columns run as few rows of the transposed product for all layouts of the operands, and that long sums are split.
    #[test]
    fn few_columns_by_the_kernels_of_few_rows() {
        let device = test_device().unwrap();
        let transposed =
            |x: &Tensor| x.permute(&[1, 0]).unwrap().contiguous().unwrap().permute(&[1, 0]).unwrap();
        let mut taken = 0;
        for ([m, n, k], dtype) in [
            ([33, 3, 1100], DType::F32),
            ([70, 13, 40], DType::Bf16),
            ([41, 1, 530], DType::F16),
            ([19, 8, 77], DType::F32),
            ([12, 290, 1100], DType::F16),
            ([16, 70, 1030], DType::Bf16),
        ] {
            let ((a, a_host), (b, b_host)) = (ramp(&device, [m, k], 0.37), ramp(&device, [k, n], 0.61));
            let (bias, bias_host) = ramp(&device, [1, n], 0.23);
            let (other, other_host) = ramp(&device, [m, n], 0.77);
            let sums = reference(&a_host, &b_host);
            let expected = Array::from_fn([m, n], |i| {
                0.5 * sums.data[i] + bias_host.data[i % n] + 2.0 * other_host.data[i]
            });
            let cast = |x: &Tensor| x.to_dtype(dtype).unwrap();
            let (bias, other) = (cast(&bias).reshape([n]).unwrap(), cast(&other));
            for layout in 0..4 {
                let a = if layout & 1 == 0 { cast(&a) } else { transposed(&cast(&a)) };
                let b = if layout & 2 == 0 { cast(&b) } else { transposed(&cast(&b)) };
                let matrix = |x: &Tensor| Matrix::of("matmul", "operand", x).unwrap();
                let p = MatmulProblem::new(matrix(&a), matrix(&b), &[]).unwrap();
                for row in [&ON_PROCESSORS, &ON_GPUS] {
                    let c = map("x0", &[&other], &[], other.shape(), dtype).unwrap();
                    let e = Epilogue {
                        alpha: 0.5,
                        bias: Some(&bias),
                        add: true,
                        aux: EpilogueInputs::Residual(&other),
                    };
                    let request = MatmulRequest { c: &c, p: &p, e: &e, column_sums: false };
                    if MATMUL.takes(row, &request) {
                        assert!((row.run)(&request, &ProductPlan::of(Direct)).unwrap().is_none());
                        near(&c, &expected, rounding(dtype, k));
                        taken += 1;
                    }
                }
            }
        }
        let kernels = device.capabilities().is_cpu() || device.capabilities().local_mem >= 40 << 10;
        assert!(!kernels || taken >= 12, "{taken} products");
    }
}
