//! Test that a row for one vendor's devices takes a file and a line in a table. This file is such a row for AMD's GPUs, in a table of the test.

use super::super::super::algorithms::{Table, kernels};
use super::super::reference;
use super::super::tests::{near, ramp, rounding};
use super::super::view::Matrix;
use super::*;
use crate::suite::test_device;
use netcl_device::fault::FaultDriver;
use netcl_device::{Architecture, Settings, open_driver};
use netcl_kernel::vendors::{amd, intel};

/// Kernel with one element of C per work-item.
static ELEMENTS: Kernel = Kernel::new(
    "matmul_elements_gfx",
    "__kernel void elements(__global const T *a, __global const T *b, __global T *c, int m, int n, int k, float alpha) {\n\
     const int i = get_global_id(0) / n, j = get_global_id(0) % n;\n\
     if (i >= m) return;\n\
     float sum = 0.0f;\n\
     for (int s = 0; s < k; ++s) sum += LD(a, i * k + s) * LD(b, s * n + j);\n\
     ST(c, i * n + j, alpha * sum);\n}\n",
)
.tune(&[("WG", &[64])])
.requires(|device| amd::gfx(device).is_some());

/// A plan type that no other row knows.
#[derive(Debug, PartialEq)]
struct Elements {
    items: usize,
}

static ROW: MatmulAlgorithm = MatmulAlgorithm {
    kernel: &ELEMENTS,
    supports: |r| match r.dtype() == DType::F32 && r.p.batch() == 1 {
        true => Ok(()),
        false => Err("requires a single f32 product"),
    },
    models: &[],
    estimate: |r| (0.0, ProductPlan::of(Elements { items: r.c.count() })),
    run: |r, plan| {
        let Elements { items } = *plan.get(&ELEMENTS)?;
        finished(r, no_aux, |r| {
            let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
            let launch = ELEMENTS.launch("elements").define("DTYPE", r.dtype().code());
            let launch = launch.read(&r.p.a.tensor).read(&r.p.b.tensor).write(r.c);
            let launch = launch.scalar(int(r.p.m)).scalar(int(r.p.n)).scalar(int(r.p.k)).scalar(r.e.alpha);
            launch.items(items).run().map(|()| None)
        })
    },
    self_test: None,
};

static ROWS: [&MatmulAlgorithm; 3] = [&ROW, &vector::ALGORITHM, &tile::SMALL];
static ROW_KERNELS: [&Kernel; 3] = kernels(&ROWS);
static TABLE: Table<Products> = Table::new("matmul_of_the_test", &ROWS, &ROW_KERNELS);

/// Returns the test device with this architecture.
fn device_of(architecture: Architecture) -> Device {
    let settings = Settings { no_binary_cache: true, trust_kernels: true, ..Settings::from_env() };
    let name = std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into());
    let inner = open_driver(&name, &settings).unwrap();
    let capabilities = netcl_device::Capabilities { architecture, ..inner.capabilities().clone() };
    let driver = FaultDriver::new(inner, Default::default()).pretending(capabilities);
    Device::from_driver(Box::new(driver), settings)
}

#[test]
fn a_row_for_a_vendor_is_a_file_and_a_line() {
    let [m, n, k] = [17, 23, 40];
    let card = device_of(Architecture::Amd { gfx: "gfx942".into() });
    assert_eq!(
        (amd::gfx(card.capabilities()), intel::generation(card.capabilities())),
        (Some("gfx942"), None)
    );
    for (device, expected) in [(card, Some(ELEMENTS.name)), (test_device().unwrap(), None)] {
        let (a, b) = (ramp(&device, [m, k], 0.37), ramp(&device, [k, n], 0.61));
        let matrix = |x: &Tensor| Matrix::of("matmul", "operand", x).unwrap();
        let p = MatmulProblem::new(matrix(&a.0), matrix(&b.0), &[]).unwrap();
        let c = Tensor::zeros(&device, [m, n], DType::F32).unwrap();
        let request = MatmulRequest { c: &c, p: &p, e: &Epilogue::NONE, column_sums: false };
        let (row, plan) = TABLE.choose(&request).unwrap();
        assert_eq!((row.name() == ELEMENTS.name).then_some(row.name()), expected);
        // Only the row that made a plan can use it.
        match expected {
            Some(_) => assert_eq!(plan.get::<Elements>(&ELEMENTS).unwrap(), &Elements { items: m * n }),
            None => {
                let foreign = plan.get::<Elements>(&ELEMENTS).unwrap_err();
                assert!(
                    foreign.message().contains("matmul_elements_gfx: a plan of another algorithm"),
                    "{foreign}"
                );
            }
        }
        TABLE.run(&request).unwrap();
        near(&c, &reference(&a.1, &b.1), rounding(DType::F32, k));
        let explained = TABLE.explain(&request);
        let own = explained.iter().find(|row| row.name == ELEMENTS.name).unwrap();
        assert_eq!(
            own.estimate.as_ref().is_ok_and(|(_, plan)| plan.contains("Elements")),
            expected.is_some()
        );
    }
}
