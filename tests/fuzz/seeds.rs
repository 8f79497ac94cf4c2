//! Undamaged seed files: created here, and from the test data next to the repository if it exists.

use netcl::llm::gguf::{Gguf, Meta, Plan, TensorToWrite};
use netcl::llm::model::{Mix, OutputFormat, Source, WriteOptions, convert};
use netcl::model::tokenizer::Tokenizer;
use netcl::tensor::quant::F32;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}<<{{ message.content | trim }}>>{% else %}\
{{ '[' + message['role'] + '] ' + message['content'] }}{{ eos_token if loop.last else '\\n' }}{% endif %}{% endfor %}\
{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}";

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

/// Returns test data; `None` if it is missing, because whole files are made here too.
fn shared(path: &str) -> Option<PathBuf> {
    let path = netcl_test_data::test_data!().join(path);
    path.exists().then_some(path)
}

/// Returns the folder of a tiny model.
pub fn decoder(name: &str) -> PathBuf {
    goldens().join("decoder").join(name)
}

/// Creates a folder with these files.
fn folder(dir: &Path, name: &str, files: &[(PathBuf, &str)]) -> PathBuf {
    let at = dir.join(name);
    std::fs::create_dir_all(&at).unwrap();
    for (from, to) in files {
        std::fs::copy(from, at.join(to)).unwrap();
    }
    at
}

/// Returns folders of undamaged files by kind.
pub fn all(dir: &Path) -> BTreeMap<&'static str, Vec<PathBuf>> {
    let mut all: BTreeMap<&'static str, Vec<PathBuf>> = BTreeMap::new();
    let mut add = |kind, path| all.entry(kind).or_default().push(path);
    let mut made = Vec::new();
    for name in ["llama", "gpt2", "qwen2", "mixtral", "gemma2", "phi3"] {
        let from = goldens().join("decoder").join(name);
        let files = ["config.json", "model.safetensors"].map(|file| (from.join(file), file));
        let at = folder(dir, &format!("folder-{name}"), &files);
        made.push((name, at.clone()));
        add("folder", at);
    }
    let sharded = goldens().join("gpt_variants/sharded");
    let names: Vec<String> = std::fs::read_dir(&sharded)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".safetensors") || name.ends_with(".json"))
        .collect();
    let files: Vec<_> = names.iter().map(|name| (sharded.join(name), name.as_str())).collect();
    add("folder", folder(dir, "folder-sharded", &files));
    // A vocabulary for the smallest models, and one with many merges.
    let text =
        "all work and no play makes a dull day; the quick brown fox jumps over the lazy dog\n".repeat(30);
    for (name, size) in [("bpe", 300), ("merges", 400)] {
        let tokenizer = Tokenizer::train_bpe([text.as_str()], size).unwrap();
        let at = folder(dir, &format!("tokenizer-{name}"), &[]);
        tokenizer.save(&at).unwrap();
        add("tokenizer", at);
    }
    for (name, from) in &made {
        let at = dir.join(format!("gguf-{name}"));
        std::fs::create_dir_all(&at).unwrap();
        gguf(from, &at.join("model.gguf"));
        add("gguf", at);
    }
    let at = folder(dir, "template", &[]);
    std::fs::write(at.join("chat_template.jinja"), TEMPLATE).unwrap();
    add("template", at);
    let at = folder(dir, "imatrix-old", &[]);
    std::fs::write(at.join("imatrix.dat"), imatrix()).unwrap();
    add("imatrix", at);
    let at = folder(dir, "imatrix-gguf", &[]);
    imatrix_gguf(&at.join("imatrix.gguf"));
    add("imatrix", at);
    for name in ["llama", "llama_biases"] {
        let from = goldens().join("lora").join(name);
        let files = ["adapter_config.json", "adapter_model.safetensors"].map(|file| (from.join(file), file));
        add("adapter", folder(dir, &format!("adapter-{name}"), &files));
    }
    let at = folder(dir, "adapter-gguf", &[]);
    adapter_gguf(&at.join("adapter.gguf"));
    add("adapter", at);
    let others = super::others::seeds(dir).into_iter().chain(super::folders::seeds(dir));
    for (kind, path) in of_others(dir).into_iter().chain(others) {
        add(kind, path);
    }
    all
}

/// Returns seeds made by other programs.
fn of_others(dir: &Path) -> Vec<(&'static str, PathBuf)> {
    let mut out = Vec::new();
    if let Some(model) = shared("models/stories260K") {
        let file = (model.join("gguf/stories260K-q4_k_m.gguf"), "model.gguf");
        out.push(("gguf", folder(dir, "gguf-stories", &[file])));
        let file = |name: &'static str| (model.join("hf").join(name), name);
        let files = ["tokenizer.json", "tokenizer_config.json"].map(file);
        out.push(("tokenizer", folder(dir, "tokenizer-stories", &files)));
    }
    for entry in shared("chat-templates").and_then(|path| std::fs::read_dir(path).ok()).into_iter().flatten()
    {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "jinja") {
            let name = format!("template-{}", path.file_stem().unwrap().to_string_lossy());
            out.push(("template", folder(dir, &name, &[(path.clone(), "chat_template.jinja")])));
        }
    }
    out
}

/// Converts a folder's model to GGUF, with a vocabulary of its size and a template.
fn gguf(from: &Path, to: &Path) {
    let source = Source::open(from).unwrap();
    let options = WriteOptions { mix: Mix::named("q8_0").unwrap(), importance: None };
    let bare = to.with_extension("bare.gguf");
    convert(&source, &bare, OutputFormat::Gguf, &options, &mut |_| Ok(())).unwrap();
    let file = Gguf::open(&bare).unwrap();
    let mut plan = Plan::default();
    for key in file.keys() {
        let (name, kind, bytes) = key.unwrap();
        plan.set(name, Meta::Raw(kind, bytes.into()));
    }
    let vocab = source.config.vocab;
    let token = |i: usize| match i {
        0 => "<unk>".to_owned(),
        1 => "<s>".to_owned(),
        2 => "</s>".to_owned(),
        i => char::from_u32(93 + i as u32).map_or(String::new(), String::from),
    };
    plan.set("tokenizer.ggml.model", Meta::Str("llama".into()));
    plan.set("tokenizer.ggml.tokens", Meta::Strs((0..vocab).map(token).collect()));
    plan.set("tokenizer.ggml.scores", Meta::F32s((0..vocab).map(|i| -(i as f32)).collect()));
    let kind = |i: usize| {
        if i == 0 {
            2
        } else if i < 3 {
            3
        } else {
            1
        }
    };
    plan.set("tokenizer.ggml.token_type", Meta::I32s((0..vocab).map(kind).collect()));
    plan.set("tokenizer.ggml.bos_token_id", Meta::U32(1));
    plan.set("tokenizer.ggml.eos_token_id", Meta::U32(2));
    plan.set("tokenizer.chat_template", Meta::Str(TEMPLATE.into()));
    let tensors: Vec<_> = file.tensors().collect();
    let planned = |t: &netcl::llm::gguf::Tensor<'_>| TensorToWrite {
        name: t.name.into(),
        dims: t.shape().into(),
        format: t.format,
    };
    plan.tensors = tensors.iter().map(planned).collect();
    plan.write(to, |i, out| {
        out.write_all(tensors[i].bytes).unwrap();
        Ok(())
    })
    .unwrap();
    drop(tensors);
    drop(file);
    std::fs::remove_file(&bare).unwrap();
}

/// Returns a file in the format before GGUF: number of entries; for each entry length of its name, name, calls, number of values, values.
fn imatrix() -> Vec<u8> {
    let mut out = 3i32.to_le_bytes().to_vec();
    for name in ["blk.0.attn_q.weight", "blk.0.ffn_up.weight", "output.weight"] {
        out.extend((name.len() as i32).to_le_bytes());
        out.extend(name.as_bytes());
        out.extend(2i32.to_le_bytes());
        out.extend(32i32.to_le_bytes());
        (0..32).for_each(|i| out.extend((i as f32).to_le_bytes()));
    }
    out
}

fn imatrix_gguf(path: &Path) {
    let mut plan = Plan::default();
    plan.set("general.type", Meta::Str("imatrix".into()));
    for name in ["blk.0.attn_q.weight", "output.weight"] {
        plan.tensors.push(TensorToWrite { name: format!("{name}.in_sum2"), dims: vec![1, 32], format: &F32 });
        plan.tensors.push(TensorToWrite { name: format!("{name}.counts"), dims: vec![1, 1], format: &F32 });
    }
    let sizes: Vec<usize> = plan.tensors.iter().map(|t| t.dims.iter().product()).collect();
    plan.write(path, |i, out| {
        (0..sizes[i]).for_each(|j| out.write_all(&(j as f32 + 1.0).to_le_bytes()).unwrap());
        Ok(())
    })
    .unwrap();
}

/// Writes a GGUF adapter for the tiny Llama.
fn adapter_gguf(path: &Path) {
    let mut plan = Plan::default();
    for (key, value) in
        [("general.type", "adapter"), ("general.architecture", "llama"), ("adapter.type", "lora")]
    {
        plan.set(key, Meta::Str(value.into()));
    }
    plan.set("adapter.lora.alpha", Meta::F32(4.0));
    for (name, [rows, columns]) in [("blk.0.attn_q.weight", [32, 32]), ("blk.1.ffn_down.weight", [32, 40])] {
        let (a, b) = (vec![3, columns], vec![rows, 3]);
        plan.tensors.push(TensorToWrite { name: format!("{name}.lora_a"), dims: a, format: &F32 });
        plan.tensors.push(TensorToWrite { name: format!("{name}.lora_b"), dims: b, format: &F32 });
    }
    let sizes: Vec<usize> = plan.tensors.iter().map(|t| t.dims.iter().product()).collect();
    plan.write(path, |i, out| {
        (0..sizes[i]).for_each(|j| out.write_all(&(j as f32 * 0.01).to_le_bytes()).unwrap());
        Ok(())
    })
    .unwrap();
}
