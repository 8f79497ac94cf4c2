//! The worker processes of `netcl doctor`.
#![allow(clippy::unwrap_used)] // helpers of tests

use crate::common;

use common::{folder, netcl, texts};
use netcl::kernel::tune::{Quarantine, Suspect};
use netcl::prelude::{Device, Settings};
use std::io::Write;
use std::process::Stdio;

/// Returns a worker's output and errors for these lines, and whether it exited with 0.
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
    assert!(!well && err.contains("is not an op and a storage type"), "{err}");
}

/// Kernels that belong to no op are tested too, and can be selected by name.
#[test]
fn kernels_that_run_models_are_tested() {
    let folder = folder("doctor-models");
    let report = |op: &str| {
        let mut command = netcl();
        command
            .args(["doctor", "--device", "sim:rx7900xtx", "--json", "--op", op])
            .env("NETCL_CACHE_DIR", &folder);
        let output = command.output().unwrap();
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{out}{err}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()["devices"][0]["inference"].clone()
    };
    assert_eq!(report("decode_step"), serde_json::json!({ "decode_step": 4 }));
    assert!(report("matmul_int8")["matmul_int8"].as_u64() >= Some(42));
    assert_eq!(report("balance_loss"), serde_json::json!({}));
}

#[test]
fn one_op_is_tested_alone_and_an_unknown_one_is_answered_with_the_names() {
    let folder = folder("doctor-op");
    let doctor = |op: &str, more: &[&str]| {
        let mut command = netcl();
        command.args(["doctor", "--device", "sim", "--json", "--op", op]).args(more);
        command.env("NETCL_CACHE_DIR", &folder).env("NETCL_SIM_CHECK", "all");
        let output = command.output().unwrap();
        let (out, err) = texts(&output);
        (out, err, output.status.code())
    };
    let report = |out: &str| serde_json::from_str::<serde_json::Value>(out).unwrap();
    let (out, err, code) = doctor("balance_loss", &[]);
    assert_eq!(code, Some(0), "{out}{err}");
    let found = report(&out)["devices"][0].clone();
    assert!(found["ops"] == 1 && found["cases"].as_u64() > Some(0), "{found}");
    let (out, err, code) = doctor("relu", &["--quick"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let kernels = report(&out)["devices"][0]["kernels"].as_u64().unwrap();
    assert!((1..10).contains(&kernels), "{kernels} kernels for relu");
    let (_, err, code) = doctor("reluu", &[]);
    assert!(
        code != Some(0) && err.contains("no op is called \"reluu\"") && err.contains("softmax::Softmax"),
        "{err}"
    );
}

#[test]
fn a_test_of_one_op_leaves_what_others_have_in_quarantine() {
    let folder = folder("doctor-others");
    let settings = Settings { cache_dir: Some(folder.clone()), ..Settings::default() };
    let device = Device::open("sim", &settings).unwrap();
    let quarantine = || Quarantine::open(&settings, device.capabilities());
    let suspect =
        |kernel: &str| Suspect { kernel: kernel.into(), why: "a test".into(), ..Suspect::default() };
    let kept = quarantine();
    kept.replace(vec![suspect("some_other_kernel")]);
    kept.save().unwrap();
    let output = netcl()
        .args(["doctor", "--device", "sim", "--op", "relu"])
        .env("NETCL_CACHE_DIR", &folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{:?}", texts(&output));
    let names: Vec<String> = quarantine().suspects().into_iter().map(|s| s.kernel).collect();
    assert_eq!(names, ["some_other_kernel"]);
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
    assert!(err.contains("no op is called") && err.contains("did you mean softmax?"), "{err}");
}
