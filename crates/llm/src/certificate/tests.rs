use super::*;
use crate::gguf::{Gguf, Meta, Plan, TensorToWrite};
use crate::model::adapter::Adapter;
use crate::model::{Mix, OutputFormat, WriteOptions, convert};
use netcl_model::checkpoint::{read_tensors, write_tensors};
use netcl_tensor::suite::quickly_built;

const TEMPLATE: &str = "{% for message in messages %}{{ message.role + ': ' + message.content + eos_token }}{% endfor %}assistant: ";

fn goldens(part: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(part)
}

/// A byte-level tokenizer of a few letters, and the id of its begin token, before that of its end token.
fn tokenizer() -> (usize, Json) {
    let letters = "abcdefghijklmnopqrstuvwxyzABHISW:,.!?ĠĊ".chars().map(String::from);
    let tokens: Vec<String> = letters.chain(["th".into(), "<s>".into(), "</s>".into()]).collect();
    let first = tokens.len() - 2;
    let added = |id: usize| json!({ "id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true });
    let vocab: serde_json::Map<String, Json> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let json = json!({
        "version": "1.0", "added_tokens": [added(first), added(first + 1)], "normalizer": null, "pre_tokenizer": bytes, "post_processor": null,
        "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocab, "merges": ["t h"], "ignore_merges": false, "byte_fallback": false },
    });
    (first, json)
}

/// A model of PEFT's cases with a tokenizer, and its adapter in a folder with a template, as training writes it.
fn trained(dir: &Path, case: &str) -> (PathBuf, PathBuf) {
    let adapter = goldens("lora").join(case);
    let model = goldens("decoder").join(std::fs::read_to_string(adapter.join("model")).unwrap().trim());
    let [base, run] = ["base", "run"].map(|name| dir.join(format!("{case}-{name}")));
    for (from, to) in [(&model, &base), (&adapter, &run)] {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().flatten().filter(|entry| entry.path().is_file()) {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    let vocab = Source::open(&base).unwrap().config.vocab;
    let (first, json) = tokenizer();
    assert!(first + 2 <= vocab, "{case}: {vocab} tokens");
    for folder in [&base, &run] {
        std::fs::write(folder.join("tokenizer.json"), json.to_string()).unwrap();
        let settings =
            json!({ "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>" });
        std::fs::write(folder.join("tokenizer_config.json"), settings.to_string()).unwrap();
        let ends = json!({ "bos_token_id": first, "eos_token_id": first + 1 });
        std::fs::write(folder.join("generation_config.json"), ends.to_string()).unwrap();
    }
    std::fs::write(run.join("chat_template.jinja"), TEMPLATE).unwrap();
    let file = run.join("adapter_config.json");
    let mut config: Json = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    config["base_model_name_or_path"] = base.display().to_string().into();
    std::fs::write(file, config.to_string()).unwrap();
    (base, run)
}

/// Removes everything but the matrices A and B from an adapter.
fn without_whole_tensors(run: &Path) {
    let path = run.join("adapter_model.safetensors");
    let mut all = read_tensors(&path).unwrap();
    all.retain(|tensor| tensor.name.contains(".lora_"));
    write_tensors(&path, &all).unwrap();
}

fn merge(run: &Path, out: &Path, target: OutputFormat, mix: &str) {
    let options = WriteOptions { mix: Mix::named(mix).unwrap(), importance: None };
    convert(&Source::open(run).unwrap(), out, target, &options, &mut |_| Ok(())).unwrap();
}

fn whole(path: &Path, exact: Option<&Path>) -> Exported {
    Exported::Model { path: path.to_owned(), exact: exact.map(Path::to_owned) }
}

/// Writes a GGUF file again with other keys, and tensors in which two rows have changed places.
fn changed(from: &Path, to: &Path, key: Option<(&str, Option<Meta>)>, permuted: Option<&str>) {
    let file = Gguf::open(from).unwrap();
    let mut plan = Plan::default();
    for entry in file.keys() {
        let (name, kind, bytes) = entry.unwrap();
        plan.set(name, Meta::Raw(kind, bytes.into()));
    }
    match key {
        Some((name, Some(value))) => plan.set(name, value),
        Some((name, None)) => plan.keys.retain(|(known, _)| known != name),
        None => {}
    }
    let tensors: Vec<_> = file.tensors().collect();
    plan.tensors = tensors
        .iter()
        .map(|t| TensorToWrite { name: t.name.into(), dims: t.shape().to_vec(), format: t.format })
        .collect();
    let wrote = plan.write(to, |i, out| {
        let mut bytes = tensors[i].bytes.to_vec();
        if permuted.is_some_and(|name| tensors[i].name == name) {
            let row = bytes.len() / tensors[i].shape()[0];
            bytes.rotate_left(row);
        }
        out.write_all(&bytes).unwrap();
        Ok(())
    });
    wrote.unwrap();
}

fn refused(run: &Path, exported: &Exported, device: &Device, parts: &[&str]) {
    let error = certify(run, exported, device).unwrap_err();
    for part in parts {
        assert!(error.message().contains(part), "{error}");
    }
}

/// Exports of every kind are certified; a permuted tensor, another end token, a lost template and another alpha are each refused.
#[test]
fn correct_exports_pass_and_planted_faults_do_not() {
    let (device, dir) = (quickly_built().unwrap(), tempfile::tempdir().unwrap());
    let at = |name: &str| dir.path().join(name);
    let (base, run) = trained(dir.path(), "llama");
    merge(&run, &at("f32.gguf"), OutputFormat::Gguf, "f32");
    merge(&run, &at("folder"), OutputFormat::Folder, "f32");
    merge(&run, &at("half"), OutputFormat::Folder, "bf16");
    merge(&run, &at("q8.gguf"), OutputFormat::Gguf, "q8_0");
    let exact = at("f32.gguf");
    for (exported, tensors) in [
        (whole(&exact, None), false),
        (whole(&at("folder"), None), false),
        (whole(&at("half"), Some(&at("folder"))), true),
        (whole(&at("q8.gguf"), Some(&exact)), true),
    ] {
        let found = certify(&run, &exported, &device).unwrap();
        assert_eq!((found.probes, found.template, found.tensors > 0), (64, true, tensors), "{exported:?}");
        assert!(found.logits <= LOGITS && found.tokens >= 64, "{found:?}");
    }

    let eos = ("tokenizer.ggml.eos_token_id", Some(Meta::U32(3)));
    changed(&exact, &at("eos.gguf"), Some(eos), None);
    refused(&run, &whole(&at("eos.gguf"), None), &device, &["EOS is 3", "expected"]);
    changed(&exact, &at("lost.gguf"), Some(("tokenizer.chat_template", None)), None);
    refused(&run, &whole(&at("lost.gguf"), None), &device, &["the chat template is lost"]);
    let other = Some(Meta::Str(TEMPLATE.replace("assistant: ", "assistant:")));
    changed(&exact, &at("other.gguf"), Some(("tokenizer.chat_template", other)), None);
    refused(&run, &whole(&at("other.gguf"), None), &device, &["probe 0: the text of the prompt is"]);
    changed(&exact, &at("rows.gguf"), None, Some("blk.0.attn_q.weight"));
    refused(&run, &whole(&at("rows.gguf"), None), &device, &["probe 0: the logits", "differ by"]);
    changed(&at("q8.gguf"), &at("q8rows.gguf"), None, Some("blk.0.ffn_down.weight"));
    refused(&run, &whole(&at("q8rows.gguf"), Some(&exact)), &device, &["blk.0.ffn_down.weight differs"]);
    // The weights without the adapter.
    merge(&base, &at("base.gguf"), OutputFormat::Gguf, "f32");
    let texts = ("tokenizer.chat_template", Some(Meta::Str(TEMPLATE.into())));
    changed(&at("base.gguf"), &at("unmerged.gguf"), Some(texts), None);
    refused(&run, &whole(&at("unmerged.gguf"), None), &device, &["the logits"]);
}

/// A GGUF adapter gives the logits of the PEFT adapter that it was written from, for all families; one with another alpha is refused.
#[test]
fn gguf_adapters_are_those_of_peft() {
    let (device, dir) = (quickly_built().unwrap(), tempfile::tempdir().unwrap());
    for case in ["llama", "llama_root", "mixtral", "phi3", "gpt_neox", "qwen3_moe"] {
        let (base, run) = trained(dir.path(), case);
        without_whole_tensors(&run);
        std::fs::copy(run.join("chat_template.jinja"), base.join("chat_template.jinja")).unwrap();
        let path = dir.path().join(format!("{case}.gguf"));
        let config = Source::open(&base).unwrap().config;
        Adapter::open(&run).unwrap().write_gguf(&config, case, &path).unwrap();
        let exported = |path: &Path| Exported::Adapter { path: path.to_owned(), base: base.clone() };
        let found = certify(&run, &exported(&path), &device).map_err(|e| format!("{case}: {e}")).unwrap();
        assert!(found.logits <= LOGITS, "{case} {found:?}");
        let wrong = dir.path().join("wrong.gguf");
        changed(&path, &wrong, Some(("adapter.lora.alpha", Some(Meta::F32(3.5)))), None);
        refused(&run, &exported(&wrong), &device, &["the logits"]);
    }
    // If the base model does not have a template, the file loses that of the adapter.
    let (base, run) = trained(dir.path(), "llama");
    std::fs::remove_file(base.join("chat_template.jinja")).unwrap();
    let exported = Exported::Adapter { path: dir.path().join("llama.gguf"), base };
    refused(&run, &exported, &device, &["the chat template is lost"]);
}

/// Whole tensors and biases are refused, because the file cannot contain them.
#[test]
fn adapters_that_a_gguf_file_cannot_contain_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (case, what) in
        [("llama_biases", "biases"), ("qwen2_saved", "whole tensors"), ("gpt2", "embeddings of positions")]
    {
        let (base, run) = trained(dir.path(), case);
        let config = Source::open(&base).unwrap().config;
        let error =
            Adapter::open(&run).unwrap().write_gguf(&config, case, &dir.path().join("a.gguf")).unwrap_err();
        assert!(error.message().contains(what) && error.message().contains("--merge"), "{error}");
    }
}
