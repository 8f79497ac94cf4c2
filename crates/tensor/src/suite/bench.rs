//! Benchmark cases: the samples that define sizes of inputs for benchmarks.

use super::accuracy::{
    Accuracy, Gradients, MAX_REFERENCE_ELEMENTS, accuracy, benchmark_sized, gradients, gradients_of,
};
use super::{Input, Sample};
use crate::ops::MultiOp;
use crate::{DType, Device, Result, Tensor, tape};
use netcl_device::record::Mode;

/// Visits each benchmark case of an operation if the name of its sample, or of the operation if the sample is unnamed, is selected.
pub type BenchFn =
    fn(&Device, DType, &dyn Fn(&str) -> bool, &mut dyn FnMut(BenchCase<'_>) -> Result<()>) -> Result<()>;

type Measured<'a> = Box<dyn Fn(usize) -> Result<Accuracy> + 'a>;
type Run<'a> = Box<dyn FnMut() -> Result<Vec<Tensor>> + 'a>;

/// One operation on inputs of realistic size. Its tensors live as long as the visit.
pub struct BenchCase<'a> {
    /// Name of the operation.
    pub op: &'static str,
    /// Name of the sample; may be empty.
    pub sample: &'static str,
    /// Shapes of the inputs.
    pub shapes: Vec<Vec<usize>>,
    /// Bytes that forward and backward must move at least: previous contents that they read, and their results, each once.
    pub bytes: [u64; 2],
    /// Enqueues the forward and returns its result; `None` if it launches nothing (views).
    pub forward: Option<Run<'a>>,
    /// Enqueues the backward and returns the gradients; `None` if it launches nothing.
    pub backward: Option<Run<'a>>,
    /// Runs the operation and its reference on inputs of these sizes, or on smaller ones of at most the given number of elements.
    pub accuracy: Measured<'a>,
    /// Compares the operation's gradients with its reference's slopes, on inputs of at most [`MAX_REFERENCE_ELEMENTS`] elements.
    pub gradients: Box<dyn Fn() -> Result<()> + 'a>,
    /// Computes the operation's gradients, on inputs of at most the given number of elements.
    pub gradients_of: Box<dyn Fn(usize) -> Result<Option<Gradients>> + 'a>,
}

/// Visits each benchmark's shapes of the selected samples of `O`. Inputs are contiguous.
///
/// # Errors
/// Those of the operation and the visitor; `Internal` if a benchmark does not have one shape per input.
pub fn bench<O: MultiOp<N, M>, const N: usize, const M: usize>(
    device: &Device,
    dtype: DType,
    wanted: &dyn Fn(&str) -> bool,
    visit: &mut dyn FnMut(BenchCase<'_>) -> Result<()>,
) -> Result<()> {
    for (seed, sample) in (0u64..).zip(O::samples()) {
        for shapes in sample.bench_shapes(O::NAME)? {
            let name = if sample.name.is_empty() { O::NAME } else { sample.name };
            if sample.only.is_some_and(|only| only != dtype) || !wanted(name) {
                continue;
            }
            one(device, dtype, (&sample, seed), shapes, visit)?;
        }
    }
    Ok(())
}

fn one<O: MultiOp<N, M>, const N: usize, const M: usize>(
    device: &Device,
    dtype: DType,
    (sample, seed): (&Sample<O, N>, u64),
    shapes: &[Vec<usize>],
    visit: &mut dyn FnMut(BenchCase<'_>) -> Result<()>,
) -> Result<()> {
    let drawn = sample.over(shapes);
    let input = |i: usize| {
        let input = &drawn[i];
        let tensor = place(device, input, seed * 16 + i as u64, dtype)?;
        Ok(if input.differentiable() { tensor.parameter(&format!("input {i}")) } else { tensor })
    };
    let inputs: Vec<Tensor> = (0..N).map(input).collect::<Result<_>>()?;
    let refs: [&Tensor; N] = std::array::from_fn(|i| &inputs[i]);
    let op = sample.op.clone();
    let ((ys, saved), fwd) = watched(device, || tape::no_grad(|| op.forward(refs)))?;
    let dy = |y: &Tensor| place(device, &Input::normal(y.dims()), seed * 16 + 15, y.dtype());
    let dys = ys.iter().map(dy).collect::<Result<Vec<_>>>()?;
    let backward = || tape::no_grad(|| op.backward(refs, &saved, std::array::from_fn(|i| Some(&dys[i]))));
    let (grads, bwd) = watched(device, backward)?;
    let total = |tensors: &mut dyn Iterator<Item = &Tensor>| tensors.map(bytes_of).sum::<u64>();
    let unread = sample.gathers.map_or(0, |(table, ids)| rows_left(&inputs[table], &inputs[ids]));
    let bytes = [
        fwd.read.saturating_sub(unread) + total(&mut ys.iter()),
        bwd.read + total(&mut grads.iter().flatten()),
    ];
    drop((ys, grads));
    let sized = |limit: usize| -> Sample<O, N> { benchmark_sized(sample, shapes, limit) };
    visit(BenchCase {
        op: O::NAME,
        sample: sample.name,
        shapes: shapes.to_vec(),
        bytes,
        forward: (fwd.launches > 0)
            .then(|| -> Run<'_> { Box::new(|| tape::no_grad(|| op.forward(refs)).map(|(ys, _)| ys.into())) }),
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

/// Returns the bytes of a table's rows that are not read because there are fewer ids than rows.
fn rows_left(table: &Tensor, ids: &Tensor) -> u64 {
    let rows = table.dims().first().copied().unwrap_or(1).max(1);
    bytes_of(table) / rows as u64 * rows.saturating_sub(ids.count()) as u64
}

/// Creates the input's elements from at most a million draws, repeated: drawing takes longer than the measurement.
fn place(device: &Device, input: &Input, seed: u64, float: DType) -> Result<Tensor> {
    let (count, dtype) = (input.shape().count(), input.dtype(float));
    let drawn = input.reshaped(&[count.min(1 << 20)]).draw(seed, float);
    let data: Vec<f32> = (0..count).map(|i| drawn.data[i % drawn.data.len()] as f32).collect();
    Tensor::from_f32(device, input.shape(), &data, dtype)
}

/// Memory accesses of a pass to memory that existed before it.
struct Watched {
    launches: u64,
    /// Bytes that it reads of this memory.
    read: u64,
}

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

    /// Returns the bytes of each benchmark of an operation: its sample's name and the first input's first size, forward, backward.
    fn bytes(op: &str) -> BTreeMap<(String, usize), [u64; 2]> {
        // Nothing is computed: launches report what they read.
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
        // y and dy; dy only; x and dy; and dx.
        assert_eq!(
            [of("exp"), of("mul_scalar"), of("silu")],
            [[2 * n, 3 * n], [2 * n, 2 * n], [2 * n, 3 * n]]
        );
        // 8192 rows of 768 are read of the table's 50304; its gradient is written completely.
        let [forward, backward] = bytes("embedding::Embedding")[&(String::new(), 50_304)];
        let (ids, rows, table) = (8192 * 4, 8192 * 768 * 4, 50_304 * 768 * 4);
        assert_eq!([forward, backward], [ids + 2 * rows, ids + rows + table]);
    }
}
