//! Autotuning of one kernel. The result of each candidate is compared with the result of the default, then the candidate is timed. Candidates that
//! fail to build, run or agree are skipped, with the reason in the record.

use super::{Measurement, Params, Record, Tuning};
use netcl_device::{Device, Result};
use std::time::{Duration, Instant};

/// The operation that a kernel is tuned with: its inputs are fixed, and it can be run repeatedly.
pub struct Trial<'a> {
    /// Description for listings: operation and shapes.
    pub case: String,
    /// Enqueues the operation once.
    pub run: Box<dyn FnMut() -> Result<()> + 'a>,
    /// Runs the operation once and returns its outputs as f32.
    pub output: Box<dyn FnMut() -> Result<Vec<f32>> + 'a>,
    /// Largest difference from the default's outputs that counts as equal, relative to the largest output.
    pub tolerance: f32,
}

/// Outcome of a search.
#[derive(Clone, Debug)]
pub enum SearchOutcome {
    /// The candidates were measured and the record was stored.
    Tuned(Record),
    /// The time budget was used up before the first measurement.
    OutOfBudget,
}

/// Timed runs of each candidate; the median counts.
pub const REPEATS: usize = 7;

/// A candidate whose first run takes longer than this times the best median is not timed further. A first run with cold caches takes up to
/// twice the median.
const HOPELESS: f64 = 3.0;

/// Tunes the parameters of one kernel, or the choice of [`Variants`](crate::Variants), for a class of shapes within the time `budget`, and stores
/// the result. The kernel must have been launched on this device before, because the launch registers its candidates.
///
/// # Errors
/// Errors from running the default candidate, and `Io` of the store.
pub fn search(
    device: &Device,
    kernel: &'static str,
    bucket: u64,
    trial: &mut Trial<'_>,
    budget: Duration,
) -> Result<SearchOutcome> {
    let started = Instant::now();
    let tuning = Tuning::of(device);
    let candidates = tuning.candidates(kernel);
    let Some(default) = candidates.first().cloned() else { return Ok(SearchOutcome::OutOfBudget) };
    tuning.try_out(kernel, bucket, Some(default.clone()));
    let expected = match (trial.output)() {
        Ok(expected) => expected,
        Err(e) => {
            tuning.try_out(kernel, bucket, None);
            return Err(e);
        }
    };
    let mut measurements = Vec::new();
    for params in candidates {
        if started.elapsed() > budget {
            break;
        }
        tuning.try_out(kernel, bucket, Some(params.clone()));
        let best = measurements.iter().filter_map(|m: &Measurement| m.median_us).reduce(f64::min);
        tracing::debug!("{kernel} {params:?} on {}", trial.case);
        measurements.push(measure(device, params, trial, &expected, best));
    }
    tuning.try_out(kernel, bucket, None);
    let text = tuning.text(kernel);
    let Some(record) = conclude((kernel, bucket, text), &trial.case, default, measurements) else {
        return Ok(SearchOutcome::OutOfBudget);
    };
    tuning.store().put(record.clone())?;
    // Discard the parameters that were resolved before the result was stored.
    tuning.try_out(kernel, bucket, None);
    Ok(SearchOutcome::Tuned(record))
}

fn measure(
    device: &Device,
    params: Params,
    trial: &mut Trial<'_>,
    expected: &[f32],
    best: Option<f64>,
) -> Measurement {
    let skip = |params, status| Measurement { params, median_us: None, status };
    let got = match (trial.output)() {
        Ok(got) => got,
        Err(e) => return skip(params, format!("failed: {}", e.message().lines().next().unwrap_or_default())),
    };
    if let Some(difference) = worst(&got, expected).filter(|d| d.is_nan() || *d > trial.tolerance) {
        return skip(params, format!("wrong: differs from the default by {difference:.2e}"));
    }
    match time(device, trial, best) {
        Ok((us, REPEATS)) => Measurement { params, median_us: Some(us), status: "ok".into() },
        Ok((us, _)) => {
            Measurement { params, median_us: Some(us), status: "too slow to be timed again".into() }
        }
        Err(e) => skip(params, format!("failed: {}", e.message().lines().next().unwrap_or_default())),
    }
}

/// Returns the largest difference relative to the largest expected value; NaN if the lengths or the positions of NaNs differ.
fn worst(got: &[f32], expected: &[f32]) -> Option<f32> {
    if got.len() != expected.len() {
        return Some(f32::NAN);
    }
    let scale = expected.iter().fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()));
    let pairs = got.iter().zip(expected);
    pairs
        .map(|(g, e)| if g.is_nan() != e.is_nan() { f32::NAN } else { (g - e).abs() / scale })
        .reduce(|a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) })
}

fn hopeless(first: f64, best: Option<f64>) -> bool {
    best.is_some_and(|best| first > HOPELESS * best)
}

/// Returns the median device time in microseconds, and the number of runs: [`REPEATS`], or 1 if the first run exceeds [`HOPELESS`] times `best`, the
/// best median so far.
fn time(device: &Device, trial: &mut Trial<'_>, best: Option<f64>) -> Result<(f64, usize)> {
    let mut times: Vec<f64> = Vec::with_capacity(REPEATS);
    while times.len() < REPEATS {
        if times.len() == 1 && hopeless(times[0], best) {
            break;
        }
        device.start_profile();
        let ran = (trial.run)();
        let kernels = device.stop_profile()?;
        ran?;
        times.push(kernels.iter().map(|k| k.seconds).sum::<f64>() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], times.len()))
}

fn conclude(
    (kernel, bucket, text): (&str, u64, Option<String>),
    case: &str,
    default: Params,
    measurements: Vec<Measurement>,
) -> Option<Record> {
    // If time ran out, the default alone is not a comparison.
    if measurements.len() < 2 {
        return None;
    }
    let timed = measurements.iter().filter_map(|m| m.median_us.map(|us| (us, &m.params)));
    let (best, chosen) = timed.min_by(|a, b| a.0.total_cmp(&b.0))?;
    let base = measurements.iter().find(|m| m.params == default).and_then(|m| m.median_us).unwrap_or(best);
    Some(Record {
        kernel: kernel.into(),
        bucket,
        case: case.into(),
        chosen: chosen.clone(),
        default,
        speedup: base / best.max(1e-9),
        text,
        measurements,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_candidate_is_never_the_winner() {
        let m = |wg, us: Option<f64>| Measurement {
            params: Params::from([("WG".into(), wg)]),
            median_us: us,
            status: "ok".into(),
        };
        let record = conclude(
            ("k", 0, Some("text".into())),
            "case",
            Params::from([("WG".into(), 64)]),
            vec![m(64, Some(10.0)), m(128, None), m(256, Some(5.0))],
        )
        .unwrap();
        assert_eq!(record.chosen["WG"], 256);
        assert!((record.speedup - 2.0).abs() < 1e-9);
        assert!(conclude(("k", 0, None), "case", Params::new(), vec![m(64, None), m(128, None)]).is_none());
        assert!(conclude(("k", 0, None), "case", Params::new(), vec![m(64, Some(10.0))]).is_none());
    }

    #[test]
    fn a_run_that_takes_three_times_the_best_is_enough() {
        assert!(hopeless(3.1, Some(1.0)) && !hopeless(2.9, Some(1.0)) && !hopeless(1e9, None));
    }

    #[test]
    fn differences_are_relative_and_nan_never_passes() {
        assert_eq!(worst(&[1.0, 2.0], &[1.0, 2.0]), Some(0.0));
        assert!(worst(&[f32::NAN], &[1.0]).unwrap().is_nan());
        assert!(worst(&[1.0], &[1.0, 2.0]).unwrap().is_nan());
        assert!((worst(&[100.0, 1.0], &[100.0, 2.0]).unwrap() - 0.01).abs() < 1e-6);
    }
}
