//! Prints the device time of each launch of netcl's portable kernels as one line of JSON. The time model is compared with these times.
//!
//!     cargo run --release -p netcl-tensor --example kernel_times [-- FAMILY[/CASE]] > times.jsonl
//!
//! It runs on `NETCL_TEST_DEVICE` [default: `auto`]. Kernels for one vendor are excluded: the device is opened without its compute
//! capability. Before each repetition, more memory is read than any cache holds. On a simulated device (`sim:h200`), the time is the
//! model's, counted on a sample of each launch's groups: `NETCL_SIM_SAMPLE` [default: 16].

#![allow(clippy::print_stdout, clippy::print_stderr)] // a program, not a library

mod cases;
mod measure;

use netcl_tensor::{Result, Settings};

fn main() -> Result<()> {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let (wanted, part) = filter.split_once('/').unwrap_or((&filter, ""));
    let name = std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into());
    let device = measure::open(&name, Settings::from_env())?;
    let c = device.capabilities();
    let about = serde_json::json!({"device": c.id, "name": c.name, "driver": c.driver_version, "simulated": c.simulated});
    println!("{about}");
    let scratch = measure::Scratch::new(&device)?;
    for (_, family) in cases::FAMILIES.iter().filter(|(name, _)| name.contains(wanted)) {
        for case in family(&device)?.iter().filter(|case| case.name.contains(part)) {
            // If a case cannot be built or launched, the others still run.
            if let Err(e) = measure::measure(&device, &scratch, case, |line| println!("{line}")) {
                eprintln!("{}: {e}", case.name);
            }
        }
    }
    Ok(())
}
