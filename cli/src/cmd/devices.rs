//! `netcl devices`: what is here and what it can do.

use crate::context::Context;
use crate::out;
use crate::table::Table;
use netcl::device::{Capabilities, human, list, sim};
use netcl::prelude::*;

/// List every OpenCL device, the simulated ones, and what they can do
#[derive(clap::Args)]
pub struct Args {
    /// One JSON array with everything that is known of each device
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    // Simulated devices are always there; what OpenCL lacks is said beside them.
    let mut devices = match list(&context.settings) {
        Ok(found) => found,
        Err(e) => {
            out::note(&format!("{e}"));
            Vec::new()
        }
    };
    if devices.is_empty() {
        out::note(
            "no OpenCL device with a compiler here, only simulated ones; `netcl doctor` tells what is missing",
        );
    }
    devices.extend(sim::profiles());
    if args.json { out::json(&devices) } else { out::result(&table(&devices).text()) }
}

fn table(devices: &[Capabilities]) -> Table {
    let mut table = Table::new(&[
        "device",
        "name",
        "kind",
        ">units",
        ">memory",
        ">one buffer",
        ">local",
        "version",
        "driver",
        "offers",
    ]);
    for d in devices {
        table.row([
            d.id.clone(),
            d.name.clone(),
            format!("{:?}", d.kind).to_lowercase(),
            d.compute_units.to_string(),
            human(d.global_mem),
            human(d.max_alloc),
            human(d.local_mem),
            format!("{}, {}", short(&d.version, "OpenCL "), short(&d.c_version, "OpenCL ")),
            d.driver_version.clone(),
            offers(d),
        ]);
    }
    table
}

/// `OpenCL C 1.2 PoCL` → `C 1.2`
fn short(version: &str, prefix: &str) -> String {
    let rest = version.strip_prefix(prefix).unwrap_or(version);
    let words: Vec<&str> = rest.split_whitespace().collect();
    match words.as_slice() {
        ["C", number, ..] => format!("C {number}"),
        [number, ..] => (*number).into(),
        [] => "?".into(),
    }
}

/// What goes beyond the floor of OpenCL 1.2.
fn offers(d: &Capabilities) -> String {
    let all = [
        (d.simulated, "simulated"),
        (d.fp16, "fp16"),
        (d.fp64, "fp64"),
        (d.subgroups, "subgroups"),
        (d.unified_memory, "unified memory"),
        (d.extensions.iter().any(|e| e == "cl_khr_command_buffer"), "command buffers"),
    ];
    let mut names: Vec<String> = all.iter().filter(|(has, _)| *has).map(|(_, name)| (*name).into()).collect();
    if d.nvidia_cc > 0 {
        names.push(format!("sm_{}", d.nvidia_cc));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_shortened() {
        assert_eq!(short("OpenCL 3.0 PoCL HSTR: x", "OpenCL "), "3.0");
        assert_eq!(short("OpenCL C 1.2 PoCL", "OpenCL "), "C 1.2");
        assert_eq!(short("", "OpenCL "), "?");
    }
}
