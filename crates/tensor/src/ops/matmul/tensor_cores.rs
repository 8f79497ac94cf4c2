//! Tests of the kernels for tensor cores, on devices that have them.

use super::tests::{near, ramp, rounding};
use super::*;
use crate::suite::test_device;
use netcl_device::{MatmulPrecision, Settings};

/// Every tile of the tensor cores, every way to share a sum out, every layout, edges beside whole tiles.
#[test]
fn tensor_cores_agree_with_the_reference() {
    let device = test_device().unwrap();
    if !wgmma::WGMMA.runs_on(device.capabilities()) {
        println!("skipped: {} has no wgmma", device.capabilities().id);
        return;
    }
    let (m, k, n) = (520, 1096, 392);
    let ((a, a_host), (b, b_host)) = (ramp(&device, [m, k], 0.37), ramp(&device, [k, n], 0.61));
    let bias = Tensor::full(&device, [n], 2.0, DType::F32).unwrap();
    let product = reference(&a_host, &b_host);
    let b_sums = Array::new([n], reference(&Array::from_fn([1, k], |_| 1.0), &b_host).data);
    let turned = |x: &Tensor| x.permute(&[1, 0]).unwrap().contiguous().unwrap().permute(&[1, 0]).unwrap();
    let splits = [wgmma::Split::None, wgmma::Split::Chain(3), wgmma::Split::Parts(4)];
    let mut turn = 0;
    for tile in wgmma::TILES {
        for split in splits {
            turn += 1;
            let dtype = if turn % 2 == 0 { DType::F16 } else { DType::Bf16 };
            let cast = |x: &Tensor, turn: bool| if turn { turned(x) } else { x.clone() }.to_dtype(dtype).unwrap();
            let (a, b) = (cast(&a, turn % 3 == 0), cast(&b, turn % 4 < 2));
            let matrix = |x: &Tensor| view::Matrix::of("matmul", "a", x).unwrap();
            let problem = Problem::new(matrix(&a), matrix(&b), &[]).unwrap();
            let bias = cast(&bias, false);
            for (epilogue, factor, shift) in [
                (Epilogue::NONE, 1.0, 0.0),
                (Epilogue { alpha: -0.5, bias: Some(&bias), add: true, aux: Aux::None }, -0.5, 5.0),
            ] {
                let c = Tensor::full(&device, [m, n], if epilogue.add { 3.0 } else { f32::NAN }, dtype).unwrap();
                assert!(wgmma::fits(&c, &problem));
                let sums = problem.b.col_stride == 1;
                let run = || wgmma::run_plan(&c, &problem, &epilogue, wgmma::Plan { tile, split }, sums).unwrap();
                let columns = run();
                near(&c, &product.clone().map(|v| factor * v + shift), rounding(dtype, k));
                assert_eq!(columns.is_some(), sums);
                columns.iter().for_each(|columns| near(columns, &b_sums, rounding(dtype, k)));
                if !epilogue.add {
                    let bits = c.to_bytes().unwrap();
                    let again = run();
                    assert!(bits == c.to_bytes().unwrap(), "{tile:?} {split:?} {dtype}: other bits on a second run");
                    let bits = |sums: &Option<Tensor>| sums.as_ref().map(|sums| sums.to_bytes().unwrap());
                    assert!(bits(&columns) == bits(&again), "{tile:?} {split:?} {dtype}: other sums on a second run");
                }
            }
        }
        // Sums that grow from product to product, in f32.
        let (a, b) = (turned(&a).to_dtype(DType::Bf16).unwrap(), b.to_dtype(DType::Bf16).unwrap());
        let matrix = |x: &Tensor| view::Matrix::of("matmul", "a", x).unwrap();
        let problem = Problem::new(matrix(&a), matrix(&b), &[]).unwrap();
        let sum = Tensor::full(&device, [m, n], f32::NAN, DType::F32).unwrap();
        for add in [false, true, true] {
            let plan = wgmma::Plan { tile, split: wgmma::Split::Sum { add } };
            wgmma::run_plan(&sum, &problem, &Epilogue::NONE, plan, false).unwrap();
        }
        let wide = |x: &Tensor| x.to_dtype(DType::F32).unwrap();
        let once = matmul(&wide(&a), &wide(&b)).unwrap().to_vec().unwrap();
        near(&sum, &Array::new([m, n], once.into_iter().map(|v| 3.0 * f64::from(v)).collect()), 3e-5);
    }
}

/// A group that walks over several tiles, and shares of a sum that follow one another, against the f32 kernel: the sizes of a
/// small GPT's products, in the layouts of its forward and of both gradients.
#[test]
fn tensor_cores_agree_where_a_group_walks_over_several_tiles() {
    let device = test_device().unwrap();
    if !wgmma::WGMMA.runs_on(device.capabilities()) {
        println!("skipped: {} has no wgmma", device.capabilities().id);
        return;
    }
    let (r, c, n) = (16_384, 384, 1152);
    let turned = |x: &Tensor| x.permute(&[1, 0]).unwrap();
    for dtype in [DType::Bf16, DType::F16] {
        let draw = |dims, step| ramp(&device, dims, step).0.to_dtype(dtype).unwrap();
        let (x, w, dy) = (draw([r, c], 0.37), draw([c, n], 0.61), draw([r, n], 0.43));
        for (name, a, b) in
            [("NN", x.clone(), w.clone()), ("NT", dy.clone(), turned(&w)), ("TN", turned(&x), dy.clone())]
        {
            let matrix = |x: &Tensor| view::Matrix::of("matmul", "a", x).unwrap();
            let problem = Problem::new(matrix(&a), matrix(&b), &[]).unwrap();
            let y = Tensor::full(&device, [problem.m, problem.n], f32::NAN, dtype).unwrap();
            assert!(wgmma::fits(&y, &problem) && wgmma::proven(&device), "{name}");
            let columns = wgmma::run(&y, &problem, &Epilogue::NONE, true).unwrap();
            let wide = |x: &Tensor| x.to_dtype(DType::F32).unwrap();
            let expected = matmul(&wide(&a), &wide(&b)).unwrap();
            let host = |x: &Tensor| {
                Array::new(x.shape().clone(), x.to_vec().unwrap().into_iter().map(f64::from).collect())
            };
            // Both sum in f32; the last rounding is what may differ.
            near(&y, &host(&expected), 2.0 * dtype.epsilon());
            assert_eq!(columns.is_some(), name != "NT");
            if let Some(columns) = columns {
                near(&columns, &host(&wide(&b).sum(&[0], false).unwrap()), 2.0 * dtype.epsilon());
            }
        }
    }
}

/// For `tools/ptx_check.sh`: the texts of the tensor cores' kernels that differ in their instructions.
#[test]
#[ignore = "writes files for a tool"]
fn texts_for_the_assembler() {
    let folder = std::env::temp_dir().join("netcl-texts");
    std::fs::create_dir_all(&folder).unwrap();
    let forms: [(&str, [bool; 2], &[&'static str]); 11] = [
        ("nt", [true, true], &["BIAS"]),
        ("nn_gelu", [true, false], &["BIAS", "GELU"]),
        ("nn_residual", [true, false], &["BIAS", "RESIDUAL"]),
        ("nt_gelu_grad", [true, true], &["GELU_GRAD"]),
        ("tn_add", [false, false], &["ADD_C"]),
        ("tn_sums", [false, false], &["COLUMN_SUMS"]),
        ("tn_sums_chain", [false, false], &["COLUMN_SUMS", "SPLIT=1"]),
        ("tn_sums_parts", [false, false], &["COLUMN_SUMS", "SPLIT=2"]),
        ("tn_into", [false, false], &["SPLIT=3"]),
        ("tf32", [true, true], &["BIAS", "SPLIT=2"]),
        ("tf32_into", [true, true], &["SPLIT=3"]),
    ];
    let flags = ["BIAS", "ADD_C", "RESIDUAL", "GELU", "GELU_GRAD", "COLUMN_SUMS"];
    for (i, tile) in wgmma::TILES.iter().enumerate() {
        for (name, [a, b], set) in forms {
            let split = set.iter().find_map(|s| s.strip_prefix("SPLIT=")).map_or(0, |s| s.parse().unwrap());
            let mut defines = tile.defines();
            let dtype = if name.starts_with("tf32") { DType::F32 } else { DType::Bf16 };
            defines.extend([("DTYPE", dtype.code().into()), ("SPLIT", split.into())]);
            defines.extend([("A_ALONG_K", a.into()), ("B_ALONG_K", b.into())]);
            defines.extend(flags.map(|flag| (flag, set.contains(&flag).into())));
            let items = "matmul_wgmma=384 matmul_wgmma_sum=256 matmul_wgmma_columns=64";
            let text = format!("// items {items}\n{}", wgmma::WGMMA.text(&defines));
            std::fs::write(folder.join(format!("matmul_{i}_{name}.cl")), text).unwrap();
        }
    }
    for (name, along_k, four) in [("along_k", 1, 4), ("across_k", 0, 1)] {
        let defines = [("DTYPE", DType::Bf16.code().into()), ("ALONG_K", along_k.into()), ("VX", four.into())];
        let text = format!("// items matmul_split=384 split_planes=256\n{}", split::SPLIT.text(&defines));
        std::fs::write(folder.join(format!("matmul_split_{name}.cl")), text).unwrap();
    }
    eprintln!("{}", folder.display());
}

/// A device that may round f32 to tf32.
fn high() -> Device {
    let name = std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into());
    let settings = Settings { matmul_precision: MatmulPrecision::High, ..Settings::from_env() };
    Device::open(&name, &settings).unwrap()
}

/// The instructions that compilers know: every type, every layout, edges, epilogues, batches, sums in parts.
#[test]
fn mma_agrees_with_the_reference() {
    let device = high();
    if !mma::MMA.runs_on(device.capabilities()) {
        println!("skipped: {} has no mma of sm_80", device.capabilities().id);
        return;
    }
    for dtype in DType::FLOATS {
        for turned in [[false, false], [false, true], [true, false], [true, true]] {
            let run = |c: &Tensor, p: &Problem| mma::run(c, p, &Epilogue::NONE).map(|()| None);
            proof::exact(&device, dtype, proof::EVEN, turned, run).unwrap();
            if dtype != DType::F32 {
                proof::exact(&device, dtype, [201, 263, 137], turned, run).unwrap();
            }
        }
        // Whole numbers up to 2: exact also in parts, with a bias and what C holds. k has a part of a chunk left over.
        let whole = |dims: &[usize], step: usize| {
            let count: usize = dims.iter().product();
            let data: Vec<f32> = (0..count).map(|i| ((i * step + i / 7) % 5) as f32 - 2.0).collect();
            (Tensor::from_f32(&device, dims, &data, dtype).unwrap(), data)
        };
        // The second two start their lines anywhere, which f32 may not.
        let sizes = [(1, 72, 2056, 40), (3, 136, 88, 264), (1, 73, 2057, 39), (3, 137, 89, 265)];
        for (batch, m, k, n) in sizes.into_iter().take(if dtype == DType::F32 { 2 } else { 4 }) {
            let ((a, a_host), (b, b_host)) = (whole(&[batch, m, k], 3), whole(&[batch, k, n], 11));
            let (bias, bias_host) = whole(&[n], 2);
            let c = Tensor::full(&device, [batch, m, n], 3.0, dtype).unwrap();
            let matrix = |x: &Tensor| view::Matrix::of("matmul", "a", x).unwrap();
            let problem = Problem::new(matrix(&a), matrix(&b), &[batch]).unwrap();
            assert!(mma::fits(&c, &problem));
            let epilogue = Epilogue { alpha: 0.5, bias: Some(&bias), add: true, aux: Aux::None };
            mma::run(&c, &problem, &epilogue).unwrap();
            let expected = Array::from_fn([batch, m, n], |i| {
                let (z, row, col) = (i / (m * n), i / n % m, i % n);
                let term = |j| f64::from(a_host[(z * m + row) * k + j] * b_host[(z * k + j) * n + col]);
                3.0 + f64::from(bias_host[col]) + 0.5 * (0..k).map(term).sum::<f64>()
            });
            near(&c, &expected, dtype.epsilon());
        }
    }
}

/// `high` changes f32 products by no more than tf32 does, on devices that have it, and else nothing. Operands along k and not, as
/// forward and gradients have them, large enough for what multiplies by whole warpgroups.
#[test]
fn high_precision_rounds_operands_alone() {
    let (highest, high) = (test_device().unwrap(), high());
    let has = mma::MMA.runs_on(high.capabilities());
    // Two cores multiply sizes for tensor cores in minutes.
    let sizes: &[[usize; 3]] = if has { &[[520, 200, 392], [2048, 264, 1032], [1040, 4096, 1048]] } else { &[[40, 24, 36]] };
    for &[m, k, n] in sizes {
        for turn in [[false, false], [false, true], [true, false]] {
            let product = |device: &Device| {
                let place = |dims: [usize; 2], step, turn: bool| {
                    let x = ramp(device, if turn { [dims[1], dims[0]] } else { dims }, step).0;
                    if turn { x.permute(&[1, 0]).unwrap() } else { x }
                };
                let (a, b) = (place([m, k], 0.37, turn[0]), place([k, n], 0.61, turn[1]));
                let y = matmul(&a, &b).unwrap().to_vec().unwrap();
                assert!(y == matmul(&a, &b).unwrap().to_vec().unwrap(), "other bits on a second run");
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
