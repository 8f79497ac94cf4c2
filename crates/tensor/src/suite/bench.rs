//! Benchmark cases: the samples that define input sizes for benchmarks.

use super::accuracy::{
    Accuracy, MAX_REFERENCE_ELEMENTS, ReferenceGradients, accuracy, benchmark_sized, gradients, gradients_of,
};
use super::sample::{SampleInput, over};
use super::subject::Trial;
use crate::ops::MultiOp;
use crate::{DType, Device, Result, Tensor, tape};
use netcl_device::record::Mode;

/// Visits each benchmark case of an op, selected by the sample's name or the op's own name.
pub type BenchFn =
    fn(&Device, DType, &dyn Fn(&str) -> bool, &mut dyn FnMut(BenchCase<'_>) -> Result<()>) -> Result<()>;

type Measured<'a> = Box<dyn Fn(usize) -> Result<Accuracy> + 'a>;
type Run<'a> = Box<dyn FnMut() -> Result<Vec<Tensor>> + 'a>;

/// An op with inputs of realistic size. Its tensors live as long as the visit.
pub struct BenchCase<'a> {
    /// The op's own name.
    pub op: &'static str,
    /// The sample's name; may be empty.
    pub sample: &'static str,
    /// Shapes of the inputs.
    pub shapes: Vec<Vec<usize>>,
    /// Minimum bytes that forward and backward must move: data from before that they read, and their results, each once.
    pub bytes: [u64; 2],
    /// Enqueues the forward and returns its result; `None` if it does not launch anything (views).
    pub forward: Option<Run<'a>>,
    /// Enqueues the backward and returns the gradients; `None` if it does not launch anything.
    pub backward: Option<Run<'a>>,
    /// Runs the op and its reference on inputs of these sizes, or on smaller ones with at most the given number of elements.
    pub accuracy: Measured<'a>,
    /// Compares the op's gradients with its reference's slopes, on inputs of at most [`MAX_REFERENCE_ELEMENTS`] elements.
    pub gradients: Box<dyn Fn() -> Result<()> + 'a>,
    /// Computes the op's gradients, on inputs of at most the given number of elements.
    pub gradients_of: Box<dyn Fn(usize) -> Result<Option<ReferenceGradients>> + 'a>,
}

/// Visits the benchmark shapes of the selected samples of `O`. Inputs are contiguous.
///
/// # Errors
/// Errors of the op and the visitor; `Internal` if a benchmark does not have one shape per input.
pub fn bench<O: MultiOp<N, M>, const N: usize, const M: usize>(
    device: &Device,
    dtype: DType,
    wanted: &dyn Fn(&str) -> bool,
    visit: &mut dyn FnMut(BenchCase<'_>) -> Result<()>,
) -> Result<()> {
    all((O::NAME, &Trial::all::<O, N, M>()), device, dtype, wanted, visit)
}

fn all(
    (op, samples): (&'static str, &[Trial]),
    device: &Device,
    dtype: DType,
    wanted: &dyn Fn(&str) -> bool,
    visit: &mut dyn FnMut(BenchCase<'_>) -> Result<()>,
) -> Result<()> {
    for (seed, sample) in (0u64..).zip(samples) {
        for shapes in sample.facts.bench_shapes(op, sample.inputs.len())? {
            let name = if sample.facts.name.is_empty() { op } else { sample.facts.name };
            if sample.facts.only.is_some_and(|only| only != dtype) || !wanted(name) {
                continue;
            }
            one(device, dtype, (op, sample, seed), shapes, visit)?;
        }
    }
    Ok(())
}

fn one(
    device: &Device,
    dtype: DType,
    (op_name, sample, seed): (&'static str, &Trial, u64),
    shapes: &[Vec<usize>],
    visit: &mut dyn FnMut(BenchCase<'_>) -> Result<()>,
) -> Result<()> {
    let drawn = over(&sample.inputs, shapes);
    let input = |i: usize| {
        let input = &drawn[i];
        let tensor = place(device, input, seed * 16 + i as u64, dtype)?;
        Ok(if input.differentiable() { tensor.parameter(&format!("input {i}")) } else { tensor })
    };
    let inputs: Vec<Tensor> = (0..drawn.len()).map(input).collect::<Result<_>>()?;
    let (op, inputs) = (&sample.op, &inputs[..]);
    let ((ys, saved), fwd) = watched(device, || tape::no_grad(|| op.forward(inputs)))?;
    let dy = |y: &Tensor| place(device, &SampleInput::normal(y.dims()), seed * 16 + 15, y.dtype());
    let dys = ys.iter().map(dy).collect::<Result<Vec<_>>>()?;
    let backward = || tape::no_grad(|| op.backward(inputs, &saved, &dys));
    let (grads, bwd) = watched(device, backward)?;
    let total = |tensors: &mut dyn Iterator<Item = &Tensor>| tensors.map(bytes_of).sum::<u64>();
    let unread = sample.facts.gathers.map_or(0, |(table, ids)| rows_left(&inputs[table], &inputs[ids]));
    let bytes = [
        fwd.read.saturating_sub(unread) + total(&mut ys.iter()),
        bwd.read + total(&mut grads.iter().flatten()),
    ];
    drop((ys, grads));
    let sized = |limit: usize| benchmark_sized(sample, shapes, limit);
    visit(BenchCase {
        op: op_name,
        sample: sample.facts.name,
        shapes: shapes.to_vec(),
        bytes,
        forward: (fwd.launches > 0)
            .then(|| -> Run<'_> { Box::new(|| tape::no_grad(|| op.forward(inputs)).map(|(ys, _)| ys)) }),
        backward: (bwd.launches > 0)
            .then(|| -> Run<'_> { Box::new(|| Ok(backward()?.into_iter().flatten().collect())) }),
        accuracy: Box::new(|limit| accuracy(device, dtype, &sized(limit), seed)),
        gradients: Box::new(|| gradients(device, dtype, &sized(MAX_REFERENCE_ELEMENTS), seed)),
        gradients_of: Box::new(|limit| gradients_of(device, dtype, &sized(limit), seed)),
    })
}

fn bytes_of(tensor: &Tensor) -> u64 {
    (tensor.count() * tensor.dtype().size()) as u64
}

/// Returns the bytes of table rows that are not read because there are fewer ids than rows.
fn rows_left(table: &Tensor, ids: &Tensor) -> u64 {
    let rows = table.dims().first().copied().unwrap_or(1).max(1);
    bytes_of(table) / rows as u64 * rows.saturating_sub(ids.count()) as u64
}

/// Uploads the input's elements, repeating at most a million draws, because drawing would take longer than the measurement.
fn place(device: &Device, input: &SampleInput, seed: u64, float: DType) -> Result<Tensor> {
    let (count, dtype) = (input.shape().count(), input.dtype(float));
    let drawn = input.reshaped(&[count.min(1 << 20)]).draw(seed, float);
    let data: Vec<f32> = (0..count).map(|i| drawn.data[i % drawn.data.len()] as f32).collect();
    Tensor::from_f32(device, input.shape(), &data, dtype)
}

/// Counts the accesses of a pass to memory that existed before the pass.
struct Watched {
    launches: u64,
    /// Bytes that it reads.
    read: u64,
}

/// Runs `f` and counts its launches and the bytes that it reads.
fn watched<R>(device: &Device, f: impl FnOnce() -> Result<R>) -> Result<(R, Watched)> {
    let before = device.launches();
    let session = device.record(Mode::Watch)?;
    let out = f();
    let recording = session.stop()?;
    Ok((out?, Watched { launches: device.launches() - before, read: recording.read }))
}

#[cfg(test)]
mod tests {
    use crate::ops::OPS;
    use crate::{DType, Device, Result, Settings};
    use netcl_device::null::NullDriver;
    use netcl_device::{Capabilities, DeviceKind};
    use std::collections::BTreeMap;

    /// Returns the bytes of each benchmark of an op: sample name and first size of the first input, forward, backward.
    fn bytes(op: &str) -> BTreeMap<(String, usize), [u64; 2]> {
        // Nothing is computed; the launches report what they read.
        let mut capabilities = Capabilities::floor("gpu:0", DeviceKind::Gpu);
        (capabilities.max_alloc, capabilities.global_mem) = (1 << 32, 1 << 34);
        let device = Device::from_driver(Box::new(NullDriver::new(capabilities)), Settings::default());
        let entry = OPS.iter().find(|e| e.name == op).unwrap();
        let mut out = BTreeMap::new();
        let mut visit = |case: super::BenchCase<'_>| -> Result<()> {
            out.insert((case.sample.to_owned(), case.shapes[0][0]), case.bytes);
            Ok(())
        };
        let wanted = |name: &str| ["exp", "mul_scalar", "silu", "sub", "mul", "embedding"].contains(&name);
        (entry.bench)(&device, DType::F32, &wanted, &mut visit).unwrap();
        out
    }

    #[test]
    fn a_backward_counts_what_it_reads_and_not_always_x() {
        let n = 4096 * 4096 * 4;
        let unary = bytes("elementwise::Unary");
        let of = |name: &str| unary[&(name.to_owned(), 4096)];
        // The backwards read y and dy, only dy, and x and dy. All write dx.
        assert_eq!(
            [of("exp"), of("mul_scalar"), of("silu")],
            [[2 * n, 3 * n], [2 * n, 2 * n], [2 * n, 3 * n]]
        );
        // The forward reads 8192 rows of 768 from the table's 50304. The gradient is written completely.
        let [forward, backward] = bytes("embedding::Embedding")[&(String::new(), 50_304)];
        let (ids, rows, table) = (8192 * 4, 8192 * 768 * 4, 50_304 * 768 * 4);
        assert_eq!([forward, backward], [ids + 2 * rows, ids + rows + table]);
    }
}
