//! Tests the binary interface of the MPI 5 standard with a single-process library that is compiled here, because no distribution packages one yet.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test

use netcl_dist::{Launcher, Mpi};
use std::process::Command;
use std::time::Duration;

/// Handles are those of the standard: the library rejects all others. This is a single test because MPI is initialized once per process.
#[test]
fn a_library_of_the_standard_interface_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libmpi_abi.so.0");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/mpi_abi.c");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&path).arg(source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no C compiler found");
        return;
    }
    let (found, version) = Mpi::found(None, Some(&path)).unwrap();
    assert_eq!((found.as_str(), version.as_str()), (path.to_str().unwrap(), "Stub 5.0"));
    let group = Mpi::join(None, Some(&path), Duration::from_secs(5)).unwrap();
    assert_eq!((group.rank(), group.size()), (0, 1));
    assert_eq!(group.all_gather(&[7u32]).unwrap(), [7]);
    group.close().unwrap();
    assert_eq!(group.transport().name(), "Stub 5.0, finalized");
    // A second initialization returns an error. A Slurm step that the library does not know would be several runs of one process each.
    let again = Mpi::join(None, Some(&path), Duration::from_secs(5)).err().unwrap().to_string();
    assert!(again.contains("was already initialized in this process"), "{again}");
    let other = dir.path().join("libmpi_abi.so");
    std::fs::copy(&path, &other).unwrap();
    let slurm = Launcher { name: "Slurm", size: 8, rank: 3, local_rank: 3 };
    let alone = Mpi::join(Some(&slurm), Some(&other), Duration::from_secs(5)).err().unwrap().to_string();
    assert!(alone.contains("Slurm started 8 processes") && alone.contains("sees 1"), "{alone}");
    assert!(alone.contains("srun") && alone.contains("--mpi=pmix"), "{alone}");
}
