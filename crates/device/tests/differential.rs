//! Random kernels give the same on the simulated GPU as on every OpenCL device that is here.
//!
//! `NETCL_DIFFERENTIAL=10000 cargo test -p netcl-device --test differential --release -- --nocapture` runs more seeds than
//! the default; without an OpenCL device there is nothing to compare with, and the test says so.
#![allow(clippy::unwrap_used, clippy::panic)] // tests

#[path = "../../aethercl/tests/generate/mod.rs"]
mod generate;

use netcl_device::driver::{Access, Arg, Driver, QueueKind, Range};
use netcl_device::sim::SimDriver;
use netcl_device::{OpenClDriver, Settings, SimSettings, devices};

/// Seeds of an ordinary test run: PoCL takes one to two seconds to compile each for the first time, and keeps them.
const SEEDS: u64 = 50;

fn run(d: &dyn Driver, seed: u64) -> netcl_device::Result<Vec<u8>> {
    let (words, floats) = generate::inputs(seed);
    let words: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let floats: Vec<u8> = floats.iter().flat_map(|f| f.to_le_bytes()).collect();
    let (a, b) = (d.allocate(words.len(), "test")?, d.allocate(floats.len(), "test")?);
    let out = d.allocate(words.len(), "test")?;
    d.write(QueueKind::Compute, &a, 0, &words)?;
    d.write(QueueKind::Compute, &b, 0, &floats)?;
    let program = d.build(&generate::kernel(seed), "")?;
    let kernel = d.kernel(&program, "k")?;
    let args =
        [Arg::Memory(&a, Access::Read), Arg::Memory(&b, Access::Read), Arg::Memory(&out, Access::Write)];
    let range = Range { global: [generate::GLOBAL, 1, 1], local: [generate::GROUP, 1, 1] };
    d.launch(&kernel, &args, range, false)?;
    let mut bytes = vec![0; words.len()];
    d.read(QueueKind::Compute, &out, 0, &mut bytes)?;
    Ok(bytes)
}

/// The first word that differs: which item, which of its words.
fn difference(a: &[u8], b: &[u8]) -> Option<String> {
    let at = a.chunks(4).zip(b.chunks(4)).position(|(x, y)| x != y)?;
    let word =
        |bytes: &[u8]| bytes[at * 4..at * 4 + 4].iter().rev().map(|b| format!("{b:02x}")).collect::<String>();
    let (item, index) = (at / generate::WORDS, at % generate::WORDS);
    Some(format!("item {item}, out[{index}]: 0x{} on the simulator, 0x{}", word(a), word(b)))
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
        println!("no OpenCL device: nothing to compare with");
        return;
    }
    let sim = SimDriver::open("sim", &SimSettings::default()).unwrap();
    let seeds = std::env::var("NETCL_DIFFERENTIAL").ok().and_then(|v| v.parse().ok()).unwrap_or(SEEDS);
    let first = std::env::var("NETCL_DIFFERENTIAL_FIRST").ok().and_then(|v| v.parse().ok()).unwrap_or(0);
    let mut wrong = Vec::new();
    for seed in first..first + seeds {
        let expected =
            run(&sim, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", generate::kernel(seed)));
        for d in &real {
            let name = &d.capabilities().name;
            let got = run(d, seed).unwrap_or_else(|e| panic!("seed {seed} on {name}: {e}"));
            if let Some(difference) = difference(&expected, &got) {
                wrong.push(format!("seed {seed}: {difference} on {name}"));
            }
        }
    }
    println!("{seeds} kernels on {} devices, {} differences", real.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
