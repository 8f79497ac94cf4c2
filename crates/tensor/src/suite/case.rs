//! One sample in one storage type and one layout, and its comparison with the reference.

use super::called;
use super::compare::{compare, same_bits, upload_like};
use super::differences;
use super::overwritten;
use super::sample::{Input, Layouts, Sample, Step};
use crate::array::Array;
use crate::graph::Graph;
use crate::ops::MultiOp;
use crate::{DType, Device, Error, Result, Tensor, tape};
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

/// Step of the central differences. Their error is about its square, and their rounding about 1e-16 divided by it.
pub(super) const STEP: f64 = 1e-5;

/// Parts of a case that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Forward and backward, without comparison.
    Launches,
    /// Forward and backward, compared with the reference.
    Values,
    /// Also a second run, which must give the same bits.
    Repeated,
    /// Also a replayed graph.
    Replayed,
}

type Check = Box<dyn Fn(&Device, Depth) -> Result<()>>;

/// A case of an operation's suite. It can run any number of times; the reference is evaluated once.
pub struct Case {
    /// Operation, sample, storage type, layout.
    pub name: String,
    /// Name of the sample; may be empty.
    pub sample: &'static str,
    /// Storage type of its floats.
    pub dtype: DType,
    /// See [`Sample::light`].
    pub light: bool,
    /// See [`Layouts`].
    pub layouts: Layouts,
    check: Check,
}

/// Creates the cases of an operation for one storage type.
pub type CasesFn = fn(DType) -> Result<Vec<Case>>;

impl Case {
    /// Creates a case of an operation without samples; `check` compares as much as `Depth` requests.
    pub fn new(name: &str, dtype: DType, check: impl Fn(&Device, Depth) -> Result<()> + 'static) -> Self {
        let (name, check) = (name.into(), Box::new(check));
        Self { name, sample: "", dtype, light: false, layouts: Layouts::Contiguous, check }
    }
    /// Runs the case on a device.
    ///
    /// # Errors
    /// The failure or difference, after the case's name.
    pub fn check(&self, device: &Device, depth: Depth) -> Result<()> {
        (self.check)(device, depth).map_err(|e| e.context(&self.name))
    }
}

/// Returns every sample of `O` in every layout.
///
/// # Errors
/// `Internal` if samples without elements, with one, or with extreme values are missing, and if a benchmark lacks a shape.
pub fn cases<O: MultiOp<N, M>, const N: usize, const M: usize>(dtype: DType) -> Result<Vec<Case>> {
    let samples = O::samples();
    let runs = || samples.iter().filter(|s| s.only.is_none_or(|only| only == DType::F32));
    let counts = |s: &Sample<O, N>| s.inputs.iter().map(|i| i.shape().count()).collect::<Vec<_>>();
    check_edge(O::NAME, "of no element", runs().any(|s| counts(s).contains(&0)), O::NO_EMPTY_SAMPLE)?;
    let single = runs().any(|s| counts(s).iter().all(|n| *n == 1));
    check_edge(O::NAME, "whose inputs have one element each", single, O::NO_SINGLE_SAMPLE)?;
    let extreme = runs().any(|s| s.extreme);
    check_edge(O::NAME, "of extreme values", extreme, O::NO_EXTREME_SAMPLE)?;
    samples.iter().try_for_each(|sample| sample.bench_shapes(O::NAME).map(drop))?;
    let mut out = Vec::new();
    for (i, sample) in samples.into_iter().enumerate() {
        if sample.only.is_some_and(|only| only != dtype) {
            continue;
        }
        let (called, light, in_order) = (sample.name, sample.light, sample.in_order);
        let of = format!("{} {} sample {i} {dtype}", O::NAME, sample.name);
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
        None if !found => Err(Error::internal(format!("{op}: no sample {what}, expected one"))),
        Some(why) if found => Err(Error::internal(format!("{op}: has a sample {what}, although \"{why}\""))),
        _ => Ok(()),
    }
}

/// A sample with the data that is computed once for all runs and layouts.
struct Prepared<O, const N: usize, const M: usize> {
    sample: Sample<O, N>,
    dtype: DType,
    seed: u64,
    /// The inputs. Many cases need only the shapes, and drawing takes longer than everything else that these need.
    hosts: OnceCell<[Array; N]>,
    /// Gradients of the results.
    dys: OnceCell<[Array; M]>,
    expected: OnceCell<[Array; M]>,
    /// Gradients of the inputs, from the reference.
    numeric: RefCell<[Option<Rc<Array>>; N]>,
}

impl<O: MultiOp<N, M>, const N: usize, const M: usize> Prepared<O, N, M> {
    fn new(sample: Sample<O, N>, dtype: DType, seed: u64) -> Self {
        let numeric = RefCell::new([const { None }; N]);
        let (hosts, dys, expected) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Self { sample, dtype, seed, hosts, dys, expected, numeric }
    }

    fn hosts(&self) -> &[Array; N] {
        let draw = |i: usize| self.sample.inputs[i].draw(self.seed * 16 + i as u64, self.dtype);
        self.hosts.get_or_init(|| std::array::from_fn(draw))
    }

    fn check(&self, device: &Device, layouts: Layouts, depth: Depth) -> Result<()> {
        let (sample, seed) = (&self.sample, self.seed);
        let inputs = device_inputs(device, self.dtype, sample, self.hosts(), layouts)?;
        let (ys, grads, dys) = forward_backward(sample, &inputs, seed, &self.dys)?;
        if depth == Depth::Launches {
            return Ok(());
        }
        let unit = sample.unit(self.dtype);
        let forward = |i: usize| if M == 1 { "forward".to_owned() } else { format!("forward, result {i}") };
        let reference = || sample.op.reference(std::array::from_fn(|i| &self.hosts()[i]));
        for (i, (y, expected)) in ys.iter().zip(self.expected.get_or_init(reference)).enumerate() {
            compare(&forward(i), y, expected, (unit * sample.tolerance, sample.pointwise))?;
        }
        for (i, grad) in grads.iter().enumerate() {
            let Some(grad) = grad else { continue };
            let numeric = self.gradient(i, dys);
            let allowed = (unit * sample.tolerance * 4.0, sample.pointwise);
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

    /// Returns the gradient of input `i`; `dys` are the same in every run.
    fn gradient(&self, i: usize, dys: &[Array; M]) -> Rc<Array> {
        if let Some(known) = &self.numeric.borrow()[i] {
            return Rc::clone(known);
        }
        let made = Rc::new(central_differences(&self.sample, self.hosts(), i, dys));
        self.numeric.borrow_mut()[i] = Some(Rc::clone(&made));
        made
    }
}

/// Checks that a graph of forward and backward gives the same bits, after the results were overwritten.
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

pub(super) fn device_inputs<O, const N: usize>(
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

/// Results, gradients of the inputs, and the gradients of the results from which these were computed.
pub(super) type Run<'d, const M: usize> = ([Tensor; M], Vec<Option<Tensor>>, &'d [Array; M]);

/// Runs forward and backward. `dys` are drawn in the first run.
pub(super) fn forward_backward<'d, O: MultiOp<N, M>, const N: usize, const M: usize>(
    sample: &Sample<O, N>,
    inputs: &[Tensor],
    seed: u64,
    dys: &'d OnceCell<[Array; M]>,
) -> Result<Run<'d, M>> {
    inputs.iter().for_each(|t| t.set_grad(None));
    let refs: [&Tensor; N] = std::array::from_fn(|i| &inputs[i]);
    let ys = sample.op.clone().apply(refs)?;
    let draw = |i: usize| Input::normal(ys[i].dims()).draw(seed * 16 + 15 - i as u64, ys[i].dtype());
    let dys = dys.get_or_init(|| std::array::from_fn(draw));
    if ys.iter().any(Tensor::requires_grad) {
        let placed = upload_like(&ys, dys)?;
        tape::backward_all(&ys.iter().zip(&placed).collect::<Vec<_>>())?;
    }
    Ok((ys.map(|y| y.detach()), inputs.iter().map(Tensor::grad).collect(), dys))
}

/// Runs forward, and backward from gradients on the device.
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

/// Computes the gradient of the sum of `dy * f(x)` over all results in input `i`, from the reference alone.
fn central_differences<O: MultiOp<N, M>, const N: usize, const M: usize>(
    sample: &Sample<O, N>,
    hosts: &[Array; N],
    i: usize,
    dys: &[Array; M],
) -> Array {
    let step = |x: f64| match sample.step {
        Step::Least(least) => STEP * x.abs().max(least),
        Step::Fixed(h) => h,
    };
    let weights: Vec<f64> = dys.iter().flat_map(|dy| dy.data.iter().copied()).collect();
    let values = |x: &Array| {
        let given = std::array::from_fn(|k| if k == i { x } else { &hosts[k] });
        let mut all = Vec::with_capacity(weights.len());
        sample.op.reference(given).iter().for_each(|y| all.extend_from_slice(&y.data));
        all
    };
    differences::gradient(&hosts[i], step, &weights, &values)
}
