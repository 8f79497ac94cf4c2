//! The command line: spellings, suggestions, defaults, hints that can be pasted, signals, completions and manual.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{device, folder, netcl, texts, tiny_run, write_text};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn run(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let (out, err) = texts(&output);
    assert!(!err.contains("defect") && !err.contains("panicked"), "{err}");
    (output.status.code().unwrap_or(-1), out, err)
}

fn with(args: &[String], more: &str) -> Vec<String> {
    args.iter().cloned().chain(more.split(' ').map(Into::into)).collect()
}

#[test]
fn betas_are_two_numbers_however_they_are_written() {
    let dir = folder("betas");
    let data = dir.join("text.txt");
    write_text(&data);
    for (n, betas) in ["--betas 0.8,0.95", "--betas 0.8 0.95", "--betas=0.8,0.95"].iter().enumerate() {
        let out = dir.join(n.to_string());
        let (code, _, err) =
            run(netcl().args(with(&tiny_run(&data, &out, 5), &format!("{betas} --eval-every 0"))));
        assert_eq!(code, 0, "{betas}: {err}");
        let kept = std::fs::read_to_string(out.join("config.toml")).unwrap();
        assert!(kept.contains("betas = [0.8, 0.95]"), "{kept}");
    }
    for wrong in ["--betas 0.9", "--betas 0.9,0.95,0.99", "--betas 0.9,x"] {
        let (code, out, err) = run(netcl().args(with(&tiny_run(&data, &dir.join("wrong"), 5), wrong)));
        assert_eq!((code, out.as_str()), (2, ""), "{wrong}: {err}");
        assert!(err.contains("betas"), "{err}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_dtype_is_known_by_all_its_names_wherever_one_is_read() {
    let dir = folder("dtypes");
    let (data, model) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    for (name, known) in [("BFloat16", "bf16"), ("half", "f16"), ("torch.float32", "f32"), ("fp16", "f16")] {
        let (code, plan, err) =
            run(netcl().args(with(&tiny_run(&data, &model, 5), "--dry-run --dtype")).arg(name));
        assert!(code == 0 && plan.contains(&format!("dtype = \"{known}\"")), "{name}: {plan}{err}");
    }
    let (code, _, err) = run(netcl().args(with(&tiny_run(&data, &model, 5), "--dtype fp32 --eval-every 0")));
    assert_eq!(code, 0, "{err}");
    for name in ["float16", "single"] {
        let mut generate = netcl();
        generate.args(["generate", "-n", "2", "--device", &device(), "--dtype", name, "-m"]).arg(&model);
        let (code, _, err) = run(&mut generate);
        assert_eq!(code, 0, "{name}: {err}");
    }
    let args =
        ["bench", "gemm", "--sizes", "16", "--peer", "none", "--rounds", "1", "--json", "--layouts", "NN"];
    let (code, out, err) = run(netcl().args(args).args(["--dtype", "bfloat16", "--device", &device()]));
    assert!(code == 0 && out.contains("\"dtype\":\"bf16\""), "{out}{err}");
    for command in ["generate -m x --dtype int32", "train --dtype f64", "bench gemm --dtype bf32"] {
        let (code, _, err) = run(netcl().args(command.split(' ')));
        assert_eq!(code, 2, "{err}");
        assert!(err.contains("--dtype") && err.contains("it is one of f32, bf16, f16"), "{err}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_was_probably_meant_is_suggested() {
    for (line, meant) in [
        ("train --preset gpt2-124", "gpt2-124m"),
        ("train --preset dmo", "demo"),
        ("bench train --preset char-gpu", "char-cpu"),
        ("train --schedule cosin", "did you mean cosine?"),
        ("train --graph atuo", "did you mean auto?"),
        ("train --recompute blok", "did you mean block?"),
        ("train --dtype bf17", "did you mean bf16?"),
        ("train --matmul-precision higest", "did you mean highest?"),
        ("trian", "train"),
        ("train --preset demo --device si", "did you mean sim?"),
        ("train --preset demo --device sim:h20", "did you mean h200?"),
        ("bench ops --peer none --op sofmax", "did you mean softmax?"),
        ("tune --budget 1s --op sofmax", "did you mean softmax?"),
        ("sim run x.cl --arg f23:1", "did you mean f32?"),
    ] {
        let (code, out, err) = run(netcl().args(line.split(' ')).current_dir(std::env::temp_dir()));
        assert!(code != 0 && !out.contains("did you mean"), "{line}: {out}");
        assert!(err.contains(meant), "{line}: {err}");
    }
}

#[test]
fn defaults_stand_in_the_help() {
    let (_, help, _) = run(netcl().args(["train", "--help"]));
    let plain = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "[default: 0.001]",
        "[default: 0.9,0.99]",
        "[default: cosine]",
        "[default: f32]",
        "[default: char]",
        "[default: 1500]",
        "[default: auto]",
        "[default: the tokenizer's",
        "[possible values: constant, linear, cosine]",
        "The defaults shown are those of the preset demo",
    ] {
        assert!(plain.contains(part), "{part} is missing in {help}");
    }
    let (_, help, _) = run(netcl().args(["train", "--preset", "gpt2-124m", "--help"]));
    assert!(help.contains("[default: 0.0006]") && help.contains("preset gpt2-124m"), "{help}");
    let (_, help, _) = run(netcl().args(["generate", "--help"]));
    let plain = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plain.contains("[default: 0.8]") && plain.contains("[default: auto]"), "{help}");
}

#[test]
fn completions_and_a_manual_are_printed() {
    for (shell, part) in [("bash", "complete -F"), ("zsh", "#compdef netcl"), ("fish", "complete -c netcl")] {
        let (code, out, err) = run(netcl().args(["completions", shell]));
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(
            out.contains(part) && out.contains("grad-accum") && out.contains("gpt2-124m"),
            "{shell}: {out}"
        );
    }
    let (code, script, _) = run(netcl().args(["completions", "bash"]));
    let mut bash = Command::new("bash");
    bash.args(["-n"]).stdin(Stdio::piped());
    if let (0, Ok(mut child)) = (code, bash.spawn()) {
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }
    let (code, page, _) = run(netcl().arg("man"));
    assert!(code == 0 && page.contains(".TH netcl 1") && page.contains("netcl\\-train(1)"), "{page}");
    let dir = folder("man");
    let (code, _, err) = run(netcl().args(["man", "--out"]).arg(dir.join("pages")));
    assert_eq!(code, 0, "{err}");
    let train = std::fs::read_to_string(dir.join("pages/netcl-train.1")).unwrap();
    assert!(train.contains("\\-\\-grad\\-accum") && train.contains("[default: 0.001]"), "{train}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_prompt_comes_from_standard_input_and_the_hints_run_when_pasted() {
    let dir = folder("it's a $HOME; folder");
    let (data, model) = (dir.join("te xt.txt"), dir.join("-my run"));
    // Without line ends, because the default prompt, a line end, is then unknown to the tokenizer.
    std::fs::write(&data, "12 plus 13 is 25, ".repeat(200)).unwrap();
    let args = with(&tiny_run(&data, &model, 6), "--eval-every 0");
    let (code, out, err) = run(netcl().current_dir(&dir).args(&args));
    assert_eq!(code, 0, "{err}");
    let hint = out.lines().find_map(|line| line.strip_prefix("generate text with: ")).unwrap();
    if Command::new("bash").args(["-c", "true"]).status().is_ok() {
        let (code, out, err) =
            run(Command::new("bash").args(["-c", &format!("{hint} -n 3")]).current_dir(&dir));
        assert!(code == 0 && out.starts_with("12 plus 13"), "{hint}: {out}{err}");
    }
    let generate = |prompt: &[&str], input: &str| {
        let mut command = netcl();
        command.args(["generate", "-n", "2", "--json", "--device", &device(), "-m"]).arg(&model).args(prompt);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A program that fails earlier may not read it.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let (out, err) = texts(&output);
        (
            output.status.code().unwrap(),
            serde_json::from_str::<Value>(&out).unwrap_or_default()["prompt"].clone(),
            err,
        )
    };
    assert_eq!(generate(&["-p", "-"], "12 plus\n").1, "12 plus");
    assert_eq!(generate(&["--prompt", "-"], "13 is ").1, "13 is ");
    let (code, _, err) = generate(&["-p", "-"], "");
    assert!(code == 1 && err.contains("the prompt is empty"), "{err}");
    let (code, prompt, err) = generate(&[], "");
    assert!(code == 0 && prompt.as_str().is_some_and(|p| p.len() == 1), "{prompt} {err}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn progress_lines_come_every_so_many_steps() {
    let dir = folder("log-every");
    let (data, out) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    let args = with(&tiny_run(&data, &out, 7), "--log-every 3");
    let (code, _, err) = run(netcl().args(&args));
    let shown: Vec<&str> = err
        .lines()
        .filter_map(|line| line.strip_prefix("step ")?.split_once("/7  "))
        .map(|(n, _)| n)
        .collect();
    assert_eq!((code, shown), (0, vec!["1", "3", "6", "7"]), "{err}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_dry_run_shows_the_run_and_writes_nothing() {
    let dir = folder("dry");
    let (data, out) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    let args = with(&tiny_run(&data, &out, 50), "--grad-accum 3 --dry-run");
    let (code, text, err) = run(netcl().current_dir(&dir).args(&args));
    assert_eq!(code, 0, "{err}");
    for part in [
        "layers = 1",
        "dtype = \"f32\"",
        "parameters",
        "memory, optimizer",
        "tokens per step",
        "192 (4 sequences of 16 tokens, 3 times)",
        "50, 5 of them warm-up",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let (code, text, _) = run(netcl().current_dir(&dir).args(&args).arg("--json"));
    let plan: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, plan["steps"].as_u64(), plan["config"]["grad_accum"].as_u64()),
        (0, Some(50), Some(3)),
        "{plan}"
    );
    let (count, memory) = (plan["parameters"].as_u64().unwrap(), plan["memory"].clone());
    assert_eq!(
        (memory["parameters"].as_u64(), memory["optimizer"].as_u64()),
        (Some(4 * count), Some(8 * count)),
        "{plan}"
    );
    assert!(plan["memory_device"].as_u64().unwrap() < plan["memory_available"].as_u64().unwrap(), "{plan}");
    // The run itself has the same number of parameters.
    let (code, text, err) =
        run(netcl().args(args.iter().filter(|a| *a != "--dry-run")).args(["--json", "--steps", "5"]));
    assert_eq!(code, 0, "{err}");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["parameters"].as_u64(), Some(count));
    std::fs::remove_dir_all(&out).unwrap();
    // Invalid settings are refused as in a run; if memory is too small, the plan is shown first.
    let (code, _, err) = run(netcl().args(with(&args, "--heads 5")));
    assert!(code == 1 && err.contains("--heads 5 does not divide"), "{err}");
    let (code, text, err) = run(netcl().args(with(&args, "--batch 1000000000000")));
    assert!(code == 4 && err.contains("available") && text.contains("memory, activations"), "{text}{err}");
    assert!(!out.exists(), "nothing is written");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_was_tuned_is_listed_as_json_also_where_nothing_was() {
    let dir = folder("tuned");
    let (code, out, err) =
        run(netcl().env("NETCL_CACHE_DIR", &dir).args(["tune", "--list", "--json", "--device", &device()]));
    assert_eq!(code, 0, "{err}");
    let lines: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    // One kernel per line, or one object with an empty list.
    assert!(!lines.is_empty());
    let empty =
        |line: &Value| line["device"].is_string() && line["tuned"].as_array().is_some_and(Vec::is_empty);
    for line in &lines {
        let kernel = line["kernel"].is_string() && line["origin"].is_string();
        assert!(kernel || lines.len() == 1 && empty(line), "{line}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// Tunes the sums: candidates with the default's result are measured, the fastest is stored, and later runs list and use it.
#[test]
fn row_116_and_179_and_219_a_kernel_is_tuned_and_the_choice_is_kept() {
    let (dir, device) = (folder("tuned_sums"), device());
    // A simulated GPU takes minutes for each candidate.
    let listed: Value = serde_json::from_str(&run(netcl().args(["devices", "--json"])).1).unwrap();
    let simulated = listed.as_array().unwrap().iter().all(|found| found["simulated"] == true);
    if simulated || device.starts_with("sim") {
        return;
    }
    let tune = |args: &[&str]| -> Vec<Value> {
        let (code, out, err) = run(netcl()
            .env("NETCL_CACHE_DIR", &dir)
            .env("NETCL_BUILD_OPTIONS", "-cl-opt-disable") // compiles faster; the times do not matter
            .args(["tune", "--json", "--device", &device])
            .args(args));
        assert_eq!(code, 0, "{err}");
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let tuned = |lines: Vec<Value>| -> Vec<Value> {
        lines.into_iter().filter(|line| line["kernel"] == "reduce" && line["origin"] == "tuned").collect()
    };
    assert!(tuned(tune(&["--list"])).is_empty());
    let measured = tuned(tune(&["--op", "reduce", "--budget", "60s"]));
    assert!(!measured.is_empty());
    for line in &measured {
        let trials = line["measurements"].as_array().unwrap();
        let ran = |params: &Value| trials.iter().any(|t| t["params"] == *params && t["status"] == "ok");
        assert!(trials.len() > 1 && ran(&line["default"]) && ran(&line["chosen"]), "{line}");
        assert!(line["speedup"].as_f64().unwrap() >= 1.0, "{line}");
    }
    let kept = tuned(tune(&["--list"]));
    // A later measurement of the same size class replaces the earlier one.
    let is_one = |line: &Value| {
        measured.iter().any(|m| ["bucket", "case", "chosen"].iter().all(|key| m[key] == line[key]))
    };
    assert!(kept.iter().all(is_one), "{kept:?}");
    assert!(measured.iter().all(|m| kept.iter().any(|line| line["bucket"] == m["bucket"])), "{kept:?}");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Checks that `tune --model` prints the constants of the estimates, before and after it fits them to a few problems.
#[test]
fn the_device_model_is_measured_kept_and_listed() {
    let (dir, device) = (folder("model"), device());
    let tune = ["tune", "--model", "--json", "--device", &device];
    let constants = |args: &[&str]| {
        let (code, out, err) = run(netcl()
            .env("NETCL_CACHE_DIR", &dir)
            .env("NETCL_BUILD_OPTIONS", "-cl-opt-disable") // compiles faster; the times do not matter
            .args(tune)
            .args(args));
        assert_eq!(code, 0, "{err}");
        let lines: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        lines
    };
    let origins = |lines: &[Value]| {
        let all = lines.iter().filter(|l| l["model"] == "matmul_vector");
        let all: Vec<String> = all.map(|l| l["origin"].as_str().unwrap().to_owned()).collect();
        assert!(!all.is_empty(), "{lines:?}");
        all
    };
    assert!(origins(&constants(&["--list"])).iter().all(|origin| origin != "tuned"));
    let measured = constants(&["--budget", "1s"]);
    let [before, after] = [0, 1].map(|i| measured[0]["regret_mean"][i].as_f64().unwrap());
    assert!(
        before >= 1.0 && after >= 1.0 && measured[0]["problems"].as_u64().unwrap() >= 24,
        "{}",
        measured[0]
    );
    let timed =
        measured.iter().filter(|line| line["us"].as_object().is_some_and(|us| !us.is_empty())).count();
    assert_eq!(measured[0]["problems"], timed);
    let kept = constants(&["--list"]);
    assert!(origins(&kept).iter().all(|origin| origin == "tuned"), "{kept:?}");
    for line in kept.iter().filter(|line| line["origin"] == "tuned") {
        let same = |m: &&Value| m["model"] == line["model"] && m["constant"] == line["constant"];
        let fitted = measured.iter().find(same).and_then(|m| m["value"].as_f64()).unwrap();
        assert!((line["value"].as_f64().unwrap() / fitted - 1.0).abs() < 1e-3, "{line}, fitted {fitted}");
    }
    // The printed measurements give the same fit; without measurements the fit is an error.
    let refitted = |text: &str| {
        let file = dir.join("measured.json");
        std::fs::write(&file, text).unwrap();
        let mut command = netcl();
        command.env("NETCL_CACHE_DIR", dir.join("again")).args(tune);
        run(command.arg("--from").arg(file))
    };
    let lines: String = measured.iter().map(|line| format!("{line}\n")).collect();
    let (code, out, err) = refitted(&lines);
    assert_eq!(code, 0, "{err}");
    let again: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    assert_eq!(again["problems"], measured[0]["problems"]);
    assert!(
        (again["regret_mean"][0].as_f64().unwrap() - before).abs() < 1e-6,
        "{again}, measured {}",
        measured[0]
    );
    let (code, _, err) = refitted("{\"op\": \"gemm\"}\n");
    assert!(code != 0 && err.contains("no measurements"), "{err}");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Sends a signal.
#[cfg(unix)]
fn kill(signal: &str, process: u32) {
    assert!(
        Command::new("kill").args([format!("-{signal}"), process.to_string()]).status().unwrap().success()
    );
}

/// Waits until a condition holds.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn steps(run: &Path) -> usize {
    std::fs::read_to_string(run.join("metrics.jsonl")).map_or(0, |text| text.lines().count())
}

#[cfg(unix)]
#[test]
fn sighup_writes_a_checkpoint_and_ends_however_often_it_comes_and_sigusr1_goes_on() {
    let dir = folder("hangup");
    let (data, out) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    let args = with(&tiny_run(&data, &out, 1_000_000), "--checkpoint-every 0 --eval-every 0");
    let mut child = netcl().args(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the first step", || steps(&out) > 0);
    kill("USR1", child.id());
    until("a checkpoint", || out.join("checkpoints/last/state.json").exists());
    let then = steps(&out);
    until("further steps", || steps(&out) > then + 3);
    assert!(child.try_wait().unwrap().is_none(), "it continues");
    kill("HUP", child.id());
    kill("HUP", child.id());
    let output = child.wait_with_output().unwrap();
    let (stdout, errors) = texts(&output);
    assert_eq!(output.status.code(), Some(129), "{errors}");
    assert!(stdout.contains("train --resume") && errors.contains(": checkpoint "), "{stdout}{errors}");
    let state = std::fs::read_to_string(out.join("checkpoints/last/state.json")).unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!(state["step"].as_u64().unwrap() as usize, steps(&out), "{state}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_under_nohup_outlives_its_terminal() {
    let dir = folder("nohup");
    let (data, out) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    let args = with(&tiny_run(&data, &out, 1_000_000), "--checkpoint-every 0 --eval-every 0");
    let mut command = Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_netcl")).args(&args).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else {
        eprintln!("skipped: nohup is not installed");
        return;
    };
    until("the first step", || steps(&out) > 0);
    kill("HUP", child.id());
    let then = steps(&out);
    until("further steps", || steps(&out) > then + 20);
    kill("TERM", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(143));
    std::fs::remove_dir_all(dir).unwrap();
}

#[cfg(unix)]
#[test]
fn a_signal_before_the_first_step_ends_at_once_and_leaves_nothing() {
    let dir = folder("early");
    let data = dir.join("text.txt");
    // This text takes several seconds to tokenize.
    let words = (0..4_000_000u32).map(|i| format!("{} ", i.wrapping_mul(2_654_435_761) >> 8));
    std::fs::write(&data, words.collect::<String>()).unwrap();
    let small = dir.join("small.txt");
    write_text(&small);
    let (code, _, err) = run(netcl()
        .args(["tokenizer", "train", "--vocab", "300", "--data"])
        .arg(&small)
        .arg("--out")
        .arg(&dir));
    assert_eq!(code, 0, "{err}");
    for (signal, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let (above, cache) = (dir.join(signal), dir.join("cache"));
        let out = above.join("run");
        let mut args = tiny_run(&data, &out, 5);
        args.extend(["--tokenizer".into(), dir.join("tokenizer.json").display().to_string()]);
        let mut child = netcl()
            .args(&args)
            .env("NETCL_CACHE_DIR", &cache)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("the claim of its folder", || out.join(".lock").exists());
        // Half a second into the text, which takes several seconds.
        std::thread::sleep(Duration::from_millis(500));
        assert!(
            child.try_wait().unwrap().is_none() && !out.join("metrics.jsonl").exists(),
            "it is still tokenizing"
        );
        let sent = Instant::now();
        kill(signal, child.id());
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert!(sent.elapsed() < Duration::from_secs(5), "{:?}", sent.elapsed());
        assert!(!above.exists(), "the folders made for the run remain");
        let tokens = std::fs::read_dir(cache.join("tokens")).map_or(0, Iterator::count);
        assert_eq!(tokens, 0, "partial tokens remain in the cache");
    }
    std::fs::remove_dir_all(dir).unwrap();
}
