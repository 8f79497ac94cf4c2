//! Compares models from quantized files with references, and with the same models as dense matrices.

use super::tests::{EXACT, best, device, files, ids, in_f32, npy, off, open, shared};
use super::*;
use crate::model::{Mix, RandomModel};
use crate::tokenizer::Specials;
use netcl_device::Settings;
use netcl_model::decoder::Sizes;
use netcl_tensor::quant::Activations;
use netcl_test_data::needs_data;
use serde_json::Value;
use std::collections::BTreeSet;

/// Compares the logits after each prompt with those of exact arithmetic, and the greedy text with at most `steps` tokens of the reference.
fn agrees(model: &LoadedModel, refs: &Path, format: &str, steps: usize) -> f64 {
    let text = std::fs::read_to_string(refs.join(format!("{format}.json"))).unwrap();
    let cases: Value = serde_json::from_str(&text).unwrap();
    let exact = npy(&refs.join(format!("{format}.exact.npy")));
    let mut worst = 0f64;
    for (case, expected) in cases.as_array().unwrap().iter().zip(&exact) {
        let mut so_far = ids(&case["ids"]);
        let prompt = case["prompt"].as_str().unwrap();
        assert_eq!(
            model.tokenizer().unwrap().encode_prompt(prompt, Specials::Plain).unwrap(),
            so_far,
            "{prompt}"
        );
        let mut text = model.decoder().continuation().unwrap();
        let mut logits = text.logits_after(&so_far).unwrap();
        let error = off(&logits, expected);
        assert!(error <= 1e-3, "{}: {format}, {prompt:?}: {error}", model.path().display());
        worst = worst.max(error);
        for (id, gap) in
            ids(&case["exact_greedy_ids"]).iter().zip(case["exact_gaps"].as_array().unwrap()).take(steps)
        {
            let found = best(&logits);
            if found != *id {
                let gap = gap.as_f64().unwrap();
                assert!(gap <= 0.01, "{format}, {prompt:?}: {found} for {id}, whose gap is {gap}");
                break;
            }
            so_far.push(found);
            logits = text.logits_after(&so_far).unwrap();
        }
    }
    worst
}

#[needs_data("models/stories260K", "models/stories260K-w256", "refs/stories260K", "refs/stories260K-w256")]
#[test]
fn real_models_say_what_exact_arithmetic_says() {
    let device = device();
    let mut formats = BTreeSet::new();
    for name in ["stories260K", "stories260K-w256"] {
        for (path, format) in files(name) {
            // One run uses kernels that unpack blocks, the other dense matrices.
            for dequantise in [false, true] {
                let model = open(
                    &path,
                    &device,
                    Options { dtype: Some(DType::F32), context: None, dequantise, ..EXACT },
                );
                let model = model.unwrap();
                let quantised = !dequantise && !["f32", "f16", "bf16"].contains(&format.as_str());
                assert_eq!(model.decoder().params().block_bytes() > 0, quantised, "{}", path.display());
                let worst = agrees(&model, &shared(&format!("refs/{name}")), &format, 64);
                println!("{}, dequantise {dequantise}: {worst:.2e}", path.display());
            }
            formats.insert(format);
        }
    }
    assert!(formats.len() > 3, "{formats:?}");
}

/// Byte products are as far from exact arithmetic as llama.cpp's, which rounds in the same groups and, in super-blocks, in larger ones. The most
/// likely token differs only where two are equally close.
#[needs_data("models/stories260K", "models/stories260K-w256", "refs/stories260K", "refs/stories260K-w256")]
#[test]
fn bytes_move_logits_no_further_than_llama_cpps_do() {
    let device = device();
    for name in ["stories260K", "stories260K-w256"] {
        for (path, format) in files(name) {
            let text = std::fs::read_to_string(shared(&format!("refs/{name}/{format}.json"))).unwrap();
            let cases: Value = serde_json::from_str(&text).unwrap();
            let cases = cases.as_array().unwrap();
            let exact = npy(&shared(&format!("refs/{name}/{format}.exact.npy")));
            let theirs = cases.iter().filter_map(|case| case["max_abs_diff_llamacpp_vs_exact"].as_f64());
            let bound = 1.25 * theirs.fold(0.0, f64::max);
            let options = Options { dtype: Some(DType::F32), activations: Some(Activations::Int8), ..EXACT };
            let model = open(&path, &device, options).unwrap();
            if model.decoder().params().block_bytes() == 0 {
                continue;
            }
            assert_eq!(model.decoder().params().activations(), Some(Activations::Int8));
            let mut worst = 0.0_f64;
            for (case, expected) in cases.iter().zip(&exact) {
                let mut so_far = ids(&case["ids"]);
                let mut text = model.decoder().continuation().unwrap();
                let mut logits = text.logits_after(&so_far).unwrap();
                let error = logits.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs());
                worst = worst.max(error.fold(0.0, f64::max));
                let gaps = case["exact_gaps"].as_array().unwrap();
                for (id, gap) in ids(&case["exact_greedy_ids"]).iter().zip(gaps) {
                    if best(&logits) != *id {
                        let gap = gap.as_f64().unwrap();
                        assert!(gap <= 2.0 * bound, "{name} {format}: a gap of {gap}, bound {bound}");
                        break;
                    }
                    so_far.push(*id);
                    logits = text.logits_after(&so_far).unwrap();
                }
            }
            println!("{name} {format}: {worst:.3}, allowed {bound:.3}");
            assert!(worst <= bound && worst > 1e-4, "{name} {format}: {worst}, allowed {bound}");
        }
    }
}

#[needs_data("models/stories260K", "refs/stories260K")]
#[test]
fn the_simulated_device_says_the_same() {
    let device = Device::open("sim", &Settings::from_env()).unwrap();
    for (path, format) in files("stories260K") {
        if path.is_file() && ["q4_0", "q8_0"].contains(&format.as_str()) {
            agrees(&in_f32(&path, &device), &shared("refs/stories260K"), &format, 3);
        }
    }
}

/// Files without a reference are within the error of their type from the exact f32 result.
#[needs_data("models/stories260K", "refs/stories260K")]
#[test]
fn every_type_can_be_loaded_in_every_storage() {
    let refs = shared("refs/stories260K");
    let exact = npy(&refs.join("f32.exact.npy"));
    let device = device();
    let text = std::fs::read_to_string(refs.join("f32.json")).unwrap();
    let cases: Value = serde_json::from_str(&text).unwrap();
    let prompt = ids(&cases[0]["ids"]);
    let all = std::fs::read_dir(shared("models/stories260K/gguf")).unwrap().flatten();
    let mut seen = 0;
    for entry in all {
        for dtype in [None, Some(DType::F32), Some(DType::Bf16), Some(DType::F16)] {
            let model = open(&entry.path(), &device, Options { dtype, ..Options::default() }).unwrap();
            let logits = model.decoder().continuation().unwrap().logits_after(&prompt).unwrap();
            let error = off(&logits, &exact[0]);
            assert!(error < 0.2, "{} in {}: {error}", entry.path().display(), model.dtype());
            seen += 1;
        }
    }
    assert!(seen >= 4);
}

/// Compares quantized matrices with the same matrices in dense form, token by token. It needs no reference values.
#[needs_data("models/stories260K", "models/stories260K-w256")]
#[test]
fn quantised_matrices_say_what_dense_ones_do() {
    let device = device();
    for name in ["stories260K", "stories260K-w256"] {
        let folder = shared(&format!("models/{name}/gguf"));
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let logits = [false, true].map(|dequantise| {
                let options = Options { dtype: Some(DType::F32), context: Some(64), dequantise, ..EXACT };
                let model = open(&entry.path(), &device, options).unwrap();
                let mut text = model.decoder().continuation().unwrap();
                let ids: Vec<u32> = (0..14).map(|i| 1 + i * 37 % 500).collect();
                (11..=14).map(|end| text.logits_after(&ids[..end]).unwrap()).collect::<Vec<_>>()
            });
            for (quantised, dense) in logits[0].iter().zip(&logits[1]) {
                let dense: Vec<f64> = dense.iter().map(|v| f64::from(*v)).collect();
                let error = off(quantised, &dense);
                assert!(error <= 1e-5, "{}: {error:e}", entry.path().display());
            }
        }
    }
}

/// Experts that stay quantized, from a file with one tensor for all of them, equal those of dense matrices.
#[test]
fn quantised_experts_say_what_dense_ones_do() {
    let (device, dir) = (device(), tempfile::tempdir().unwrap());
    let sizes = Sizes { layers: 1, heads: 4, kv_heads: Some(2), width: 256, vocab: 64, ..Sizes::default() };
    for (family, mix) in [("mixtral", "q4_0"), ("qwen3_moe", "q4_k_m")] {
        let mut config = DecoderConfig::of(family, &sizes).unwrap();
        let moe = config.mlp.moe.as_mut().unwrap();
        (moe.experts, moe.top_k, moe.hidden) = (4, 2, 256);
        let path = dir.path().join(format!("{family}-{mix}.gguf"));
        RandomModel::new(&config, Mix::named(mix).unwrap())
            .unwrap()
            .write(&path, &mut |_, _| Ok(()))
            .unwrap();
        let logits = [false, true].map(|dequantise| {
            let options = Options { dtype: Some(DType::F32), context: Some(64), dequantise, ..EXACT };
            let model = open(&path, &device, options).unwrap();
            let params = model.decoder().params();
            let experts: Vec<_> = config.shapes().filter(|shape| shape.of_experts()).collect();
            assert!(
                experts.len() == 2 && experts.iter().all(|s| params.blocks(&s.name).is_some() != dequantise)
            );
            let mut text = model.decoder().continuation().unwrap();
            let ids: Vec<u32> = (0..44).map(|i| 1 + i * 37 % 60).collect();
            (41..=44).map(|end| text.logits_after(&ids[..end]).unwrap()).collect::<Vec<_>>()
        });
        for (quantised, dense) in logits[0].iter().zip(&logits[1]) {
            let dense: Vec<f64> = dense.iter().map(|v| f64::from(*v)).collect();
            let error = off(quantised, &dense);
            assert!(error <= 2e-5, "{family} {mix}: {error:e}");
        }
    }
}
