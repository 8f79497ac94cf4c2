//! Products of some rows by quantised rows in planes on tensor cores: weights become 16-bit floats in registers, activations stay as they are.

use super::super::super::arguments::Unused;
use super::super::gemv::{ENDS, bindable, finish, fused_defines, int};
use super::{Algorithm, Request};
use crate::ops::prelude::*;
use crate::quant::{BlockOrder, PLANES};
use netcl_kernel::tune::{Constant, Model};

const PARTS: &[&str] = &[ENDS[0], ENDS[2], PLANES];

static KERNEL: Kernel = Kernel::new("matmul_planes_mma_sm80", cl_file!("matmul_planes_mma_sm80.cl"))
    .include(PARTS)
    .requires(|device| device.sm() >= Some(80) && device.local_mem >= 40 << 10)
    .options(|_| "-cl-nv-maxrregcount=128");

/// Rows of A that it takes at most: of more a dense copy of B costs less than reading B for every 32 of them.
const MOST_ROWS: usize = 128;
/// Steps of the sum that a warp takes at a time.
const CHUNK: usize = 128;
/// Elements of 16 bytes.
const LANES: usize = 8;

pub(super) static ALGORITHM: Algorithm = Algorithm {
    kernel: &KERNEL,
    supports,
    models: &[&MODEL],
    estimate: |r| (estimate(r), ()),
    run: |r, ()| run(r),
    self_test: None,
};

static MODEL: Model = Model {
    name: "matmul_planes_mma_sm80",
    constants: &[
        Constant::new("launch_us", "a launch", 8.0),
        Constant::new("bytes_per_us", "what memory brings of B", 2e6),
        Constant::new("unit_products_per_us", "multiply-adds of a unit", 5e5),
    ],
};

/// B is read for every 32 rows, out of the cache from the second time on.
fn estimate(r: &Request<'_>) -> f64 {
    let [launch, bandwidth, products] = MODEL.on(r.device());
    let units = f64::from(r.device().capabilities().compute_units.max(1));
    let all = (r.p.m.next_multiple_of(LANES) * r.p.n * r.p.k) as f64;
    launch + (r.bytes() as f64 / bandwidth).max(all / (products * units))
}

fn supports(r: &Request<'_>) -> Result<(), &'static str> {
    let a = &r.p.a;
    match () {
        () if r.stored.order != BlockOrder::Planes => Err("rows that do not lie in planes"),
        () if !matches!(r.c.dtype(), DType::F16 | DType::Bf16) => Err("results that are not of 16 bits"),
        () if !(1..=MOST_ROWS).contains(&r.p.m) => Err("not between 1 and 128 rows"),
        () if r.p.batch() != 1 || r.columns() == 0 || r.p.k == 0 || !r.p.k.is_multiple_of(CHUNK) => {
            Err("several products, an empty one, or a sum of no whole chunks of 128 steps")
        }
        () if r.fused.norm.is_some() => Err("a norm before it"),
        () if a.col_stride != 1
            || !a.offset().is_multiple_of(LANES)
            || r.p.m > 1 && !a.row_stride.is_multiple_of(LANES) =>
        {
            Err("rows of A that do not begin at multiples of 16 bytes")
        }
        () => Ok(()),
    }
}

fn run(r: &Request<'_>) -> Result<()> {
    let Request { c, p, fused, stored, .. } = r;
    let (n, gated) = (r.columns(), fused.parts() == 2);
    let units = r.device().capabilities().compute_units.max(1) as usize;
    let rows = p.m.next_power_of_two().clamp(8, 32);
    let tiles = if gated || n.div_ceil(32) >= units { 2 } else { 1 };
    let number = stored.format.number as usize;
    let launch = KERNEL.launch("matmul_planes").define("DTYPE", c.dtype().code()).define("ROWS", rows);
    let launch = launch.define("TILES", tiles).define("QUANT", number).define("FORMATS", 1usize << number);
    let launch = launch.define("WG", 256).define("VW", LANES).define("AV", "float");
    let launch = fused_defines(launch, fused).flops((2 * p.m * p.n * p.k) as u64);
    let launch = launch.read_base(&p.a.tensor).read_base(&p.b.tensor);
    let launch = match fused.bias {
        Some(bias) => launch.read(&bindable(bias)?),
        None => launch.read_base(&Unused(&p.b.tensor)),
    };
    let launch = launch.write_base(*c).scalar(p.a.offset()).scalar(c.layout().offset).scalar(int(p.m));
    let launch = launch.scalar(int(n)).scalar(int(p.k)).scalar(p.a.row_stride).scalar(p.b.col_stride);
    let lines = if gated { 16 } else { 16 * tiles };
    finish(launch.scalar(r.row_stride), fused)?.groups3([n.div_ceil(lines), p.m.div_ceil(rows), 1]).run()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::fused_linear::{Around, Before, fused_linear, fused_linear_of_blocks};
    use crate::ops::gated::Gate;
    use crate::quant::{Blocks, FORMATS};
    use crate::random::Generator;
    use crate::suite::test_device;

    /// Beside the product by dense weights in f32, in every format, type and number of rows; with all that stands around it.
    #[test]
    fn rows_in_planes_by_tensor_cores() {
        let device = test_device().unwrap();
        if !KERNEL.runs_on(device.capabilities()) {
            println!("skipped: {} has no tensor cores of sm_80", device.capabilities().id);
            return;
        }
        let mut generator = Generator::new(5);
        let mut normal = |dims: &[usize], scale: f32| {
            Tensor::normal(&device, dims, 0.0, scale, DType::F32, &mut generator).unwrap()
        };
        for (dtype, epsilon) in [(DType::F16, 2e-3), (DType::Bf16, 1.2e-2)] {
            for format in FORMATS.into_iter().filter(|f| f.has_planes(256)) {
                for ([n, k], rows) in [([70, 512], 1), ([33, 256], 3), ([200, 1280], 20), ([96, 2048], 70)] {
                    let values = normal(&[2 * n, k], 0.02).to_vec().unwrap();
                    let mut bytes = vec![0; format.size(values.len()).unwrap()];
                    format.quantise(&values, k, None, &mut bytes).unwrap();
                    let blocks = Blocks::of_planes(&device, format, [2 * n, k], &bytes).unwrap();
                    let dense = blocks.dense(DType::F32).unwrap().transpose(0, 1).unwrap();
                    let [x, gamma, bias, residual] = [&[rows, k][..], &[k], &[2 * n], &[rows, n]]
                        .map(|dims| normal(dims, 1.0).to_dtype(dtype).unwrap());
                    let norm = Before { gamma: &gamma, beta: None, unit_offset: false, eps: 1e-5 };
                    let plain = Around::default();
                    let all = Around {
                        norm: Some(norm),
                        bias: Some(&bias),
                        activation: Some((Gate::Silu, true)),
                        residual: Some(&residual),
                    };
                    for (around, wide) in [(plain, 2), (all, 1)] {
                        let got = fused_linear_of_blocks(&x, &blocks, around).unwrap();
                        let f32_of = |t: &Tensor| t.to_dtype(DType::F32).unwrap();
                        let [x, gamma, bias, residual] = [&x, &gamma, &bias, &residual].map(f32_of);
                        let around = Around {
                            norm: around.norm.map(|norm| Before { gamma: &gamma, ..norm }),
                            bias: around.bias.map(|_| &bias),
                            residual: around.residual.map(|_| &residual),
                            ..around
                        };
                        let expected = fused_linear(&x, &dense, around).unwrap().to_vec().unwrap();
                        let size = expected.iter().fold(0.0f32, |most, v| most.max(v.abs()));
                        assert_eq!(got.dims(), [rows, wide * n]);
                        for (i, (got, expected)) in got.to_vec().unwrap().iter().zip(expected).enumerate() {
                            let what =
                                format!("{format} {dtype} ({n}, {k}), {rows} rows, {wide}: element {i}");
                            assert!(
                                (got - expected).abs() <= epsilon * size,
                                "{what} is {got}, expected {expected}"
                            );
                        }
                    }
                }
            }
        }
    }
}
