//! f32 products on NVIDIA's sm_90 tensor cores without rounding the operands: each f32 is written as three bf16.

use super::super::arguments::Unused;
use super::super::epilogue::Epilogue;
use super::super::proof;
use super::super::split_k::{self, Joining, SplitKSchedule, TICKETS, Tiles};
use super::super::view::{MatmulProblem, Matrix};
use super::tile::add_tail_of_128;
use super::{MatmulAlgorithm, MatmulRequest, ProductPlan, finished, no_aux};
use crate::ops::counters::zeroed;
use crate::ops::prelude::*;
use netcl_kernel::tune::{Constant, Model};
use netcl_kernel::vendors::nvidia::{SM90A, wgmma_macros};

pub(in crate::ops::matmul) static BF16X3: Kernel =
    Kernel::new("matmul_bf16x3_sm90", cl_file!("matmul_bf16x3_sm90.cl"))
        .include(&[
            cl_file!("../../include/sm90.cl"),
            cl_file!("../../include/tickets.cl"),
            cl_file!("../../include/bf16x3.cl"),
        ])
        .generate(wgmma_macros)
        .reload(&SM90A)
        .requires(|device| device.sm() == Some(90));

/// Rows and columns of a tile.
const SIDE: usize = 128;
/// Steps of the sum that one copy loads.
const STEPS: usize = 32;
/// Unit of split-K, in steps of the sum: a tile processes this many at once.
const PIECE: usize = 2 * STEPS;
/// Bytes of an element's three bf16 parts.
const BYTES: usize = 6;

/// Minimum length of a sum. f32 units are more accurate for shorter sums: their error was 0.78 of this kernel's at 77 steps, 1.3 at 512, and 3 to 4
/// times as large at 768.
const MIN_SUM_LENGTH: usize = 256;
/// Maximum rows of both operands in a launch that splits them: 64 per group, and the second group dimension has 16 bits.
const MAX_LINES: usize = 64 * 65_535;

/// Bit of the kernel's `flags`.
const LAST: i32 = 4;

static MODEL: Model = Model {
    name: "matmul_bf16x3_sm90",
    constants: &[
        Constant::new("launches_us", "two launches, of which the second waits for the first", 8.0),
        Constant::new("copy_us", "the steps of a tile's sum that one copy loads", 1.15),
        Constant::new("ends_us", "start of a tile, and its stores", 2.0),
        Constant::new("planes_bytes_per_us", "bytes read and written to split the operands", 3e6),
    ],
};

/// Returns the cheapest way to divide `tiles` tiles with sums over `k`, and its estimated microseconds.
fn plan(
    tiles: usize,
    k: usize,
    units: usize,
    [copy, ends]: [f64; 2],
    joining: &Joining,
) -> (f64, SplitKSchedule) {
    let pieces = k.div_ceil(PIECE).max(1);
    let time = |pieces: usize| (2 * pieces) as f64 * copy + ends;
    let mut best =
        (tiles.div_ceil(units) as f64 * time(pieces), SplitKSchedule::whole(tiles, PIECE * pieces));
    let rounds = tiles / units;
    for whole in [Some(rounds), rounds.checked_sub(1), rounds.checked_sub(2)].into_iter().flatten() {
        let tail = tiles - whole * units;
        if tail == 0 {
            continue;
        }
        for splits in 2..=pieces.min(32) {
            let part = pieces.div_ceil(splits);
            let (full, k_part) = (whole * units, PIECE * part);
            let schedule = SplitKSchedule { full, tail, splits, k_part, last: false };
            let schedule = schedule.joined(SIDE * SIDE, joining);
            let sum = schedule.joining(SIDE * SIDE, joining);
            let cost =
                whole as f64 * time(pieces) + (tail * splits).div_ceil(units) as f64 * time(part) + sum;
            if cost < best.0 {
                best = (cost, schedule);
            }
        }
    }
    best
}

fn tiles(p: &MatmulProblem) -> usize {
    p.m.div_ceil(SIDE) * p.n.div_ceil(SIDE)
}

/// Returns the bytes of an operand's planes.
fn planes(lines: usize, k: usize) -> usize {
    lines.next_multiple_of(SIDE) * k.next_multiple_of(PIECE) * BYTES
}

pub(super) static ALGORITHM: MatmulAlgorithm = MatmulAlgorithm {
    kernel: &BF16X3,
    supports,
    models: &[&MODEL, &split_k::MODEL],
    estimate,
    run: |r, plan| finished(r, no_aux, |r| run(r.c, r.p, r.e, plan).map(|()| None)),
    self_test: Some(proven),
};

fn supports(r: &MatmulRequest<'_>) -> Result<(), &'static str> {
    let p = r.p;
    let bytes = planes(p.m, p.k) + planes(p.n, p.k);
    match () {
        () if r.dtype() != DType::F32 => Err("storage other than f32"),
        () if p.batch() != 1 || p.m.min(p.n).min(p.k) == 0 => Err("requires a single non-empty product"),
        () if p.m.next_multiple_of(SIDE) + p.n.next_multiple_of(SIDE) > MAX_LINES => {
            Err("too many rows for one launch")
        }
        () if bytes as u64 > r.device().capabilities().global_mem / 16 => {
            Err("the operands' planes take more than a sixteenth of memory")
        }
        () => Ok(()),
    }
}

/// Counts one read of each operand and one write of its planes. Returns infinity for short sums, which f32 units compute more accurately.
fn estimate(r: &MatmulRequest<'_>) -> (f64, ProductPlan) {
    let p = r.p;
    let bytes = planes(p.m, p.k) + planes(p.n, p.k);
    let [launches, copy, ends, memory] = MODEL.on(r.device());
    let (micros, schedule) = plan(tiles(p), p.k, r.units(), [copy, ends], &Joining::on(r.device()));
    let exact = if p.m.min(p.n) >= 64 && p.k >= MIN_SUM_LENGTH { 0.0 } else { f64::INFINITY };
    (launches + bytes as f64 * (10.0 / 6.0) / memory + micros + exact, ProductPlan::of(Tiles(schedule)))
}

/// Splits a `(m, k)` and b `(n, k)` into bf16 planes. Their rows are the rows and the columns of the product.
fn cut(a: &Matrix, b: &Matrix) -> Result<[Tensor; 2]> {
    let steps = a.cols.next_multiple_of(PIECE) / STEPS;
    let halves = |x: &Matrix| x.rows.next_multiple_of(SIDE) / 64;
    let room = |x: &Matrix| Tensor::empty(x.tensor.device(), [planes(x.rows, x.cols) / 2], DType::Bf16);
    let four =
        |x: &Matrix| x.col_stride == 1 && x.row_stride.is_multiple_of(4) && x.offset().is_multiple_of(4);
    let to = [room(a)?, room(b)?];
    let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
    let launch = BF16X3.launch("bf16x3_planes").define("DTYPE", DType::Bf16.code());
    let launch = launch.read_base(&a.tensor).read_base(&b.tensor).write(&to[0]).write(&to[1]);
    let launch = launch.scalar(a.offset()).scalar(b.offset()).scalar(int(a.rows)).scalar(int(b.rows));
    let launch = launch.scalar(int(a.cols)).scalar(int(halves(a)));
    let launch = launch.scalar(a.row_stride).scalar(a.col_stride).scalar(b.row_stride).scalar(b.col_stride);
    let launch = launch.scalar(i32::from(four(a)) | i32::from(four(b)) << 1);
    launch.local([256, 1, 1]).groups3([steps, halves(a) + halves(b), 1]).run()?;
    Ok(to)
}

/// Computes `c = epilogue(a b)` for epilogues without another matrix.
fn run(c: &Tensor, p: &MatmulProblem, e: &Epilogue<'_>, plan: &ProductPlan) -> Result<()> {
    let Tiles(schedule) = *plan.get(&BF16X3)?;
    run_schedule(c, p, e, schedule)
}

fn run_schedule(c: &Tensor, p: &MatmulProblem, e: &Epilogue<'_>, schedule: SplitKSchedule) -> Result<()> {
    let units = c.device().capabilities().compute_units.max(1) as usize;
    let [a, b] = cut(&p.a, &p.b.clone().transposed())?;
    let part = match schedule.tail {
        0 => None,
        tail => Some(c.empty_f32([schedule.splits, tail, SIDE * SIDE])?),
    };
    let pairs = p.n.is_multiple_of(2) && c.layout().offset.is_multiple_of(2);
    let launch = BF16X3.launch("matmul_bf16x3").define("DTYPE", DType::Bf16.code()).define("PAIRS", pairs);
    let launch = launch.flops((2 * p.m * p.n * p.k) as u64).read(&a).read(&b);
    let launch = match e.bias {
        Some(bias) => launch.read(&bias.detach().contiguous()?),
        None => launch.read_base(&Unused(&a)),
    };
    let launch = launch.write(c);
    let launch = match &part {
        Some(part) => launch.write(part),
        None => launch.write_base(&Unused(c)),
    };
    let last = schedule.last;
    let launch = match last {
        true => launch.write_base(&zeroed(c.device(), "matmul_bf16x3", 2 * TICKETS)?),
        false => launch.write_base(&Unused(c)),
    };
    let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
    let steps = p.k.next_multiple_of(PIECE) / STEPS;
    let launch = launch.scalar(int(p.m)).scalar(int(p.n)).scalar(int(steps));
    let launch = launch
        .scalar(int(schedule.full))
        .scalar(int(schedule.tail.max(1)))
        .scalar(int(schedule.splits * schedule.tail.min(1)));
    let launch = launch.scalar(e.alpha).scalar(e.flags() | if last { LAST } else { 0 });
    launch.local([384, 1, 1]).groups(schedule.groups().min(units)).run()?;
    part.filter(|_| !last).map_or(Ok(()), |part| add_tail_of_128(&part, c, p, e, schedule))
}

/// Checks that small products are exact, with integers and with numbers of 24 significant bits. See [`Tuning::proven`].
fn proven(device: &Device) -> bool {
    let run = |c: &Tensor, p: &MatmulProblem| {
        let request = MatmulRequest { c, p, e: &Epilogue::NONE, column_sums: false };
        run(c, p, &Epilogue::NONE, &estimate(&request).1)
    };
    Tuning::of(device).proven(device, &BF16X3, || {
        proof::exact(device, DType::F32, proof::ALIGNED, [false; 2], |c, p| run(c, p).map(|()| None))?;
        proof::selects(device, run)
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::reference;
    use super::super::super::tests::{near, rounding};
    use super::super::{EpilogueInputs, MATMUL, MatmulRequest};
    use super::*;
    use crate::suite::test_device;
    use netcl_device::fault::FaultDriver;
    use netcl_device::{Architecture, DeviceKind, Settings, open_driver};

    const JOINING: Joining = Joining { launch: 4.0, memory: 2.5e6, ticket: 1.5, group: 1e5 };

    #[test]
    fn shares_cover_every_tile() {
        for (tiles, k) in [
            (36, 4096),
            (108, 4096),
            (144, 4096),
            (192, 768),
            (576, 768),
            (1024, 4096),
            (1, 64),
            (12576, 768),
        ] {
            let (cost, s) = plan(tiles, k, 132, [1.15, 2.0], &JOINING);
            assert!(cost.is_finite() && s.full + s.tail == tiles, "{s:?}");
            assert!(s.tail == 0 || s.full.is_multiple_of(132) && s.splits <= k.div_ceil(PIECE), "{s:?}");
        }
        // Less than a round of long sums is split. Whole rounds are not.
        assert!(plan(36, 4096, 132, [1.15, 2.0], &JOINING).1.groups() > 100);
        assert_eq!(plan(264, 768, 132, [1.15, 2.0], &JOINING).1.tail, 0);
    }

    /// Checks the choice against the faster kernel on an H200, for products of every size (docs/log/products.md).
    #[test]
    fn the_estimates_choose_what_was_measured_to_be_faster() {
        let inner = open_driver("auto", &Settings::default()).unwrap();
        let mut card = inner.capabilities().clone();
        (card.kind, card.compute_units) = (DeviceKind::Gpu, 132);
        // netcl ships its device model.
        card.vendor = "NVIDIA Corporation".into();
        card.architecture = Architecture::Nvidia { sm: 90 };
        (card.local_mem, card.global_mem, card.max_group) = (48 << 10, 140 << 30, 1024);
        let driver = FaultDriver::new(inner, Default::default()).pretending(card);
        let device =
            Device::from_driver(Box::new(driver), Settings { trust_kernels: true, ..Settings::default() });
        let empty = |dims: [usize; 2]| Tensor::empty(&device, dims, DType::F32).unwrap();
        let matrix = |x: &Tensor| Matrix::of("matmul", "a", x).unwrap();
        for ([m, n, k], transposed, split) in [
            ([64, 768, 3072], false, false),
            ([64, 3072, 768], false, false),
            ([512, 512, 512], false, false),
            ([256, 768, 768], false, false),
            ([1023, 1025, 511], false, true),
            ([1023, 1025, 511], true, true),
            ([1024, 1024, 1024], false, true),
            ([4096, 768, 768], false, true),
            ([4096, 4096, 4096], false, true),
        ] {
            let b = if transposed { empty([n, k]).permute(&[1, 0]).unwrap() } else { empty([k, n]) };
            let p = MatmulProblem::new(matrix(&empty([m, k])), matrix(&b), &[]).unwrap();
            let c = empty([m, n]);
            let request = MatmulRequest { c: &c, p: &p, e: &Epilogue::NONE, column_sums: false };
            let chosen = MATMUL.choose(&request).unwrap().0.name();
            let estimates: Vec<_> =
                MATMUL.all(&request).into_iter().map(|(a, micros, _)| (a.name(), micros)).collect();
            assert_eq!(chosen == BF16X3.name, split, "{m} x {n} x {k}: {estimates:?}");
        }
    }

    /// Tests every layout, edges, tails of every kind and epilogues. The error must not exceed that of f32 units.
    #[test]
    #[allow(clippy::too_many_lines)] // a table of cases
    fn f32_in_three_parts_agrees_with_the_reference() {
        let device = test_device().unwrap();
        if !BF16X3.runs_on(device.capabilities()) {
            println!("skipped: {} does not support wgmma", device.capabilities().id);
            return;
        }
        assert!(proven(&device));
        let mut generator = crate::random::Generator::new(7);
        for [m, k, n] in [[520, 1096, 392], [130, 77, 65], [1000, 257, 130], [128, 4096, 128]] {
            let mut draw = |dims: [usize; 2], transposed: bool| {
                let dims = if transposed { [dims[1], dims[0]] } else { dims };
                let x = Tensor::normal(&device, dims, 0.0, 1.0, DType::F32, &mut generator).unwrap();
                if transposed { x.permute(&[1, 0]).unwrap() } else { x }
            };
            for transposed in [[false, false], [false, true], [true, false], [true, true]] {
                let (a, b) = (draw([m, k], transposed[0]), draw([k, n], transposed[1]));
                let bias = draw([1, n], false).reshape([n]).unwrap();
                let host = |x: &Tensor| {
                    Array::new(x.shape().clone(), x.to_vec().unwrap().into_iter().map(f64::from).collect())
                };
                let product = reference(&host(&a), &host(&b));
                let shift = host(&bias);
                let rms = |c: &Tensor| {
                    let got = c.to_vec().unwrap();
                    let square =
                        got.iter().zip(&product.data).map(|(got, exact)| (f64::from(*got) - exact).powi(2));
                    (square.sum::<f64>() / got.len() as f64).sqrt()
                };
                let matrix = |x: &Tensor| Matrix::of("matmul", "a", x).unwrap();
                let problem = MatmulProblem::new(matrix(&a), matrix(&b), &[]).unwrap();
                let errors: Vec<f64> = [BF16X3.name, "matmul_tile_small"]
                    .into_iter()
                    .map(|name| {
                        let c = Tensor::zeros(&device, [m, n], DType::F32).unwrap();
                        let request =
                            MatmulRequest { c: &c, p: &problem, e: &Epilogue::NONE, column_sums: false };
                        MATMUL.with(name, &request).unwrap();
                        rms(&c)
                    })
                    .collect();
                assert!(
                    k < MIN_SUM_LENGTH || errors[0] <= 1.1 * errors[1],
                    "{m} x {k} x {n}: error {:e}, with f32 units {:e}",
                    errors[0],
                    errors[1]
                );
                let count = tiles(&problem);
                let whole = SplitKSchedule::whole(count, k);
                let mut all = vec![whole, plan(count, k, 132, [1.15, 2.0], &JOINING).1];
                let ways = (2..=k.div_ceil(PIECE).min(5)).flat_map(|n| [(n, false), (n, true)]);
                all.extend(ways.map(|(splits, last)| SplitKSchedule {
                    full: count / 2,
                    tail: count - count / 2,
                    splits,
                    k_part: k,
                    last,
                }));
                for schedule in all {
                    for add in [false, true] {
                        let c = Tensor::full(&device, [m, n], if add { 3.0 } else { f32::NAN }, DType::F32)
                            .unwrap();
                        let e = Epilogue { alpha: -0.5, bias: Some(&bias), add, aux: EpilogueInputs::None };
                        run_schedule(&c, &problem, &e, schedule).unwrap();
                        let expected = Array::from_fn([m, n], |i| {
                            -0.5 * product.data[i] + shift.data[i % n] + if add { 3.0 } else { 0.0 }
                        });
                        near(&c, &expected, rounding(DType::F32, k));
                    }
                }
            }
        }
    }

    /// Tests huge, tiny and infinite numbers and NaN.
    #[test]
    fn f32_in_three_parts_keeps_the_range() {
        let device = test_device().unwrap();
        if !BF16X3.runs_on(device.capabilities()) {
            println!("skipped: {} does not support wgmma", device.capabilities().id);
            return;
        }
        let special =
            [3.4e38, 1e-30, -2.5e-37, f32::NAN, f32::INFINITY, 0.0, f32::from_bits(0x7f80_0001), 1.000_000_1];
        let (m, k) = (128, 64);
        let a: Vec<f32> = (0..m * k)
            .map(|i| if i % k == i / k % k { special[i / k % special.len()] } else { 0.0 })
            .collect();
        let a = Tensor::from_f32(&device, [m, k], &a, DType::F32).unwrap();
        let one = Tensor::full(&device, [k, 64], 1.0, DType::F32).unwrap();
        let matrix = |x: &Tensor| Matrix::of("matmul", "a", x).unwrap();
        let c = Tensor::zeros(&device, [m, 64], DType::F32).unwrap();
        let p = MatmulProblem::new(matrix(&a), matrix(&one), &[]).unwrap();
        MATMUL
            .with(BF16X3.name, &MatmulRequest { c: &c, p: &p, e: &Epilogue::NONE, column_sums: false })
            .unwrap();
        for (i, got) in c.to_vec().unwrap().into_iter().enumerate() {
            let expected = special[i / 64 % special.len()];
            match expected.is_finite() {
                // Numbers below the smallest normal number may be lost.
                true => assert!(
                    (got - expected).abs() <= expected.abs() * 1e-7 + f32::MIN_POSITIVE,
                    "{got}, expected {expected}"
                ),
                false => assert!(!got.is_finite(), "{got}, expected {expected}"),
            }
        }
    }
}
