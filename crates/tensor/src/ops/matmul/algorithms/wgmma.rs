//! Products on NVIDIA's sm_90 tensor cores: which products they support, and how they are launched.

use super::super::arguments::Unused;
use super::super::epilogue::{Epilogue, EpilogueInputs};
use super::super::lines::{self, Aligned};
use super::super::proof;
use super::super::tiles::{self, Speeds, SplitK, Staging, TICKETS, TILES, TilePlan};
use super::super::view::{MatmulProblem, Matrix};
use super::{MatmulAlgorithm, MatmulRequest, finished, mma};
use crate::ops::counters::zeroed;
use crate::ops::prelude::*;
use netcl_kernel::vendors::nvidia::{SM90A, TensorMap, address, tensor_maps, wgmma_macros};
use netcl_kernel::{Launch, Value};

pub(in crate::ops::matmul) const SCHEDULE: &str = cl_file!("matmul_wgmma_sm90_schedule.cl");
const TEXT: &str = concat!(
    cl_file!("matmul_wgmma_sm90_tiles.cl"),
    cl_file!("matmul_wgmma_sm90_reduction.cl"),
    cl_file!("matmul_wgmma_sm90_epilogue.cl"),
    cl_file!("matmul_wgmma_sm90.cl")
);

pub(in crate::ops::matmul) static WGMMA: Kernel = kernel(
    "matmul_wgmma_sm90",
    &[
        cl_file!("../../include/sm90.cl"),
        cl_file!("matmul_sm90.cl"),
        cl_file!("../../include/gelu_sm90.cl"),
        EPILOGUE,
        SCHEDULE,
    ],
);
/// The same kernel with expressions, whose functions have GELU's names.
static TREE: Kernel = kernel(
    "matmul_wgmma_tree_sm90",
    &[
        netcl_kernel::generate::FUNCTIONS,
        cl_file!("../../include/sm90.cl"),
        cl_file!("matmul_sm90.cl"),
        EPILOGUE,
        SCHEDULE,
    ],
);
const EPILOGUE: &str = cl_file!("../../include/epilogue.cl");

const fn kernel(name: &'static str, includes: &'static [&'static str]) -> Kernel {
    Kernel::new(name, TEXT)
        .include(includes)
        .generate(wgmma_macros)
        .reload(&SM90A)
        .requires(|device| device.sm() == Some(90))
}

/// Columns of a box of C or aux: 128 bytes, the span of the swizzle.
const BOX_COLUMNS: u32 = 64;
/// Describes dense C or aux (m, n) as boxes of an epilogue.
fn boxes(x: &Tensor, [m, n]: [usize; 2], rows: usize) -> Result<TensorMap> {
    let size = x.dtype().size();
    Ok(TensorMap {
        dtype: x.dtype(),
        address: address(x.storage())? + (x.layout().offset * size) as u64,
        dims: [n as u64, m as u64],
        stride: (n * size) as u64,
        block: [BOX_COLUMNS, rows as u32],
    })
}

/// Plan: tile, split-K and staging of the epilogue.
#[derive(Debug)]
struct Warpgroups(TilePlan);

pub(super) static ALGORITHM: MatmulAlgorithm = MatmulAlgorithm {
    kernel: &WGMMA,
    supports,
    models: &[&tiles::MODEL, &lines::MODEL],
    estimate: |r| {
        let (micros, plan) = estimate(r);
        (micros, super::ProductPlan::of(Warpgroups(plan)))
    },
    run: |r, plan| {
        let Warpgroups(plan) = *plan.get(&WGMMA)?;
        // tf32 products have only the plain epilogue.
        finished(r, takes(r), |r| run(r, plan))
    },
    self_test: Some(proven),
};

/// Returns the predicate of what the kernel fuses. Expressions are fused if C is stored in whole vectors.
fn takes(r: &MatmulRequest<'_>) -> fn(&EpilogueInputs<'_>) -> bool {
    let whole = r.dtype() != DType::F32 && !r.widens() && lanes_of(r.c, r.p, r.e) == 8;
    match whole && r.e.tree().is_some() && takes_expressions(r.device()) {
        true => |_| true,
        false => {
            |aux| matches!(aux, EpilogueInputs::None) || aux.tensor().is_some_and(|x| x.dtype() != DType::F32)
        }
    }
}

/// Checks that an expression after a small product is exact; see [`proven`].
fn takes_expressions(device: &Device) -> bool {
    let plan = TilePlan { tile: TILES[0], split: SplitK::None, staging: None };
    let tuning = Tuning::of(device);
    tuning.allows(device, &TREE)
        && tuning.proven(device, &TREE, || {
            proof::exact(device, DType::Bf16, proof::ALIGNED, [false; 2], |c, p| {
                run_plan(c, p, &Epilogue::NONE, plan, false)?;
                proof::expression(c, |got, tree| {
                    let epilogue = Epilogue { aux: EpilogueInputs::Tree(tree), ..Epilogue::NONE };
                    run_plan(got, p, &epilogue, plan, false).map(drop)
                })?;
                Ok(None)
            })
        })
}

fn supports(r: &MatmulRequest<'_>) -> Result<(), &'static str> {
    let (p, e) = (r.p, r.e);
    let b = p.b.clone().transposed();
    match () {
        () if p.batch() != 1 => Err("several products"),
        () if p.m * p.n < 256 || p.k < 16 => Err("smaller than an instruction's tile"),
        () if r.dtype() == DType::F32 && !mma::allowed(r.device(), DType::F32) => {
            Err("f32 at the highest precision")
        }
        () if r.dtype() == DType::F32 && !p.n.is_multiple_of(4) => {
            Err("tf32 with rows of C that do not start at multiples of 16 bytes")
        }
        () if r.dtype() == DType::F32 => match copies_along_k(p, [0.0, 1.0]) {
            Some(_) => Ok(()),
            None => Err("tf32 operands that are not contiguous along k and cannot be copied so"),
        },
        () if lines::uneven([&p.a, &b]).is_none() => Err("operands without a contiguous axis"),
        () if r.widens() && !p.n.is_multiple_of(8) => {
            Err("f32 sums with a number of columns that is not a multiple of 8")
        }
        () if r.widens() && (e.bias.is_some() || e.aux.tensor().is_some()) => {
            Err("f32 sums with an epilogue")
        }
        () => Ok(()),
    }
}

/// Returns the number of elements per store (8, 2 or 1) if rows of C and aux start at multiples of `starts`.
fn lanes<const N: usize>(starts: [usize; N]) -> usize {
    let all = |lanes: &usize| starts.iter().all(|start| start.is_multiple_of(*lanes));
    [8, 2].into_iter().find(all).unwrap_or(1)
}

/// Estimates the microseconds of copying the operands that are not contiguous along k, as tf32 needs them. A copy takes `start` microseconds and
/// moves `speed` bytes per microsecond. Returns `None` if a copy would not be aligned either.
fn copies_along_k(p: &MatmulProblem, [start, speed]: [f64; 2]) -> Option<f64> {
    let copy = |x: &Matrix| match Aligned::of(x) {
        Some(x) if x.along_k => Some(0.0),
        _ if p.k.is_multiple_of(4) => Some(start + (8 * x.rows * x.cols) as f64 / speed),
        _ => None,
    };
    Some(copy(&p.a)? + copy(&p.b.clone().transposed())?)
}

fn estimate(r: &MatmulRequest<'_>) -> (f64, TilePlan) {
    let (p, on) = (r.p, &Speeds::on(r.device()));
    if r.dtype() == DType::F32 {
        // tf32 runs at half the speed.
        let twice = TilePlan::sum([p.m, p.n, 2 * p.k], on, r.e.add);
        let product = twice.tile.estimate([p.m, p.n, 2 * p.k], SplitK::Accumulate { add: false }, on);
        return (
            copies_along_k(p, on.copy).unwrap_or(f64::INFINITY) + product,
            TilePlan::sum([p.m, p.n, p.k], on, r.e.add),
        );
    }
    let plan = match r.widens() {
        true => TilePlan::sum([p.m, p.n, p.k], on, r.e.add),
        false => {
            let aligned = lanes_of(r.c, p, r.e) == 8;
            let plan = TilePlan::of([p.m, p.n, p.k], on, aligned && matches!(r.e.aux, EpilogueInputs::None));
            let staging = plan.tile.staging_for(p.k).filter(|_| aligned && r.e.aux.tensor().is_some());
            TilePlan { staging, ..plan }
        }
    };
    let copied = lines::uneven([&p.a, &p.b.clone().transposed()]).unwrap_or(0);
    let copies = lines::cost(r.device(), copied);
    (on.launch + copies + plan.tile.estimate([p.m, p.n, p.k], plan.split, on), plan)
}

/// Computes the product of the operands in place, or of copies.
fn run(r: &MatmulRequest<'_>, plan: TilePlan) -> Result<Option<Tensor>> {
    if r.dtype() != DType::F32 {
        return run_plan(r.c, &with_aligned_lines(r.p)?, r.e, plan, r.column_sums);
    }
    let along_k = |x: Matrix| -> Result<Matrix> {
        if Aligned::of(&x).is_some_and(|x| x.along_k) { Ok(x) } else { x.materialised(&[]) }
    };
    let b = along_k(r.p.b.clone().transposed())?.transposed();
    let problem = MatmulProblem::one(along_k(r.p.a.clone())?, b);
    run_plan(r.c, &problem, r.e, plan, false).map(|_| None)
}

/// Returns the same product with operands whose lines can be copied.
pub(in crate::ops::matmul) fn with_aligned_lines(p: &MatmulProblem) -> Result<MatmulProblem> {
    let [a, b] = lines::aligned([p.a.clone(), p.b.clone().transposed()])?;
    Ok(MatmulProblem::one(a, b.transposed()))
}

/// Returns [`lanes`] of C and aux.
fn lanes_of(c: &Tensor, p: &MatmulProblem, e: &Epilogue<'_>) -> usize {
    lanes([p.n, c.layout().offset, e.aux.tensor().map_or(0, |aux| aux.layout().offset)])
}

/// Returns the kernel's defines: whether A and B are along k, the elements per store, and whether B's columns are summed.
fn defines(
    TilePlan { tile, split, staging }: TilePlan,
    e: &Epilogue<'_>,
    [a, b]: [bool; 2],
    dtype: DType,
    lanes: usize,
    sums: bool,
) -> Vec<(&'static str, Value)> {
    let mut all = tile.defines(staging);
    all.push(("C_LANES", lanes.into()));
    all.extend([
        ("DTYPE", dtype.code().into()),
        ("SPLIT", split.code().into()),
        ("STREAM_K", (split == SplitK::StreamK).into()),
    ]);
    all.extend([("A_ALONG_K", a.into()), ("B_ALONG_K", b.into())]);
    all.extend([("COLUMN_SUMS", sums.into()), ("BIAS", e.bias.is_some().into()), ("ADD_C", e.add.into())]);
    all.extend([("RESIDUAL", matches!(e.aux, EpilogueInputs::Residual(_)).into())]);
    all.extend([("GELU", matches!(e.aux, EpilogueInputs::Gelu(_)).into())]);
    all.extend([("GELU_GRAD", matches!(e.aux, EpilogueInputs::GeluGrad(_)).into())]);
    #[cfg(test)]
    all.extend(super::super::sweep::defines());
    all
}

/// Returns the tensor maps that the kernel reads, and whether A and B are along k.
fn maps(
    c: &Tensor,
    p: &MatmulProblem,
    e: &Epilogue<'_>,
    TilePlan { tile, staging, .. }: TilePlan,
) -> Result<(Vec<TensorMap>, [bool; 2])> {
    let b_transposed = p.b.clone().transposed();
    let (Some(a), Some(b)) = (Aligned::of(&p.a), Aligned::of(&b_transposed)) else {
        return Err(Error::internal("matmul_wgmma_sm90: the operands cannot be described by tensor maps"));
    };
    let mut maps = vec![a.map(&p.a, tile.rows())?, b.map(&b_transposed, tile.columns)?];
    if let Some(Staging { rows, .. }) = staging {
        for x in [Some(c), e.aux.tensor()].into_iter().flatten() {
            maps.push(boxes(x, [p.m, p.n], rows)?);
        }
    }
    Ok((maps, [a.along_k, b.along_k]))
}

/// Binds the buffers after the bias: aux, C, partial sums and turn counters.
fn arguments(
    launch: Launch<'static>,
    c: &Tensor,
    e: &Epilogue<'_>,
    split: SplitK,
    part: Option<&Tensor>,
) -> Result<Launch<'static>> {
    let launch = match e.aux {
        EpilogueInputs::None | EpilogueInputs::Tree(_) => launch.write_base(&Unused(c)),
        EpilogueInputs::Residual(x) | EpilogueInputs::GeluGrad(x) => launch.read(x),
        EpilogueInputs::Gelu(x) => launch.write(x),
    };
    let launch = match split {
        SplitK::Accumulate { .. } => launch.write_base(&Unused(c)),
        _ => launch.write(c),
    };
    let launch = match part {
        Some(part) => launch.write(part),
        None => launch.write_base(&Unused(c)),
    };
    let launch = match split {
        SplitK::Serial(_) | SplitK::StreamK => launch.write_base(&zeroed(c.device(), "matmul", TICKETS)?),
        _ => launch.write_base(&Unused(c)),
    };
    Ok(launch)
}

/// Runs a plan. `c` has the operands' type, or f32 for [`SplitK::Accumulate`].
pub(in crate::ops::matmul) fn run_plan(
    c: &Tensor,
    p: &MatmulProblem,
    e: &Epilogue<'_>,
    plan @ TilePlan { tile, split, .. }: TilePlan,
    column_sums: bool,
) -> Result<Option<Tensor>> {
    let device = c.device();
    let units = device.capabilities().compute_units.max(1) as usize;
    let dtype = p.a.tensor.dtype();
    let (maps, along_k) = maps(c, p, e, plan)?;
    let (table, at) = tensor_maps(device, &maps)?;
    let tiles = tile.count(p.m, p.n);
    let (groups, splits) = split.groups(tiles, p.k, units);
    let column_parts = splits * p.m.div_ceil(tile.rows());
    let sums = (column_sums && !along_k[1] && p.n.is_multiple_of(2)).then_some([column_parts, p.n]);
    let sums = sums.map(|shape| c.empty_f32(shape)).transpose()?;
    // Sums are f32: 16 bytes hold four.
    let lanes = if matches!(split, SplitK::Accumulate { .. }) { 8 } else { lanes_of(c, p, e) };
    let defines = defines(plan, e, along_k, dtype, lanes, sums.is_some());
    let define = |launch: Launch<'static>| {
        defines.iter().fold(launch, |launch, (name, value)| launch.define(name, value.clone()))
    };
    let bias = e.bias.map(|bias| bias.detach().contiguous()).transpose()?;
    let with_bias = |launch: Launch<'static>| match &bias {
        Some(bias) => launch.read(bias),
        None => launch.read_base(&Unused(c)),
    };
    let part = match split {
        SplitK::None => None,
        SplitK::Serial(_) | SplitK::StreamK => Some(c.empty_f32([tiles * tile.rows() * tile.columns])?),
        SplitK::Workspace(n) => Some(c.empty_f32([n, c.count()])?),
        SplitK::Accumulate { .. } => Some(c.clone()),
    };
    let kernel = if e.tree().is_some() { &TREE } else { &WGMMA };
    let launch = define(kernel.launch("matmul_wgmma")).flops((2 * p.m * p.n * p.k) as u64).read_base(&table);
    let launch = launch.read_indirect(&p.a.tensor).read_indirect(&p.b.tensor);
    let launch = arguments(with_bias(launch), c, e, split, part.as_ref())?;
    let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
    let launch = launch.scalar(at).scalar(int(p.m)).scalar(int(p.n)).scalar(int(p.k)).scalar(int(splits));
    let launch = sums.iter().fold(launch.scalar(e.alpha), Launch::write);
    let launch = match e.tree() {
        Some(tree) => tree.bind(launch.define("VW", 4)),
        None => launch,
    };
    launch.local([384, 1, 1]).groups(groups).run()?;
    if let (Some(part), SplitK::Workspace(_)) = (part, split) {
        let launch = with_bias(define(WGMMA.launch("matmul_wgmma_sum")).read(&part)).write(c);
        let launch = launch.scalar(c.count()).scalar(int(p.n)).scalar(int(splits)).scalar(e.alpha);
        launch.local([256, 1, 1]).groups(c.count().div_ceil(4 * 256)).run()?;
    }
    let Some(sums) = &sums else { return Ok(None) };
    let columns = Tensor::empty(device, [p.n], dtype)?;
    let launch = define(WGMMA.launch("matmul_wgmma_columns")).read(sums).write(&columns);
    launch.scalar(int(p.n)).scalar(int(column_parts)).local([32, 8, 1]).groups(p.n.div_ceil(32)).run()?;
    Ok(Some(columns))
}

/// Checks that small products are exact. This kernel relies on the layout of tensor maps and on instructions that the driver's compiler does not
/// support. See [`Tuning::proven`].
pub(in crate::ops::matmul) fn proven(device: &Device) -> bool {
    Tuning::of(device).proven(device, &WGMMA, || {
        let plan = TilePlan { tile: TILES[0], split: SplitK::None, staging: None };
        if mma::allowed(device, DType::F32) {
            let tf32 = |c: &Tensor, p: &MatmulProblem| {
                let request = MatmulRequest { c, p, e: &Epilogue::NONE, column_sums: false };
                run(&request, estimate(&request).1)
            };
            proof::exact(device, DType::F32, proof::ALIGNED, [false, true], tf32)?;
        }
        // Test two compilations: with column sums, other warps work and other barriers are used.
        [false, true].into_iter().try_for_each(|column_sums| {
            proof::exact(device, DType::Bf16, proof::ALIGNED, [false; 2], |c, p| {
                run_plan(c, p, &Epilogue::NONE, plan, column_sums)
            })
        })?;
        // C and the matrix that is added to it move through local memory.
        proof::exact(device, DType::Bf16, proof::ALIGNED, [false; 2], |c, p| {
            let nothing = Tensor::zeros(device, [p.m, p.n], DType::Bf16)?;
            let epilogue = Epilogue { aux: EpilogueInputs::Residual(&nothing), ..Epilogue::NONE };
            run_plan(c, p, &epilogue, TilePlan { staging: Some(plan.tile.staging()), ..plan }, false)
        })
    })
}
