//! `netcl doctor --mpi`: tests whether processes of an MPI launcher find each other and compute correctly.

use crate::out;
use crate::ranks::{Failed, finish};
use netcl::dist::{Group, Launcher, Mpi, Reduction, launched, selftest, selftest_long};
use netcl::prelude::*;
use serde::Serialize;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const RANK_TIMEOUT: Duration = Duration::from_secs(60);
const LAUNCHERS: [&str; 4] = ["mpirun", "mpiexec", "srun", "prterun"];
/// Rounds of the self-test, whose longest vector has `MAX_VECTOR_ELEMENTS` elements.
const ROUNDS: usize = 3;
const MAX_VECTOR_ELEMENTS: usize = 70_001;

#[derive(Serialize)]
struct Report {
    healthy: bool,
    launcher: String,
    library: String,
    ranks: usize,
    operations: usize,
    /// Time of an all-reduce of 4 kB, in microseconds.
    all_reduce_us: f64,
}

/// Additional tests.
#[derive(Clone, Copy)]
pub struct More {
    /// Number of consecutive operations.
    pub in_a_row: u32,
    /// Size of the vector, in bytes.
    pub vector: u64,
}

/// Elements of the vectors in consecutive operations.
const IN_A_ROW: usize = 4000;
/// Operations before the first measurement of memory.
const WARMUP_OPERATIONS: u32 = 500;

impl More {
    fn arguments(self) -> [String; 4] {
        ["--in-a-row".into(), self.in_a_row.to_string(), "--vector".into(), self.vector.to_string()]
    }

    fn test(self, group: &Group) -> Result<usize> {
        let mut x = vec![0.0f32; IN_A_ROW];
        let mut before = None;
        for i in 0..self.in_a_row {
            if i == WARMUP_OPERATIONS {
                before = resident();
            }
            x.fill(i as f32);
            group.all_reduce(&mut x, Reduction::Mean)?;
        }
        // A quarter of the growth if every operation leaked a vector.
        let room = self.in_a_row as usize * IN_A_ROW + (16 << 20);
        if let (Some(before), Some(after)) =
            (before, resident().filter(|_| self.in_a_row > 2 * WARMUP_OPERATIONS))
            && after > before + room
        {
            return Err(Error::internal(format!(
                "memory grew from {before} to {after} bytes in {} operations",
                self.in_a_row
            )));
        }
        let long = usize::try_from(self.vector).unwrap_or(usize::MAX);
        let long = if long > 0 { selftest_long(group, long)?.operations } else { 0 };
        Ok(self.in_a_row as usize + long)
    }
}

/// Returns the resident memory of this process in bytes, on Linux only.
fn resident() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    text.split_whitespace().nth(1)?.parse::<usize>().ok()?.checked_mul(4096)
}

/// Tests the ranks of the launcher that started this process, or starts two ranks with an installed launcher.
pub fn run(json: bool, more: &More) -> Result<()> {
    let named = std::env::var_os("NETCL_MPI_LIBRARY").filter(|v| !v.is_empty()).map(PathBuf::from);
    let launcher = launched(&|name| std::env::var(name).ok());
    let Some(launcher) = launcher else { return start(json, named, *more) };
    let group = Mpi::join(Some(&launcher), named.as_deref(), RANK_TIMEOUT)?;
    let tested = test(&group, &launcher, *more).and_then(|report| match group.leads() {
        true => show(&report, json).map_err(Failed::Own),
        false => Ok(()),
    });
    finish(&group, tested)
}

fn test(group: &Group, launcher: &Launcher, more: More) -> Result<Report, Failed> {
    let done = group.all_succeed(selftest(group, 1, ROUNDS, MAX_VECTOR_ELEMENTS)).map_err(Failed::Shared)?;
    let more = group.all_succeed(more.test(group)).map_err(Failed::Shared)?;
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
        operations: done.operations + more,
        all_reduce_us: times[times.len() / 2],
    })
}

fn show(report: &Report, json: bool) -> Result<()> {
    if json {
        return out::json(report);
    }
    out::result(&format!(
        "{}, started by {}: {} ranks, {} collective operations with correct bits; an all-reduce of 4 kB takes {:.1} us",
        report.library, report.launcher, report.ranks, report.operations, report.all_reduce_us
    ))?;
    out::result("healthy")
}

/// Starts two ranks of this program.
fn start(json: bool, named: Option<PathBuf>, more: More) -> Result<()> {
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
    command.args(["-n", "2"]).arg(&program).args(["doctor", "--mpi"]).args(more.arguments());
    if json {
        command.arg("--json");
    }
    let status = command.status().map_err(|e| Error::io("starting", launcher.as_ref(), &e))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::device(format!(
        "{launcher} ended with {status}. If its message does not say why, check that it belongs to {version}; NETCL_MPI_LIBRARY selects another \
         library, PATH another launcher"
    )))
}
