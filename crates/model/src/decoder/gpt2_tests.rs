//! Models of GPT-2's architecture with another configuration, compared with `transformers`, and incomplete folders. `tools/golden_gpt_variants.py`
//! wrote the files.

use super::*;
use crate::checkpoint::{WeightFiles, read_tensors, write_tensors};
use crate::folder::model_from_dir;
use netcl_tensor::suite::test_device;
use std::fs;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/gpt_variants").join(name)
}

/// Returns a copy of a golden folder with a changed `config.json`.
fn copy(name: &str, change: impl FnOnce(&mut serde_json::Value)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(golden(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = dir.path().join("config.json");
    let mut json = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut json);
    fs::write(path, json.to_string()).unwrap();
    dir
}

fn refused(dir: &Path, part: &str) {
    match model_from_dir(&test_device().unwrap(), dir, None) {
        Err(e) => assert!(e.message().contains(part), "{e} has not: {part}"),
        Ok(_) => panic!("taken, expected: {part}"),
    }
}

#[test]
fn every_variant_has_the_logits_loss_and_gradients_of_transformers() {
    let device = test_device().unwrap();
    let mut names: Vec<_> =
        fs::read_dir(golden("")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names.len(), 8, "{names:?}");
    for name in names {
        let (gpt, ..) = model_from_dir(&device, &golden(&name), None).unwrap();
        let out = read_tensors(&golden(&name).join("out.safetensors")).unwrap();
        let find = |wanted: &str| out.iter().find(|t| t.name == wanted).unwrap();
        let ids = |wanted: &str| {
            let t = find(wanted);
            Tensor::from_bytes(&device, t.shape.as_slice(), &t.bytes, DType::I32).unwrap()
        };
        let near = |what: &str, got: &Tensor, tolerance: f32| {
            let (got, wanted) = (got.to_vec().unwrap(), find(what).floats().unwrap());
            let largest = wanted.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
            assert_eq!(got.len(), wanted.len(), "{name}: {what}");
            for (g, w) in got.iter().zip(&wanted) {
                assert!((g - w).abs() <= tolerance * largest, "{name}: {what} has {g}, PyTorch {w}");
            }
        };
        let (tokens, targets) = (ids("tokens"), ids("targets"));
        near("logits", &gpt.forward(&tokens, Mode::eval()).unwrap(), 1e-5);
        let loss = gpt.loss(&tokens, &targets, Mode::eval()).unwrap();
        near("loss", &loss, 1e-5);
        loss.backward().unwrap();
        let parameters = gpt.params().list();
        for p in parameters {
            near(&format!("grad.{}", p.name().unwrap()), &p.grad().unwrap(), 1e-4);
        }
        assert_eq!(out.iter().filter(|t| t.name.starts_with("grad.")).count(), parameters.len());
        // The configuration survives writing, and names its parameters before they exist.
        let written = gpt.config_json(&FileFacts::default()).unwrap();
        assert_eq!(DecoderConfig::from_json(&written).unwrap(), *gpt.config);
        let made: Vec<_> =
            parameters.iter().map(|p| (p.name().unwrap().to_owned(), p.dims().to_vec())).collect();
        let shapes = shapes::all(&gpt.config).map(|shape| (shape.name, shape.dims));
        assert_eq!(shapes.collect::<Vec<_>>(), made);
        assert_eq!(gpt.config.parameters(), gpt.params().count());
    }
}

#[test]
fn half_a_model_is_refused_by_the_tensors_that_are_left_over() {
    refused(
        copy("gelu", |c| c["n_layer"] = 1.into()).path(),
        "transformer.h.1.attn.c_attn.bias and 23 more: the model of config.json",
    );
    refused(
        copy("gelu", |c| c["n_layer"] = 4.into()).path(),
        "does not contain the tensor transformer.h.3.ln_1.weight",
    );
    refused(
        copy("own_head", |c| c["tie_word_embeddings"] = true.into()).path(),
        "lm_head.weight differs from transformer.wte",
    );
    refused(copy("gelu", |c| c["tie_word_embeddings"] = false.into()).path(), "the tensor lm_head.weight");
    let no_bias = serde_json::json!({ "bias": false });
    refused(copy("gelu", |c| c["netcl"] = no_bias).path(), "ln_1.bias is not zero");
    refused(
        copy("relu", |c| c["n_inner"] = serde_json::Value::Null).path(),
        "has shape [16, 24], expected [16, 64]",
    );
}

#[test]
fn numbers_that_cannot_be_are_compared_with_the_file_before_anything_is_allocated() {
    let device = test_device().unwrap();
    let before = device.memory().reserved;
    for (field, value, part) in [
        ("n_layer", 2_147_483_647u64, "does not contain the tensor transformer.h.3.ln_1.weight"),
        ("vocab_size", 2_147_483_647, "transformer.wte.weight has shape [19, 16], expected [2147483647, 16]"),
        ("vocab_size", 4_294_967_296, "vocab_size is 4294967296"),
        ("n_positions", 1 << 31, "n_positions is 2147483648"),
        ("n_inner", 2_147_483_647, "expected [16, 2147483647]"),
    ] {
        let dir = copy("gelu", |c| c[field] = value.into());
        let Err(e) = model_from_dir(&device, dir.path(), None) else { panic!("{field} {value} is taken") };
        assert!(e.message().contains(part), "{e} has not: {part}");
    }
    assert_eq!(device.memory().reserved, before);
    // Without a file to compare with, device memory is the limit.
    for change in
        [|c: &mut DecoderConfig| c.layers = 2_147_483_647, |c: &mut DecoderConfig| c.vocab = 2_147_483_647]
    {
        let mut config = DecoderConfig::from_json(&serde_json::json!({
            "model_type": "gpt2", "n_layer": 2, "n_head": 64, "n_embd": 16384, "n_positions": 64, "vocab_size": 99,
        }))
        .unwrap();
        change(&mut config);
        let Err(e) = Decoder::new(&device, config, DType::F32, 0) else {
            panic!("a model of terabytes was created")
        };
        assert_eq!(e.kind(), netcl_tensor::ErrorKind::Memory, "{e}");
        assert!(e.message().contains(" available; nothing was allocated"), "{e}");
    }
    assert_eq!(device.memory().reserved, before);
}

#[test]
fn tensors_beside_the_model_that_change_nothing_are_left_out() {
    let dir = copy("gelu", |_| ());
    let path = dir.path().join("model.safetensors");
    let mut tensors = read_tensors(&path).unwrap();
    let wte = tensors.iter().find(|t| t.name == "transformer.wte.weight").unwrap().clone();
    tensors.push(TensorData { name: "lm_head.weight".into(), ..wte });
    let mask = TensorData {
        name: "transformer.h.0.attn.bias".into(),
        dtype: crate::checkpoint::FileDtype::U8,
        shape: vec![1, 1, 8, 8],
        bytes: vec![1; 64],
    };
    tensors.push(mask.clone());
    write_tensors(&path, &tensors).unwrap();
    model_from_dir(&test_device().unwrap(), dir.path(), None).unwrap();
    tensors.push(TensorData { name: "h.0.attn.bias2".into(), ..mask });
    write_tensors(&path, &tensors).unwrap();
    refused(dir.path(), "h.0.attn.bias2: the model of config.json");
}

#[test]
fn an_index_that_is_not_that_of_its_files_is_named() {
    let change = |change: fn(&mut serde_json::Value), part: &str| {
        let dir = copy("sharded", |_| ());
        let path = dir.path().join(crate::checkpoint::INDEX_FILE);
        let mut json = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut json);
        fs::write(path, json.to_string()).unwrap();
        let Err(e) = WeightFiles::open(dir.path()) else { panic!("taken, expected: {part}") };
        assert!(e.message().contains(part), "{e} has not: {part}");
    };
    change(|i| i["weight_map"]["transformer.wte.weight"] = "../x.safetensors".into(), "in this folder");
    change(
        |i| i["weight_map"]["transformer.wte.weight"] = "x.safetensors".into(),
        "the index does not list it there",
    );
    change(
        |i| i["weight_map"]["more"] = "model-00001-of-00003.safetensors".into(),
        "does not contain the tensor more",
    );
    change(|i| *i = serde_json::json!({ "weight_map": {} }), "weight_map is missing");
    let dir = copy("sharded", |_| ());
    fs::remove_file(dir.path().join("model-00002-of-00003.safetensors")).unwrap();
    refused(dir.path(), "model-00002-of-00003.safetensors");
    for entry in fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if !path.ends_with("config.json") {
            fs::remove_file(path).unwrap();
        }
    }
    fs::write(dir.path().join("pytorch_model.bin"), b"").unwrap();
    refused(dir.path(), "pickles are programs");
}
