//! `netcl devices`: the available devices and their capabilities, and the memory pool of one.

use super::{device_pool, device_pool_picture};
use crate::context::Context;
use crate::out;
use crate::table::Table;
use netcl::device::{Architecture, Capabilities, human, list, sim};
use netcl::kernel::tune::{Origin, Store};
use netcl::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::PathBuf;

/// List every OpenCL device and the simulated devices, with their capabilities
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON: an array with everything known about each device, or an object with --pool
    #[arg(long)]
    json: bool,
    /// Show the memory pool of this device under a mixed load of allocations: use, rounding, free blocks
    #[arg(long, value_name = "DEVICE")]
    pool: Option<String>,
    /// Write a picture of the pool to this SVG file
    #[arg(long, value_name = "FILE", requires = "pool")]
    svg: Option<PathBuf>,
}

/// Shows the pool of a device.
fn pool(name: &str, args: &Args, context: &Context) -> Result<()> {
    let report = device_pool::run(&context.open_device(name)?)?;
    if let Some(path) = &args.svg {
        std::fs::write(path, device_pool_picture::draw(&report))
            .map_err(|e| Error::io("writing", path, &e))?;
    }
    if args.json { out::json(&report) } else { out::result(&report.text()) }
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    if let Some(name) = &args.pool {
        return pool(name, args, context);
    }
    // Simulated devices are always available; a missing OpenCL installation is reported with them.
    let mut devices = match list(&context.settings) {
        Ok(found) => found,
        Err(e) => {
            out::note(&format!("{e}"));
            Vec::new()
        }
    };
    if devices.is_empty() {
        out::note(
            "no OpenCL device with a compiler found, only simulated ones; `netcl doctor` says what is missing",
        );
    }
    devices.extend(sim::profiles());
    let tuned: Vec<Tuned> = devices.iter().map(|d| Tuned::of(&context.settings, d)).collect();
    if !args.json {
        return out::result(&table(&devices, &tuned).text());
    }
    let pairs = devices.iter().zip(&tuned);
    let objects: Vec<Value> = pairs
        .map(|(device, tuned)| {
            let mut object = serde_json::to_value(device).map_err(|e| Error::internal(e.to_string()))?;
            object["tuning"] = json!(tuned);
            Ok(object)
        })
        .collect::<Result<_>>()?;
    out::json(&objects)
}

/// Numbers of tuning results for a device, by origin. All other kernels use their defaults.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Tuned {
    tuned: usize,
    related: usize,
    shipped: usize,
}

impl Tuned {
    fn of(settings: &Settings, device: &Capabilities) -> Self {
        let mut out = Self::default();
        for (origin, _) in Store::open(settings, device).all() {
            match origin {
                Origin::Tuned => out.tuned += 1,
                Origin::Related => out.related += 1,
                Origin::Shipped => out.shipped += 1,
                Origin::Default => {}
            }
        }
        out
    }

    fn text(&self) -> String {
        let all = [(self.tuned, "tuned"), (self.related, "related"), (self.shipped, "shipped")];
        let parts: Vec<String> =
            all.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        if parts.is_empty() { "default".into() } else { parts.join(", ") }
    }
}

fn table(devices: &[Capabilities], tuned: &[Tuned]) -> Table {
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
        "tuning",
        "offers",
    ]);
    for (d, tuned) in devices.iter().zip(tuned) {
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
            tuned.text(),
            offers(d),
        ]);
    }
    table
}

/// Shortens `OpenCL C 1.2 PoCL` to `C 1.2`.
fn short(version: &str, prefix: &str) -> String {
    let rest = version.strip_prefix(prefix).unwrap_or(version);
    let words: Vec<&str> = rest.split_whitespace().collect();
    match words.as_slice() {
        ["C", number, ..] => format!("C {number}"),
        [number, ..] => (*number).into(),
        [] => "?".into(),
    }
}

/// Lists the capabilities beyond OpenCL 1.2, which netcl requires.
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
    if !matches!(d.architecture, Architecture::Processor | Architecture::Unknown) {
        names.push(d.architecture.to_string());
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuning_is_told_by_where_it_is_from() {
        assert_eq!(Tuned::default().text(), "default");
        assert_eq!(Tuned { tuned: 2, related: 0, shipped: 7 }.text(), "2 tuned, 7 shipped");
    }

    #[test]
    fn versions_are_shortened() {
        assert_eq!(short("OpenCL 3.0 PoCL HSTR: x", "OpenCL "), "3.0");
        assert_eq!(short("OpenCL C 1.2 PoCL", "OpenCL "), "C 1.2");
        assert_eq!(short("", "OpenCL "), "?");
    }

    #[test]
    fn architectures_are_shown_and_in_json_by_family() {
        let device = |architecture| {
            let kind = netcl::device::DeviceKind::Gpu;
            Capabilities { architecture, ..Capabilities::floor("gpu:0", kind) }
        };
        let family = |d: &Capabilities| serde_json::to_value(d).unwrap()["architecture"].clone();
        let card = device(Architecture::Nvidia { sm: 90 });
        assert_eq!((offers(&card), family(&card)), ("sm_90".into(), json!({"family": "nvidia", "sm": 90})));
        let card = device(Architecture::Intel { generation: netcl::device::IntelGeneration::XeHpg });
        assert_eq!(
            (offers(&card), family(&card)),
            ("Xe-HPG".into(), json!({"family": "intel", "generation": "Xe-HPG"}))
        );
        let other = device(Architecture::Unknown);
        assert_eq!((offers(&other), family(&other)), (String::new(), json!({"family": "unknown"})));
    }
}
