//! `netcl doctor --mpi`: whether processes of an MPI launcher find each other and compute what they should.

use crate::out;
use crate::ranks::{Failed, finish};
use netcl::dist::{Group, Launcher, Mpi, Reduction, launched, selftest};
use netcl::prelude::*;
use serde::Serialize;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const LAUNCHERS: [&str; 4] = ["mpirun", "mpiexec", "srun", "prterun"];
/// Rounds of the self-test, and the longest of its vectors.
const ROUNDS: usize = 3;
const LONGEST: usize = 70_001;

#[derive(Serialize)]
struct Report {
    healthy: bool,
    launcher: String,
    library: String,
    ranks: usize,
    operations: usize,
    /// Of an all-reduce of 4 kB.
    all_reduce_us: f64,
}

/// Tests the ranks of the launcher that started this process, or starts two with the launcher that is found.
pub fn run(json: bool) -> Result<()> {
    let named = std::env::var_os("NETCL_MPI_LIBRARY").filter(|v| !v.is_empty()).map(PathBuf::from);
    let launcher = launched(&|name| std::env::var(name).ok());
    let Some(launcher) = launcher else { return start(json, named) };
    let group = Mpi::join(Some(&launcher), named.as_deref(), PATIENCE)?;
    let tested = test(&group, &launcher).and_then(|report| match group.leads() {
        true => show(&report, json).map_err(Failed::Own),
        false => Ok(()),
    });
    finish(&group, tested)
}

fn test(group: &Group, launcher: &Launcher) -> Result<Report, Failed> {
    let done = group.all_succeed(selftest(group, 1, ROUNDS, LONGEST)).map_err(Failed::Shared)?;
    let mut small = [1.0f32; 1024];
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..50 {
        group.barrier().map_err(Failed::Own)?;
        let begun = Instant::now();
        group.all_reduce(&mut small, Reduction::Mean).map_err(Failed::Own)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(Report {
        healthy: true,
        launcher: launcher.name.into(),
        library: group.transport().name(),
        ranks: group.size(),
        operations: done.operations,
        all_reduce_us: times[times.len() / 2],
    })
}

fn show(report: &Report, json: bool) -> Result<()> {
    if json {
        return out::json(report);
    }
    out::result(&format!(
        "{}, started by {}: {} ranks, {} collective operations with the right bits; an all-reduce of 4 kB takes {:.1} us",
        report.library, report.launcher, report.ranks, report.operations, report.all_reduce_us
    ))?;
    out::result("healthy")
}

/// Two ranks of this program.
fn start(json: bool, named: Option<PathBuf>) -> Result<()> {
    let (path, version) = Mpi::found(None, named.as_deref())?;
    out::note(&format!("MPI library: {path} ({version})"));
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = |name: &&&str| std::env::split_paths(&folders).any(|dir| dir.join(name).is_file());
    let Some(launcher) = LAUNCHERS.iter().find(found) else {
        return Err(Error::device(format!(
            "no MPI launcher found ({}). Install Open MPI or MPICH (on Debian and Ubuntu: apt-get install openmpi-bin)",
            LAUNCHERS.join(", ")
        )));
    };
    let program = std::env::current_exe().map_err(|e| Error::io("finding", "this program".as_ref(), &e))?;
    out::note(&format!("{launcher} -n 2 {} doctor --mpi", program.display()));
    let mut command = Command::new(launcher);
    command.args(["-n", "2"]).arg(&program).args(["doctor", "--mpi"]);
    if json {
        command.arg("--json");
    }
    let status = command.status().map_err(|e| Error::io("starting", launcher.as_ref(), &e))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::device(format!(
        "{launcher} ended with {status}. Where its message does not say why: does it belong to {version}? NETCL_MPI_LIBRARY names another \
         library, PATH another launcher"
    )))
}
