//! `netcl sim check` finds each kind of defect, with its file, line and caret; `netcl train --device sim` chooses its preset.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{folder, netcl, texts, write_text};
use serde_json::Value;

/// Defects: the kernel's name, its source and arguments, the finding's name, and the source above the caret.
const DEFECTS: [(&str, &str, &[&str], &str, &str); 10] = [
    (
        "read_past",
        "__kernel void read_past(__global const int *x, __global int *y) {\n  y[get_global_id(0)] = x[get_global_id(0) + 1];\n}",
        &["buffer:i32:8:iota:read", "buffer:i32:8"],
        "read-outside",
        "x[get_global_id(0) + 1]",
    ),
    (
        "write_past",
        "__kernel void write_past(__global int *y) {\n  y[get_global_id(0) * 2] = 1;\n}",
        &["buffer:i32:8:zero"],
        "write-outside",
        "y[get_global_id(0) * 2] = 1",
    ),
    (
        "row",
        "__kernel void row(__global int *y, int n) {\n  int t[2][4] = {{0}};\n  t[0][n] = 1;\n  y[get_global_id(0)] = t[1][0];\n}",
        &["buffer:i32:8", "i32:4"],
        "index-outside",
        "t[0][n] = 1",
    ),
    (
        "shifted",
        "__kernel void shifted(__global char *y) {\n  *(__global int *)(y + get_global_id(0) * 4 + 1) = 1;\n}",
        &["buffer:i8:64:zero"],
        "misaligned",
        "*(__global int *)",
    ),
    (
        "unwritten",
        "__kernel void unwritten(__global const int *x, __global int *y) {\n  y[get_global_id(0)] = x[get_global_id(0)] + 1;\n}",
        &["buffer:i32:8:unwritten:read", "buffer:i32:8"],
        "uninitialized",
        "x[get_global_id(0)] + 1",
    ),
    (
        "neighbour",
        "__kernel void neighbour(__global int *y) {\n  __local int t[8];\n  int l = get_local_id(0);\n  t[l] = l;\n  y[l] = t[(l + 1) % 8];\n}",
        &["buffer:i32:8"],
        "race-in-group",
        "t[(l + 1) % 8]",
    ),
    (
        "shared",
        "__kernel void shared(__global int *y) {\n  if (get_local_id(0) == 0) y[0] = get_group_id(0);\n}",
        &["buffer:i32:1:zero"],
        "race-between-groups",
        "y[0] = get_group_id(0)",
    ),
    (
        "some",
        "__kernel void some(__global int *y) {\n  if (get_local_id(0) < 3)\n    barrier(CLK_LOCAL_MEM_FENCE);\n  y[get_global_id(0)] = 1;\n}",
        &["buffer:i32:8"],
        "divergent-barrier",
        "barrier(CLK_LOCAL_MEM_FENCE)",
    ),
    (
        "divided",
        "__kernel void divided(__global int *y) {\n  y[get_global_id(0)] = 100 / (int)get_global_id(0);\n}",
        &["buffer:i32:8"],
        "division-by-zero",
        "100 / (int)get_global_id(0)",
    ),
    (
        "kept",
        "__kernel void kept(__global int *y) {\n  y[get_global_id(0)] += 1;\n}",
        &["buffer:i32:8:iota:read"],
        "write-to-read",
        "y[get_global_id(0)] += 1",
    ),
];

#[test]
fn every_kind_of_finding_has_its_place_its_line_and_a_caret() {
    let dir = folder("sim-checks");
    for (kernel, text, args, name, line) in DEFECTS {
        let file = dir.join(format!("{kernel}.cl"));
        std::fs::write(&file, text).unwrap();
        let local = if name == "race-between-groups" { "4" } else { "8" };
        let mut command = netcl();
        command.args(["sim", "check"]).arg(&file).args(["--global", "8", "--local", local]);
        args.iter().for_each(|a| _ = command.args(["--arg", a]));
        let output = command.output().unwrap();
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(7), "{kernel}: {out}{err}");
        let one_or_more =
            ["1 finding in", "findings in"].iter().any(|n| err.contains(&format!("{n} kernel {kernel}")));
        assert!(one_or_more, "{kernel}: {err}");

        let output = command.arg("--json").output().unwrap();
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(7), "{kernel}: {out}{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        let found = report["findings"].as_array().unwrap().iter().find(|f| f["kind"] == name);
        let found = found.unwrap_or_else(|| panic!("{kernel}: {name} is missing in {out}"));
        // The line is a line of the source, and a caret below it marks the column.
        let number = found["line"].as_u64().unwrap() as usize;
        let source = text.lines().nth(number - 1).unwrap();
        assert!(source.contains(line), "{kernel}: line {number} is {source:?}");
        let shown: Vec<&str> = found["text"].as_str().unwrap().lines().collect();
        assert_eq!(shown[1], source, "{kernel}: {shown:?}");
        let column = found["column"].as_u64().unwrap() as usize;
        assert_eq!(shown[2].find('^'), Some(column - 1), "{kernel}: {shown:?}");
        assert!(shown[0].contains(&format!("{kernel}.cl:{number}:{column}: {name}")), "{kernel}: {shown:?}");
        assert!(found["kernel"] == kernel && found["count"].as_u64().unwrap() >= 1, "{found}");

        // Without this check, the finding does not appear.
        let which = match name {
            "read-outside" | "write-outside" | "index-outside" | "misaligned" => "bounds",
            "uninitialized" => "uninitialized",
            "race-in-group" | "race-between-groups" => "races",
            "divergent-barrier" => "barriers",
            "division-by-zero" => "division",
            _ => "contract",
        };
        let all = ["bounds", "uninitialized", "races", "barriers", "division", "contract"];
        let others: Vec<&str> = all.into_iter().filter(|c| *c != which).collect();
        let output = command.args(["--check", &others.join(",")]).output().unwrap();
        let (out, _) = texts(&output);
        assert!(!out.contains(&format!("\"{name}\"")), "{kernel}: {out}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_file_without_defects_is_exit_code_0_with_an_empty_report() {
    let dir = folder("sim-clean");
    let file = dir.join("clean.cl");
    std::fs::write(&file, "__kernel void clean(__global int *y) { y[get_global_id(0)] = 1; }").unwrap();
    let nothing = |output: &std::process::Output| {
        let (out, err) = texts(output);
        assert_eq!(output.status.code(), Some(0), "{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (report["findings"].to_string(), report["failures"].to_string()),
            ("[]".into(), "[]".into())
        );
        err
    };
    for more in [&["--global", "8", "--arg", "buffer:i32:8", "--json"][..], &["--json"]] {
        nothing(&netcl().args(["sim", "check"]).arg(&file).args(more).output().unwrap());
    }
    // The build's warnings are printed.
    let foreign = ["--options", "-cl-nv-maxrregcount=64", "--json"];
    let err = nothing(&netcl().args(["sim", "check"]).arg(&file).args(foreign).output().unwrap());
    assert!(err.contains("warning: build option '-cl-nv-maxrregcount=64'"), "{err}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn training_on_a_simulated_device_takes_the_preset_that_fits_it() {
    let dir = folder("sim-train");
    let (text, model) = (dir.join("text.txt"), dir.join("model"));
    write_text(&text);
    let few = "train --device sim --layers 1 --width 16 --heads 2 --context 8 --batch 2 --steps 2 --warmup 1 --eval-every 0 --sample-every 0";
    let output =
        netcl().args(few.split(' ')).arg("--data").arg(&text).arg("--out").arg(&model).output().unwrap();
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    let config = std::fs::read_to_string(model.join("config.toml")).unwrap();
    assert!(config.contains("preset = \"demo-tiny\""), "{config}");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Formerly fine-tuning used the simulated device's preset for new models: a learning rate of 0.004 and a weight decay of 0.1.
#[test]
fn fine_tuning_on_a_simulated_device_takes_the_recipe_of_fine_tuning() {
    let dir = folder("sim-finetune");
    let (text, model, tuned) = (dir.join("text.txt"), dir.join("model"), dir.join("tuned"));
    write_text(&text);
    let pace = "--device sim --context 8 --batch 2 --steps 2 --eval-every 0 --sample-every 0";
    let run = |flags: &str, more: [(&str, &std::path::Path); 2]| {
        let mut command = netcl();
        command.arg("train").args(format!("{pace} {flags}").split_whitespace());
        for (flag, path) in more {
            command.arg(flag).arg(path);
        }
        let (out, err) = texts(&command.arg("--data").arg(&text).output().unwrap());
        assert!(!err.contains("error"), "{out}{err}");
        (out, err)
    };
    run("--layers 1 --width 16 --heads 2", [("--out", &model), ("--out", &model)]);
    let (_, err) = run("--dropout 0", [("--init", &model), ("--out", &tuned)]);
    assert!(err.contains("fine-tuning takes long on it") && !err.contains("demo-tiny"), "{err}");
    let config = std::fs::read_to_string(tuned.join("config.toml")).unwrap();
    for part in ["preset = \"finetune\"", "weight_decay = 0.0", "betas = [0.9, 0.999]"] {
        assert!(config.contains(part), "{part} is missing: {config}");
    }
    let rate = config.lines().find_map(|line| line.strip_prefix("lr = ")?.parse::<f64>().ok());
    assert_eq!(rate, Some(2e-5), "{config}");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Launches a kernel that needs more local memory than the device of a profile has. `run` and `check` refuse it.
#[test]
fn too_much_local_memory_is_refused_by_profile() {
    let dir = folder("sim-local");
    let file = dir.join("tile.cl");
    let text = "__kernel void tile(__global float *y) {\n  __local float a[12288];\n  a[get_local_id(0)] = 1;\n  y[get_global_id(0)] = a[get_local_id(0)];\n}";
    std::fs::write(&file, text).unwrap();
    for (profile, code) in [("teaching", 0), ("arc-a770", 0), ("adreno-750", 6)] {
        for action in ["run", "check"] {
            let args = ["--global", "64", "--local", "64", "--arg", "buffer:f32:64", "--profile", profile];
            let output = netcl().args(["sim", action]).arg(&file).args(args).output().unwrap();
            let (_, err) = texts(&output);
            assert_eq!(output.status.code(), Some(code), "{profile}: {err}");
            for part in ["CL_OUT_OF_RESOURCES", "tile.cl:2:17", "takes 49152 bytes", "adreno-750 has 32768"] {
                assert_eq!(err.contains(part), code != 0, "{profile}: {part}: {err}");
            }
        }
    }
    std::fs::remove_dir_all(dir).unwrap();
}
