//! The processes that `netcl doctor` shares its work out over.
#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use common::{netcl, texts};
use std::io::Write;
use std::process::Stdio;

/// What a worker says to these lines, and whether it ended well.
fn answers(lines: &str) -> (String, String, bool) {
    let mut worker = netcl()
        .args(["doctor", "--worker", "--device", "sim"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    worker.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = worker.wait_with_output().unwrap();
    let (out, err) = texts(&output);
    (out, err, output.status.success())
}

#[test]
fn a_worker_tests_the_ops_it_is_asked_for() {
    let (out, err, well) = answers("0 bf16\n1 f32\n");
    assert!(well, "{err}");
    let found: Vec<serde_json::Value> =
        out.lines().filter(|line| *line != ".").map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(found.len(), 2);
    let cases: u64 = found.iter().map(|f| f["verdict"]["cases"].as_u64().unwrap()).sum();
    assert!(cases > 0 && found.iter().all(|f| f["verdict"]["failure"].is_null()), "{found:?}");
    assert!(out.lines().filter(|line| *line == ".").count() as u64 >= cases);
}

#[test]
fn a_question_that_is_none_is_an_error() {
    let (_, err, well) = answers("many f32\n");
    assert!(!well && err.contains("is no op and storage type"), "{err}");
}

#[test]
fn some_ops_alone() {
    let run = |op: &str| netcl().args(["doctor", "--device", "sim", "--json", "--op", op]).output().unwrap();
    let (out, err) = texts(&run("LogSoftmax"));
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let device = &report["devices"][0];
    assert!(report["healthy"] == true && device["ops"] == 1, "{report}{err}");
    assert!(device["cases"].as_u64().unwrap() > 0 && device["kernels"].as_u64().unwrap() > 0, "{report}");
    let (_, err) = texts(&run("sofmax"));
    assert!(err.contains("no op's name contains") && err.contains("did you mean softmax?"), "{err}");
}
