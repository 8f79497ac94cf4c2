use super::*;
use crate::engine::{LoadedModel, Options};
use crate::gguf::{Meta, Plan, TensorToWrite};
use crate::model::names::{Change, placed};
use crate::model::{Mix, OutputFormat, Source, convert};
use netcl_model::checkpoint::{FileDtype, TensorData, read_tensors, write_tensors};
use netcl_model::layers::Mode;
use netcl_model::model::Model as _;
use netcl_tensor::quant::{Activations, F32};
use netcl_tensor::suite::quickly_built;
use netcl_tensor::{DType, Device, Tensor, no_grad};
use serde_json::{Value, json};

const CASES: [&str; 13] = [
    "llama",
    "llama_root",
    "llama_biases",
    "qwen2",
    "qwen2_embedding",
    "qwen2_saved",
    "gpt2",
    "gpt2_biases",
    "mixtral",
    "qwen3_moe",
    "gemma2",
    "phi3",
    "gpt_neox",
];

fn goldens(folder: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(folder).join(name)
}

/// The model of a case, and its adapter.
fn case(name: &str) -> (PathBuf, PathBuf) {
    let adapter = goldens("lora", name);
    let model = std::fs::read_to_string(adapter.join("model")).unwrap();
    (goldens("decoder", model.trim()), adapter)
}

fn opened(
    model: &Path,
    adapters: &[(PathBuf, f32)],
    device: &Device,
    dequantise: bool,
) -> Result<LoadedModel> {
    let options = Options {
        dtype: Some(DType::F32),
        dequantise,
        activations: Some(Activations::Float),
        ..Options::default()
    };
    LoadedModel::open_adapted(model, adapters, device, options, &mut |_| Ok(()))
}

fn ids_of(case: &str) -> ([usize; 2], Vec<u32>, Vec<f32>) {
    let all = read_tensors(&goldens("lora", case).join("expected.safetensors")).unwrap();
    let of = |name: &str| all.iter().find(|t| t.name == name).unwrap();
    let ids = of("ids");
    let values = ids.bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
    ([ids.shape[0], ids.shape[1]], values, of("logits").floats().unwrap())
}

fn logits(model: &LoadedModel, dims: [usize; 2], ids: &[u32]) -> Vec<f32> {
    let device = model.decoder().params().device();
    let x = Tensor::from_u32(device, dims, ids).unwrap();
    no_grad(|| model.decoder().forward(&x, Mode::eval())).unwrap().to_vec().unwrap()
}

fn off(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let most = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max) / most
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("an error").message().to_owned()
}

/// Compares every kind of module and setting with PEFT in float64: at once, and token by token through the cache and the captured step.
#[test]
fn logits_are_pefts() {
    let device = quickly_built().unwrap();
    for name in CASES {
        let (model, adapter) = case(name);
        let ([batch, tokens], ids, expected) = ids_of(name);
        let model = opened(&model, &[(adapter, 1.0)], &device, false).unwrap();
        let error = off(&logits(&model, [batch, tokens], &ids), &expected);
        assert!(error <= 1e-4, "{name}: {error}");
        if name == "phi3" {
            // Its angles depend on the length of the whole text.
            continue;
        }
        let vocab = model.config().vocab;
        let mut text = model.decoder().continuation().unwrap();
        for end in 3..=tokens {
            let found = text.logits_after(&ids[..end]).unwrap();
            let error = off(&found, &expected[(end - 1) * vocab..end * vocab]);
            assert!(error <= 1e-4, "{name}, token {end}: {error}");
        }
    }
}

/// An adapter on quantized matrices equals one merged into the dequantized matrices. Tied and untied, with a product only for the embedding, and with
/// biases that the base model lacks.
#[test]
fn beside_blocks_is_as_merged() {
    let (device, dir) = (quickly_built().unwrap(), tempfile::tempdir().unwrap());
    for name in
        ["llama", "llama_biases", "qwen2", "qwen2_embedding", "qwen2_saved", "mixtral", "gemma2", "phi3"]
    {
        let (model, adapter) = case(name);
        let ([batch, tokens], ids, _) = ids_of(name);
        for mix in ["q8_0", "q4_0"] {
            let path = dir.path().join(format!("{name}-{mix}.gguf"));
            quantised(&model, &[], &path, OutputFormat::Gguf, mix);
            let adapters = [(without_base(&adapter, dir.path()), 0.75)];
            let beside = opened(&path, &adapters, &device, false).unwrap();
            let merged = opened(&path, &adapters, &device, true).unwrap();
            let plain = opened(&path, &[], &device, false).unwrap();
            let expected = logits(&merged, [batch, tokens], &ids);
            let quantised = beside.decoder().params().block_bytes();
            assert!(quantised > 0 || name == "gemma2", "{name} {mix}: nothing is quantized");
            assert_eq!(merged.decoder().params().block_bytes(), 0);
            let error = off(&logits(&beside, [batch, tokens], &ids), &expected);
            assert!(error <= 1e-5, "{name} {mix}: {error}");
            assert!(off(&logits(&plain, [batch, tokens], &ids), &expected) > 0.01, "{name} {mix}: no change");
            if name == "phi3" {
                continue;
            }
            let vocab = beside.config().vocab;
            let mut text = beside.decoder().continuation().unwrap();
            for end in 2..=tokens {
                let found = text.logits_after(&ids[..end]).unwrap();
                let error = off(&found, &expected[(end - 1) * vocab..end * vocab]);
                assert!(error <= 1e-5, "{name} {mix}, token {end}: {error}");
            }
        }
    }
}

/// With layers on two devices an adapter has the same effect as on one, for dense and quantized matrices, and for a tied embedding's copy.
#[test]
fn layers_on_several_devices_have_their_changes() {
    let (devices, dir) = ([0; 2].map(|_| quickly_built().unwrap()), tempfile::tempdir().unwrap());
    let options =
        Options { dtype: Some(DType::F32), activations: Some(Activations::Float), ..Options::default() };
    let same = |name: &str, model: &Path, adapter: PathBuf| {
        let ([batch, tokens], ids, _) = ids_of(name);
        let adapters = [(adapter, 1.0)];
        let whole = opened(model, &adapters, &devices[0], false).unwrap();
        let options = Options { layers: Some(&[1]), ..options };
        let parts = LoadedModel::open_adapted(model, &adapters, &devices, options, &mut |_| Ok(())).unwrap();
        assert_eq!(parts.decoder().spans().count(), 2, "{name}");
        assert!(logits(&parts, [batch, tokens], &ids) == logits(&whole, [batch, tokens], &ids), "{name}");
        let steps = |model: &LoadedModel| {
            let mut text = model.decoder().continuation().unwrap();
            (2..=tokens).map(|end| text.logits_after(&ids[..end]).unwrap()).collect::<Vec<_>>()
        };
        assert!(steps(&parts) == steps(&whole), "{name}, token by token");
    };
    for name in CASES {
        let (model, adapter) = case(name);
        same(name, &model, adapter);
    }
    for name in ["llama", "qwen2_embedding", "gemma2", "mixtral"] {
        let (model, adapter) = case(name);
        let path = dir.path().join(format!("{name}.gguf"));
        quantised(&model, &[], &path, OutputFormat::Gguf, "q8_0");
        same(name, &path, without_base(&adapter, dir.path()));
    }
}

/// Returns the adapter without the base embedding that PEFT saves next to a low-rank one. With it, the embedding would be replaced, and so dense.
fn without_base(adapter: &Path, dir: &Path) -> PathBuf {
    let to = dir.join(adapter.file_name().unwrap());
    copied(adapter, &to);
    change_tensors(&to, |all| all.retain(|tensor| !tensor.name.ends_with(".base_layer.weight")));
    to
}

fn copied(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for name in [peft::CONFIG, peft::WEIGHTS] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

fn change_tensors(folder: &Path, change: impl Fn(&mut Vec<TensorData>)) {
    let path = folder.join(peft::WEIGHTS);
    let mut all = read_tensors(&path).unwrap();
    change(&mut all);
    write_tensors(&path, &all).unwrap();
}

fn change_config(folder: &Path, field: &str, value: Value) {
    let path = folder.join(peft::CONFIG);
    let mut json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    json[field] = value;
    std::fs::write(&path, json.to_string()).unwrap();
}

fn quantised(model: &Path, adapters: &[(PathBuf, f32)], to: &Path, target: OutputFormat, mix: &str) {
    let mut source = Source::open(model).unwrap();
    if !adapters.is_empty() {
        source.adapt(open_all(&source.config, adapters).unwrap()).unwrap();
    }
    let options = crate::model::WriteOptions { mix: Mix::named(mix).unwrap(), importance: None };
    convert(&source, to, target, &options, &mut |_| Ok(())).unwrap();
}

/// A model written with an adapter computes the same as the model with the adapter, from and to both layouts.
#[test]
fn what_is_written_has_the_changes() {
    let (device, dir) = (quickly_built().unwrap(), tempfile::tempdir().unwrap());
    for name in CASES {
        let (model, adapter) = case(name);
        let ([batch, tokens], ids, expected) = ids_of(name);
        let adapters = [(adapter, 1.0)];
        let own = opened(&model, &adapters, &device, false).unwrap();
        let own = logits(&own, [batch, tokens], &ids);
        let base = dir.path().join(format!("{name}-base.gguf"));
        quantised(&model, &[], &base, OutputFormat::Gguf, "f32");
        for (i, from) in [&model, &base].into_iter().enumerate() {
            for target in [OutputFormat::Gguf, OutputFormat::Folder] {
                let to = dir.path().join(format!("{name}-{i}"));
                let to = if target == OutputFormat::Gguf { to.with_extension("gguf") } else { to };
                quantised(from, &adapters, &to, target, "f32");
                let written = opened(&to, &[], &device, false).unwrap();
                let found = logits(&written, [batch, tokens], &ids);
                assert!(off(&found, &own) <= 1e-6, "{name} {i} {target:?}: {}", off(&found, &own));
                assert!(off(&found, &expected) <= 1e-4, "{name} {i} {target:?}");
            }
        }
        // Apply the adapter to a GGUF file while it is loaded.
        let loaded = opened(&base, &adapters, &device, false).unwrap();
        assert!(off(&logits(&loaded, [batch, tokens], &ids), &own) <= 1e-6, "{name}");
    }
}

/// Converts a PEFT adapter to a GGUF file, with the rules of llama.cpp's `convert_lora_to_gguf.py`.
fn packed(model: &Path, adapter: &Path, to: &Path) {
    let source = Source::open(model).unwrap();
    let adapter = Adapter::open(adapter).unwrap();
    let places = placed(&source.config, source.architecture).unwrap();
    let mut plan = Plan::default();
    for (key, value) in [
        ("general.type", "adapter"),
        ("general.architecture", source.architecture.name),
        ("adapter.type", "lora"),
    ] {
        plan.set(key, Meta::Str(value.into()));
    }
    plan.set("adapter.lora.alpha", Meta::F32(adapter.alpha as f32));
    let mut data: Vec<Vec<u8>> = Vec::new();
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    for (name, entry) in &adapter.entries {
        let tensor = places.iter().find(|placed| placed.files.contains(name)).unwrap();
        let (Some(a), Some(b)) = (&entry.a, &entry.b) else { continue };
        let rank = entry.rank().unwrap();
        let (mut own_a, mut a_dims, mut own_b) = (bytes(&a.values), a.shape.clone(), bytes(&b.values));
        let (mut b_dims, turned) = (b.shape.clone(), |part: &AdapterTensor| -> Vec<f32> {
            let [rows, columns] = part.shape[..] else { panic!("{:?}", part.shape) };
            (0..part.values.len()).map(|i| part.values[i % rows * columns + i / rows]).collect()
        });
        if entry.table {
            (own_a, a_dims) = (bytes(&turned(a)), vec![a.shape[1], rank]);
            if !tensor.name.starts_with("token_embd") {
                // Like other matrices: A and B are swapped.
                (own_b, b_dims) = (own_a, a_dims);
                (own_a, a_dims) = (bytes(&turned(b)), vec![rank, b.shape[0]]);
            }
        }
        if let Change::Pairs(_) | Change::Heads(_) = tensor.change {
            own_b = tensor.change.to_gguf(&own_b, [rank * 4, 4], &b.shape);
        }
        for (end, dims, values) in [("a", a_dims, own_a), ("b", b_dims, own_b)] {
            plan.tensors.push(TensorToWrite {
                name: format!("{}.lora_{end}", tensor.name),
                dims,
                format: &F32,
            });
            data.push(values);
        }
    }
    plan.write(to, |i, out| {
        out.write_all(&data[i]).unwrap();
        Ok(())
    })
    .unwrap();
}

#[test]
fn gguf_adapters_are_as_pefts() {
    let (device, dir) = (quickly_built().unwrap(), tempfile::tempdir().unwrap());
    for name in ["mixtral", "qwen3_moe", "phi3", "qwen2_embedding", "gpt2", "llama_biases", "gpt_neox"] {
        let (model, adapter) = case(name);
        let adapter = without_base(&adapter, dir.path());
        if name == "llama_biases" {
            change_tensors(&adapter, |all| all.retain(|tensor| !tensor.name.ends_with("bias")));
        }
        let ([batch, tokens], ids, _) = ids_of(name);
        let path = dir.path().join(format!("{name}.gguf"));
        packed(&model, &adapter, &path);
        assert!(Adapter::is_at(&path) && Adapter::is_at(&adapter) && !Adapter::is_at(&model));
        let of = |adapter: PathBuf| {
            logits(&opened(&model, &[(adapter, 1.5)], &device, false).unwrap(), [batch, tokens], &ids)
        };
        assert_eq!(of(path), of(adapter), "{name}");
    }
}

#[test]
fn adapters_add_and_have_factors() {
    let device = quickly_built().unwrap();
    let (model, adapter) = case("llama");
    let other = goldens("lora", "llama_root");
    let (dims, ids, expected) = ids_of("llama");
    let of = |all: &[(&PathBuf, f32)]| {
        let all: Vec<_> = all.iter().map(|(path, scale)| ((*path).clone(), *scale)).collect();
        opened(&model, &all, &device, false).map(|model| logits(&model, dims, &ids))
    };
    let root = without_replaced(&adapter);
    assert!(off(&of(&[(&root.1, 0.25), (&root.1, 0.75)]).unwrap(), &expected) < 1e-5);
    assert!(off(&of(&[(&root.1, 0.0)]).unwrap(), &of(&[]).unwrap()) < 1e-7);
    let both = of(&[(&root.1, 1.0), (&other, 1.0)]).unwrap();
    assert!(off(&both, &expected) > 0.01);
    assert!(off(&both, &of(&[(&other, 1.0), (&root.1, 1.0)]).unwrap()) < 1e-5);
    // Both adapters replace the head.
    let error = message(of(&[(&adapter, 1.0), (&adapter, 1.0)]));
    assert!(error.contains("lm_head.base_layer.weight was already replaced by another adapter"), "{error}");
}

fn without_replaced(adapter: &Path) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = without_base(adapter, dir.path());
    (dir, path)
}

#[test]
fn adapters_are_described() {
    let about = Adapter::open(&case("llama").1).unwrap().about();
    assert_eq!((about.format, about.alpha, about.base.as_deref()), ("PEFT", 6.0, Some("netcl/llama")));
    let target = |name: &str| about.targets[name];
    assert_eq!(
        (target("q_proj").count, target("q_proj").ranks, target("q_proj").factors),
        (2, [3, 3], [2.0, 2.0])
    );
    assert_eq!((target("down_proj").ranks, target("down_proj").factors), ([4, 5], [1.2, 1.5]));
    assert_eq!(target("v_proj").factors, [0.625; 2]);
    assert_eq!(about.wholes, ["lm_head.weight"]);
    let root = Adapter::open(&case("llama_root").1).unwrap().about();
    assert_eq!(root.targets["q_proj"].count, 1);
    assert!((root.targets["q_proj"].factors[0] - 3.0 / 5f64.sqrt()).abs() < 1e-12);
}

/// Changes an adapter, loads it, and checks for words in the error.
fn refused(change: &dyn Fn(&Path), parts: &[&str]) {
    let device = quickly_built().unwrap();
    let (model, adapter) = case("llama_root");
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("wrong");
    copied(&adapter, &folder);
    change(&folder);
    let error = message(opened(&model, &[(folder.clone(), 1.0)], &device, false));
    for part in parts {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(error.contains("wrong"), "{error}");
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let q = "layers.1.self_attn.q_proj";
    let rename = |from: &'static str, to: &'static str| {
        move |folder: &Path| {
            change_tensors(folder, |all| all.iter_mut().for_each(|t| t.name = t.name.replace(from, to)))
        }
    };
    refused(
        &|folder| change_tensors(folder, |all| all.retain(|t| !t.name.contains("q_proj.lora_B"))),
        &[q, "lora_A.weight [5, 32] does not have a matching B"],
    );
    refused(
        &|folder| change_tensors(folder, |all| all.retain(|t| !t.name.contains("q_proj.lora_A"))),
        &["does not have a matching A"],
    );
    refused(
        &rename("q_proj", "z_proj"),
        &["layers.1.self_attn.z_proj", "does not have a slot for it", "llama"],
    );
    refused(&rename("layers.1", "layers.7"), &["layers.7.", "does not have a slot for it"]);
    refused(&rename("base_model.", ""), &["begin with base_model.model."]);
    refused(&rename("lora_A", "lora_C"), &["lora_C", "an unsupported tensor"]);
    refused(&rename("q_proj", "k_proj"), &["k_proj.lora_B.weight has shape [32, 5], expected [16, 5]"]);
    refused(&|folder| std::fs::write(folder.join(peft::CONFIG), "{").unwrap(), &["adapter_config.json"]);
    refused(
        &|folder| std::fs::remove_file(folder.join(peft::WEIGHTS)).unwrap(),
        &["adapter_model.safetensors"],
    );
    refused(
        &|folder| {
            change_tensors(folder, |all| {
                all[0].bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
            })
        },
        &["values that are not numbers"],
    );
    refused(
        &|folder| change_tensors(folder, |all| all.iter_mut().for_each(|t| t.dtype = FileDtype::I32)),
        &["I32"],
    );
    refused(&|folder| change_tensors(folder, Vec::clear), &["an adapter without tensors"]);
}

#[test]
fn fields_that_are_wrong_are_named() {
    let field =
        |name: &'static str, value: Value| move |folder: &Path| change_config(folder, name, value.clone());
    refused(&field("r", json!(4)), &["[5, 32], expected (4, in)"]);
    refused(&field("r", json!(0)), &["r is 0, expected a whole number above 0"]);
    refused(&field("lora_alpha", json!("much")), &["lora_alpha is \"much\", expected a number"]);
    refused(&field("peft_type", json!("LOHA")), &["peft_type is \"LOHA\""]);
    refused(&field("use_dora", json!(true)), &["use_dora is true"]);
    refused(&field("target_parameters", json!(["mlp.experts"])), &["target_parameters"]);
    refused(&field("init_lora_weights", json!("pissa_niter_4")), &["init_lora_weights is \"pissa_niter_4\""]);
    refused(&field("use_quantum", json!(1)), &["netcl does not know the field use_quantum"]);
    refused(
        &field("rank_pattern", json!({ "(": 3 })),
        &["rank_pattern", "pattern that netcl does not support"],
    );
    refused(&field("rank_pattern", json!({ "q_proj": 2.5 })), &["rank_pattern", "no number for \"q_proj\""]);
}

#[test]
fn gguf_adapters_that_do_not_fit_are_named() {
    let (device, dir) = (quickly_built().unwrap(), tempfile::tempdir().unwrap());
    let (model, adapter) = case("llama_root");
    let path = dir.path().join("a.gguf");
    packed(&model, &adapter, &path);
    let file = crate::gguf::Gguf::open(&path).unwrap();
    let with = |key: &str, value: Option<Meta>| {
        let mut plan = Plan::default();
        for found in file.keys() {
            let (name, kind, bytes) = found.unwrap();
            if name != key {
                plan.set(name, Meta::Raw(kind, bytes.into()));
            }
        }
        if let Some(value) = value {
            plan.set(key, value);
        }
        let tensors: Vec<_> = file.tensors().collect();
        plan.tensors = tensors
            .iter()
            .map(|t| TensorToWrite { name: t.name.into(), dims: t.shape().to_vec(), format: t.format })
            .collect();
        let to = dir.path().join("b.gguf");
        plan.write(&to, |i, out| {
            out.write_all(tensors[i].bytes).unwrap();
            Ok(())
        })
        .unwrap();
        message(opened(&model, &[(to, 1.0)], &device, false))
    };
    let text = |text: &str| Some(Meta::Str(text.into()));
    for (error, part) in [
        (with("general.type", text("model")), "general.type is \"model\", expected \"adapter\""),
        (with("adapter.type", None), "adapter.type is missing"),
        (
            with("general.architecture", text("qwen2")),
            "general.architecture is \"qwen2\", but the model's is \"llama\"",
        ),
        (with("adapter.lora.alpha", None), "adapter.lora.alpha"),
        (
            with("adapter.alora.invocation_tokens", Some(Meta::U32(1))),
            "netcl does not know the key adapter.alora.invocation_tokens",
        ),
    ] {
        assert!(error.contains(part) && error.contains("b.gguf"), "{part}: {error}");
    }
    let error = message(opened(&goldens("decoder", "qwen3"), &[(path, 1.0)], &device, false));
    assert!(error.contains("\"llama\"") && error.contains("\"qwen3\""), "{error}");
}

/// Adapters of single experts of a model: a folder with merged weights, a PEFT folder, and one stack in a GGUF file.
fn of_experts(model: &Path, dir: &Path) -> [PathBuf; 3] {
    let (experts, rank, [rows, columns], alpha) = (4usize, 2usize, [40usize, 32usize], 3.0f32);
    let value = |seed: usize, i: usize| ((seed * 7919 + i * 104_729) % 1009) as f32 / 1009.0 - 0.5;
    let values = |seed: usize, n: usize| (0..n).map(|i| value(seed, i)).collect::<Vec<f32>>();
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let (mut adapter, mut all) = (Vec::new(), read_tensors(&model.join("model.safetensors")).unwrap());
    let (mut stacked_a, mut stacked_b) = (Vec::new(), Vec::new());
    for expert in 0..experts {
        let place = format!("model.layers.1.block_sparse_moe.experts.{expert}.w1");
        let (a, b) = (values(2 * expert, rank * columns), values(2 * expert + 1, rows * rank));
        let tensor = all.iter_mut().find(|tensor| tensor.name == format!("{place}.weight")).unwrap();
        let mut merged = tensor.floats().unwrap();
        for (i, v) in merged.iter_mut().enumerate() {
            let (row, column) = (i / columns, i % columns);
            let sum: f32 = (0..rank).map(|k| b[row * rank + k] * a[k * columns + column]).sum();
            *v += sum * alpha / rank as f32;
        }
        tensor.bytes = bytes(&merged);
        for (end, shape, values) in [("lora_A", vec![rank, columns], &a), ("lora_B", vec![rows, rank], &b)] {
            let (name, dtype) = (format!("base_model.model.{place}.{end}.weight"), FileDtype::F32);
            adapter.push(TensorData { name, dtype, shape, bytes: bytes(values) });
        }
        stacked_a.extend(a);
        stacked_b.extend(b);
    }
    let [merged, peft] = ["merged", "peft"].map(|name| dir.join(name));
    std::fs::create_dir_all(&merged).unwrap();
    std::fs::create_dir_all(&peft).unwrap();
    std::fs::copy(model.join("config.json"), merged.join("config.json")).unwrap();
    write_tensors(&merged.join("model.safetensors"), &all).unwrap();
    write_tensors(&peft.join(peft::WEIGHTS), &adapter).unwrap();
    let config = json!({ "peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": ["w1"] });
    std::fs::write(peft.join(peft::CONFIG), config.to_string()).unwrap();
    let stack = stacked(
        dir,
        alpha,
        [(vec![experts, rank, columns], stacked_a), (vec![experts, rows, rank], stacked_b)],
    );
    [merged, peft, stack]
}

/// A and B of all experts' gates.
fn stacked(dir: &Path, alpha: f32, parts: [(Vec<usize>, Vec<f32>); 2]) -> PathBuf {
    let packed = dir.join("stacked.gguf");
    let mut plan = Plan::default();
    for (key, value) in
        [("general.type", "adapter"), ("general.architecture", "llama"), ("adapter.type", "lora")]
    {
        plan.set(key, Meta::Str(value.into()));
    }
    plan.set("adapter.lora.alpha", Meta::F32(alpha));
    for (end, (dims, _)) in ["a", "b"].into_iter().zip(&parts) {
        let name = format!("blk.1.ffn_gate_exps.weight.lora_{end}");
        plan.tensors.push(TensorToWrite { name, dims: dims.clone(), format: &F32 });
    }
    plan.write(&packed, |i, out| {
        parts[i].1.iter().for_each(|v| out.write_all(&v.to_le_bytes()).unwrap());
        Ok(())
    })
    .unwrap();
    packed
}

/// Compares adapters of individual experts, with PEFT's names and stacked in GGUF files, with weights that the test merges.
#[test]
fn experts_take_adapters() {
    let (device, dir) = (quickly_built().unwrap(), tempfile::tempdir().unwrap());
    let model = goldens("decoder", "mixtral");
    let [merged, peft, packed] = of_experts(&model, dir.path());
    let ([batch, tokens], ids, _) = ids_of("mixtral");
    let of = |model: &Path, adapters: &[(PathBuf, f32)]| {
        logits(&opened(model, adapters, &device, false).unwrap(), [batch, tokens], &ids)
    };
    let (expected, plain) = (of(&merged, &[]), of(&model, &[]));
    assert!(off(&plain, &expected) > 0.01);
    let with = of(&model, &[(peft.clone(), 1.0)]);
    assert!(off(&with, &expected) < 1e-5, "{}", off(&with, &expected));
    assert_eq!(of(&model, &[(packed, 1.0)]), with);
    // The merged model is also written to both layouts.
    for target in [OutputFormat::Gguf, OutputFormat::Folder] {
        let to = dir.path().join(if target == OutputFormat::Gguf { "out.gguf" } else { "out" });
        quantised(&model, &[(peft.clone(), 1.0)], &to, target, "f32");
        assert!(off(&of(&to, &[]), &with) < 1e-6, "{target:?}");
    }
}
