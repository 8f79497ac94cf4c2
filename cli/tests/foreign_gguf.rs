//! GGUF files as llama.cpp's converter writes them: the tokenizer only as ggml's keys, the chat template as a key. They are fine-tuned as they are.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{device, folder, netcl, texts};
use netcl::llm::gguf::{Gguf, Meta, Plan, TensorToWrite};
use netcl::llm::tokenizer::{Specials, Tokenizer};
use netcl::model::tokenizer::Tokenizer as FileTokenizer;
use netcl_test_data::needs_data;
use serde_json::Value;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

/// Returns both streams of a command that succeeds.
pub fn run(args: &[&str]) -> (String, String) {
    let output = netcl().args(args).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{args:?}: {err}");
    (out, err)
}

/// Returns the output of a command that succeeds with this input.
fn answered(args: &[&str], input: &str) -> String {
    let mut child = netcl();
    let child = child.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let (out, err) = texts(&child.wait_with_output().unwrap());
    assert!(!out.is_empty(), "{args:?}: {err}");
    out
}

/// A template with a begin token, in which the end token ends an answer.
pub const TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}{{ message['role'] + '\\n' + message['content'] }}{% if message['role'] == \
'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant\\n' }}{% endif %}";

/// Conversations to learn by heart.
pub const RECORDS: &str = r#"{"messages": [{"role": "user", "content": "say hello"}, {"role": "assistant", "content": "hello there"}]}
{"messages": [{"role": "user", "content": "name a fruit"}, {"role": "assistant", "content": "an apple"}]}
"#;

/// Writes a model of 512 tokens as a file of llama.cpp's converter, with a vocabulary of SentencePiece or of byte pairs.
pub fn write_foreign(path: &Path, byte_pairs: bool) {
    let data = netcl_test_data::test_data!();
    let from = Gguf::open(&data.join("models/stories260K/gguf/stories260K-q8_0.gguf")).unwrap();
    let mut plan = Plan::default();
    for key in from.keys() {
        let (name, kind, bytes) = key.unwrap();
        if !byte_pairs || !name.starts_with("tokenizer.") {
            plan.set(name, Meta::Raw(kind, bytes.into()));
        }
    }
    if byte_pairs {
        byte_pair_keys(&mut plan);
    }
    if !byte_pairs {
        // The row of </s> in this model's table is 0: stories are separated by <s>, so no training can make it write </s>.
        plan.set("tokenizer.ggml.eos_token_id", Meta::U32(1));
    }
    plan.set("tokenizer.chat_template", Meta::Str(TEMPLATE.into()));
    assert!(
        plan.keys
            .iter()
            .all(|(name, _)| !name.starts_with("tokenizer.hugging") && !name.starts_with("netcl."))
    );
    let tensors: Vec<_> = from.tensors().collect();
    plan.tensors = tensors
        .iter()
        .map(|t| TensorToWrite { name: t.name.into(), dims: t.shape().to_vec(), format: t.format })
        .collect();
    plan.write(path, |i, out| {
        out.write_all(tensors[i].bytes).unwrap();
        Ok(())
    })
    .unwrap();
}

/// Sets the keys of a byte-level vocabulary: control tokens first, and a begin token that no default names.
fn byte_pair_keys(plan: &mut Plan) {
    let trained =
        FileTokenizer::train_bpe(["say hello name a fruit an apple user assistant there ".repeat(4)], 320)
            .unwrap();
    let json: Value = serde_json::from_slice(&trained.files().unwrap()[0].1).unwrap();
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![String::new(); vocab.len()];
    vocab.iter().for_each(|(token, id)| tokens[id.as_u64().unwrap() as usize].clone_from(token));
    let merge = |pair: &Value| match pair {
        Value::String(text) => text.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    };
    let merges: Vec<String> = json["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    let mut kinds = vec![1; tokens.len()];
    kinds[0] = 3;
    for name in ["<|begin|>", "<|stop|>"] {
        tokens.push(name.into());
        kinds.push(3);
    }
    let (bos, eos) = (tokens.len() as u32 - 2, tokens.len() as u32 - 1);
    for id in tokens.len()..512 {
        tokens.push(format!("[PAD{id}]"));
        kinds.push(5);
    }
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    plan.set(key("model"), Meta::Str("gpt2".into()));
    plan.set(key("pre"), Meta::Str("qwen2".into()));
    plan.set(key("tokens"), Meta::Strs(tokens));
    plan.set(key("token_type"), Meta::I32s(kinds));
    plan.set(key("merges"), Meta::Strs(merges));
    plan.set(key("bos_token_id"), Meta::U32(bos));
    plan.set(key("eos_token_id"), Meta::U32(eos));
    plan.set(key("add_bos_token"), Meta::Bool(true));
}

/// Exports a run in every form. Each is certified, and answers as the run does.
fn exported(run_folder: &str, place: &str, device: &str, eos: Option<u32>) {
    std::fs::create_dir_all(place).unwrap();
    for (name, more, form) in [
        ("peft", &[][..], "adapter, PEFT"),
        ("adapter.gguf", &[], "adapter, GGUF"),
        ("merged.gguf", &["--merge"], "model, GGUF"),
        ("q8.gguf", &["--merge", "--type", "q8_0"], "model, GGUF"),
        ("folder", &["--merge", "--type", "bf16"], "model, Hugging Face folder"),
    ] {
        let out = format!("{place}/{name}");
        let (line, _) = run(&[&["export", run_folder, &out, "--json", "--device", device], more].concat());
        let found: Value = serde_json::from_str(&line).unwrap();
        let certificate = &found["certificate"];
        assert_eq!(
            (found["form"].as_str(), certificate["probes"].as_u64()),
            (Some(form), Some(64)),
            "{line}"
        );
        assert_eq!(
            (certificate["template"].as_bool(), certificate["eos"].as_u64()),
            (Some(true), eos.map(u64::from))
        );
        assert!(certificate["logits_within"].as_f64().unwrap() <= 1e-4, "{line}");
        assert_eq!(certificate["tensors"].as_u64() > Some(0), more.contains(&"--type"), "{line}");
    }
    let merged = format!("{place}/merged.gguf");
    let said = answered(&["chat", "-m", &merged, "--device", device, "--temp", "0"], "name a fruit\n");
    assert_eq!(said.trim(), "an apple");
    // A file that exists is kept, and --type is for merged weights.
    for (args, part) in [
        (["export", run_folder, &merged, "--merge"], "--force"),
        (["export", run_folder, "/nowhere/a.gguf", "--type=q8_0"], "--merge writes the whole model"),
    ] {
        let (_, err) = texts(&netcl().args(args).output().unwrap());
        assert!(err.contains(part), "{err}");
    }
    let left = std::fs::read_dir(place).unwrap().count();
    assert_eq!(left, 5, "temporary files are left");
}

#[needs_data("models/stories260K")]
#[test]
fn a_file_of_llama_cpp_is_fine_tuned_on_conversations() {
    let dir = folder("foreign");
    let path = |name: &str| dir.join(name).display().to_string();
    let (records, device) = (path("chat.jsonl"), device());
    std::fs::write(&records, RECORDS).unwrap();
    for byte_pairs in [false, true] {
        let kind = if byte_pairs { "pairs" } else { "pieces" };
        let (base, out) = (path(&format!("{kind}.gguf")), path(kind));
        write_foreign(Path::new(&base), byte_pairs);
        let file = Gguf::open(Path::new(&base)).unwrap();
        let theirs = Tokenizer::from_gguf(&file).unwrap();
        let start = [
            "train", "--init", &base, "--data", &records, "--device", &device, "--out", &out, "--lora", "16",
        ];
        let quiet =
            ["--val-split", "0", "--eval-every", "0", "--sample-every", "0", "--batch", "2", "--lr", "1e-2"];
        run(&[&start[..], &quiet, &["--steps", "60"]].concat());

        // The checkpoint has the tokenizer, the template, and the begin and end tokens of the file.
        let checkpoint = dir.join(kind).join("checkpoints/last");
        let checkpoint =
            if checkpoint.exists() { checkpoint } else { dir.join(kind).join("checkpoints/best") };
        let ours = Tokenizer::from_folder(&checkpoint).unwrap();
        assert_eq!((ours.bos(), ours.eos(), ours.stops()), (theirs.bos(), theirs.eos(), theirs.stops()));
        for text in ["say hello", " there\n\n 12 é", "<|begin|>name</s>"] {
            let ids = |tokenizer: &Tokenizer| tokenizer.encode_prompt(text, Specials::Parsed).unwrap();
            assert_eq!(ids(&ours), ids(&theirs), "{kind} {text:?}");
        }
        assert_eq!(std::fs::read_to_string(checkpoint.join("chat_template.jinja")).unwrap(), TEMPLATE);

        // The run answers what it has learned and stops at its end token. A resumed run continues.
        let chat = ["chat", "-m", &out, "--device", &device, "--temp", "0"];
        let said = answered(&chat, "say hello\n");
        assert_eq!(said.trim(), "hello there", "{kind}");
        run(&["train", "--resume", &out, "--steps", "62", "--device", &device]);
        exported(&out, &path(&format!("{kind}-export")), &device, theirs.eos());
        let metrics = std::fs::read_to_string(dir.join(kind).join("metrics.jsonl")).unwrap();
        assert_eq!(metrics.lines().count(), 62);
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// Packed rows have the loss and the gradient of separate rows. A packed run that is resumed within an epoch has the bits of one that was not.
#[needs_data("models/stories260K")]
#[test]
fn packed_records_train_as_separate_ones() {
    let dir = folder("packed");
    let path = |name: &str| dir.join(name).display().to_string();
    let (base, records, device) = (path("base.gguf"), path("chat.jsonl"), device());
    write_foreign(Path::new(&base), false);
    let words = ["one", "two", "three", "four", "five", "six", "seven"];
    let record = |i: usize| {
        let said = words[i % 7..].join(" ");
        format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{i}\"}}, {{\"role\": \"assistant\", \"content\": \"{said}\"}}]}}\n"
        )
    };
    std::fs::write(&records, (0..8).map(record).collect::<String>()).unwrap();
    let train = |out: &str, more: &[&str]| {
        let out = path(out);
        let fixed =
            ["train", "--init", &base, "--data", &records, "--device", &device, "--out", &out, "--lora", "4"];
        let quiet =
            ["--val-split", "0", "--eval-every", "0", "--sample-every", "0", "--schedule", "constant"];
        run(&[&fixed[..], &quiet, more].concat()).1
    };
    let steps = |name: &str| -> Vec<Value> {
        let text = std::fs::read_to_string(dir.join(name).join("metrics.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    // One step of all records: in separate rows, and in one row.
    train("apart", &["--batch", "8", "--steps", "1"]);
    let told = train("row", &["--batch", "1", "--pack", "--context", "512", "--steps", "1"]);
    assert!(told.contains("packed into 1 row,") && told.contains("% full"), "{told}");
    let [apart, row] = ["apart", "row"].map(|name| steps(name).remove(0));
    for key in ["loss", "grad_norm"] {
        let [apart, row] = [&apart, &row].map(|step| step[key].as_f64().unwrap());
        assert!((apart - row).abs() <= 1e-5 * apart, "{key}: {apart} apart, {row} packed");
    }
    assert_eq!(apart["trained_tokens"], row["trained_tokens"]);

    let short = ["--batch", "1", "--grad-accum", "2", "--pack", "--context", "64", "--recompute", "block"];
    train("whole", &[&short[..], &["--steps", "6"]].concat());
    train("parts", &[&short[..], &["--steps", "3"]].concat());
    run(&["train", "--resume", &path("parts"), "--steps", "6", "--device", &device]);
    let adapter = |name: &str| {
        std::fs::read(dir.join(name).join("checkpoints/last/adapter_model.safetensors")).unwrap()
    };
    assert!(adapter("whole") == adapter("parts"), "the resumed run has other adapters");
    std::fs::remove_dir_all(dir).unwrap();
}
