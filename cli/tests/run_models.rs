//! Running models: `generate`, `chat` and `perplexity` with a run folder, its checkpoint and GGUF files, and their errors.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{device, folder, netcl, texts, tiny_run, write_text};
use netcl_test_data::needs_data;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

/// Returns the exit code and both streams of a command with `input` on standard input.
fn run(args: &[&str], input: &str) -> (i32, String, String) {
    let mut command = netcl();
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that fails earlier does not read it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let (out, err) = texts(&output);
    assert!(!err.contains("defect") && !err.contains("panicked"), "{args:?}: {err}");
    (output.status.code().unwrap_or(-1), out, err)
}

fn json(args: &[&str]) -> Value {
    let (code, out, err) = run(args, "");
    assert_eq!(code, 0, "{args:?}: {err}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"))
}

const TEMPLATE: &str = "{% for m in messages %}{{ m.content }} {% endfor %}";

/// Text goes to stdout and speeds to stderr; the prompt comes from a file or standard input.
fn prompts(dir: &Path, gguf: &str, device: &str, whole: &str) {
    let prompt = dir.join("prompt.txt").display().to_string();
    std::fs::write(&prompt, "1 plus\n").unwrap();
    for (args, input) in [(["-f", prompt.as_str()], ""), (["-p", "-"], "1 plus\n")] {
        let fixed = ["generate", "-m", gguf, "-n", "40", "--temp", "0", "--device", device];
        let (code, out, err) = run(&[&fixed[..], &args].concat(), input);
        assert_eq!((code, out), (0, format!("1 plus{whole}\n")), "{err}");
        assert!(err.contains("prompt: 6 tokens") && err.contains("text: 40 tokens"), "{err}");
    }
}

#[test]
fn a_trained_model_is_quantised_and_talks() {
    let dir = folder("run-models");
    let (data, run_folder) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    let mut train = tiny_run(&data, &run_folder, 6);
    train.extend(["--eval-every".into(), "0".into()]);
    let layers = train.iter().position(|argument| argument == "--layers").unwrap();
    train[layers + 1] = "2".into();
    assert!(netcl().args(&train).status().unwrap().success());
    let checkpoint = run_folder.join("checkpoints/last");
    let (device, text) = (device(), |path: &Path| path.display().to_string());
    let (model, gguf) = (text(&checkpoint), text(&dir.join("model.gguf")));

    // Without a template, chat is refused.
    let (code, _, err) = run(&["chat", "-m", &model, "--device", &device], "1\n");
    assert!(
        code == 1 && err.contains("does not have a chat template") && err.contains("netcl generate -m"),
        "{err}"
    );
    std::fs::write(checkpoint.join("chat_template.jinja"), TEMPLATE).unwrap();
    let (code, _, err) = run(&["quantize", &model, &gguf, "--type", "f32"], "");
    assert_eq!(code, 0, "{err}");

    // The same weights give the same text from any file, and the same seed gives the same text.
    let generate = |path: &str, more: &[&str]| {
        let fixed = ["generate", "-m", path, "-p", "1 plus", "-n", "40", "--json", "--device", &device];
        json(&[&fixed[..], more].concat())
    };
    let known = generate(&model, &["-s", "7"]);
    assert_eq!(known["tokens"].as_array().unwrap().len(), 40);
    assert_eq!((known["finish"].as_str(), known["prompt_tokens"].as_u64()), (Some("length"), Some(6)));
    for path in [&model, &gguf, &text(&run_folder)] {
        assert_eq!(generate(path, &["-s", "7"])["text"], known["text"], "{path}");
    }
    assert_ne!(generate(&gguf, &["-s", "8"])["text"], known["text"]);
    let greedy = generate(&gguf, &["--temp", "0"]);
    assert_eq!(generate(&gguf, &["--temperature", "5", "--top-k", "1"])["text"], greedy["text"]);
    assert_eq!(generate(&gguf, &["--samplers", "temperature", "--temp", "0"])["text"], greedy["text"]);
    // A forbidden token is never selected.
    let first = greedy["tokens"][0].as_u64().unwrap();
    let other = generate(&gguf, &["--temp", "0", "--logit-bias", &format!("{first}-inf")]);
    assert!(!other["tokens"].as_array().unwrap().contains(&first.into()), "{other}");
    // A stop text is not printed.
    let whole = greedy["text"].as_str().unwrap();
    let stop: String = whole.chars().skip(4).take(3).collect();
    let stopped = generate(&gguf, &["--temp", "0", "--stop", &stop]);
    assert_eq!(stopped["text"].as_str().unwrap(), &whole[..whole.find(&stop).unwrap()]);
    assert_eq!(stopped["finish"], "stop");

    prompts(&dir, &gguf, &device, whole);
    together(&gguf, &device);
    divided(&gguf, &device, &data.display().to_string());
    chats(&gguf, &device);
    refusals(&dir, &gguf, &device);

    let fixed = ["perplexity", "--data", &text(&data), "-c", "16", "--device", &device, "--json", "-m"];
    let found = [&model, &gguf].map(|path| json(&[&fixed[..], &[path.as_str()]].concat()));
    assert_eq!(found[0]["nll"], found[1]["nll"]);
    let nll = found[0]["nll"].as_f64().unwrap();
    assert!(
        (found[0]["perplexity"].as_f64().unwrap() / nll.exp() - 1.0).abs() < 1e-9 && nll > 0.5 && nll < 4.0
    );
    assert_eq!(found[0]["tokens"].as_u64().unwrap() % 16, 0);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Several prompts at the same time, with and without proposed tokens, give the same texts as one prompt at a time.
fn together(gguf: &str, device: &str) {
    let fixed = ["generate", "-m", gguf, "-n", "8", "--temp", "0", "--device", device];
    let alone = ["1 plus", "2 plus 3"].map(|prompt| {
        let (code, out, err) = run(&[&fixed[..], &["-p", prompt]].concat(), "");
        assert_eq!(code, 0, "{err}");
        out.trim_end_matches('\n').to_owned()
    });
    let both = ["-p", "1 plus", "-p", "2 plus 3"];
    for (more, told) in [
        (vec![], "prompts: 14 tokens"),
        (vec!["--parallel", "1"], "texts: 16 tokens"),
        (vec!["--draft", "ngram", "--draft-max", "2"], "ngram: "),
        (vec!["--draft", gguf], "proposed tokens accepted, "),
    ] {
        let (code, out, err) = run(&[&fixed[..], &both, &more].concat(), "");
        assert_eq!((code, out), (0, format!("{}\n\n{}\n", alone[0], alone[1])), "{more:?}: {err}");
        assert!(err.contains(told), "{more:?}: {err}");
    }
    let (code, out, err) = run(&[&fixed[..], &both, &["--json", "--cache-type", "q8_0"]].concat(), "");
    assert_eq!((code, out.lines().count()), (0, 2), "{err}");
    for (line, prompt) in out.lines().zip(["1 plus", "2 plus 3"]) {
        let found: Value = serde_json::from_str(line).unwrap();
        assert_eq!((found["prompt"].as_str(), found["finish"].as_str()), (Some(prompt), Some("length")));
        assert_eq!(found["tokens"].as_array().unwrap().len(), 8);
    }
    for (args, part) in [
        (["-p", "1", "--draft", "missing.gguf"], "--draft: "),
        (["-p", "1", "-p", "1 plus 2 plus 3 plus 4"], "a text here has at most 16 (context 16"),
    ] {
        let (code, _, err) = run(&[&fixed[..], &args].concat(), "");
        assert!(code == 1 && err.contains(part), "{err}");
    }
}

/// One layer on each of two devices, which are the same device here, gives the same results as one device.
fn divided(gguf: &str, device: &str, data: &str) {
    let twice = format!("{device},{device}");
    let fixed = ["generate", "-m", gguf, "-p", "1 plus", "-n", "8", "--temp", "0", "--device"];
    let said = |more: &[&str]| {
        let (code, out, err) = run(&[&fixed[..], more].concat(), "");
        assert_eq!(code, 0, "{more:?}: {err}");
        (out, err)
    };
    let alone = said(&[device]).0;
    let (out, err) = said(&[&twice, "--layers", "1,1"]);
    assert!(out == alone && err.contains("layers 0 on ") && err.contains(", 1 on "), "{out}{err}");
    // A model that fits on one device stays there.
    let (out, err) = said(&[&twice]);
    assert!(out == alone && err.contains("all layers on "), "{out}{err}");
    let (out, _) = said(&[&twice, "--layers", "1", "-p", "2 plus 3", "--draft", gguf]);
    assert!(out.starts_with(&alone), "{out}");
    for (device, layers, part) in [
        (twice.as_str(), "1,2", "--layers 1,2 is 2 numbers for 2 devices"),
        (twice.as_str(), "3", "the model has 2"),
        (device, "1,1", "2 numbers for 1 device"),
        (&format!("{device},"), "1,1", "a name is missing"),
    ] {
        let (code, _, err) = run(&[&fixed[..], &[device, "--layers", layers]].concat(), "");
        assert!(code == 1 && err.contains(part), "{err}");
    }
    let loss = |device: &str, more: &[&str]| {
        let fixed = ["perplexity", "-m", gguf, "--data", data, "--json", "--device", device];
        json(&[&fixed[..], more].concat())["nll"].as_f64().unwrap()
    };
    assert_eq!(loss(&twice, &["--layers", "1"]).to_bits(), loss(device, &[]).to_bits());
    let fixed = ["bench", "decode", "-m", gguf, "-p", "6", "-n", "9", "-b", "1,2", "-r", "1", "--json"];
    let (code, out, err) = run(&[&fixed[..], &["--device", &twice, "--layers", "1"]].concat(), "");
    assert_eq!(code, 0, "{err}");
    let lines = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    for line in lines.filter(|line| line["op"] != "ceiling") {
        assert_eq!(line["layers"], serde_json::json!([1, 1]), "{line}");
        assert_eq!(line["devices"].as_array().map(Vec::len), Some(2), "{line}");
    }
}

/// Compares with exact arithmetic on the same windows; activations in int8 give a similar result.
#[needs_data(
    "refs/nll.json",
    "corpora/tinystories_sample.txt",
    "models/stories260K",
    "models/stories260K-w256"
)]
#[test]
fn perplexity_is_that_of_exact_arithmetic() {
    let data = netcl_test_data::test_data!();
    let refs = std::fs::read_to_string(data.join("refs/nll.json")).unwrap();
    let refs: Value = serde_json::from_str(&refs).unwrap();
    let dir = folder("perplexity");
    let text = std::fs::read_to_string(data.join("corpora/tinystories_sample.txt")).unwrap();
    let sample = dir.join("sample.txt");
    std::fs::write(&sample, text.chars().take(20_000).collect::<String>()).unwrap();
    let (sample, device) = (sample.display().to_string(), device());
    for case in refs["results"].as_array().unwrap() {
        let name = case["model"].as_str().unwrap();
        let file = format!("models/{name}/gguf/{name}-{}.gguf", case["format"].as_str().unwrap());
        let model = data.join(file).display().to_string();
        let window = case["window"].to_string();
        let fixed = ["perplexity", "--dtype", "f32", "--json", "--device", &device, "-c", &window];
        let expected = case["nll_nats_per_token"].as_f64().unwrap();
        // Rounding activations to int8 changes single logits by about a hundredth of the largest, and their mean loss much less.
        for (activations, bound) in [("float", 1e-5), ("int8", 2e-3)] {
            let own = ["--data", &sample, "-m", &model, "--activations", activations];
            let found = json(&[&fixed[..], &own[..]].concat());
            assert_eq!(found["tokens"], case["n_predicted"], "{model}");
            assert!(found["activations"] == activations || found["activations"].is_null(), "{found}");
            let loss = found["nll"].as_f64().unwrap();
            assert!((loss - expected).abs() < bound, "{model}, {activations}: {loss}, expected {expected}");
        }
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// Each line is one turn of the chat.
fn chats(gguf: &str, device: &str) {
    let fixed = ["chat", "-m", gguf, "-n", "3", "--temp", "0", "--device", device];
    let (code, out, err) = run(&fixed, "1\n\n/clear\n1\n/exit\n2\n");
    assert_eq!(code, 0, "{err}");
    // Two answers of three characters, each with a line end.
    assert!(out.len() == 8 && out[..4] == out[4..], "{out:?}");
    let (_, out, _) = run(&[&fixed[..], &["--json"]].concat(), "1\n2");
    let all: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((all.len(), all[0]["tokens"].as_array().unwrap().len()), (2, 3));
    // "1 ", and then "1 ??? 2 ".
    assert_eq!((&all[0]["prompt_tokens"], &all[1]["prompt_tokens"]), (&2.into(), &8.into()), "{out}");
    // The context has 16 tokens.
    let (code, _, err) = run(&fixed, "1 plus 2 is 3 plus\n");
    assert!(code == 1 && err.contains("the context has 16"), "{err}");
}

fn refusals(dir: &Path, gguf: &str, device: &str) {
    let refused = |args: &[&str], code: i32, parts: &[&str]| {
        let (found, out, err) = run(&[args, &["--device", device]].concat(), "");
        assert_eq!((found, out.as_str()), (code, ""), "{args:?}: {err}");
        for part in parts {
            assert!(err.contains(part), "{args:?}: {part:?} is missing in {err}");
        }
    };
    let text = dir.join("no-model.gguf").display().to_string();
    std::fs::write(&text, "not a model, but a text").unwrap();
    refused(&["generate", "-p", "1", "-m", &text], 1, &["no-model.gguf", "not a GGUF file"]);
    let long = "1 plus 2 is 3 plus 4";
    refused(&["generate", "-p", long, "-m", gguf], 1, &["the prompt has 20 tokens", "the context has 16"]);
    refused(&["generate", "-p", "1", "-m", gguf, "-c", "17"], 1, &["expected 1 to 16"]);
    refused(&["generate", "-p", "1", "-m", gguf, "--top-p", "0"], 1, &["top_p is 0"]);
    refused(&["generate", "-p", "1", "-m", gguf, "--stop", ""], 1, &["a stop text is empty"]);
    refused(&["generate", "-p", "1", "-m", gguf, "--samplers", "top_q"], 2, &["top_q", "top_p"]);
    refused(&["chat", "-m", "/nowhere"], 1, &["/nowhere contains no model"]);
    let wrong = dir.join("wrong.gguf").display().to_string();
    let mut bytes = std::fs::read(gguf).unwrap();
    let at = bytes.windows(20).position(|w| w == b"general.architecture").unwrap() + 20 + 4 + 8;
    bytes[at..at + 4].copy_from_slice(b"rwkv");
    std::fs::write(&wrong, bytes).unwrap();
    refused(&["generate", "-p", "1", "-m", &wrong], 1, &["architecture \"rwkv\"", "llama"]);
}

/// Checks the lines of `bench decode` for a small shape and for its file. A script replaces llama-bench.
#[cfg(unix)]
#[test]
fn decoding_is_measured_with_and_without_a_file() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, device) = (folder("bench-decode"), device());
    let peer = dir.join("llama-bench");
    let kept = dir.join("kept.gguf");
    // The script keeps its file and reports a very high speed.
    let script = format!(
        "#!/bin/sh\ncp \"$2\" '{}'\necho '{{\"n_prompt\":6,\"n_gen\":0,\"avg_ts\":1e9}}'\necho '{{\"n_prompt\":0,\"n_gen\":9,\"avg_ts\":1e9}}'\n",
        kept.display()
    );
    std::fs::write(&peer, script).unwrap();
    std::fs::set_permissions(&peer, std::fs::Permissions::from_mode(0o755)).unwrap();
    let bench = |more: &[&str]| -> Vec<Value> {
        let fixed =
            ["bench", "decode", "-p", "6", "-n", "9", "-b", "1,3", "-r", "2", "--json", "--device", &device];
        let (code, out, err) = run(&[&fixed[..], more].concat(), "");
        assert_eq!(code, 0, "{more:?}: {err}");
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let shape = "layers=1,heads=2,kv_heads=1,width=64,mlp=96,vocab=300";
    let peer = peer.display().to_string();
    let made = bench(&["--shape", shape, "--type", "q8_0", "--peer", &peer]);
    let of_file = bench(&["-m", &kept.display().to_string(), "--feed", "greedy"]);
    for (lines, greedy) in [(&made, false), (&of_file, true)] {
        let ops: Vec<&str> = lines.iter().map(|line| line["op"].as_str().unwrap()).collect();
        assert_eq!(ops, ["ceiling", "load", "decode", "decode", "decode"]);
        let tests: Vec<_> =
            lines[2..].iter().map(|l| (l["test"].as_str().unwrap(), l["batch"].as_u64().unwrap())).collect();
        assert_eq!(tests, [("pp6", 1), ("tg9", 1), ("tg9", 3)]);
        for line in &lines[2..] {
            let number = |key: &str| line[key].as_f64().unwrap_or_else(|| panic!("{key}: {line}"));
            let per_token = number("tokens_per_s") * number("us_per_token") / 1e6;
            assert!((per_token - 1.0).abs() < 1e-9 && number("slowest") <= number("fastest"), "{line}");
            assert!(line["checked"] == true && number("gbps") > 0.0 && number("memory_peak") > 0.0, "{line}");
            assert_eq!(line["ratio"].is_null(), greedy || line["batch"] == 3, "{line}");
            // Selecting the next token is a separate launch.
            let launches = |l: &Value| l["launches_per_token"].as_u64();
            assert_eq!(launches(line).is_some(), line["test"] == "tg9", "{line}");
            let more = launches(line) > launches(&made[3]);
            assert!(more == greedy || line["test"] == "pp6", "{line}");
        }
    }
    assert_eq!(made[1]["weight_bytes"], of_file[1]["weight_bytes"]);
    let (code, _, err) = run(&["bench", "decode", "--shape", "900b"], "");
    assert!(code != 0 && err.contains("llama-3-8b or 8b"), "{err}");
    std::fs::remove_dir_all(dir).unwrap();
}
