//! Tests the readers of model files with damaged and hostile input. For any change of bytes, fields or values, the result must be an error
//! or a value: no panic, no abort, no hang, and memory of at most a few times the file.
//!
//! The short test tries a fixed list of damages. The long test tries new ones until its time is over, alternating between all readers:
//! `make fuzz SECONDS=3600`, or `NETCL_FUZZ_SECONDS=… cargo test --package netcl --test fuzz -- --ignored --nocapture` with a memory limit
//! (`ulimit -v`). `NETCL_FUZZ_READERS` selects readers, `NETCL_FUZZ_SEED` sets the first seed, and `NETCL_FUZZ_KEEP` is the folder for
//! damaged files. If the process ends, the files of the last case remain there.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)] // a test

mod damage;
mod folders;
mod others;
mod readers;
mod seeds;

use damage::{Damage, Kind};
use others::OTHERS;
use readers::Reader;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Cases that take longer count as a hang; ordinary ones take milliseconds.
const LIMIT: Duration = Duration::from_secs(60);
/// Memory beyond four times the files, for allocators, threads and a template's steps, whatever the files contain.
const SLACK: u64 = 96 << 20;
/// Number of cases per reader in the short test.
const SHORT_TEST_CASES: u64 = 150;

/// Returns all readers.
fn every() -> impl Iterator<Item = &'static Reader> {
    readers::READERS.iter().chain(&folders::FOLDERS).chain(&OTHERS)
}

/// Results of one reader.
#[derive(Default)]
struct ReaderStats {
    cases: u64,
    refused: u64,
    /// Time including writing the files.
    time: Duration,
    slowest: Duration,
    most_memory: u64,
}

/// Returns memory of this process in bytes, from the line of `/proc/self/status` with that name.
fn memory(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let found = status.lines().find_map(|l| l.strip_prefix(line));
    found.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).map_or(0, |kib| kib * 1024)
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &to),
            false => drop(std::fs::copy(&path, to).unwrap()),
        }
    }
}

/// Reads a damaged file. Returns a description of the failure as `Err`.
fn case(
    reader: &Reader,
    seeds: &[PathBuf],
    at: &Path,
    number: u64,
    found: &mut ReaderStats,
) -> Result<(), String> {
    let (mut draw, all) = (Damage::new(number), Instant::now());
    let seed = &seeds[draw.below(seeds.len())];
    copy(seed, at);
    let files: Vec<&&str> = reader.files.iter().filter(|name| at.join(name).exists()).collect();
    let name = files[draw.below(files.len())];
    let path = at.join(name);
    let mut bytes = std::fs::read(&path).unwrap();
    draw.file(&mut bytes, Kind::of(name));
    std::fs::write(&path, &bytes).unwrap();
    let size: u64 = std::fs::read_dir(at).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    // Resets the peak memory.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let before = memory("VmRSS:");
    let began = Instant::now();
    let read = catch_unwind(AssertUnwindSafe(|| (reader.read)(at)));
    let (took, more) = (began.elapsed(), memory("VmHWM:").saturating_sub(before));
    found.cases += 1;
    found.time += all.elapsed();
    found.slowest = found.slowest.max(took);
    found.most_memory = found.most_memory.max(more);
    let about = format!("{} case {number}, {name} of {}", reader.name, seed.display());
    match read {
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            return Err(format!("{about}: panic: {}", text.unwrap_or_default()));
        }
        Ok(Err(error)) => {
            found.refused += 1;
            if error.message().trim().is_empty() {
                return Err(format!("{about}: an error without a message"));
            }
        }
        Ok(Ok(())) => {}
    }
    if took > LIMIT {
        return Err(format!("{about}: took {took:?}"));
    }
    if more > 4 * size + SLACK {
        return Err(format!("{about}: took {} MiB for {size} bytes", more >> 20));
    }
    Ok(())
}

fn print_summary(all: &BTreeMap<&str, ReaderStats>) {
    for (name, found) in all {
        eprintln!(
            "{name}: {} cases in {:.0} s, {} refused, slowest {:.2} s, most memory {} MiB",
            found.cases,
            found.time.as_secs_f64(),
            found.refused,
            found.slowest.as_secs_f64(),
            found.most_memory >> 20
        );
    }
}

/// Files and memory belong to the process, so only one test may run at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn chosen() -> Vec<&'static Reader> {
    let wanted = std::env::var("NETCL_FUZZ_READERS").unwrap_or_default();
    let names: Vec<&str> = wanted.split(',').filter(|name| !name.is_empty()).collect();
    let all: Vec<_> = every().filter(|r| names.is_empty() || names.contains(&r.name)).collect();
    let known = every().map(|r| r.name).collect::<Vec<_>>().join(", ");
    assert!(all.len() >= names.len().max(1), "NETCL_FUZZ_READERS: readers are {known}");
    all
}

#[test]
fn damaged_files_are_errors_or_values() {
    let _alone = ALONE.lock().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let seeds = seeds::all(dir.path());
    let mut all = BTreeMap::new();
    for reader in every() {
        let found: &mut ReaderStats = all.entry(reader.name).or_default();
        let seeds = &seeds[reader.seeds];
        for number in 0..SHORT_TEST_CASES {
            case(reader, seeds, &dir.path().join("case"), number, found).unwrap_or_else(|e| panic!("{e}"));
        }
        assert!(
            found.refused > SHORT_TEST_CASES / 10,
            "{}: {} of {SHORT_TEST_CASES} refused",
            reader.name,
            found.refused
        );
    }
    print_summary(&all);
}

/// Undamaged files can be read, so errors are caused by the damage.
#[test]
fn whole_files_are_read() {
    let _alone = ALONE.lock().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let seeds = seeds::all(dir.path());
    for reader in every() {
        let all = &seeds[reader.seeds];
        assert!(!all.is_empty(), "{}: no seeds", reader.name);
        for seed in all {
            (reader.read)(seed).unwrap_or_else(|e| panic!("{} of {}: {e}", reader.name, seed.display()));
        }
    }
}

/// Reads the files that an ended run left in `NETCL_FUZZ_KEEP`, one reader after the other.
#[test]
#[ignore = "needs the files of an ended run"]
fn kept_files_are_errors_or_values() {
    let kept = PathBuf::from(std::env::var_os("NETCL_FUZZ_KEEP").unwrap());
    for reader in chosen().into_iter().filter(|reader| kept.join(reader.name).exists()) {
        eprintln!("{}", reader.name);
        let read = (reader.read)(&kept.join(reader.name));
        eprintln!("{}: {}", reader.name, read.err().map_or("a value".into(), |e| e.to_string()));
    }
}

#[test]
#[ignore = "takes NETCL_FUZZ_SECONDS for each reader"]
fn damaged_files_for_a_while() {
    let _alone = ALONE.lock().unwrap();
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let seconds = Duration::from_secs(number("NETCL_FUZZ_SECONDS").unwrap_or(60));
    let first = number("NETCL_FUZZ_SEED").unwrap_or(1) << 32;
    let dir = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("NETCL_FUZZ_KEEP").map_or_else(|| dir.path().join("case"), PathBuf::from);
    let seeds = seeds::all(dir.path());
    let (mut all, mut wrong): (BTreeMap<&str, ReaderStats>, Vec<String>) = Default::default();
    let (readers, mut told_at) = (chosen(), Instant::now());
    loop {
        // The reader with the least time is next.
        let time = |reader: &&&Reader| all.get(reader.name).map_or(Duration::ZERO, |found| found.time);
        let Some(reader) = readers.iter().min_by_key(time).filter(|r| time(r) < seconds) else { break };
        let found = all.entry(reader.name).or_default();
        let began = Instant::now();
        for _ in 0..100 {
            let seeds = &seeds[reader.seeds];
            if let Err(error) = case(reader, seeds, &kept.join(reader.name), first + found.cases, found) {
                eprintln!("FOUND {error}");
                wrong.push(error);
            }
            if found.time >= seconds || wrong.len() > 200 {
                break;
            }
        }
        if told_at.elapsed() > Duration::from_secs(60) || began.elapsed() > LIMIT {
            told_at = Instant::now();
            print_summary(&all);
        }
        assert!(wrong.len() <= 200, "more than 200 cases failed");
    }
    print_summary(&all);
    assert!(wrong.is_empty(), "{} cases went wrong:\n{}", wrong.len(), wrong.join("\n"));
}
