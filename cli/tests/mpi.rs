//! Runs of several processes under the MPI launchers that are installed. Where there is none, a line says so.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // helpers of tests

mod common;

use common::{device, folder, texts, tiny_run, write_text};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Launchers, by implementation, of which more processes than cores may be asked.
const LAUNCHERS: [(&str, &[&str]); 2] = [("mpirun.openmpi", &["--oversubscribe"]), ("mpirun.mpich", &[])];

/// `n` processes of the program with `args`, for each launcher that is there.
fn each(n: usize, args: &[String], mut seen: impl FnMut(&str, Command)) {
    for (launcher, _) in LAUNCHERS {
        each_of(launcher, n, args, |command| seen(launcher, command));
    }
}

/// The same for one launcher.
fn each_of(wanted: &str, n: usize, args: &[String], mut seen: impl FnMut(Command)) {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let there = |name: &str| std::env::split_paths(&folders).any(|dir| dir.join(name).is_file());
    for (launcher, flags) in LAUNCHERS.into_iter().filter(|(name, _)| *name == wanted) {
        if !there(launcher) {
            eprintln!("skipped: {launcher} is not installed");
            continue;
        }
        let mut command = Command::new(launcher);
        command.args(flags).args(["-n", &n.to_string(), env!("CARGO_BIN_EXE_netcl")]).args(args);
        // In a container tests may be root's, which Open MPI has to be told twice.
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            command.env(name, "1");
        }
        command.env("NO_COLOR", "1").stdin(Stdio::null());
        seen(command);
    }
}

fn ok(launcher: &str, output: &Output) -> (String, String) {
    let (out, err) = texts(output);
    assert!(output.status.success(), "{launcher}: {}\n{out}\n{err}", output.status);
    (out, err)
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(Into::into).collect()
}

#[test]
fn ranks_find_each_other_and_compute_what_they_should() {
    for n in [2, 3] {
        each(n, &words("doctor --mpi --json"), |launcher, mut command| {
            let (out, _) = ok(launcher, &command.output().unwrap());
            let report: serde_json::Value = serde_json::from_str(out.trim()).unwrap();
            assert_eq!(report["healthy"], true);
            assert_eq!(report["ranks"], n);
            let library = report["library"].as_str().unwrap().to_lowercase().replace(' ', "");
            assert!(library.contains(launcher.rsplit('.').next().unwrap()), "{launcher}: {library}");
        });
    }
}

fn losses(run: &Path) -> Vec<f64> {
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = metrics.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
    lines.map(|line| line["loss"].as_f64().unwrap()).collect()
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
        // Goes on with one process, and with three.
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
        assert!(!out.exists(), "{launcher}: a run that has not begun leaves no folder");
    });
    std::fs::remove_dir_all(dir).unwrap();
}

/// Killing a rank ends the others within seconds; the last checkpoint is whole, and the run goes on from it.
#[test]
#[cfg(target_os = "linux")]
fn a_rank_that_is_killed_ends_the_run_everywhere() {
    let dir = folder("mpi-kill");
    let data = dir.join("text.txt");
    write_text(&data);
    each(2, &[], |launcher, mut command| {
        let out = dir.join(launcher);
        let mut args = tiny_run(&data, &out, 1_000_000);
        args.extend(words("--checkpoint-every 5 --keep 2"));
        let running = command.args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut running = Running(running);
        let begun = Instant::now();
        while !out.join("checkpoints/last").exists() {
            assert!(begun.elapsed() < Duration::from_secs(600), "{launcher}: no checkpoint");
            std::thread::sleep(Duration::from_millis(50));
        }
        let rank = rank_below(running.0.id()).unwrap();
        assert!(Command::new("kill").args(["-9", &rank.to_string()]).status().unwrap().success());
        let killed = Instant::now();
        let status = loop {
            if let Some(status) = running.0.try_wait().unwrap() {
                break status;
            }
            assert!(killed.elapsed() < Duration::from_secs(120), "{launcher}: the others go on");
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(!status.success());
        let done = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap().lines().count();
        let mut more = common::netcl();
        more.args(["train", "--steps", &(done + 3).to_string(), "--device", &device(), "--resume"]).arg(&out);
        ok("alone again", &more.output().unwrap());
    });
    std::fs::remove_dir_all(dir).unwrap();
}

/// A launcher that does not outlive its test.
#[cfg(target_os = "linux")]
struct Running(std::process::Child);

#[cfg(target_os = "linux")]
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A rank below the process `launcher`, however deep: what runs `netcl train`.
#[cfg(target_os = "linux")]
fn rank_below(launcher: u32) -> Option<u32> {
    let read =
        |pid: u32, name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let all: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| {
            // The name in parentheses may have spaces; the state and the parent come behind it.
            let stat = read(pid, "stat");
            Some((pid, stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?))
        })
        .collect();
    let mut below = vec![launcher];
    let mut at = 0;
    while let Some(parent) = below.get(at).copied() {
        below.extend(all.iter().filter(|(_, p)| *p == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    let is_rank = |pid: &&u32| {
        let line = read(**pid, "cmdline");
        let mut words = line.split('\0');
        words.next().is_some_and(|program| program.ends_with("/netcl")) && words.next() == Some("train")
    };
    below.iter().rev().find(is_rank).copied()
}
