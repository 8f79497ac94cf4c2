//! Variants against each other, and messages.

use super::*;
use crate::suite::test_device;
use netcl_kernel::tune::Params;

/// The suite runs the variant that the device prefers; this compares the others with it, on shapes of several tiles.
#[test]
fn variants_agree() {
    let device = test_device().unwrap();
    let tuning = Tuning::of(&device);
    let mut generator = Generator::new(3);
    // Kernels with barriers take a CPU driver seconds to compile: two sizes of tiles, and the third in the suite of a GPU. Each
    // has more than a tile (64 and 16 rows, 32 and 16 keys) of both, and no more: simulators are slow.
    let mut shapes = vec![([1, 2, 1, 40, 45, 34], DType::F32), ([1, 1, 1, 18, 21, 136], DType::F16)];
    if device.capabilities().sm() == Some(90) {
        shapes.extend([([2, 4, 2, 200, 264, 64], DType::Bf16), ([2, 2, 2, 300, 333, 128], DType::F16)]);
        shapes.extend([([2, 4, 2, 200, 200, 96], DType::F16), ([3, 40, 40, 300, 300, 64], DType::Bf16)]);
    }
    for (i, ([b, h, kh, t, s, d], dtype)) in shapes.into_iter().enumerate() {
        let mut draw =
            |dims: [usize; 4]| Tensor::normal(&device, dims, 0.0, 1.0, dtype, &mut generator).unwrap();
        let inputs = [draw([b, h, t, d]), draw([b, kh, s, d]), draw([b, kh, s, d])].map(|x| x.parameter("x"));
        let dy = draw([b, h, t, d]);
        let options = AttentionOptions { causal: i % 2 == 0, ..AttentionOptions::default() };
        let options = options.drop(if i % 2 == 0 { 0.2 } else { 0.0 }, [b, h, t, s], &mut generator).unwrap();
        let run = || {
            let y = attention(&inputs[0], &inputs[1], &inputs[2], options.clone()).unwrap();
            inputs.iter().for_each(|x| x.set_grad(None));
            y.backward_with(&dy).unwrap();
            let grads = inputs.iter().map(|x| x.grad().unwrap().to_vec().unwrap());
            [y.to_vec().unwrap()].into_iter().chain(grads).collect::<Vec<_>>()
        };
        let expected = run();
        for job in ["attention_fwd", "attention_bwd"] {
            for variant in tuning.candidates(job) {
                tuning.try_out(job, 0, Some(variant.clone()));
                compare(&run(), &expected, 16.0 * dtype.epsilon(), &variant);
                tuning.try_out(job, 0, None);
            }
        }
    }
}

fn compare(got: &[Vec<f32>], expected: &[Vec<f32>], tolerance: f64, variant: &Params) {
    for (part, (got, expected)) in got.iter().zip(expected).enumerate() {
        let scale = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        for (i, (g, e)) in got.iter().zip(expected).enumerate() {
            assert!(
                f64::from((g - e).abs()) <= tolerance * f64::from(scale),
                "{variant:?}: result {part}, element {i}: {g}, {e}"
            );
        }
    }
}

/// For `tools/ptx_check.sh`: every text of the sm_90 kernels that differs in its instructions.
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
            let name = format!("split_{name}_causal{}_drop{}.cl", u8::from(causal), u8::from(dropout));
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
            // As a training step has it: the stream begins where a number in memory says.
            defines.push(("COUNTED", true.into()));
        }
        let name = format!("{dtype}_d{size}_causal{}_drop{}", u8::from(causal), u8::from(dropout));
        let write = |name: String, items: String, text: String| {
            std::fs::write(folder.join(name), format!("// items {items}\n{text}")).unwrap();
        };
        let dq = if size <= 64 { 512 } else { 384 };
        let items = format!("attention_bwd_stats=256 attention_bwd_kv=384 attention_bwd_q={dq}");
        write(format!("bwd_{name}.cl"), items, sm90::WGMMA_BWD.text(&defines));
        if size > 64 {
            let all = [&defines[..], &[("ORDERED", 1.into())]].concat();
            let items = "attention_bwd_stats=256 attention_bwd_kv=384 attention_bwd_round=128";
            write(format!("ordered_{name}.cl"), items.into(), sm90::ORDERED_BWD.text(&all));
        }
        defines.push(("CW", warpgroups.into()));
        let items = format!("attention_fwd={}", 128 * (warpgroups + 1));
        write(format!("fwd_{name}_cw{warpgroups}.cl"), items, sm90::WGMMA.text(&defines));
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
    assert!(e.message().contains("heads of 257, at most 256"), "{e}");
}

/// f32 in three parts against the portable kernels: edges, grouped heads, more keys than queries, narrow heads, dropout.
#[test]
fn f32_in_three_parts_agrees_with_the_portable_kernels() {
    let device = test_device().unwrap();
    if !bf16x3::BF16X3.runs_on(device.capabilities()) {
        println!("skipped: {} has no wgmma", device.capabilities().id);
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
        let p = kernels::Problem {
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
            dtype,
        };
        proof::same_forward(&device, &p, bf16x3::forward).unwrap_or_else(|e| panic!("{p:?}: {e}"));
        proof::same_backward(&device, &p, bf16x3::backward).unwrap_or_else(|e| panic!("{p:?}: {e}"));
    }
}

/// o, dq, dk, dv of one causal head in f64: (T,D) each.
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

/// Root mean squares of errors against f64, as shares of the results': those of f32 units are the bound, which leaves room for chance.
#[test]
fn f32_in_three_parts_is_as_exact_as_f32_units() {
    let device = test_device().unwrap();
    if !bf16x3::BF16X3.runs_on(device.capabilities()) {
        println!("skipped: {} has no wgmma", device.capabilities().id);
        return;
    }
    let (t, d) = (512, 64);
    let mut generator = Generator::new(11);
    let mut draw = || Tensor::normal(&device, [1, 1, t, d], 0.0, 1.0, DType::F32, &mut generator).unwrap();
    let [q, k, v, dy] = [draw(), draw(), draw(), draw()];
    let wide = |x: &Tensor| x.to_vec().unwrap().into_iter().map(f64::from).collect::<Vec<f64>>();
    let expected = exact(&wide(&q), &wide(&k), &wide(&v), &wide(&dy), (t, d), 0.125);
    let p = kernels::Problem {
        batch: 1,
        heads: 1,
        kv_heads: 1,
        queries: t,
        keys: t,
        size: d,
        causal: true,
        window: None,
        softcap: None,
        scale: 0.125,
        mask: None,
        dtype: DType::F32,
    };
    let views = [View::heads(&q), View::heads(&k), View::heads(&v)];
    let errors = [true, false].map(|split| {
        let o = Tensor::zeros(&device, [1, t, 1, d], DType::F32).unwrap();
        let lse = Tensor::zeros(&device, [1, 1, t], DType::F32).unwrap();
        let grads = [(); 3].map(|()| Tensor::zeros(&device, [1, 1, t, d], DType::F32).unwrap());
        let [dq, dk, dv] = &grads;
        let into = [View::heads(dq), View::heads(dk), View::heads(dv)];
        let known = Known { q: views[0], k: views[1], v: views[2], o: &o, lse: &lse, dy: View::heads(&dy) };
        if split {
            bf16x3::forward(&p, views, &o, &lse).unwrap();
            bf16x3::backward(&p, &known, into).unwrap();
        } else {
            kernels::forward_tile(&p, views, &o, &lse, p.forward_tile(&device).unwrap()).unwrap();
            kernels::backward_tile(&p, &known, into, p.backward_tile(&device).unwrap()).unwrap();
        }
        let rms = |got: &Tensor, expected: &[f64]| {
            let square = |x: f64| x * x;
            let error: f64 = wide(got).iter().zip(expected).map(|(g, e)| square(g - e)).sum();
            (error / expected.iter().map(|e| square(*e)).sum::<f64>()).sqrt()
        };
        [rms(&o, &expected[0]), rms(dq, &expected[1]), rms(dk, &expected[2]), rms(dv, &expected[3])]
    });
    println!("o, dq, dk, dv: on tensor cores {:?}, by f32 units {:?}", errors[0], errors[1]);
    for (ours, units) in errors[0].iter().zip(&errors[1]) {
        assert!(*ours <= 1.2 * units, "{errors:?}");
    }
}
