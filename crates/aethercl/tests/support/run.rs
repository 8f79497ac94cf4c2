//! Launches a case's kernel and writes its results.

use super::sim::{Sim, SimArg};
use aethercl::{Access, Arg, Checks, LaunchOptions, Memory, NdRange, Program};
use std::fmt::Write;

/// Device memory of a case.
const CAPACITY: u64 = 64 << 20;

/// Runs the case. Returns the contents of its writable buffers, printed text, and findings.
pub fn run(program: &Program, sim: &Sim, checks: &[String]) -> Result<String, String> {
    let memory = Memory::new(CAPACITY);
    let mut addresses = Vec::new();
    for arg in &sim.args {
        let SimArg::Buffer { name, element, count, data, .. } = arg else {
            addresses.push(0);
            continue;
        };
        let at = memory.allocate((element.size() * count) as u64, name).map_err(|e| e.to_string())?;
        if let Some(data) = data {
            memory.write(at, data).map_err(|e| e.to_string())?;
        }
        addresses.push(at);
    }
    let args: Vec<Arg<'_>> = sim.args.iter().zip(&addresses).map(|(a, at)| argument(a, *at)).collect();
    let wide = |v: [usize; 3]| v.map(|n| n as u64);
    let dimensions = (1..=3).rev().find(|d| sim.global[d - 1] > 1).unwrap_or(1) as u32;
    let range =
        NdRange { global: wide(sim.global), local: wide(sim.group), offset: wide(sim.offset), dimensions };
    let options =
        LaunchOptions { checks: checks_named(checks)?, max_steps: 10_000_000, ..LaunchOptions::default() };
    let mut out = String::new();
    match program.launch(&memory, &sim.kernel, &args, range, &options) {
        Err(error) => _ = writeln!(out, "launch fails: {error}"),
        Ok(outcome) => {
            for line in outcome.printf.lines() {
                _ = writeln!(out, "prints: {line}");
            }
            for f in &outcome.findings {
                let times = if f.count > 1 { format!(", {} times", f.count) } else { String::new() };
                _ = writeln!(out, "finding: {} {}:{} {}{times}", f.kind.name(), f.line, f.column, f.message);
                for item in &f.items {
                    _ = writeln!(out, "  by {item}");
                }
            }
        }
    }
    for (arg, at) in sim.args.iter().zip(&addresses) {
        if let SimArg::Buffer { name, element, count, read_only: false, .. } = arg {
            let mut bytes = vec![0; element.size() * count];
            memory.read(*at, &mut bytes).map_err(|e| e.to_string())?;
            let values: Vec<String> = bytes.chunks(element.size()).map(|c| element.text(c)).collect();
            _ = writeln!(out, "{name}: {}", values.join(" "));
        }
    }
    Ok(out)
}

fn argument(arg: &SimArg, address: u64) -> Arg<'_> {
    match arg {
        SimArg::Buffer { element, count, read_only, .. } => {
            let access = if *read_only { Access::Read } else { Access::Write };
            Arg::Buffer { address, bytes: (element.size() * count) as u64, access }
        }
        SimArg::Value(bytes) => Arg::Scalar(bytes),
        SimArg::Local(bytes) => Arg::Local(*bytes),
    }
}

/// Returns the checks that the case names; `none` means no checks [default: all].
fn checks_named(names: &[String]) -> Result<Checks, String> {
    if names.is_empty() {
        return Ok(Checks::ALL);
    }
    let mut checks = Checks::NONE;
    for name in names {
        match name.as_str() {
            "all" => checks = Checks::ALL,
            "none" => checks = Checks::NONE,
            "bounds" => checks.bounds = true,
            "uninitialized" => checks.uninitialized = true,
            "race" => checks.races = true,
            "barrier" => checks.barriers = true,
            "division" => checks.division = true,
            "contract" => checks.contract = true,
            other => return Err(format!("unknown check '{other}'")),
        }
    }
    Ok(checks)
}
