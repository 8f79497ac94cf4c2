//! Means and variances of channels, without normalization: batch normalization over several devices exchanges these.

use super::strips::{self, Strips};
use super::{Parts, channels_first, channels_last};
use crate::ops::prelude::*;

/// Computes the mean and the variance (divided by the number of elements) of each channel of x `(N, C, ..)` → f32 `(2, C)`. They equal those of
/// [`batch_norm`](super::batch_norm), which are computed in the same order.
///
/// # Errors
/// `Shape` if x has fewer than two axes or no element; `DType` if x does not have a float type.
pub fn batch_statistics(x: &Tensor) -> Result<Tensor> {
    super::check_channels(BatchStatistics::NAME, x, &[])?;
    check::same_float(BatchStatistics::NAME, &[("x", x)])?;
    BatchStatistics.apply([x])
}

/// Operation of [`batch_statistics`].
#[derive(Clone)]
pub struct BatchStatistics;

impl Op<1> for BatchStatistics {
    const NAME: &'static str = "batch_statistics";
    const NO_EMPTY_SAMPLE: Option<&'static str> = Some("the mean of no elements is undefined");
    /// The result of the forward.
    type Saved = Tensor;
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, Self::Saved)> {
        super::check_elements(Self::NAME, x)?;
        let x = channels_last(x)?;
        let found = match strips::runs_on(x.device().capabilities()) {
            true => Strips::of(&x, &[]).moments()?,
            false => Parts::of(&x).moments(&x)?,
        };
        Ok((found.clone(), found))
    }
    fn backward(&self, [x]: [&Tensor; 1], found: &Self::Saved, dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let x = channels_last(x)?;
        let (rows, channels) = x.shape().rows_cols();
        let line = |of: &Tensor, i: usize| of.slice(0, i..i + 1)?.reshape([channels]);
        let inputs = [&x, &line(found, 0)?, &line(dy, 1)?, &line(dy, 0)?];
        let share = 1.0 / rows as f32;
        let dx = map("fma(x0 - x1, x2 * s1, x3 * s0)", &inputs, &[share, 2.0 * share], x.shape(), x.dtype())?;
        Ok([Some(channels_first(&dx)?)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        let [mean, variance] = super::moments(x);
        Array { shape: [2, mean.data.len()].into(), data: [mean.data, variance.data].concat() }
    }
    fn calls() -> Vec<Call> {
        let doc = "Mean and variance (divided by the number of elements) of each channel of x `(N, C, ..)`, f32 `(2, C)`.";
        let call = Call::new(Self::NAME, doc).inputs(&["x"]);
        vec![call.run(|a| a.inputs().and_then(|[x]| batch_statistics(x)))]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize]| Sample::new(Self, [SampleInput::normal(shape)]).sums(16);
        vec![
            sample(&[3, 5, 2, 4]).bench(&[&[64, 64, 32, 32]]),
            sample(&[37, 17]).light(),
            // Several blocks per part.
            sample(&[700, 19]).light(),
            // Several parts and vectors of columns.
            sample(&[2, 40, 20, 15]).light(),
            sample(&[1, 1]).light(),
            Sample::new(Self, [SampleInput::uniform(&[5, 3, 7], -1e4, 1e4)]).sums(16).extreme().light(),
        ]
    }
}
