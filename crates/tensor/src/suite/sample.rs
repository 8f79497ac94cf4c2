//! Samples: an op with test inputs, and the memory layouts of inputs.

use crate::array::Array;
use crate::shape::Shape;
use crate::{DType, Device, Error, Result, Tensor};
use netcl_device::draw::Draw as Stream;

/// Distribution of an input's elements.
#[derive(Clone, Debug)]
enum Draw {
    /// Normal around a mean, standard deviation 1.
    Normal(f64),
    /// Uniform between two bounds.
    Uniform(f64, f64),
    /// Elements that all differ by enough for a central difference.
    Distinct,
    /// Integers below a bound.
    Indices(u32),
    /// Given values, repeated.
    Values(Vec<f64>),
}

/// One input of a sample.
#[derive(Clone, Debug)]
pub struct SampleInput {
    shape: Shape,
    draw: Draw,
    dtype: Option<DType>,
}

impl SampleInput {
    /// Creates a standard normal input.
    pub fn normal(shape: &[usize]) -> Self {
        Self { shape: shape.into(), draw: Draw::Normal(0.0), dtype: None }
    }
    /// Creates a normal input with this mean.
    pub fn shifted(shape: &[usize], mean: f64) -> Self {
        Self { shape: shape.into(), draw: Draw::Normal(mean), dtype: None }
    }
    /// Creates a uniform input in `[low, high)`.
    pub fn uniform(shape: &[usize], low: f64, high: f64) -> Self {
        Self { shape: shape.into(), draw: Draw::Uniform(low, high), dtype: None }
    }
    /// Creates an input whose elements all differ clearly, for maxima and ranks.
    pub fn distinct(shape: &[usize]) -> Self {
        Self { shape: shape.into(), draw: Draw::Distinct, dtype: None }
    }
    /// Creates an input of integers below `bound`, as u32.
    pub fn indices(shape: &[usize], bound: u32) -> Self {
        Self { shape: shape.into(), draw: Draw::Indices(bound), dtype: Some(DType::U32) }
    }
    /// Creates an input that repeats these values. If `dtype` is given, the input is not differentiable.
    pub fn values(shape: &[usize], values: &[f64], dtype: Option<DType>) -> Self {
        Self { shape: shape.into(), draw: Draw::Values(values.to_vec()), dtype }
    }
    /// Returns the shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }
    /// Returns an input with the same distribution and another shape.
    #[must_use]
    pub fn reshaped(&self, shape: &[usize]) -> Self {
        Self { shape: shape.into(), ..self.clone() }
    }
    /// Returns the storage type, if floats are stored as `float`.
    pub fn dtype(&self, float: DType) -> DType {
        self.dtype.unwrap_or(float)
    }
    /// Returns whether gradients flow to it.
    pub fn differentiable(&self) -> bool {
        self.dtype.is_none()
    }
    /// Draws the elements, rounded as the device will store them.
    pub fn draw(&self, seed: u64, float: DType) -> Array {
        let mut stream = Stream::from_state(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03);
        let mut uniform = move || stream.unit();
        let n = self.shape.count();
        let dtype = self.dtype(float);
        Array::from_fn(self.shape.clone(), |i| {
            let value = match &self.draw {
                Draw::Normal(mean) => {
                    mean + (-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
                }
                Draw::Uniform(low, high) => low + (high - low) * uniform(),
                // A fixed permutation of evenly spaced values: the odd step is coprime to n.
                Draw::Distinct => ((i * (2 * (n / 3) + 1)) % n.max(1)) as f64 * 0.125 - 4.0,
                Draw::Indices(bound) => (uniform() * f64::from(*bound)).floor(),
                Draw::Values(values) => values[i % values.len()],
            };
            dtype.round(value)
        })
    }
}

/// Step of central differences.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DifferenceStep {
    /// 1e-5 of the element's magnitude, or of this value if the magnitude is smaller.
    Least(f64),
    /// A fixed step.
    Fixed(f64),
}

/// An op with its test inputs.
#[derive(Clone)]
pub struct Sample<O, const N: usize> {
    pub(crate) op: O,
    pub(crate) inputs: [SampleInput; N],
    pub(super) facts: Facts,
}

/// A sample without op and inputs.
#[derive(Clone)]
pub(super) struct Facts {
    pub name: &'static str,
    /// Allowed difference in units of the storage type's epsilon.
    pub tolerance: f64,
    pub only: Option<DType>,
    pub coarsest: Option<DType>,
    pub light: bool,
    /// Whether the inputs are far from typical values.
    pub extreme: bool,
    /// Whether each element is compared relative to its own magnitude.
    pub pointwise: bool,
    pub step: DifferenceStep,
    pub in_order: bool,
    pub bench: Vec<Vec<Vec<usize>>>,
    /// The input whose rows are read, and the input with the row indices.
    pub gathers: Option<(usize, usize)>,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            name: "",
            tolerance: 8.0,
            only: None,
            coarsest: None,
            light: false,
            extreme: false,
            pointwise: false,
            step: DifferenceStep::Least(1.0),
            in_order: false,
            bench: Vec::new(),
            gathers: None,
        }
    }
}

impl Facts {
    /// Returns the benchmark shapes.
    ///
    /// # Errors
    /// `Internal` if there is not one shape per input.
    pub fn bench_shapes(&self, op: &str, inputs: usize) -> Result<&[Vec<Vec<usize>>]> {
        match self.bench.iter().find(|shapes| shapes.len() != inputs) {
            Some(shapes) => Err(Error::internal(format!(
                "{op} {}: the benchmark has shapes for {} inputs, {shapes:?}; expected {inputs}, one for each",
                self.name,
                shapes.len()
            ))),
            None => Ok(&self.bench),
        }
    }

    pub fn unit(&self, dtype: DType) -> f64 {
        self.coarsest.map_or(dtype.epsilon(), |c| c.epsilon().max(dtype.epsilon()))
    }
}

/// Returns the inputs with these shapes. Integers below the size of another input's axis are below its new size there.
pub(super) fn over(inputs: &[SampleInput], shapes: &[Vec<usize>]) -> Vec<SampleInput> {
    let reshaped = |i: usize| {
        let mut input = inputs[i].reshaped(&shapes[i]);
        if let Draw::Indices(bound) = &mut input.draw {
            let others = (0..inputs.len()).filter(|j| *j != i);
            let mut axes = others.flat_map(|j| inputs[j].shape.dims().iter().zip(&shapes[j]));
            if let Some((_, size)) = axes.find(|(n, _)| **n == *bound as usize) {
                *bound = *size as u32;
            }
        }
        input
    };
    (0..inputs.len()).map(reshaped).collect()
}

impl<O, const N: usize> Sample<O, N> {
    /// Creates a sample with an allowed difference of 8 epsilon of the largest expected value.
    pub fn new(op: O, inputs: [SampleInput; N]) -> Self {
        Self { op, inputs, facts: Facts::default() }
    }
    /// Sets a name for messages.
    #[must_use]
    pub fn named(mut self, name: &'static str) -> Self {
        self.facts.name = name;
        self
    }
    /// Requires that the result has the input's bits.
    #[must_use]
    pub fn exact(mut self) -> Self {
        self.facts.tolerance = 0.5;
        self
    }
    /// Declares intermediate sums of `terms` terms: rounding errors grow with the square root of their number.
    #[must_use]
    pub fn sums(mut self, terms: usize) -> Self {
        self.facts.tolerance *= (terms as f64).sqrt().max(1.0);
        self
    }
    /// Multiplies the allowed difference by `factor`. Comment on the reason at each use.
    #[must_use]
    pub fn looser(mut self, factor: f64) -> Self {
        self.facts.tolerance *= factor;
        self
    }
    /// Marks extreme inputs: large, tiny, far from zero compared with their spread, or saturated. Every op has such a sample. Results that
    /// overflow the storage type must be infinite.
    #[must_use]
    pub fn extreme(mut self) -> Self {
        self.facts.extreme = true;
        if self.facts.name.is_empty() {
            self.facts.name = "extreme";
        }
        self
    }
    /// Compares each element relative to its own magnitude, at least 1, instead of the largest element. Meant for results of many
    /// magnitudes.
    #[must_use]
    pub fn pointwise(mut self) -> Self {
        self.facts.pointwise = true;
        self
    }
    /// Uses differences over `step` at any magnitude, for functions with high curvature within 1e-5.
    #[must_use]
    pub fn step(mut self, step: f64) -> Self {
        self.facts.step = DifferenceStep::Fixed(step);
        self
    }
    /// Uses differences over 1e-5 of the element at any magnitude, for functions that end at 0.
    #[must_use]
    pub fn relative_step(mut self) -> Self {
        self.facts.step = DifferenceStep::Least(0.0);
        self
    }
    /// Restricts the sample to this storage type.
    #[must_use]
    pub fn only(mut self, dtype: DType) -> Self {
        self.facts.only = Some(dtype);
        self
    }
    /// Restricts the sample to contiguous f32. Other samples of the same kernel source cover storage types and layouts. Every variant of a
    /// generated kernel takes a CPU driver about a second to compile.
    #[must_use]
    pub fn light(mut self) -> Self {
        self.facts.light = true;
        self
    }
    /// Restricts the sample to contiguous inputs, if other ops cover the layouts through the same generated kernels.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.facts.in_order = true;
        self
    }
    /// Allows for values that pass through this storage type, whatever the inputs' types are.
    #[must_use]
    pub fn as_coarse_as(mut self, dtype: DType) -> Self {
        self.facts.coarsest = Some(dtype);
        self
    }
    /// Adds shapes for benchmarks and tuning, one per input. Further calls add further sets.
    #[must_use]
    pub fn bench(mut self, shapes: &[&[usize]]) -> Self {
        self.facts.bench.push(shapes.iter().map(|s| s.to_vec()).collect());
        self
    }
    /// Declares that only the rows of input `table` that input `ids` names are read, for the byte count of the benchmark.
    #[must_use]
    pub fn gathers(mut self, table: usize, ids: usize) -> Self {
        self.facts.gathers = Some((table, ids));
        self
    }
}

/// Memory layout of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layouts {
    /// Contiguous.
    Contiguous,
    /// Axes stored in reverse.
    Transposed,
    /// A window into a larger tensor on every axis.
    Sliced,
}

impl Layouts {
    /// All layouts.
    pub const ALL: [Self; 3] = [Self::Contiguous, Self::Transposed, Self::Sliced];

    /// Uploads `host` as a tensor with its values in this layout.
    pub fn place(self, device: &Device, host: &Array, dtype: DType) -> Result<Tensor> {
        let upload = |array: &Array| match dtype {
            // f32 cannot represent all u32 values.
            DType::U32 => {
                let data: Vec<u32> = array.data.iter().map(|v| *v as u32).collect();
                Tensor::from_u32(device, array.shape.clone(), &data)
            }
            _ => {
                let data: Vec<f32> = array.data.iter().map(|v| *v as f32).collect();
                Tensor::from_f32(device, array.shape.clone(), &data, dtype)
            }
        };
        let rank = host.shape.rank();
        let reverse: Vec<usize> = (0..rank).rev().collect();
        match self {
            Self::Contiguous => upload(host),
            Self::Transposed => upload(&host.permute(&reverse))?.permute(&reverse),
            Self::Sliced => {
                let larger: Vec<usize> = host.shape.dims().iter().map(|n| n + 3).collect();
                let larger = Shape::from(larger);
                let (strides, width) = (larger.strides(), host.shape.dims().last().map_or(1, |n| *n));
                let mut padded = Array::from_fn(larger, |_| f64::NAN);
                for (row, values) in host.data.chunks(width.max(1)).enumerate() {
                    let at = crate::array::unravel(row * width, &host.shape);
                    let from = at.iter().zip(&strides).map(|(a, s)| (a + 1) * s).sum::<usize>();
                    padded.data[from..from + width].copy_from_slice(values);
                }
                let mut tensor = upload(&padded)?;
                for (axis, n) in host.shape.dims().iter().enumerate() {
                    tensor = tensor.slice(axis.cast_signed(), 1..n + 1)?;
                }
                Ok(tensor)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_of_bench_adds_shapes_and_a_wrong_number_is_an_error() {
        let sample = Sample::new((), [SampleInput::normal(&[2]), SampleInput::normal(&[2])]);
        let two = sample.clone().bench(&[&[8], &[8]]).bench(&[&[16], &[16]]);
        assert_eq!(two.facts.bench_shapes("op", 2).unwrap(), [[vec![8], vec![8]], [vec![16], vec![16]]]);
        let error = sample.named("short").bench(&[&[8]]).facts.bench_shapes("op", 2).unwrap_err();
        assert!(error.message().contains("op short: the benchmark has shapes for 1 inputs"), "{error}");
    }

    #[test]
    fn bounds_of_indices_follow_the_axes_they_are_the_size_of() {
        let inputs =
            [SampleInput::normal(&[7, 5]), SampleInput::indices(&[2, 3], 7), SampleInput::indices(&[3], 40)];
        let inputs = over(&inputs, &[vec![600, 7], vec![900], vec![1000]]);
        let largest = |i: usize| inputs[i].draw(0, DType::F32).data.into_iter().fold(0.0, f64::max);
        assert_eq!(
            inputs.iter().map(|i| i.shape().dims()).collect::<Vec<_>>(),
            [&[600, 7][..], &[900], &[1000]]
        );
        assert!((500.0..600.0).contains(&largest(1)) && (30.0..40.0).contains(&largest(2)));
    }
}
