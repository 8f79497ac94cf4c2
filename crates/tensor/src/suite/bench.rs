//! Benchmark cases: the samples that say how large the inputs are in earnest.

use super::accuracy::{AFFORDABLE, Accuracy, Gradients, accuracy, earnest, gradients, gradients_of};
use super::{Input, Sample};
use crate::ops::MultiOp;
use crate::{DType, Device, Result, Tensor, tape};

/// Visits each benchmark case of an op whose sample's name, or else the op's own, is wanted.
pub type BenchFn =
    fn(&Device, DType, &dyn Fn(&str) -> bool, &mut dyn FnMut(BenchCase<'_>) -> Result<()>) -> Result<()>;

type Measured<'a> = Box<dyn Fn(usize) -> Result<Accuracy> + 'a>;
type Run<'a> = Box<dyn FnMut() -> Result<Vec<Tensor>> + 'a>;

/// One op on inputs of earnest size. Its tensors live as long as the visit.
pub struct BenchCase<'a> {
    /// The op's own name.
    pub op: &'static str,
    /// The sample's name, where it has one.
    pub sample: &'static str,
    /// Shapes of the inputs.
    pub shapes: Vec<Vec<usize>>,
    /// Bytes that forward and backward cannot avoid to move: their inputs and results, each once.
    pub bytes: [u64; 2],
    /// Enqueues the forward and gives its result; `None` where it launches nothing (views).
    pub forward: Option<Run<'a>>,
    /// Enqueues the backward and gives the gradients; `None` where it launches nothing.
    pub backward: Option<Run<'a>>,
    /// Runs the op and its reference on inputs of these sizes, or on smaller ones of at most so many elements.
    pub accuracy: Measured<'a>,
    /// Compares the op's gradients with its reference's slopes, on inputs of at most [`AFFORDABLE`] elements.
    pub gradients: Box<dyn Fn() -> Result<()> + 'a>,
    /// The op's gradients, on inputs of at most so many elements.
    pub gradients_of: Box<dyn Fn(usize) -> Result<Option<Gradients>> + 'a>,
}

/// Visits the samples of `O` that have benchmark shapes and a name that is wanted. Inputs are contiguous.
pub fn bench<O: MultiOp<N, M>, const N: usize, const M: usize>(
    device: &Device,
    dtype: DType,
    wanted: &dyn Fn(&str) -> bool,
    visit: &mut dyn FnMut(BenchCase<'_>) -> Result<()>,
) -> Result<()> {
    for (seed, sample) in (0u64..).zip(O::samples()) {
        let Some(shapes) = sample.bench.clone().filter(|s| s.len() == N) else { continue };
        let name = if sample.name.is_empty() { O::NAME } else { sample.name };
        if sample.only.is_some_and(|only| only != dtype) || !wanted(name) {
            continue;
        }
        let drawn = sample.over(&shapes);
        let input = |i: usize| {
            let input = &drawn[i];
            let tensor = place(device, input, seed * 16 + i as u64, dtype)?;
            Ok(if input.differentiable() { tensor.parameter(&format!("input {i}")) } else { tensor })
        };
        let inputs: Vec<Tensor> = (0..N).map(input).collect::<Result<_>>()?;
        let refs: [&Tensor; N] = std::array::from_fn(|i| &inputs[i]);
        let op = sample.op.clone();
        let ((ys, saved), forward_launches) = launched(device, || tape::no_grad(|| op.forward(refs)))?;
        let dy = |y: &Tensor| place(device, &Input::normal(y.dims()), seed * 16 + 15, y.dtype());
        let dys = ys.iter().map(dy).collect::<Result<Vec<_>>>()?;
        let backward = || tape::no_grad(|| op.backward(refs, &saved, std::array::from_fn(|i| Some(&dys[i]))));
        let (grads, backward_launches) = launched(device, backward)?;
        let total = |tensors: &mut dyn Iterator<Item = &Tensor>| {
            tensors.map(|t| (t.count() * t.dtype().size()) as u64).sum::<u64>()
        };
        let ins = total(&mut inputs.iter());
        let bytes = [ins + total(&mut ys.iter()), ins + total(&mut grads.iter().flatten().chain(&dys))];
        drop((ys, grads));
        let sized = |limit: usize| -> Sample<O, N> { earnest(&sample, &shapes, limit) };
        visit(BenchCase {
            op: O::NAME,
            sample: sample.name,
            shapes: shapes.clone(),
            bytes,
            forward: (forward_launches > 0).then(|| -> Run<'_> {
                Box::new(|| tape::no_grad(|| op.forward(refs)).map(|(ys, _)| ys.into()))
            }),
            backward: (backward_launches > 0)
                .then(|| -> Run<'_> { Box::new(|| Ok(backward()?.into_iter().flatten().collect())) }),
            accuracy: Box::new(|limit| accuracy(device, dtype, &sized(limit), seed)),
            gradients: Box::new(|| gradients(device, dtype, &sized(AFFORDABLE), seed)),
            gradients_of: Box::new(|limit| gradients_of(device, dtype, &sized(limit), seed)),
        })?;
    }
    Ok(())
}

/// The input's elements from at most a million draws, repeated: drawing takes longer than what is measured.
fn place(device: &Device, input: &Input, seed: u64, float: DType) -> Result<Tensor> {
    let (count, dtype) = (input.shape().count(), input.dtype(float));
    let drawn = input.reshaped(&[count.min(1 << 20)]).draw(seed, float);
    let data: Vec<f32> = (0..count).map(|i| drawn.data[i % drawn.data.len()] as f32).collect();
    Tensor::from_f32(device, input.shape(), &data, dtype)
}

fn launched<R>(device: &Device, f: impl FnOnce() -> Result<R>) -> Result<(R, u64)> {
    let before = device.launches();
    let out = f()?;
    Ok((out, device.launches() - before))
}
