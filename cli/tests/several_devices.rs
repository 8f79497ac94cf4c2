//! Runs on several devices of one process, from different vendors, and plans for more devices.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // helpers of tests

use crate::common;

use common::{device, folder, netcl, texts, tiny_run, write_text};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(Into::into).collect()
}

/// Returns the arguments of a run on `devices` instead of one device.
fn train_on(data: &Path, out: &Path, steps: u32, devices: &[&str]) -> Vec<String> {
    let mut args = tiny_run(data, out, steps);
    let at = args.iter().position(|a| a == "--device").unwrap();
    args.splice(at..at + 2, ["--devices".to_owned(), devices.join(",")]);
    args
}

fn done(command: &mut Command) -> (String, String) {
    let output = command.output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    (out, err)
}

fn losses(run: &Path) -> Vec<f64> {
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = metrics.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
    lines.map(|line| line["loss"].as_f64().unwrap()).collect()
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 1e-5 * b.abs(), "step {i}: {a}, expected {b}");
    }
}

/// Writes a file with Intel's CPU runtime and the other platforms, if the runtime is installed.
fn all_vendors(dir: &Path) -> Option<PathBuf> {
    let venv = std::env::var_os("NETCL_INTEL_VENV").map(PathBuf::from).or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
        Some(cache.join("netcl/intel"))
    })?;
    let library = venv.join("lib/libintelocl.so");
    let others: Vec<_> =
        std::fs::read_dir("/etc/OpenCL/vendors").ok()?.filter_map(|e| Some(e.ok()?.path())).collect();
    if !library.is_file() || !others.iter().any(|path| path.to_string_lossy().contains("pocl")) {
        return None;
    }
    let vendors = dir.join("vendors");
    std::fs::create_dir_all(&vendors).unwrap();
    for path in others {
        std::fs::copy(&path, vendors.join(path.file_name().unwrap())).unwrap();
    }
    std::fs::write(vendors.join("intel.icd"), library.display().to_string()).unwrap();
    Some(vendors)
}

/// PoCL, Intel's CPU runtime and the simulated GPU train one model, with the losses of one device.
#[test]
fn three_vendors_train_one_model() {
    let dir = folder("vendors");
    let Some(vendors) = all_vendors(&dir) else {
        eprintln!("skipped: tools/intel.sh has not installed Intel's CPU runtime, or PoCL is missing");
        return;
    };
    let data = dir.join("text.txt");
    write_text(&data);
    let [one, three] = ["one", "three"].map(|name| dir.join(name));
    done(netcl().args(tiny_run(&data, &one, 12)));
    let devices = ["pocl:0", "intel:0", "sim"];
    let run = train_on(&data, &three, 12, &devices);
    let (out, _) = done(netcl().args(run).arg("--json").env("OCL_ICD_VENDORS", &vendors));
    let summary: Value = serde_json::from_str(out.trim()).unwrap();
    assert_eq!(summary["devices"], 3);
    let named: Vec<&str> =
        summary["ranks"].as_array().unwrap().iter().map(|r| r["device"].as_str().unwrap()).collect();
    assert!(named[0] == "pocl:0" && named[1] == "intel:0" && named[2].starts_with("sim"), "{named:?}");
    close(&losses(&three), &losses(&one));
    // A checkpoint gives all ranks the first one's weights, so a resumed run has the bits of an uninterrupted one.
    let [whole, half] = ["whole", "half"].map(|name| dir.join(name));
    let equal = words("--schedule constant --shares equal --checkpoint-every 6");
    for (out, steps) in [(&whole, 12), (&half, 6)] {
        let run = [train_on(&data, out, steps, &devices), equal.clone()].concat();
        done(netcl().args(run).env("OCL_ICD_VENDORS", &vendors));
    }
    let more = words("train --steps 12 --shares equal --devices pocl:0,intel:0,sim --resume");
    done(netcl().args(more).arg(&half).env("OCL_ICD_VENDORS", &vendors));
    assert_eq!(losses(&half), losses(&whole));
    std::fs::remove_dir_all(dir).unwrap();
}

/// A device with less memory than planned passes rows to the other when an allocation of its step fails. The run equals that of one device.
#[test]
fn a_device_that_runs_out_of_memory_takes_fewer_rows() {
    let dir = folder("rank-fewer-rows");
    let data = dir.join("text.txt");
    write_text(&data);
    let one = dir.join("one");
    let larger = words("--width 64 --context 64 --batch 256 --warmup 1 --eval-every 0 --checkpoint-every 0");
    done(netcl().args([tiny_run(&data, &one, 3), larger.clone()].concat()));
    let mut found_by_steps = 0;
    for memory in ["52000000", "44000000"] {
        let out = dir.join(memory);
        let run = [train_on(&data, &out, 3, &[&device(), "sim"]), larger.clone()].concat();
        let (_, err) = done(netcl().args(run).env("NETCL_SIM_MEMORY", memory));
        assert!(err.contains("rows of a batch per rank, by available memory"), "{err}");
        found_by_steps += usize::from(err.contains("out of device memory"));
        close(&losses(&out), &losses(&one));
    }
    assert!(found_by_steps > 0, "the memory plan already excluded every case");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_device_out_of_memory_is_named_with_its_rank() {
    let dir = folder("rank-memory");
    let data = dir.join("text.txt");
    write_text(&data);
    let out = dir.join("run");
    let mut args = train_on(&data, &out, 8, &[&device(), "sim"]);
    args.extend(words("--width 64 --context 64 --batch 16 --eval-every 0"));
    // Enough for the weights and the optimizer, but not for a step with any tried number of rows.
    let output = netcl().args(args).env("NETCL_SIM_MEMORY", "5000000").output().unwrap();
    let (_, err) = texts(&output);
    assert_eq!(output.status.code(), Some(4), "{err}");
    let said: Vec<&str> = err.lines().filter(|line| line.starts_with("error:")).collect();
    assert!(said.len() == 1 && said[0].starts_with("error: rank 1") && said[0].contains(" on sim:"), "{err}");
    assert!(said[0].contains("out of memory") && said[0].contains("requested"), "{err}");
    assert!(
        said[0].contains(" in use, and ")
            && said[0].contains("of --batch 16")
            && said[0].contains("--recompute"),
        "{err}"
    );
    std::fs::remove_dir_all(dir).unwrap();
}

/// The same command starts a run, resumes it on more or fewer devices, and reports that it is finished.
#[test]
fn an_elastic_run_goes_on_with_other_devices() {
    let dir = folder("elastic");
    let data = dir.join("text.txt");
    write_text(&data);
    let [whole, out] = ["whole", "run"].map(|name| dir.join(name));
    let rate = ["--schedule", "constant"];
    done(netcl().args(tiny_run(&data, &whole, 24)).args(rate));
    let name = device();
    for (steps, n) in [(8, 2), (16, 3), (20, 1), (24, 2)] {
        let run = train_on(&data, &out, steps, &vec![name.as_str(); n]);
        done(netcl().args(run).args(rate).arg("--elastic"));
        assert_eq!(losses(&out).len(), steps as usize);
    }
    close(&losses(&out), &losses(&whole));
    let (said, _) = done(netcl().args(train_on(&data, &out, 24, &[&name])).args(rate).arg("--elastic"));
    assert!(said.contains("is finished"), "{said}");
    // Without the flag, a folder with a run is refused; without a folder, the flag is refused.
    let refused = netcl().args(tiny_run(&data, &out, 24)).output().unwrap();
    assert!(texts(&refused).1.contains("already holds a run"));
    let alone = netcl().args(["train", "--elastic"]).output().unwrap();
    assert_eq!(alone.status.code(), Some(2));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn ranks_tell_their_share_speed_and_waiting() {
    let dir = folder("rank-times");
    let data = dir.join("text.txt");
    write_text(&data);
    let out = dir.join("run");
    let name = device();
    let run = train_on(&data, &out, 16, &[&name, &name]);
    let (said, err) = done(netcl().args(&run).args(words("--json --sample-every 8")));
    assert!(err.contains("device 2 ranks (0 ") && err.contains(" tok/s on 2 devices"), "{err}");
    assert_eq!(err.matches(": sample").count(), 2, "only the first rank writes: {err}");
    let summary: Value = serde_json::from_str(said.trim()).unwrap();
    let ranks = summary["ranks"].as_array().unwrap();
    assert_eq!((ranks.len(), &summary["devices"]), (2, &2.into()));
    for rank in ranks {
        let number = |name: &str| rank[name].as_f64().unwrap();
        assert!((number("share") - 0.5).abs() < 1e-9);
        assert!(number("tokens_per_s") > 0.0 && (0.0..1.0).contains(&number("waiting")), "{rank}");
    }
    let report = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(report.contains("Ranks") && report.contains("50.0 % of the batch"));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn plans_for_many_devices() {
    let plan = |more: &str| -> Value {
        let (out, _) = done(netcl().args(["plan", "--json"]).args(words(more)));
        serde_json::from_str(out.trim()).unwrap()
    };
    let found = plan("--devices 64 --link 25GB/s --preset gpt2-1558m --device-type h200");
    let by_devices = found["by_devices"].as_array().unwrap();
    assert_eq!(by_devices.len(), 11);
    assert_eq!(by_devices[10]["devices"], 1024);
    assert!(by_devices.iter().all(|p| p["tokens_per_s"].as_f64().unwrap() > 0.0 && p["fits"] == true));
    assert_eq!(found["best"]["devices"], 64);
    // A faster link is never worse, and the tokens/s of one device are the given ones.
    let slow =
        plan("--devices 8 --link 1GB/s --preset gpt2-124m --device-type h200 --tokens-per-second 600000");
    let fast =
        plan("--devices 8 --link 100GB/s --preset gpt2-124m --device-type h200 --tokens-per-second 600000");
    let speed = |p: &Value| p["best"]["tokens_per_s"].as_f64().unwrap();
    assert!(speed(&fast) > speed(&slow) && speed(&fast) < 8.0 * 600_000.0 * 1.001);
    assert!((slow["by_devices"][0]["tokens_per_s"].as_f64().unwrap() / 600_000.0 - 1.0).abs() < 1e-6);
    let (text, _) = done(netcl().args(words("plan --devices 4 --device-type h200 --preset gpt2-350m")));
    assert!(text.contains("data parallel") && text.contains("best way: "), "{text}");
    for wrong in ["plan --link 0", "plan --link fast", "plan --devices 0", "plan --preset nothing"] {
        assert_eq!(netcl().args(words(wrong)).output().unwrap().status.code(), Some(2), "{wrong}");
    }
    let none = netcl().args(words("plan --device sim")).output().unwrap();
    assert!(texts(&none).1.contains("is simulated"));
}

/// The simulated GPU gets fewer layers than the CPU, according to their measured speeds, or at most the same number.
#[test]
fn a_pipeline_of_unlike_devices_trains_one_model() {
    let dir = folder("pipeline");
    let data = dir.join("text.txt");
    write_text(&data);
    let [one, two] = ["one", "two"].map(|name| dir.join(name));
    let more = words("--warmup 1 --layers 3 --grad-accum 2 --width 16 --context 8 --batch 2");
    done(netcl().args([tiny_run(&data, &one, 4), more.clone()].concat()));
    let run = [train_on(&data, &two, 4, &[&device(), "sim"]), more, words("--pipeline 2")].concat();
    let (out, err) = done(netcl().args(&run).arg("--json"));
    close(&losses(&two), &losses(&one));
    let summary: Value = serde_json::from_str(out.trim()).unwrap();
    let layers = |rank: usize, end: usize| summary["ranks"][rank]["layers"][end].as_u64().unwrap();
    assert_eq!((layers(0, 0), layers(0, 1), layers(1, 1)), (0, layers(1, 0), 3), "{out}");
    assert!(layers(0, 1) >= layers(1, 1) - layers(1, 0), "{out}");
    // Two micro-batches fill two stages; one does not.
    assert!(!err.contains("fewer micro-batches than stages"), "{err}");
    let mut refused = netcl();
    refused.args(
        [train_on(&data, &dir.join("three"), 4, &["sim", "sim", "sim"]), words("--pipeline 2")].concat(),
    );
    let output = refused.output().unwrap();
    let (_, err) = texts(&output);
    assert!(!output.status.success() && err.contains("--pipeline 2"), "{err}");
    std::fs::remove_dir_all(dir).unwrap();
}
