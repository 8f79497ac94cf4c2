//! `netcl sim times`: times of a list of kernels on a device, compared with those of the time model.

use super::arg::KernelArg;
use super::content::content;
use super::session::{LaunchArgs, Launched, Session};
use crate::bench::measure::median;
use crate::out;
use crate::table::Table;
use aethercl::machine::{Binding, MachineOptions};
use aethercl::model::spearman;
use clap::Parser;
use netcl::device::driver::{Access, Arg, Driver, KernelHandle, Memory, QueueKind, Range};
use netcl::device::{counted, open_driver};
use netcl::prelude::*;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Reads more memory than the caches hold, so that each launch starts with empty caches, as in the model.
const EMPTY_CACHES: &str = "kernel void empty_caches(global const uint4* x, global uint* out) {
    uint4 v = x[get_global_id(0)];
    if ((v.x ^ v.y ^ v.z ^ v.w) == 0x5eed5eedu) out[0] = 1;
}";

#[derive(clap::Args)]
pub struct TimesArgs {
    /// File with one launch per line, as for `sim run`: FILE.cl --kernel NAME --global 1024 --arg …
    ///
    /// A # begins a comment.
    #[arg(value_name = "LIST")]
    list: PathBuf,
    /// Device to time [default: only model times]
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Profile of the device's model, for all lines
    #[arg(long, default_value = "h200")]
    profile: String,
    /// Work-groups of each launch to simulate, evenly spread; 0: all
    #[arg(long, value_name = "N", default_value_t = 64)]
    sample: u64,
    /// Timed launches of each kernel; the median is reported
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A line of the list.
#[derive(clap::Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(flatten)]
    launch: LaunchArgs,
}

/// The result of one line.
#[derive(Serialize)]
struct Row {
    file: String,
    kernel: String,
    global: [u64; 3],
    local: [u64; 3],
    modelled_us: f64,
    bound_by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<EventTimes>,
}

/// Times of a device's events.
#[derive(Clone, Copy, Serialize)]
struct EventTimes {
    us: f64,
    min_us: f64,
    max_us: f64,
}

/// All results.
#[derive(Serialize)]
struct Times {
    profile: String,
    device: Option<String>,
    rows: Vec<Row>,
    /// Lines that could not be built or launched, with the reasons.
    failed: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agreement: Option<Agreement>,
}

/// Agreement of modeled and measured times.
#[derive(Serialize)]
struct Agreement {
    kernels: usize,
    within_twice: usize,
    /// Geometric mean of modeled divided by measured times.
    mean_ratio: f64,
    /// Spearman's coefficient of rank correlation.
    spearman: f64,
}

/// Runs the command.
///
/// # Errors
/// A list that cannot be read, or a device that does not open. Lines that fail are listed at the end.
pub fn run(args: &TimesArgs) -> Result<()> {
    let text = std::fs::read_to_string(&args.list).map_err(|e| Error::io("reading", &args.list, &e))?;
    let lines = parse(&args.list, &text, &args.profile)?;
    let driver = args.device.as_ref().map(|name| open_driver(name, &Settings::from_env())).transpose()?;
    let device = driver.as_deref().map(Timed::new).transpose()?;
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for line in &lines {
        let kernel = line.launch.kernel.as_deref().unwrap_or_default();
        let name = format!("{} {kernel}", line.launch.file.display());
        match row(args, &line.launch, device.as_ref()) {
            Ok(row) => rows.push(row),
            Err(e) => failed.push(format!("{}: {e}", name.trim_end())),
        }
    }
    let agreement = agreement(&rows);
    let name = driver.as_ref().map(|d| d.capabilities().name.clone());
    let times = Times { profile: args.profile.clone(), device: name, rows, failed, agreement };
    if args.json {
        out::json(&times)?
    } else {
        out::result(&shown(&times))?
    }
    match times.failed.as_slice() {
        [] => Ok(()),
        failed => Err(Error::launch(format!("{} of the list failed", counted(failed.len(), "line")))),
    }
}

fn parse(path: &Path, text: &str, profile: &str) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: &str| {
            Error::format(format!(
                "line {} of {} is not a launch: {}",
                number + 1,
                path.display(),
                why.trim_end()
            ))
        };
        let mut words = shell_words::split(line).map_err(|e| wrong(&e.to_string()))?;
        words.extend(["--profile".to_string(), profile.to_string()]);
        lines.push(Line::try_parse_from(words).map_err(|e| wrong(&e.to_string()))?);
    }
    Ok(lines)
}

fn row(args: &TimesArgs, launch: &LaunchArgs, device: Option<&Timed<'_>>) -> Result<Row> {
    let options = MachineOptions { count_all: true, ..MachineOptions::default() };
    // A kernel that accesses memory outside its buffers may crash a device's driver.
    let mut session = Session::open(launch, "bounds", options)?;
    let launched = session.launch((args.sample > 0).then_some(args.sample), false)?;
    let outcome = launched.done.outcome.as_ref().map_err(|e| Error::launch(e.to_string()))?;
    let estimate = outcome
        .estimate
        .as_ref()
        .ok_or_else(|| Error::internal("the launch does not have a modeled time"))?;
    if let Some(finding) = outcome.done.findings.first() {
        return Err(Error::launch(format!("it is not timed, because a check found:\n{finding}")));
    }
    let measured = device.map(|d| d.measure(&session.build, launch, &launched, args.runs)).transpose()?;
    Ok(Row {
        file: launch.file.display().to_string(),
        kernel: launched.kernel.name.clone(),
        global: launched.range.global,
        local: launched.range.local,
        modelled_us: estimate.ns as f64 / 1e3,
        bound_by: estimate.bound().to_string(),
        measured,
    })
}

/// A device whose launches are timed with events.
struct Timed<'a> {
    driver: &'a dyn Driver,
    /// `None` on a simulated device, whose caches are emptied for each launch.
    caches: Option<Caches>,
}

/// Memory of an argument.
struct ArgumentMemory {
    memory: Memory,
    /// The content before each launch, and its bytes; `None` if no launch changes it.
    before: Option<(Memory, usize)>,
}

/// Memory that is read between launches.
struct Caches {
    empty: KernelHandle,
    memory: Memory,
    bytes: usize,
    /// An output word that is never written.
    unused: Memory,
}

impl<'a> Timed<'a> {
    fn new(driver: &'a dyn Driver) -> Result<Self> {
        if driver.capabilities().simulated {
            return Ok(Self { driver, caches: None });
        }
        let bytes = (4 * driver.capabilities().cache).clamp(256 << 20, 1 << 30) as usize;
        let empty = driver.kernel(&driver.build(EMPTY_CACHES, "")?, "empty_caches")?;
        let memory = driver.allocate(bytes, "memory that empties the caches")?;
        driver.fill(QueueKind::Compute, &memory, 0, bytes, &[0; 16])?;
        let unused = driver.allocate(16, "unused")?;
        Ok(Self { driver, caches: Some(Caches { empty, memory, bytes, unused }) })
    }

    /// Returns the microseconds of this many launches. Buffers have the same content before each launch.
    fn measure(
        &self,
        build: &(String, String),
        args: &LaunchArgs,
        launched: &Launched,
        runs: u32,
    ) -> Result<EventTimes> {
        if launched.range.offset != [0; 3] {
            return Err(Error::unsupported("launches with an offset are not timed on a device"));
        }
        let program = self.driver.build(&build.0, &build.1)?;
        let kernel = self.driver.kernel(&program, &launched.kernel.name)?;
        let memories = self.memories(args, launched)?;
        let values: Vec<Arg<'_>> = launched
            .bindings
            .iter()
            .zip(&memories)
            .map(|(binding, memory)| match (binding, memory) {
                (Binding::Buffer { access, .. }, Some(ArgumentMemory { memory, .. })) => {
                    Ok(Arg::Memory(memory, access_of(*access)))
                }
                (Binding::Scalar(bytes), _) => Ok(Arg::Scalar(bytes)),
                (Binding::Local(bytes), _) => Ok(Arg::Local(*bytes)),
                _ => Err(Error::unsupported("images, samplers and null pointers are not timed on a device")),
            })
            .collect::<Result<_>>()?;
        let size = |sizes: [u64; 3]| sizes.map(|n| n as usize);
        let range = Range { global: size(launched.range.global), local: size(launched.range.local) };
        let mut us = Vec::new();
        // The first launches warm up: the driver may compile its final code in them.
        for i in 0..runs + 2 {
            for ArgumentMemory { memory, before } in memories.iter().flatten() {
                let Some((before, bytes)) = before else { continue };
                self.driver.copy(QueueKind::Compute, (before, 0), (memory, 0), *bytes)?;
            }
            self.empty_caches()?;
            let event = self.driver.launch(&kernel, &values, range, true)?;
            let event = event.ok_or_else(|| Error::internal("the device returned no event"))?;
            self.driver.wait(&event)?;
            let (start, end) = self.driver.times(&event)?;
            if i >= 2 {
                us.push(end.saturating_sub(start) as f64 / 1e3);
            }
        }
        let middle = median(&mut us);
        Ok(EventTimes { us: middle, min_us: us[0], max_us: us[us.len() - 1] })
    }

    /// Allocates the memory of each buffer argument; for those that the kernel may write, also a copy of the content before each launch.
    fn memories(&self, args: &LaunchArgs, launched: &Launched) -> Result<Vec<Option<ArgumentMemory>>> {
        let one = |(i, arg): (usize, &KernelArg)| {
            let KernelArg::Buffer { number, count, init, read } = arg else { return Ok(None) };
            let data = content(*number, *count, init, i as u64 + 1)
                .map_err(|e| Error::io("filling buffer", Path::new(&launched.kernel.args[i].name), &e))?;
            let bytes = count * number.size();
            let memory = self.driver.allocate(bytes, "argument")?;
            let Some(data) = data else { return Ok(Some(ArgumentMemory { memory, before: None })) };
            self.driver.write(QueueKind::Compute, &memory, 0, &data)?;
            if *read {
                return Ok(Some(ArgumentMemory { memory, before: None }));
            }
            let before = self.driver.allocate(bytes, "argument before a launch")?;
            self.driver.write(QueueKind::Compute, &before, 0, &data)?;
            Ok(Some(ArgumentMemory { memory, before: Some((before, bytes)) }))
        };
        args.args.iter().enumerate().map(one).collect()
    }

    fn empty_caches(&self) -> Result<()> {
        let Some(Caches { empty, memory, bytes, unused }) = &self.caches else { return Ok(()) };
        let args = [Arg::Memory(memory, Access::Read), Arg::Memory(unused, Access::Write)];
        let range = Range { global: [bytes / 1024 * 64, 1, 1], local: [64, 1, 1] };
        self.driver.launch(empty, &args, range, false)?;
        self.driver.finish(QueueKind::Compute)
    }
}

fn access_of(access: aethercl::Access) -> Access {
    match access {
        aethercl::Access::Read => Access::Read,
        aethercl::Access::Write => Access::Write,
    }
}

/// Returns `None` without measured times.
fn agreement(rows: &[Row]) -> Option<Agreement> {
    let pairs: Vec<(f64, f64)> =
        rows.iter().filter_map(|r| r.measured.map(|m| (r.modelled_us, m.us))).collect();
    let (modelled, measured): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let logs = pairs.iter().map(|(a, b)| (a / b).ln()).sum::<f64>();
    (!pairs.is_empty()).then(|| Agreement {
        kernels: pairs.len(),
        within_twice: pairs.iter().filter(|(a, b)| (0.5..=2.0).contains(&(a / b))).count(),
        mean_ratio: (logs / pairs.len() as f64).exp(),
        spearman: spearman(&modelled, &measured),
    })
}

fn shown(times: &Times) -> String {
    let mut table =
        Table::new(&["file", "kernel", "groups", ">modeled, µs", ">measured, µs", ">ratio", "bound by"]);
    for row in &times.rows {
        let product = |sizes: [u64; 3]| sizes.iter().product::<u64>();
        let groups = format!("{} of {}", product(row.global) / product(row.local), product(row.local));
        let file = Path::new(&row.file).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let measured = row.measured.map_or(String::new(), |m| format!("{:.1}", m.us));
        let ratio = row.measured.map_or(String::new(), |m| format!("{:.2}", row.modelled_us / m.us));
        let modelled = format!("{:.1}", row.modelled_us);
        table.row([file, row.kernel.clone(), groups, modelled, measured, ratio, row.bound_by.clone()]);
    }
    let mut lines = table.lines();
    lines.extend(times.failed.iter().map(|f| format!("failed: {f}")));
    if let Some(a) = &times.agreement {
        lines.push(format!(
            "{} of {} within a factor of two, mean ratio {:.2}, Spearman {:.3}; {} compared with the profile {}",
            a.within_twice,
            counted(a.kernels, "kernel"),
            a.mean_ratio,
            a.spearman,
            times.device.as_deref().unwrap_or_default(),
            times.profile
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(modelled_us: f64, us: f64) -> Row {
        let measured = Some(EventTimes { us, min_us: us, max_us: us });
        let (file, kernel) = (String::new(), String::new());
        Row { file, kernel, global: [1; 3], local: [1; 3], modelled_us, bound_by: String::new(), measured }
    }

    #[test]
    fn agreement_is_of_pairs() {
        assert!(agreement(&[]).is_none());
        let a = agreement(&[row(1.0, 2.0), row(4.0, 8.0), row(90.0, 10.0), row(50.0, 20.0)]).unwrap();
        assert_eq!((a.kernels, a.within_twice), (4, 2));
        // Ranks 0 1 3 2 and 0 1 2 3.
        assert!((a.spearman - 0.8).abs() < 1e-12, "{}", a.spearman);
        assert!((a.mean_ratio - (0.5f64 * 0.5 * 9.0 * 2.5).powf(0.25)).abs() < 1e-12);
        assert_eq!(spearman(&[1.0, 1.0], &[1.0, 2.0]), 0.0);
    }

    #[test]
    fn lines_are_launches() {
        let text = "# copies\n\n k.cl --kernel 'a' --global 64 --arg buffer:f32:64 -D \"T=unsigned int\"\n";
        let lines = parse(Path::new("list"), text, "teaching").unwrap();
        assert_eq!((lines.len(), lines[0].launch.kernel.as_deref()), (1, Some("a")));
        let wrong = parse(Path::new("list"), "k.cl --glob 7", "teaching").err().unwrap().to_string();
        assert!(wrong.contains("line 1 of list"), "{wrong}");
        assert!(parse(Path::new("list"), "k.cl 'a", "teaching").is_err());
    }

    /// The simulated GPU is also a device that can be timed: the model agrees with itself if all groups run.
    #[test]
    fn the_model_agrees_with_itself() {
        let folder = std::env::temp_dir().join(format!("netcl-sim-times-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("scale.cl");
        std::fs::write(&file, "kernel void scale(global float* x, float f) { x[get_global_id(0)] *= f; }")
            .unwrap();
        let list = folder.join("list");
        let size = |n: u32| {
            format!("{} --global {n} --local 64 --arg buffer:f32:{n}:1 --arg f32:2\n", file.display())
        };
        std::fs::write(&list, size(256) + &size(65536)).unwrap();
        let lines = parse(&list, &std::fs::read_to_string(&list).unwrap(), "teaching").unwrap();
        let driver = open_driver("sim:teaching", &Settings::default()).unwrap();
        let device = Timed::new(driver.as_ref()).unwrap();
        let args =
            TimesArgs { list, device: None, profile: "teaching".into(), sample: 0, runs: 1, json: false };
        let rows: Vec<Row> =
            lines.iter().map(|l| super::row(&args, &l.launch, Some(&device)).unwrap()).collect();
        std::fs::remove_dir_all(&folder).unwrap();
        let a = agreement(&rows).unwrap();
        assert_eq!((a.within_twice, a.spearman), (2, 1.0), "{}", a.mean_ratio);
        // Not equal, because the timed launch follows a first one.
        assert!((0.8..1.25).contains(&a.mean_ratio), "{}", a.mean_ratio);
    }
}
