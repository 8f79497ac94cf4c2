//! Random kernels give the same results on the simulated GPU as on every available OpenCL device.
//!
//! `NETCL_DIFFERENTIAL=10000 cargo test -p netcl-device --test differential --release -- --nocapture` runs more seeds than the default;
//! `NETCL_DIFFERENTIAL=2000..4000` runs a range of them. The test reports progress every 500 seeds, so that an interrupted run still shows what it
//! compared. Without an OpenCL device there is nothing to compare with, and the test says so.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, clippy::panic)] // tests

#[path = "../../aethercl/tests/generate/mod.rs"]
mod generate;

use netcl_device::driver::{Access, Arg, Driver, Program, QueueKind, Range};
use netcl_device::sim::SimDriver;
use netcl_device::{OpenClDriver, Settings, SimSettings, devices};

/// Number of seeds of an ordinary test run. PoCL keeps what it compiled.
const SEEDS: u64 = 200;
/// Number of kernels per program.
const BATCH: u64 = 20;
/// Number of seeds between progress lines.
const PROGRESS: u64 = 500;
/// Build options of the reference devices. These devices are not under test. Without the options, PoCL takes three times as long per kernel, and
/// Intel's optimizer contracts floats regardless of the pragma.
const OPTIONS: &str = "-cl-opt-disable -w";

fn run(d: &dyn Driver, program: &Program, seed: u64) -> netcl_device::Result<Vec<u8>> {
    let (words, floats) = generate::inputs(seed);
    let words: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let floats: Vec<u8> = floats.iter().flat_map(|f| f.to_le_bytes()).collect();
    let (a, b) = (d.allocate(words.len(), "test")?, d.allocate(floats.len(), "test")?);
    let out = d.allocate(words.len(), "test")?;
    d.write(QueueKind::Compute, &a, 0, &words)?;
    d.write(QueueKind::Compute, &b, 0, &floats)?;
    let kernel = d.kernel(program, &format!("k_{seed}"))?;
    let args =
        [Arg::Memory(&a, Access::Read), Arg::Memory(&b, Access::Read), Arg::Memory(&out, Access::Write)];
    let range = Range { global: [generate::GLOBAL, 1, 1], local: [generate::GROUP, 1, 1] };
    d.launch(&kernel, &args, range, false)?;
    let mut bytes = vec![0; words.len()];
    d.read(QueueKind::Compute, &out, 0, &mut bytes)?;
    Ok(bytes)
}

/// Describes the first word that differs: the item and the index of the word.
fn difference(a: &[u8], b: &[u8]) -> Option<String> {
    let at = a.chunks(4).zip(b.chunks(4)).position(|(x, y)| x != y)?;
    let word =
        |bytes: &[u8]| bytes[at * 4..at * 4 + 4].iter().rev().map(|b| format!("{b:02x}")).collect::<String>();
    let (item, index) = (at / generate::WORDS, at % generate::WORDS);
    Some(format!("item {item}, out[{index}]: 0x{} on the simulator, 0x{}", word(a), word(b)))
}

/// Parses a range of seeds: `TO` (from 0) or `FROM..TO`.
fn range(text: &str) -> Option<std::ops::Range<u64>> {
    let (from, to) = text.split_once("..").unwrap_or(("0", text));
    Some(from.trim().parse().ok()?..to.trim().parse().ok()?)
}

#[test]
fn ranges_of_seeds() {
    assert_eq!(range("10000"), Some(0..10_000));
    assert_eq!(range("500..1000"), Some(500..1000));
    assert_eq!((range("many"), range("5.."), range("-1..4")), (None, None, None));
}

#[test]
fn random_kernels_agree_with_opencl() {
    let settings = Settings::default();
    let real: Vec<OpenClDriver> = devices(&settings)
        .unwrap_or_default()
        .iter()
        .filter_map(|d| OpenClDriver::open(d, false).ok())
        .collect();
    if real.is_empty() {
        println!("no OpenCL device to compare with");
        return;
    }
    let sim = SimDriver::open("sim", &SimSettings::default()).unwrap();
    let seeds = match std::env::var("NETCL_DIFFERENTIAL") {
        Ok(text) => range(&text)
            .unwrap_or_else(|| panic!("NETCL_DIFFERENTIAL is {text:?}; expected a number or FROM..TO")),
        Err(_) => 0..SEEDS,
    };
    let names: Vec<&str> = real.iter().map(|d| d.capabilities().name.as_str()).collect();
    println!("seeds {seeds:?} on {}", names.join(", "));
    let (mut wrong, mut done) = (Vec::new(), 0);
    for start in seeds.clone().step_by(BATCH as usize) {
        let batch = start..(start + BATCH).min(seeds.end);
        let text = generate::program(batch.clone());
        let on_sim = sim.build(&text, "").unwrap_or_else(|e| panic!("seeds {batch:?}: {e}"));
        for d in &real {
            let name = &d.capabilities().name;
            let program =
                d.build(&text, OPTIONS).unwrap_or_else(|e| panic!("seeds {batch:?} on {name}: {e}"));
            for seed in batch.clone() {
                let text = || generate::kernel(seed);
                let expected =
                    run(&sim, &on_sim, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", text()));
                let got = run(d, &program, seed).unwrap_or_else(|e| panic!("seed {seed} on {name}: {e}"));
                done += 1;
                if let Some(difference) = difference(&expected, &got) {
                    println!("seed {seed}: {difference} on {name}");
                    wrong.push(format!("seed {seed}: {difference} on {name}"));
                }
            }
        }
        if (batch.end - seeds.start) % PROGRESS < BATCH {
            println!("up to seed {}: {done} comparisons, {} differences", batch.end, wrong.len());
        }
    }
    println!("seeds {seeds:?} on {} devices, {done} comparisons, {} differences", real.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
