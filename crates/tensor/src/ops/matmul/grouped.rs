//! Grouped products: rows sorted by expert, each multiplied by its expert's matrix. Only the device knows the assignment of rows. The sizes of
//! launches therefore depend on the number of rows alone, not on the experts' shares.

use super::super::prelude::*;
use super::algorithms::gemv::Stack;
use super::algorithms::{rows_mma, vector};
use super::arguments::Unused;
use super::groups::Groups;
use super::plan::CpuBlocks;
use netcl_kernel::{Launch, Variants};

const VECTOR_PARTS: &[&str] = &[cl_file!("algorithms/matmul_panels.cl")];

/// Kernel for CPUs and for devices that cannot run a tile.
static VECTOR: Kernel = Kernel::new("matmul_grouped_vector", cl_file!("matmul_grouped_vector.cl"))
    .include(VECTOR_PARTS)
    .tune(&[("VW", &[0])])
    .requires(|device| device.is_cpu() || device.local_mem < TILE_MEMORY || device.max_group < ITEMS);

/// Kernel for GPUs: a work-group computes 64 x 128 elements of the result, a work-item 8 x 8.
static TILE: Kernel = Kernel::new("matmul_grouped_tile", cl_file!("matmul_grouped_tile.cl"))
    .tune(&[("BK", &[8, 16])])
    .requires(|device| device.local_mem >= TILE_MEMORY && device.max_group >= ITEMS)
    .options(|device| if device.sm().is_some() { "-cl-nv-maxrregcount=168" } else { "" });

static GROUPED: Variants = Variants::new("matmul_grouped", &[&VECTOR, &TILE]);

/// Rows and columns of a tile of [`TILE`], its work-items, and its maximum local memory.
const TILE_ROWS: usize = Groups::TILE_ROWS;
const TILE_COLUMNS: usize = 128;
const ITEMS: usize = TILE_ROWS * TILE_COLUMNS / 64;
const TILE_MEMORY: u64 = 26 << 10;

/// Maximum number of rows that GPUs multiply one by one, such as those of single-token decoding.
const FEW_ROWS: usize = 32;

/// Rows of an operand: row r is line r of `lines`, or line `index[r]`.
#[derive(Clone, Copy)]
pub(in crate::ops) struct GroupedRows<'a> {
    /// (.., N), dense.
    pub lines: &'a Tensor,
    /// u32 (R).
    pub index: Option<&'a Tensor>,
}

impl<'a> GroupedRows<'a> {
    /// Uses line r as row r.
    pub fn all(lines: &'a Tensor) -> Self {
        Self { lines, index: None }
    }
    /// Uses line `index[r]` as row r.
    pub fn of(lines: &'a Tensor, index: &'a Tensor) -> Self {
        Self { lines, index: Some(index) }
    }
    fn width(&self) -> usize {
        self.lines.shape().last()
    }
}

/// Returns whether four adjacent elements can be read at once.
fn fours(n: usize) -> usize {
    if n.is_multiple_of(4) { 4 } else { 1 }
}

fn int(v: usize) -> i32 {
    i32::try_from(v).unwrap_or(i32::MAX)
}

fn check_sizes(sizes: &[usize]) -> Result<()> {
    let largest = int(usize::MAX).cast_unsigned() as usize;
    match sizes.iter().find(|n| **n > largest) {
        Some(n) => {
            Err(Error::shape(format!("experts: an axis of {n} elements is above {largest}; split it")))
        }
        None => Ok(()),
    }
}

/// Computes `c[r] = row r · W[expert of r]` (R, N) for weights (E, N, K), or (E, K, N) with `across`. Rows without an expert become 0.
pub(in crate::ops) fn rows(
    groups: &Groups,
    a: GroupedRows<'_>,
    weights: &Tensor,
    across: bool,
) -> Result<Tensor> {
    let ([_, x, y], device) = (weights.dims3()?, weights.device());
    let (n, k) = if across { (y, x) } else { (x, y) };
    check_sizes(&[groups.rows, n, k])?;
    debug_assert_eq!(a.width(), k);
    let c = Tensor::empty(device, [groups.rows, n], weights.dtype())?;
    if c.count() == 0 {
        return Ok(c);
    }
    let stack = Stack::Sorted { groups, lines: a.index };
    if !across && rows_mma::sorted(&c, a.lines, weights, stack)? {
        return Ok(c);
    }
    let kernel = GROUPED.choose(device, 0)?;
    let tile = kernel.name == TILE.name;
    let few = tile && !across && groups.rows <= FEW_ROWS;
    let entry = if few { "grouped_few" } else { "grouped_rows" };
    let begin = begin(kernel.launch(entry), weights, false).define("B_ALONG_K", !across);
    let begin = begin.define("GATHER_A", a.index.is_some()).flops((2 * groups.rows * n * k) as u64);
    let launch = begin.read(a.lines).read(weights).write(&c);
    let index = |launch: Launch<'static>| match a.index {
        Some(index) => launch.read(index),
        None => launch.read_base(&Unused(&groups.offsets)),
    };
    let sizes = |launch: Launch<'static>| launch.scalar(int(groups.experts)).scalar(int(n)).scalar(int(k));
    if tile {
        let along = if across { n } else { k };
        let launch = index(launch).read(&groups.offsets).define("VA", fours(k)).define("VB", fours(along));
        let launch = launch.local([ITEMS, 1, 1]);
        if few {
            sizes(launch).groups3([n.div_ceil(ITEMS / 32), groups.rows, 1]).run()?;
            return Ok(c);
        }
        let launch = sizes(launch.read(&groups.tiles)).scalar(int(groups.rows));
        launch.groups3([n.div_ceil(TILE_COLUMNS), groups.tiles.dims()[0], 1]).run()?;
        return Ok(c);
    }
    let plan = Plan::of_rows(device, groups.experts, [groups.rows, n, k]);
    let launch = index(part(launch, &c, k > plan.kc)?).read(&groups.offsets);
    let launch = plan.sizes(sizes(launch).scalar(int(groups.rows)));
    plan.blocks(launch).groups3([n.div_ceil(plan.nc), groups.experts + 1, 1]).run()?;
    Ok(c)
}

/// Computes `c[e] = Σ a's row rᵀ · b's row r` over the rows of expert e (E, M, N). An expert without rows gets zeros.
pub(in crate::ops) fn sums(groups: &Groups, a: GroupedRows<'_>, b: GroupedRows<'_>) -> Result<Tensor> {
    let (m, n, device) = (a.width(), b.width(), a.lines.device());
    check_sizes(&[groups.rows, m, n])?;
    let c = Tensor::empty(device, [groups.experts, m, n], a.lines.dtype())?;
    if c.count() == 0 {
        return Ok(c);
    }
    if groups.rows == 0 {
        return Tensor::zeros(device, c.shape(), c.dtype());
    }
    let index = match (a.index, b.index) {
        (Some(index), _) | (None, Some(index)) => index,
        (None, None) => &groups.offsets,
    };
    let kernel = GROUPED.choose(device, 0)?;
    let begin = begin(kernel.launch("grouped_sums"), a.lines, true).flops((2 * groups.rows * n * m) as u64);
    let begin = begin.define("GATHER_A", a.index.is_some()).define("GATHER_B", b.index.is_some());
    let launch = begin.read(a.lines).read(b.lines).write(&c);
    if kernel.name == TILE.name {
        let launch = launch.read(index).read(&groups.offsets).scalar(int(m)).scalar(int(n));
        let launch = launch.define("VA", fours(m)).define("VB", fours(n)).local([ITEMS, 1, 1]);
        launch.groups3([n.div_ceil(TILE_COLUMNS), m.div_ceil(TILE_ROWS), groups.experts]).run()?;
        return Ok(c);
    }
    let plan = Plan::of_sums(device, groups.experts, [groups.rows, m, n]);
    let launch = part(launch, &c, groups.rows > plan.kc)?.read(index).read(&groups.offsets);
    let launch = plan.sizes(launch.scalar(int(m)).scalar(int(n)).scalar(int(plan.mg)));
    plan.blocks(launch).groups3([n.div_ceil(plan.nc), m.div_ceil(plan.mg), groups.experts]).run()?;
    Ok(c)
}

fn begin(launch: Launch<'static>, x: &Tensor, sums: bool) -> Launch<'static> {
    launch.define("DTYPE", x.dtype().code()).define("SUMS", sums)
}

/// Binds a buffer for the f32 sums between blocks of k, if the storage type is narrower than f32.
fn part(launch: Launch<'static>, c: &Tensor, several: bool) -> Result<Launch<'static>> {
    Ok(match c.dtype() {
        DType::F32 => launch,
        _ if several => launch.write(&c.empty_f32(c.shape())?),
        _ => launch.write_base(&Unused(c)),
    })
}

/// Division of a product between the work-groups of the CPU kernel.
struct Plan {
    blocks: CpuBlocks,
    mg: usize,
    mc: usize,
    nc: usize,
    kc: usize,
}

impl Plan {
    /// Returns the columns of a block. There are at least `wanted` blocks if n allows it, and none is wider than `most`.
    fn columns(blocks: &CpuBlocks, n: usize, most: usize, wanted: usize) -> usize {
        let nr = blocks.nr();
        // In blocks narrower than two register tiles, A would be read too often.
        let parts = n.div_ceil(most).max(wanted.min(n / (2 * nr))).max(1);
        n.div_ceil(parts).next_multiple_of(nr).min(most)
    }
    fn of_rows(device: &Device, experts: usize, [rows, n, k]: [usize; 3]) -> Self {
        let blocks = CpuBlocks::of(device, &vector::VECTOR);
        let kc = k.div_ceil(k.div_ceil(blocks.kc).max(1)).next_multiple_of(4).clamp(4, blocks.kc);
        let most = (blocks.nc * blocks.kc / kc / blocks.nr() * blocks.nr()).max(blocks.nr());
        let nc = Self::columns(&blocks, n, most, Self::wanted(device, experts));
        let mc = (blocks.mc * blocks.kc / kc / blocks.mr * blocks.mr).max(blocks.mr);
        Self { blocks, mg: rows, mc, nc, kc }
    }
    fn of_sums(device: &Device, experts: usize, [_, m, n]: [usize; 3]) -> Self {
        let blocks = CpuBlocks::of(device, &vector::VECTOR);
        let wanted = Self::wanted(device, experts);
        let nc = Self::columns(&blocks, n, blocks.nc / blocks.nr() * blocks.nr(), wanted);
        let parts = wanted.div_ceil(n.div_ceil(nc)).clamp(1, m.div_ceil(blocks.mc));
        let mg = m.div_ceil(parts).next_multiple_of(blocks.mr);
        let mc = blocks.mc / blocks.mr * blocks.mr;
        Self { mg, mc: mc.max(blocks.mr), nc, kc: blocks.kc, blocks }
    }
    /// Returns the groups per expert. With this number, a few busy experts keep all cores busy.
    fn wanted(device: &Device, experts: usize) -> usize {
        (16 * device.capabilities().compute_units as usize).div_ceil(experts.max(1))
    }
    fn sizes(&self, launch: Launch<'static>) -> Launch<'static> {
        [self.mc, self.nc, self.kc].into_iter().fold(launch, |launch, v| launch.scalar(int(v)))
    }
    fn blocks(&self, launch: Launch<'static>) -> Launch<'static> {
        let CpuBlocks { mr, nv, kc, mc, nc, .. } = self.blocks;
        let launch =
            launch.define("MR", mr).define("NV", nv).define("KC", kc).define("MC", mc).define("NC", nc);
        launch.local([1, 1, 1])
    }
}
