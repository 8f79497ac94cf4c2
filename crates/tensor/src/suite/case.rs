//! A sample in one storage type and one layout, and its comparison with the reference.

use super::called;
use super::compare::{compare, same_bits, upload_like};
use super::differences;
use super::overwritten;
use super::sample::{DifferenceStep, Layouts, SampleInput};
use super::subject::{About, Trial};
use crate::array::Array;
use crate::graph::Graph;
use crate::ops::MultiOp;
use crate::{DType, Device, Error, Result, Tensor, tape};
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

/// Step of the central differences. Their error is about its square, and their rounding error about 1e-16 divided by it.
pub(super) const STEP: f64 = 1e-5;

/// Extent of a case's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Forward and backward, without comparisons.
    Launches,
    /// Forward and backward against the reference.
    Values,
    /// Also a second run, for the same bits.
    Repeated,
    /// Also a graph that is replayed.
    Replayed,
}

type Check = Box<dyn Fn(&Device, Depth) -> Result<()>>;

/// A test case of an op. It can be run any number of times; the reference is evaluated at the first run.
pub struct Case {
    /// Op, sample, storage type, layout.
    pub name: String,
    /// The sample's own name; may be empty.
    pub sample: &'static str,
    /// Storage type of its floats.
    pub dtype: DType,
    /// See [`Sample::light`].
    pub light: bool,
    /// See [`Layouts`].
    pub layouts: Layouts,
    check: Check,
}

/// Builds the cases of an op for one storage type.
pub type CasesFn = fn(DType) -> Result<Vec<Case>>;

impl Case {
    /// Creates a case of an op without samples. `check` compares as much as the depth requests.
    pub fn new(name: &str, dtype: DType, check: impl Fn(&Device, Depth) -> Result<()> + 'static) -> Self {
        let (name, check) = (name.into(), Box::new(check));
        Self { name, sample: "", dtype, light: false, layouts: Layouts::Contiguous, check }
    }
    /// Runs the case on a device.
    ///
    /// # Errors
    /// The failure or difference, prefixed with the case's name.
    pub fn check(&self, device: &Device, depth: Depth) -> Result<()> {
        (self.check)(device, depth).map_err(|e| e.context(&self.name))
    }
}

/// Builds the cases for every sample of `O` in every layout.
///
/// # Errors
/// `Internal` if samples without elements, with one element, or with extreme values are missing, or a benchmark lacks a shape.
pub fn cases<O: MultiOp<N, M>, const N: usize, const M: usize>(dtype: DType) -> Result<Vec<Case>> {
    cases_of(&About::of::<O, N, M>(), Trial::all::<O, N, M>(), dtype)
}

fn cases_of(op: &About, samples: Vec<Trial>, dtype: DType) -> Result<Vec<Case>> {
    let name = op.name;
    let runs = || samples.iter().filter(|s| s.facts.only.is_none_or(|only| only == DType::F32));
    let counts = |s: &Trial| s.inputs.iter().map(|i| i.shape().count()).collect::<Vec<_>>();
    check_edge(name, "of no element", runs().any(|s| counts(s).contains(&0)), op.no_empty)?;
    let single = runs().any(|s| counts(s).iter().all(|n| *n == 1));
    check_edge(name, "whose inputs have one element each", single, op.no_single)?;
    let extreme = runs().any(|s| s.facts.extreme);
    check_edge(name, "of extreme values", extreme, op.no_extreme)?;
    samples.iter().try_for_each(|s| s.facts.bench_shapes(name, s.inputs.len()).map(drop))?;
    let mut out = Vec::new();
    for (i, sample) in samples.into_iter().enumerate() {
        if sample.facts.only.is_some_and(|only| only != dtype) {
            continue;
        }
        let (called, light, in_order) = (sample.facts.name, sample.facts.light, sample.facts.in_order);
        let of = format!("{name} {called} sample {i} {dtype}");
        let prepared = Rc::new(Prepared::new(sample, dtype, i as u64));
        for layouts in Layouts::ALL {
            let plain = layouts == Layouts::Contiguous;
            if (light && !(plain && dtype == DType::F32)) || (in_order && !plain) {
                continue;
            }
            let prepared = Rc::clone(&prepared);
            let check: Check = Box::new(move |device, depth| prepared.check(device, layouts, depth));
            out.push(Case {
                name: format!("{of} {layouts:?}"),
                sample: called,
                dtype,
                light,
                layouts,
                check,
            });
        }
    }
    Ok(out)
}

fn check_edge(op: &str, what: &str, found: bool, excuse: Option<&str>) -> Result<()> {
    match excuse {
        None if !found => Err(Error::internal(format!("{op}: a sample {what} is missing"))),
        Some(why) if found => Err(Error::internal(format!("{op}: has a sample {what}, although \"{why}\""))),
        _ => Ok(()),
    }
}

/// A sample with cached data, for any number of runs and layouts.
struct Prepared {
    sample: Trial,
    dtype: DType,
    seed: u64,
    /// The inputs. Many cases only need their shapes, and drawing takes longer than everything else.
    hosts: OnceCell<Vec<Array>>,
    /// The gradients of the results.
    dys: OnceCell<Vec<Array>>,
    expected: OnceCell<Vec<Array>>,
    /// The gradients of the inputs, from the reference.
    numeric: RefCell<Vec<Option<Rc<Array>>>>,
}

impl Prepared {
    fn new(sample: Trial, dtype: DType, seed: u64) -> Self {
        let numeric = RefCell::new(vec![None; sample.inputs.len()]);
        let (hosts, dys, expected) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Self { sample, dtype, seed, hosts, dys, expected, numeric }
    }

    fn hosts(&self) -> &[Array] {
        self.hosts.get_or_init(|| self.sample.draw(self.seed, self.dtype))
    }

    fn check(&self, device: &Device, layouts: Layouts, depth: Depth) -> Result<()> {
        let (sample, seed) = (&self.sample, self.seed);
        let inputs = device_inputs(device, self.dtype, sample, self.hosts(), layouts)?;
        let (ys, grads, dys) = forward_backward(sample, &inputs, seed, &self.dys)?;
        if depth == Depth::Launches {
            return Ok(());
        }
        let (unit, tolerance) = (sample.facts.unit(self.dtype), sample.facts.tolerance);
        let forward = |i: usize| {
            if sample.results == 1 { "forward".to_owned() } else { format!("forward, result {i}") }
        };
        let reference = || sample.op.reference(&self.hosts().iter().collect::<Vec<_>>());
        for (i, (y, expected)) in ys.iter().zip(self.expected.get_or_init(reference)).enumerate() {
            compare(&forward(i), y, expected, (unit * tolerance, sample.facts.pointwise))?;
        }
        for (i, grad) in grads.iter().enumerate() {
            let Some(grad) = grad else { continue };
            let numeric = self.gradient(i, dys);
            let allowed = (unit * tolerance * 4.0, sample.facts.pointwise);
            compare(&format!("gradient {i}"), grad, &numeric, allowed)?;
        }
        if depth == Depth::Values {
            return Ok(());
        }
        let (again, grads_again, _) = forward_backward(sample, &inputs, seed, &self.dys)?;
        for (i, (y, again)) in ys.iter().zip(&again).enumerate() {
            same_bits(&forward(i), y, again)?;
        }
        for (a, b) in grads.iter().zip(&grads_again) {
            if let (Some(a), Some(b)) = (a, b) {
                same_bits("gradient", a, b)?;
            }
        }
        if depth == Depth::Repeated {
            return Ok(());
        }
        replayed(sample, &inputs, dys, (&ys, &grads))?;
        if layouts != Layouts::Contiguous || self.dtype != DType::F32 {
            return Ok(());
        }
        called::check(sample, &inputs, (&ys, &grads, dys))?;
        overwritten::check(sample, &inputs, dys, &grads)
    }

    /// Returns the gradient of input `i`. `dys` are the same in every run.
    fn gradient(&self, i: usize, dys: &[Array]) -> Rc<Array> {
        if let Some(known) = &self.numeric.borrow()[i] {
            return Rc::clone(known);
        }
        let made = Rc::new(central_differences(&self.sample, self.hosts(), i, dys));
        self.numeric.borrow_mut()[i] = Some(Rc::clone(&made));
        made
    }
}

/// Checks that a graph of forward and backward gives the same bits, with results that were overwritten before.
fn replayed(
    sample: &Trial,
    inputs: &[Tensor],
    dys: &[Array],
    expected: (&[Tensor], &[Option<Tensor>]),
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
        same_bits("the forward of a replayed graph", expected, y)?;
    }
    for (a, b) in expected.1.iter().flatten().zip(grads.iter().flatten()) {
        same_bits("a gradient of a replayed graph", a, b)?;
    }
    Ok(())
}

pub(super) fn device_inputs(
    device: &Device,
    dtype: DType,
    sample: &Trial,
    hosts: &[Array],
    layouts: Layouts,
) -> Result<Vec<Tensor>> {
    let make = |i: usize| -> Result<Tensor> {
        let input = &sample.inputs[i];
        let tensor = layouts.place(device, &hosts[i], input.dtype(dtype))?;
        Ok(if input.differentiable() { tensor.parameter(&format!("input {i}")) } else { tensor })
    };
    (0..hosts.len()).map(make).collect()
}

/// Results, gradients of the inputs, and gradients of the results from which they were computed.
pub(super) type Run<'d> = (Vec<Tensor>, Vec<Option<Tensor>>, &'d [Array]);

/// Runs forward and backward. `dys` are drawn in the first run.
pub(super) fn forward_backward<'d>(
    sample: &Trial,
    inputs: &[Tensor],
    seed: u64,
    dys: &'d OnceCell<Vec<Array>>,
) -> Result<Run<'d>> {
    inputs.iter().for_each(|t| t.set_grad(None));
    let ys = sample.op.apply(inputs)?;
    let draw = |i: usize| SampleInput::normal(ys[i].dims()).draw(seed * 16 + 15 - i as u64, ys[i].dtype());
    let dys = dys.get_or_init(|| (0..ys.len()).map(draw).collect());
    if ys.iter().any(Tensor::requires_grad) {
        let placed = upload_like(&ys, dys)?;
        tape::backward_all(&ys.iter().zip(&placed).collect::<Vec<_>>())?;
    }
    Ok((ys.iter().map(Tensor::detach).collect(), inputs.iter().map(Tensor::grad).collect(), dys))
}

/// Runs forward and backward, from gradients that are on the device.
fn pass(sample: &Trial, inputs: &[Tensor], dys: &[Tensor]) -> Result<(Vec<Tensor>, Vec<Option<Tensor>>)> {
    inputs.iter().for_each(|t| t.set_grad(None));
    let ys = sample.op.apply(inputs)?;
    if ys.iter().any(Tensor::requires_grad) {
        tape::backward_all(&ys.iter().zip(dys).collect::<Vec<_>>())?;
    }
    Ok((ys.iter().map(Tensor::detach).collect(), inputs.iter().map(Tensor::grad).collect()))
}

/// Computes the gradient in input `i` of the sum of `dy * f(x)` over all results, from the reference alone.
fn central_differences(sample: &Trial, hosts: &[Array], i: usize, dys: &[Array]) -> Array {
    let step = |x: f64| match sample.facts.step {
        DifferenceStep::Least(least) => STEP * x.abs().max(least),
        DifferenceStep::Fixed(h) => h,
    };
    let weights: Vec<f64> = dys.iter().flat_map(|dy| dy.data.iter().copied()).collect();
    let values = |x: &Array| {
        let given: Vec<&Array> = (0..hosts.len()).map(|k| if k == i { x } else { &hosts[k] }).collect();
        let mut all = Vec::with_capacity(weights.len());
        sample.op.reference(&given).iter().for_each(|y| all.extend_from_slice(&y.data));
        all
    };
    differences::gradient(&hosts[i], &step, &weights, &values)
}
