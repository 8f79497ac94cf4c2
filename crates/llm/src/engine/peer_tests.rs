//! Loads files written here in llama.cpp. Logits must match, and the greedy text must be the same except where two tokens are equally likely.

use super::*;
use crate::model::{Mix, OutputFormat, Source, WriteOptions as Writing, convert};
use netcl_model::model::Continuation;
use netcl_test_data::needs_data;
use serde_json::Value;
use std::process::Command;

/// Returns a Python with llama-cpp-python, or `None` with a message on stdout.
fn python() -> Option<String> {
    let python = std::env::var("NETCL_PYTHON").unwrap_or_else(|_| "python3".into());
    let there = Command::new(&python).args(["-c", "import llama_cpp"]).output();
    if there.is_ok_and(|out| out.status.success()) {
        return Some(python);
    }
    println!(
        "skipped: {python} lacks llama_cpp (pip install llama-cpp-python); set NETCL_PYTHON to a Python that has it"
    );
    None
}

/// Tokens and first logits of each file.
type Theirs = (Vec<u32>, Vec<f32>);

fn theirs(
    python: &str,
    steps: usize,
    prompt: &[u32],
    files: &[PathBuf],
) -> std::result::Result<Vec<Theirs>, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/llama_cpp_steps.py");
    let ids = prompt.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let out = Command::new(python).arg(script).arg(steps.to_string()).arg(ids).args(files).output().unwrap();
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    let text = String::from_utf8(out.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), files.len());
    let of = |line: &Value| {
        let numbers = |name: &str| {
            line[name].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect::<Vec<_>>()
        };
        (
            numbers("tokens").iter().map(|v| *v as u32).collect(),
            numbers("logits").iter().map(|v| *v as f32).collect(),
        )
    };
    Ok(lines.iter().map(of).collect())
}

fn written(folder: &Path, to: &Path, mix: &str) {
    let source = Source::open(folder).unwrap();
    let options = Writing { mix: Mix::named(mix).unwrap(), importance: None };
    convert(&source, to, OutputFormat::Gguf, &options, &mut |_| Ok(())).unwrap();
}

fn opened(path: &Path, activations: Activations) -> LoadedModel {
    let device = netcl_tensor::suite::quickly_built().unwrap();
    let options = Options { dtype: Some(DType::F32), activations: Some(activations), ..Options::default() };
    LoadedModel::open(path, &device, options, &mut |_| Ok(())).unwrap()
}

/// Returns the distance of logits from the reference, relative to the largest, and the maximum margin by which another token was more likely than the
/// reference's.
fn compared(model: &LoadedModel, prompt: &[u32], (tokens, logits): &Theirs) -> (f32, Vec<f32>) {
    let mut text: Box<dyn Continuation + '_> = model.decoder().continuation().unwrap();
    let mut ids = prompt.to_vec();
    let first = text.logits_after(&ids).unwrap();
    let most = logits.iter().fold(0f32, |most, v| most.max(v.abs()));
    let off = first.iter().zip(logits).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max) / most;
    let (mut own, mut gaps) = (first, Vec::new());
    for token in tokens {
        let best = own.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        gaps.push((best - own[*token as usize]) / most);
        ids.push(*token);
        own = text.logits_after(&ids).unwrap();
    }
    (off, gaps)
}

/// Compares a real model with llama.cpp in every file type. Floats agree up to rounding. Quantized types agree up to the rounding of activations,
/// which both programs round to bytes.
#[needs_data("models/stories260K/hf")]
#[test]
fn llama_cpp_goes_on_in_the_same_way() {
    let Some(python) = python() else { return };
    let folder = super::tests::shared("models/stories260K/hf");
    let dir = tempfile::tempdir().unwrap();
    let mixes = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "q4_k_m", "q6_k"];
    let files: Vec<PathBuf> = mixes.iter().map(|mix| dir.path().join(format!("{mix}.gguf"))).collect();
    files.iter().zip(mixes).for_each(|(file, mix)| written(&folder, file, mix));
    let prompt = opened(&files[0], Activations::Float);
    let prompt =
        prompt.tokenizer().unwrap().encode_prompt("Once upon a time, Tom", crate::tokenizer::Specials::Plain);
    let prompt = prompt.unwrap();
    let all = theirs(&python, 48, &prompt, &files).unwrap();
    for ((mix, file), theirs) in mixes.iter().zip(&files).zip(all) {
        let plain = mix.ends_with("32") || mix.ends_with("16");
        let model = opened(file, if plain { Activations::Float } else { Activations::Int8 });
        let (off, gaps) = compared(&model, &prompt, &theirs);
        let worst = gaps.iter().copied().fold(0f32, f32::max);
        let others = gaps.iter().filter(|gap| **gap > 0.0).count();
        println!("{mix}: logits within {off:.1e}, {others} of 48 tokens differ, the largest gap {worst:.1e}");
        // llama.cpp multiplies 16-bit weights by 16-bit activations.
        let bound = if *mix == "f32" {
            1e-4
        } else if plain {
            1e-2
        } else {
            5e-2
        };
        assert!(off <= bound && worst <= bound, "{mix}: {off} {worst}");
        assert!(others <= 48 / 8, "{mix}: {others} tokens differ");
    }
}

/// A model with the standard settings of its kind, where llama.cpp supports no others. These are the factor of Gemma's scores, its rotary bases,
/// and Phi-3's rotary factors for short texts. llama.cpp selects the latter by the length of its context.
fn as_they_are_made(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    std::fs::copy(from.join("model.safetensors"), to.join("model.safetensors")).unwrap();
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    if json.get("query_pre_attn_scalar").is_some() {
        json["query_pre_attn_scalar"] = json["head_dim"].clone();
    }
    if json["model_type"] == "gemma3_text" {
        json["rope_parameters"] = serde_json::json!({
            "full_attention": { "rope_type": "default", "rope_theta": 1e6 },
            "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 },
        });
    }
    if json["model_type"] == "phi3" {
        json["rope_parameters"] = serde_json::json!({ "rope_type": "default", "rope_theta": 1e4 });
    }
    std::fs::write(to.join("config.json"), json.to_string()).unwrap();
}

/// Compares the logits after a short prompt with llama.cpp's, for every supported architecture with random weights.
#[test]
fn llama_cpp_computes_every_architecture() {
    let Some(python) = python() else { return };
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/decoder");
    let names = [
        "gpt2",
        "llama",
        "llama3",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen3",
        "gemma2",
        "gemma3",
        "phi3",
        "olmo2",
        "granite",
        "gpt_neox",
        "starcoder2",
    ];
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> = names.iter().map(|name| dir.path().join(format!("{name}.gguf"))).collect();
    for (file, name) in files.iter().zip(names) {
        let folder = dir.path().join(name);
        as_they_are_made(&goldens.join(name), &folder);
        written(&folder, file, "f32");
    }
    let prompt = [3, 17, 40, 8];
    let mut wrong = Vec::new();
    for (name, file) in names.iter().zip(files) {
        let theirs = match theirs(&python, 0, &prompt, std::slice::from_ref(&file)) {
            Ok(theirs) => theirs,
            Err(error) => {
                wrong.push(format!("{name}: {}", error.trim().lines().last().unwrap_or_default()));
                continue;
            }
        };
        let (off, _) = compared(&opened(&file, Activations::Float), &prompt, &theirs[0]);
        println!("{name}: logits within {off:.1e}");
        // GPT-NeoX's error function is approximated with tanh there.
        let bound = if *name == "gpt_neox" { 1e-2 } else { 1e-3 };
        if off > bound {
            wrong.push(format!("{name}: logits are off by {off}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
