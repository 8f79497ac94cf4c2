//! The algorithms for products, one file per table row, with its kernel. [`Table`] explains how rows are chosen. To add a variant, possibly for one
//! vendor's devices, add a file here and its line in `rows!`. Its plan is a private type.

use super::super::algorithms::{self, Job, RowPlan, Table, kernels};
use super::super::prelude::*;
use super::epilogue::{self, Epilogue, EpilogueInputs};
use super::view::MatmulProblem;
use netcl_kernel::tune::model::DEVICE;

/// Declares modules and their rows in the table: `file: ROW, ROW;`. If estimates are equal, the first row is chosen.
macro_rules! rows {
    ($($module:ident: $($row:ident),+;)*) => {
        $(pub(super) mod $module;)*
        static ALGORITHMS: [&MatmulAlgorithm; [$($(stringify!($row)),+),*].len()] = [$($(&$module::$row),+),*];
    };
}

pub(super) mod gemv_int8;
rows! {
    gemv: ON_PROCESSORS, ON_GPUS;
    vector: ALGORITHM;
    wgmma: ALGORITHM;
    mma: ALGORITHM;
    rows_mma: ALGORITHM;
    bf16x3: ALGORITHM;
    tile: ASYNC, LARGE, SMALL;
}
static KERNELS: [&Kernel; ALGORITHMS.len()] = kernels(&ALGORITHMS);
pub(super) static MATMUL: Table<Products> = Table::new("matmul", &ALGORITHMS, &KERNELS);

/// The job of products, [`MatmulRequest`].
pub(super) struct Products;
/// An algorithm for a product. It returns the sums of B's columns, in f32 or the storage type, if they were requested and cost it nothing.
pub(super) type MatmulAlgorithm = algorithms::Algorithm<Products>;

/// An algorithm's plan of a product.
pub(super) type ProductPlan = RowPlan;

/// The plan of algorithms that divide every product in the same way.
#[derive(Debug)]
pub(super) struct Direct;

/// The problem `c = epilogue(a b)`. `c` is dense, has as many elements as the product, and has A's type, or f32 for sums over several products.
pub(super) struct MatmulRequest<'a> {
    pub c: &'a Tensor,
    pub p: &'a MatmulProblem,
    pub e: &'a Epilogue<'a>,
    /// Whether the sums of B's columns are requested.
    pub column_sums: bool,
}

impl MatmulRequest<'_> {
    pub fn device(&self) -> &Device {
        self.c.device()
    }
    pub fn units(&self) -> usize {
        self.device().capabilities().compute_units.max(1) as usize
    }
    /// Returns the storage type of the operands.
    pub fn dtype(&self) -> DType {
        self.p.a.tensor.dtype()
    }
    /// Returns whether C is f32 although the operands are not.
    pub fn widens(&self) -> bool {
        self.c.dtype() != self.dtype()
    }
    pub fn flops(&self) -> f64 {
        2.0 * self.p.m as f64 * self.p.n as f64 * self.p.k as f64 * self.p.batch() as f64
    }
}

impl Job for Products {
    type Request<'a> = MatmulRequest<'a>;
    type Plan = ProductPlan;
    type Output = Option<Tensor>;
    type Signature = MatmulSignature;

    fn device<'r>(request: &'r MatmulRequest<'_>) -> &'r Device {
        request.device()
    }
    fn class(request: &MatmulRequest<'_>) -> u64 {
        let log = |n: usize| u64::from(n.max(1).next_power_of_two().ilog2().min(31));
        let p = request.p;
        let layout = u64::from(p.a.col_stride == 1) | u64::from(p.b.col_stride == 1) << 1;
        let sizes = log(p.m) | log(p.n) << 5 | log(p.k) << 10 | log(p.batch()) << 15;
        1 + (sizes
            | layout << 20
            | u64::from(request.dtype().code() as u32) << 22
            | u64::from(request.widens()) << 26)
    }
    fn signature(request: &MatmulRequest<'_>) -> MatmulSignature {
        let MatmulRequest { c, p, e, column_sums } = request;
        let of = |x: &super::view::Matrix| (x.row_stride, x.col_stride, x.offset() % ALIGNED);
        let aux = match e.aux {
            EpilogueInputs::None => 0,
            EpilogueInputs::Residual(_) => 1,
            EpilogueInputs::Gelu(_) => 2,
            EpilogueInputs::GeluGrad(_) => 3,
            EpilogueInputs::Tree(_) => 4,
        };
        let aux_offset = e.aux.tensor().map_or(0, |x| x.layout().offset % ALIGNED);
        MatmulSignature {
            types: [c.dtype(), request.dtype()],
            sizes: [p.m, p.n, p.k, p.z[0], p.z[1]],
            operands: [of(&p.a), of(&p.b)],
            batches: [p.a_strides, p.b_strides],
            epilogue: (e.bias.is_some(), e.add, aux, aux_offset, c.layout().offset % ALIGNED),
            column_sums: *column_sums,
        }
    }
    fn describe(request: &MatmulRequest<'_>) -> String {
        let p = request.p;
        format!("({}, {}) x ({}, {}) in {}", p.m, p.k, p.k, p.n, request.dtype())
    }
    /// Returns the minimum time by memory bandwidth: A and B are read once, C is written once.
    fn least(request: &MatmulRequest<'_>) -> f64 {
        let (p, c) = (request.p, request.c);
        let operands = p.batch() * p.k * (p.m + p.n) * request.dtype().size();
        let bytes = (operands + c.count() * c.dtype().size()) as f64;
        if request.device().capabilities().is_cpu() {
            return 0.0;
        }
        let [memory, _] = DEVICE.on(request.device());
        bytes / memory
    }
}

/// Alignment in elements that offsets are classified by: at least 16 bytes in the narrowest type.
const ALIGNED: usize = 64;

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct MatmulSignature {
    types: [DType; 2],
    sizes: [usize; 5],
    operands: [(usize, usize, usize); 2],
    batches: [[usize; 2]; 2],
    epilogue: (bool, bool, u8, usize, usize),
    column_sums: bool,
}

/// Runs an algorithm together with the parts of [`Epilogue::aux`] that it `fuses`. The rest then runs element by element.
fn finished(
    request: &MatmulRequest<'_>,
    fuses: fn(&EpilogueInputs<'_>) -> bool,
    run: impl Fn(&MatmulRequest<'_>) -> Result<Option<Tensor>>,
) -> Result<Option<Tensor>> {
    let MatmulRequest { c, p, e, column_sums } = *request;
    if fuses(&e.aux) {
        return run(request);
    }
    let plain = Epilogue { aux: EpilogueInputs::None, ..*e };
    let sum = match e.aux {
        EpilogueInputs::Gelu(before) => before,
        EpilogueInputs::Tree(tree) => tree.product,
        _ => c,
    };
    let sums = run(&MatmulRequest { c: sum, p, e: &plain, column_sums })?;
    epilogue::finish(c, &e.aux)?;
    Ok(sums)
}

/// `fuses` for [`finished`]: algorithms without another matrix in their epilogue.
fn no_aux(aux: &EpilogueInputs<'_>) -> bool {
    matches!(aux, EpilogueInputs::None)
}

/// `fuses` for algorithms that support expressions.
fn trees(aux: &EpilogueInputs<'_>) -> bool {
    matches!(aux, EpilogueInputs::None | EpilogueInputs::Tree(_))
}

#[cfg(test)]
mod vendor_tests;

#[cfg(test)]
mod tests {
    use super::super::super::algorithms::Row;
    use super::super::view::Matrix;
    use super::*;
    use crate::suite::test_device;
    use netcl_device::null::NullDriver;
    use netcl_device::{Architecture, DeviceKind, Settings};

    /// Returns a model of an H200 that computes nothing.
    fn card() -> Device {
        let mut card = test_device().unwrap().capabilities().clone();
        (card.kind, card.compute_units) = (DeviceKind::Gpu, 132);
        (card.vendor, card.name) = ("NVIDIA Corporation".into(), "NVIDIA H200".into());
        card.architecture = Architecture::Nvidia { sm: 90 };
        (card.local_mem, card.global_mem, card.max_alloc) = (48 << 10, 140 << 30, 35 << 30);
        let settings = Settings { trust_kernels: true, ..Settings::default() };
        Device::from_driver(Box::new(NullDriver::new(card)), settings)
    }

    /// Tests that long prompts use the kernel of many rows, although the kernel of few rows can fuse more.
    #[test]
    fn prompts_go_to_the_best_row_of_the_table() {
        let device = card();
        let dims = |m: usize, k: usize, n: usize| {
            let empty = |dims: [usize; 2]| Tensor::empty(&device, dims, DType::F16).unwrap();
            let matrix = |x: Tensor| Matrix::of("matmul", "operand", &x).unwrap();
            let p =
                MatmulProblem::new(matrix(empty([m, k])), matrix(empty([n, k])).transposed(), &[]).unwrap();
            (p, empty([m, n]))
        };
        let fused = |(p, c): &(MatmulProblem, Tensor)| {
            let request = MatmulRequest { c, p, e: &Epilogue::NONE, column_sums: false };
            let chosen = MATMUL.choose(&request).unwrap().0.name();
            (rows_mma::of_few_rows(&request, &gemv::Fused::NONE).is_some(), chosen)
        };
        assert!(fused(&dims(4, 4096, 14_336)).0);
        for (m, k, n) in [(32, 4096, 14_336), (96, 4096, 4096), (128, 4096, 14_336), (128, 2048, 5632)] {
            let (taken, chosen) = fused(&dims(m, k, n));
            assert_eq!(taken, chosen == "matmul_rows_mma_sm80", "{m} x {k} x {n}: {chosen}");
        }
        assert_eq!(fused(&dims(128, 4096, 14_336)), (false, "matmul_wgmma_sm90"));
    }

    /// Tests that no tile kernel is chosen if the matrix-vector kernel is limited by memory anyway.
    #[test]
    fn few_rows_of_a_large_matrix_are_read_once() {
        let device = card();
        for (m, k, n) in [(1, 768, 50_304), (1, 16_384, 16_384), (4, 4096, 11_008), (8, 8192, 28_672)] {
            for dtype in [DType::F32, DType::Bf16] {
                let empty = |dims: [usize; 2]| Tensor::empty(&device, dims, dtype).unwrap();
                let matrix = |x: Tensor| Matrix::of("matmul", "operand", &x).unwrap();
                let p = MatmulProblem::new(matrix(empty([m, k])), matrix(empty([k, n])), &[]).unwrap();
                let request =
                    MatmulRequest { c: &empty([m, n]), p: &p, e: &Epilogue::NONE, column_sums: false };
                let rows = MATMUL.explain(&request);
                let estimate = |row: &Row| row.estimate.as_ref().map_or(f64::INFINITY, |(us, _)| *us);
                let gemv = rows.iter().find(|row| row.name == "matmul_gemv").map_or(f64::INFINITY, estimate);
                let chosen = rows.iter().find(|row| row.chosen);
                // Tensor cores are also limited by memory here, and can multiply more rows at the same time. Tiles cannot.
                let tie =
                    |row: &Row| row.name == "matmul_wgmma_sm90" && (m > 1 || gemv < 1.05 * estimate(row));
                let tie = dtype == DType::Bf16 && chosen.is_some_and(tie);
                let chosen = chosen.map(|row| row.name);
                assert!(tie || chosen == Some("matmul_gemv"), "{m} x {k} x {n} {dtype}: {rows:#?}");
            }
        }
    }
}
