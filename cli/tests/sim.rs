//! `netcl sim` from outside: results, findings, exit codes, JSON, timeline.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{folder, netcl, texts};
use serde_json::Value;
use std::path::PathBuf;

fn example(name: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/sim").join(name);
    root.display().to_string()
}

fn sim(args: &[&str], file: &str, more: &[&str]) -> (i32, String, String) {
    let output = netcl().arg("sim").args(args).arg(example(file)).args(more).output().unwrap();
    let (out, err) = texts(&output);
    assert!(!err.contains("defect and cannot continue"), "{err}");
    (output.status.code().unwrap_or(-1), out, err)
}

const MATMUL: [&str; 10] = [
    "--global",
    "16,16",
    "--arg",
    "buffer:f32:256:iota:read",
    "--arg",
    "buffer:f32:256:1:read",
    "--arg",
    "buffer:f32:256",
    "--arg",
    "u32:16",
];

/// Returns the time at the start of a line of the trace, in ns.
fn moment(line: &str) -> Option<f64> {
    let (number, unit) = line.strip_prefix('[')?.split_once(']')?.0.split_once(' ')?;
    let scale = match unit {
        "ns" => 1.0,
        "µs" => 1e3,
        "ms" => 1e6,
        _ => 1e9,
    };
    Some(number.parse::<f64>().ok()? * scale)
}

#[test]
fn a_product_is_computed_explained_and_drawn() {
    let dir = folder("sim-run");
    let trace = dir.join("trace.json");
    let mut args = MATMUL.to_vec();
    let path = trace.display().to_string();
    args.extend(["--check", "all", "--trace", &path, "--trace-level", "all"]);
    let (code, out, err) = sim(&["run"], "matmul.cl", &args);
    assert_eq!(code, 0, "{out}{err}");
    // Sums of 0 … 15, then 16 … 31, sixteen times each.
    assert!(out.contains("c (256 elements): 120 120"), "{out}");
    assert!(out.contains("bound by") && out.contains("4096"), "{out}");
    for step in ["doorbell", "command processor", "copy engine 0", "unit 3", "interrupt"] {
        assert!(err.contains(step), "{step}: {err}");
    }
    let times: Vec<f64> = err.lines().filter_map(moment).collect();
    assert!(times.len() > 10 && times.windows(2).all(|w| w[0] <= w[1]), "{err}");
    let timeline: Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
    let names: Vec<&str> = timeline["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|e| e["args"]["name"].as_str())
        .collect();
    for track in ["host", "queue 0", "copy engine 0", "compute unit 0", "compute unit 3"] {
        assert!(names.contains(&track), "{track}: {names:?}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn the_page_for_learners_shows_what_is_printed() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/aethercl.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, behind) = page.split_once("prints every step. From its output:\n\n```text\n").unwrap();
    let (block, _) = behind.split_once("```").unwrap();
    let mut args = MATMUL.to_vec();
    args.extend(["--trace-level", "all"]);
    let (code, out, err) = sim(&["run"], "matmul.cl", &args);
    assert_eq!(code, 0, "{out}{err}");
    let printed: Vec<&str> = err.lines().chain(out.lines()).collect();
    let shown: Vec<&str> = block.lines().filter(|l| !l.starts_with(" …")).collect();
    assert!(shown.len() > 15, "{block}");
    // Every line is printed, in that order.
    let mut at = 0;
    for line in shown {
        let found = printed[at..].iter().position(|p| *p == line);
        at += found.unwrap_or_else(|| panic!("{line:?} is not printed there: {printed:#?}")) + 1;
    }
}

#[test]
fn profiles_differ_and_json_has_all_of_it() {
    let run = |profile: &str| {
        let mut args = MATMUL.to_vec();
        args.extend(["--json", "--profile", profile]);
        let (code, out, err) = sim(&["run"], "matmul.cl", &args);
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<Value>(&out).unwrap()
    };
    let (teaching, h200) = (run("teaching"), run("h200"));
    assert!(teaching["time"]["ns"].as_u64().unwrap() > h200["time"]["ns"].as_u64().unwrap());
    assert_eq!(teaching["buffers"][0]["first"][0], 120.0);
    assert_eq!(teaching["findings"].as_array().unwrap().len(), 0);
}

#[test]
fn every_defect_of_the_example_is_found() {
    let (read, write) = ("buffer:f32:64:random:read", "buffer:f32:64:zero");
    for (kernel, args, word) in [
        ("race", &["--arg", "buffer:i32:64:iota:read", "--arg", "buffer:i32:1:zero"][..], "race"),
        ("past", &["--arg", read, "--arg", write], "x[i + 1]"),
        ("no_barrier", &["--arg", read, "--arg", write], "all[(l + 1) % 64]"),
        ("divergent", &["--arg", write], "barrier"),
        ("unwritten", &["--arg", read, "--arg", write, "--arg", "u32:64"], "sum +="),
    ] {
        let mut all = vec!["--kernel", kernel, "--global", "64", "--local", "64"];
        all.extend(args);
        let (code, out, err) = sim(&["check"], "defects.cl", &all);
        assert_eq!(code, 7, "{kernel}: {out}{err}");
        assert!(out.contains(word) && out.contains('^') && out.contains("defects.cl:"), "{kernel}: {out}");
        all.push("--json");
        let (code, out, _) = sim(&["check"], "defects.cl", &all);
        let report: Value = serde_json::from_str(&out).unwrap();
        let first = &report["findings"][0];
        assert!(code == 7 && first["line"].as_u64().unwrap() > 1 && first["kernel"] == kernel, "{report}");
    }
    let (code, out, _) = sim(&["check"], "matmul.cl", &MATMUL);
    assert!(code == 0 && out.contains("nothing found"), "{out}");
}

#[test]
fn mistakes_on_the_command_line_are_named() {
    for (more, code, part) in [
        (&["--global", "16,16"][..], 1, "takes 4"),
        (&["--global", "15,16", "--arg", "u32:1"], 1, "does not divide"),
        (&["--global", "0"], 2, "is not a valid size"),
        (&["--arg", "buffer:f99:1"], 2, "f32"),
        (&["--profile", "voodoo"], 1, "rx7900xtx"),
        (&["--kernel", "nothing", "--global", "8,8"], 1, "matmul"),
        (&["--check", "everything"], 1, "everything"),
    ] {
        let (got, _, err) = sim(&["check"], "matmul.cl", more);
        assert!(got == code && err.contains(part), "{more:?}: {got} {err}");
    }
    let dir = folder("sim-bad");
    let bad = dir.join("bad.cl");
    std::fs::write(&bad, "__kernel void f(__global int *x) {\n  x[0] = y;\n}\n").unwrap();
    let output = netcl().args(["sim", "check"]).arg(&bad).output().unwrap();
    let (_, err) = texts(&output);
    assert!(output.status.code() == Some(5) && err.contains("bad.cl:2:") && err.contains('^'), "{err}");
    std::fs::remove_dir_all(dir).unwrap();
}
