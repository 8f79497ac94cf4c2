//! `netcl doctor`: why OpenCL is not found, and whether what is found computes correctly.

mod packages;
mod system;

use crate::context::Context;
use crate::out;
use netcl::device::{Capabilities, list};
use netcl::kernel::tune::{Quarantine, Suspect};
use netcl::prelude::*;
use netcl::tensor::ops::OPS;
use netcl::tensor::suite::{SelfTest, Verdict};
use serde::Serialize;
use std::time::Instant;
use system::System;

/// Find out why OpenCL does not work here, and test every kernel on every device
///
/// Looks for the OpenCL library, drivers, device files and groups, and says what to install. Then every kernel variant is
/// compared with its f64 reference on each device. A variant that fails while another passes is put in quarantine: later
/// runs on this device and driver avoid it and say so. Exit code 0: healthy, 1: not.
#[derive(clap::Args)]
pub struct Args {
    /// Test this device only; all of them without it
    #[arg(long, alias = "gpu_id", value_name = "DEVICE")]
    device: Option<String>,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Build and run one kernel a device instead of testing all of them
    #[arg(long)]
    quick: bool,
    /// Candidates of a tuned kernel that are tested
    #[arg(long, default_value_t = 12, hide = true)]
    candidates: usize,
}

#[derive(Serialize)]
struct Report {
    healthy: bool,
    #[serde(flatten)]
    system: System,
    advice: Vec<String>,
    devices: Vec<DeviceReport>,
}

#[derive(Default, Serialize)]
struct DeviceReport {
    device: String,
    name: String,
    driver: String,
    seconds: f64,
    ops: usize,
    cases: usize,
    kernels: usize,
    /// Put in quarantine.
    suspects: Vec<Suspect>,
    /// What fails and has no substitute.
    failures: Vec<String>,
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    let system = System::look(&context.settings);
    let found = list(&context.settings);
    let all = found.as_deref().unwrap_or_default();
    let platforms: Vec<String> = all.iter().filter_map(|d| d.id.split(':').next()).map(Into::into).collect();
    let advice = system.advice(&platforms);
    if !args.json {
        show_system(&system)?;
    }
    let wanted: Vec<String> = match &args.device {
        Some(name) => vec![name.clone()],
        None => all.iter().map(|d| d.id.clone()).collect(),
    };
    let mut devices = Vec::new();
    for name in &wanted {
        devices.push(check(name, args, context)?);
    }
    let bad = |d: &DeviceReport| !d.suspects.is_empty() || !d.failures.is_empty();
    let healthy = !devices.is_empty() && !devices.iter().any(bad);
    let why = match &found {
        Err(e) => e.message().to_owned(),
        Ok(all) if all.is_empty() => "OpenCL is installed, but it shows no device with a compiler".into(),
        Ok(_) => "a kernel computes something wrong; what can be avoided is now avoided".into(),
    };
    if args.json {
        out::json(&Report { healthy, system, advice, devices })?;
    } else {
        for line in &advice {
            out::result(&format!("advice: {line}"))?;
        }
        out::result(if healthy { "healthy" } else { "not healthy" })?;
    }
    if healthy { Ok(()) } else { Err(Error::new(ErrorKind::Unsupported, why)) }
}

fn show_system(system: &System) -> Result<()> {
    let loader = &system.loader;
    match &loader.loader {
        Some(name) => out::result(&format!("loader       {name}"))?,
        None => out::result(&format!("loader       none ({})", loader.tried.join("; ")))?,
    }
    let folders: Vec<String> = loader.icd_folders.iter().map(|f| f.display().to_string()).collect();
    if loader.icds.is_empty() {
        out::result(&format!("drivers      no .icd file in {}", folders.join(", ")))?;
    }
    for (file, library, error) in &loader.icds {
        let state = error.as_ref().map_or("loads".into(), |e| format!("does not load: {e}"));
        out::result(&format!("drivers      {}: {library} {state}", file.display()))?;
    }
    for (name, value) in &system.environment {
        out::result(&format!("environment  {name}={value}"))?;
    }
    for node in &system.nodes {
        let state = node.error.as_deref().unwrap_or("open to this user");
        out::result(&format!("device file  {}: {state}", node.path.display()))?;
    }
    for (group, member) in &system.groups {
        out::result(&format!("group        {group}: {}", if *member { "member" } else { "not a member" }))?;
    }
    if !system.gpus.is_empty() {
        out::result(&format!("GPUs         {}", system.gpus.join(", ")))?;
    }
    Ok(())
}

fn check(name: &str, args: &Args, context: &Context) -> Result<DeviceReport> {
    let started = Instant::now();
    let device = context.open_device(name)?;
    let mut report = of(device.capabilities());
    if args.quick {
        report.failures.extend(one_kernel(&device).err().map(|e| e.to_string()));
        report.kernels = 1;
    } else {
        self_test(&device, args.candidates, context.live(), &mut report)?;
    }
    report.seconds = started.elapsed().as_secs_f64();
    if !args.json {
        show_device(&report, args.quick)?;
    }
    Ok(report)
}

fn of(d: &Capabilities) -> DeviceReport {
    DeviceReport {
        device: d.id.clone(),
        name: d.name.clone(),
        driver: format!("{} {}", d.platform, d.driver_version),
        ..DeviceReport::default()
    }
}

fn show_device(report: &DeviceReport, quick: bool) -> Result<()> {
    let DeviceReport { device, name, driver, seconds, ops, cases, kernels, .. } = report;
    out::result(&format!("device       {device}: {name}, {driver}"))?;
    if quick {
        let state = if report.failures.is_empty() { "builds and runs a kernel" } else { "fails" };
        out::result(&format!("             {state} ({seconds:.1} s)"))?;
    } else {
        out::result(&format!(
            "             {ops} ops, {kernels} kernels, {cases} cases against their reference in {seconds:.0} s"
        ))?;
    }
    for s in &report.suspects {
        let with = s.params.as_ref().map_or(String::new(), |p| format!(" with {p:?}"));
        out::result(&format!("quarantined  {}{with}: {}", s.kernel, s.why))?;
    }
    for failure in &report.failures {
        out::result(&format!("fails        {failure}"))?;
    }
    Ok(())
}

/// The least that must work: memory, a build, a launch, a copy back.
fn one_kernel(device: &Device) -> Result<()> {
    let x = Tensor::from_f32(device, [4], &[1.0, 2.0, 3.0, 4.0], DType::F32)?;
    let y = x.add(&x)?.to_vec()?;
    if y == [2.0, 4.0, 6.0, 8.0] {
        return Ok(());
    }
    Err(Error::internal(format!("1, 2, 3, 4 added to itself gave {y:?}")))
}

fn self_test(device: &Device, candidates: usize, live: bool, report: &mut DeviceReport) -> Result<()> {
    let known = Quarantine::open(device.settings(), device.capabilities()).suspects();
    if !known.is_empty() {
        out::note(&format!("{} in quarantine are tested again", known.len()));
    }
    let progress = out::progress(live, OPS.len() as u64, "testing");
    let mut test = SelfTest::new(device, candidates);
    let mut kernels = std::collections::BTreeSet::new();
    for op in OPS {
        progress.set_message(op.name);
        let Verdict { cases, kernels: launched, suspects, failure, .. } = test.run(op);
        report.ops += 1;
        report.cases += cases;
        kernels.extend(launched);
        report.suspects.extend(suspects);
        report.failures.extend(failure.map(|why| format!("{}: {why}", op.name)));
        progress.inc(1);
    }
    progress.finish_and_clear();
    report.kernels = kernels.len();
    test.finish()
}
