//! `netcl bench ops --against DEVICE`: speedup of one device over another, at three sizes, with and without transfers.

use super::Common;
use super::measure::Rounds;
use crate::context::Context;
use crate::out;
use crate::table::Table;
use netcl::prelude::*;
use netcl::tensor::Generator;
use netcl::tensor::ops::attention::{AttentionOptions, attention};
use netcl::tensor::ops::conv::{Conv2dOptions, conv2d};
use netcl::tensor::ops::layer_norm::layer_norm;
use netcl::tensor::ops::matmul::matmul;
use serde_json::{Value, json};

/// Sizes: tokens of a text, and images with channels and pixels per side for the convolutions.
pub const SIZES: [(&str, usize, [usize; 3]); 3] =
    [("small", 16, [1, 16, 16]), ("medium", 128, [8, 64, 28]), ("large", 1024, [32, 64, 56])];

/// Width of the residual stream for operations on texts, and its heads.
const WIDTH: usize = 768;
const HEADS: usize = 12;

/// An operation at one size: its inputs' shapes, and its computation.
struct Job {
    op: &'static str,
    inputs: Vec<Vec<usize>>,
    run: fn(&[Tensor]) -> Result<Tensor>,
}

fn jobs(t: usize, [n, c, side]: [usize; 3]) -> Vec<Job> {
    let heads = vec![1, HEADS, t, WIDTH / HEADS];
    let job = |op, inputs, run| Job { op, inputs, run };
    vec![
        job("matmul", vec![vec![t, WIDTH], vec![WIDTH, WIDTH]], |x| matmul(&x[0], &x[1])),
        job("attention", vec![heads; 3], |x| attention(&x[0], &x[1], &x[2], AttentionOptions::causal())),
        job("layer_norm", vec![vec![t, WIDTH], vec![WIDTH], vec![WIDTH]], |x| {
            layer_norm(&x[0], &x[1], &x[2], 1e-5)
        }),
        job("gelu", vec![vec![t, 4 * WIDTH]], |x| x[0].gelu()),
        job("residual", vec![vec![t, WIDTH]; 2], |x| x[0].add(&x[1])),
        job("conv2d", vec![vec![n, c, side, side], vec![c, c, 3, 3]], |x| {
            conv2d(&x[0], &x[1], None, Conv2dOptions::default().padding(1))
        }),
    ]
}

/// A device's times for a job in milliseconds, and its result.
struct DeviceTimes {
    alone: f64,
    with_transfers: f64,
    result: Vec<f32>,
}

fn measure(device: &Device, dtype: DType, job: &Job, rounds: &Rounds) -> Result<DeviceTimes> {
    let mut from = Generator::new(7);
    let make = |shape: &Vec<usize>| {
        Tensor::from_f32(device, shape.clone(), &from.normal(shape.iter().product(), 0.0, 1.0), dtype)
    };
    let inputs = job.inputs.iter().map(make).collect::<Result<Vec<_>>>()?;
    let host = inputs.iter().map(Tensor::to_bytes).collect::<Result<Vec<_>>>()?;
    let result = no_grad(|| (job.run)(&inputs))?.to_vec()?;
    let alone = rounds.measure(device, &mut || no_grad(|| (job.run)(&inputs)).map(drop), None, None)?;
    let mut both = || -> Result<()> {
        inputs.iter().zip(&host).try_for_each(|(input, bytes)| input.set_bytes(bytes))?;
        no_grad(|| (job.run)(&inputs))?.to_bytes().map(drop)
    };
    let with_transfers = rounds.measure(device, &mut both, None, None)?.median_ms;
    Ok(DeviceTimes { alone: alone.median_ms, with_transfers, result })
}

/// Minimum number of rounds for medians, of three samples each.
const MIN_ROUNDS: usize = 2;

/// Returns the requested rounds, or more: a median of fewer samples would be that of an outlier and its neighbor.
fn rounds(asked: usize, sample_ms: f64) -> Rounds {
    Rounds { count: asked.max(MIN_ROUNDS), sample_ms }
}

/// Returns the largest difference of two results, relative to the largest element.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    let largest = b.iter().fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()));
    a.iter().zip(b).fold(0.0f32, |m, (a, b)| m.max((a - b).abs())) / largest
}

/// Creates a table of two devices with these `names`.
fn table([ours, theirs]: &[String; 2]) -> Table {
    let ms = |device: &str, transfers: &str| format!("{device} ms{transfers}");
    let header = [
        "op".to_owned(),
        "size".into(),
        ms(ours, ""),
        ms(theirs, ""),
        "speed-up".into(),
        ms(ours, ", transfers"),
        ms(theirs, ", transfers"),
        "speed-up".into(),
    ];
    Table::new(&header.each_ref().map(String::as_str))
}

/// A job on both devices, compared.
struct Row<'a> {
    job: &'a Job,
    size: &'a str,
    ours: DeviceTimes,
    theirs: DeviceTimes,
}

impl Row<'_> {
    /// Returns the speedup of the first device: alone, and with transfers.
    fn gain(&self) -> [f64; 2] {
        let Self { ours, theirs, .. } = self;
        [theirs.alone / ours.alone, theirs.with_transfers / ours.with_transfers]
    }

    fn json(&self, names: &[String; 2], dtype: DType) -> Value {
        let Self { job, size, ours, theirs } = self;
        let gain = self.gain();
        json!({
            "op": job.op, "size": size, "shapes": job.inputs, "dtype": dtype.to_string(),
            "device": names[0], "against": names[1], "median_ms": ours.alone, "against_median_ms": theirs.alone, "speedup": gain[0],
            "median_ms_with_transfers": ours.with_transfers, "against_median_ms_with_transfers": theirs.with_transfers,
            "speedup_with_transfers": gain[1],
        })
    }

    fn cells(&self) -> [String; 8] {
        let Self { job, size, ours, theirs } = self;
        let (number, times) = (|v: f64| format!("{v:.3}"), |v: f64| format!("{v:.1}x"));
        let gain = self.gain();
        [
            job.op.into(),
            (*size).into(),
            number(ours.alone),
            number(theirs.alone),
            times(gain[0]),
            number(ours.with_transfers),
            number(theirs.with_transfers),
            times(gain[1]),
        ]
    }
}

/// Compares `--device` with `other` and prints the table.
///
/// # Errors
/// Errors of the devices; `Internal` if their results differ.
pub fn run(common: &Common, (other, sizes): (&str, &[String]), context: &Context) -> Result<()> {
    let open = |name: &str| context.open_device_with(name, common.matmul_precision);
    let (device, other) = (open(&common.device)?, open(other)?);
    let names = [&device, &other].map(|d| d.capabilities().id.clone());
    for device in [&device, &other].into_iter().filter(|d| d.capabilities().simulated) {
        out::note(&format!(
            "{} is simulated: its times are those of the simulation",
            device.capabilities().id
        ));
    }
    let rounds = rounds(common.rounds, common.sample_ms);
    let mut table = table(&names);
    let bound = if common.dtype == DType::F32 { 1e-3 } else { 0.05 };
    let chosen: Vec<_> =
        SIZES.into_iter().filter(|(name, ..)| sizes.iter().any(|size| size == name)).collect();
    let all: usize = chosen.iter().map(|(_, tokens, images)| jobs(*tokens, *images).len()).sum();
    let bar = out::progress(context.live(), all as u64, "operations");
    for (size, tokens, images) in chosen {
        for job in &jobs(tokens, images) {
            // Prints progress if no bar is shown; a large size takes a while on a slow device.
            if !context.live() {
                out::note(&format!("{}/{all}: {} of size {size}", bar.position() + 1, job.op));
            }
            bar.set_message(format!("{}, {size}", job.op));
            let [ours, theirs] = [&device, &other].map(|d| measure(d, common.dtype, job, &rounds));
            let row = Row { job, size, ours: ours?, theirs: theirs? };
            bar.inc(1);
            let (a, b) = (&row.ours.result, &row.theirs.result);
            let apart = apart(a, b);
            if apart.is_nan() || apart > bound || a.len() != b.len() {
                return Err(Error::internal(format!(
                    "bench ops: {} of size {size} on {} and {} differ by {apart:.1e} of the largest element",
                    job.op, names[0], names[1]
                )));
            }
            if common.json {
                bar.suspend(|| out::json(&row.json(&names, common.dtype)))?;
            } else {
                table.row(row.cells());
            }
        }
    }
    bar.finish_and_clear();
    if common.json { Ok(()) } else { out::result(table.text().trim_end()) }
}

#[cfg(test)]
mod tests {
    use super::super::measure::{SAMPLES, median};
    use super::*;

    #[test]
    fn two_devices_compute_the_same_and_are_timed() {
        let ours = Device::open("sim", &Settings::from_env()).unwrap();
        let other = netcl::tensor::suite::test_device().unwrap();
        let rounds = Rounds { count: 1, sample_ms: 0.01 };
        // Like the smallest size, with fewer tokens.
        for job in jobs(2, [1, 4, 5]).into_iter().filter(|job| job.op != "matmul") {
            let [a, b] = [&ours, &other].map(|device| measure(device, DType::F32, &job, &rounds).unwrap());
            assert!(apart(&a.result, &b.result) < 1e-4, "{}", job.op);
            assert!(a.alone > 0.0 && b.with_transfers > 0.0, "{}", job.op);
        }
    }

    #[test]
    fn one_outlier_does_not_decide_a_comparison() {
        let samples = rounds(1, 1.0).count * SAMPLES;
        let mut times = vec![1.0; samples];
        times[0] = 100.0;
        assert_eq!(median(&mut times), 1.0);
        assert_eq!([rounds(0, 1.0).count, rounds(5, 1.0).count], [MIN_ROUNDS, 5]);
    }

    #[test]
    fn a_difference_is_of_the_largest_element() {
        assert_eq!(apart(&[1.0, 2.0], &[1.0, 4.0]), 0.5);
        assert_eq!(apart(&[1.0, 4.0], &[1.0, 4.0]), 0.0);
    }
}
