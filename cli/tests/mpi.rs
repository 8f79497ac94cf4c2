//! Runs of several processes with the installed MPI launchers. Prints a line if a launcher is missing.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // helpers of tests

use crate::{common, launch};

use common::{device, folder, texts, tiny_run, write_text};
use launch::{each, each_of, losses, ok, words};
use std::path::Path;

#[test]
fn ranks_find_each_other_and_compute_what_they_should() {
    for n in [2, 3] {
        each(n, &words("doctor --mpi --json --in-a-row 10000"), |launcher, mut command| {
            let (out, _) = ok(launcher, &command.output().unwrap());
            let report: serde_json::Value = serde_json::from_str(out.trim()).unwrap();
            assert_eq!(report["healthy"], true);
            assert_eq!(report["ranks"], n);
            assert!(report["operations"].as_u64().unwrap() > 10_000);
            let library = report["library"].as_str().unwrap().to_lowercase().replace(' ', "");
            assert!(library.contains(launcher.rsplit('.').next().unwrap()), "{launcher}: {library}");
        });
    }
}

#[test]
fn a_run_under_mpi_is_that_of_one_process() {
    let dir = folder("mpi-run");
    let data = dir.join("text.txt");
    write_text(&data);
    let one = dir.join("one");
    let alone = common::netcl().args(tiny_run(&data, &one, 12)).output().unwrap();
    ok("alone", &alone);
    let expected = losses(&one);
    each(2, &[], |launcher, mut command| {
        let out = dir.join(launcher);
        let (stdout, stderr) = ok(launcher, &command.args(tiny_run(&data, &out, 12)).output().unwrap());
        for (i, (a, b)) in losses(&out).iter().zip(&expected).enumerate() {
            assert!((a - b).abs() <= 1e-5 * b.abs(), "{launcher}, step {i}: {a}, expected {b}");
        }
        assert_eq!(losses(&out).len(), expected.len());
        assert_eq!(stdout.matches("finished after 12 steps").count(), 1, "{stdout}");
        assert!(stderr.contains("device 2 ranks ("), "{stderr}");
        // The run resumes with one process, and with three.
        let mut more = common::netcl();
        more.args(["train", "--steps", "14", "--device", &device(), "--resume"]).arg(&out);
        ok("alone again", &more.output().unwrap());
        assert_eq!(losses(&out).len(), 14);
        each_of(launcher, 3, &words("train --steps 16 --resume"), |mut command| {
            ok(launcher, &command.arg(&out).args(["--device", &device()]).output().unwrap());
        });
        assert_eq!(losses(&out).len(), 16);
    });
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn stages_under_mpi_are_the_layers_of_one_process() {
    let dir = folder("mpi-pipeline");
    let data = dir.join("text.txt");
    write_text(&data);
    let run = |out: &Path| [tiny_run(&data, out, 8), words("--layers 2 --grad-accum 3")].concat();
    let one = dir.join("one");
    ok("alone", &common::netcl().args(run(&one)).output().unwrap());
    let expected = losses(&one);
    each(2, &[], |launcher, mut command| {
        let out = dir.join(launcher);
        let output = command.args(run(&out)).args(["--pipeline", "2", "--json"]).output().unwrap();
        let (stdout, stderr) = ok(launcher, &output);
        for (i, (a, b)) in losses(&out).iter().zip(&expected).enumerate() {
            assert!((a - b).abs() <= 1e-5 * b.abs(), "{launcher}, step {i}: {a}, expected {b}");
        }
        assert_eq!(losses(&out).len(), expected.len());
        let summary: serde_json::Value = serde_json::from_str(stdout.trim()).unwrap();
        for rank in 0..2u64 {
            assert_eq!(summary["ranks"][rank as usize]["stage"], rank, "{stdout}");
            assert_eq!(summary["ranks"][rank as usize]["layers"], serde_json::json!([rank, rank + 1]));
        }
        assert!(stderr.contains("a pipeline of 2"), "{stderr}");
        // The run resumes with one process that has all layers.
        let mut more = common::netcl();
        let all = ["--pipeline", "1", "--device", &device()];
        more.args(["train", "--steps", "9"]).args(all).arg("--resume").arg(&out);
        ok("alone again", &more.output().unwrap());
        assert_eq!(losses(&out).len(), 9);
    });
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_one_rank_cannot_do_is_said_once() {
    let dir = folder("mpi-error");
    let out = dir.join("run");
    each(2, &tiny_run(Path::new("/nowhere/text.txt"), &out, 8), |launcher, mut command| {
        let output = command.output().unwrap();
        let (_, err) = texts(&output);
        assert!(!output.status.success());
        let said =
            err.lines().filter(|line| line.contains("error:") && line.contains("/nowhere/text.txt")).count();
        assert_eq!(said, 1, "{launcher}: {err}");
        assert!(!out.exists(), "{launcher}: a run that did not start leaves no folder");
    });
    std::fs::remove_dir_all(dir).unwrap();
}
