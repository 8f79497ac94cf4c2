//! Compares decoders of every family with `transformers`: logits, loss, every gradient, and saving to the same files.
//! `tools/golden_decoder.py` wrote the folders and describes their contents.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // tests and their helpers

use netcl::model::checkpoint::{FileDtype, TensorData, read_tensors, write_tensors};
use netcl::model::decoder::{Decoder, DecoderConfig, FAMILIES, ModelFolder, Scaling};
use netcl::model::generate::{Generation, Sampling};
use netcl::model::layers::Mode;
use netcl::model::model::Model;
use netcl::prelude::*;
use netcl::tensor::suite::quickly_built;
use netcl_test_data::needs_data;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/decoder").join(name)
}

fn json(name: &str) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(folder(name).join("config.json")).unwrap()).unwrap()
}

fn open(device: &Device, name: &str) -> Decoder {
    Decoder::open(device, &folder(name), None).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn sorted(mut tensors: Vec<TensorData>) -> Vec<TensorData> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

/// Returns the largest difference, as a share of the largest expected value.
fn difference(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
    let off = got
        .iter()
        .zip(expected)
        .map(|(g, e)| (g - e).abs())
        .fold(0.0f32, |m, d| if d.is_nan() { d } else { m.max(d) });
    off / largest
}

/// Checks one family with a bound of 1e-4.
fn agrees(name: &str) {
    let device = quickly_built().unwrap();
    let expected = read_tensors(&folder(name).join("expected.safetensors")).unwrap();
    let get =
        |key: &str| expected.iter().find(|t| t.name == key).unwrap_or_else(|| panic!("{name} has no {key}"));
    let ids = |key: &str| {
        Tensor::from_bytes(&device, get(key).shape.as_slice(), &get(key).bytes, DType::I32).unwrap()
    };
    let near = |what: &str, got: &[f32], key: &str| {
        let off = difference(got, &get(key).floats().unwrap());
        assert!(off <= 1e-4, "{name}: {what} differs by {off:.1e}");
        off
    };
    let decoder = open(&device, name);
    let logits = decoder.forward(&ids("ids"), Mode::eval()).unwrap();
    assert_eq!(logits.dims(), get("logits").shape);
    let logits = near("logits", &logits.to_vec().unwrap(), "logits");
    let loss = decoder.loss(&ids("ids"), &ids("targets"), Mode::eval()).unwrap();
    near("loss", &[loss.item().unwrap()], "loss");
    loss.backward().unwrap();
    // A model whose weights are the gradients gives them the names of the file.
    let named = Decoder::new(&device, decoder.config().clone(), DType::F32, 0).unwrap();
    for (to, from) in named.params().list().iter().zip(decoder.params().list()) {
        let grad = from.grad().unwrap_or_else(|| panic!("{name}: {} got no gradient", from.name().unwrap()));
        to.set_f32(&grad.to_vec().unwrap()).unwrap();
    }
    let grads = named.tensors().unwrap();
    let worst = grads
        .iter()
        .map(|g| near(&g.name, &g.floats().unwrap(), &format!("grad.{}", g.name)))
        .fold(0.0, f32::max);
    assert_eq!(grads.len(), expected.iter().filter(|t| t.name.starts_with("grad.")).count(), "{name}");
    println!("{name}: logits {logits:.1e}, gradients {worst:.1e}");
    cached(&decoder, &ids("ids"));
    continued(&decoder, &ids("ids"));
    // Saving gives the tensors of the file with the same bits.
    let file = read_tensors(&folder(name).join("model.safetensors")).unwrap();
    assert_eq!(sorted(decoder.tensors().unwrap()), sorted(file), "{name}");
    let counted: usize = decoder.params().list().iter().map(Tensor::count).sum();
    assert_eq!(decoder.config().parameters(), counted, "{name}");
}

/// A prompt followed by single tokens gives the logits of the whole sequence.
fn cached(decoder: &Decoder, ids: &Tensor) {
    let [b, t] = ids.dims2().unwrap();
    let all = decoder.forward(ids, Mode::eval()).unwrap();
    let mut cache = decoder.cache(b, t).unwrap();
    let mut start = 0;
    // LongRoPE rotates the first tokens by other angles if the sequence is longer.
    let original = decoder.config().rotary.iter().find_map(|set| match set.scaling {
        Scaling::LongRope { original, .. } => Some(original),
        _ => None,
    });
    for end in [5, 6, 7, 10, 11, 12] {
        let next = ids.slice(1, start..end).unwrap();
        if original.is_some_and(|original| (start..end).contains(&original)) {
            let e = decoder.next_logits(&next, &mut cache).unwrap_err();
            assert!(e.message().contains("read it from its beginning"), "{e}");
            cache.truncate(0);
            decoder.next_logits(&ids.slice(1, 0..end).unwrap(), &mut cache).unwrap();
            start = end;
            continue;
        }
        let logits = decoder.next_logits(&next, &mut cache).unwrap();
        let of = |to: usize| decoder.forward(&ids.slice(1, 0..to).unwrap(), Mode::eval()).unwrap();
        let expected = if original.is_some() { of(end) } else { all.clone() }.slice(1, end - 1..end).unwrap();
        let off = difference(&logits.to_vec().unwrap(), &expected.to_vec().unwrap());
        assert!(off <= 1e-5, "{}: after {end} tokens: {off:.1e}", decoder.config().family.model_type);
        start = end;
    }
    assert_eq!(cache.length(), t);
    let e = decoder.next_logits(&ids.slice(1, 0..1).unwrap(), &mut cache).unwrap_err();
    assert!(e.message().contains("after 12 tokens in a cache for 2 texts of 12 tokens"), "{e}");
    cache.truncate(0);
    let logits = decoder.next_logits(ids, &mut cache).unwrap().to_vec().unwrap();
    let off = difference(&logits, &all.slice(1, t - 1..t).unwrap().to_vec().unwrap());
    assert!(off <= 1e-5, "all at once: {off:.1e}");
}

/// Captured and replayed steps give the logits of the whole sequence: after a prompt, after a truncated sequence, and after another one.
fn continued(decoder: &Decoder, ids: &Tensor) {
    let [_, t] = ids.dims2().unwrap();
    let rows = ids.to_u32().unwrap();
    let (device, family) = (decoder.params().device(), decoder.config().family.model_type);
    let all_at_once = |ids: &[u32]| {
        let all = Tensor::from_u32(device, [1, ids.len()], ids).unwrap();
        decoder.forward(&all, Mode::eval()).unwrap().slice(1, ids.len() - 1..ids.len()).unwrap()
    };
    let mut text = decoder.continuation().unwrap();
    let mut after = |ids: &[u32]| {
        let logits = text.logits_after(ids).unwrap();
        let off = difference(&logits, &all_at_once(ids).to_vec().unwrap());
        assert!(off <= 1e-5, "{family}: after {} tokens: {off:.1e}", ids.len());
        text.launches()
    };
    let (first, second) = rows.split_at(t);
    for end in (4..=t).chain(4..=7) {
        after(&first[..end]);
    }
    let other: Vec<u32> = first[..7].iter().chain(&second[..5]).copied().collect();
    let launches = (8..=12).map(|end| after(&other[..end])).last().flatten().unwrap();
    println!("{family}: {launches} launches per token");
    // Launches: embedding; per layer norm with projection, attention, output projection, norm with the inner map and activation, the outer map;
    // then norm with the head.
    if ["gpt2", "llama", "qwen3", "phi3"].contains(&family) {
        assert_eq!(launches, 1 + 5 * decoder.config().layers + 1);
    }
}

macro_rules! families {
    ($($name:ident)*) => {
        $(#[test] fn $name() { agrees(stringify!($name)); })*
        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

include!("families/list.rs");
with_families!(families);

#[test]
fn every_family_has_goldens() {
    let kinds: Vec<String> =
        TESTED.iter().map(|name| json(name)["model_type"].as_str().unwrap().to_owned()).collect();
    let untested: Vec<_> =
        FAMILIES.iter().map(|row| row.family.model_type).filter(|f| !kinds.iter().any(|k| k == f)).collect();
    assert!(untested.is_empty(), "{untested:?}");
}

#[test]
fn a_configuration_is_taken_whole_or_refused() {
    let refused = |name: &str, field: &str, value: serde_json::Value| {
        let mut config = json(name);
        config[field] = value;
        DecoderConfig::from_json(&config).unwrap_err().to_string()
    };
    let e = refused("llama", "attn_bias_scale", 2.into());
    assert!(e.contains("attn_bias_scale is 2, which netcl does not know"), "{e}");
    let e = refused("llama", "hidden_act", "mish".into());
    assert!(e.contains("hidden_act is \"mish\", expected one of silu"), "{e}");
    let e = refused("llama", "num_key_value_heads", 3.into());
    assert!(e.contains("4 query heads are not a multiple of 3 key and value heads"), "{e}");
    let e = refused("llama", "hidden_size", "wide".into());
    assert!(e.contains("hidden_size is \"wide\", expected a whole number"), "{e}");
    let e =
        refused("llama3", "rope_parameters", serde_json::json!({ "rope_type": "dynamic", "factor": 2.0 }));
    assert!(e.contains("rotary scaling \"dynamic\"") && e.contains("llama3"), "{e}");
    let e = refused("llama3", "rope_parameters", serde_json::json!({ "rope_type": "linear", "facto": 2.0 }));
    assert!(e.contains("factor of the linear rotary scaling is missing"), "{e}");
    let e = refused("gemma3", "layer_types", serde_json::json!(["full_attention"]));
    assert!(e.contains("layer_types") && e.contains("2 of"), "{e}");
    let e = refused("llama", "model_type", "bloom".into());
    assert!(e.contains("model_type is \"bloom\", expected one of gpt2, llama, mistral"), "{e}");
}

#[test]
fn weights_that_do_not_fit_are_named_and_change_nothing() {
    let device = quickly_built().unwrap();
    let decoder = open(&device, "qwen2");
    let before = decoder.tensors().unwrap();
    let error = |tensors: &[TensorData]| decoder.load_tensors(tensors).unwrap_err().to_string();
    let mut missing = before.clone();
    missing.retain(|t| t.name != "model.layers.1.self_attn.k_proj.bias");
    missing[0].bytes.fill(0);
    assert!(error(&missing).contains("does not contain the tensor model.layers.1.self_attn.k_proj.bias"));
    let mut more = before.clone();
    more.push(TensorData { name: "model.layers.2.norm.weight".into(), ..before[0].clone() });
    assert!(error(&more).contains(
        "model.layers.2.norm.weight: the model of config.json, which has 2 layers, does not have a slot for it"
    ));
    let mut shape = before.clone();
    let at = shape.iter().position(|t| t.name.ends_with("1.mlp.up_proj.weight")).unwrap();
    shape[at].shape.swap(0, 1);
    assert!(error(&shape).contains("up_proj.weight has shape [32, 40], expected [40, 32]"));
    assert_eq!(decoder.tensors().unwrap(), before);
    // The files of a model without a head do not have the prefix.
    let bare = |t: &TensorData| TensorData { name: t.name.trim_start_matches("model.").into(), ..t.clone() };
    decoder.load_tensors(&before.iter().map(bare).collect::<Vec<_>>()).unwrap();
}

/// Returns a folder with the changed weights and configuration of a golden.
fn changed(
    name: &str,
    config: impl Fn(serde_json::Value) -> serde_json::Value,
    tensors: impl Fn(Vec<TensorData>) -> Vec<TensorData>,
) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config(json(name)).to_string()).unwrap();
    let stored = read_tensors(&folder(name).join("model.safetensors")).unwrap();
    write_tensors(&dir.path().join("model.safetensors"), &tensors(stored)).unwrap();
    dir
}

/// Gemma 3 from 4B on: the text model is part of a multimodal model, with two naming schemes.
#[test]
fn the_text_model_of_gemma_3_is_opened() {
    let device = quickly_built().unwrap();
    let expected = sorted(open(&device, "gemma3").tensors().unwrap());
    let whole = |text: serde_json::Value| {
        serde_json::json!({
            "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text,
            "vision_config": { "model_type": "siglip_vision_model" }, "image_token_index": 40, "mm_tokens_per_image": 256,
        })
    };
    let named = |text: &'static str, vision: &'static str| {
        move |mut all: Vec<TensorData>| {
            let one = TensorData { name: format!("{vision}.post_layernorm.bias"), ..all[0].clone() };
            all.iter_mut().for_each(|t| t.name = t.name.replacen("model.", text, 1));
            all.push(one);
            all
        }
    };
    for (text, vision) in [
        ("language_model.model.", "vision_tower.vision_model"),
        ("model.language_model.", "model.vision_tower.vision_model"),
    ] {
        let dir = changed("gemma3", whole, named(text, vision));
        let folder = ModelFolder::open(dir.path()).unwrap();
        assert!(folder.notes.iter().any(|note| note.contains("image part is ignored")));
        let decoder = Decoder::open(&device, dir.path(), None).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(sorted(decoder.tensors().unwrap()), expected);
    }
}

/// Some programs store the embedding of a tied model only under the name of its head.
#[test]
fn a_tied_model_that_stores_its_head_alone_is_opened() {
    let device = quickly_built().unwrap();
    for name in ["qwen2", "llama3", "gpt2"] {
        let head = |mut all: Vec<TensorData>| {
            let table =
                all.iter_mut().find(|t| t.name.contains("embed_tokens") || t.name.ends_with("wte.weight"));
            table.unwrap().name = "lm_head.weight".into();
            all
        };
        let dir = changed(name, |config| config, head);
        let decoder = Decoder::open(&device, dir.path(), None).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(sorted(decoder.tensors().unwrap()), sorted(open(&device, name).tensors().unwrap()));
    }
}

#[test]
fn an_adapter_next_to_a_model_is_named() {
    let dir = changed("llama", |config| config, |all| all);
    assert!(ModelFolder::open(dir.path()).unwrap().notes.is_empty());
    std::fs::write(dir.path().join("adapter_config.json"), "{}").unwrap();
    let notes = ModelFolder::open(dir.path()).unwrap().notes;
    assert!(
        notes[0].contains("adapter_config.json, which is not applied") && notes[0].contains("--lora"),
        "{notes:?}"
    );
}

/// `model.double().save_pretrained(…)` of `transformers` writes such a folder.
#[test]
fn a_folder_in_f64_is_opened_as_f32() {
    let device = quickly_built().unwrap();
    for name in ["gpt2", "llama"] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = json(name);
        config["dtype"] = "float64".into();
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let single = read_tensors(&folder(name).join("model.safetensors")).unwrap();
        let double = |t: &TensorData| {
            // Adds a quarter of the last digit, which rounding removes.
            let wide = |v: f32| (f64::from(v) * (1.0 + 1.4e-8)).to_le_bytes();
            let bytes = t.floats().unwrap().into_iter().flat_map(wide).collect();
            TensorData { dtype: FileDtype::F64, bytes, ..t.clone() }
        };
        let double: Vec<_> = single.iter().map(double).collect();
        write_tensors(&dir.path().join("model.safetensors"), &double).unwrap();
        let decoder = Decoder::open(&device, dir.path(), None).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(sorted(decoder.tensors().unwrap()), sorted(single), "{name}");
    }
}

/// Files from before `rope_parameters` contain the same settings in other fields.
#[test]
fn older_files_mean_the_same() {
    let mut old = json("llama3");
    let mut angles = old["rope_parameters"].take();
    let theta = angles.as_object_mut().unwrap().remove("rope_theta").unwrap();
    let fields = old.as_object_mut().unwrap();
    fields.remove("rope_parameters");
    fields.insert("rope_theta".into(), theta);
    fields.insert("rope_scaling".into(), angles);
    assert_eq!(DecoderConfig::from_json(&old).unwrap(), DecoderConfig::from_json(&json("llama3")).unwrap());
    // The name of the number of experts differs between versions.
    for (name, from, to) in
        [("qwen3_moe", "num_local_experts", "num_experts"), ("mixtral", "num_local_experts", "num_experts")]
    {
        let mut old = json(name);
        let fields = old.as_object_mut().unwrap();
        let number = fields.remove(from).unwrap();
        fields.insert(to.into(), number);
        assert_eq!(DecoderConfig::from_json(&old).unwrap(), DecoderConfig::from_json(&json(name)).unwrap());
    }
    let mut old = json("gpt_neox");
    let fields = old.as_object_mut().unwrap();
    fields.remove("rope_parameters");
    fields.insert("rotary_pct".into(), 0.5.into());
    fields.insert("rotary_emb_base".into(), 10_000.into());
    assert_eq!(DecoderConfig::from_json(&old).unwrap(), DecoderConfig::from_json(&json("gpt_neox")).unwrap());
}

/// Reads the numbers of a `.npy` file: little-endian f32 after a header.
fn npy(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let data = &bytes[10 + header..];
    assert!(String::from_utf8_lossy(&bytes[10..10 + header]).contains("'<f4'"));
    data.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// A trained Llama: logits after three prompts, and the continuation with a KV cache.
#[needs_data("models/stories260K/hf", "refs/stories260K")]
#[test]
fn a_trained_llama_gives_its_reference_text() {
    let data = netcl_test_data::test_data!();
    let device = quickly_built().unwrap();
    let decoder = Decoder::open(&device, &data.join("models/stories260K/hf"), None).unwrap();
    let refs = data.join("refs/stories260K");
    let runs = std::fs::read_to_string(refs.join("f32.json")).unwrap();
    let runs: serde_json::Value = serde_json::from_str(&runs).unwrap();
    let (exact, vocab) = (npy(&refs.join("f32.exact.npy")), decoder.config().vocab);
    for (run, expected) in runs.as_array().unwrap().iter().zip(exact.chunks_exact(vocab)) {
        let ids = |key: &str| -> Vec<u32> {
            run[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
        };
        let (prompt, greedy) = (ids("ids"), ids("exact_greedy_ids"));
        let logits = decoder.continuation().unwrap().logits_after(&prompt).unwrap();
        let off = difference(&logits, expected);
        assert!(off <= 1e-4, "logits differ by {off:.1e}");
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        let made = Generation::new(&decoder, &prompt, sampling).unwrap().take(greedy.len());
        assert_eq!(made.collect::<Result<Vec<u32>>>().unwrap(), greedy);
    }
}

/// The cache grows with the sequence. A sequence that exceeds the context is processed again from its second half on.
#[test]
fn a_text_outgrows_the_context() {
    let device = quickly_built().unwrap();
    let decoder = open(&device, "llama3");
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let made: Vec<u32> =
        Generation::new(&decoder, &[3, 4, 5], sampling).unwrap().take(60).map(Result::unwrap).collect();
    let text: Vec<u32> = [3, 4, 5].into_iter().chain(made).collect();
    // The context has 32 tokens. After 33, 50 and so on, only the last 16 and the following tokens remain.
    for (end, start) in [(20, 0), (32, 0), (33, 17), (40, 17), (49, 17), (50, 34), (63, 34)] {
        let read = &text[start..end];
        let ids = Tensor::from_u32(&device, [1, read.len()], read).unwrap();
        let logits = decoder.forward(&ids, Mode::eval()).unwrap();
        let last = logits.slice(1, read.len() - 1..read.len()).unwrap().to_vec().unwrap();
        let best = (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap();
        if end < text.len() {
            assert_eq!(text[end] as usize, best, "after {end} tokens");
        }
    }
}
