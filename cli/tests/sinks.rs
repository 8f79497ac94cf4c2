//! Reporting failures never end a run, and reports are correct: samples, metrics, report, speeds.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{device, folder, netcl, texts, tiny_run, write_text};
use serde_json::Value;
use std::path::Path;

fn with(args: &[String], more: &str) -> Vec<String> {
    args.iter().cloned().chain(more.split(' ').map(Into::into)).collect()
}

fn metrics(run: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_vocabulary_larger_than_the_tokenizers_ends_no_run_and_draws_nothing_unknown() {
    let dir = folder("vocab");
    let (data, run) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    // 600 ids, of which about twenty are characters: most of a sample's 200 tokens would be unknown.
    let args = with(&tiny_run(&data, &run, 6), "--vocab 600 --sample-every 2 --eval-every 0");
    let output = netcl().args(&args).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{err}");
    assert!(err.contains("of the tokenizer, padded") && !err.contains("continues without"), "{err}");
    assert!(out.contains("generate text with: "), "{out}");
    let known = std::fs::read_to_string(&data).unwrap();
    let samples: Vec<String> =
        metrics(&run).iter().filter_map(|m| Some(m["sample"].as_str()?.to_owned())).collect();
    assert_eq!(samples.len(), 3);
    for sample in &samples {
        assert_eq!(sample.chars().count(), 201);
        assert!(sample.chars().all(|c| known.contains(c)), "{sample:?}");
    }
    for more in ["--temperature 5 --top-k 0", "--temperature 0"] {
        let mut generate = netcl();
        generate
            .args(["generate", "-p", "1 plus", "-n", "100", "--json", "--device", &device(), "-m"])
            .arg(&run);
        let (out, err) = texts(&generate.args(more.split(' ')).output().unwrap());
        let found: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
        assert_eq!(found["tokens"].as_array().unwrap().len(), 100);
        assert!(found["text"].as_str().unwrap().chars().all(|c| known.contains(c)), "{found}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_report_that_cannot_be_written_ends_no_run_and_is_said_once() {
    let dir = folder("report");
    let (data, run) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    let args = with(&tiny_run(&data, &run, 6), "--eval-every 2 --checkpoint-every 2");
    assert!(netcl().args(&args).status().unwrap().success());
    // From now on a folder has the name of the report.
    std::fs::remove_file(run.join("report.html")).unwrap();
    std::fs::create_dir_all(run.join("report.html/inside")).unwrap();
    let output = netcl().args(["train", "--steps", "12", "--resume"]).arg(&run).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success() && out.contains("finished after 12 steps"), "{out}{err}");
    assert_eq!(err.matches("training continues without report.html").count(), 1, "{err}");
    assert_eq!(metrics(&run).len(), 12);
    assert!(run.join("checkpoints/last/model.safetensors").exists());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_diverged_run_keeps_its_report() {
    let dir = folder("diverged");
    let (data, run) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    let args = with(
        &tiny_run(&data, &run, 50),
        "--lr 1e30 --min-lr 0 --schedule constant --warmup 3 --clip 0 --eval-every 0 --checkpoint-every 1",
    );
    let output = netcl().args(&args).output().unwrap();
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(6), "{out}{err}");
    assert!(err.contains("training diverged") && err.contains("train --resume "), "{err}");
    let report = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(report.contains("failed after") && report.contains("training diverged"), "{report}");
    let steps = metrics(&run);
    let last = steps.last().unwrap();
    assert!(last["loss"].is_null() && steps[0]["loss"].is_f64(), "{last}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn speeds_are_tokens_over_time() {
    let dir = folder("speeds");
    let (data, run) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    // The first steps compile and are captured while others run, so the host is notified of them late and at once.
    let args = with(&tiny_run(&data, &run, 60), "--eval-every 20 --checkpoint-every 20 --graph on --json");
    let output = netcl().env("NETCL_NO_CACHE", "1").args(&args).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{err}");
    let (summary, steps): (Value, _) = (serde_json::from_str(&out).unwrap(), metrics(&run));
    let number = |v: &Value, key: &str| v[key].as_f64().unwrap_or_else(|| panic!("{key} is missing in {v}"));
    let last = steps.last().unwrap();
    let whole = number(last, "tokens") / number(last, "elapsed");
    let reported = number(&summary, "tokens_per_s");
    assert!((reported / whole - 1.0).abs() < 1e-6, "{reported} reported, {whole} over all");
    assert!(
        number(&summary, "seconds") >= number(last, "elapsed")
            && reported * number(&summary, "seconds") >= 60.0 * 64.0
    );
    for (i, step) in steps.iter().enumerate() {
        // No window is faster than its tokens divided by the time from its first step, or an earlier one, to this step.
        let speed = number(step, "tokens_per_s");
        let since = |from: Option<&Value>| {
            let at = |key: &str| from.map_or(0.0, |from| number(from, key));
            (number(step, "tokens") - at("tokens")) / (number(step, "elapsed") - at("elapsed"))
        };
        let windows = std::iter::once(since(None)).chain(steps[..i].iter().map(|from| since(Some(from))));
        let least_off = windows.map(|s| (speed / s - 1.0).abs()).fold(f64::INFINITY, f64::min);
        assert!(least_off < 1e-6, "step {}: {speed} is not a window's speed", i + 1);
        if i < 20 {
            assert!((speed / since(None) - 1.0).abs() < 1e-6, "a window has twenty steps: {step}");
        }
    }
    let report = std::fs::read_to_string(run.join("report.html")).unwrap();
    let tile = report.split("<span>Tokens per second</span>").nth(1).unwrap().split("</div>").next().unwrap();
    assert!(tile.contains("whole run") && !tile.contains("median"), "{tile}");
    std::fs::remove_dir_all(dir).unwrap();
}
