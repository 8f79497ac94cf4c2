//! Launches a case's kernel and writes down what it left.

use aethercl::{Access, Arg, Checks, LaunchOptions, Memory, NdRange, Program};

use super::sim::{Sim, SimArg};

/// Device memory of a case.
const MEMORY: u64 = 64 << 20;
/// Work-items of a sub-group: small, so that small groups have several.
const SUB_GROUP: u32 = 4;

/// What came of the launch, in the form of a reference. It runs without checks and with all of them: the results must be
/// the same, and findings come behind them.
pub fn launch(program: &Program, sim: &Sim) -> Result<String, String> {
    let plain = once(program, sim, Checks::NONE)?;
    if sim.checks.iter().any(|c| c == "none") {
        return Ok(plain);
    }
    let checked = once(program, sim, Checks::ALL)?;
    let results = |text: &str| {
        text.lines().filter(|l| !l.starts_with("finding: ")).map(String::from).collect::<Vec<_>>()
    };
    // What a defect makes of the results may differ; where there is none they may not.
    let clean = !checked.contains("finding: ");
    if clean && results(&plain) != results(&checked) {
        return Err(format!("checks change the results:\n{plain}with checks:\n{checked}"));
    }
    Ok(checked)
}

fn once(program: &Program, sim: &Sim, checks: Checks) -> Result<String, String> {
    let memory = Memory::new(MEMORY);
    let mut addresses = Vec::new();
    for arg in &sim.args {
        if let SimArg::Buffer { name, element, count, data, .. } = arg {
            let at = memory.allocate((element.size() * count) as u64, name).map_err(|e| e.to_string())?;
            if let Some(data) = data {
                memory.write(at, data).map_err(|e| e.to_string())?;
            }
            addresses.push(at);
        }
    }
    let mut next = addresses.iter();
    let args = sim.args.iter().map(|arg| match arg {
        SimArg::Buffer { element, count, read_only, .. } => Arg::Buffer {
            address: next.next().copied().unwrap_or(0),
            bytes: (element.size() * count) as u64,
            access: if *read_only { Access::Read } else { Access::Write },
        },
        SimArg::Value(bytes) => Arg::Scalar(bytes),
        SimArg::Local(bytes) => Arg::Local(*bytes),
    });
    let args: Vec<Arg> = args.collect();
    let wide = |sizes: [usize; 3]| sizes.map(|n| n as u64);
    let dimensions = if sim.global[2] > 1 {
        3
    } else if sim.global[1] > 1 {
        2
    } else {
        1
    };
    let range =
        NdRange { global: wide(sim.global), local: wide(sim.group), offset: wide(sim.offset), dimensions };
    let options = LaunchOptions { checks, sub_group: SUB_GROUP, threads: 2, ..LaunchOptions::default() };
    let outcome = match program.launch(&memory, &sim.kernel, &args, range, &options) {
        Ok(outcome) => outcome,
        Err(e) => return Ok(format!("launch fails: {e}\n")),
    };
    let mut out = String::new();
    let mut next = addresses.iter();
    for arg in &sim.args {
        let SimArg::Buffer { name, element, count, read_only, .. } = arg else { continue };
        let at = next.next().copied().unwrap_or(0);
        if *read_only {
            continue;
        }
        let mut bytes = vec![0; element.size() * count];
        memory.read(at, &mut bytes).map_err(|e| e.to_string())?;
        let values: Vec<String> = bytes.chunks(element.size()).map(|b| element.text(b)).collect();
        out.push_str(&format!("{name}: {}\n", values.join(" ")));
    }
    for line in outcome.printf.lines() {
        out.push_str(&format!("prints: {line}\n"));
    }
    for f in &outcome.findings {
        out.push_str(&format!("finding: {} {}:{} {}\n", f.kind.name(), f.line, f.column, f.message));
    }
    Ok(out)
}
