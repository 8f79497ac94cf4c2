use super::*;
use crate::gguf::{Gguf, Meta, Plan, TensorToWrite};
use netcl_model::checkpoint::{FileDtype, TensorData, read_tensors, write_tensors};
use netcl_tensor::quant::{self, F32, Format};
use netcl_tensor::{Error, Result};
use netcl_test_data::{needs_data, test_data};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Returns the path of test data.
fn shared(path: &str) -> PathBuf {
    test_data!().join(path)
}

/// Tiny models of every family, with random weights.
fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/decoder").join(name)
}

fn quietly(from: &Source, to: &Path, target: OutputFormat, mix: &str) -> Result<()> {
    let options = WriteOptions { mix: Mix::named(mix)?, importance: None };
    convert(from, to, target, &options, &mut |_| Ok(()))
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("an error").message().to_owned()
}

/// Returns the tensors of a folder by name.
fn tensors(folder: &Path) -> BTreeMap<String, TensorData> {
    let all = read_tensors(&folder.join("model.safetensors")).unwrap();
    all.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect()
}

/// Returns a model folder with weights of another type.
fn retyped(from: &Path, to: &Path, dtype: FileDtype, format: &'static Format) {
    std::fs::create_dir_all(to).unwrap();
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    if json["model_type"] == "smollm3" {
        // GGUF files do not have a key for other patterns.
        json["no_rope_layer_interval"] = 4.into();
        json.as_object_mut().unwrap().remove("no_rope_layers");
    }
    if json["model_type"] == "gpt_neox" || json["model_type"] == "starcoder2" {
        // GGUF files do not have a key for the activation either.
        json["hidden_act"] =
            if json["model_type"] == "gpt_neox" { "gelu" } else { "gelu_pytorch_tanh" }.into();
    }
    std::fs::write(to.join("config.json"), json.to_string()).unwrap();
    let one = |tensor: TensorData| {
        let values = tensor.floats().unwrap();
        let mut bytes = vec![0; format.size(values.len()).unwrap()];
        format.quantise(&values, values.len().max(1), None, &mut bytes).unwrap();
        TensorData { dtype, bytes, ..tensor }
    };
    let all: Vec<_> = tensors(from).into_values().map(one).collect();
    write_tensors(&to.join("model.safetensors"), &all).unwrap();
}

const FAMILIES: [&str; 21] = [
    "gpt2",
    "llama",
    "llama3",
    "llama_linear",
    "mistral",
    "mixtral",
    "mixtral_balanced",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma2",
    "gemma3",
    "phi3",
    "olmo2",
    "smollm3",
    "granite",
    "qwen3_moe_step",
    "gpt_neox",
    "gpt_neox_serial",
    "starcoder2",
    "starcoder2_plain",
];

/// Hugging Face → GGUF → Hugging Face, in each type.
fn there_and_back(name: &str) {
    for (mix, dtype, format) in [
        ("f32", FileDtype::F32, &quant::F32),
        ("f16", FileDtype::F16, &quant::F16),
        ("bf16", FileDtype::BF16, &quant::BF16),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let [from, file, to, again] = ["in", "m.gguf", "out", "n.gguf"].map(|name| dir.path().join(name));
        retyped(&tiny(name), &from, dtype, format);
        let source = Source::open(&from).unwrap();
        quietly(&source, &file, OutputFormat::Gguf, mix).unwrap();
        let middle = Source::open(&file).unwrap();
        assert_eq!(middle.architecture, source.architecture, "{name}");
        quietly(&middle, &to, OutputFormat::Folder, mix).unwrap();
        let (before, after) = (tensors(&from), tensors(&to));
        for (tensor, found) in &after {
            let expected = before.get(tensor).unwrap_or_else(|| panic!("{name}: {tensor} was missing"));
            assert_eq!(found, expected, "{name} {mix}: {tensor}");
        }
        // Only the second copy of a tied table is missing afterwards.
        let gone: Vec<_> = before.keys().filter(|tensor| !after.contains_key(*tensor)).collect();
        assert!(gone.iter().all(|name| *name == "lm_head.weight"), "{name}: {gone:?}");
        // The result is the same model.
        let back = Source::open(&to).unwrap();
        quietly(&back, &again, OutputFormat::Gguf, mix).unwrap();
        let [one, two] = [&file, &again].map(|path| Gguf::open(path).unwrap());
        for tensor in one.tensors() {
            let other = two.tensor(tensor.name).unwrap();
            assert_eq!(
                (tensor.shape(), tensor.format, tensor.bytes),
                (other.shape(), other.format, other.bytes),
                "{name}"
            );
        }
    }
}

#[test]
fn every_family_comes_back_to_the_bit() {
    for name in FAMILIES {
        there_and_back(name);
    }
}

/// Rows of queries and keys are where llama.cpp expects them, in a file from llama.cpp's own tools.
#[needs_data("models/stories260K")]
#[test]
fn a_folder_becomes_the_file_that_others_made_of_it() {
    let folder = shared("models/stories260K/hf");
    let file = shared("models/stories260K/gguf/stories260K-f32.gguf");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    quietly(&Source::open(&folder).unwrap(), &path, OutputFormat::Gguf, "f32").unwrap();
    let [ours, theirs] = [&path, &file].map(|path| Gguf::open(path).unwrap());
    assert_eq!(ours.len(), theirs.len());
    for tensor in theirs.tensors() {
        let own = ours.tensor(tensor.name).unwrap();
        assert_eq!(
            (own.shape(), own.format, own.bytes),
            (tensor.shape(), tensor.format, tensor.bytes),
            "{}",
            tensor.name
        );
    }
    for key in theirs.keys() {
        let (name, kind, bytes) = key.unwrap();
        if ["general.name", "general.quantization_version"].contains(&name) {
            continue;
        }
        let own = ours.keys().map(Result::unwrap).find(|(known, ..)| *known == name);
        let (_, own_kind, own_bytes) = own.unwrap_or_else(|| panic!("no key {name}"));
        assert_eq!((own_kind, own_bytes), (kind, bytes), "{name}");
    }
}

/// The formats that llama.cpp's tools chose for each tensor equal those of the rules here.
#[needs_data("models/stories260K", "models/stories260K-w256")]
#[test]
fn mixes_are_those_of_llama_cpp() {
    for (base, folder, mixes) in [
        (
            "stories260K",
            "stories260K",
            &["f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k_m"][..],
        ),
        ("stories260K-w256", "stories260K-w256", &["q4_0", "q5_k_m", "q8_0"][..]),
    ] {
        for mix in mixes {
            let path = shared(&format!("models/{folder}/gguf/{base}-{mix}.gguf"));
            let source = Source::open(&path).unwrap();
            let expected = Mix::named(mix).unwrap().formats(&source, false);
            for (tensor, format) in source.placed.iter().zip(expected) {
                assert_eq!(source.format(tensor).unwrap(), format, "{base} {mix} {}", tensor.name);
            }
        }
    }
}

/// Compares each mix's format of a tensor with its rule. A file has one layer with a tensor wide enough for every format, and the layer count of a
/// larger model.
#[test]
fn rules_of_mixes() {
    let name = |mix: &str, tensor: &str, layers: usize, grouped: usize| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        write_llama(&path, layers, grouped, 256);
        let source = Source::open(&path).unwrap();
        let formats = Mix::named(mix).unwrap().formats(&source, false);
        let found = source.placed.iter().zip(formats).find(|(placed, _)| placed.name == tensor);
        found.unwrap().1.name
    };
    for (mix, tensor, layers, grouped, expected) in [
        ("q4_k_m", "blk.0.attn_v.weight", 16, 1, "Q6_K"),
        ("q4_k_m", "blk.2.attn_v.weight", 16, 1, "Q4_K"),
        ("q4_k_m", "blk.4.ffn_down.weight", 16, 1, "Q6_K"),
        ("q4_k_s", "blk.3.attn_v.weight", 16, 1, "Q5_K"),
        ("q4_k_s", "blk.2.ffn_down.weight", 16, 1, "Q4_K"),
        ("q3_k_m", "blk.1.attn_v.weight", 16, 1, "Q5_K"),
        ("q3_k_m", "blk.9.attn_output.weight", 16, 1, "Q4_K"),
        ("q3_k_l", "blk.9.ffn_down.weight", 16, 1, "Q5_K"),
        ("q2_k", "blk.9.attn_v.weight", 16, 1, "Q3_K"),
        ("q2_k", "blk.9.attn_v.weight", 16, 4, "Q4_K"),
        ("q2_k", "token_embd.weight", 16, 1, "Q2_K"),
        ("q2_k", "output.weight", 16, 1, "Q6_K"),
        ("q8_0", "output.weight", 16, 1, "Q8_0"),
        ("iq4_nl", "blk.0.ffn_down.weight", 16, 1, "Q5_K"),
        ("q6_k", "blk.0.attn_norm.weight", 16, 1, "F32"),
        ("tq2_0", "token_embd.weight", 16, 1, "Q4_K"),
    ] {
        assert_eq!(name(mix, tensor, layers, grouped), expected, "{mix} {tensor}");
    }
    assert_eq!(Mix::named("Q4_K").unwrap().name, "q4_k_m");
    assert!(message(Mix::named("q4_7")).contains("the types are f32, f16, bf16, q8_0"));
}

/// Returns a Llama with weights of a pattern, as GGUF.
fn write_llama(path: &Path, layers: usize, grouped: usize, width: usize) -> Plan {
    let mut plan = Plan::default();
    plan.set("general.architecture", Meta::Str("llama".into()));
    for (key, value) in [
        ("block_count", layers),
        ("context_length", 64),
        ("embedding_length", width),
        ("feed_forward_length", width),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 4 / grouped),
    ] {
        plan.set(format!("llama.{key}"), Meta::U32(value as u32));
    }
    plan.set("llama.attention.layer_norm_rms_epsilon", Meta::F32(1e-5));
    let (kv, mut all) = (width / grouped, vec![("token_embd".to_owned(), vec![32, width])]);
    all.extend([("output_norm".to_owned(), vec![width]), ("output".to_owned(), vec![32, width])]);
    for i in 0..layers {
        for (name, dims) in [
            ("attn_norm", vec![width]),
            ("ffn_norm", vec![width]),
            ("attn_q", vec![width, width]),
            ("attn_k", vec![kv, width]),
            ("attn_v", vec![kv, width]),
            ("attn_output", vec![width, width]),
            ("ffn_gate", vec![width, width]),
            ("ffn_up", vec![width, width]),
            ("ffn_down", vec![width, width]),
        ] {
            all.push((format!("blk.{i}.{name}"), dims));
        }
    }
    for (name, dims) in all {
        plan.tensors.push(TensorToWrite { name: format!("{name}.weight"), dims, format: &F32 });
    }
    put(&plan, path);
    plan
}

fn put(plan: &Plan, path: &Path) {
    let pattern = |n: usize| ((n * 7919 % 1009) as f32 - 504.0) / 1000.0;
    plan.write(path, |i, out| {
        let count = plan.tensors[i].size().unwrap() / 4;
        let bytes: Vec<u8> = (0..count).flat_map(|n| pattern(n + i).to_le_bytes()).collect();
        out.write_all(&bytes).map_err(|e| Error::io("writing", path, &e))
    })
    .unwrap();
}

#[test]
fn every_type_of_files_is_written_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let [from, to, back] = ["a.gguf", "b.gguf", "out"].map(|name| dir.path().join(name));
    write_llama(&from, 2, 2, 256);
    let source = Source::open(&from).unwrap();
    let exact = source.read(&source.placed[2]).unwrap().floats(65_536).unwrap();
    for mix in MIXES {
        quietly(&source, &to, OutputFormat::Gguf, mix.name).unwrap();
        let file = Gguf::open(&to).unwrap();
        assert_eq!(file.size("general.file_type").unwrap(), Some(mix.number as usize), "{}", mix.name);
        let made = Source::open(&to).unwrap();
        let found = made.read(&made.placed[2]).unwrap().floats(65_536).unwrap();
        let square = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        let off: Vec<f32> = exact.iter().zip(&found).map(|(a, b)| a - b).collect();
        let share = (square(&off) / square(&exact)).sqrt();
        // A uniform distribution of b bits has an error of 2^-b / √3 of its width; ternary formats have more.
        let limit = if mix.base.bits() < 3.0 { 0.5 } else { 2f64.powf(1.0 - mix.base.bits().min(8.0)) };
        assert!(share <= limit, "{}: {share} of {limit}", mix.name);
        quietly(&made, &back, OutputFormat::Folder, "f16").unwrap();
    }
    assert!(
        message(quietly(&source, &back, OutputFormat::Folder, "q4_0"))
            .contains("a folder supports f32, f16 or bf16")
    );
}

#[test]
fn an_importance_matrix_moves_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let [from, to, plain, dat] = ["a.gguf", "b.gguf", "c.gguf", "m.dat"].map(|name| dir.path().join(name));
    write_llama(&from, 1, 1, 256);
    let source = Source::open(&from).unwrap();
    let (name, heavy) = ("blk.0.attn_q.weight", |i: usize| if i.is_multiple_of(8) { 100.0 } else { 1.0f32 });
    let mut bytes = [1i32.to_le_bytes(), (name.len() as i32).to_le_bytes()].concat();
    bytes.extend(name.bytes());
    bytes.extend([3i32.to_le_bytes(), 256i32.to_le_bytes()].concat());
    bytes.extend((0..256).flat_map(|i| (3.0 * heavy(i)).to_le_bytes()));
    std::fs::write(&dat, &bytes).unwrap();
    let importance = Importance::open(&dat).unwrap();
    assert_eq!(importance.weights[name][..3], [100.0, 1.0, 1.0]);
    let mix = Mix::named("q4_k_s").unwrap();
    convert(
        &source,
        &to,
        OutputFormat::Gguf,
        &WriteOptions { mix, importance: Some(&importance) },
        &mut |_| Ok(()),
    )
    .unwrap();
    quietly(&source, &plain, OutputFormat::Gguf, "q4_k_s").unwrap();
    let at = source.placed.iter().position(|placed| placed.name == name).unwrap();
    let exact = source.read(&source.placed[at]).unwrap().floats(65_536).unwrap();
    let [with, without] = [&to, &plain].map(|path| {
        let made = Source::open(path).unwrap();
        let found = made.read(&made.placed[at]).unwrap().floats(65_536).unwrap();
        let error = |i: usize| f64::from(heavy(i % 256)) * f64::from(exact[i] - found[i]).powi(2);
        (0..65_536).map(error).sum::<f64>()
    });
    assert!(with < 0.8 * without, "{with} {without}");
    std::fs::write(&dat, &bytes[..40]).unwrap();
    assert!(message(Importance::open(&dat)).contains("m.dat: cut off"));
}

#[test]
fn what_does_not_fit_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let good = write_llama(&path, 1, 1, 32);
    let with = |change: &dyn Fn(&mut Plan)| {
        let mut plan = good.clone();
        change(&mut plan);
        put(&plan, &path);
        message(Source::open(&path))
    };
    for (found, part) in [
        (
            with(&|p| p.set("general.architecture", Meta::Str("mamba".into()))),
            "architecture \"mamba\" in GGUF files is not supported; netcl supports gpt2, llama, qwen2",
        ),
        (
            with(&|p| p.keys.retain(|k| k.0 != "llama.block_count")),
            "llama.block_count is missing, expected a whole number",
        ),
        (with(&|p| p.set("llama.block_count", Meta::U32(2))), "the tensor blk.1.attn_norm.weight is missing"),
        (with(&|p| p.set("llama.block_count", Meta::U32(u32::MAX))), "the number of layers is 4294967295"),
        (with(&|p| p.set("llama.attention.head_count", Meta::U32(0))), "num_attention_heads is 0"),
        (
            with(&|p| p.set("llama.feed_forward_length", Meta::U32(31))),
            "blk.0.ffn_gate.weight has shape [32, 32], expected [31, 32]",
        ),
        (
            with(&|p| p.set("llama.expert_shared_count", Meta::U32(1))),
            "netcl does not know the key llama.expert_shared_count",
        ),
        (
            with(&|p| p.set("llama.rope.scaling.type", Meta::Str("dynamic".into()))),
            "llama.rope.scaling.type is dynamic with no factor",
        ),
        (
            with(&|p| p.set("llama.attention.causal", Meta::Bool(false))),
            "llama.attention.causal is false: tokens of this model see later ones too",
        ),
        (
            with(&|p| p.set("general.type", Meta::Str("adapter".into()))),
            "contains an adapter instead of a model",
        ),
        (with(&|p| p.set("llama.attention.value_length", Meta::U32(4))), "m.gguf"),
        (
            with(&|p| p.tensors[5].name = "blk.0.extra.weight".into()),
            "the tensor blk.0.attn_q.weight is missing",
        ),
        (
            with(&|p| {
                p.tensors.push(TensorToWrite {
                    name: "blk.0.attn_x.weight".into(),
                    dims: vec![4],
                    format: &F32,
                })
            }),
            "blk.0.attn_x.weight: a llama model of 1 layers does not have a slot for it",
        ),
    ] {
        assert!(found.contains(part) && found.contains("m.gguf"), "{found} has not: {part}");
    }
}

/// Accepts a key that has its default value, and one that is read for embeddings.
#[test]
fn keys_with_usual_values_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut usual = write_llama(&path, 1, 1, 32);
    usual.set("llama.attention.causal", Meta::Bool(true));
    usual.set("llama.pooling_type", Meta::U32(3));
    put(&usual, &path);
    Source::open(&path).unwrap();
}

#[test]
fn a_pattern_of_layers_that_gguf_cannot_describe_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let pattern = Source::open(&tiny("smollm3")).unwrap();
    let refused = message(quietly(&pattern, &dir.path().join("m.gguf"), OutputFormat::Gguf, "f32"));
    assert!(
        refused.contains(
            "GGUF files cannot describe this model: the format does not have a key for its pattern of layers"
        ),
        "{refused}"
    );
}

/// pip's `gguf` reads files written here bit-exactly.
#[test]
fn the_python_package_reads_our_files() {
    let python = std::env::var("NETCL_PYTHON").unwrap_or_else(|_| "python3".into());
    let runs = |script: &str, path: &Path| {
        std::process::Command::new(&python).arg("-c").arg(script).arg(path).output()
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    if !runs("import gguf.quants", &path).is_ok_and(|out| out.status.success()) {
        println!("skipped: {python} lacks gguf; set NETCL_PYTHON to a Python that has it");
        return;
    }
    let from = dir.path().join("a.gguf");
    write_llama(&from, 2, 2, 256);
    let source = Source::open(&from).unwrap();
    let script = "import sys, zlib, gguf, numpy as np\nr = gguf.GGUFReader(sys.argv[1])\nfor t in r.tensors:\n    \
                  y = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)\n    \
                  print(t.name, zlib.crc32(np.ascontiguousarray(y).tobytes()))";
    for mix in ["f32", "f16", "bf16", "q4_k_m", "q3_k_l", "q2_k", "q4_1", "iq4_xs", "tq1_0"] {
        quietly(&source, &path, OutputFormat::Gguf, mix).unwrap();
        let out = runs(script, &path).unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let made = Gguf::open(&path).unwrap();
        let mut expected = String::new();
        for tensor in made.tensors() {
            let values = tensor.format.dequantised(tensor.bytes, tensor.count()).unwrap();
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            expected += &format!("{} {}\n", tensor.name, crc32(&bytes));
        }
        assert_eq!(String::from_utf8_lossy(&out.stdout), expected, "{mix}");
    }
}

/// Same as zlib.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 },
        )
    };
    !bytes.iter().fold(!0, step)
}
