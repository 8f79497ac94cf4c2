//! Graphs of operations: what a function computes, as a value that is shown, saved and run elsewhere.
//!
//! ```text
//! OpGraph::of(inputs, f)          runs f and notes its operations by name, with their attributes, shapes and weights
//! OpGraph::for_any_rows(…)        the same for any number of rows, the first axis of the inputs
//! graph.save(path)                one safetensors file; OpGraph::load(path, device) reads it, on any device
//! graph.run(&[&x])                kernels are chosen on this device, captured once, and replayed
//! println!("{graph}")             to_dot, to_svg, memory and json show it otherwise
//! ```
//!
//! A [`Graph`](crate::graph::Graph) has commands of one device; this has operations, which every device has.

mod capture;
mod file;
mod json;
mod memory;
mod merge;
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
use run::Runner;
use spec::Spec;
use std::path::Path;
use weights::Weights;

/// Rows that a graph for any number of them is recorded with: what differs between both is a multiple of the rows. Primes, so that few
/// sizes of a model are multiples of them.
const RECORDED: [usize; 2] = [5, 7];

/// Rows that a graph is computed for: the next power of two, up to this many at once.
const MOST_ROWS: usize = 256;

/// What a function computes, as operations.
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
    weights: Weights,
    runner: Runner,
    /// Numbers of rows that it is computed for, in order; powers of two where there are none.
    buckets: Vec<usize>,
}

/// A layer by name, for [`OpGraph::from_layers`].
pub type Layer<'a> = (&'a str, &'a dyn Fn(&Tensor) -> Result<Tensor>);

impl OpGraph {
    /// Notes what `f` computes of `inputs`, which have names for those who look at it. It runs a few times, without gradients. Tensors that `f`
    /// reads besides are the graph's weights, as they are now; one that [`Tensor::parameter`] named keeps its name.
    ///
    /// # Errors
    /// Those of `f`; `Unsupported` with the operation or kernel where `f` does what no operation that can be called by name does, reads results on
    /// the host, or overwrites memory.
    pub fn of(inputs: &[(&str, &Tensor)], f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>) -> Result<Self> {
        let device = device_of(inputs)?;
        let Captured { spec, weights } = capture(&device, inputs, &f)?;
        spec.check()?;
        Ok(Self::new(device, spec, &weights))
    }

    /// The same for any number of rows, the first axis of every input: `f` is noted with 5 and 7 rows, repeated from those of `inputs`. It is then
    /// computed for the next power of two ([`with_buckets`](Self::with_buckets) says otherwise), and what further rows give is cut off.
    ///
    /// # Errors
    /// As [`of`](Self::of); `Unsupported` with the operation that mixes rows, and where something else is computed for another number of rows.
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
                    "{} is another one with {} rows than with {}: a graph for any number of rows cannot hold it",
                    info.name, RECORDED[0], RECORDED[1]
                )));
            }
        }
        rows::check(&spec)?;
        spec.check()?;
        Ok(Self::new(device, spec, &first.weights))
    }

    /// Layers one after the other, each with a name, for any number of rows of x.
    ///
    /// # Errors
    /// As [`for_any_rows`](Self::for_any_rows).
    pub fn from_layers(x: &Tensor, layers: &[Layer<'_>]) -> Result<Self> {
        Self::for_any_rows(&[("x", x)], |x| {
            let first = x.first().cloned().ok_or_else(|| Error::internal("a graph without an input"))?;
            let y =
                layers.iter().try_fold(first, |x, (name, layer)| observe::in_layer(name, || layer(&x)))?;
            Ok(vec![y])
        })
    }

    /// What a file holds, for a device. Weights are read when it is first run.
    ///
    /// # Errors
    /// `Io`; `Format` that names what is wrong with the file and where: a newer schema, a graph or a weight that is not what was saved.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Self> {
        let (spec, weights) = file::open(path.as_ref())?;
        if spec.any_rows {
            rows::check(&spec).map_err(|e| e.context(path.as_ref().display()))?;
        }
        Ok(Self { device: device.clone(), spec, weights, runner: Runner::default(), buckets: Vec::new() })
    }

    /// Writes it into one safetensors file.
    ///
    /// # Errors
    /// `Io`; of reading the weights.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        file::save(path.as_ref(), &self.spec, &self.weights)
    }

    fn new(device: Device, spec: Spec, weights: &[Tensor]) -> Self {
        let weights = Weights::here(&spec.weights, weights);
        Self { device, spec, weights, runner: Runner::default(), buckets: Vec::new() }
    }

    /// Computes for these numbers of rows: the smallest that is enough, the largest several times for more rows.
    ///
    /// # Errors
    /// `Unsupported` where the rows are fixed; `Format` without a number above 0.
    pub fn with_buckets(mut self, rows: &[usize]) -> Result<Self> {
        if !self.spec.any_rows {
            return Err(Error::unsupported("buckets: the graph was recorded for one number of rows alone"));
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

    /// Its description.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }
    /// The device it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Results for inputs in their order, off the tape. The first run with a number of rows chooses kernels and plans memory; others replay that.
    ///
    /// # Errors
    /// `Shape`, `DType` or `Device` with the input that does not fit; of the operations, with their numbers.
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

    /// Rows that a run takes at once.
    fn most(&self) -> usize {
        self.buckets.last().copied().unwrap_or(MOST_ROWS)
    }

    /// The number of rows that so many are computed as; of more than a run takes at once, the most that it takes.
    pub fn bucket(&self, rows: usize) -> usize {
        let rows = rows.min(self.most());
        let known = self.buckets.iter().copied().find(|bucket| *bucket >= rows);
        known.unwrap_or_else(|| rows.max(1).next_power_of_two())
    }

    /// Rows of the inputs, which have the shapes that the graph says.
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
                    "graph: input {name} is on {}, and the graph on {}",
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

/// The description in a file, without a device: weights are not read.
///
/// # Errors
/// As [`OpGraph::load`].
pub fn read_spec(path: impl AsRef<Path>) -> Result<Spec> {
    let (spec, _) = file::open(path.as_ref())?;
    Ok(spec)
}

fn device_of(inputs: &[(&str, &Tensor)]) -> Result<Device> {
    let Some((_, first)) = inputs.first() else {
        return Err(Error::shape("a graph of operations without an input"));
    };
    let tensors: Vec<&Tensor> = inputs.iter().map(|(_, x)| *x).collect();
    crate::ops::check::one_device("graph", &tensors)?;
    Ok(first.device().clone())
}

/// Notes `f` with so many rows, those of the inputs over and over.
fn with_rows(device: &Device, inputs: &[(&str, &Tensor)], rows: usize, f: &Function<'_>) -> Result<Captured> {
    let repeated = |(name, x): &(&str, &Tensor)| {
        let (n, bytes) = (x.dims().first().copied().unwrap_or(0), x.to_bytes()?);
        if n == 0 || bytes.is_empty() {
            return Err(Error::shape(format!(
                "input {name} of shape {}, expected rows to record with",
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
