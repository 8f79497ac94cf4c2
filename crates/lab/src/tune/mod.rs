//! `netcl tune`: measures the candidates of every tuned kernel on benchmark shapes, and keeps the fastest with the same result.

mod model;
mod saved;

use crate::context::Context;
use crate::out;
use crate::table::Table;
use netcl::device::{MatmulPrecision, check_writable};
use netcl::kernel::tune::{Origin, Params, REPEATS, Record, SearchOutcome, Trial, Tuning, search};
use netcl::prelude::*;
use netcl::tensor::ops::OPS;
use netcl::tensor::suite::BenchCase;
use serde_json::json;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Measure kernel variants and parameters on this device and keep the fastest
///
/// Every candidate is first compared with the default's result; one that differs or fails is skipped. Results are used from the next run on, and
/// stored with every measurement in the cache folder.
#[derive(clap::Args)]
pub struct Args {
    /// Device to tune
    #[arg(long, alias = "gpu-id", default_value = "auto")]
    device: String,
    /// Stop after this time: 90, 90s, 5m
    #[arg(long, default_value = "60s", value_parser = duration)]
    budget: Duration,
    /// Only ops whose name contains this
    #[arg(long, value_name = "NAME")]
    op: Option<String>,
    /// Measure the device model's constants, by which algorithms are chosen, instead of kernels
    ///
    /// The constants (a launch, bytes and operations per microsecond) give the estimates for products and attentions. Needed once on a device for
    /// which netcl ships none.
    #[arg(long, conflicts_with = "op")]
    model: bool,
    /// Fit the device model to earlier measurements of this device from these files
    ///
    /// The files are outputs of --model --json or bench gemm|attention --regret --json.
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "model", conflicts_with = "list")]
    from: Vec<PathBuf>,
    /// Show earlier choices and their reasons instead of measuring
    #[arg(long)]
    list: bool,
    /// Write this device's results into this file, replacing the device's entries
    ///
    /// This is the format in which results ship with netcl.
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,
    /// Print one JSON object per kernel, with every measurement
    #[arg(long)]
    json: bool,
}

/// Largest relative difference from the default's result, because other sizes change the order of sums.
const TOLERANCE: f32 = 1e-4;

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    args.export.as_deref().map_or(Ok(()), check_writable)?;
    let device = match args.model {
        true => context.open_device_with(&args.device, MatmulPrecision::default())?,
        false => context.open_device(&args.device)?,
    };
    if args.list {
        if args.model {
            model::list(&device, args.json)?;
        } else {
            list(&device, args.json)?;
        }
        return args.export.as_deref().map_or(Ok(()), |file| export(&device, file));
    }
    if !args.from.is_empty() {
        saved::refit(&device, &args.from, args.json)?;
    } else if args.model {
        model::measure(&device, args.budget, args.json)?;
    } else {
        measure(args, &device)?;
    }
    args.export.as_deref().map_or(Ok(()), |file| export(&device, file))
}

/// Lists every result that may apply to the device, with its origin.
fn list(device: &Device, json: bool) -> Result<()> {
    let records = Tuning::of(device).store().all();
    if records.is_empty() && json {
        // JSON output is an empty list.
        return out::json(&serde_json::json!({ "device": device.capabilities().id, "tuned": [] }));
    }
    if records.is_empty() {
        out::note("nothing is tuned on this device, and netcl ships nothing for it; run `netcl tune`");
    } else {
        out::note(
            "tuned here, shipped with netcl, or tuned on a related device; kernels that are not listed use their default, as does",
        );
        out::note("a kernel whose source has changed since");
    }
    records.iter().try_for_each(|(origin, record)| show(record, *origin, json))
}

fn export(device: &Device, file: &Path) -> Result<()> {
    let [gained, stay] = Tuning::of(device).store().export(file)?;
    out::note(&format!(
        "{} now has {gained} choices for {} that gain at least 3 %, and {stay} defaults that no candidate beats by that much",
        file.display(),
        device.capabilities().name
    ));
    Ok(())
}

fn measure(args: &Args, device: &Device) -> Result<()> {
    let (device, started) = (device.clone(), Instant::now());
    let mut session = Session { args, device, started, done: BTreeMap::new(), skipped: 0 };
    let mut left = Vec::new();
    let wanted = || OPS.iter().filter(|op| args.op.as_ref().is_none_or(|part| op.name.contains(part)));
    if let (Some(part), 0) = (&args.op, wanted().count()) {
        return Err(Error::format(format!(
            "unknown op {part:?}; the ops are {}{}",
            OPS.iter().map(|op| op.name).collect::<Vec<_>>().join(", "),
            netcl::device::did_you_mean(part, OPS.iter().flat_map(|op| op.name.split("::")))
        )));
    }
    let in_time = |_: &str| started.elapsed() < args.budget;
    let mut in_order: Vec<_> = wanted().collect();
    let composed = |name: &str| COMPOSED.iter().any(|part| name.starts_with(part));
    in_order.sort_by_key(|op| composed(op.name));
    for op in in_order {
        if composed(op.name) && args.op.is_none() && session.device.capabilities().is_cpu() {
            left.push(op.name);
            continue;
        }
        let device = session.device.clone();
        (op.bench)(&device, DType::F32, &in_time, &mut |case| session.case(op.name, case))?;
    }
    let origins = Tuning::of(&session.device).origins();
    let count = |wanted| origins.iter().filter(|(_, _, origin)| *origin == wanted).count();
    out::note(&format!(
        "of {} choices, {} are tuned, {} tuned on a related device, {} shipped, {} default",
        origins.len(),
        count(Origin::Tuned),
        count(Origin::Related),
        count(Origin::Shipped),
        count(Origin::Default)
    ));
    if !left.is_empty() {
        out::note(&format!("skipped without --op, because they take minutes on a CPU: {}", left.join(", ")));
    }
    if session.done.is_empty() {
        out::note("nothing to tune: each kernel of these ops has one candidate on this device");
    }
    if session.skipped > 0 || !in_time("") {
        out::note(&format!("not every kernel was reached in {:.0?}; raise --budget", session.args.budget));
    }
    Ok(())
}

/// Ops composed of others. They come last, because their kernels have shorter cases. On CPUs, where one run takes minutes, only if `--op` names them.
const COMPOSED: [&str; 2] = ["linear_cross_entropy", "feed_forward"];

/// Maximum share of the remaining time for a minimal comparison: one run of two candidates, and the repetitions.
const MIN_COMPARISON_SHARE: u32 = 4;

struct Session<'a> {
    args: &'a Args,
    device: Device,
    started: Instant,
    /// The measurements, by the sample of the first case that launched the kernel.
    done: BTreeMap<(&'static str, u64), (String, Vec<Record>)>,
    skipped: usize,
}

impl Session<'_> {
    /// Tunes every kernel that this case launches and that was not tuned yet, or only on other shapes of this case's sample.
    fn case(&mut self, op: &str, mut case: BenchCase<'_>) -> Result<()> {
        let name = if case.sample.is_empty() { case.op } else { case.sample };
        let what = format!("{op} {name} {:?}", case.shapes);
        let mut passes: Vec<_> = [case.forward.take(), case.backward.take()].into_iter().flatten().collect();
        let work = RefCell::new(move || -> Result<Vec<Tensor>> {
            let mut out = Vec::new();
            for pass in &mut passes {
                out.extend(pass()?);
            }
            Ok(out)
        });
        let tuning = Tuning::of(&self.device);
        tuning.start_recording();
        let begun = Instant::now();
        let ran = (work.borrow_mut())();
        let launched = tuning.stop_recording().tuned;
        ran?;
        self.device.finish()?;
        let least = 2 * (1 + REPEATS as u32) * begun.elapsed();
        for (kernel, bucket) in launched {
            let known = self.done.get(&(kernel, bucket));
            if tuning.candidates(kernel).len() < 2 || known.is_some_and(|(sample, _)| sample != name) {
                continue;
            }
            let left = self.args.budget.saturating_sub(self.started.elapsed());
            if least * MIN_COMPARISON_SHARE > left {
                self.skipped += 1;
                continue;
            }
            let (_, records) =
                self.done.entry((kernel, bucket)).or_insert_with(|| (name.to_owned(), Vec::new()));
            let mut trial = Trial {
                case: what.clone(),
                run: Box::new(|| (work.borrow_mut())().map(|_| ())),
                output: Box::new(|| {
                    let tensors = (work.borrow_mut())()?;
                    let parts: Vec<Vec<f32>> = tensors.iter().map(Tensor::to_vec).collect::<Result<_>>()?;
                    Ok(parts.concat())
                }),
                tolerance: TOLERANCE,
            };
            match search(&self.device, kernel, bucket, &mut trial, left)? {
                SearchOutcome::Tuned(record) => {
                    records.push(record);
                    let record = over_all(records)?;
                    if records.len() > 1 {
                        tuning.store().put(record.clone())?;
                        tuning.refresh();
                    }
                    show(&record, Origin::Tuned, self.args.json)?;
                }
                SearchOutcome::OutOfBudget => self.skipped += 1,
            }
        }
        Ok(())
    }
}

/// Makes one choice for all shapes that a kernel was measured on: the candidate with the smallest product of its times, relative to the default's.
/// Its times are sums.
fn over_all(records: &[Record]) -> Result<Record> {
    let Some(first) = records.first() else { return Err(Error::internal("nothing was measured")) };
    let time = |record: &Record, params: &Params| {
        record.measurements.iter().find(|m| m.params == *params).and_then(|m| m.median_us)
    };
    let mut out = first.clone();
    out.case = records.iter().map(|r| r.case.as_str()).collect::<Vec<_>>().join(", ");
    let mut best = (0.0, first.default.clone());
    for m in &mut out.measurements {
        let times: Option<Vec<f64>> = records.iter().map(|r| time(r, &m.params)).collect();
        m.median_us = times.as_ref().map(|times| times.iter().sum());
        let shares =
            records.iter().map(|r| Some((time(r, &m.params)? / time(r, &r.default)?.max(1e-9)).ln()));
        let share: Option<f64> = shares.sum();
        match share {
            Some(share) if share < best.0 => best = (share, m.params.clone()),
            // The first candidate that was not timed gives the reason.
            None => {
                let others = records.iter().flat_map(|r| &r.measurements).filter(|o| o.params == m.params);
                let why = others.filter(|o| o.median_us.is_none()).map(|o| o.status.clone());
                m.status = why.into_iter().next().unwrap_or_else(|| "not measured on every shape".into());
            }
            Some(_) => {}
        }
    }
    out.speedup = (-best.0 / records.len() as f64).exp();
    out.chosen = best.1;
    Ok(out)
}

fn show(record: &Record, origin: Origin, json: bool) -> Result<()> {
    if json {
        let mut object = serde_json::to_value(record).map_err(|e| Error::internal(e.to_string()))?;
        object["origin"] = json!(origin);
        return out::json(&object);
    }
    let timed = record.measurements.iter().filter(|m| m.median_us.is_some()).count();
    let same = record.chosen == record.default;
    let verdict = if same {
        "the default is fastest".to_owned()
    } else {
        format!(
            "{} is {:.2} times as fast as the default {}",
            text(&record.chosen),
            record.speedup,
            text(&record.default)
        )
    };
    let bucket = if record.bucket == 0 { String::new() } else { format!(" [{}]", record.bucket) };
    if record.measurements.is_empty() {
        return out::result(&format!("{}{bucket} ({origin}): {verdict} on {}", record.kernel, record.case));
    }
    out::result(&format!(
        "{}{bucket} ({origin}): {verdict}; {timed} measured on {}",
        record.kernel, record.case
    ))?;
    let mut table = Table::new(&["  candidate", ">µs", "result"]);
    for m in &record.measurements {
        let mark = if m.params == record.chosen { "* " } else { "  " };
        let us = m.median_us.map_or("".into(), |us| format!("{us:.1}"));
        table.row([format!("{mark}{}", text(&m.params)), us, m.status.clone()]);
    }
    out::result(&table.text())
}

/// Formats `WG=64 VW=4`; for variants only the name.
fn text(params: &Params) -> String {
    if params.is_empty() {
        return "no parameters".into();
    }
    let lower = |name: &str| name.chars().any(char::is_lowercase);
    let parts = params.iter().map(|(n, v)| if lower(n) { n.clone() } else { format!("{n}={v}") });
    parts.collect::<Vec<_>>().join(" ")
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix('m') {
        Some(number) => (number, 60),
        None => (text.strip_suffix('s').unwrap_or(text), 1),
    };
    let whole = number.parse::<u64>().ok().filter(|n| *n > 0).and_then(|n| n.checked_mul(unit));
    whole.map(Duration::from_secs).ok_or_else(|| "expected a time like 90, 90s or 5m".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl::kernel::tune::Measurement;

    #[test]
    fn times_are_parsed() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("2s"), Ok(Duration::from_secs(2)));
        for bad in ["", "0", "x", "1h", "-3s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    /// A choice serves every shape: a candidate that is fastest on one shape and much slower on the next is not chosen.
    #[test]
    fn one_choice_is_made_over_all_shapes_of_a_sample() {
        let record = |case: &str, times: [Option<f64>; 3]| {
            let params = |i: usize| Params::from([("WG".into(), 64 << i)]);
            let measurements = times.iter().enumerate().map(|(i, us)| Measurement {
                params: params(i),
                median_us: *us,
                status: if us.is_some() { "ok" } else { "failed: no room" }.into(),
            });
            let measurements: Vec<_> = measurements.collect();
            let (kernel, case) = ("k".into(), case.into());
            let (chosen, default) = (params(0), params(0));
            Record { kernel, bucket: 0, case, chosen, default, speedup: 1.0, text: None, measurements }
        };
        let small = record("small", [Some(10.0), Some(5.0), Some(8.0)]);
        let large = record("large", [Some(1000.0), Some(4000.0), Some(900.0)]);
        let both = over_all(&[small.clone(), large]).unwrap();
        assert_eq!((both.chosen["WG"], both.case.as_str()), (256, "small, large"));
        assert_eq!(both.measurements[2].median_us, Some(908.0));
        let failed = record("large", [Some(1000.0), Some(500.0), None]);
        let both = over_all(&[small, failed]).unwrap();
        assert_eq!((both.chosen["WG"], both.measurements[2].status.as_str()), (128, "failed: no room"));
    }

    #[test]
    fn variants_are_shown_by_name() {
        assert_eq!(text(&Params::from([("WG".into(), 64), ("VW".into(), 4)])), "VW=4 WG=64");
        assert_eq!(text(&Params::from([("matmul_tile".into(), 1)])), "matmul_tile");
    }
}
