//! `netcl sim` and `aethercl` agree: one kernel has the same exit code, default checks and findings in both.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)] // a test

use crate::common;

use common::{folder, netcl};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Launches the kernel `twice` on 64 integers, which are their indices; with an argument, on one work-item more.
const PROGRAM: &str = include_str!("../../crates/aethercl-icd/tests/twice.c");
/// The kernel in that program.
const KERNEL: &str = "kernel void twice(global int *x) { x[get_global_id(0)] *= 2; }";

/// Returns the program `aethercl` and its library, built with the rest of the workspace.
fn aethercl() -> Option<(PathBuf, PathBuf)> {
    let built = Path::new(env!("CARGO_BIN_EXE_netcl")).parent()?;
    let program = built.join(format!("aethercl{}", std::env::consts::EXE_SUFFIX));
    let library = ["deps/libaethercl_icd.so", "libaethercl_icd.so"].map(|name| built.join(name));
    Some((program, library.into_iter().find(|path| path.is_file())?)).filter(|(program, _)| program.is_file())
}

/// Exit code and report.
type ExitAndReport = (Option<i32>, Value);

/// Runs one kernel in both programs: `netcl sim run`, then `aethercl run`.
fn both(name: &str, kernel: &str, items: &str, options: &[&str]) -> Option<[ExitAndReport; 2]> {
    let Some((program, library)) = aethercl() else {
        eprintln!("skipped: the program aethercl is not built");
        return None;
    };
    let folder = folder(name);
    let (file, source, host, json) =
        (folder.join("twice.cl"), folder.join("twice.c"), folder.join("twice"), folder.join("report.json"));
    std::fs::write(&file, kernel).unwrap();
    assert!(PROGRAM.contains(KERNEL));
    std::fs::write(&source, PROGRAM.replace(KERNEL, kernel)).unwrap();
    let Ok(built) = Command::new("cc").arg(&source).arg("-o").arg(&host).arg("-ldl").output() else {
        eprintln!("skipped: no C compiler");
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    let mut sim = netcl();
    sim.args(["sim", "run"]).arg(&file).args([
        "--global",
        items,
        "--local",
        items,
        "--arg",
        "buffer:i32:64:iota",
        "--json",
    ]);
    let out = sim.args(options).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    let from_sim: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {text}"));
    let codes = out.status.code();

    let mut run = Command::new(program);
    run.args(["run", "--profile", "teaching", "--json"]).arg(&json).args(options).arg("--").arg(&host);
    run.args((items != "64").then_some("one more"));
    run.env("AETHERCL_LIBRARY", library).env_remove("AETHERCL_CHECK").env_remove("AETHERCL_PROFILES");
    let out = run.output().unwrap();
    let text = std::fs::read_to_string(&json)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out.stderr)));
    let from_run: Value = serde_json::from_str(&text).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    Some([(codes, from_sim), (out.status.code(), from_run)])
}

/// Returns the findings without the names that differ: files and buffers, which each program names differently.
fn findings(report: &Value) -> Vec<Value> {
    let mut all = report["findings"].as_array().unwrap().clone();
    for finding in &mut all {
        let finding = finding.as_object_mut().unwrap();
        assert!(finding["text"].as_str().unwrap().contains(finding["hint"].as_str().unwrap()));
        for name in ["file", "object", "text", "message"] {
            assert!(finding.remove(name).is_some(), "{name}");
        }
    }
    all
}

#[test]
fn the_same_defect_has_the_same_exit_code_and_findings() {
    for options in [&[][..], &["--check", "all"]] {
        let Some([sim, run]) = both("sim-programs-bounds", KERNEL, "65", options) else { return };
        assert_eq!((sim.0, run.0), (Some(7), Some(7)), "{options:?}");
        let found = findings(&sim.1);
        let kinds: Vec<&str> = found.iter().filter_map(|f| f["kind"].as_str()).collect();
        assert_eq!(kinds, ["read-outside", "write-outside"]);
        assert_eq!(found, findings(&run.1));
        assert_eq!((&sim.1["failures"], &sim.1["kernels"]), (&run.1["failures"], &run.1["kernels"]));
        let reports = [&sim.1, &run.1].map(|report| report["transfers"].as_array().unwrap().len());
        assert!(reports.iter().all(|n| *n > 0), "{reports:?}");
    }
}

#[test]
fn both_check_the_same_by_default() {
    let race = "kernel void twice(global int *x) { x[0] += get_global_id(0); }";
    let Some([sim, run]) = both("sim-programs-default", race, "64", &[]) else { return };
    assert_eq!((sim.0, run.0), (Some(0), Some(0)));
    assert!(findings(&sim.1).is_empty() && findings(&run.1).is_empty());
    let Some([sim, run]) = both("sim-programs-all", race, "64", &["--check", "races"]) else { return };
    assert_eq!((sim.0, run.0), (Some(7), Some(7)));
    assert!(!findings(&sim.1).is_empty());
    assert_eq!(findings(&sim.1), findings(&run.1));
}

#[test]
fn a_launch_that_does_not_end_is_a_failure_in_both() {
    let endless = "kernel void twice(global int *x) { if (get_global_id(0) == 3) while (x[0] == 0); }";
    let Some([sim, run]) = both("sim-programs-endless", endless, "64", &["--timeout", "0.3"]) else { return };
    assert_eq!(sim.0, Some(6));
    // The program's own code, if it notices the failure in its read.
    assert!(matches!(run.0, Some(6 | 17)), "{run:?}");
    for (_, report) in [sim, run] {
        let failures = report["failures"].as_array().unwrap();
        assert!(failures.len() == 1 && failures[0].as_str().unwrap().contains("kernel twice"), "{report}");
    }
}

#[test]
fn an_unknown_check_is_the_same_error_in_both() {
    let Some((program, library)) = aethercl() else {
        eprintln!("skipped: the program aethercl is not built");
        return;
    };
    let folder = folder("sim-programs-luck");
    let file = folder.join("twice.cl");
    std::fs::write(&file, KERNEL).unwrap();
    let sim = netcl().args(["sim", "run"]).arg(&file).args(["--check", "luck"]).output().unwrap();
    let mut run = Command::new(program);
    let run =
        run.args(["run", "--check", "luck", "--", "true"]).env("AETHERCL_LIBRARY", library).output().unwrap();
    let [sim, run] =
        [sim, run].map(|out| (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned()));
    assert_eq!(sim, run);
    assert!(sim.0 == Some(1) && sim.1.contains("--check: unknown check \"luck\""), "{sim:?}");
    std::fs::remove_dir_all(folder).unwrap();
}
