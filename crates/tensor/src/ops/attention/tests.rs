//! Comparison of the algorithms, and messages.

use super::*;
use crate::suite::test_device;
use algorithms::proof::{same_backward, same_forward};
use algorithms::{bf16x3, ordered, wgmma, wide};
use netcl_device::null::NullDriver;
use netcl_device::{Architecture, Capabilities, DeviceKind, Settings};

/// Compares the other algorithms with the one that the device prefers, which the suite tests. The shapes have several tiles.
#[test]
fn variants_agree() {
    let device = test_device().unwrap();
    let mut generator = Generator::new(3);
    // A CPU driver takes seconds to compile kernels with barriers. So two sizes of tiles run here, and the third in the suite on a GPU. Each shape
    // has a little more than one tile (64 and 16 rows, 32 and 16 keys), since simulators are slow.
    let mut shapes = vec![([1, 2, 1, 40, 45, 34], DType::F32), ([1, 1, 1, 18, 21, 136], DType::F16)];
    if device.capabilities().sm() == Some(90) {
        shapes.extend([([2, 4, 2, 200, 264, 64], DType::Bf16), ([2, 2, 2, 300, 333, 128], DType::F16)]);
        shapes.extend([([2, 4, 2, 200, 200, 96], DType::F16), ([3, 40, 40, 300, 300, 64], DType::Bf16)]);
    }
    for (i, ([b, h, kh, t, s, d], dtype)) in shapes.into_iter().enumerate() {
        let mut draw =
            |dims: [usize; 4]| Tensor::normal(&device, dims, 0.0, 1.0, dtype, &mut generator).unwrap();
        let [q, k, v] = [draw([b, h, t, d]), draw([b, kh, s, d]), draw([b, kh, s, d])];
        let dy = draw([b, h, t, d]);
        let options = AttentionOptions { causal: i % 2 == 0, ..AttentionOptions::default() };
        let options = options.drop(if i % 2 == 0 { 0.2 } else { 0.0 }, [b, h, t, s], &mut generator).unwrap();
        let [forward, backward] = explain(&q, &k, &v, options.clone()).unwrap();
        let by = |name| attention_by(&q, &k, &v, options.clone(), name).unwrap();
        let gradients = |results: &(Tensor, Tensor), name| {
            let grads = attention_gradients_by([&q, &k, &v], results, &dy, options.clone(), name).unwrap();
            grads.map(|x| x.to_vec().unwrap())
        };
        let chosen = |rows: &[Row]| rows.iter().find(|row| row.chosen).unwrap().name;
        let results = by(chosen(&forward));
        let (y, grads) = (results.0.to_vec().unwrap(), gradients(&results, chosen(&backward)));
        let tolerance = 16.0 * dtype.epsilon();
        for row in forward.iter().filter(|row| row.estimate.is_ok()) {
            let other = by(row.name);
            compare(&[other.0.to_vec().unwrap()], std::slice::from_ref(&y), tolerance, row.name);
            // Any backward accepts the results of any forward.
            compare(&gradients(&other, chosen(&backward)), &grads, tolerance, row.name);
        }
        for row in backward.iter().filter(|row| row.estimate.is_ok()) {
            compare(&gradients(&results, row.name), &grads, tolerance, row.name);
        }
    }
}

/// Returns results and gradients of each document of each row, with the row and the first token of the document.
fn documents_apart(
    [q, k, v, dy]: [&Tensor; 4],
    documents: &[&[u32]],
    options: &AttentionOptions,
) -> [Vec<(usize, usize, Vec<f32>)>; 4] {
    let mut apart = [const { Vec::new() }; 4];
    for (row, lengths) in documents.iter().enumerate() {
        let mut start = 0;
        for n in lengths.iter().map(|n| *n as usize) {
            let part = |x: &Tensor| {
                let rows = x.slice(0, row..row + 1).unwrap().slice(2, start..start + n).unwrap();
                rows.contiguous().unwrap()
            };
            let [q, k, v] = [q, k, v].map(|x| part(x).parameter("x"));
            let y = attention(&q, &k, &v, options.clone()).unwrap();
            y.mul(&part(dy)).unwrap().sum(&[0, 1, 2, 3], false).unwrap().backward().unwrap();
            let grads = [&q, &k, &v].map(|x| x.grad().unwrap());
            for (all, part) in apart.iter_mut().zip([y.detach()].iter().chain(&grads)) {
                all.push((row, start, part.to_vec().unwrap()));
            }
            start += n;
        }
    }
    apart
}

/// Rows of several documents give the results and the gradients of separate documents, by every algorithm that takes them.
#[test]
fn documents_in_a_row_are_computed_as_if_they_were_apart() {
    let device = test_device().unwrap();
    let mut generator = Generator::new(5);
    let (b, h, kh, t, d) = (2, 4, 2, 70, 20);
    let documents = [&[30, 1, 39][..], &[17, 50, 3]];
    let positions: Vec<u32> = documents.iter().flat_map(|row| row.iter().flat_map(|n| 0..*n)).collect();
    let positions = Tensor::from_u32(&device, [b, t], &positions).unwrap();
    let mut draw =
        |heads| Tensor::normal(&device, [b, heads, t, d], 0.0, 1.0, DType::F32, &mut generator).unwrap();
    let [q, k, v, dy] = [h, kh, kh, h].map(&mut draw);
    let causal = AttentionOptions::causal();
    for (case, options) in [
        causal.clone(),
        AttentionOptions { window: Some(9), ..causal.clone() },
        AttentionOptions { softcap: Some(2.0), scale: Some(0.7), ..causal },
    ]
    .into_iter()
    .enumerate()
    {
        let apart = documents_apart([&q, &k, &v, &dy], &documents, &options);
        let options = AttentionOptions { positions: Some(positions.clone()), ..options };
        let [forward, backward] = explain(&q, &k, &v, options.clone()).unwrap();
        let names = |rows: &[Row]| {
            let takes = rows.iter().filter(|row| row.estimate.is_ok() && (case == 0 || row.chosen));
            takes.map(|row| row.name).collect::<Vec<_>>()
        };
        let check = |which: usize, whole: &Tensor, name: &str| {
            for (row, start, expected) in &apart[which] {
                let n = expected.len() / whole.dims()[1] / d;
                let found = whole.slice(0, *row..row + 1).unwrap().slice(2, *start..start + n).unwrap();
                let found = found.contiguous().unwrap().to_vec().unwrap();
                // The gradients of a document of one token are 0, so the scale is at least 1.
                let scale = expected.iter().fold(1.0f32, |most, v| most.max(v.abs()));
                let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(
                    off <= 1e-6 * scale,
                    "{name}, case {case}, result {which} of row {row} from {start}: {off}"
                );
            }
        };
        let mut last = None;
        for name in names(&forward) {
            let results = attention_by(&q, &k, &v, options.clone(), name).unwrap();
            check(0, &results.0, name);
            last = Some(results);
        }
        let results = last.expect("an algorithm");
        for name in names(&backward) {
            let grads = attention_gradients_by([&q, &k, &v], &results, &dy, options.clone(), name).unwrap();
            grads.iter().enumerate().for_each(|(i, grad)| check(i + 1, grad, name));
        }
        // The packed projection reads the same heads.
        let rows = |x: &Tensor| x.permute(&[0, 2, 1, 3]).unwrap().contiguous().unwrap();
        let rows = [&q, &k, &v].map(|x| rows(x).reshape([b, t, x.dims()[1] * d]).unwrap());
        let qkv = crate::ops::join::cat(&[&rows[0], &rows[1], &rows[2]], -1).unwrap();
        let packed = attention_qkv(&qkv, h, kh, options).unwrap();
        check(0, &packed.reshape([b, t, h, d]).unwrap().permute(&[0, 2, 1, 3]).unwrap(), "attention_qkv");
    }
}

#[test]
fn positions_that_do_not_fit_are_named() {
    let device = test_device().unwrap();
    let x = Tensor::zeros(&device, [1, 1, 4, 8], DType::F32).unwrap();
    let positions = Tensor::from_u32(&device, [1, 3], &[0, 1, 2]).unwrap();
    let message = |options| attention(&x, &x, &x, options).unwrap_err().to_string();
    let options = AttentionOptions { positions: Some(positions), ..AttentionOptions::default() };
    assert!(message(options.clone()).contains("documents require causal attention"));
    assert!(message(AttentionOptions { causal: true, ..options }).contains("expected u32 (1,4)"));
}

fn compare(got: &[Vec<f32>], expected: &[Vec<f32>], tolerance: f64, name: &str) {
    for (part, (got, expected)) in got.iter().zip(expected).enumerate() {
        let scale = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        for (i, (g, e)) in got.iter().zip(expected).enumerate() {
            assert!(
                f64::from((g - e).abs()) <= tolerance * f64::from(scale),
                "{name}: result {part}, element {i}: {g}, {e}"
            );
        }
    }
}

/// Writes the sources of the sm_90 kernels that differ in their instructions, for `tools/ptx_check.sh`.
#[test]
#[ignore = "writes files for a tool"]
fn texts_for_the_assembler() {
    let folder = std::env::temp_dir().join("netcl-texts");
    std::fs::create_dir_all(&folder).unwrap();
    for (causal, dropout) in [(true, false), (false, false), (true, true), (false, true)] {
        let defines = [
            ("D", 64.into()),
            ("CAUSAL", causal.into()),
            ("DROPOUT", dropout.into()),
            ("DTYPE", DType::Bf16.code().into()),
            ("COUNTED", dropout.into()),
        ];
        let items = "attention_planes=256 attention_fwd=384 attention_bwd_stats=256 attention_bwd_kv=384 attention_bwd_q=384";
        for (name, kernel) in [("fwd", &bf16x3::BF16X3), ("bwd", &bf16x3::BF16X3_BWD)] {
            let name = format!("bf16x3_{name}_causal{}_drop{}.cl", u8::from(causal), u8::from(dropout));
            std::fs::write(folder.join(name), format!("// items {items}\n{}", kernel.text(&defines)))
                .unwrap();
        }
    }
    for (dtype, causal, dropout, size, warpgroups) in sm90_texts() {
        let mut defines: Vec<(&'static str, netcl_kernel::Value)> = vec![
            ("D", size.into()),
            ("CAUSAL", causal.into()),
            ("DROPOUT", dropout.into()),
            ("DTYPE", dtype.code().into()),
        ];
        if dropout {
            // Defines of a training step: the random stream starts at a number in memory.
            defines.push(("COUNTED", true.into()));
        }
        let name = format!("{dtype}_d{size}_causal{}_drop{}", u8::from(causal), u8::from(dropout));
        let write = |name: String, items: String, text: String| {
            std::fs::write(folder.join(name), format!("// items {items}\n{text}")).unwrap();
        };
        if size > 128 {
            write(format!("wide_fwd_{name}.cl"), "attention_fwd=384".into(), wide::WIDE.text(&defines));
            let items = "attention_bwd_stats=256 attention_bwd_kv=384 attention_bwd_q=384";
            write(format!("wide_bwd_{name}.cl"), items.into(), wide::WIDE_BWD.text(&defines));
            if causal && size.is_multiple_of(64) {
                defines.push(("WINDOW", 1000.into()));
                write(
                    format!("wide_fwd_window_{name}.cl"),
                    "attention_fwd=384".into(),
                    wide::WIDE.text(&defines),
                );
                write(format!("wide_bwd_window_{name}.cl"), items.into(), wide::WIDE_BWD.text(&defines));
            }
            continue;
        }
        let dq = if size <= 64 { 512 } else { 384 };
        let items = format!("attention_bwd_stats=256 attention_bwd_kv=384 attention_bwd_q={dq}");
        write(format!("bwd_{name}.cl"), items, wgmma::WGMMA_BWD.text(&defines));
        if size > 64 {
            let all = [&defines[..], &[("ORDERED", 1.into())]].concat();
            let items = "attention_bwd_stats=256 attention_bwd_kv=384 attention_bwd_round=128";
            write(format!("ordered_{name}.cl"), items.into(), ordered::ORDERED_BWD.text(&all));
        }
        defines.push(("CW", warpgroups.into()));
        let items = format!("attention_fwd={}", 128 * (warpgroups + 1));
        write(format!("fwd_{name}_cw{warpgroups}.cl"), items, wgmma::WGMMA.text(&defines));
    }
    eprintln!("{}", folder.display());
}

fn sm90_texts() -> Vec<(DType, bool, bool, usize, usize)> {
    let mut all = Vec::new();
    for dtype in [DType::F16, DType::Bf16] {
        for (causal, dropout) in [(true, false), (false, false), (true, true), (false, true)] {
            for size in [8, 64, 80, 96, 112, 128] {
                all.push((dtype, causal, dropout, size, 2));
                if size <= 64 && !dropout {
                    all.push((dtype, causal, dropout, size, 3));
                }
            }
            if !dropout {
                all.extend((136..=256).step_by(8).map(|size| (dtype, causal, dropout, size, 2)));
            }
        }
    }
    all
}

#[test]
fn what_does_not_fit_is_named() {
    let device = test_device().unwrap();
    let zeros = |dims: &[usize]| Tensor::zeros(&device, dims, DType::F32).unwrap();
    let (q, k) = (zeros(&[1, 3, 4, 8]), zeros(&[1, 2, 4, 8]));
    let e = attention(&q, &k, &k, AttentionOptions::causal()).unwrap_err();
    assert!(
        e.message().contains("q [1, 3, 4, 8], k [1, 2, 4, 8]") && e.message().contains("H a multiple of KH"),
        "{e}"
    );
    let e = attention_qkv(&zeros(&[1, 4, 20]), 2, 1, AttentionOptions::causal()).map(|_| ());
    assert!(e.is_ok(), "{e:?}");
    let e = attention_qkv(&zeros(&[1, 4, 21]), 2, 1, AttentionOptions::causal()).unwrap_err();
    assert!(e.message().contains("qkv [1, 4, 21] with 2 query and 1 key heads"), "{e}");
    let wide = zeros(&[1, 1, 2, 257]);
    let e = attention(&wide, &wide, &wide, AttentionOptions::causal()).unwrap_err();
    assert!(e.message().contains("head size 257, expected at most 256"), "{e}");
}

/// Compares f32 in three parts with the portable kernels: edges, grouped heads, more keys than queries, narrow heads, dropout.
#[test]
fn f32_in_three_parts_agrees_with_the_portable_kernels() {
    let device = test_device().unwrap();
    if !bf16x3::BF16X3.runs_on(device.capabilities()) {
        println!("skipped: {} does not support wgmma", device.capabilities().id);
        return;
    }
    let mut generator = Generator::new(5);
    for ([batch, heads, kv_heads, queries, keys, size], causal, drop) in [
        ([2, 4, 2, 200, 264, 64], true, 0.0),
        ([2, 4, 2, 200, 264, 64], false, 0.0),
        ([3, 40, 40, 300, 300, 64], true, 0.2),
        ([1, 3, 1, 65, 193, 34], true, 0.0),
        ([2, 2, 2, 64, 130, 16], false, 0.3),
        ([1, 1, 1, 1, 1, 2], true, 0.0),
    ] {
        let mask =
            (drop > 0.0).then(|| generator.mask(drop, (batch * heads * queries * keys) as u64).unwrap());
        let scale = 1.0 / (size as f32).sqrt();
        let (window, softcap, dtype) = (None, None, DType::F32);
        let p = AttentionProblem {
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            size,
            causal,
            window,
            softcap,
            scale,
            mask,
            docs: None,
            dtype,
        };
        same_forward(&device, &p, &bf16x3::FORWARD).unwrap_or_else(|e| panic!("{p:?}: {e}"));
        same_backward(&device, &p, &bf16x3::BACKWARD).unwrap_or_else(|e| panic!("{p:?}: {e}"));
    }
}

/// Compares heads of 129 to 256 with the portable kernels: every number of steps over D, edges of every block, grouped heads, more keys than
/// queries, one row, windows.
#[test]
fn wide_heads_agree_with_the_portable_kernels() {
    let device = test_device().unwrap();
    if !wide::WIDE.runs_on(device.capabilities()) {
        println!("skipped: {} does not support wgmma", device.capabilities().id);
        return;
    }
    for ([batch, heads, kv_heads, queries, keys, size], causal, window, dtype) in [
        ([2, 4, 2, 200, 264, 256], true, None, DType::Bf16),
        ([2, 4, 2, 200, 264, 256], false, None, DType::F16),
        ([1, 3, 1, 65, 193, 136], true, None, DType::F16),
        ([1, 3, 1, 129, 161, 152], false, None, DType::Bf16),
        ([2, 2, 2, 300, 300, 160], true, None, DType::Bf16),
        ([1, 2, 1, 64, 113, 176], true, None, DType::Bf16),
        ([3, 6, 2, 333, 337, 192], true, None, DType::Bf16),
        ([1, 2, 2, 127, 80, 200], false, None, DType::F16),
        ([2, 40, 40, 300, 300, 208], true, None, DType::Bf16),
        ([1, 8, 1, 257, 399, 224], true, None, DType::F16),
        ([1, 1, 1, 700, 701, 240], true, None, DType::Bf16),
        ([1, 1, 1, 1, 1, 248], true, None, DType::Bf16),
        ([1, 1, 1, 1, 600, 256], true, None, DType::Bf16),
        // Windows shorter than a block, longer than two blocks, and with keys that no query sees.
        ([2, 4, 2, 300, 300, 256], true, Some(37), DType::Bf16),
        ([1, 3, 3, 500, 500, 160], true, Some(200), DType::F16),
        ([1, 2, 1, 150, 700, 256], true, Some(129), DType::Bf16),
        ([1, 1, 1, 333, 400, 192], true, Some(1), DType::F16),
    ] {
        let scale = 1.0 / (size as f32).sqrt();
        let (softcap, mask) = (None, None);
        let p = AttentionProblem {
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            size,
            causal,
            window,
            softcap,
            scale,
            mask,
            docs: None,
            dtype,
        };
        same_forward(&device, &p, &wide::FORWARD).unwrap_or_else(|e| panic!("{p:?}: {e}"));
        same_backward(&device, &p, &wide::BACKWARD).unwrap_or_else(|e| panic!("{p:?}: {e}"));
    }
}

/// Computes o, dq, dk, dv of one causal head in f64: (T,D) each.
fn exact(q: &[f64], k: &[f64], v: &[f64], dy: &[f64], (t, d): (usize, usize), scale: f64) -> [Vec<f64>; 4] {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let row = |x: &[f64], i: usize| x[i * d..(i + 1) * d].to_vec();
    let mut all = [(); 4].map(|()| vec![0.0; t * d]);
    for i in 0..t {
        let scores: Vec<f64> = (0..=i).map(|j| (scale * dot(&row(q, i), &row(k, j))).exp()).collect();
        let sum: f64 = scores.iter().sum();
        let p: Vec<f64> = scores.iter().map(|s| s / sum).collect();
        let dp: Vec<f64> = (0..=i).map(|j| dot(&row(dy, i), &row(v, j))).collect();
        let delta = dot(&p, &dp);
        for j in 0..=i {
            let ds = scale * p[j] * (dp[j] - delta);
            for e in 0..d {
                all[0][i * d + e] += p[j] * v[j * d + e];
                all[1][i * d + e] += ds * k[j * d + e];
                all[2][j * d + e] += ds * q[i * d + e];
                all[3][j * d + e] += p[j] * dy[i * d + e];
            }
        }
    }
    all
}

/// Compares the RMS errors against f64, relative to the results, with those of f32 units. The bound allows for random variation.
#[test]
fn f32_in_three_parts_is_as_exact_as_f32_units() {
    let device = test_device().unwrap();
    if !bf16x3::BF16X3.runs_on(device.capabilities()) {
        println!("skipped: {} does not support wgmma", device.capabilities().id);
        return;
    }
    let (t, d) = (512, 64);
    let mut generator = Generator::new(11);
    let mut draw = || Tensor::normal(&device, [1, 1, t, d], 0.0, 1.0, DType::F32, &mut generator).unwrap();
    let [q, k, v, dy] = [draw(), draw(), draw(), draw()];
    let wide = |x: &Tensor| x.to_vec().unwrap().into_iter().map(f64::from).collect::<Vec<f64>>();
    let expected = exact(&wide(&q), &wide(&k), &wide(&v), &wide(&dy), (t, d), 0.125);
    let names = [[bf16x3::BF16X3.name, bf16x3::BF16X3_BWD.name], ["attention_tile", "attention_tile_bwd"]];
    let errors = names.map(|[forward, backward]| {
        let options = AttentionOptions { scale: Some(0.125), ..AttentionOptions::causal() };
        let results = attention_by(&q, &k, &v, options.clone(), forward).unwrap();
        let grads = attention_gradients_by([&q, &k, &v], &results, &dy, options, backward).unwrap();
        let (o, [dq, dk, dv]) = (&results.0, &grads);
        let rms = |got: &Tensor, expected: &[f64]| {
            let square = |x: f64| x * x;
            let error: f64 = wide(got).iter().zip(expected).map(|(g, e)| square(g - e)).sum();
            (error / expected.iter().map(|e| square(*e)).sum::<f64>()).sqrt()
        };
        [rms(o, &expected[0]), rms(dq, &expected[1]), rms(dk, &expected[2]), rms(dv, &expected[3])]
    });
    println!("o, dq, dk, dv: on tensor cores {:?}, on f32 units {:?}", errors[0], errors[1]);
    for (ours, units) in errors[0].iter().zip(&errors[1]) {
        assert!(*ours <= 1.2 * units, "{errors:?}");
    }
}

fn pretended(kind: DeviceKind, edit: impl FnOnce(&mut Capabilities)) -> Device {
    let mut capabilities = Capabilities::floor("any:0", kind);
    (capabilities.global_mem, capabilities.max_alloc) = (140 << 30, 35 << 30);
    edit(&mut capabilities);
    let settings = Settings { trust_kernels: true, ..Settings::default() };
    Device::from_driver(Box::new(NullDriver::new(capabilities)), settings)
}

fn sm90() -> Device {
    pretended(DeviceKind::Gpu, |card| {
        (card.architecture, card.compute_units) = (Architecture::Nvidia { sm: 90 }, 132);
        // netcl ships its device model.
        card.vendor = "NVIDIA Corporation".into();
        card.local_mem = 48 << 10;
    })
}

/// Returns the rows of `explain` on a device for a problem of sizes B, H, KH, T, S, D.
fn explained(
    device: &Device,
    [b, h, kh, t, s, d]: [usize; 6],
    dtype: DType,
    options: &AttentionOptions,
) -> [Vec<Row>; 2] {
    let empty = |dims: [usize; 4]| Tensor::empty(device, dims, dtype).unwrap();
    let k = empty([b, kh, s, d]);
    explain(&empty([b, h, t, d]), &k, &k, options.clone()).unwrap()
}

#[test]
fn choices_by_device_and_problem() {
    let (causal, full) = (AttentionOptions::causal(), AttentionOptions::default());
    let window = AttentionOptions { window: Some(64), ..causal.clone() };
    let (bf16, f16, f32) = (DType::Bf16, DType::F16, DType::F32);
    let (tile, wgmma, bf16x3) = ("attention_tile", "attention_wgmma_sm90", "attention_bf16x3_sm90");
    let (wide, wide_bwd) = ("attention_wide_sm90", "attention_wide_sm90_bwd");
    let (two_passes, one_pass) = ("attention_wgmma_sm90_bwd", "attention_ordered_sm90_bwd");
    let card = [
        ([16, 12, 12, 1024, 1024, 64], bf16, &causal, wgmma, two_passes),
        ([16, 12, 12, 1024, 1024, 64], bf16, &full, wgmma, two_passes),
        ([16, 12, 12, 1024, 1024, 80], bf16, &causal, wgmma, two_passes),
        ([16, 12, 12, 1024, 1024, 96], f16, &causal, wgmma, two_passes),
        ([4, 32, 32, 4096, 4096, 128], bf16, &causal, wgmma, one_pass),
        ([4, 32, 8, 4096, 4096, 128], bf16, &causal, wgmma, one_pass),
        ([1, 32, 32, 16384, 16384, 128], bf16, &full, wgmma, one_pass),
        ([16, 12, 12, 1000, 1000, 64], bf16, &causal, wgmma, two_passes),
        ([16, 12, 12, 1024, 1024, 100], bf16, &causal, tile, "attention_tile_bwd"),
        ([16, 12, 12, 1024, 1024, 64], bf16, &window, tile, "attention_tile_bwd"),
        ([4, 16, 16, 4096, 4096, 256], bf16, &causal, wide, wide_bwd),
        ([2, 8, 4, 300, 517, 136], f16, &full, wide, wide_bwd),
        ([4, 8, 4, 4096, 4096, 256], bf16, &window, wide, wide_bwd),
        ([4, 12, 12, 1024, 1024, 64], f32, &causal, bf16x3, "attention_bf16x3_sm90_bwd"),
        ([4, 12, 12, 1024, 1024, 72], f32, &causal, tile, "attention_tile_bwd"),
        ([1, 2, 2, 64, 64, 64], f32, &causal, tile, "attention_tile_bwd"),
        ([8, 6, 6, 256, 256, 64], f32, &causal, tile, "attention_tile_bwd"),
    ];
    let portable = [
        ([16, 12, 12, 1024, 1024, 64], bf16, &causal, tile, "attention_tile_bwd"),
        ([1, 2, 1, 7, 9, 256], f32, &full, tile, "attention_tile_bwd"),
    ];
    let vector = [
        ([1, 6, 6, 256, 256, 64], f32, &causal, "attention_vector", "attention_vector_bwd"),
        ([2, 8, 2, 33, 65, 100], bf16, &full, "attention_vector", "attention_vector_bwd"),
    ];
    let gpu = pretended(DeviceKind::Gpu, |gpu| gpu.local_mem = 64 << 10);
    let processor = pretended(DeviceKind::Cpu, |_| ());
    for (device, problems) in [(&sm90(), &card[..]), (&gpu, &portable), (&processor, &vector)] {
        for (sizes, dtype, options, forward, backward) in problems {
            let rows = explained(device, *sizes, *dtype, options);
            let chosen = rows.each_ref().map(|rows| rows.iter().find(|row| row.chosen).map(|row| row.name));
            assert_eq!(chosen, [Some(*forward), Some(*backward)], "{sizes:?} {dtype} {options:?}: {rows:#?}");
        }
    }
}

#[test]
fn each_algorithm_that_does_not_apply_has_its_reason() {
    let (causal, full) = (AttentionOptions::causal(), AttentionOptions::default());
    let why = |rows: &[Vec<Row>; 2], name: &str| {
        let row = rows.iter().flatten().find(|row| row.name == name).unwrap();
        row.estimate.clone().map_or_else(|why| why, |(micros, plan)| format!("{micros} us, {plan}"))
    };
    let card = sm90();
    let of = |sizes, dtype, options: &AttentionOptions| explained(&card, sizes, dtype, options);
    let (half, f32) = (DType::Bf16, DType::F32);
    let negative = AttentionOptions { scale: Some(-1.0), ..full.clone() };
    let window = AttentionOptions { window: Some(8), ..causal.clone() };
    let capped = AttentionOptions { softcap: Some(1.0), ..full.clone() };
    let cases = [
        (of([1, 2, 2, 64, 64, 64], f32, &full), "storage other than f16 and bf16"),
        (of([1, 2, 2, 64, 64, 136], half, &full), "heads of more than 128"),
        (of([1, 2, 2, 64, 64, 20], half, &full), "heads of a size that is not a multiple of 8"),
        (
            of([1, 2, 2, 64, 96, 64], half, &causal),
            "a causal diagonal that does not start at a block of 64 keys",
        ),
        (of([1, 2, 2, 64, 64, 64], half, &negative), "a scale that is not positive"),
        (of([1, 2, 2, 64, 64, 64], half, &window), "a window"),
        (of([1, 2, 2, 64, 64, 64], half, &capped), "soft-capped scores"),
    ];
    for (rows, expected) in &cases {
        for name in [wgmma::WGMMA.name, wgmma::WGMMA_BWD.name, ordered::ORDERED_BWD.name] {
            assert_eq!(why(rows, name), *expected, "{name}");
        }
    }
    let small = of([1, 2, 2, 64, 64, 64], half, &full);
    assert_eq!(why(&small, ordered::ORDERED_BWD.name), "heads of 64 or less");
    for (name, sizes, expected) in [
        (bf16x3::BF16X3.name, [1, 2, 2, 64, 64, 72], "heads of more than 64"),
        (bf16x3::BF16X3_BWD.name, [1, 2, 2, 64, 64, 33], "heads of an odd size"),
    ] {
        assert_eq!(why(&of(sizes, f32, &full), name), expected);
    }
    assert_eq!(why(&small, bf16x3::BF16X3.name), "storage other than f32");
    let apart = Tensor::empty(&card, [1, 64, 2, 68], half).unwrap().slice(3, 0..64).unwrap();
    let apart = apart.permute(&[0, 2, 1, 3]).unwrap();
    let rows = explain(&apart, &apart, &apart, full.clone()).unwrap();
    assert_eq!(why(&rows, wgmma::WGMMA.name), "rows that do not start at multiples of 16 bytes");

    let gpu = pretended(DeviceKind::Gpu, |gpu| gpu.local_mem = 2 << 10);
    let empty = Tensor::empty(&gpu, [1, 1, 8, 256], f32).unwrap();
    let rows = explain(&empty, &empty, &empty, full.clone()).unwrap();
    let lacks = "the device lacks what its kernel requires";
    assert_eq!(why(&rows, wgmma::WGMMA.name), lacks);
    assert_eq!(why(&rows, "attention_vector"), lacks);
    assert_eq!(why(&rows, "attention_tile"), "local memory too small for a tile of this head size");
    let e = attention(&empty, &empty, &empty, full).unwrap_err();
    let all = "attention_fwd: no algorithm supports q (1, 1, 8, 256) and k (1, 1, 8, 256) in f32 on any:0: attention_vector: ";
    assert!(e.message().starts_with(all), "{e}");
    assert!(
        e.message().ends_with("attention_tile: local memory too small for a tile of this head size"),
        "{e}"
    );

    let settings = Settings { disable: vec!["attention_tile".into()], ..Settings::default() };
    let capabilities = Capabilities::floor("any:0", DeviceKind::Cpu);
    let device = Device::from_driver(Box::new(NullDriver::new(capabilities)), settings);
    let rows = explained(&device, [1, 1, 1, 8, 8, 8], f32, &causal);
    assert_eq!(why(&rows, "attention_tile"), "disabled or in quarantine");
}
