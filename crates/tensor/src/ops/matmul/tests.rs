//! What samples do not reach: sizes of several blocks, epilogues in place, messages.

use super::*;
use crate::suite::test_device;

fn ramp(device: &Device, shape: [usize; 2], step: f32) -> (Tensor, Array) {
    let data: Vec<f32> = (0..shape[0] * shape[1]).map(|i| ((i as f32 * step) % 7.0 - 3.0) * 0.25).collect();
    let host = Array::new(shape, data.iter().map(|v| f64::from(*v)).collect());
    (Tensor::from_f32(device, shape, &data, DType::F32).unwrap(), host)
}

fn near(got: &Tensor, expected: &Array, tolerance: f64) {
    assert_eq!(*got.shape(), expected.shape);
    let scale = expected.data.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    for (i, (g, e)) in got.to_vec().unwrap().iter().zip(&expected.data).enumerate() {
        assert!((f64::from(*g) - e).abs() <= tolerance * scale, "element {i}: {g}, expected {e}");
    }
}

/// Rounding of a sum of `terms` grows with the root of their number.
fn rounding(dtype: DType, terms: usize) -> f64 {
    dtype.epsilon() * 2.0 * (terms as f64).sqrt()
}

/// Sizes from the device's own blocks: simulators have small ones, and take a second for half a million multiplications.
#[test]
fn sizes_of_several_blocks_in_every_layout_and_type() {
    let device = test_device().unwrap();
    let blocks = plan::Blocks::of(&device);
    // Two blocks and an edge, also of the 128 rows and columns of a GPU's tile.
    let [m, k, n] = [(blocks.mc, 139), (blocks.kc, 0), (blocks.nc, 139)].map(|(b, least)| (2 * b + 9).max(least));
    let turned = |x: &Tensor| x.permute(&[1, 0]).unwrap().contiguous().unwrap().permute(&[1, 0]).unwrap();
    for (dims, dtypes) in [
        ([m, 22, 19], &DType::FLOATS[..]),
        ([7, k, 37], &DType::FLOATS[..]),
        ([13, 22, n], &DType::FLOATS[..]),
        ([m, k, n], &[DType::F32]),
    ] {
        let [m, k, n] = dims;
        let ((a, a_host), (b, b_host)) = (ramp(&device, [m, k], 0.37), ramp(&device, [k, n], 0.61));
        let expected = reference(&a_host, &b_host);
        for dtype in dtypes {
            let (a, b) = (a.to_dtype(*dtype).unwrap(), b.to_dtype(*dtype).unwrap());
            let tolerance = rounding(*dtype, k);
            near(&matmul(&a, &b).unwrap(), &expected, tolerance);
            near(&matmul(&turned(&a), &turned(&b)).unwrap(), &expected, tolerance);
            if dims.iter().any(|size| *size < 100) {
                near(&matmul(&a, &turned(&b)).unwrap(), &expected, tolerance);
                near(&matmul(&turned(&a), &b).unwrap(), &expected, tolerance);
            }
        }
    }
}

#[test]
fn the_gradient_of_a_bias_comes_with_the_weights_over_several_blocks() {
    let device = test_device().unwrap();
    let blocks = plan::Blocks::of(&device);
    let (rows, n) = (2 * blocks.kc + 9, blocks.nc + 109);
    let ((x, x_host), (dy, dy_host)) = (ramp(&device, [rows, 20], 0.37), ramp(&device, [rows, n], 0.61));
    for dtype in DType::FLOATS {
        let cast = |t: &Tensor| t.to_dtype(dtype).unwrap();
        let x = cast(&x).parameter("x");
        let w = Tensor::zeros(&device, [20, n], dtype).unwrap().parameter("w");
        let bias = Tensor::zeros(&device, [n], dtype).unwrap().parameter("bias");
        linear(&x, &w, Some(&bias)).unwrap().backward_with(&cast(&dy)).unwrap();
        let ones = Array::from_fn([1, rows], |_| 1.0);
        let sums = reference(&ones, &dy_host);
        near(&bias.grad().unwrap(), &Array::new([n], sums.data), rounding(dtype, rows));
        near(&w.grad().unwrap(), &reference(&x_host.permute(&[1, 0]), &dy_host), rounding(dtype, rows));
    }
}

#[test]
fn a_transposed_weight_gets_its_gradient() {
    let device = test_device().unwrap();
    let ((x, x_host), (dy, dy_host)) = (ramp(&device, [9, 6], 0.37), ramp(&device, [9, 5], 0.61));
    let table = Tensor::zeros(&device, [5, 6], DType::F32).unwrap().parameter("table");
    let bias = Tensor::zeros(&device, [5], DType::F32).unwrap().parameter("bias");
    linear(&x, &table.permute(&[1, 0]).unwrap(), Some(&bias)).unwrap().backward_with(&dy).unwrap();
    near(&table.grad().unwrap(), &reference(&dy_host.permute(&[1, 0]), &x_host), 1e-6);
    near(&bias.grad().unwrap(), &Array::new([5], reference(&Array::from_fn([1, 9], |_| 1.0), &dy_host).data), 1e-6);
}

#[test]
fn adds_into_c_with_a_factor() {
    let device = test_device().unwrap();
    let ((a, a_host), (b, b_host)) = (ramp(&device, [20, 600], 0.37), ramp(&device, [600, 24], 0.61));
    let expected = reference(&a_host, &b_host).map(|v| 3.0 - 0.5 * v);
    for dtype in DType::FLOATS {
        let c = Tensor::full(&device, [20, 24], 3.0, dtype).unwrap();
        let (a, b) = (a.to_dtype(dtype).unwrap(), b.to_dtype(dtype).unwrap());
        matmul_add(&c, &a, &b, -0.5).unwrap();
        near(&c, &expected, rounding(dtype, 600));
    }
    let c = Tensor::zeros(&device, [24, 20], DType::F32).unwrap();
    let message = matmul_add(&c.permute(&[1, 0]).unwrap(), &a, &b, 1.0).unwrap_err();
    assert!(message.message().contains("expected a contiguous [20, 24]"), "{message}");
}

#[test]
fn messages_name_the_axes() {
    let device = test_device().unwrap();
    let t = |dims: &[usize]| Tensor::zeros(&device, dims, DType::F32).unwrap();
    let said = |e: Result<Tensor>| e.unwrap_err().message().to_owned();
    assert_eq!(
        said(matmul(&t(&[2, 3]), &t(&[4, 5]))),
        "matmul: the last axis of a [2, 3] is 3, expected 4, the last but one of b [4, 5]"
    );
    assert!(said(matmul(&t(&[3]), &t(&[3, 5]))).starts_with("matmul: a has shape [3], expected at least two axes"));
    assert!(said(matmul(&t(&[2, 2, 3]), &t(&[3, 3, 5]))).contains("do not broadcast"));
    let half = t(&[3, 5]).to_dtype(DType::F16).unwrap();
    assert!(said(matmul(&t(&[2, 3]), &half)).contains("b is f16, but a is f32"));
    let (w, bias) = (t(&[3, 5]), t(&[4]));
    assert_eq!(
        said(linear(&t(&[2, 3]), &w, Some(&bias))),
        "linear: bias has shape [4], expected [5], the last axis of w [3, 5]"
    );
    assert!(said(linear(&t(&[2, 4]), &w, Some(&t(&[5])))).contains("expected 3, the first of w [3, 5]"));
}

/// The kernels a device does not prefer give the same results: GPU tiles on a CPU too.
#[test]
fn tiles_agree_with_the_reference() {
    let device = test_device().unwrap();
    let tuning = Tuning::of(&device);
    let turned = |x: &Tensor| x.permute(&[1, 0]).unwrap().contiguous().unwrap().permute(&[1, 0]).unwrap();
    let case = |variant: &str, [m, k, n]: [usize; 3], turn: [bool; 2], dtype: DType| {
        let ((a, a_host), (b, b_host)) = (ramp(&device, [m, k], 0.37), ramp(&device, [k, n], 0.61));
        let place = |x: &Tensor, turn| {
            let x = x.to_dtype(dtype).unwrap();
            if turn { turned(&x) } else { x }
        };
        tuning.try_out("matmul", 0, Some([(variant.to_owned(), 1)].into()));
        let y = matmul(&place(&a, turn[0]), &place(&b, turn[1])).unwrap();
        near(&y, &reference(&a_host, &b_host), rounding(dtype, k));
        tuning.try_out("matmul", 0, None);
    };
    // Each is a text of its own, which a CPU driver takes seconds to compile. Few tiles: k is split.
    case("matmul_tile_small", [72, 140, 68], [false, true], DType::F32);
    case("matmul_tile_small", [61, 701, 50], [false, false], DType::F16);
    case("matmul_tile", [260, 68, 132], [true, true], DType::F32);
}

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
    let forms: [(&str, [bool; 2], &[&'static str]); 9] = [
        ("nt", [true, true], &["BIAS"]),
        ("nn_gelu", [true, false], &["BIAS", "GELU"]),
        ("nn_residual", [true, false], &["BIAS", "RESIDUAL"]),
        ("nt_gelu_grad", [true, true], &["GELU_GRAD"]),
        ("tn_add", [false, false], &["ADD_C"]),
        ("tn_sums", [false, false], &["COLUMN_SUMS"]),
        ("tn_sums_chain", [false, false], &["COLUMN_SUMS", "SPLIT=1"]),
        ("tn_sums_parts", [false, false], &["COLUMN_SUMS", "SPLIT=2"]),
        ("tn_into", [false, false], &["SPLIT=3"]),
    ];
    let flags = ["BIAS", "ADD_C", "RESIDUAL", "GELU", "GELU_GRAD", "COLUMN_SUMS"];
    for (i, tile) in wgmma::TILES.iter().enumerate() {
        for (name, [a, b], set) in forms {
            let split = set.iter().find_map(|s| s.strip_prefix("SPLIT=")).map_or(0, |s| s.parse().unwrap());
            let mut defines = tile.defines();
            defines.extend([("DTYPE", DType::Bf16.code().into()), ("SPLIT", split.into())]);
            defines.extend([("A_ALONG_K", a.into()), ("B_ALONG_K", b.into())]);
            defines.extend(flags.map(|flag| (flag, set.contains(&flag).into())));
            let items = "matmul_wgmma=384 matmul_wgmma_sum=256 matmul_wgmma_columns=64";
            let text = format!("// items {items}\n{}", wgmma::WGMMA.text(&defines));
            std::fs::write(folder.join(format!("matmul_{i}_{name}.cl")), text).unwrap();
        }
    }
    eprintln!("{}", folder.display());
}
