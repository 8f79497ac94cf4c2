//! Graphs of operations: the computation of a function, as a value that can be displayed, saved and run elsewhere.
//!
//! ```text
//! OpGraph::of(inputs, f)          runs f and records its operations by name, with attributes, shapes and weights
//! OpGraph::for_any_rows(…)        like OpGraph::of, for any number of rows, the first axis of the inputs
//! graph.save(path)                one safetensors file; OpGraph::load(path, device) reads it, on any device
//! graph.run(&[&x])                kernels are chosen on this device, captured once, and replayed
//! println!("{graph}")             shows the graph; so do to_dot, to_svg, memory and json
//! ```
//!
//! A [`Graph`](crate::graph::Graph) records commands of one device; an `OpGraph` records operations, which every device supports.

mod capture;
mod file;
mod json;
mod memory;
mod merge;
mod observed;
mod picture;
mod rows;
mod run;
mod show;
pub mod spec;
mod weights;

use crate::ops::observe;
use crate::{Device, Error, Result, Tensor, counted};
use capture::{Captured, Function, capture};
pub use file::SCHEMA;
pub use memory::Memory;
pub use observed::{Observation, Observed, ObservedOp, Source};
use run::Runner;
use spec::Spec;
use std::path::Path;
use weights::GraphWeights;

/// Numbers of rows with which a graph for any number of rows is recorded. Everything that differs must be a multiple of the rows. They are
/// primes, so that few sizes of a model are multiples of them.
const RECORDED: [usize; 2] = [5, 7];

/// Default number of rows per run: the next power of two, up to this maximum.
const MAX_ROWS: usize = 256;

/// The computation of a function, as operations.
///
/// ```
/// use netcl_tensor::opgraph::OpGraph;
/// use netcl_tensor::{DType, Device, Settings, Tensor};
/// # fn main() -> netcl_tensor::Result<()> {
/// let device = Device::open("sim", &Settings::default())?;
/// let w = Tensor::from_f32(&device, [2, 3], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], DType::F32)?.parameter("map.weight");
/// let x = Tensor::zeros(&device, [1, 2], DType::F32)?;
/// let graph = OpGraph::for_any_rows(&[("x", &x)], |x| Ok(vec![x[0].matmul(&w)?.relu()?]))?;
/// println!("{graph}");
/// let x = Tensor::from_f32(&device, [2, 2], &[1.0, 2.0, -3.0, 1.0], DType::F32)?;
/// assert_eq!(graph.run(&[&x])?[0].to_vec()?, [3.0, 2.0, 2.0, 0.0, 1.0, 1.0]);
/// # Ok(())
/// # }
/// ```
pub struct OpGraph {
    device: Device,
    spec: Spec,
    weights: GraphWeights,
    runner: Runner,
    /// Numbers of rows for which it is computed, in order. If empty, powers of two are used.
    buckets: Vec<usize>,
}

/// A named layer, for [`OpGraph::from_layers`].
pub type NamedLayer<'a> = (&'a str, &'a dyn Fn(&Tensor) -> Result<Tensor>);

impl OpGraph {
    /// Records what `f` computes from the named `inputs`. `f` runs a few times, without gradients. Other tensors that `f` reads become the
    /// graph's weights with their current values. A tensor that [`Tensor::parameter`] named keeps its name.
    ///
    /// # Errors
    /// Errors of `f`; `Unsupported` with the operation or kernel if `f` computes something that is not an operation with a name, reads
    /// results on the host, or overwrites memory.
    pub fn of(inputs: &[(&str, &Tensor)], f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>) -> Result<Self> {
        let device = device_of(inputs)?;
        let Captured { spec, weights } = capture(&device, inputs, &f)?;
        spec.check()?;
        Ok(Self::new(device, spec, &weights))
    }

    /// Like [`of`](Self::of), for any number of rows, the first axis of every input. `f` is recorded with 5 and 7 rows, which repeat those
    /// of `inputs`. A run computes the next power of two, unless [`with_buckets`](Self::with_buckets) sets other numbers, and cuts off the
    /// additional rows.
    ///
    /// # Errors
    /// Errors of [`of`](Self::of); `Unsupported` with the operation that mixes rows, or if the computation depends on the number of rows.
    pub fn for_any_rows(
        inputs: &[(&str, &Tensor)],
        f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    ) -> Result<Self> {
        let device = device_of(inputs)?;
        let at = |rows: usize| with_rows(&device, inputs, rows, &f);
        let (first, second) = (at(RECORDED[0])?, at(RECORDED[1])?);
        let spec = merge::merge(&first.spec, &second.spec)?;
        for (info, (one, other)) in spec.weights.iter().zip(first.weights.iter().zip(&second.weights)) {
            if one.to_bytes()? != other.to_bytes()? {
                return Err(Error::unsupported(format!(
                    "{} with {} rows differs from that with {}: a graph for any number of rows cannot contain it",
                    info.name, RECORDED[0], RECORDED[1]
                )));
            }
        }
        rows::check(&spec)?;
        spec.check()?;
        Ok(Self::new(device, spec, &first.weights))
    }

    /// Records named layers in sequence, for any number of rows of `x`.
    ///
    /// # Errors
    /// Errors of [`for_any_rows`](Self::for_any_rows).
    pub fn from_layers(x: &Tensor, layers: &[NamedLayer<'_>]) -> Result<Self> {
        Self::for_any_rows(&[("x", x)], |x| {
            let first = x
                .first()
                .cloned()
                .ok_or_else(|| Error::internal("a graph of layers does not have an input"))?;
            let y =
                layers.iter().try_fold(first, |x, (name, layer)| observe::in_layer(name, || layer(&x)))?;
            Ok(vec![y])
        })
    }

    /// Loads a graph from a file for a device. Weights are read at the first run.
    ///
    /// # Errors
    /// `Io`; `Format` with the error and its position in the file: a newer schema, or a graph or weight that differs from what was saved.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Self> {
        let (spec, weights) = file::open(path.as_ref())?;
        if spec.any_rows {
            rows::check(&spec).map_err(|e| e.context(path.as_ref().display()))?;
        }
        Ok(Self { device: device.clone(), spec, weights, runner: Runner::default(), buckets: Vec::new() })
    }

    /// Writes the graph to one safetensors file.
    ///
    /// # Errors
    /// `Io`, and errors of reading the weights.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        file::save(path.as_ref(), &self.spec, &self.weights)
    }

    fn new(device: Device, spec: Spec, weights: &[Tensor]) -> Self {
        let weights = GraphWeights::here(&spec.weights, weights);
        Self { device, spec, weights, runner: Runner::default(), buckets: Vec::new() }
    }

    /// Sets the numbers of rows to compute: the smallest that suffices is used, and the largest is repeated for more rows.
    ///
    /// # Errors
    /// `Unsupported` if the number of rows is fixed; `Format` if no number is above 0.
    pub fn with_buckets(mut self, rows: &[usize]) -> Result<Self> {
        if !self.spec.any_rows {
            return Err(Error::unsupported("buckets: the graph was recorded for a fixed number of rows"));
        }
        let mut rows = rows.to_vec();
        rows.sort_unstable();
        rows.dedup();
        if rows.first().is_none_or(|n| *n == 0) {
            return Err(Error::format(format!("buckets {rows:?}: expected numbers of rows above 0")));
        }
        self.buckets = rows;
        Ok(self)
    }

    /// Returns its description.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }
    /// Returns the device of the graph.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Computes the results for inputs in their order, off the tape. The first run for each number of rows chooses kernels and plans
    /// memory; later runs replay.
    ///
    /// # Errors
    /// `Shape`, `DType` or `Device` with the input that does not match; errors of the operations, with their numbers.
    pub fn run(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let rows = self.rows_of(inputs)?;
        let owned: Vec<Tensor> = inputs.iter().map(|x| x.detach()).collect();
        let parts = (&self.spec, &self.weights);
        if !self.spec.any_rows {
            return self.runner.run(&self.device, parts, &owned, (self.spec.rows, self.spec.rows));
        }
        let most = self.most();
        if rows <= most {
            return self.runner.run(&self.device, parts, &owned, (rows, self.bucket(rows)));
        }
        let mut pieces: Vec<Vec<Tensor>> = Vec::new();
        for start in (0..rows).step_by(most) {
            let end = (start + most).min(rows);
            let cut = owned.iter().map(|x| crate::no_grad(|| x.slice(0, start..end)));
            let cut = cut.collect::<Result<Vec<_>>>()?;
            pieces.push(self.runner.run(
                &self.device,
                parts,
                &cut,
                (end - start, self.bucket(end - start)),
            )?);
        }
        let joined = |i: usize| {
            let parts: Vec<&Tensor> = pieces.iter().filter_map(|piece| piece.get(i)).collect();
            crate::no_grad(|| crate::ops::join::cat(&parts, 0))
        };
        (0..self.spec.outputs.len()).map(joined).collect()
    }

    /// Returns the maximum number of rows per run.
    fn most(&self) -> usize {
        self.buckets.last().copied().unwrap_or(MAX_ROWS)
    }

    /// Returns the number of rows that a run for `rows` rows computes, at most the maximum per run.
    pub fn bucket(&self, rows: usize) -> usize {
        let rows = rows.min(self.most());
        let known = self.buckets.iter().copied().find(|bucket| *bucket >= rows);
        known.unwrap_or_else(|| rows.max(1).next_power_of_two())
    }

    /// Returns the number of rows of the inputs, whose shapes must match the graph.
    fn rows_of(&self, inputs: &[&Tensor]) -> Result<usize> {
        let expected = &self.spec.inputs;
        if inputs.len() != expected.len() {
            let names: Vec<&str> = expected.iter().map(|i| i.name.as_str()).collect();
            return Err(Error::shape(format!(
                "graph: {} given, expected {}: {}",
                counted(inputs.len(), "input"),
                expected.len(),
                names.join(", ")
            )));
        }
        let mut rows = None;
        for (x, input) in inputs.iter().zip(expected) {
            let (name, form) = (&input.name, &input.form);
            if !x.device().same(&self.device) {
                return Err(Error::device(format!(
                    "graph: input {name} is on {}, but the graph is on {}",
                    x.device().capabilities().id,
                    self.device.capabilities().id
                )));
            }
            let per = match form.sizes.first() {
                Some(spec::Size::Rows(k)) => usize::try_from(*k).unwrap_or(usize::MAX).max(1),
                _ => 0,
            };
            let own = x.dims().first().filter(|_| per > 0).map(|n| n / per);
            let at = own.or(rows).unwrap_or(self.spec.rows);
            if x.dtype() != form.dtype
                || x.dims() != form.dims(at)?
                || rows.is_some_and(|known| own.is_some_and(|n| n != known))
            {
                return Err(Error::shape(format!(
                    "graph: input {name} is {} {:?}, expected {form}",
                    x.dtype(),
                    x.dims()
                )));
            }
            rows = own.or(rows);
        }
        Ok(rows.unwrap_or(self.spec.rows))
    }
}

/// Reads the description from a file, without a device and without weights.
///
/// # Errors
/// Errors of [`OpGraph::load`].
pub fn read_spec(path: impl AsRef<Path>) -> Result<Spec> {
    let (spec, _) = file::open(path.as_ref())?;
    Ok(spec)
}

fn device_of(inputs: &[(&str, &Tensor)]) -> Result<Device> {
    let Some((_, first)) = inputs.first() else {
        return Err(Error::shape("a graph of operations needs at least one input"));
    };
    let tensors: Vec<&Tensor> = inputs.iter().map(|(_, x)| *x).collect();
    crate::ops::check::one_device("graph", &tensors)?;
    Ok(first.device().clone())
}

/// Records `f` with `rows` rows, which repeat those of the inputs.
fn with_rows(device: &Device, inputs: &[(&str, &Tensor)], rows: usize, f: &Function<'_>) -> Result<Captured> {
    let repeated = |(name, x): &(&str, &Tensor)| {
        let (n, bytes) = (x.dims().first().copied().unwrap_or(0), x.to_bytes()?);
        if n == 0 || bytes.is_empty() {
            return Err(Error::shape(format!(
                "input {name} of shape {} does not have rows, expected at least one for the recording",
                x.shape()
            )));
        }
        let row: Vec<&[u8]> = bytes.chunks(bytes.len() / n).collect();
        let data: Vec<u8> = (0..rows).flat_map(|i| row[i % n].iter().copied()).collect();
        let mut dims = x.dims().to_vec();
        dims[0] = rows;
        Tensor::from_bytes(device, dims, &data, x.dtype())
    };
    let xs = inputs.iter().map(repeated).collect::<Result<Vec<_>>>()?;
    let named: Vec<(&str, &Tensor)> = inputs.iter().zip(&xs).map(|((name, _), x)| (*name, x)).collect();
    capture(device, &named, f)
}
