//! Accuracy of an operation relative to its f64 reference on inputs of realistic size, and a check of its gradients.
//!
//! References are slow. If the benchmark's inputs are too large, every size is reduced until they fit; equal sizes stay equal.

use super::case::{STEP, device_inputs, forward_backward};
use super::sample::{Layouts, Sample};
use crate::array::Array;
use crate::ops::MultiOp;
use crate::{DType, Device, Error, Result, Tensor, tape};
use std::cell::OnceCell;

/// Total elements of all inputs for which a reference takes about a second.
pub const MAX_REFERENCE_ELEMENTS: usize = 1 << 20;
/// Number of random directions along which gradients are compared.
const DIRECTIONS: u64 = 2;
/// Factor by which a size is reduced at a time, down to `LEAST`.
const SHRINK: usize = 16;
const LEAST: usize = 48;

/// An operation's results and those of its reference.
pub struct Accuracy {
    /// Inputs of the operation, rounded as the device stores them.
    pub inputs: Vec<Array>,
    /// Results of the reference.
    pub expected: Vec<Array>,
    /// Results of the device.
    pub got: Vec<Vec<f32>>,
    /// Allowed difference, relative to the largest expected value.
    pub allowed: f64,
}

/// An operation's gradients, for a peer that has f64 gradients.
pub struct Gradients {
    /// Inputs of the operation, rounded as the device stores them.
    pub inputs: Vec<Array>,
    /// Gradient of the operation's only result, rounded likewise.
    pub dy: Array,
    /// Gradients of the inputs that have one, in order.
    pub got: Vec<Vec<f32>>,
}

/// Errors of a result, relative to the root mean square of the expected values (to 1 if all of these are 0).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Largest error.
    pub max: f64,
    /// Root mean square of the errors.
    pub rms: f64,
}

impl Errors {
    /// Computes the errors of `got`. They are infinite if its length is wrong, or if it is NaN where the expected value is not.
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
    /// Returns an error for the first element whose difference is too large.
    ///
    /// # Errors
    /// `Internal`.
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

/// Returns the sample with inputs of the benchmark's sizes, or smaller ones of at most `limit` elements.
pub(super) fn benchmark_sized<O: Clone, const N: usize>(
    sample: &Sample<O, N>,
    shapes: &[Vec<usize>],
    limit: usize,
) -> Sample<O, N> {
    let mut shapes = shapes.to_vec();
    let total = |shapes: &[Vec<usize>]| shapes.iter().map(|s| s.iter().product::<usize>()).sum::<usize>();
    while total(&shapes) > limit {
        // Rows first, since widths determine which kernels run.
        let rows = shapes.iter().flat_map(|s| s.split_last().map_or(&[][..], |(_, rest)| rest));
        let all = shapes.iter().flatten();
        let largest = rows.copied().max().filter(|n| *n > LEAST).or_else(|| all.copied().max());
        let Some(size) = largest.filter(|n| *n > LEAST) else { break };
        let smaller = (size / SHRINK).max(LEAST);
        shapes.iter_mut().flatten().filter(|n| **n == size).for_each(|n| *n = smaller);
    }
    let mut out = sample.clone();
    let widest = |sample: &Sample<O, N>| {
        sample.inputs.iter().flat_map(|i| i.shape().dims().to_vec()).max().unwrap_or(1).max(1)
    };
    out.inputs = sample.over(&shapes);
    // Sums grow with the sizes, and their rounding with the square root of that.
    out.tolerance *= (widest(&out) as f64 / widest(sample) as f64).sqrt().max(1.0);
    out
}

/// Computes the results, and those of the reference.
pub(super) fn accuracy<O: MultiOp<N, M>, const N: usize, const M: usize>(
    device: &Device,
    dtype: DType,
    sample: &Sample<O, N>,
    seed: u64,
) -> Result<Accuracy> {
    let hosts: [Array; N] = std::array::from_fn(|i| sample.inputs[i].draw(seed * 16 + i as u64, dtype));
    let inputs = device_inputs(device, dtype, sample, &hosts, Layouts::Contiguous)?;
    let refs = std::array::from_fn(|i| &inputs[i]);
    let ys = tape::no_grad(|| sample.op.clone().apply(refs))?;
    let got = ys.iter().map(|y| y.to_vec()).collect::<Result<_>>()?;
    let expected = sample.op.reference(std::array::from_fn(|i| &hosts[i])).into();
    let allowed = sample.unit(dtype) * sample.tolerance;
    Ok(Accuracy { inputs: hosts.into(), expected, got, allowed })
}

/// Computes the gradients of all inputs that have one; `None` for an operation with several results.
pub(super) fn gradients_of<O: MultiOp<N, M>, const N: usize, const M: usize>(
    device: &Device,
    dtype: DType,
    sample: &Sample<O, N>,
    seed: u64,
) -> Result<Option<Gradients>> {
    let hosts: [Array; N] = std::array::from_fn(|i| sample.inputs[i].draw(seed * 16 + i as u64, dtype));
    let inputs = device_inputs(device, dtype, sample, &hosts, Layouts::Contiguous)?;
    let dys = OnceCell::new();
    let (_, grads, dys) = forward_backward(sample, &inputs, seed, &dys)?;
    let got = grads.iter().flatten().map(Tensor::to_vec).collect::<Result<Vec<_>>>()?;
    let [dy] = &dys[..] else { return Ok(None) };
    Ok((!got.is_empty()).then(|| Gradients { inputs: hosts.into(), dy: dy.clone(), got }))
}

/// Compares every gradient with the reference's slope in a few random directions.
///
/// With g the gradient and v of entries 1 and -1, `g·v` is the slope of the reference along v, which two evaluations give. Rounding changes it by
/// some units of |g|. A gradient that is wrong in a fraction of its elements changes it by about the root of that fraction.
///
/// # Errors
/// `Internal` for a wrong gradient.
pub(super) fn gradients<O: MultiOp<N, M>, const N: usize, const M: usize>(
    device: &Device,
    dtype: DType,
    sample: &Sample<O, N>,
    seed: u64,
) -> Result<()> {
    let hosts: [Array; N] = std::array::from_fn(|i| sample.inputs[i].draw(seed * 16 + i as u64, dtype));
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
                let ys = sample.op.reference(std::array::from_fn(|i| &moved[i]));
                let pairs = ys.iter().zip(dys).flat_map(|(y, dy)| y.data.iter().zip(&dy.data));
                pairs.map(|(a, b)| a * b).sum::<f64>()
            };
            let h = STEP / 10.0;
            let slope = (value(h) - value(-h)) / (2.0 * h);
            let along: f64 = grad.iter().enumerate().map(|(k, g)| f64::from(*g) * sign(k)).sum();
            let bound = (16.0 * sample.unit(dtype) + 1e-3) * length.max(slope.abs()) + 1e-6;
            // `>` would accept NaN.
            let near = (along - slope).abs() <= bound;
            if !near {
                return Err(Error::internal(format!(
                    "gradient {i} of shape {}: slope {along:.4e} along a random direction, expected {slope:.4e}; allowed difference {bound:.2e}",
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
    use crate::suite::Input;

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
        let sample = Sample::new((), [Input::normal(&[2, 8]), Input::normal(&[8])]);
        let dims = |s: &Sample<(), 2>| -> Vec<Vec<usize>> {
            s.inputs.iter().map(|i| i.shape().dims().to_vec()).collect()
        };
        let norm = benchmark_sized(&sample, &[vec![16_384, 768], vec![768]], MAX_REFERENCE_ELEMENTS);
        assert_eq!(dims(&norm), [vec![1024, 768], vec![768]]);
        let product = benchmark_sized(&sample, &[vec![2304, 2304], vec![2304, 2304]], MAX_REFERENCE_ELEMENTS);
        assert_eq!(dims(&product), [[144, 144], [144, 144]]);
        let small = benchmark_sized(&sample, &[vec![4, 8], vec![8]], MAX_REFERENCE_ELEMENTS);
        assert_eq!((dims(&small), small.tolerance), (vec![vec![4, 8], vec![8]], sample.tolerance));
    }
}
