//! Products of few rows by B's lines along k on NVIDIA's tensor cores from sm_80 on, if reading B takes most of the time. With B in 16 bits it is a
//! row of the product table. With quantized rows in planes, it is a row of the table of block-quantized products.

use super::super::arguments::Unused;
use super::super::epilogue::Epilogue;
use super::super::groups::Groups;
use super::super::proof;
use super::super::split_k::TICKETS;
use super::super::view::{MatmulProblem, Matrix};
use super::gemv::{ENDS, Fused, Stack, bindable, estimate_on_gpus, finish, fused_defines, int, oriented};
use super::{Direct, EpilogueInputs, MATMUL, MatmulAlgorithm, MatmulRequest, ProductPlan, finished, gemv};
use crate::ops::counters::zeroed;
use crate::ops::prelude::*;
use crate::quant::{FORMAT, Format, PLANES, of_format, texts};
use netcl_kernel::tune::{Constant, Model};

const TEXT: &str = cl_file!("matmul_rows_mma_sm80.cl");
const TICKETS_TEXT: &str = cl_file!("../../include/tickets.cl");

const PARTS: &[&str] = &[ENDS[0], ENDS[1], TICKETS_TEXT];
const PARTS_OF_PLANES: &[&str] = &[ENDS[0], ENDS[1], TICKETS_TEXT, PLANES[0], PLANES[1]];

/// Kernel for B in 16 bits.
static ROWS: Kernel = Kernel::new("matmul_rows_mma_sm80", TEXT)
    .include(PARTS)
    .requires(|device| device.sm() >= Some(80) && device.local_mem >= 40 << 10)
    .options(|_| "-cl-nv-maxrregcount=128");

/// Kernel for quantized B in planes.
pub(super) static PLANES_ROWS: Kernel = Kernel::new("matmul_planes_mma_sm80", TEXT)
    .include(PARTS_OF_PLANES)
    .choose(FORMAT, texts)
    .requires(|device| device.sm() >= Some(80) && device.local_mem >= 40 << 10)
    .options(|_| "-cl-nv-maxrregcount=128");

/// Maximum number of rows of A: B is read again for every 32 of them.
pub(super) const MAX_ROWS: usize = 128;
/// Steps of the sum that a warp processes at a time.
pub(super) const CHUNK: usize = 128;
/// Elements in 16 bytes.
pub(super) const LANES: usize = 8;
/// Warps of a group, and groups that a unit holds.
const WARPS: usize = 8;
const RESIDENT: usize = 2;
/// Columns of an instruction's tile.
const TILE: usize = 16;
/// Maximum number of column tiles in one dimension of groups.
const MAX_TILES: usize = 65_535;
/// Maximum number of parts of a sum.
const MAX_SPLITS: usize = 32;

/// Division of a product: the kernel's defines with these names, and the parts of the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops::matmul) struct MmaShape {
    pub rows: usize,
    pub tiles: usize,
    pub across: usize,
    pub splits: usize,
    pub k_part: usize,
}

/// Sizes that a [`MmaShape`] depends on. N counts columns of C, `parts` is 2 with a gate, and `line` is the bytes of a line of B.
#[derive(Clone, Copy)]
pub(in crate::ops::matmul) struct MmaSizes {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub parts: usize,
    pub line: usize,
    /// Whether B is in planes. A warp may then have two tiles; 16-bit weights leave too few registers for this.
    pub planes: bool,
}

/// Model constants, for B in 16 bits and in planes.
macro_rules! model {
    ($name:literal) => {
        Model {
            name: $name,
            constants: &[
                Constant::new("launch_us", "a launch", 6.0),
                Constant::new("slice_us", "loading a group's rows of A to local memory", 1.0),
                Constant::new("bytes_per_us", "bytes of B read from memory", 2e6),
                Constant::new("unit_bytes_per_us", "bytes of A and B that a unit reads", 2.5e4),
                Constant::new(
                    "unit_weights_per_us",
                    "elements of B that a unit processes, without the next two factors",
                    2e5,
                ),
                Constant::new("row_share", "relative slowdown per row of A", 0.1),
                Constant::new("tile_share", "relative slowdown by reading A for a tile", 8.0),
                Constant::new(
                    "join_us",
                    "time until the last group of a tile knows that it is the last",
                    1.0,
                ),
                Constant::new(
                    "join_bytes_per_us",
                    "bytes of partial sums that a group writes and reads",
                    1e4,
                ),
            ],
        }
    };
}
static MODEL: Model = model!("matmul_rows_mma_sm80");
pub(super) static MODEL_OF_PLANES: Model = model!("matmul_planes_mma_sm80");

impl MmaShape {
    /// Returns the chunks of A that local memory holds.
    fn slice(&self) -> usize {
        128 / self.rows
    }

    /// Returns the columns of C per group.
    fn lines(&self, parts: usize) -> usize {
        self.across * self.tiles * TILE / parts
    }

    /// Returns the groups of rows, the groups of columns, and the parts of the sum.
    fn groups(&self, s: &MmaSizes) -> [usize; 3] {
        [s.m.div_ceil(self.rows), s.n.div_ceil(self.lines(s.parts)), self.splits]
    }

    /// Lists every way to divide this product.
    pub fn all(s: MmaSizes) -> impl Iterator<Item = Self> {
        let rows = s.m.next_power_of_two().clamp(8, 32);
        // Maximum sets of warps: local memory holds one chunk of A for each set.
        let sets = 128 / rows;
        let wide =
            (1..=if s.planes { 2 } else { 1 }).flat_map(|tiles| [1, 2, 4, 8].map(|across| (tiles, across)));
        let wide = wide.filter(move |(_, across)| WARPS / across <= sets);
        let shapes = wide.flat_map(move |(tiles, across)| {
            let unit = CHUNK * (WARPS / across);
            let k_part = move |splits: usize| s.k.div_ceil(splits).next_multiple_of(unit);
            let most = s.k.div_ceil(unit).clamp(1, MAX_SPLITS);
            (1..=most).map(move |splits| {
                let k_part = k_part(splits);
                Self { rows, tiles, across, splits: s.k.div_ceil(k_part), k_part }
            })
        });
        shapes.filter(move |shape| {
            let [rows, columns, splits] = shape.groups(&s);
            columns <= MAX_TILES && (splits == 1 || rows * columns <= TICKETS)
        })
    }

    /// Estimates the microseconds: the larger of the busiest unit's work and reading B from memory, plus loading A to local memory and combining
    /// the parts.
    pub fn estimate(&self, constants: &[f64; 9], units: usize, s: &MmaSizes) -> f64 {
        let [launch, slice, bandwidth, unit, weights, row, tile, join, join_bytes] = *constants;
        let groups = self.groups(s).into_iter().product::<usize>();
        let (busiest, steps) = (groups.div_ceil(units) as f64, self.k_part.min(s.k) as f64);
        let lines = (self.lines(s.parts) * s.parts) as f64;
        let read = busiest * steps * (lines * (s.line as f64 / s.k as f64) + 2.0 * self.rows as f64) / unit;
        let longer = 1.0 + row * self.rows as f64 + tile / self.tiles as f64;
        let multiplied = busiest * steps * lines * longer / weights;
        let all = (s.n * s.parts * s.line) as f64 / bandwidth;
        let slices = self.k_part.min(s.k).div_ceil(CHUNK * self.slice()) * groups.div_ceil(RESIDENT * units);
        let joining = match self.splits {
            1 => 0.0,
            splits => join + (4 * splits * self.rows.min(s.m)) as f64 * lines / join_bytes,
        };
        launch + slices as f64 * slice + read.max(multiplied).max(all) + joining
    }

    /// Returns the shape with the lowest estimate, and that estimate.
    pub fn of(device: &Device, s: MmaSizes) -> Option<(f64, Self)> {
        let constants = if s.planes { MODEL_OF_PLANES.on(device) } else { MODEL.on(device) };
        let units = device.capabilities().compute_units.max(1) as usize;
        let timed = Self::all(s).map(|shape| (shape.estimate(&constants, units, &s), shape));
        timed.min_by(|a, b| a.0.total_cmp(&b.0))
    }
}

/// The operands of a launch. `c` has rows `c_strides[0]` elements apart and columns `c_strides[1]`. The strides and the offset of `p.b` are in
/// bytes.
pub(super) struct RowsOperands<'a> {
    pub c: &'a Tensor,
    pub c_strides: [usize; 2],
    pub p: &'a MatmulProblem,
    pub fused: &'a Fused<'a>,
    pub b_line: usize,
    pub b_offset: usize,
    pub format: Option<&'static Format>,
}

impl RowsOperands<'_> {
    pub fn run(&self, shape: MmaShape) -> Result<()> {
        let RowsOperands { c, p, fused, .. } = self;
        let parts = fused.parts();
        let planes = self.format.is_some();
        let s = MmaSizes { m: p.m, n: p.n / parts, k: p.k, parts, line: self.b_line, planes };
        let kernel = if planes { &PLANES_ROWS } else { &ROWS };
        let launch =
            kernel.launch("matmul_rows").define("DTYPE", c.dtype().code()).define("ROWS", shape.rows);
        let launch = launch.define("TILES", shape.tiles).define("ACROSS", shape.across);
        let launch = match self.format {
            Some(format) => of_format(launch, format),
            None => launch.define("QUANT", false),
        };
        let launch = launch.define("SPLIT", shape.splits > 1).define("WG", 32 * WARPS).define("VW", LANES);
        let launch = match fused.stack {
            Some(Stack::Sorted { .. }) => launch.define("TILE_ROWS", Groups::TILE_ROWS),
            _ => launch,
        };
        let launch = if fused.swapped { launch.define("SWAPPED", 1) } else { launch };
        let launch = launch.define("AV", "float").flops((2 * p.m * p.n * p.k) as u64);
        let launch = fused_defines(launch, fused).read_base(&p.a.tensor).read_base(&p.b.tensor);
        let launch = match fused.bias {
            Some(bias) => launch.read(&bindable(bias)?),
            None => launch.read_base(&Unused(&p.b.tensor)),
        };
        let part = match shape.splits {
            1 => None,
            splits => Some(c.empty_f32([splits * parts, s.m, s.n])?),
        };
        let launch = match &part {
            Some(part) => launch.write_base(*c).write(part),
            None => launch.write_base(*c).write_base(&Unused(c)),
        };
        let launch = launch.scalar(p.a.offset()).scalar(self.b_offset).scalar(c.layout().offset);
        let launch = launch.scalar(int(s.m)).scalar(int(s.n)).scalar(int(s.k)).scalar(p.a.row_stride);
        let launch = launch.scalar(self.b_line).scalar(self.c_strides[0]).scalar(self.c_strides[1]);
        let launch = finish(launch.scalar(int(shape.k_part)), fused)?;
        let launch = match &part {
            Some(_) => launch.write_base(&zeroed(c.device(), "matmul_rows", TICKETS)?),
            None => launch,
        };
        let mut groups = shape.groups(&s);
        if let Some(Stack::Sorted { groups: Groups { tiles, .. }, .. }) = fused.stack {
            groups[0] = tiles.dims()[0] * (Groups::TILE_ROWS / shape.rows);
        }
        launch.groups3(groups).run()
    }
}

/// Returns the shape for `rows` rows sorted by matrix and `matrices` matrices. It is estimated as one product with the average number of rows and
/// the columns of all matrices in use.
pub(in crate::ops::matmul) fn of_sorted(
    device: &Device,
    rows: usize,
    matrices: usize,
    s: MmaSizes,
) -> Option<MmaShape> {
    let constants = if s.planes { MODEL_OF_PLANES.on(device) } else { MODEL.on(device) };
    let units = device.capabilities().compute_units.max(1) as usize;
    let all = MmaSizes { m: rows.div_ceil(matrices.max(1)), n: s.n * rows.min(matrices), ..s };
    let shapes = MmaShape::all(all).filter(|shape| shape.splits == 1);
    let fits = shapes.filter(|shape| s.n.div_ceil(shape.lines(s.parts)) <= MAX_TILES);
    fits.min_by(|a, b| {
        let [a, b] = [a, b].map(|shape| shape.estimate(&constants, units, &all));
        a.total_cmp(&b)
    })
}

/// Computes `c (rows, N)`: rows sorted by matrix times dense 16-bit matrices (E, N, K). Returns `false` if this kernel does not support them.
pub(in crate::ops) fn sorted(c: &Tensor, a: &Tensor, b: &Tensor, stack: Stack<'_>) -> Result<bool> {
    let (Stack::Sorted { groups, .. }, device) = (stack, c.device()) else { return Ok(false) };
    if groups.experts == 0 || !ROWS.runs_on(device.capabilities()) {
        return Ok(false);
    }
    let [_, n, k] = b.dims3()?;
    let one = b.slice(0, 0..1)?.reshape([n, k])?;
    let lines = Matrix { row_stride: a.shape().last(), ..Matrix::rows_of(a)? };
    let p = MatmulProblem::new(lines, Matrix::rows_of(&one)?.transposed(), &[])?;
    let p = MatmulProblem { m: groups.rows, ..p };
    let few = MatmulProblem { m: 1, ..p.clone() };
    if supports_rows(c, &few).is_err() || !p.a.row_stride.is_multiple_of(LANES) {
        return Ok(false);
    }
    let Some(shape) = of_sorted(device, groups.rows, groups.experts, sizes(&p)) else { return Ok(false) };
    if !proven(device) {
        return Ok(false);
    }
    product(c, &p, &Fused { stack: Some(stack), ..Fused::NONE }, shape).map(|()| true)
}

/// Plan of a product with few rows or few columns.
#[derive(Debug)]
struct Rows(MmaShape);

pub(super) static ALGORITHM: MatmulAlgorithm = MatmulAlgorithm {
    kernel: &ROWS,
    supports,
    models: &[&MODEL],
    estimate: |r| match MmaShape::of(r.device(), sizes(&oriented(r.p).0)) {
        Some((micros, shape)) => (micros, ProductPlan::of(Rows(shape))),
        None => (f64::INFINITY, ProductPlan::of(Direct)),
    },
    run: |r, plan| {
        let Rows(shape) = *plan.get(&ROWS)?;
        finished(
            r,
            |aux| matches!(aux, EpilogueInputs::None | EpilogueInputs::Residual(_)),
            |r| run(r, shape).map(|()| None),
        )
    },
    self_test: Some(proven),
};

fn sizes(p: &MatmulProblem) -> MmaSizes {
    MmaSizes { m: p.m, n: p.n, k: p.k, parts: 1, line: p.b.col_stride * size_of::<u16>(), planes: false }
}

fn supports(r: &MatmulRequest<'_>) -> Result<(), &'static str> {
    match () {
        () if r.widens() => Err("f32 results of 16-bit operands"),
        () if r.column_sums => Err("does not compute column sums"),
        () => supports_rows(r.c, &oriented(r.p).0),
    }
}

/// Checks that B is in 16 bits and contiguous along k, and that all lines start at multiples of 16 bytes.
fn supports_rows(c: &Tensor, p: &MatmulProblem) -> Result<(), &'static str> {
    let lines = |offset: usize, along_k: usize, line: usize, count: usize| {
        along_k == 1 && offset.is_multiple_of(LANES) && (count == 1 || line.is_multiple_of(LANES))
    };
    match () {
        () if !matches!(c.dtype(), DType::F16 | DType::Bf16) => Err("requires 16-bit operands"),
        () if !(1..=MAX_ROWS).contains(&p.m) => Err("too many rows and columns: one of them must be small"),
        () if p.batch() != 1 || p.n == 0 || p.k == 0 => Err("requires a single non-empty product"),
        () if p.n.div_ceil(WARPS * TILE) > MAX_TILES => Err("too many columns for one launch"),
        () if !p.k.is_multiple_of(LANES)
            || !lines(p.a.offset(), p.a.col_stride, p.a.row_stride, p.m)
            || !lines(p.b.offset(), p.b.row_stride, p.b.col_stride, p.n) =>
        {
            Err("lines that are not along k at multiples of 16 bytes")
        }
        () => Ok(()),
    }
}

fn run(r: &MatmulRequest<'_>, shape: MmaShape) -> Result<()> {
    let e = r.e;
    let residual = if let EpilogueInputs::Residual(x) = e.aux { Some(x) } else { None };
    let (p, swapped) = oriented(r.p);
    let fused = Fused { alpha: e.alpha, bias: e.bias, add: e.add, residual, swapped, ..Fused::NONE };
    product(r.c, &p, &fused, shape)
}

/// Computes dense `c (M, N)`, or its transpose.
pub(in crate::ops::matmul) fn product(
    c: &Tensor,
    p: &MatmulProblem,
    fused: &Fused<'_>,
    shape: MmaShape,
) -> Result<()> {
    let n = p.n / fused.parts();
    let size = size_of::<u16>();
    let c_strides = if fused.swapped { [1, p.m] } else { [n, 1] };
    let (b_line, b_offset) = (p.b.col_stride * size, p.b.offset() * size);
    RowsOperands { c, c_strides, p, fused, b_line, b_offset, format: None }.run(shape)
}

/// Returns this kernel's shape for a product of few rows with its fused operations except the norm. Returns `None` if the kernel does not support
/// the product or is not the fastest. It is compared with `matmul_gemv`, the only other kernel that fuses as much, or with the whole table for more
/// rows.
pub(in crate::ops::matmul) fn of_few_rows(r: &MatmulRequest<'_>, fused: &Fused<'_>) -> Option<MmaShape> {
    let (p, parts) = (r.p, fused.parts());
    if p.m < 2 || fused.blocks.is_some() || !MATMUL.has(&ALGORITHM, r) || supports_rows(r.c, p).is_err() {
        return None;
    }
    let (micros, shape) = MmaShape::of(r.device(), MmaSizes { n: p.n / parts, parts, ..sizes(p) })?;
    let best = match gemv::of_few_rows(r, fused) {
        Some(_) => micros < estimate_on_gpus(r),
        None => MATMUL.choose(r).is_ok_and(|(row, _)| row.name() == ROWS.name),
    };
    (best && proven(r.device())).then_some(shape)
}

/// Checks that small products are exact, with few rows and with few columns. See [`Tuning::proven`].
fn proven(device: &Device) -> bool {
    Tuning::of(device).proven(device, &ROWS, || {
        for sizes in [[5, 264, 136], [136, 264, 24]] {
            proof::exact(device, DType::Bf16, sizes, [false, true], |c, p| {
                let request = MatmulRequest { c, p, e: &Epilogue::NONE, column_sums: false };
                let plan = (ALGORITHM.estimate)(&request).1;
                let Ok(&Rows(shape)) = plan.get(&ROWS) else { return Ok(None) };
                run(&request, shape).map(|()| None)
            })?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::reference;
    use super::super::super::tests::{near, ramp, rounding};
    use super::super::super::view::Matrix;
    use super::*;
    use crate::suite::test_device;

    /// Tests every way to divide a product, few rows and few columns, sums with partial chunks, and everything that an epilogue adds.
    #[test]
    fn rows_by_tensor_cores() {
        let device = test_device().unwrap();
        if !ROWS.runs_on(device.capabilities()) {
            println!("skipped: {} does not have tensor cores of sm_80", device.capabilities().id);
            return;
        }
        for (turn, [m, n, k]) in
            [[1, 70, 512], [5, 200, 1288], [20, 136, 2056], [70, 333, 648], [264, 12, 2000]]
                .into_iter()
                .enumerate()
        {
            let dtype = if turn % 2 == 0 { DType::F16 } else { DType::Bf16 };
            let ((a, a_host), (b, b_host)) = (ramp(&device, [m, k], 0.37), ramp(&device, [n, k], 0.61));
            let [a, b] = [a, b].map(|x| x.to_dtype(dtype).unwrap());
            let matrix = |x: &Tensor| Matrix::of("matmul", "operand", x).unwrap();
            let p = MatmulProblem::new(matrix(&a), matrix(&b).transposed(), &[]).unwrap();
            let product = reference(&a_host, &b_host.permute(&[1, 0]));
            let bias = Tensor::full(&device, [n], 2.0, dtype).unwrap();
            let residual = Tensor::full(&device, [m, n], 7.0, dtype).unwrap();
            let all = Epilogue {
                alpha: -0.5,
                bias: Some(&bias),
                add: true,
                aux: EpilogueInputs::Residual(&residual),
            };
            for shape in MmaShape::all(sizes(&oriented(&p).0)) {
                for (e, factor, shift) in [(&Epilogue::NONE, 1.0, 0.0), (&all, -0.5, 12.0)] {
                    let c = Tensor::full(&device, [m, n], if e.add { 3.0 } else { f32::NAN }, dtype).unwrap();
                    run(&MatmulRequest { c: &c, p: &p, e, column_sums: false }, shape).unwrap();
                    near(&c, &product.clone().map(|v| factor * v + shift), rounding(dtype, k));
                }
            }
        }
    }
}
