//! The program from outside: streams, exit codes, and every command that needs no training.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{device, folder, netcl, texts, tiny_run, write_text};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the program without OpenCL: a library that does not exist, and a folder without drivers.
fn without_opencl(dir: &Path) -> Command {
    let mut command = netcl();
    command.env("NETCL_OPENCL_LIBRARY", dir.join("libnothing.so")).env("OCL_ICD_VENDORS", dir);
    command
}

fn run(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let (out, err) = texts(&output);
    assert!(!err.contains("defect") && !err.contains("panicked"), "{err}");
    (output.status.code().unwrap_or(-1), out, err)
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
fn help_needs_no_opencl() {
    let dir = folder("help");
    // A library that exists but is broken: loading it would cause an error.
    std::fs::write(dir.join("libnothing.so"), "not a library").unwrap();
    for command in [
        "",
        "train",
        "generate",
        "devices",
        "doctor",
        "tokenizer",
        "bench",
        "bench gemm",
        "bench attention",
        "tune",
        "cache",
        "sim",
        "sim run",
        "sim check",
        "kernels",
    ] {
        let mut args: Vec<&str> = command.split_whitespace().collect();
        args.push("--help");
        let (code, out, err) = run(without_opencl(&dir).args(&args));
        assert_eq!((code, err.as_str()), (0, ""), "{command}");
        assert!(out.contains("Usage: netcl") && !out.contains('\x1b'), "{out}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_wrong_command_line_is_exit_code_2_and_names_the_mistake() {
    for (args, part) in [
        (&["trian"][..], "train"),
        (&["devices", "--jsn"], "--json"),
        (&["bench", "gemm", "--sizes", "0"], "expected a size like 768"),
        (&["bench", "gemm", "--layouts", "XY"], "NN"),
        (&["bench", "gemm", "--sample-ms", "0"], "expected milliseconds"),
        (&["bench", "attention", "--shapes", "1x4/3x8x8"], "3 key heads do not divide 4 query heads"),
        (&["tune", "--budget", "soon"], "expected a time like 90"),
        (&["tokenizer", "train"], "--data"),
    ] {
        let (code, out, err) = run(netcl().args(args));
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
        assert!(err.contains(part), "{args:?}: {err}");
    }
}

#[test]
fn without_opencl_there_is_a_message_and_the_simulated_device() {
    let dir = folder("without");
    let (code, out, err) = run(without_opencl(&dir).arg("devices"));
    assert_eq!(code, 0);
    assert!(out.contains("sim:teaching") && out.contains("simulated"), "{out}");
    assert!(
        err.contains("NETCL_OPENCL_LIBRARY names ") && err.contains("; unset it to search for one"),
        "{err}"
    );
    let (code, out, _) = run(without_opencl(&dir).args(["devices", "--json"]));
    let devices: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, devices[0]["simulated"].as_bool()), (0, Some(true)));
    let (code, out, err) = run(without_opencl(&dir).args(["doctor", "--quick", "--device", "sim"]));
    assert!(
        out.contains("sim:teaching") && out.contains("kernels run once and compared with their reference"),
        "{code} {out} {err}"
    );
    // Without --device, it uses a simulated device and says so.
    let model = dir.join("model");
    let text = dir.join("text.txt");
    write_text(&text);
    let train = "train --preset demo-tiny --layers 1 --width 16 --context 8 --steps 2 --eval-every 0 --sample-every 0";
    let (code, _, err) =
        run(without_opencl(&dir).args(train.split(' ')).arg("--data").arg(&text).arg("--out").arg(&model));
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("runs on sim, a simulated GPU"), "{err}");

    let (code, out, err) = run(without_opencl(&dir).arg("doctor"));
    assert_eq!(code, 1);
    assert!(
        out.contains("loader       none")
            && out.contains("not healthy")
            && out.contains("NETCL_OPENCL_LIBRARY="),
        "{out}"
    );
    assert!(
        out.contains("advice: NETCL_OPENCL_LIBRARY names ") && out.contains("advice: install the missing"),
        "{out}"
    );
    assert!(err.contains("which is not an OpenCL library"), "{err}");

    // With --device but without OpenCL, the error says what to install.
    let train = ["train", "--preset", "demo", "--device", "nvidia:0"];
    for args in [&train[..], &["bench", "gemm", "--device", "0"]] {
        let mut command = netcl();
        let (code, out, err) = run(command
            .args(args)
            .env("NETCL_NO_LOADER", "1")
            .env("OCL_ICD_VENDORS", &dir)
            .current_dir(&dir));
        assert_eq!((code, out.as_str()), (3, ""), "{args:?}: {err}");
        assert!(
            err.contains("no OpenCL library found") && err.contains("apt-get install ocl-icd-libopencl1"),
            "{err}"
        );
    }
    // A loader without a driver; a loader that uses another folder for drivers finds one.
    let (code, _, err) = run(netcl().arg("devices").env("OCL_ICD_VENDORS", &dir));
    assert!(code == 0 || (code == 3 && err.contains("apt-get install")), "{err}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn devices_are_listed_for_people_and_programs() {
    let (code, out, err) = run(netcl().arg("devices"));
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with("device ") && !out.contains('\x1b'), "{out}");
    let (_, json, _) = run(netcl().args(["devices", "--json"]));
    let devices: Value = serde_json::from_str(&json).unwrap();
    let first = &devices.as_array().unwrap()[0];
    assert!(
        first["id"].as_str().unwrap().contains(':') && first["max_alloc"].as_u64().unwrap() > 0,
        "{first}"
    );
    assert_eq!(out.lines().count(), devices.as_array().unwrap().len() + 1);
}

#[test]
fn a_quick_doctor_runs_each_kernel_once_and_the_cache_shows_it() {
    let dir = folder("doctor");
    // Here every kernel is built as users build it.
    let with_cache =
        |args: &[&str]| run(netcl().env("NETCL_CACHE_DIR", &dir).env_remove("NETCL_QUICK_BUILDS").args(args));
    let (code, out, err) = with_cache(&["doctor", "--quick", "--op", "softmax", "--device", &device()]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(
        out.contains("kernels run once and compared with their reference") && out.ends_with("healthy\n"),
        "{out}"
    );
    let (_, json, _) = with_cache(&["doctor", "--quick", "--json", "--device", &device()]);
    let report: Value = serde_json::from_str(&json).unwrap();
    assert!(
        report["healthy"] == true
            && report["loader"].is_object()
            && report["devices"][0]["failures"] == Value::Array(vec![])
            && report["devices"][0]["kernels"].as_u64().unwrap() >= 12
    );

    let (code, out, _) = with_cache(&["cache", "ls", "--json"]);
    let cache: Value = serde_json::from_str(&out).unwrap();
    assert!(
        code == 0 && cache["entries"].as_array().unwrap().iter().any(|e| e["kernel"] == "elementwise"),
        "{cache}"
    );
    let (_, out, _) = with_cache(&["cache", "ls"]);
    assert!(out.contains("elementwise"), "{out}");
    let (_, out, _) = with_cache(&["cache", "clear", "--json"]);
    assert!(json_lines(&out)[0]["removed"].as_u64().unwrap() >= 1, "{out}");
    let (_, out, err) = with_cache(&["cache", "ls"]);
    assert!(out.is_empty() && err.starts_with("0 kernels"), "{out}{err}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn an_unknown_device_is_named_with_those_that_exist() {
    for command in [&["doctor", "--device", "nowhere:7"][..], &["tune", "--list", "--device", "nowhere:7"]] {
        let (code, _, err) = run(netcl().args(command));
        assert_eq!(code, 3, "{err}");
        assert!(err.contains("no device \"nowhere:7\". There are:"), "{err}");
    }
}

#[test]
fn a_tokenizer_goes_there_and_back() {
    let dir = folder("tokenizer");
    let (text, made) = (dir.join("text.txt"), dir.join("made"));
    write_text(&text);
    let (code, out, err) = run(netcl()
        .args(["tokenizer", "train", "--vocab", "300", "--data"])
        .arg(&text)
        .arg("--out")
        .arg(&made));
    assert_eq!((code, out), (0, format!("{}\n", made.join("tokenizer.json").display())), "{err}");
    let (_, ids, _) = run(netcl().args(["tokenizer", "encode", "4 plus 5 is 9", "-m"]).arg(&made));
    assert!(ids.trim().split(' ').all(|id| id.parse::<u32>().is_ok_and(|id| id < 300)), "{ids}");
    let mut decode = netcl();
    decode.args(["tokenizer", "decode", "-m"]).arg(&made).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = decode.spawn().unwrap();
    child.stdin.take().unwrap().write_all(ids.as_bytes()).unwrap();
    assert_eq!(texts(&child.wait_with_output().unwrap()).0, "4 plus 5 is 9\n");
    let (code, _, err) = run(netcl().args(["tokenizer", "decode", "9999", "-m"]).arg(&made));
    assert!(code == 1 && err.contains("token 9999 is unknown"), "{err}");
    let (code, _, err) = run(netcl().args(["tokenizer", "encode", "x", "-m"]).arg(&text));
    assert!(code == 1 && err.contains("text.txt") && err.contains("not a tokenizer"), "{err}");
    let (code, _, err) = run(netcl().args(["tokenizer", "train", "--out", "made.json", "--data"]).arg(&text));
    assert!(code == 1 && err.contains("--out made.json names a file, expected a folder"), "{err}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn benchmarks_print_one_object_a_line() {
    let args = ["--json", "--peer", "none", "--rounds", "1", "--device", &device()];
    let (code, out, err) = run(netcl().args(["bench", "gemm", "--sizes", "48,16x32x24"]).args(args));
    assert_eq!(code, 0, "{err}");
    let lines = json_lines(&out);
    assert!(lines[0]["op"] == "ceiling" && lines[0]["gflops"].as_f64().unwrap() > 0.1, "{out}");
    assert_eq!(lines.len(), 1 + 2 * 3);
    assert_eq!(
        (lines[4]["shape"].clone(), lines[5]["layout"].clone()),
        (serde_json::json!([16, 32, 24]), "NT".into())
    );
    for line in &lines[1..] {
        assert!(
            line["median_ms"].as_f64().unwrap() > 0.0 && line["gflops"].is_f64() && line["gbps"].is_f64(),
            "{line}"
        );
        assert!(line["device"].is_string() && line["dtype"] == "f32" && line.get("peer").is_none(), "{line}");
    }
    let (code, out, err) =
        run(netcl().args(["bench", "train", "--layers", "1", "--width", "16", "--heads", "2"]).args(args));
    assert_eq!(code, 0, "{err}");
    let line = &json_lines(&out)[1];
    assert!(
        line["op"] == "train" && line["layers"] == 1 && line["launches"].as_u64().unwrap() > 10,
        "{line}"
    );
    let (code, _, err) = run(netcl().args(["bench", "ops", "--op", "nothing"]).args(args));
    assert!(code == 1 && err.contains("no op with a benchmark is called \"nothing\""), "{err}");
}

#[test]
fn benchmarks_explain_choices_and_time_what_was_not_chosen() {
    let args = ["--json", "--peer", "none", "--sample-ms", "0.1", "--device", &device()];
    for (what, shape, sizes, tables) in [
        ("gemm", "16x32x24", serde_json::json!([16, 32, 24]), 3),
        ("attention", "1x4/2x9x16", serde_json::json!([1, 4, 9, 16]), 2),
    ] {
        let (code, out, err) = run(netcl().args(["bench", what, "--explain", shape]).args(args));
        assert_eq!(code, 0, "{err}");
        let lines = json_lines(&out);
        assert_eq!(lines.len(), 1 + tables, "{out}");
        for line in &lines[1..] {
            assert_eq!((&line["op"], &line["shape"]), (&what.into(), &sizes), "{line}");
            let rows = line["algorithms"].as_array().unwrap();
            let chosen: Vec<_> = rows.iter().filter(|row| row["chosen"] == true).collect();
            assert!(chosen.len() == 1 && chosen[0]["estimate_us"].as_f64().unwrap() > 0.0, "{line}");
            let said = |row: &serde_json::Value| row["plan"].is_string() || row["why_not"].is_string();
            assert!(rows.len() > 3 && rows.iter().all(said), "{line}");
        }
    }
    let (code, out, err) =
        run(netcl().args(["bench", "attention", "--regret", "1", "--seed", "3"]).args(args));
    assert!(code == 0 && err.contains("2 passes of attention in f32, seed 3: regret "), "{err}");
    let lines = json_lines(&out);
    assert_eq!((&lines[1]["pass"], &lines[2]["pass"]), (&"fwd".into(), &"bwd".into()), "{out}");
    for line in &lines[1..] {
        let regret = line["regret"].as_f64().unwrap();
        let times = line["algorithms"].as_array().unwrap().iter().map(|row| row["us"].as_f64().unwrap());
        assert!(regret >= 1.0 && times.fold(0.0, f64::max) > 0.0, "{line}");
    }
}

#[test]
fn a_peer_that_is_not_there_is_an_error_only_when_it_was_named() {
    let (code, _, err) = run(netcl().args([
        "bench",
        "gemm",
        "--sizes",
        "16",
        "--peer",
        "/nowhere/python",
        "--device",
        &device(),
    ]));
    assert!(code == 1 && err.contains("--peer /nowhere/python"), "{err}");
}

#[test]
fn kernels_are_written_without_a_device() {
    let dir = folder("kernels");
    let (code, out, err) =
        run(without_opencl(&dir).args(["kernels", "--limit", "2", "--dump"]).arg(dir.join("sources")));
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("sources of"), "{out}");
    let names: Vec<String> = std::fs::read_dir(dir.join("sources"))
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    for part in ["elementwise.", "softmax", "matmul_tile", "matmul_vector", "attention_tile"] {
        assert!(names.iter().any(|n| n.starts_with(part) && n.ends_with(".cl")), "{part}: {names:?}");
    }
    let source = std::fs::read_to_string(dir.join("sources").join(&names[0])).unwrap();
    assert!(source.contains("#define") && source.contains("__kernel"));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child =
        netcl().args(["devices", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), texts(&output).1.as_str()), (Some(0), ""));
}

#[cfg(unix)]
#[test]
fn signals_end_a_command_with_their_exit_code() {
    let dir = folder("signals");
    let text = dir.join("text.txt");
    write_text(&text);
    run(netcl().args(["tokenizer", "train", "--kind", "char", "--data"]).arg(&text).arg("--out").arg(&dir));
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        // The command waits for its input when the signal comes.
        let mut child = netcl()
            .args(["tokenizer", "encode", "-m"])
            .arg(&dir)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The input stays open until the command has ended: `wait` would close it, and the end of the input also ends the command.
        let input = child.stdin.take();
        std::thread::sleep(std::time::Duration::from_millis(500));
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        drop(input);
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn the_memory_of_a_step_is_explained() {
    let dir = folder("memory");
    let data = dir.join("text.txt");
    write_text(&data);
    let mut args = tiny_run(&data, &dir.join("run"), 6);
    args.extend("--eval-every 0 --explain-memory --graph on --recompute gelu".split(' ').map(Into::into));
    let (code, _, err) = run(netcl().args(&args));
    assert_eq!(code, 0, "{err}");
    for part in ["memory of training", "state of AdamW", "peak in use at once", "(layer 1)", "--recompute"] {
        assert!(err.contains(part), "{part:?} is missing in {err}");
    }
    let kept = std::fs::read_to_string(dir.join("run/config.toml")).unwrap();
    assert!(kept.contains("graph = \"on\"") && kept.contains("recompute = \"gelu\""), "{kept}");
    // Without a table, the reason is printed.
    for (run_name, flags, why) in [
        ("eager", "--graph off", "with --graph off no step is captured"),
        ("checked", "--detect-anomaly", "with --detect-anomaly no step is captured"),
    ] {
        let mut args = tiny_run(&data, &dir.join(run_name), 6);
        args.extend("--eval-every 0 --explain-memory".split(' ').map(Into::into));
        args.extend(flags.split(' ').map(Into::into));
        let (code, _, err) = run(netcl().args(&args));
        assert_eq!(code, 0, "{err}");
        let told = err.lines().filter(|line| line.contains("--explain-memory: no table, because ")).count();
        assert!(told == 1 && err.contains(why), "{why:?} is missing in {err}");
    }
    let (code, _, err) = run(netcl().args(["train", "--graph", "maybe"]));
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("it is one of auto, on, off"), "{err}");
    std::fs::remove_dir_all(dir).unwrap();
}
