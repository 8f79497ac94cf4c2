//! `netcl learn`: every step of every ladder is correct at odd sizes, or says why it cannot run.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{device, netcl, texts};
use serde_json::Value;

fn learn(args: &[&str]) -> (i32, String, String) {
    learn_built(args, "")
}

/// Builds kernels with these options [default: those of users].
fn learn_built(args: &[&str], options: &str) -> (i32, String, String) {
    let mut command = netcl();
    command.env_remove("NETCL_QUICK_BUILDS");
    if !options.is_empty() {
        command.env("NETCL_BUILD_OPTIONS", options);
    }
    let output = command.arg("learn").args(args).output().unwrap();
    let (out, err) = texts(&output);
    assert!(!err.contains("defect and cannot continue"), "{err}");
    (output.status.code().unwrap_or(-1), out, err)
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Ladders: name, number of steps, and the steps that require a certain vendor.
const LADDERS: [(&str, usize, &[u64]); 2] = [("matmul", 9, &[8, 9]), ("attention", 6, &[])];

/// The program compares results; on simulated devices after a run with all checks.
fn all_steps(device: &str, sizes: &[&str], options: &str) {
    for (ladder, steps, special) in LADDERS {
        for size in sizes {
            let args = [ladder, "--device", device, "--size", size, "--rounds", "1", "--json"];
            let (code, out, err) = learn_built(&args, options);
            assert_eq!(code, 0, "{ladder} {size}: {out}{err}");
            let objects = objects(&out);
            assert_eq!(objects.len(), steps);
            for (number, step) in (1..).zip(&objects) {
                assert_eq!(step["step"], number, "{step}");
                match step["skipped"].as_str() {
                    Some(why) => assert!(special.contains(&number) && why.contains("needs NVIDIA"), "{step}"),
                    None => {
                        assert!(
                            step["rows"].as_u64().unwrap() > 0 && step["rows_checked"] == step["rows"],
                            "{step}"
                        );
                        assert!(step["ms"].as_f64().unwrap() > 0.0 && step["share"].as_f64().unwrap() > 0.0);
                        assert_eq!(step["bound_by"].is_string(), step["modelled"] == true, "{step}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_step_is_right_on_the_test_device() {
    all_steps(&device(), &["67x35x19"], "");
    // Each size builds all kernels again. Without optimizations, the builds take a quarter of the time.
    all_steps(&device(), &["1x1x1", "3x129x64", "2x77x8"], "-cl-opt-disable");
}

#[test]
fn every_step_is_right_on_the_simulated_device_under_all_checks() {
    all_steps("sim", &["1x1x1", "67x35x19", "2x77x8"], "");
    all_steps("sim:h200", &["3x129x64"], "");
}

#[test]
fn a_step_is_compared_with_the_one_before_and_says_what_bounds_it() {
    let (code, out, err) = learn(&["matmul", "3", "--device", "sim", "--size", "40x40x40"]);
    assert_eq!(code, 0, "{err}");
    for part in [
        "2  coalesced access",
        "3  tiles in local memory",
        "× step 2",
        "bound by",
        "all rows",
        "local memory",
    ] {
        assert!(out.contains(part), "{part} is missing in {out}");
    }
    let (code, out, _) = learn(&["matmul", "3", "--device", "sim", "--size", "40x40x40", "--json"]);
    let step = &objects(&out)[0];
    assert!(code == 0 && step["before"]["step"] == 2 && step["gflops"].as_f64().unwrap() > 0.0, "{step}");
}

#[test]
fn ladders_are_listed_and_sources_shown() {
    let (code, out, _) = learn(&[]);
    assert!(
        code == 0 && out.contains("matmul: one matrix product") && out.contains("  4 register tiles"),
        "{out}"
    );
    let (code, out, _) = learn(&["--json"]);
    assert_eq!((code, objects(&out).len()), (0, LADDERS.iter().map(|(_, steps, _)| steps).sum()));
    let (code, out, _) = learn(&["matmul", "1", "--show"]);
    assert!(
        code == 0 && out.starts_with("/* Matrix product, step 1 of 9") && out.contains("__kernel"),
        "{out}"
    );
}

#[test]
fn what_cannot_be_done_is_said() {
    let (code, _, err) = learn(&["matmul", "8", "--device", "sim"]);
    assert!(code != 0 && err.contains("8_mma.cl: needs NVIDIA sm_80"), "{err}");
    let (code, _, err) = learn(&["matmul", "10"]);
    assert!(code != 0 && err.contains("no step 10: matmul has steps 1 to 9"), "{err}");
    for (args, part) in [
        (&["matmull"] as &[&str], "matmul"),
        (&["matmul", "--size", "3x0x5"], "expected three sizes"),
        (&["matmul", "--show"], "<STEP>"),
    ] {
        let (code, _, err) = learn(args);
        assert!(code == 2 && err.contains(part), "{args:?}: {err}");
    }
    let (code, _, err) = learn(&["matmul", "1", "--device", "sim", "--size", "200000x200000x1"]);
    assert!(code != 0 && err.contains("takes at least") && err.contains("smaller sizes"), "{err}");
}

#[test]
fn a_sample_of_the_groups_gives_times_without_results() {
    let mut command = netcl();
    command.args(["learn", "matmul", "4", "--device", "sim:h200", "--size", "1024x1024x64"]);
    let output = command.env("NETCL_SIM_SAMPLE", "4").output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success() && out.contains("register tiles"), "{out}{err}");
    assert!(err.contains("4 groups of each launch ran") && !out.contains("all rows"), "{out}{err}");
}

/// The numbers in the tutorial's page for the simulated device are those that the program prints.
#[test]
fn the_page_has_the_models_shares() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/kernels.md");
    let page = std::fs::read_to_string(page).unwrap();
    for (ladder, ..) in LADDERS {
        let (code, out, err) = learn(&[ladder, "--device", "sim", "--json"]);
        assert_eq!(code, 0, "{err}");
        for step in objects(&out) {
            let row = format!("| {} {} | ", step["step"], step["title"].as_str().unwrap());
            let row =
                page.lines().find_map(|line| line.strip_prefix(&row)).unwrap_or_else(|| panic!("no {row}"));
            let modelled =
                step["share"].as_f64().map_or(String::new(), |share| format!("{:.1} %", 100.0 * share));
            assert_eq!(row.split(" | ").nth(2).unwrap().trim(), modelled, "{ladder} {row}");
        }
    }
}
