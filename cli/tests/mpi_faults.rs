//! Runs of several ranks in which one dies, hangs, runs out of memory or was started with wrong arguments.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stderr)] // helpers of tests

use crate::{common, launch};

use common::{device, folder, netcl, texts, tiny_run, write_text};
use launch::{LAUNCHERS, Running, each, each_of, losses, ok, ranks_below, words};
use netcl::device::draw::Draw;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time after which a test considers ranks hung.
const HANG_TIMEOUT: Duration = Duration::from_secs(120);

fn wait_until(what: &str, mut there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !there() {
        assert!(begun.elapsed() < HANG_TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

/// Starts an endless run in `out`; its stderr goes to a file next to it.
fn started(mut command: Command, data: &Path, out: &Path, more: &str) -> (Running, PathBuf) {
    let log = out.with_extension("log");
    command.args(tiny_run(data, out, 1_000_000)).args(words(more)).stdout(Stdio::null());
    let running = command.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    (Running(running), log)
}

fn ended(child: &mut Child) -> Option<i32> {
    let mut status = None;
    wait_until("the other ranks continue", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().code()
}

/// Steps of a run that ends. A killed run has a checkpoint of each step.
const STEPS: u32 = 40;

/// Kills a rank at `moments` random moments of runs that write a checkpoint after each step, so that most kills interrupt a write. State is whole or
/// partitioned (`--zero`), and changes when a run resumes on 1, 2 or 3 ranks. All runs end like one that was never killed.
fn kills(launcher: &str, moments: u64) {
    let dir = folder(&format!("kills-{launcher}"));
    let data = dir.join("text.txt");
    write_text(&data);
    let whole = dir.join("whole");
    ok("alone", &netcl().args(tiny_run(&data, &whole, STEPS)).output().unwrap());
    let expected = losses(&whole);
    let mut draw = Draw::new(0);
    for moment in 0..moments {
        let (ranks, out) = (2 + moment as usize % 2, dir.join(format!("run-{moment}")));
        each_of(launcher, ranks, &[], |mut command| {
            let zero = ((moment + moment / 3) % 3).to_string();
            let every = ["--checkpoint-every", "1", "--keep", "2", "--zero", &zero];
            command.args(tiny_run(&data, &out, STEPS)).args(every);
            let mut running = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
            let after = draw.below(25);
            wait_until("no step", || {
                let steps =
                    std::fs::read_to_string(out.join("metrics.jsonl")).map_or(0, |t| t.lines().count());
                steps >= after && out.join("config.toml").exists() || running.0.try_wait().unwrap().is_some()
            });
            std::thread::sleep(Duration::from_micros(draw.below(20_000) as u64));
            let all = ranks_below(running.0.id());
            let killed = all.get(draw.below(ranks)).copied();
            let died = killed.is_some_and(|rank| {
                Command::new("kill")
                    .args(["-9", &rank.to_string()])
                    .stderr(Stdio::null())
                    .status()
                    .unwrap()
                    .success()
            });
            let code = ended(&mut running.0);
            if died && losses(&out).len() < STEPS as usize {
                assert_ne!(code, Some(0), "{launcher}, moment {moment}");
            }
        });
        if !out.exists() {
            break; // The launcher is not installed.
        }
        go_on(launcher, (1 + moment as usize % 3, (moment / 2 + 1) % 3), &out);
        let found = losses(&out);
        assert_eq!(found.len(), expected.len());
        for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
            assert!((a - b).abs() <= 1e-5 * b.abs(), "{launcher}, moment {moment}, step {i}: {a}, not {b}");
        }
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// Resumes the run in `out` on `ranks` ranks, with state partitioned or not, to its end.
fn go_on(launcher: &str, (ranks, zero): (usize, u64), out: &Path) {
    let how = vec![out.display().to_string(), "--device".into(), device(), "--zero".into(), zero.to_string()];
    let more = [words("train --resume"), how].concat();
    match ranks {
        1 => drop(ok("alone again", &netcl().args(more).output().unwrap())),
        _ => each_of(launcher, ranks, &more, |mut command| drop(ok(launcher, &command.output().unwrap()))),
    }
}

#[test]
fn a_rank_that_is_killed_ends_the_run_everywhere() {
    LAUNCHERS.iter().for_each(|(launcher, _)| kills(launcher, 3));
}

/// Kills ranks at twenty moments. `make kills` runs it.
#[test]
#[ignore = "minutes"]
fn ranks_are_killed_at_twenty_moments() {
    LAUNCHERS.iter().for_each(|(launcher, _)| kills(launcher, 20));
}

/// A stopped rank neither dies nor answers. The first rank reports for the others, so each one is stopped in turn.
#[test]
fn a_rank_that_hangs_is_named_with_its_device() {
    let dir = folder("mpi-hang");
    let data = dir.join("text.txt");
    write_text(&data);
    each(3, &[], |launcher, command| {
        let out = dir.join(launcher);
        let hangs = usize::from(launcher.contains("mpich"));
        let (mut running, log) = started(command, &data, &out, "--checkpoint-every 5 --watchdog 2");
        wait_until("no checkpoint", || out.join("checkpoints/last").exists());
        // Ranks wait longer for operations that they do for the first time.
        let steps = || std::fs::read_to_string(out.join("metrics.jsonl")).map_or(0, |t| t.lines().count());
        wait_until("no step", || steps() > 40);
        let ranks = ranks_below(running.0.id());
        let of_rank = |pid: &&u32| {
            let all = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap_or_default();
            let numbered = |name: &str| format!("{name}={hangs}");
            all.split('\0').any(|v| v == numbered("OMPI_COMM_WORLD_RANK") || v == numbered("PMI_RANK"))
        };
        let rank = *ranks.iter().find(of_rank).unwrap();
        signal("-STOP", rank);
        // MPICH's launcher may report a rank that it killed instead.
        let code = ended(&mut running.0);
        assert!(code == Some(3) || launcher.contains("mpich") && code == Some(9), "{launcher}: {code:?}");
        let said = std::fs::read_to_string(log).unwrap();
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("does not answer")).collect();
        assert!(lines.len() == 1 && lines[0].contains(&format!("rank {hangs} (")), "{launcher}: {said}");
        let done = losses(&out).len();
        let more = ["train", "--steps", &(done + 3).to_string(), "--device", &device(), "--resume"];
        ok("alone again", &netcl().args(more).arg(&out).output().unwrap());
    });
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_signal_writes_one_checkpoint_or_ends_the_run_with_one() {
    let dir = folder("mpi-signal");
    let data = dir.join("text.txt");
    write_text(&data);
    each(2, &[], |launcher, mut command| {
        let out = dir.join(launcher);
        // The time that Open MPI waits before it forwards SIGTERM, and again before SIGKILL.
        command.env("OMPI_MCA_odls_base_sigkill_timeout", "5");
        let (mut running, log) = started(command, &data, &out, "--checkpoint-every 0 --eval-every 0");
        let steps = || std::fs::read_to_string(out.join("metrics.jsonl")).map_or(0, |t| t.lines().count());
        wait_until("no step", || steps() > 10);
        let said = || std::fs::read_to_string(&log).unwrap();
        for rank in ranks_below(running.0.id()) {
            assert!(said().contains(&format!(" is {rank} on ")), "{launcher}: {}", said());
        }
        // MPICH's launcher forwards SIGUSR1; Open MPI's should, but that of Debian 12 does not.
        match launcher.contains("openmpi") {
            true => ranks_below(running.0.id()).into_iter().for_each(|rank| signal("-USR1", rank)),
            false => signal("-USR1", running.0.id()),
        }
        wait_until("no checkpoint", || said().contains("checkpoint"));
        let then = steps();
        wait_until("the run does not continue", || steps() > then + 50);
        let saved = said().lines().filter(|line| line.contains(": checkpoint")).count();
        assert_eq!(saved, 1, "{launcher}: {}", said());
        signal("-TERM", running.0.id());
        ended(&mut running.0);
        let done = losses(&out).len();
        let state = std::fs::read_to_string(out.join("checkpoints/last/state.json")).unwrap();
        let state: serde_json::Value = serde_json::from_str(&state).unwrap();
        assert_eq!(state["step"].as_u64(), Some(done as u64), "{launcher}: {}", said());
    });
    std::fs::remove_dir_all(dir).unwrap();
}

/// Starts ranks with different arguments: two programs on one command line of the launcher. The error names the difference.
#[test]
fn ranks_that_were_started_unlike_are_told_apart() {
    let dir = folder("mpi-unlike");
    let data = dir.join("text.txt");
    write_text(&data);
    let out = dir.join("run");
    let run = |data: &Path, more: &str| {
        let mut args = tiny_run(data, &out, 12);
        args.extend(words(more).into_iter().filter(|word| !word.is_empty()));
        args
    };
    let devices = |n: usize| {
        let mut args = run(&data, "--devices");
        let at = args.iter().position(|a| a == "--device").unwrap();
        args.drain(at..at + 2);
        args.push(vec![device().replace("auto", "sim"); n].join(","));
        args
    };
    let cases = [
        ("lr = 0.001 at rank 0 and lr = 0.5 at rank 1", run(&data, ""), run(&data, "--lr 0.5")),
        ("the number of --devices", devices(1), devices(2)),
    ];
    for (i, (what, first, second)) in cases.into_iter().enumerate() {
        // One launcher each, because netcl's code is the same for both.
        each_of(LAUNCHERS[i % 2].0, 1, &first, |mut command| {
            command.args([":", "-n", "1", env!("CARGO_BIN_EXE_netcl")]).args(&second);
            let output = command.output().unwrap();
            let (_, err) = texts(&output);
            assert!(!output.status.success());
            let said = err.lines().filter(|line| line.contains("the ranks do not agree")).count();
            assert!(said == 1 && err.contains(what), "{what}: {err}");
            assert!(!out.exists(), "a run that did not start leaves no folder");
        });
    }
    std::fs::remove_dir_all(dir).unwrap();
}
