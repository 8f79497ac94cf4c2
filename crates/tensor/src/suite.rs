//! What every op is put through: samples × storage types × layouts, against its f64 reference.
//!
//! Forward values against the reference; gradients against central differences of the reference; the same bits on a second
//! run and from a graph that is replayed; every tuned variant against the default.

use crate::array::Array;
use crate::graph::Graph;
use crate::ops::{MultiOp, OPS};
use crate::{DType, Device, Error, Result, Settings, Tensor, tape};
use netcl_kernel::tune::Tuning;

mod accuracy;
mod bench;
mod sample;
mod selftest;
pub use accuracy::{AFFORDABLE, Accuracy, Errors, Gradients};
pub use bench::{BenchCase, BenchFn, bench};
pub use sample::{Input, Layouts, Sample};
pub use selftest::{SelfTest, Verdict};

/// Runs the suite of one op on a device for one storage type; returns how many cases ran.
pub type SuiteFn = fn(&Device, DType) -> Result<usize>;

/// Step of the central differences; their error is about its square, their rounding about 1e-16 over it.
const STEP: f64 = 1e-5;

/// Every sample of `O` in every layout.
///
/// # Errors
/// What the first case that fails says; `Internal` also where samples of no element, or of one, are missing.
pub fn run<O: MultiOp<N, M>, const N: usize, const M: usize>(device: &Device, dtype: DType) -> Result<usize> {
    let samples = O::samples();
    let runs = || samples.iter().filter(|s| s.only.is_none_or(|only| only == DType::F32));
    let counts = |s: &Sample<O, N>| s.inputs.iter().map(|i| i.shape().count()).collect::<Vec<_>>();
    check_edge(O::NAME, "of no element", runs().any(|s| counts(s).contains(&0)), O::NO_EMPTY_SAMPLE)?;
    let single = runs().any(|s| counts(s).iter().all(|n| *n == 1));
    check_edge(O::NAME, "whose inputs have one element each", single, O::NO_SINGLE_SAMPLE)?;
    each_case(dtype, |sample: &Sample<O, N>, layouts, seed| case(device, dtype, sample, layouts, seed))
}

fn check_edge(op: &str, what: &str, found: bool, excuse: Option<&str>) -> Result<()> {
    match excuse {
        None if !found => Err(Error::internal(format!("{}: no sample {what}, expected one", op))),
        Some(why) if found => {
            Err(Error::internal(format!("{}: has a sample {what}, although \"{why}\"", op)))
        }
        _ => Ok(()),
    }
}

/// Forward and backward of the same cases without looking at the results: what would be built and launched.
pub fn exercise<O: MultiOp<N, M>, const N: usize, const M: usize>(
    device: &Device,
    dtype: DType,
) -> Result<usize> {
    each_case(dtype, |sample: &Sample<O, N>, layouts, seed| {
        let hosts: [Array; N] = std::array::from_fn(|i| sample.inputs[i].draw(seed * 16 + i as u64, dtype));
        let inputs = device_inputs(device, dtype, sample, &hosts, layouts)?;
        forward_backward(sample, &inputs, seed).map(|_| ())
    })
}

fn each_case<O: MultiOp<N, M>, const N: usize, const M: usize>(
    dtype: DType,
    mut f: impl FnMut(&Sample<O, N>, Layouts, u64) -> Result<()>,
) -> Result<usize> {
    let mut cases = 0;
    for (i, sample) in O::samples().into_iter().enumerate() {
        if sample.only.is_some_and(|only| only != dtype) {
            continue;
        }
        for layouts in Layouts::ALL {
            let plain = layouts == Layouts::Contiguous;
            if (sample.light && !(plain && dtype == DType::F32)) || (sample.in_order && !plain) {
                continue;
            }
            let name = format!("{} {} sample {i} {dtype} {layouts:?}", O::NAME, sample.name);
            f(&sample, layouts, i as u64).map_err(|e| e.context(&name))?;
            cases += 1;
        }
    }
    Ok(cases)
}

fn case<O: MultiOp<N, M>, const N: usize, const M: usize>(
    device: &Device,
    dtype: DType,
    sample: &Sample<O, N>,
    layouts: Layouts,
    seed: u64,
) -> Result<()> {
    let hosts: [Array; N] = std::array::from_fn(|i| sample.inputs[i].draw(seed * 16 + i as u64, dtype));
    let inputs = device_inputs(device, dtype, sample, &hosts, layouts)?;
    let refs: [&Array; N] = std::array::from_fn(|i| &hosts[i]);
    let expected = sample.op.reference(refs);
    let (ys, grads, dys) = forward_backward(sample, &inputs, seed)?;
    let unit = sample.unit(dtype);
    let forward = |i: usize| if M == 1 { "forward".to_owned() } else { format!("forward, result {i}") };
    for (i, (y, expected)) in ys.iter().zip(&expected).enumerate() {
        compare(&forward(i), y, expected, unit * sample.tolerance)?;
    }
    for (i, grad) in grads.iter().enumerate() {
        let Some(grad) = grad else { continue };
        let numeric = central_differences(sample, &hosts, i, &dys);
        compare(&format!("gradient {i}"), grad, &numeric, unit * sample.tolerance * 4.0)?;
    }
    let (again, grads_again, _) = forward_backward(sample, &inputs, seed)?;
    for (i, (y, again)) in ys.iter().zip(&again).enumerate() {
        same_bits(&forward(i), y, again)?;
    }
    for (a, b) in grads.iter().zip(&grads_again) {
        if let (Some(a), Some(b)) = (a, b) {
            same_bits("gradient", a, b)?;
        }
    }
    replayed(sample, &inputs, &dys, (&ys, &grads))
}

/// The same bits from a graph of forward and backward, over results that were overwritten.
fn replayed<O: MultiOp<N, M>, const N: usize, const M: usize>(
    sample: &Sample<O, N>,
    inputs: &[Tensor],
    dys: &[Array; M],
    expected: (&[Tensor; M], &[Option<Tensor>]),
) -> Result<()> {
    let Some(device) = expected.0.first().map(Tensor::device) else { return Ok(()) };
    let dys = upload_like(expected.0, dys)?;
    let capture = Graph::capture(device, || pass(sample, inputs, &dys));
    let (graph, (ys, grads)) = capture.map_err(|e| e.context("captured"))?;
    let given = |t: &Tensor| inputs.iter().chain(&dys).any(|x| x.storage().whole().same(t.storage().whole()));
    for made in ys.iter().chain(grads.iter().flatten()).filter(|made| !given(made)) {
        device.fill(made.storage(), &[0xA5])?;
    }
    graph.replay()?;
    for (expected, y) in expected.0.iter().zip(&ys) {
        same_bits("a replayed graph's forward", expected, y)?;
    }
    for (a, b) in expected.1.iter().flatten().zip(grads.iter().flatten()) {
        same_bits("a replayed graph's gradient", a, b)?;
    }
    Ok(())
}

fn device_inputs<O, const N: usize>(
    device: &Device,
    dtype: DType,
    sample: &Sample<O, N>,
    hosts: &[Array; N],
    layouts: Layouts,
) -> Result<Vec<Tensor>> {
    let make = |i: usize| -> Result<Tensor> {
        let input = &sample.inputs[i];
        let tensor = layouts.place(device, &hosts[i], input.dtype(dtype))?;
        Ok(if input.differentiable() { tensor.parameter(&format!("input {i}")) } else { tensor })
    };
    (0..N).map(make).collect()
}

/// Results, gradients of the inputs, and the gradients of the results they were made from.
type Run<const M: usize> = ([Tensor; M], Vec<Option<Tensor>>, [Array; M]);

fn forward_backward<O: MultiOp<N, M>, const N: usize, const M: usize>(
    sample: &Sample<O, N>,
    inputs: &[Tensor],
    seed: u64,
) -> Result<Run<M>> {
    inputs.iter().for_each(|t| t.set_grad(None));
    let refs: [&Tensor; N] = std::array::from_fn(|i| &inputs[i]);
    let ys = sample.op.clone().apply(refs)?;
    let dys: [Array; M] =
        std::array::from_fn(|i| Input::normal(ys[i].dims()).draw(seed * 16 + 15 - i as u64, ys[i].dtype()));
    if ys.iter().any(Tensor::requires_grad) {
        let placed = upload_like(&ys, &dys)?;
        tape::backward_all(&ys.iter().zip(&placed).collect::<Vec<_>>())?;
    }
    Ok((ys.map(|y| y.detach()), inputs.iter().map(Tensor::grad).collect(), dys))
}

/// Forward and backward from gradients that are on the device.
fn pass<O: MultiOp<N, M>, const N: usize, const M: usize>(
    sample: &Sample<O, N>,
    inputs: &[Tensor],
    dys: &[Tensor],
) -> Result<([Tensor; M], Vec<Option<Tensor>>)> {
    inputs.iter().for_each(|t| t.set_grad(None));
    let refs: [&Tensor; N] = std::array::from_fn(|i| &inputs[i]);
    let ys = sample.op.clone().apply(refs)?;
    if ys.iter().any(Tensor::requires_grad) {
        tape::backward_all(&ys.iter().zip(dys).collect::<Vec<_>>())?;
    }
    Ok((ys.map(|y| y.detach()), inputs.iter().map(Tensor::grad).collect()))
}

fn upload_like(ys: &[Tensor], data: &[Array]) -> Result<Vec<Tensor>> {
    let place = |(y, dy): (&Tensor, &Array)| {
        let data: Vec<f32> = dy.data.iter().map(|v| *v as f32).collect();
        Tensor::from_f32(y.device(), y.shape(), &data, y.dtype())
    };
    ys.iter().zip(data).map(place).collect()
}

/// Gradient of the sum of `dy * f(x)` over all results in input `i`, from the reference alone.
fn central_differences<O: MultiOp<N, M>, const N: usize, const M: usize>(
    sample: &Sample<O, N>,
    hosts: &[Array; N],
    i: usize,
    dys: &[Array; M],
) -> Array {
    let mut hosts = hosts.clone();
    let value = |hosts: &[Array; N]| {
        let refs: [&Array; N] = std::array::from_fn(|i| &hosts[i]);
        let ys = sample.op.reference(refs);
        let pairs = ys.iter().zip(dys).flat_map(|(y, dy)| y.data.iter().zip(&dy.data));
        pairs.map(|(a, b)| a * b).sum::<f64>()
    };
    let mut out = Array::zeros(hosts[i].shape.clone());
    for k in 0..out.data.len() {
        let x = hosts[i].data[k];
        let h = STEP * x.abs().max(1.0);
        hosts[i].data[k] = x + h;
        let up = value(&hosts);
        hosts[i].data[k] = x - h;
        let down = value(&hosts);
        hosts[i].data[k] = x;
        out.data[k] = (up - down) / (2.0 * h);
    }
    out
}

/// Largest difference within `tolerance` of the largest expected value (at least 1); NaN never passes.
fn compare(what: &str, got: &Tensor, expected: &Array, tolerance: f64) -> Result<()> {
    if *got.shape() != expected.shape {
        return Err(Error::internal(format!("{what}: shape {}, expected {}", got.shape(), expected.shape)));
    }
    let scale = expected.data.iter().fold(1.0f64, |m, v| if v.is_finite() { m.max(v.abs()) } else { m });
    for (i, (g, e)) in got.to_vec()?.iter().zip(&expected.data).enumerate() {
        let g = f64::from(*g);
        let near = g == *e || (g - e).abs() <= tolerance * scale;
        if !near {
            return Err(Error::internal(format!(
                "{what}: element {i} of {} is {g}, expected {e}; allowed difference {:.2e}",
                expected.shape,
                tolerance * scale
            )));
        }
    }
    Ok(())
}

fn same_bits(what: &str, a: &Tensor, b: &Tensor) -> Result<()> {
    if a.to_bytes()? == b.to_bytes()? {
        return Ok(());
    }
    Err(Error::internal(format!("{what}: a second run gave other bits")))
}

/// Runs the first f32 samples of an op with each candidate of the tuned kernels it uses: all must agree with the reference.
pub fn run_variants(device: &Device, suite: SuiteFn, limit: usize) -> Result<usize> {
    let tuning = Tuning::of(device);
    tuning.start_recording();
    suite(device, DType::F32)?;
    let mut runs = 0;
    for (kernel, bucket) in tuning.stop_recording().tuned {
        for params in tuning.candidates(kernel).into_iter().take(limit).skip(1) {
            tuning.try_out(kernel, bucket, Some(params.clone()));
            let outcome = suite(device, DType::F32);
            tuning.try_out(kernel, bucket, None);
            runs += outcome.map_err(|e| e.context(format!("{kernel} with {params:?}")))?;
        }
    }
    Ok(runs)
}

/// The device tests run on: `NETCL_TEST_DEVICE`, or `auto`.
pub fn test_device() -> Result<Device> {
    let name = std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into());
    Device::open(&name, &Settings::from_env())
}

/// What `ops!` makes of each op: the suite on the test device for every float type.
#[cfg(test)]
pub(crate) fn test(name: &str) {
    let device = test_device().unwrap();
    let entry = OPS.iter().find(|e| e.name == name).unwrap();
    for dtype in DType::FLOATS {
        let cases = (entry.suite)(&device, dtype).unwrap_or_else(|e| panic!("{e}"));
        assert!(cases > 0, "{name} has no cases for {dtype}");
    }
    // Devices keep what launches of one kind share: a few kilobytes, whatever is run.
    let memory = device.memory();
    let shared =
        |(tag, bytes): &(&str, usize)| ["tensor maps", "tile counters"].contains(tag).then_some(*bytes);
    let kept: usize = memory.by_tag.iter().filter_map(shared).sum();
    assert_eq!(memory.live, kept, "{name} leaves some of {} buffers alive", memory.buffers);
}

/// Every op's name, for the self-test and the benchmark.
pub fn names() -> impl Iterator<Item = &'static str> {
    OPS.iter().map(|e| e.name)
}
