//! The ways to compute a product: a table of which a row lies in a file of its own, with its kernel.
//!
//! A row says whether it takes a product and, if not, why; how long it would take, with the plan behind that estimate; and runs the plan.
//! The cheapest row that takes a product and passes its self-test is chosen, once for each kind of product on a device. One that
//! `netcl tune` measured as faster for the class of shapes, that `NETCL_PREFER` names or that the self-test tries goes first where it
//! takes the product. To add a variant: a file here and its name in [`ALGORITHMS`].

use super::super::prelude::*;
use super::launch::{Aux, Epilogue};
use super::plan;
use super::split_k::SplitKSchedule;
use super::tiles;
use super::view::Problem;
use netcl_device::ErrorKind;
use netcl_kernel::{Usable, Variants};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

pub(super) mod bf16x3;
pub(super) mod gemv;
pub(super) mod mma;
pub(super) mod tile;
pub(super) mod vector;
pub(super) mod wgmma;

/// The rows. Among equal estimates the first is taken.
static ALGORITHMS: [&Algorithm; 9] = [
    &gemv::ON_PROCESSORS,
    &vector::ALGORITHM,
    &gemv::ON_GPUS,
    &wgmma::ALGORITHM,
    &mma::ALGORITHM,
    &bf16x3::ALGORITHM,
    &tile::ASYNC,
    &tile::LARGE,
    &tile::SMALL,
];

static MATMUL: Variants = Variants::new("matmul", &KERNELS);
static KERNELS: [&Kernel; ALGORITHMS.len()] = {
    let mut kernels = [ALGORITHMS[0].kernel; ALGORITHMS.len()];
    let mut i = 1;
    while i < kernels.len() {
        kernels[i] = ALGORITHMS[i].kernel;
        i += 1;
    }
    kernels
};

/// A way to compute a product.
pub(super) struct Algorithm {
    /// Its kernel, under whose name it is tuned, preferred, disabled and quarantined.
    pub kernel: &'static Kernel,
    /// Whether it computes this product on this device; otherwise why not.
    pub supports: fn(&Request<'_>) -> Result<(), &'static str>,
    /// Microseconds that its work-groups are estimated to take, memory's bandwidth left out, and how it would do it. Asked only where it is
    /// supported.
    pub estimate: fn(&Request<'_>) -> (f64, Plan),
    /// Whether it does what [`Epilogue::aux`] says; otherwise that comes after it, element by element.
    pub fuses: fn(&Aux<'_>) -> bool,
    /// Computes the product; returns the sums of B's columns in f32 or the storage type if they were asked for and cost it nothing.
    pub run: fn(&Request<'_>, &Plan) -> Result<Option<Tensor>>,
    /// Whether small products are right, asked before the first use where the kernel relies on more than OpenCL promises.
    pub self_test: Option<fn(&Device) -> bool>,
}

impl Algorithm {
    pub fn name(&self) -> &'static str {
        self.kernel.name
    }
    /// [`Algorithm::estimate`], and no less than memory takes.
    fn priced(&self, request: &Request<'_>) -> (f64, Plan) {
        let (micros, plan) = (self.estimate)(request);
        (micros.max(request.least()), plan)
    }
}

/// How an algorithm shares a product out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Plan {
    /// All of it follows from the product.
    Direct,
    /// A processor's blocks.
    Blocks(plan::Plan),
    /// Tiles with split-K for the last of them.
    Tiles(SplitKSchedule),
    /// A warpgroup kernel's tile, split-K and epilogue.
    Warpgroups(tiles::Plan),
    /// All sums in so many parts of so many steps.
    Parts { splits: usize, steps: usize },
}

/// `c = epilogue(a b)`; `c` is dense, has as many elements as the product, and is of A's type or, for sums over several products, of f32.
pub(super) struct Request<'a> {
    pub c: &'a Tensor,
    pub p: &'a Problem,
    pub e: &'a Epilogue<'a>,
    /// Whether the sums of B's columns are of use.
    pub column_sums: bool,
}

impl Request<'_> {
    pub fn device(&self) -> &Device {
        self.c.device()
    }
    pub fn units(&self) -> usize {
        self.device().capabilities().compute_units.max(1) as usize
    }
    /// Storage type of the operands.
    pub fn dtype(&self) -> DType {
        self.p.a.tensor.dtype()
    }
    /// Whether C is f32 although the operands are not.
    pub fn widens(&self) -> bool {
        self.c.dtype() != self.dtype()
    }
    pub fn flops(&self) -> f64 {
        2.0 * self.p.m as f64 * self.p.n as f64 * self.p.k as f64 * self.p.batch() as f64
    }
    /// Microseconds that no row can take less than: those of a launch and of memory, which reads A and B and writes C once.
    fn least(&self) -> f64 {
        let p = self.p;
        let operands = p.batch() * p.k * (p.m + p.n) * self.dtype().size();
        let bytes = (operands + self.c.count() * self.c.dtype().size()) as f64;
        match self.device().capabilities().is_cpu() {
            true => 0.0,
            false => gemv::LAUNCH + bytes / gemv::BANDWIDTH[1],
        }
    }
    /// Class of shapes for which `netcl tune` finds the fastest row: storage type, layouts, and the sizes' powers of two.
    fn class(&self) -> u64 {
        let log = |n: usize| u64::from(n.max(1).next_power_of_two().ilog2().min(31));
        let p = self.p;
        let layout = u64::from(p.a.col_stride == 1) | u64::from(p.b.col_stride == 1) << 1;
        let sizes = log(p.m) | log(p.n) << 5 | log(p.k) << 10 | log(p.batch()) << 15;
        1 + (sizes
            | layout << 20
            | u64::from(self.dtype().code() as u32) << 22
            | u64::from(self.widens()) << 26)
    }
    /// All that a decision may depend on.
    fn signature(&self) -> Signature {
        let Self { c, p, e, column_sums } = self;
        let of = |x: &super::view::Matrix| (x.row_stride, x.col_stride, x.offset() % ALIGNED);
        let aux = match e.aux {
            Aux::None => 0,
            Aux::Residual(_) => 1,
            Aux::Gelu(_) => 2,
            Aux::GeluGrad(_) => 3,
        };
        let aux_offset = e.aux.tensor().map_or(0, |x| x.layout().offset % ALIGNED);
        Signature {
            types: [c.dtype(), self.dtype()],
            sizes: [p.m, p.n, p.k, p.z[0], p.z[1]],
            operands: [of(&p.a), of(&p.b)],
            batches: [p.a_strides, p.b_strides],
            epilogue: (e.bias.is_some(), e.add, aux, aux_offset, c.layout().offset % ALIGNED),
            column_sums: *column_sums,
        }
    }
}

/// Elements whose multiples an offset is compared with: 16 bytes of the narrowest type, and more.
const ALIGNED: usize = 64;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Signature {
    types: [DType; 2],
    sizes: [usize; 5],
    operands: [(usize, usize, usize); 2],
    batches: [[usize; 2]; 2],
    epilogue: (bool, bool, u8, usize, usize),
    column_sums: bool,
}

/// What was decided, and among which variants.
type Decided = (Arc<Usable>, &'static Algorithm, Plan);

/// Decisions of a device: finding the cheapest of hundreds of plans takes a host longer than a launch.
#[derive(Default)]
struct Decisions(RwLock<HashMap<Signature, Decided>>);

/// Decisions from which on all are made anew: sizes that never come back would otherwise stay for ever.
const MOST: usize = 4096;

/// The row that computes a product here, and its plan.
///
/// # Errors
/// `Unsupported` with the reason of each row where none does.
pub(super) fn choose(request: &Request<'_>) -> Result<(&'static Algorithm, Plan)> {
    let device = request.device();
    let usable = MATMUL.usable(device, request.class());
    let decisions = device.extension(|_| Decisions::default());
    let signature = request.signature();
    let known = decisions.0.read().unwrap_or_else(PoisonError::into_inner).get(&signature).cloned();
    if let Some((_, algorithm, plan)) = known.filter(|(among, ..)| Arc::ptr_eq(among, &usable)) {
        return Ok((algorithm, plan));
    }
    let (algorithm, plan) = cheapest(request, &usable)?;
    let mut decisions = decisions.0.write().unwrap_or_else(PoisonError::into_inner);
    if decisions.len() >= MOST {
        decisions.clear();
    }
    decisions.insert(signature, (usable, algorithm, plan));
    Ok((algorithm, plan))
}

fn cheapest(request: &Request<'_>, usable: &Usable) -> Result<(&'static Algorithm, Plan)> {
    first_that_passes(request, usable).ok_or_else(|| {
        let p = request.p;
        let reasons = explain(request).into_iter().map(|row| format!("{}: {}", row.name, row.outcome()));
        Error::unsupported(format!(
            "matmul: no variant computes ({}, {}) x ({}, {}) in {} on {}: {}",
            p.m,
            p.k,
            p.k,
            p.n,
            request.dtype(),
            request.device().capabilities().id,
            reasons.collect::<Vec<_>>().join("; ")
        ))
    })
}

/// The cheapest row that takes the product and passes its self-test.
fn first_that_passes(request: &Request<'_>, usable: &Usable) -> Option<(&'static Algorithm, Plan)> {
    let rows = usable.kernels.iter().filter_map(|kernel| by_name(kernel.name));
    let mut found: Vec<(f64, &'static Algorithm, Plan)> = Vec::with_capacity(ALGORITHMS.len());
    for (i, algorithm) in rows.enumerate().filter(|(_, a)| (a.supports)(request).is_ok()) {
        let (micros, plan) = algorithm.priced(request);
        // What is only slower is no reason against the one that is wanted.
        found.push((if i == 0 && usable.wanted { f64::NEG_INFINITY } else { micros }, algorithm, plan));
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let passes = |algorithm: &Algorithm| algorithm.self_test.is_none_or(|test| test(request.device()));
    let chosen = found.into_iter().find(|(_, algorithm, _)| passes(algorithm));
    chosen.map(|(_, algorithm, plan)| (algorithm, plan))
}

fn by_name(name: &str) -> Option<&'static Algorithm> {
    ALGORITHMS.iter().copied().find(|algorithm| algorithm.name() == name)
}

/// What the table says of one row about a product.
#[derive(Clone, Debug)]
pub struct Row {
    /// The kernel's name.
    pub name: &'static str,
    /// Estimated microseconds and the plan, where it takes the product; otherwise why it does not.
    pub estimate: Result<(f64, String), String>,
    /// Whether it is the one that runs.
    pub chosen: bool,
}

impl Row {
    fn outcome(&self) -> String {
        match &self.estimate {
            Ok((micros, plan)) => format!("{micros:.1} us, {plan}"),
            Err(why) => why.clone(),
        }
    }
}

/// Every row with its estimate, or with the reason why it does not apply.
pub(super) fn explain(request: &Request<'_>) -> Vec<Row> {
    let device = request.device();
    let usable = MATMUL.usable(device, request.class());
    let row = |algorithm: &&'static Algorithm| {
        let (name, kernel) = (algorithm.name(), algorithm.kernel);
        let estimate = if !kernel.runs_on(device.capabilities()) {
            Err("the device lacks what its kernel requires".to_owned())
        } else if !usable.kernels.iter().any(|k| k.name == name) {
            Err("disabled or in quarantine".to_owned())
        } else {
            let estimate = (algorithm.supports)(request).map(|()| algorithm.priced(request));
            estimate.map(|(micros, plan)| (micros, format!("{plan:?}"))).map_err(str::to_owned)
        };
        Row { name, estimate, chosen: false }
    };
    let mut rows: Vec<Row> = ALGORITHMS.iter().map(row).collect();
    if let Some((chosen, _)) = first_that_passes(request, &usable) {
        rows.iter_mut().for_each(|row| row.chosen = row.name == chosen.name());
    }
    rows
}

/// Computes the product with the row that is chosen for it.
pub(super) fn run(request: &Request<'_>) -> Result<Option<Tensor>> {
    let (algorithm, plan) = choose(request)?;
    match run_with(algorithm, &plan, request) {
        // One of a kernel's many texts that the driver's assembler does not like: another row takes the product.
        Err(e)
            if algorithm.self_test.is_some()
                && matches!(e.kind(), ErrorKind::Build | ErrorKind::Unsupported) =>
        {
            let device = request.device();
            Tuning::of(device).retire(device, algorithm.kernel, e.message());
            run(request)
        }
        outcome => outcome,
    }
}

/// Computes it with one row, and then what of the epilogue that does not do.
pub(super) fn run_with(algorithm: &Algorithm, plan: &Plan, request: &Request<'_>) -> Result<Option<Tensor>> {
    let Request { c, p, e, column_sums } = *request;
    if (algorithm.fuses)(&e.aux) {
        return (algorithm.run)(request, plan);
    }
    let plain = Epilogue { aux: Aux::None, ..*e };
    let sum = if let Aux::Gelu(before) = e.aux { before } else { c };
    let sums = (algorithm.run)(&Request { c: sum, p, e: &plain, column_sums }, plan)?;
    super::launch::finish(c, &e.aux)?;
    Ok(sums)
}

/// The rows that take a product, in their order, with their plans: to compare them.
#[cfg(test)]
pub(super) fn all(request: &Request<'_>) -> Vec<(&'static Algorithm, f64, Plan)> {
    let usable = MATMUL.usable(request.device(), request.class());
    let mut rows = Vec::new();
    for algorithm in ALGORITHMS.iter().copied().filter(|a| usable.kernels.iter().any(|k| k.name == a.name()))
    {
        let passes = || algorithm.self_test.is_none_or(|test| test(request.device()));
        if (algorithm.supports)(request).is_ok() && passes() {
            let (micros, plan) = algorithm.priced(request);
            rows.push((algorithm, micros, plan));
        }
    }
    rows
}

/// The kernel of few rows that takes this product, for what is fused into it.
pub(super) fn few_rows(request: &Request<'_>) -> Option<&'static Kernel> {
    let usable = MATMUL.usable(request.device(), request.class());
    let rows = [&gemv::ON_PROCESSORS, &gemv::ON_GPUS];
    let takes = |row: &&&Algorithm| {
        usable.kernels.iter().any(|k| k.name == row.name()) && (row.supports)(request).is_ok()
    };
    rows.iter().find(takes).map(|row| row.kernel)
}

/// A plan of another row was given to this one.
fn foreign(kernel: &Kernel) -> Error {
    Error::internal(format!("{}: a plan of another algorithm", kernel.name))
}

/// Computes the product with the row of this name.
pub(super) fn with(name: &str, request: &Request<'_>) -> Result<Option<Tensor>> {
    let row = by_name(name).ok_or_else(|| Error::internal(format!("no algorithm {name}")))?;
    (row.supports)(request).map_err(|why| Error::unsupported(format!("{name}: {why}")))?;
    run_with(row, &(row.estimate)(request).1, request)
}

#[cfg(test)]
mod tests {
    use super::super::view::Matrix;
    use super::*;
    use crate::suite::test_device;
    use netcl_device::null::NullDriver;
    use netcl_device::{Architecture, DeviceKind, Settings};

    /// No tile makes up for a matrix that memory brings no faster.
    #[test]
    fn few_rows_of_a_large_matrix_are_read_once() {
        let mut card = test_device().unwrap().capabilities().clone();
        (card.kind, card.compute_units) = (DeviceKind::Gpu, 132);
        card.architecture = Architecture::Nvidia { sm: 90 };
        (card.local_mem, card.global_mem, card.max_alloc) = (48 << 10, 140 << 30, 35 << 30);
        let settings = Settings { trust_kernels: true, ..Settings::default() };
        let device = Device::from_driver(Box::new(NullDriver::new(card)), settings);
        for (m, k, n) in [(1, 768, 50_304), (1, 16_384, 16_384), (4, 4096, 11_008), (8, 8192, 28_672)] {
            for dtype in [DType::F32, DType::Bf16] {
                let empty = |dims: [usize; 2]| Tensor::empty(&device, dims, dtype).unwrap();
                let matrix = |x: Tensor| Matrix::of("matmul", "operand", &x).unwrap();
                let p = Problem::new(matrix(empty([m, k])), matrix(empty([k, n])), &[]).unwrap();
                let request = Request { c: &empty([m, n]), p: &p, e: &Epilogue::NONE, column_sums: false };
                let rows = explain(&request);
                assert_eq!(
                    choose(&request).unwrap().0.name(),
                    "matmul_gemv",
                    "{m} x {k} x {n} {dtype}: {rows:#?}"
                );
            }
        }
    }
}
