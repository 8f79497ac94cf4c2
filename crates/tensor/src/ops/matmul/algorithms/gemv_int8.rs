//! Products by quantized rows in integers. Activations are rounded to bytes in groups of 32 with one scale, and codes are multiplied by codes. On
//! CPUs one kernel serves single tokens and whole prompts, since its matrix is stored in panels of 16 rows ([`panels`](crate::quant::panels)). On
//! other devices, rows are read in the order of a file, and only a few are multiplied at a time.
//!
//! Rounding changes an activation by at most 1/254 of the largest element of its group of 32. Formats with scales of 256 elements use the same
//! groups.

mod planes;

use super::super::super::algorithms::{self, Job, Table, kernels};
use super::super::arguments::Unused;
use super::super::view::{MatmulProblem, Matrix};
use super::gemv::{ENDS, Fused, Stack, bindable, finish, fused_defines, int};
use super::rows_mma::MmaShape;
use crate::ops::prelude::*;
use crate::quant::panels::PANEL;
use crate::quant::{Activations, BlockOrder, Blocks, CODES, FORMAT, Format, Stored, of_format, texts};
use netcl_kernel::Launch;
use netcl_kernel::tune::{Constant, Model};
use netcl_kernel::vendors::pocl::ByteProducts;

/// CPUs with AVX-512 VNNI, if the driver's compiler accepts x86 instructions.
static VNNI: Kernel = Kernel::new("matmul_int8_avx512_vnni", cl_file!("matmul_int8_panels.cl"))
    .include(TEXTS)
    .choose(FORMAT, texts)
    .options(|_| "-DDOT=1")
    .requires(|device| ByteProducts::Avx512Vnni.run_on(device));

/// CPUs with AVX-VNNI.
static VNNI_256: Kernel = Kernel::new("matmul_int8_avx_vnni", cl_file!("matmul_int8_panels.cl"))
    .include(TEXTS)
    .choose(FORMAT, texts)
    .options(|_| "-DDOT=2")
    .requires(|device| ByteProducts::AvxVnni.run_on(device));

/// CPUs with AVX2.
static AVX2: Kernel = Kernel::new("matmul_int8_avx2", cl_file!("matmul_int8_panels.cl"))
    .include(TEXTS)
    .choose(FORMAT, texts)
    .options(|_| "-DDOT=3")
    .requires(|device| ByteProducts::Avx2.run_on(device));

/// All CPUs, in plain C.
static PANELS: Kernel = Kernel::new("matmul_int8_panels", cl_file!("matmul_int8_panels.cl"))
    .include(TEXTS)
    .choose(FORMAT, texts)
    .requires(|device| device.is_cpu());

/// GPUs.
static GROUPS: Kernel = Kernel::new("matmul_int8", cl_file!("matmul_int8.cl"))
    .include(TEXTS)
    .choose(FORMAT, texts)
    .tune(&[("WG", &[256, 128])])
    .requires(|device| device.local_mem >= 40 << 10 && device.max_group >= MIN_GROUP);

const TEXTS: &[&str] = &[ENDS[0], ENDS[1], CODES[0], CODES[1], CODES[2]];

/// Minimum group size of [`GROUPS`].
const MIN_GROUP: usize = 128;
/// Maximum number of rows in [`GROUPS`].
const MAX_ROWS: usize = 8;
/// Bytes of A in local memory of a group on GPUs.
const STAGED: usize = 12 << 10;

/// Products by quantized blocks, [`GemvInt8Request`].
struct Products;
type Algorithm = algorithms::Algorithm<Products>;

/// The problem `c = act(norm(a) b + bias) (* value) (+ residual)`, with b in blocks. `c` starts at its tensor's offset, its rows are `row_stride`
/// apart.
pub(in crate::ops::matmul) struct GemvInt8Request<'a> {
    pub c: &'a Tensor,
    /// Stride of C's rows in elements.
    pub row_stride: usize,
    pub p: &'a MatmulProblem,
    pub fused: &'a Fused<'a>,
    pub stored: Stored,
}

impl GemvInt8Request<'_> {
    fn device(&self) -> &Device {
        self.c.device()
    }
    /// Returns the number of columns of C.
    fn columns(&self) -> usize {
        self.p.n / self.fused.parts()
    }
    /// Returns the bytes of B.
    fn bytes(&self) -> usize {
        self.p.n * self.p.b.col_stride
    }
}

impl Job for Products {
    type Request<'a> = GemvInt8Request<'a>;
    type Plan = Option<MmaShape>;
    type Output = ();
    type Signature = Signature;

    fn device<'r>(request: &'r GemvInt8Request<'_>) -> &'r Device {
        request.device()
    }
    fn class(_: &GemvInt8Request<'_>) -> u64 {
        1
    }
    fn signature(r: &GemvInt8Request<'_>) -> Self::Signature {
        let a = &r.p.a;
        Signature {
            sizes: [r.p.m, r.p.n, r.p.k, r.p.batch()],
            blocks: (r.stored.format.number, r.stored.order, r.stored.activations),
            around: (r.fused.norm.is_some(), r.fused.parts(), stack_kind(r.fused)),
            a: (a.col_stride == 1, a.row_stride % ALIGNED, a.offset() % ALIGNED),
            dtype: r.c.dtype(),
        }
    }
    fn describe(r: &GemvInt8Request<'_>) -> String {
        format!("({}, {}) x ({}, {}) of {}", r.p.m, r.p.k, r.p.n, r.p.k, r.stored.format)
    }
}

/// Alignment in elements that offsets are classified by: at least 16 bytes in the narrowest type.
const ALIGNED: usize = 64;

/// Properties of a request that the choice of an algorithm depends on.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Signature {
    sizes: [usize; 4],
    blocks: (u32, BlockOrder, Activations),
    around: (bool, usize, usize),
    a: (bool, usize, usize),
    dtype: DType,
}

static VNNI_ROW: Algorithm = Algorithm {
    kernel: &VNNI,
    supports: supports_panels,
    models: &[&MODEL],
    estimate: |r| (estimate(r, 4.0), None),
    run: |r, _| panels(&VNNI, r),
    self_test: Some(|device| proven(device, &VNNI)),
};
static VNNI_256_ROW: Algorithm = Algorithm {
    kernel: &VNNI_256,
    supports: supports_panels,
    models: &[&MODEL],
    estimate: |r| (estimate(r, 3.0), None),
    run: |r, _| panels(&VNNI_256, r),
    self_test: Some(|device| proven(device, &VNNI_256)),
};
static AVX2_ROW: Algorithm = Algorithm {
    kernel: &AVX2,
    supports: supports_panels,
    models: &[&MODEL],
    estimate: |r| (estimate(r, 2.0), None),
    run: |r, _| panels(&AVX2, r),
    self_test: Some(|device| proven(device, &AVX2)),
};
static PANELS_ROW: Algorithm = Algorithm {
    kernel: &PANELS,
    supports: supports_panels,
    models: &[&MODEL],
    estimate: |r| (estimate(r, 1.0), None),
    run: |r, _| panels(&PANELS, r),
    self_test: None,
};
static GROUPS_ROW: Algorithm = Algorithm {
    kernel: &GROUPS,
    supports: supports_rows,
    models: &[&MODEL],
    estimate: |r| (estimate(r, 1.0), None),
    run: |r, _| groups(r),
    self_test: None,
};

static ALGORITHMS: [&Algorithm; 6] =
    [&VNNI_ROW, &VNNI_256_ROW, &AVX2_ROW, &PANELS_ROW, &planes::ALGORITHM, &GROUPS_ROW];
static KERNELS: [&Kernel; 6] = kernels(&ALGORITHMS);
static MATMUL_INT8: Table<Products> = Table::new("matmul_int8", &ALGORITHMS, &KERNELS);

static MODEL: Model = Model {
    name: "matmul_int8",
    constants: &[
        Constant::new("launch_us", "a launch", 10.0).cpu(4.4),
        Constant::new("bytes_per_us", "bytes of B read from memory", 2e5).cpu(3e4),
        Constant::new("products_per_us", "multiply-adds in plain C", 1e6).cpu(4e4),
    ],
};

/// Estimates one read of B for few rows; for more rows, arithmetic dominates.
fn estimate(r: &GemvInt8Request<'_>, faster: f64) -> f64 {
    let [launch, bandwidth, products] = MODEL.on(r.device());
    let all = (r.p.m * r.p.n * r.p.k) as f64;
    launch + (r.bytes() as f64 / bandwidth).max(all / (products * faster))
}

/// Returns 0 for one matrix, 1 for a stack with a matrix per row, 2 for rows sorted by matrix.
fn stack_kind(fused: &Fused<'_>) -> usize {
    match fused.stack {
        None => 0,
        Some(Stack::ByRow { .. }) => 1,
        Some(Stack::Sorted { .. }) => 2,
    }
}

fn supports_any(r: &GemvInt8Request<'_>) -> Result<(), &'static str> {
    match () {
        () if r.stored.activations != Activations::Int8 => Err("float activations"),
        () if r.p.m == 0 || r.columns() == 0 || r.p.k == 0 || r.p.batch() != 1 => {
            Err("requires a single non-empty product")
        }
        () => Ok(()),
    }
}

fn supports_panels(r: &GemvInt8Request<'_>) -> Result<(), &'static str> {
    let room = usize::try_from(r.device().capabilities().local_mem).unwrap_or(usize::MAX);
    match () {
        () if r.stored.order != BlockOrder::Panels => Err("the matrix is not stored in panels"),
        () if stack_kind(r.fused) == 1 => Err("the rows are not sorted by matrix"),
        () if stack_kind(r.fused) == 2 && !r.p.n.is_multiple_of(PANEL) => Err("matrices of partial panels"),
        () if local_bytes(r.p.k, r.p.m.min(tile(&VNNI))).iter().sum::<usize>() > room => {
            Err("a row does not fit in local memory")
        }
        () => supports_any(r),
    }
}

fn supports_rows(r: &GemvInt8Request<'_>) -> Result<(), &'static str> {
    match () {
        () if r.stored.order == BlockOrder::Panels => Err("the matrix is stored in panels"),
        () if stack_kind(r.fused) == 2 => Err("the rows are sorted by matrix"),
        () if r.fused.rows(r.p.m)[0] > MAX_ROWS => Err("more than 8 rows"),
        () => supports_any(r),
    }
}

/// Runs the best algorithm of the table. Returns `false` if none supports the request.
pub(in crate::ops::matmul) fn run(r: &GemvInt8Request<'_>) -> Result<bool> {
    match ALGORITHMS.iter().any(|row| MATMUL_INT8.takes(row, r)) {
        true => MATMUL_INT8.run(r).map(|()| true),
        false => Ok(false),
    }
}

/// Returns the maximum number of rows of A that a CPU multiplies at a time. Their sums and those of a group are in registers. In plain C, products
/// of bytes use more registers.
fn tile(kernel: &Kernel) -> usize {
    if std::ptr::eq(kernel, &raw const VNNI) { 8 } else { 2 }
}

/// Returns the local memory of one row as floats, and of `tile` rows as bytes with their scales and sums.
fn local_bytes(k: usize, tile: usize) -> [usize; 2] {
    [4 * k, tile * (k + k / 32 * 4 + k / 16 * 4)]
}

/// Binds a, b, bias and c, and sets the defines of all kernels.
fn bind(kernel: &'static Kernel, r: &GemvInt8Request<'_>, rows: usize) -> Result<Launch<'static>> {
    let GemvInt8Request { c, p, fused, stored, .. } = r;
    let launch = kernel.launch("matmul_int8").define("DTYPE", c.dtype().code()).define("M", rows);
    let launch = of_format(launch, stored.format).define("PANELS", stored.order == BlockOrder::Panels);
    let launch = launch.define("PLANES", stored.order == BlockOrder::Planes);
    let launch = fused_defines(launch, fused).flops((2 * p.m * p.n * p.k) as u64);
    let launch = launch.read_base(&p.a.tensor).read_base(&p.b.tensor);
    let launch = match fused.bias {
        Some(bias) => launch.read(&bindable(bias)?),
        None => launch.read_base(&Unused(&p.b.tensor)),
    };
    Ok(launch.write_base(*c))
}

fn panels(kernel: &'static Kernel, r: &GemvInt8Request<'_>) -> Result<()> {
    let (p, n) = (r.p, r.columns());
    // Average rows per matrix, and groups in the second dimension of the launch.
    let (rows, matrices) = match r.fused.stack {
        Some(Stack::Sorted { groups, .. }) => (p.m.div_ceil(groups.experts.max(1)), groups.experts + 1),
        _ => (p.m, 1),
    };
    let tile = rows.min(tile(kernel));
    let units = r.device().capabilities().compute_units.max(1) as usize;
    let all = n.div_ceil(PANEL);
    // Every group rounds A separately, so fewer groups are better for many rows.
    let most = if rows > tile { 2 * units } else { 4 * units };
    let wanted = (r.bytes() * rows.min(4) / MIN_SHARE).clamp(1, most).min(all);
    let per = all.div_ceil(wanted) * PANEL;
    let [row, codes] = local_bytes(p.k, tile);
    let launch = bind(kernel, r, tile)?.define("VW", PANEL).local_memory(row).local_memory(codes);
    let launch = launch.scalar(p.a.offset()).scalar(r.c.layout().offset).scalar(int(p.m)).scalar(int(n));
    let launch = launch.scalar(int(p.k)).scalar(p.a.row_stride).scalar(p.a.col_stride);
    let launch = launch.scalar(p.b.col_stride).scalar(r.row_stride).scalar(int(per));
    finish(launch, r.fused)?.groups3([n.div_ceil(per), matrices, 1]).run()
}

/// Minimum bytes of a matrix for a CPU work-group.
const MIN_SHARE: usize = 16 << 10;

fn groups(r: &GemvInt8Request<'_>) -> Result<()> {
    let (device, p, n) = (r.device(), r.p, r.columns());
    let [m, rows] = r.fused.rows(p.m);
    let units = device.capabilities().compute_units.max(1) as usize;
    let wg = Tuning::value(device, &GROUPS, 0, "WG").min(largest_group(device));
    // Number of items that share a line: the smallest with two groups per unit. Each item has at least 32 elements.
    let mut share = 8;
    while share < wg && 2 * share * 32 <= p.k && (share < 32 || n * share < 2 * units * wg) {
        share *= 2;
    }
    let block = r.stored.format.block;
    let staged = (STAGED / m / block * block).min(p.k);
    let lines = wg / share;
    let launch = bind(&GROUPS, r, m)?.define("WG", wg).define("VW", 4).define("AV", "float");
    let launch = launch.define("LANES", share).define("KC", staged);
    let launch = launch.scalar(p.a.offset()).scalar(p.b.offset()).scalar(r.c.layout().offset).scalar(int(n));
    let launch = launch.scalar(int(p.k)).scalar(p.a.row_stride).scalar(p.a.col_stride);
    let launch = launch.scalar(p.b.col_stride).scalar(r.row_stride);
    let most = n.div_ceil(lines).min(8 * units).max(1);
    finish(launch, r.fused)?.groups3([most, rows, 1]).run()
}

/// Checks that small products of integers are exact, both for codes that are multiplied directly and for codes that are looked up. See
/// [`Tuning::proven`].
fn proven(device: &Device, kernel: &'static Kernel) -> bool {
    Tuning::of(device).proven(device, kernel, || {
        for (name, scale) in [("Q8_0", 0x3c00_u16), ("IQ4_NL", 0x3c00)] {
            small(device, kernel, Format::named(name)?, scale)?;
        }
        Ok(())
    })
}

/// Computes one product (3, 64) x (64, 21) of blocks with this scale, an f16.
fn small(device: &Device, kernel: &'static Kernel, format: &'static Format, scale: u16) -> Result<()> {
    let [m, n, k] = [3, 21, 64];
    // The largest element is 127 in every group, so activations equal their codes.
    let x: Vec<f32> =
        (0..m * k).map(|i| if i % 32 == 5 { 127.0 } else { (i * 29 % 255) as f32 - 127.0 }).collect();
    let codes = format.bytes - 2;
    let block = |b: usize| {
        scale.to_le_bytes().into_iter().chain((0..codes).map(move |i| ((b * codes + i) * 37 % 256) as u8))
    };
    let bytes: Vec<u8> = (0..n * k / 32).flat_map(block).collect();
    let w = format.dequantised(&bytes, n * k)?;
    let blocks = Blocks::with_activations(device, format, [n, k], &bytes, Activations::Int8)?;
    let a = Matrix::rows_of(&Tensor::from_f32(device, [m, k], &x, DType::F32)?)?;
    let p = MatmulProblem::new(a, Matrix::of_blocks(&blocks), &[])?;
    let c = Tensor::full(device, [m, n], f32::NAN, DType::F32)?;
    panels(
        kernel,
        &GemvInt8Request { c: &c, row_stride: n, p: &p, fused: &Fused::NONE, stored: blocks.stored() },
    )?;
    if device.settings().no_results {
        return Ok(());
    }
    for (i, got) in c.to_vec()?.into_iter().enumerate() {
        let (x, w) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
        let expected: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
        if got != expected {
            return Err(Error::launch(format!(
                "element {i} of a small product by {format} is {got}, expected {expected}"
            )));
        }
    }
    Ok(())
}
