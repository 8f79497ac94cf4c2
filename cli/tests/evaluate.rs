//! `netcl eval`: the numbers of training's own evaluation, other texts, and what it refuses.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{device, folder, netcl, texts, tiny_run, write_text};
use serde_json::Value;
use std::path::Path;

fn eval(model: &Path, flags: &[&str]) -> (i32, String, String) {
    let output = netcl().args(["eval", "--device", &device(), "-m"]).arg(model).args(flags).output().unwrap();
    let (stdout, errors) = texts(&output);
    assert!(!errors.contains("panicked") && !errors.contains("defect"), "{errors}");
    (output.status.code().unwrap(), stdout, errors)
}

fn json(model: &Path, flags: &[&str]) -> Value {
    let (code, stdout, errors) = eval(model, &[&["--json"], flags].concat());
    assert_eq!(code, 0, "{errors}");
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn the_validation_loss_of_a_run_is_found_again() {
    let dir = folder("eval-run");
    let (data, out) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    let mut args = tiny_run(&data, &out, 12);
    let layers = args.iter().position(|argument| argument == "--layers").unwrap();
    args[layers + 1] = "2".into();
    // Few of many batches, so the windows are drawn at random.
    args.extend("--eval-every 4 --checkpoint-every 0 --dropout 0 --dtype bf16".split(' ').map(Into::into));
    let output = netcl().args(&args).output().unwrap();
    let (_, errors) = texts(&output);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("validation loss ") && errors.contains(" bits per byte"), "{errors}");
    let metrics = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let steps: Vec<Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let evaluated: Vec<&Value> = steps.iter().filter(|step| step["val_loss"].is_number()).collect();
    assert_eq!(evaluated.len(), 3);
    let number = |of: &Value, key: &str| of[key].as_f64().unwrap_or_else(|| panic!("{key} in {of}"));
    for step in &evaluated {
        let (loss, perplexity) = (number(step, "val_loss"), number(step, "val_perplexity"));
        assert!((perplexity.ln() - loss).abs() < 1e-9, "{step}");
        // ASCII characters: each token is one byte.
        assert!((number(step, "val_bits_per_byte") - loss / std::f64::consts::LN_2).abs() < 1e-9, "{step}");
    }
    let best = evaluated.iter().map(|step| number(step, "val_loss")).fold(f64::INFINITY, f64::min);
    let found = json(&out, &[]);
    assert!((number(&found, "loss") - best).abs() <= 1e-6 * best, "{found}: {best} in training");
    // 2 batches of 4 windows.
    assert_eq!(
        (&found["windows"], &found["tokens"], &found["context"]),
        (&8.into(), &128.into(), &16.into())
    );
    assert!(found["stride"].is_null() && found["dtype"] == "bf16", "{found}");
    let other = number(&json(&out, &["--batch", "3"]), "loss");
    assert!((other - best).abs() <= 1e-6 * best, "{other}, {best} in training");
    // One layer on each of two devices, which are the same device here.
    let twice = format!("{0},{0}", device());
    let mut divided = netcl();
    divided.args(["eval", "--json", "--layers", "1", "--device", &twice, "-m"]).arg(&out);
    let (stdout, errors) = texts(&divided.output().unwrap());
    let divided: Value = serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {errors}"));
    assert!(divided["loss"] == found["loss"] && errors.contains("layers 0 on "), "{divided}: {errors}");
    // The whole validation part: every token except the first counts once.
    let all = json(&out, &["--stride", "4"]);
    let part = std::fs::read_to_string(&data).unwrap().len() as u64;
    let part = part - (part as f64 * 0.9) as u64;
    assert_eq!(all["tokens"].as_u64(), Some(part - 1), "{all}");
    assert!((number(&all, "loss") - best).abs() < 0.3 * best, "{all}");
    // Changes the text.
    std::fs::write(&data, std::fs::read_to_string(&data).unwrap().replace("plus", "sulp")).unwrap();
    let (code, _, errors) = eval(&out, &[]);
    assert!(code == 0 && errors.contains("text.txt was edited"), "{errors}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn texts_of_ones_own_are_scored_and_mistakes_named() {
    let dir = folder("eval-text");
    let (data, out, other) = (dir.join("text.txt"), dir.join("run"), dir.join("other.txt"));
    write_text(&data);
    let mut args = tiny_run(&data, &out, 6);
    args.extend("--eval-every 0 --val-split 0".split(' ').map(Into::into));
    assert!(netcl().args(&args).output().unwrap().status.success());
    std::fs::write(&other, "7 plus 8 is 15\n".repeat(20)).unwrap();
    let own = other.display().to_string();
    let found = json(&out, &["--data", &own]);
    let expected = [("tokens", 299), ("bytes", 299), ("context", 16), ("stride", 8), ("windows", 37)];
    for (key, value) in expected {
        assert_eq!(found[key].as_u64(), Some(value), "{key}: {found}");
    }
    let (code, stdout, errors) = eval(&out, &["--data", &own, "--context", "12", "--stride", "12"]);
    assert_eq!(code, 0, "{errors}");
    for part in [
        "1 file, 300 tokens",
        "25 of 12 tokens, one every 12",
        // The first token of each window is not predicted.
        "275 tokens",
        "nats per token",
        "perplexity",
        "bits per byte",
    ] {
        assert!(stdout.contains(part), "{part:?} is missing: {stdout}");
    }
    let empty = dir.join("empty.txt");
    std::fs::write(&empty, "").unwrap();
    let (empty, none) = (empty.display().to_string(), dir.join("none.txt").display().to_string());
    let checkpoint = out.join("checkpoints/last");
    for (model, flags, part) in [
        (&out, vec![], "without a validation part (--val-split 0); pass a text with --data"),
        (&checkpoint, vec![], "--data is required: "),
        (&out, vec!["--data", &own, "--context", "99"], "--context 99 exceeds the model's context of 16"),
        (&out, vec!["--data", &own, "--stride", "17"], "--stride 17 is above --context 16"),
        (&out, vec!["--data", &own, "--stride", "0"], "must be at least 1"),
        (&out, vec!["--data", &own, "--batch", "0"], "must be at least 1"),
        (&out, vec!["--data", &empty], "the file is empty"),
        (&out, vec!["--data", &none], "no such file"),
        (&dir, vec!["--data", &own], "contains no model"),
        (&out, vec!["--data", &own, "--dtype", "int8"], "int8"),
        (&out, vec!["--encoding", "latin1"], "--data"),
    ] {
        let (code, _, errors) = eval(model, &flags);
        assert!(code != 0 && errors.contains(part), "{flags:?}: {part:?} is missing: {code} {errors}");
    }
    // Characters that the tokenizer does not know.
    std::fs::write(&other, "sieben plus acht").unwrap();
    let (code, _, errors) = eval(&out, &["--data", &own]);
    assert!(code != 0 && errors.contains("other.txt") && errors.contains("character"), "{errors}");
    // Token shards work without a tokenizer.
    let shard = dir.join("val.bin");
    std::fs::write(&shard, [1u8, 0].repeat(50)).unwrap();
    std::fs::remove_file(std::fs::canonicalize(&checkpoint).unwrap().join("tokenizer.json")).unwrap();
    let found = json(&checkpoint, &["--data", &shard.display().to_string()]);
    assert!(found["tokens"] == 49 && found["bits_per_byte"].is_null(), "{found}");
    let (code, _, errors) = eval(&checkpoint, &["--data", &data.display().to_string()]);
    assert!(code != 0 && errors.contains("does not have a tokenizer.json"), "{errors}");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Copies a run's last checkpoint, as if it were uploaded without its run.
fn copied(run: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(run.join("checkpoints/last")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// Formerly `eval --json` printed `"loss": null` and exited with 0, and training advised a lower rate.
#[test]
fn a_model_with_nan_weights_is_an_error_that_names_the_tensor() {
    let dir = folder("eval-nan");
    let (data, out, poisoned) = (dir.join("text.txt"), dir.join("run"), dir.join("poisoned"));
    write_text(&data);
    let output = netcl().args(tiny_run(&data, &out, 6)).output().unwrap();
    assert!(output.status.success(), "{}", texts(&output).1);
    copied(&out, &poisoned);
    let file = poisoned.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    // Change the last element of the last tensor.
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    let (code, stdout, errors) = eval(&poisoned, &["--json", "--data", &data.display().to_string()]);
    assert!(code != 0 && stdout.is_empty(), "{code} {stdout}");
    assert!(errors.contains("the loss is NaN: the tensor ") && errors.contains("has NaN"), "{errors}");
    let tuned = dir.join("tuned");
    let mut command = netcl();
    command
        .args(["train", "--steps", "2", "--warmup", "0", "--batch", "2", "--device", &device(), "--init"])
        .arg(&poisoned);
    let output = command.arg("--data").arg(&data).arg("--out").arg(&tuned).output().unwrap();
    let (_, errors) = texts(&output);
    assert!(!output.status.success() && !errors.contains("Lower --lr"), "{errors}");
    assert!(
        errors.contains("--init") && errors.contains("the tensor ") && errors.contains("has NaN"),
        "{errors}"
    );
    std::fs::remove_dir_all(dir).unwrap();
}

/// Some programs that copy a run lose its links. Formerly a damaged settings file made whole checkpoints unusable.
#[test]
fn a_run_without_its_links_or_with_damaged_settings_is_still_used() {
    let dir = folder("eval-links");
    let (data, out) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    assert!(netcl().args(tiny_run(&data, &out, 6)).output().unwrap().status.success());
    for link in ["best", "last"] {
        let _ = std::fs::remove_file(out.join("checkpoints").join(link));
    }
    let mut command = netcl();
    command.args(["generate", "--device", &device(), "-p", "1 plus", "-n", "4", "-m"]).arg(&out);
    let (_, errors) = texts(&command.output().unwrap());
    assert!(!errors.contains("contains no model") && !errors.contains("error"), "{errors}");
    let mut command = netcl();
    let output = command.args(["tokenizer", "encode", "1 plus 2", "-m"]).arg(&out).output().unwrap();
    let (stdout, errors) = texts(&output);
    assert!(output.status.success() && stdout.split_whitespace().count() == 8, "{stdout}{errors}");
    let config = out.join("config.toml");
    let whole = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, &whole[..whole.len() / 3]).unwrap();
    let mut command = netcl();
    let output = command
        .args(["train", "--steps", "8", "--device", &device(), "--resume"])
        .arg(&out)
        .output()
        .unwrap();
    let (_, errors) = texts(&output);
    assert!(output.status.success() && errors.contains("config.toml: the file is damaged"), "{errors}");
    // The resumed run has written the file again.
    assert!(std::fs::read_to_string(&config).unwrap().contains("steps = 8"));
    std::fs::remove_dir_all(dir).unwrap();
}

/// Files that describe the pooling of text embeddings, but not tokens.
const POOLING: [(&str, &str); 3] = [
    (
        "modules.json",
        r#"[{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]"#,
    ),
    ("1_Pooling/config.json", r#"{"pooling_mode_lasttoken": true}"#),
    ("sentence_bert_config.json", r#"{"max_seq_length": 9}"#),
];

/// Formerly the old tokenizer's files and token ids were stored with the new one.
#[test]
fn another_tokenizer_leaves_nothing_of_the_first_in_the_checkpoint() {
    let dir = folder("eval-tokenizer");
    let (data, out, model) = (dir.join("text.txt"), dir.join("run"), dir.join("model"));
    write_text(&data);
    assert!(netcl().args(tiny_run(&data, &out, 6)).output().unwrap().status.success());
    copied(&out, &model);
    for (name, text) in [
        ("tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\", \"eos_token\": \"</s>\"}"),
        ("tokenizer.model", "pieces"),
        ("special_tokens_map.json", "{\"eos_token\": \"</s>\"}"),
        ("generation_config.json", "{\"eos_token_id\": 2}"),
    ] {
        std::fs::write(model.join(name), text).unwrap();
    }
    std::fs::create_dir(model.join("1_Pooling")).unwrap();
    for (name, text) in POOLING {
        std::fs::write(model.join(name), text).unwrap();
    }
    let config = std::fs::read_to_string(model.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["eos_token_id"] = 2.into();
    std::fs::write(model.join("config.json"), config.to_string()).unwrap();
    // A tokenizer of the same size, with other tokens.
    let own = std::fs::read_to_string(model.join("tokenizer.json")).unwrap();
    let other = dir.join("tokenizer.json");
    std::fs::write(&other, own.replacen("\"p\"", "\"q\"", 2)).unwrap();
    assert_ne!(std::fs::read_to_string(&other).unwrap(), own);
    let text = std::fs::read_to_string(&data).unwrap().replace('p', "q");
    std::fs::write(&data, text).unwrap();
    let tune = |to: &Path, more: &[&Path]| {
        let mut command = netcl();
        command
            .args("train --steps 1 --warmup 0 --batch 2 --sample-every 0 --device".split(' '))
            .arg(device());
        command.arg("--init").arg(&model).arg("--data").arg(&data).arg("--out").arg(to);
        if let [file] = more {
            command.arg("--tokenizer").arg(file);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", texts(&output).1);
        to.join("checkpoints/last")
    };
    let made = tune(&dir.join("tuned"), &[&other]);
    assert!(!made.join("tokenizer.model").exists() && !made.join("special_tokens_map.json").exists());
    let read = |name: &str| std::fs::read_to_string(made.join(name)).unwrap_or_default();
    assert!(
        !read("tokenizer_config.json").contains("</s>") && !read("tokenizer_config.json").contains("Llama")
    );
    for (name, text) in POOLING {
        assert_eq!(read(name), text, "{name}");
    }
    let config: Value = serde_json::from_str(&read("config.json")).unwrap();
    let generation: Value = serde_json::from_str(&read("generation_config.json")).unwrap();
    assert!(config["eos_token_id"] != 2 && generation["eos_token_id"] != 2, "{config} {generation}");
    std::fs::remove_dir_all(dir).unwrap();
}
