//! `netcl doctor`: finds out why OpenCL is not found, and whether the devices compute correctly.

mod mpi;
mod packages;
mod shown;
mod system;
mod workers;

use crate::context::Context;
use crate::out;
use netcl::device::{Capabilities, list};
use netcl::kernel::DriverRecord;
use netcl::kernel::tune::{Quarantine, Suspect};
use netcl::prelude::*;
use netcl::tensor::ops::{OPS, OpEntry};
use netcl::tensor::suite::{INFERENCE, Reach, examine, examine_by, quick, select, threads};
use serde::Serialize;
use shown::Shown;
use std::collections::BTreeMap;
use std::time::Instant;
use system::System;

/// Find out why OpenCL does not work here, and test every kernel on every device
///
/// Checks the OpenCL library, drivers, device files and groups, and says what to install. Then compares every kernel variant on each device with its
/// f64 reference. If a variant fails and another one passes, the first is put in quarantine: later runs on this device and driver avoid it and say
/// so. Exit code: 0 if healthy, 1 if not.
#[derive(clap::Args)]
pub struct Args {
    /// Test only this device [default: all]
    #[arg(long, alias = "gpu-id", value_name = "DEVICE")]
    device: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Run only each kernel's default once, instead of every variant in every storage type
    #[arg(long)]
    quick: bool,
    /// Test every combination of tuned parameters in every storage type, instead of each value in f32
    #[arg(long, conflicts_with = "quick")]
    all_candidates: bool,
    /// Test only ops or samples whose name contains this; results for other kernels are kept
    #[arg(long, value_name = "NAME")]
    op: Option<String>,
    /// Threads that build and test in parallel, each with its own context [default: CPU cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,
    /// Test the MPI library, its launcher and ranks, not devices; under mpirun, test the started ranks
    #[arg(long, conflicts_with_all = ["device", "quick", "all_candidates", "op"])]
    mpi: bool,
    /// With --mpi: also run this many operations and check that no rank's memory grows
    #[arg(long, value_name = "N", requires = "mpi", default_value_t = 0)]
    in_a_row: u32,
    /// With --mpi: also test a vector of this many bytes, which may exceed 2^31
    #[arg(long, value_name = "BYTES", requires = "mpi", default_value_t = 0)]
    vector: u64,
    /// Test the ops that stdin lists, as a worker of another doctor
    #[arg(long, hide = true, requires = "device")]
    worker: bool,
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
    /// Cases of kernels that run models and belong to no op, by kernel name.
    inference: BTreeMap<&'static str, usize>,
    /// Variants and tuned values tested in addition to the device's choices.
    candidates: usize,
    /// Variants that the device can run, but that fit the shapes of no sample.
    idle: Vec<String>,
    /// Variants put in quarantine.
    suspects: Vec<Suspect>,
    /// Failures without a substitute.
    failures: Vec<String>,
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    if let (true, Some(name)) = (args.worker, &args.device) {
        return workers::serve(&context.open_device_alone(name)?, ops(args)?, reach(args));
    }
    if args.mpi {
        return mpi::run(args.json, &mpi::More { in_a_row: args.in_a_row, vector: args.vector });
    }
    ops(args)?;
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
        Ok(all) if all.is_empty() => "OpenCL is installed, but no device with a compiler was found".into(),
        Ok(_) => "a kernel computes wrong results; netcl avoids those that have a substitute".into(),
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
        let state = node.error.as_deref().unwrap_or("accessible to this user");
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
    let open = || context.open_device(name);
    let device = open()?;
    let mut report = of(device.capabilities());
    let threads = args.threads.map_or_else(threads, usize::from);
    if args.quick {
        let (kernels, failures) = quick(&open, ops(args)?, threads)?;
        (report.kernels, report.failures) = (kernels.len(), failures);
    } else {
        self_test(&device, &open, threads, args, context, &mut report)?;
    }
    check_inference(&device, args, &mut report);
    if args.op.is_none() {
        // The compiler returned from every kernel, so programs are built in their own process from now on.
        let record = DriverRecord::of(device.settings(), device.capabilities());
        if let Err(e) = record.set(report.failures.is_empty()) {
            tracing::warn!("cannot save the outcome: {e}");
        }
    }
    report.seconds = started.elapsed().as_secs_f64();
    if !args.json {
        show_device(&report, args.quick)?;
    }
    Ok(report)
}

/// Tests kernels that run models, which belong to no op: those that `--op` names, or all.
fn check_inference(device: &Device, args: &Args, report: &mut DeviceReport) {
    for kernel in
        INFERENCE.iter().filter(|kernel| args.op.as_ref().is_none_or(|part| kernel.name.contains(part)))
    {
        match (kernel.check)(device) {
            Ok(cases) => {
                report.inference.insert(kernel.name, cases);
            }
            Err(e) => report.failures.push(e.message().to_owned()),
        }
    }
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
    let DeviceReport { device, name, driver, seconds, ops, cases, kernels, candidates, .. } = report;
    out::result(&format!("device       {device}: {name}, {driver}"))?;
    if quick {
        out::result(&format!(
            "             {kernels} kernels run once and compared with their reference in {seconds:.1} s"
        ))?;
    } else {
        out::result(&format!(
            "             {ops} ops, {kernels} kernels with {candidates} alternatives, {cases} cases compared with their reference in {seconds:.0} s"
        ))?;
        if !report.idle.is_empty() {
            out::result(&format!("not reached  {}: no sample has a suitable shape", report.idle.join(", ")))?;
        }
    }
    let models: Vec<String> =
        report.inference.iter().map(|(name, cases)| format!("{name} {cases}")).collect();
    if !models.is_empty() {
        out::result(&format!("models       cases compared with exact arithmetic: {}", models.join(", ")))?;
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

/// Returns the ops to test.
///
/// # Errors
/// `Format` if no op has such a name.
fn ops(args: &Args) -> Result<&'static [OpEntry]> {
    let Some(part) = args.op.as_deref() else { return Ok(OPS) };
    match select(part) {
        // The name belongs to a kernel without an op.
        Err(_) if INFERENCE.iter().any(|kernel| kernel.name.contains(part)) => Ok(&[]),
        found => found,
    }
}

fn reach(args: &Args) -> Reach {
    if args.all_candidates { Reach::Combinations } else { Reach::Values }
}

fn self_test(
    device: &Device,
    open: &(dyn Fn() -> Result<Device> + Sync),
    threads: usize,
    args: &Args,
    context: &Context,
    report: &mut DeviceReport,
) -> Result<()> {
    let known = Quarantine::open(device.settings(), device.capabilities()).suspects();
    match known.iter().filter(|suspect| suspect.is_avoided()).count() {
        0 => {}
        1 => out::note("Testing the quarantined kernel again"),
        n => out::note(&format!("Testing the {n} quarantined kernels again")),
    }
    let shown = Shown::new(&report.device, args.json, context.live());
    let (reach, ops) = (reach(args), ops(args)?);
    let capabilities = device.capabilities();
    let findings = match workers::wanted(args, capabilities, threads) {
        true => {
            let testers = workers::all(args, &capabilities.id, ops, threads)?;
            examine_by(testers, ops, &|event| shown.tell(event))
        }
        false => examine(open, ops, reach, threads, &|event| shown.tell(event))?,
    };
    shown.end();
    let findings = if args.op.is_some() { findings.with_known(known) } else { findings };
    findings.keep(device)?;
    report.ops = findings.ops;
    report.cases = findings.cases;
    report.kernels = findings.kernels.len();
    report.candidates = findings.candidates;
    report.idle = findings.idle.into_iter().collect();
    report.suspects = findings.suspects;
    report.failures = findings.failures;
    Ok(())
}
