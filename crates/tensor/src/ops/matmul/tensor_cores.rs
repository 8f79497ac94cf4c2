//! Tests of the tensor-core kernels, on devices that have tensor cores.

use super::algorithms::{MATMUL, MatmulRequest, wgmma};
use super::tests::{near, ramp, rounding};
use super::*;
use crate::suite::test_device;
use netcl_device::{MatmulPrecision, Settings};

/// Tests every tile of the tensor cores, every way to split a sum, every layout, and edges together with whole tiles.
#[test]
#[allow(clippy::too_many_lines)] // every plan in one loop
fn tensor_cores_agree_with_the_reference() {
    let device = test_device().unwrap();
    if !wgmma::WGMMA.runs_on(device.capabilities()) {
        println!("skipped: {} does not support wgmma", device.capabilities().id);
        return;
    }
    let (m, k, n) = (520, 1096, 392);
    let (a, a_host) = ramp(&device, [m, k], 0.37);
    let (b, b_host) = ramp(&device, [k, n], 0.61);
    let bias = Tensor::full(&device, [n], 2.0, DType::F32).unwrap();
    let product = reference(&a_host, &b_host);
    let b_sums = Array::new([n], reference(&Array::from_fn([1, k], |_| 1.0), &b_host).data);
    let transposed = |x: &Tensor| x.permute(&[1, 0]).unwrap().contiguous().unwrap().permute(&[1, 0]).unwrap();
    let splits =
        [tiles::SplitK::None, tiles::SplitK::Serial(3), tiles::SplitK::Workspace(4), tiles::SplitK::StreamK];
    let mut turn = 0;
    for tile in tiles::TILES {
        // Each kernel source takes the driver seconds to compile.
        let stream_k = tile.columns >= 192;
        for split in splits.into_iter().filter(|split| stream_k || *split != tiles::SplitK::StreamK) {
            turn += 1;
            let dtype = if turn % 2 == 0 { DType::F16 } else { DType::Bf16 };
            let cast = |x: &Tensor, turn: bool| {
                if turn { transposed(x) } else { x.clone() }.to_dtype(dtype).unwrap()
            };
            let (a, b) = (cast(&a, turn % 3 == 0), cast(&b, turn % 4 < 2));
            let matrix = |x: &Tensor| view::Matrix::of("matmul", "a", x).unwrap();
            let problem = MatmulProblem::new(matrix(&a), matrix(&b), &[]).unwrap();
            let bias = cast(&bias, false);
            for (epilogue, factor, shift) in [
                (Epilogue::NONE, 1.0, 0.0),
                (
                    Epilogue { alpha: -0.5, bias: Some(&bias), add: true, aux: EpilogueInputs::None },
                    -0.5,
                    5.0,
                ),
            ] {
                let c =
                    Tensor::full(&device, [m, n], if epilogue.add { 3.0 } else { f32::NAN }, dtype).unwrap();
                let sums = problem.b.col_stride == 1;
                let plan = tiles::TilePlan { tile, split, staging: None };
                let run = || wgmma::run_plan(&c, &problem, &epilogue, plan, sums).unwrap();
                let columns = run();
                near(&c, &product.clone().map(|v| factor * v + shift), rounding(dtype, k));
                assert_eq!(columns.is_some(), sums);
                columns.iter().for_each(|columns| near(columns, &b_sums, rounding(dtype, k)));
                if !epilogue.add {
                    let bits = c.to_bytes().unwrap();
                    let again = run();
                    assert!(
                        bits == c.to_bytes().unwrap(),
                        "{tile:?} {split:?} {dtype}: a second run gave different bits"
                    );
                    let bits = |sums: &Option<Tensor>| sums.as_ref().map(|sums| sums.to_bytes().unwrap());
                    assert!(
                        bits(&columns) == bits(&again),
                        "{tile:?} {split:?} {dtype}: a second run gave different sums"
                    );
                }
            }
        }
        // Sums that accumulate over products, in f32.
        let (a, b) = (transposed(&a).to_dtype(DType::Bf16).unwrap(), b.to_dtype(DType::Bf16).unwrap());
        let matrix = |x: &Tensor| view::Matrix::of("matmul", "a", x).unwrap();
        let problem = MatmulProblem::new(matrix(&a), matrix(&b), &[]).unwrap();
        let sum = Tensor::full(&device, [m, n], f32::NAN, DType::F32).unwrap();
        for add in [false, true, true] {
            let plan = tiles::TilePlan { tile, split: tiles::SplitK::Accumulate { add }, staging: None };
            wgmma::run_plan(&sum, &problem, &Epilogue::NONE, plan, false).unwrap();
        }
        let wide = |x: &Tensor| x.to_dtype(DType::F32).unwrap();
        let once = matmul(&wide(&a), &wide(&b)).unwrap().to_vec().unwrap();
        near(&sum, &Array::new([m, n], once.into_iter().map(|v| 3.0 * f64::from(v)).collect()), 3e-5);
    }
}

/// Boxes of 8 rows that fit together with all of tile 0's stages.
const NARROW: tiles::Staging = tiles::Staging { stages: 5, boxes: 3, rows: 8 };

/// Returns GELU (tanh) and its derivative.
fn gelu(x: f64) -> [f64; 2] {
    let (u, slope) = (
        0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x),
        0.797_884_560_802_865_4 * (1.0 + 0.134_145 * x * x),
    );
    let t = u.tanh();
    [0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope]
}

/// Returns C and the other matrix after the product with the epilogue `form`. The other matrix starts as a copy of `other`.
fn finished(
    problem: &MatmulProblem,
    plan: tiles::TilePlan,
    form: &str,
    bias: &Tensor,
    other: &Tensor,
) -> (Tensor, Tensor) {
    let (device, dtype) = (bias.device(), bias.dtype());
    let full = |value| Tensor::full(device, [problem.m, problem.n], value, dtype).unwrap();
    let c = full(if form == "add" { 3.0 } else { f32::NAN });
    let other = if form == "gelu" { full(f32::NAN) } else { other.clone() };
    let aux = match form {
        "residual" => EpilogueInputs::Residual(&other),
        "gelu" => EpilogueInputs::Gelu(&other),
        "gelu_grad" => EpilogueInputs::GeluGrad(&other),
        _ => EpilogueInputs::None,
    };
    let bias = (form != "gelu_grad").then_some(bias);
    let e = Epilogue { alpha: 0.25, bias, add: form == "add", aux };
    let columns = wgmma::run_plan(&c, problem, &e, plan, form == "add").unwrap();
    assert_eq!(columns.is_some(), form == "add" && problem.n.is_multiple_of(2) && problem.b.row_stride != 1);
    (c, other)
}

/// Compares the results of [`finished`] with `product` and `x` in f64.
fn finished_is_near(
    (c, other): &(Tensor, Tensor),
    form: &str,
    product: &Array,
    x: &Array,
    bias: &[f32],
    tolerance: f64,
) {
    let expected = |f: &dyn Fn(f64, f64) -> f64| {
        let bias = |i: usize| if form == "gelu_grad" { 0.0 } else { f64::from(bias[i % bias.len()]) };
        Array::from_fn(product.shape.clone(), |i| f(0.25 * product.data[i] + bias(i), x.data[i]))
    };
    match form {
        "add" => near(c, &expected(&|y, _| y + 3.0), tolerance),
        "residual" => near(c, &expected(&|y, x| y + x), tolerance),
        "gelu" => {
            near(other, &expected(&|y, _| y), tolerance);
            near(c, &expected(&|y, _| gelu(y)[0]), tolerance);
        }
        "gelu_grad" => near(c, &expected(&|y, x| y * gelu(x)[1]), tolerance),
        _ => near(c, &expected(&|y, _| y), tolerance),
    }
}

/// Tests every epilogue from registers and through local memory: near the reference, and with the same bits. The sizes have edges. There are enough
/// tiles that a group processes several and reuses boxes and barriers.
#[test]
fn epilogues_agree_in_registers_and_through_local_memory() {
    let device = test_device().unwrap();
    if !wgmma::WGMMA.runs_on(device.capabilities()) {
        println!("skipped: {} does not support wgmma", device.capabilities().id);
        return;
    }
    let matrix = |x: &Tensor| view::Matrix::of("matmul", "a", x).unwrap();
    for [m, k, n] in [[520, 136, 392], [40, 136, 8], [16_392, 136, 1160]] {
        let (a, a_host) = ramp(&device, [m, k], 0.37);
        let (b, b_host) = ramp(&device, [k, n], 0.61);
        let (x, x_host) = ramp(&device, [m, n], 0.43);
        let bias_host: Vec<f32> = (0..n).map(|i| (i % 5) as f32 * 0.5 - 1.0).collect();
        let bias = Tensor::from_f32(&device, [n], &bias_host, DType::F32).unwrap();
        let product = (m < 1000).then(|| reference(&a_host, &b_host));
        // Each kernel source takes the driver seconds to compile, so chains run for one tile of each kind.
        let chains = [tiles::SplitK::Serial(3), tiles::SplitK::StreamK, tiles::SplitK::Serial(3)];
        let chains = [tiles::TILES[0], tiles::TILES[0], tiles::TILES[1]].into_iter().zip(chains);
        let plans = tiles::TILES.into_iter().map(|tile| (tile, tiles::SplitK::None)).chain(chains);
        for (turn, (tile, split)) in plans.enumerate() {
            let dtype = if turn % 3 == 0 { DType::F16 } else { DType::Bf16 };
            let [a, b, x, bias] = [&a, &b, &x, &bias].map(|x| x.to_dtype(dtype).unwrap());
            let problem = MatmulProblem::new(matrix(&a), matrix(&b), &[]).unwrap();
            let first = tile == tiles::TILES[0];
            let ways = [Some(tile.staging()), first.then_some(NARROW)];
            let forms = ["add", "residual", "gelu", "gelu_grad", "plain"];
            for form in &forms[..if first { 5 } else { 4 }] {
                let plan = tiles::TilePlan { tile, split, staging: None };
                let bits = |x: &(Tensor, Tensor)| [&x.0, &x.1].map(|x| x.to_bytes().unwrap());
                let plainly = finished(&problem, plan, form, &bias, &x);
                let expected = bits(&plainly);
                for staging in ways.into_iter().flatten().map(Some) {
                    let same =
                        bits(&finished(&problem, tiles::TilePlan { staging, ..plan }, form, &bias, &x))
                            == expected;
                    assert!(
                        same,
                        "{form}, {m} x {k} x {n} {dtype}, {tile:?} {split:?} {staging:?}: different bits"
                    );
                }
                if let Some(product) = &product {
                    // tanh.approx has an error of 5e-4.
                    finished_is_near(&plainly, form, product, &x_host, &bias_host, rounding(dtype, k) + 2e-3);
                }
            }
        }
    }
}

/// Tests unaligned lines: operands are copied, and elements of C are stored in pairs or one by one.
#[test]
fn tensor_cores_take_lines_that_start_anywhere() {
    let device = test_device().unwrap();
    if !wgmma::WGMMA.runs_on(device.capabilities()) {
        println!("skipped: {} does not support wgmma", device.capabilities().id);
        return;
    }
    let matrix = |x: &Tensor| view::Matrix::of("matmul", "a", x).unwrap();
    // Each form is a separate source, which takes the driver seconds to compile.
    type Case<'a> = ([usize; 3], [bool; 2], &'a [&'a str]);
    let cases: [Case<'_>; 4] = [
        ([201, 263, 137], [false, false], &["add", "gelu"]),
        ([131, 1030, 66], [true, false], &["add", "gelu_grad"]),
        ([7, 265, 1001], [false, true], &["residual"]),
        ([300, 31, 2], [true, true], &["plain"]),
    ];
    for (turn, ([m, k, n], transposed, forms)) in cases.into_iter().enumerate() {
        let dtype = if turn % 2 == 0 { DType::Bf16 } else { DType::F16 };
        let (x, x_host) = ramp(&device, [m, n], 0.43);
        let bias_host: Vec<f32> = (0..n).map(|i| (i % 5) as f32 * 0.5 - 1.0).collect();
        let bias = Tensor::from_f32(&device, [n], &bias_host, dtype).unwrap();
        let place = |[rows, cols]: [usize; 2], step: f32, transposed: bool| {
            let (t, host) = ramp(&device, if transposed { [cols, rows] } else { [rows, cols] }, step);
            let t = t.to_dtype(dtype).unwrap();
            if transposed { (t.permute(&[1, 0]).unwrap(), host.permute(&[1, 0])) } else { (t, host) }
        };
        let ((a, a_host), (b, b_host)) =
            (place([m, k], 0.37, transposed[0]), place([k, n], 0.61, transposed[1]));
        let product = reference(&a_host, &b_host);
        let uneven = MatmulProblem::new(matrix(&a), matrix(&b), &[]).unwrap();
        let problem = wgmma::with_aligned_lines(&uneven).unwrap();
        let split = if k > 256 { tiles::SplitK::Serial(2) } else { tiles::SplitK::None };
        let plan = tiles::TilePlan { tile: tiles::TILES[turn], split, staging: None };
        for form in forms {
            let got = finished(&problem, plan, form, &bias, &x.to_dtype(dtype).unwrap());
            finished_is_near(&got, form, &product, &x_host, &bias_host, rounding(dtype, k) + 2e-3);
        }
        // The public call, with any kernel. It must not write outside of C.
        let wide = Tensor::full(&device, [m * n + 512], 5.0, dtype).unwrap();
        let c = wide.window(256, vec![m, n]).unwrap();
        run(&c, &uneven, &Epilogue::NONE, false).unwrap();
        near(&c, &product, rounding(dtype, k));
        let all = wide.to_vec().unwrap();
        assert!(all[..256].iter().chain(&all[256 + m * n..]).all(|v| *v == 5.0));
    }
}

/// Compares groups that process several tiles, and consecutive parts of a sum, with the f32 kernel. The sizes are those of a small GPT's products,
/// in the layouts of its forward and both gradients.
#[test]
fn tensor_cores_agree_where_a_group_walks_over_several_tiles() {
    let device = test_device().unwrap();
    if !wgmma::WGMMA.runs_on(device.capabilities()) {
        println!("skipped: {} does not support wgmma", device.capabilities().id);
        return;
    }
    let (r, c, n) = (16_384, 384, 1152);
    let transposed = |x: &Tensor| x.permute(&[1, 0]).unwrap();
    for dtype in [DType::Bf16, DType::F16] {
        let draw = |dims, step| ramp(&device, dims, step).0.to_dtype(dtype).unwrap();
        let (x, w, dy) = (draw([r, c], 0.37), draw([c, n], 0.61), draw([r, n], 0.43));
        for (name, a, b) in [
            ("NN", x.clone(), w.clone()),
            ("NT", dy.clone(), transposed(&w)),
            ("TN", transposed(&x), dy.clone()),
        ] {
            let matrix = |x: &Tensor| view::Matrix::of("matmul", "a", x).unwrap();
            let problem = MatmulProblem::new(matrix(&a), matrix(&b), &[]).unwrap();
            let y = Tensor::full(&device, [problem.m, problem.n], f32::NAN, dtype).unwrap();
            assert!(wgmma::proven(&device), "{name}");
            let request = MatmulRequest { c: &y, p: &problem, e: &Epilogue::NONE, column_sums: true };
            let columns = MATMUL.with(wgmma::WGMMA.name, &request).unwrap();
            let wide = |x: &Tensor| x.to_dtype(DType::F32).unwrap();
            let expected = matmul(&wide(&a), &wide(&b)).unwrap();
            let host = |x: &Tensor| {
                Array::new(x.shape().clone(), x.to_vec().unwrap().into_iter().map(f64::from).collect())
            };
            // Both sum in f32; only the last rounding may differ.
            near(&y, &host(&expected), 2.0 * dtype.epsilon());
            assert_eq!(columns.is_some(), name != "NT");
            if let Some(columns) = columns {
                near(&columns, &host(&wide(&b).sum(&[0], false).unwrap()), 2.0 * dtype.epsilon());
            }
        }
    }
}

/// Writes the sources of the tensor-core kernels that differ in their instructions, for `tools/ptx_check.sh`.
#[test]
#[ignore = "writes files for a tool"]
#[allow(clippy::too_many_lines)] // a table
fn texts_for_the_assembler() {
    let folder = std::env::temp_dir().join("netcl-texts");
    std::fs::create_dir_all(&folder).unwrap();
    // STAGED: through local memory. NARROW: in boxes of 8 rows, as many as fit together with all of tile 0's stages.
    let forms: [(&str, [bool; 2], &[&'static str]); 27] = [
        ("nt", [true, true], &["BIAS"]),
        ("nn_gelu", [true, false], &["BIAS", "GELU"]),
        ("nn_residual", [true, false], &["BIAS", "RESIDUAL"]),
        ("nt_gelu_grad", [true, true], &["GELU_GRAD"]),
        ("tn_add", [false, false], &["ADD_C"]),
        ("tn_sums", [false, false], &["COLUMN_SUMS"]),
        ("tn_sums_chain", [false, false], &["COLUMN_SUMS", "SPLIT=1"]),
        ("tn_sums_parts", [false, false], &["COLUMN_SUMS", "SPLIT=2"]),
        ("tn_stream_k", [false, false], &["SPLIT=1", "STREAM_K"]),
        ("tn_sums_stream_k", [false, false], &["COLUMN_SUMS", "SPLIT=1", "STREAM_K"]),
        ("staged_nn_gelu_stream_k", [true, false], &["BIAS", "GELU", "SPLIT=1", "STREAM_K", "STAGED"]),
        ("tn_into", [false, false], &["SPLIT=3"]),
        ("staged_nt", [true, true], &["BIAS", "STAGED"]),
        ("staged_nn_gelu", [true, false], &["BIAS", "GELU", "STAGED"]),
        ("staged_nn_residual", [true, false], &["BIAS", "RESIDUAL", "STAGED"]),
        ("staged_nt_gelu_grad", [true, true], &["GELU_GRAD", "STAGED"]),
        ("staged_tn_add", [false, false], &["ADD_C", "STAGED"]),
        ("staged_tn_add_sums_chain", [false, false], &["ADD_C", "COLUMN_SUMS", "SPLIT=1", "STAGED"]),
        ("staged_nn_gelu_chain", [true, false], &["BIAS", "GELU", "SPLIT=1", "STAGED"]),
        ("narrow_nn_gelu", [true, false], &["BIAS", "GELU", "NARROW"]),
        ("narrow_nn_residual", [true, false], &["BIAS", "RESIDUAL", "NARROW"]),
        ("narrow_nt_gelu_grad", [true, true], &["GELU_GRAD", "NARROW"]),
        ("ones_nn_gelu", [true, false], &["BIAS", "GELU", "LANES=1"]),
        ("ones_tn_add_sums_chain", [false, false], &["ADD_C", "COLUMN_SUMS", "SPLIT=1", "LANES=1"]),
        ("pairs_nt_residual", [true, true], &["BIAS", "RESIDUAL", "LANES=2"]),
        ("tf32", [true, true], &["BIAS", "SPLIT=2"]),
        ("tf32_into", [true, true], &["SPLIT=3"]),
    ];
    let flags = ["BIAS", "ADD_C", "RESIDUAL", "GELU", "GELU_GRAD", "COLUMN_SUMS", "STREAM_K"];
    for (i, tile) in tiles::TILES.iter().enumerate() {
        for (name, [a, b], set) in forms {
            if i > 0 && set.contains(&"NARROW") {
                continue;
            }
            let number = |of: &str, default: i32| {
                set.iter().find_map(|s| s.strip_prefix(of)).map_or(default, |s| s.parse().unwrap())
            };
            let staging = match set.last() {
                Some(&"STAGED") => Some(tile.staging()),
                Some(&"NARROW") => Some(NARROW),
                _ => None,
            };
            let mut defines = tile.defines(staging);
            let dtype = if name.starts_with("tf32") { DType::F32 } else { DType::Bf16 };
            defines.extend([("DTYPE", dtype.code().into()), ("SPLIT", number("SPLIT=", 0).into())]);
            defines.push(("C_LANES", number("LANES=", 8).into()));
            defines.extend([("A_ALONG_K", a.into()), ("B_ALONG_K", b.into())]);
            defines.extend(flags.map(|flag| (flag, set.contains(&flag).into())));
            let items = "matmul_wgmma=384 matmul_wgmma_sum=256 matmul_wgmma_columns=256";
            let text = format!("// items {items}\n{}", wgmma::WGMMA.text(&defines));
            std::fs::write(folder.join(format!("matmul_{i}_{name}.cl")), text).unwrap();
        }
    }
    let text = format!(
        "// items matmul_bf16x3=384 bf16x3_planes=256\n{}",
        super::algorithms::bf16x3::BF16X3.text(&[("DTYPE", DType::Bf16.code().into())])
    );
    std::fs::write(folder.join("matmul_bf16x3.cl"), text).unwrap();
    eprintln!("{}", folder.display());
}

/// Opens a device that may round f32 to tf32.
fn high() -> Device {
    let name = std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into());
    let settings = Settings { matmul_precision: MatmulPrecision::High, ..Settings::from_env() };
    Device::open(&name, &settings).unwrap()
}

/// Tests the instructions that the driver's compiler supports: every type, every layout, edges, epilogues, batches, partial sums.
#[test]
fn mma_agrees_with_the_reference() {
    let device = high();
    if !super::algorithms::mma::MMA.runs_on(device.capabilities()) {
        println!("skipped: {} does not support mma of sm_80", device.capabilities().id);
        return;
    }
    for dtype in DType::FLOATS {
        for transposed in [[false, false], [false, true], [true, false], [true, true]] {
            let run = |c: &Tensor, p: &MatmulProblem| {
                MATMUL
                    .with("matmul_mma_sm80", &MatmulRequest { c, p, e: &Epilogue::NONE, column_sums: false })
            };
            proof::exact(&device, dtype, proof::ALIGNED, transposed, run).unwrap();
            if dtype != DType::F32 {
                proof::exact(&device, dtype, [201, 263, 137], transposed, run).unwrap();
            }
        }
        // Integers up to 2: exact also in partial sums, with a bias and with C's contents. k leaves a partial chunk.
        let whole = |dims: &[usize], step: usize| {
            let count: usize = dims.iter().product();
            let data: Vec<f32> = (0..count).map(|i| ((i * step + i / 7) % 5) as f32 - 2.0).collect();
            (Tensor::from_f32(&device, dims, &data, dtype).unwrap(), data)
        };
        // The last two sizes have unaligned lines, which f32 does not allow.
        let sizes = [(1, 72, 2056, 40), (3, 136, 88, 264), (1, 73, 2057, 39), (3, 137, 89, 265)];
        for (batch, m, k, n) in sizes.into_iter().take(if dtype == DType::F32 { 2 } else { 4 }) {
            let (a, a_host) = whole(&[batch, m, k], 3);
            let (b, b_host) = whole(&[batch, k, n], 11);
            let (bias, bias_host) = whole(&[n], 2);
            let c = Tensor::full(&device, [batch, m, n], 3.0, dtype).unwrap();
            let matrix = |x: &Tensor| view::Matrix::of("matmul", "a", x).unwrap();
            let problem = MatmulProblem::new(matrix(&a), matrix(&b), &[batch]).unwrap();
            let epilogue = Epilogue { alpha: 0.5, bias: Some(&bias), add: true, aux: EpilogueInputs::None };
            MATMUL
                .with(
                    "matmul_mma_sm80",
                    &MatmulRequest { c: &c, p: &problem, e: &epilogue, column_sums: false },
                )
                .unwrap();
            let expected = Array::from_fn([batch, m, n], |i| {
                let (z, row, col) = (i / (m * n), i / n % m, i % n);
                let term = |j| f64::from(a_host[(z * m + row) * k + j] * b_host[(z * k + j) * n + col]);
                3.0 + f64::from(bias_host[col]) + 0.5 * (0..k).map(term).sum::<f64>()
            });
            near(&c, &expected, dtype.epsilon());
        }
    }
}

/// Checks that `high` changes f32 products by no more than tf32's rounding, on devices that have tf32, and changes nothing on others. Operands are
/// contiguous along k or across it, as in the forward and in gradients. They are large enough for whole warpgroups.
#[test]
fn high_precision_rounds_operands_alone() {
    let (highest, high) = (test_device().unwrap(), high());
    let has = super::algorithms::mma::MMA.runs_on(high.capabilities());
    // Two cores take minutes to multiply the sizes for tensor cores.
    let sizes: &[[usize; 3]] =
        if has { &[[520, 200, 392], [2048, 264, 1032], [1040, 4096, 1048]] } else { &[[40, 24, 36]] };
    for &[m, k, n] in sizes {
        for turn in [[false, false], [false, true], [true, false]] {
            let product = |device: &Device| {
                let place = |dims: [usize; 2], step, turn: bool| {
                    let x = ramp(device, if turn { [dims[1], dims[0]] } else { dims }, step).0;
                    if turn { x.permute(&[1, 0]).unwrap() } else { x }
                };
                let (a, b) = (place([m, k], 0.37, turn[0]), place([k, n], 0.61, turn[1]));
                let y = matmul(&a, &b).unwrap().to_vec().unwrap();
                assert!(y == matmul(&a, &b).unwrap().to_vec().unwrap(), "a second run gave different bits");
                y
            };
            let (expected, got) = (product(&highest), product(&high));
            let scale = expected.iter().fold(1.0f32, |max, v| max.max(v.abs()));
            let worst = expected.iter().zip(&got).map(|(e, g)| (e - g).abs()).fold(0.0, f32::max) / scale;
            match has {
                true => assert!((1e-6..2e-3).contains(&worst), "{m} x {k} x {n} {turn:?}: {worst:.1e}"),
                false => assert_eq!(worst, 0.0),
            }
        }
    }
}
