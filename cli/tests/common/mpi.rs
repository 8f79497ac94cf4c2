//! Starts ranks with the installed MPI launchers. Prints a line if a launcher is missing.
#![allow(dead_code, clippy::unwrap_used, clippy::print_stderr)] // helpers of tests

use crate::common::texts;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Launchers by implementation, with the flags that allow more processes than cores.
pub const LAUNCHERS: [(&str, &[&str]); 2] = [("mpirun.openmpi", &["--oversubscribe"]), ("mpirun.mpich", &[])];

/// Builds a command of `n` processes of the program with `args`, for each installed launcher.
pub fn each(n: usize, args: &[String], mut seen: impl FnMut(&str, Command)) {
    for (launcher, _) in LAUNCHERS {
        each_of(launcher, n, args, |command| seen(launcher, command));
    }
}

/// Does the same for one launcher.
pub fn each_of(wanted: &str, n: usize, args: &[String], mut seen: impl FnMut(Command)) {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let there = |name: &str| std::env::split_paths(&folders).any(|dir| dir.join(name).is_file());
    for (launcher, flags) in LAUNCHERS.into_iter().filter(|(name, _)| *name == wanted) {
        if !there(launcher) {
            eprintln!("skipped: {launcher} is not installed");
            continue;
        }
        let mut command = Command::new(launcher);
        command.args(flags).args(["-n", &n.to_string(), env!("CARGO_BIN_EXE_netcl")]).args(args);
        // In a container, tests may run as root, which Open MPI allows only with two variables.
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            command.env(name, "1");
        }
        command.env("NO_COLOR", "1").stdin(Stdio::null());
        seen(command);
    }
}

pub fn ok(launcher: &str, output: &Output) -> (String, String) {
    let (out, err) = texts(output);
    assert!(output.status.success(), "{launcher}: {}\n{out}\n{err}", output.status);
    (out, err)
}

pub fn words(text: &str) -> Vec<String> {
    text.split(' ').map(Into::into).collect()
}

pub fn losses(run: &Path) -> Vec<f64> {
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = metrics.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
    lines.map(|line| line["loss"].as_f64().unwrap()).collect()
}

/// A launcher that is killed when its test ends.
#[cfg(target_os = "linux")]
pub struct Running(pub std::process::Child);

#[cfg(target_os = "linux")]
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the ranks below the process `launcher`, at any depth: the processes that run `netcl train`, by process id.
#[cfg(target_os = "linux")]
pub fn ranks_below(launcher: u32) -> Vec<u32> {
    let read =
        |pid: u32, name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let all: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| {
            // The name in parentheses may contain spaces; the state and the parent follow it.
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
    let mut ranks: Vec<u32> = below.iter().filter(is_rank).copied().collect();
    ranks.sort_unstable();
    ranks
}
