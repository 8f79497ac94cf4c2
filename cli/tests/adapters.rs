//! Adapters as users train and use them: a quantized model, instructions, the run folder as a model, and the merged file.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{device, folder, netcl, texts};
use netcl_test_data::needs_data;
use serde_json::Value;

/// Returns standard output of a command that succeeds.
fn run(args: &[&str]) -> String {
    let output = netcl().args(args).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{args:?}: {err}");
    out
}

#[needs_data("models/stories260K")]
#[test]
fn a_quantized_model_learns_instructions_and_is_merged() {
    let data = netcl_test_data::test_data!();
    let dir = folder("adapters");
    let path = |name: &str| dir.join(name).display().to_string();
    let base = data.join("models/stories260K/gguf/stories260K-q8_0.gguf").display().to_string();
    let tokenizer = data.join("models/stories260K/hf/tokenizer.json").display().to_string();
    let records = r#"[{"instruction": "Say hello", "output": "Hello, friend."}, {"instruction": "Name a fruit", "output": "An apple."},
        {"instruction": "Add", "input": "1 and 2", "output": "The sum is 3."}, {"instruction": "Say bye", "output": "Bye."}]"#;
    std::fs::write(path("records.json"), records).unwrap();
    let (records, out, device) = (path("records.json"), path("run"), device());
    let start = ["train", "--init", &base, "--data", &records, "--device", &device, "--out", &out];

    // Without --lora the weights would be trained.
    let output = netcl().args(start).output().unwrap();
    let (_, err) = texts(&output);
    assert!(!output.status.success() && err.contains("--lora 16"), "{err}");
    let settings =
        ["--lora", "8", "--tokenizer", &tokenizer, "--batch", "2", "--lr", "5e-3", "--epochs", "15"];
    let quiet = ["--val-split", "0", "--eval-every", "0", "--sample-every", "0"];
    run(&[&start[..], &settings, &quiet].concat());
    let metrics = std::fs::read_to_string(dir.join("run/metrics.jsonl")).unwrap();
    let losses: Vec<f64> = metrics
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["loss"].as_f64().unwrap())
        .collect();
    assert!(losses.len() == 30 && losses[29] < losses[0] / 3.0, "{losses:?}");

    // The run is a model: its base with the adapter. So is the merged file.
    let (text, merged) = (path("text.txt"), path("merged.gguf"));
    std::fs::write(&text, "Once upon a time there was a little girl. She said hello to a friend. ".repeat(8))
        .unwrap();
    run(&["quantize", &out, &merged, "--type", "f32", "--requantize"]);
    let nll = |model: &str| {
        let fixed = ["perplexity", "--json", "--dtype", "f32", "--activations", "float", "-c", "64"];
        let found = run(&[&fixed[..], &["--device", &device, "--data", &text, "-m", model]].concat());
        serde_json::from_str::<Value>(&found).unwrap()["nll"].as_f64().unwrap()
    };
    let [trained, merged, before] = [&out, &merged, &base].map(|model| nll(model));
    assert!((trained - merged).abs() < 1e-4, "adapter {trained}, merged {merged}");
    assert!((trained - before).abs() > 1e-2, "adapter {trained}, base {before}");
    std::fs::remove_dir_all(dir).unwrap();
}
