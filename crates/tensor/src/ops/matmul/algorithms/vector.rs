//! Products on CPUs, and on devices that cannot run a tile of any size: blocks of A and B are copied into panels that fit the caches.

use super::super::arguments::{Unused, bind, geometry};
use super::super::epilogue::COLUMN_SUMS;
use super::super::plan::{self, Cycles};
use super::{MatmulAlgorithm, MatmulRequest, ProductPlan, finished, trees};
use crate::ops::prelude::*;
use netcl_kernel::tune::{Constant, Model};

pub(in crate::ops::matmul) static VECTOR: Kernel = Kernel::new("matmul_vector", cl_file!("matmul_vector.cl"))
    .hot()
    .include(&[cl_file!("matmul_panels.cl")])
    .tune(&[("VW", &[0]), ("KC", &[384, 256]), ("NC", &[192, 256, 128]), ("MC", &[48, 96])])
    .requires(|device| device.is_cpu() || device.local_mem < 18 << 10 || device.max_group < ITEMS);

/// The same kernel with the functions that expressions use.
static VECTOR_TREE: Kernel = Kernel::new("matmul_vector", cl_file!("matmul_vector.cl"))
    .hot()
    .include(&[netcl_kernel::generate::FUNCTIONS, cl_file!("matmul_panels.cl")])
    .tune(&[("VW", &[0]), ("KC", &[384, 256]), ("NC", &[192, 256, 128]), ("MC", &[48, 96])]);

/// Work-items of a tile's group in the other kernels.
const ITEMS: usize = 256;

pub(super) static ALGORITHM: MatmulAlgorithm = MatmulAlgorithm {
    kernel: &VECTOR,
    supports,
    models: &[&MODEL],
    estimate,
    run: |r, plan| finished(r, trees, |r| run(r, plan)),
    self_test: None,
};

fn supports(r: &MatmulRequest<'_>) -> Result<(), &'static str> {
    if r.widens() { Err("f32 results of 16-bit operands") } else { Ok(()) }
}

static MODEL: Model = Model {
    name: "matmul_vector",
    constants: &[
        Constant::new("launch_us", "a launch", 2.0),
        Constant::new("cycles_per_us", "cycles of a core, each of two vectors of multiply-adds", 1300.0),
        Constant::new("copy_cycles", "copying an element into a panel", 0.04),
        Constant::new("store_cycles", "an element of C, whenever a block of k is added to it", 0.2),
        Constant::new("group_cycles", "a group, before its first element", 6000.0),
    ],
};

/// Division of a product on a CPU.
#[derive(Debug)]
struct Blocks(plan::MatmulPlan);

fn estimate(r: &MatmulRequest<'_>) -> (f64, ProductPlan) {
    let copies_a = r.dtype() != DType::F32 || r.p.a.col_stride != 1;
    let [launch, per_us, copy, store, group] = MODEL.on(r.device());
    let cycles = Cycles { copy, store, group };
    let (cycles, plan) = plan::CpuBlocks::of(r.device(), &VECTOR).plan(r.p, copies_a, r.units(), cycles);
    (launch + cycles / per_us, ProductPlan::of(Blocks(plan)))
}

fn run(r: &MatmulRequest<'_>, plan: &ProductPlan) -> Result<Option<Tensor>> {
    let Blocks(plan) = plan.get(&VECTOR)?;
    let MatmulRequest { c, p, e, .. } = *r;
    let column_sums = r.column_sums && p.batch() == 1;
    let blocks = plan::CpuBlocks::of(r.device(), &VECTOR);
    let narrow = c.dtype() != DType::F32;
    let sums = if column_sums { Some(c.empty_f32([p.n])?) } else { None };
    let kernel = if e.tree().is_some() { &VECTOR_TREE } else { &VECTOR };
    let launch = bind(kernel.launch("matmul_vector"), c, p, e)?;
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
    let launch = match e.tree() {
        Some(tree) => tree.bind(launch),
        None => launch,
    };
    // Column sums are needed even without rows.
    let rows = if column_sums { p.m.max(1) } else { p.m };
    launch.groups3([rows.div_ceil(plan.mg), p.n.div_ceil(plan.ng), p.batch()]).run()?;
    Ok(sums)
}
