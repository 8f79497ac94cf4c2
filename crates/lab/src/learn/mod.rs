//! `netcl learn`: one problem in steps. Each step is a kernel that is run, compared with f64, and timed against the device's peak.

mod measured;
mod problem;
mod simulated;
mod steps;

use crate::context::Context;
use crate::out;
use crate::table::Table;
use crate::{bench, sim};
use aethercl::machine::human_ns;
use measured::{MeasuredDevice, StepRun};
use netcl::device::{Capabilities, counted};
use netcl::kernel::ceiling::Ceilings;
use netcl::prelude::*;
use problem::{Problem, Size};
use serde_json::{Value, json};
use simulated::Simulated;
use steps::{LADDERS, Ladder, Step};

/// Learn how kernels become fast: one matrix product in nine steps, attention in six
#[derive(clap::Args)]
pub struct Args {
    /// matmul or attention [default: list the steps]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(LADDERS.iter().map(|l| l.name)))]
    ladder: Option<String>,
    /// Step to run and to compare with the previous one [default: all that the device supports]
    #[arg(requires = "ladder")]
    step: Option<usize>,
    /// Device to run on; `sim` and `sim:<profile>` also report what limits a step
    #[arg(long, alias = "gpu-id", default_value = "auto")]
    device: String,
    /// Sizes: MxNxK for matmul, HxTxD (heads, tokens, head size) for attention
    #[arg(long, value_parser = size, value_name = "AxBxC", requires = "ladder")]
    size: Option<Size>,
    /// Rounds of timing; the median is reported
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Print one JSON object per step
    #[arg(long)]
    json: bool,
    /// Print the step's source instead of running it
    #[arg(long, requires = "step", conflicts_with = "json")]
    show: bool,
}

fn size(text: &str) -> std::result::Result<Size, String> {
    let parts: Vec<usize> = text.split('x').map(|p| p.parse().unwrap_or(0)).collect();
    let most = i32::MAX as usize;
    match parts[..] {
        [a, b, c] if parts.iter().all(|n| (1..=most).contains(n)) => Ok([a, b, c]),
        _ => Err("expected three sizes from 1 on like 512x512x512".into()),
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    let Some(ladder) = LADDERS.iter().find(|l| args.ladder.as_deref() == Some(l.name)) else {
        return list(args.json);
    };
    let last = match args.step {
        Some(n) if (1..=ladder.steps.len()).contains(&n) => Some(n),
        Some(n) => {
            let known = format!("{} has steps 1 to {}", ladder.name, ladder.steps.len());
            return Err(Error::format(format!("no step {n}: {known}")));
        }
        None => None,
    };
    if let (true, Some(n)) = (args.show, last) {
        return out::stream(ladder.steps[n - 1].text);
    }
    let device = context.open_device(&args.device)?;
    let mut lesson = Lesson::open(args, context, ladder, &device)?;
    match last {
        None => lesson.all(context),
        Some(n) => lesson.one(n),
    }
}

fn list(json: bool) -> Result<()> {
    for ladder in &LADDERS {
        let steps = ladder.steps.iter().enumerate();
        if json {
            for (i, step) in steps {
                let Step { title, file, needs, .. } = step;
                out::json(
                    &json!({ "ladder": ladder.name, "step": i + 1, "title": title, "file": file, "needs": needs }),
                )?;
            }
            continue;
        }
        out::result(&format!("{}: {}", ladder.name, ladder.about))?;
        for (i, step) in steps {
            let needs =
                if step.needs.is_empty() { String::new() } else { format!(" (needs {})", step.needs) };
            out::result(&format!("  {} {}{needs}", i + 1, step.title))?;
        }
    }
    if !json {
        out::note(
            "netcl learn matmul 4 --device DEVICE runs a step, --show prints its source; without a step all run",
        );
    }
    Ok(())
}

/// The device for the steps.
enum Where<'a> {
    Real(MeasuredDevice<'a>),
    Model(Box<Simulated>),
}

/// A ladder at one size on one device.
struct Lesson<'a> {
    ladder: &'static Ladder,
    size: Size,
    json: bool,
    device: &'a Device,
    on: Where<'a>,
}

/// A step that ran.
struct Ran {
    number: usize,
    step: &'static Step,
    run: StepRun,
    flops: f64,
    bytes: f64,
    ceilings: Ceilings,
    /// The step that it is compared with, and the speedup over it.
    before: Option<(usize, f64)>,
}

impl Ran {
    fn gflops(&self) -> f64 {
        self.flops / self.run.seconds.max(1e-12) * 1e-9
    }

    fn gbps(&self) -> f64 {
        self.bytes / self.run.seconds.max(1e-12) * 1e-9
    }

    /// Returns the share of the roofline: the minimum time for arithmetic or memory, whichever is larger, divided by its time.
    fn share(&self) -> f64 {
        (self.gflops() / self.ceilings.gflops).max(self.gbps() / self.ceilings.gbps)
    }
}

impl<'a> Lesson<'a> {
    fn open(args: &Args, context: &Context, ladder: &'static Ladder, device: &'a Device) -> Result<Self> {
        let capabilities = device.capabilities();
        let size = args.size.unwrap_or_else(|| ladder.size_for(capabilities));
        let on = if capabilities.simulated {
            let name = if args.device.ends_with(".toml") { &args.device } else { &capabilities.id };
            Where::Model(Box::new(Simulated {
                profile: sim::profile(name.strip_prefix("sim:").unwrap_or(name))?,
                capabilities: capabilities.clone(),
                sample: context.settings.sim.sample,
            }))
        } else {
            Where::Real(MeasuredDevice::new(device, args.rounds))
        };
        Ok(Self { ladder, size, json: args.json, device, on })
    }

    /// Runs one step, and the previous one if both solve the same problem.
    fn one(&mut self, number: usize) -> Result<()> {
        let step = &self.ladder.steps[number - 1];
        if let Some(why) = self.refused(step) {
            return Err(Error::unsupported(format!("{}: {why}", step.file)));
        }
        let before = number.checked_sub(2).and_then(|i| self.ladder.steps.get(i));
        let before = before.filter(|b| b.work.comparable(step.work) && self.refused(b).is_none());
        let mut rows = Vec::new();
        for (number, step) in before.map(|b| (number - 1, b)).into_iter().chain([(number, step)]) {
            let ran = self.run(number, step, rows.last())?;
            rows.push(ran);
        }
        if self.json {
            return rows.last().map_or(Ok(()), |ran| out::json(&self.object(ran)));
        }
        self.print(&rows, &[])?;
        rows.last().map_or(Ok(()), |ran| ran.run.details.iter().try_for_each(|line| out::result(line)))
    }

    /// Runs every step that the device supports.
    fn all(&mut self, context: &Context) -> Result<()> {
        let steps = self.ladder.steps;
        let bar = out::progress(context.live() && !self.json, steps.len() as u64, self.ladder.name);
        let (mut rows, mut refused): (Vec<Ran>, Vec<(usize, String)>) = (Vec::new(), Vec::new());
        for (number, step) in (1..).zip(steps) {
            bar.set_message(step.title);
            if let Some(why) = self.refused(step) {
                if self.json {
                    let skipped = json!({ "ladder": self.ladder.name, "step": number, "title": step.title, "skipped": why });
                    out::json(&skipped)?;
                }
                refused.push((number, why));
            } else {
                let ran = self.run(number, step, rows.last())?;
                if self.json {
                    out::json(&self.object(&ran))?;
                }
                rows.push(ran);
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        if self.json { Ok(()) } else { self.print(&rows, &refused) }
    }

    fn refused(&self, step: &Step) -> Option<String> {
        step.refused(self.size, self.device.capabilities())
    }

    fn run(&mut self, number: usize, step: &'static Step, before: Option<&Ran>) -> Result<Ran> {
        let (inputs, output) = step.work.elements(self.size);
        let scores = if step.stores_scores() { self.size[0] * self.size[1] * self.size[1] } else { 0 };
        let all = [inputs.iter().sum::<usize>(), output, scores];
        bench::fits(
            self.device,
            &format!("{} at {}", step.file, written(self.size)),
            &[&[all.iter().sum()]],
            DType::F32,
        )?;
        let problem = Problem::new(step.work, self.size, step.dtype);
        let (run, ceilings) = match &mut self.on {
            Where::Real(device) => {
                let ceilings = device.ceilings(step.dtype)?;
                (device.run(step, &problem)?, ceilings)
            }
            Where::Model(device) => (device.run(step, &problem)?, device.ceilings()),
        };
        let seconds = run.seconds.max(1e-12);
        let before = before.filter(|b| b.step.work.comparable(step.work));
        let before = before.map(|b| (b.number, b.run.seconds / seconds));
        Ok(Ran { number, step, run, flops: problem.flops(), bytes: problem.bytes(), ceilings, before })
    }

    fn object(&self, ran: &Ran) -> Value {
        let Capabilities { id, name, simulated, .. } = self.device.capabilities();
        json!({
            "ladder": self.ladder.name, "step": ran.number, "title": ran.step.title, "file": ran.step.file,
            "device": id, "name": name, "modelled": simulated, "size": self.size, "dtype": ran.step.dtype.to_string(),
            "ms": ran.run.seconds * 1e3, "gflops": ran.gflops(), "gbps": ran.gbps(), "share": ran.share(),
            "ceiling_gflops": ran.ceilings.gflops, "ceiling_gbps": ran.ceilings.gbps,
            "before": ran.before.map(|(step, times)| json!({ "step": step, "times_as_fast": times })),
            "bound_by": ran.run.bound_by, "rows_checked": ran.run.checked.map(|c| c.rows), "rows": ran.run.checked.map(|c| c.of),
            "details": ran.run.details,
        })
    }

    fn print(&self, rows: &[Ran], refused: &[(usize, String)]) -> Result<()> {
        let capabilities = self.device.capabilities();
        let modelled = if capabilities.simulated { "; its time is modeled" } else { "" };
        out::result(&format!(
            "{} of {} ({}) on {}, {}{modelled}",
            self.ladder.name,
            written(self.size),
            self.ladder.axes,
            capabilities.id,
            capabilities.name
        ))?;
        let mut header =
            vec![">", "step", ">time", ">GFLOP/s", ">GB/s", ">of ceiling", ">faster", "compared"];
        if capabilities.simulated {
            header.push("bound by");
        }
        let mut table = Table::new(&header);
        for ran in rows {
            let faster = ran.before.map(|(step, times)| format!("{times:.2}× step {step}"));
            let compared = ran.run.checked.map_or("no".into(), |c| match c.rows == c.of {
                true => "all rows".into(),
                false => format!("{} of {} rows", c.rows, c.of),
            });
            table.row([
                ran.number.to_string(),
                ran.step.title.into(),
                human_ns((ran.run.seconds * 1e9) as u64),
                format!("{:.1}", ran.gflops()),
                format!("{:.1}", ran.gbps()),
                format!("{:.1} %", 100.0 * ran.share()),
                faster.unwrap_or_default(),
                compared,
                ran.run.bound_by.clone().unwrap_or_default(),
            ]);
        }
        if !rows.is_empty() {
            out::result(&table.text())?;
        }
        for (number, why) in refused {
            out::result(&format!("{number} {}: not run, it {why}", self.ladder.steps[number - 1].title))?;
        }
        self.print_ceilings(rows)
    }

    /// Prints what the shares refer to, and what the times exclude.
    fn print_ceilings(&self, rows: &[Ran]) -> Result<()> {
        let mut seen: Vec<DType> = Vec::new();
        for ran in rows {
            if !seen.contains(&ran.step.dtype) {
                seen.push(ran.step.dtype);
                out::result(&format!(
                    "ceiling in {}: {:.1} GFLOP/s, {:.1} GB/s; a step's share refers to the limiting one",
                    ran.step.dtype, ran.ceilings.gflops, ran.ceilings.gbps
                ))?;
            }
        }
        let sample = match &self.on {
            Where::Model(device) => device.sample,
            Where::Real(_) => None,
        };
        if let Some(groups) = sample {
            out::note(&format!(
                "NETCL_SIM_SAMPLE: {} of each launch ran, so there are times but no results to compare",
                counted(groups as usize, "group")
            ));
        }
        Ok(())
    }
}

fn written(size: Size) -> String {
    size.map(|n| n.to_string()).join("×")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn sizes() {
        assert_eq!(size("7x30x513"), Ok([7, 30, 513]));
        for bad in ["", "7", "7x30", "7x0x3", "axbxc", "1x2x3x4", "1x2x99999999999"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    /// Each step is a page that starts with a contract, and every file is a step.
    #[test]
    fn steps_and_files_are_the_same() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for ladder in &LADDERS {
            let folder = root.join("examples/kernels").join(ladder.name);
            let mut files: Vec<String> = std::fs::read_dir(folder)
                .unwrap()
                .map(|entry| {
                    format!("examples/kernels/{}/{}", ladder.name, entry.unwrap().file_name().display())
                })
                .collect();
            files.sort();
            let listed: Vec<&str> = ladder.steps.iter().map(|step| step.file).collect();
            assert_eq!(files, listed);
            for (number, step) in (1..).zip(ladder.steps) {
                let last = ladder.steps.len();
                assert!(step.text.lines().count() < 120, "{} is longer than a page", step.file);
                assert!(step.text.contains(&format!("step {number} of {last}")), "{}", step.file);
                for part in ["Changed", "Bound by", "Arguments", "efines"] {
                    assert!(step.text.contains(part), "{} does not mention {part}", step.file);
                }
                assert_eq!(step.text, std::fs::read_to_string(root.join(step.file)).unwrap());
            }
        }
    }
}
