//! Accuracy of an op, compared with its f64 reference on inputs of realistic size, and a check of its gradients.
//!
//! References are slow. If the benchmark's inputs are too large, all sizes are reduced until they fit; equal sizes stay equal.

use super::case::{STEP, device_inputs, forward_backward};
use super::sample::{Layouts, SampleInput, over};
use super::subject::Trial;
use crate::array::Array;
use crate::{DType, Device, Error, Result, Tensor, tape};
use std::cell::OnceCell;

/// Total number of input elements that a reference processes in about a second.
pub const MAX_REFERENCE_ELEMENTS: usize = 1 << 20;
/// Number of random directions in which gradients are compared.
const DIRECTIONS: u64 = 2;
/// Factor by which a size is reduced at a time. `MIN_SIZE` is the minimum size.
const SHRINK: usize = 16;
const MIN_SIZE: usize = 48;

/// Results of an op and of its reference.
pub struct Accuracy {
    /// Inputs of the op, rounded as the device stores them.
    pub inputs: Vec<Array>,
    /// Results of the reference.
    pub expected: Vec<Array>,
    /// Results of the device.
    pub got: Vec<Vec<f32>>,
    /// Allowed difference, as a share of the largest expected value.
    pub allowed: f64,
}

/// Gradients of an op, for comparison with a peer's f64 gradients.
pub struct ReferenceGradients {
    /// Inputs of the op, rounded as the device stores them.
    pub inputs: Vec<Array>,
    /// Gradient of the only result, rounded likewise.
    pub dy: Array,
    /// Gradients of the inputs that have one, in order.
    pub got: Vec<Vec<f32>>,
}

/// Errors of a result, relative to the root mean square of the expected values (or to 1 if all are 0).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Largest error.
    pub max: f64,
    /// Root mean square error.
    pub rms: f64,
}

impl Errors {
    /// Computes the errors of `got`. They are infinite if the length differs or an element is unexpectedly NaN.
    pub fn of(got: &[f32], expected: &[f64]) -> Self {
        if got.len() != expected.len() {
            return Self { max: f64::INFINITY, rms: f64::INFINITY };
        }
        let n = expected.len().max(1) as f64;
        let finite = expected.iter().filter(|e| e.is_finite());
        let scale = (finite.map(|e| e * e).sum::<f64>() / n).sqrt();
        let scale = if scale > 0.0 { scale } else { 1.0 };
        let (mut max, mut squares) = (0.0f64, 0.0);
        for (g, e) in got.iter().zip(expected) {
            let g = f64::from(*g);
            let same = g == *e || g.is_nan() && e.is_nan();
            let error = if same { 0.0 } else { (g - e).abs() / scale };
            let error = if error.is_nan() { f64::INFINITY } else { error };
            max = max.max(error);
            squares += error * error;
        }
        Self { max, rms: (squares / n).sqrt() }
    }
}

impl Accuracy {
    /// Checks that all elements are within the allowed difference.
    ///
    /// # Errors
    /// `Internal` with the first element that is not.
    pub fn verify(&self) -> Result<()> {
        for (got, expected) in self.got.iter().zip(&self.expected) {
            let finite = expected.data.iter().filter(|e| e.is_finite());
            let scale = finite.fold(1.0f64, |m, e| m.max(e.abs()));
            let bound = self.allowed * scale;
            let wrong = |(g, e): (&f32, &f64)| {
                let g = f64::from(*g);
                let near = g == *e || g.is_nan() && e.is_nan() || (g - e).abs() <= bound;
                !near
            };
            if got.len() != expected.data.len() {
                return Err(Error::internal(format!(
                    "{} elements, expected {}",
                    got.len(),
                    expected.data.len()
                )));
            }
            if let Some(i) = got.iter().zip(&expected.data).position(wrong) {
                return Err(Error::internal(format!(
                    "element {i} of {} is {}, expected {}; allowed difference {bound:.2e}",
                    expected.shape, got[i], expected.data[i]
                )));
            }
        }
        Ok(())
    }
}

/// Returns the sample with inputs of the benchmark's sizes, or smaller ones with at most `limit` elements.
pub(super) fn benchmark_sized(sample: &Trial, shapes: &[Vec<usize>], limit: usize) -> Trial {
    let mut out = sample.clone();
    out.inputs = sized(&sample.inputs, shapes, limit);
    out.facts.tolerance *= growth(&sample.inputs, &out.inputs);
    out
}

/// Returns the factor of the allowed difference from inputs of one size to another. Sums grow with the sizes, and their rounding errors with the
/// square root of the sizes.
fn growth(from: &[SampleInput], to: &[SampleInput]) -> f64 {
    (widest(to) as f64 / widest(from) as f64).sqrt().max(1.0)
}

fn widest(inputs: &[SampleInput]) -> usize {
    inputs.iter().flat_map(|i| i.shape().dims().iter().copied()).max().unwrap_or(1).max(1)
}

/// Returns the inputs at these sizes, or at smaller ones of at most `limit` elements.
fn sized(inputs: &[SampleInput], shapes: &[Vec<usize>], limit: usize) -> Vec<SampleInput> {
    let mut shapes = shapes.to_vec();
    let total = |shapes: &[Vec<usize>]| shapes.iter().map(|s| s.iter().product::<usize>()).sum::<usize>();
    while total(&shapes) > limit {
        // Rows are reduced first, because widths determine which kernels run.
        let rows = shapes.iter().flat_map(|s| s.split_last().map_or(&[][..], |(_, rest)| rest));
        let all = shapes.iter().flatten();
        let largest = rows.copied().max().filter(|n| *n > MIN_SIZE).or_else(|| all.copied().max());
        let Some(size) = largest.filter(|n| *n > MIN_SIZE) else { break };
        let smaller = (size / SHRINK).max(MIN_SIZE);
        shapes.iter_mut().flatten().filter(|n| **n == size).for_each(|n| *n = smaller);
    }
    over(inputs, &shapes)
}

/// Runs the op and its reference.
pub(super) fn accuracy(device: &Device, dtype: DType, sample: &Trial, seed: u64) -> Result<Accuracy> {
    let hosts = sample.draw(seed, dtype);
    let inputs = device_inputs(device, dtype, sample, &hosts, Layouts::Contiguous)?;
    let ys = tape::no_grad(|| sample.op.apply(&inputs))?;
    let got = ys.iter().map(|y| y.to_vec()).collect::<Result<_>>()?;
    let expected = sample.op.reference(&hosts.iter().collect::<Vec<_>>());
    let allowed = sample.facts.unit(dtype) * sample.facts.tolerance;
    Ok(Accuracy { inputs: hosts, expected, got, allowed })
}

/// Computes the gradients of all inputs that have one; `None` for an op of several results.
pub(super) fn gradients_of(
    device: &Device,
    dtype: DType,
    sample: &Trial,
    seed: u64,
) -> Result<Option<ReferenceGradients>> {
    let hosts = sample.draw(seed, dtype);
    let inputs = device_inputs(device, dtype, sample, &hosts, Layouts::Contiguous)?;
    let dys = OnceCell::new();
    let (_, grads, dys) = forward_backward(sample, &inputs, seed, &dys)?;
    let got = grads.iter().flatten().map(Tensor::to_vec).collect::<Result<Vec<_>>>()?;
    let [dy] = dys else { return Ok(None) };
    Ok((!got.is_empty()).then(|| ReferenceGradients { inputs: hosts, dy: dy.clone(), got }))
}

/// Compares every gradient with the reference's slope in a few random directions.
///
/// If g is the gradient and v has entries 1 and -1, `g·v` is the slope of the reference along v, which two evaluations give. Rounding
/// changes it by a few units of |g|. If a share of the gradient's elements is wrong, it changes by about the square root of that share.
///
/// # Errors
/// `Internal` if a gradient differs.
pub(super) fn gradients(device: &Device, dtype: DType, sample: &Trial, seed: u64) -> Result<()> {
    let hosts = sample.draw(seed, dtype);
    let inputs = device_inputs(device, dtype, sample, &hosts, Layouts::Contiguous)?;
    let dys = OnceCell::new();
    let (_, grads, dys) = forward_backward(sample, &inputs, seed, &dys)?;
    for (i, grad) in grads.iter().enumerate() {
        let Some(grad) = grad else { continue };
        let grad = grad.to_vec()?;
        let length = grad.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        for direction in 0..DIRECTIONS {
            let sign = |k: usize| {
                let mixed = (k as u64 + 1 + (direction << 40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                if mixed >> 63 == 0 { 1.0 } else { -1.0 }
            };
            let value = |h: f64| {
                let mut moved = hosts.clone();
                moved[i].data.iter_mut().enumerate().for_each(|(k, x)| *x += h * sign(k));
                let ys = sample.op.reference(&moved.iter().collect::<Vec<_>>());
                let pairs = ys.iter().zip(dys).flat_map(|(y, dy)| y.data.iter().zip(&dy.data));
                pairs.map(|(a, b)| a * b).sum::<f64>()
            };
            let h = STEP / 10.0;
            let slope = (value(h) - value(-h)) / (2.0 * h);
            let along: f64 = grad.iter().enumerate().map(|(k, g)| f64::from(*g) * sign(k)).sum();
            let bound = (16.0 * sample.facts.unit(dtype) + 1e-3) * length.max(slope.abs()) + 1e-6;
            // The comparison is written so that NaN fails.
            let near = (along - slope).abs() <= bound;
            if !near {
                return Err(Error::internal(format!(
                    "gradient {i} of shape {}: {along:.4e} along a direction in which the reference's slope is {slope:.4e}; allowed \
                     difference {bound:.2e}",
                    hosts[i].shape
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::SampleInput;

    #[test]
    fn errors_are_shares_of_what_was_expected() {
        let e = Errors::of(&[2.0, 2.0, 2.0, 3.0], &[2.0, 2.0, 2.0, 2.0]);
        assert_eq!(e, Errors { max: 0.5, rms: 0.25 });
        assert_eq!(Errors::of(&[0.0], &[0.0]), Errors { max: 0.0, rms: 0.0 });
        assert_eq!(Errors::of(&[f32::NAN], &[1.0]).max, f64::INFINITY);
        assert_eq!(Errors::of(&[], &[1.0]).rms, f64::INFINITY);
        assert_eq!(Errors::of(&[f32::NAN, 1.0], &[f64::NAN, 1.0]).max, 0.0);
    }

    #[test]
    fn sizes_shrink_alike_and_rows_first() {
        let inputs = [SampleInput::normal(&[2, 8]), SampleInput::normal(&[8])];
        let dims = |shapes: &[Vec<usize>]| -> Vec<Vec<usize>> {
            let sized = sized(&inputs, shapes, MAX_REFERENCE_ELEMENTS);
            sized.iter().map(|i| i.shape().dims().to_vec()).collect()
        };
        assert_eq!(dims(&[vec![16_384, 768], vec![768]]), [vec![1024, 768], vec![768]]);
        assert_eq!(dims(&[vec![2304, 2304], vec![2304, 2304]]), [[144, 144], [144, 144]]);
        assert_eq!(dims(&[vec![4, 8], vec![8]]), [vec![4, 8], vec![8]]);
        let larger = |shapes: &[Vec<usize>]| growth(&inputs, &over(&inputs, shapes));
        assert_eq!(
            (larger(&[vec![1024, 800], vec![800]]), larger(&[vec![4, 8], vec![8]])),
            (128f64.sqrt(), 1.0)
        );
    }
}
