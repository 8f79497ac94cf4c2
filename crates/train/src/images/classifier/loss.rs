//! The loss of a batch.

use super::batches::mix;
use super::inputs::ImageInputs;
use super::{Classifier, ClassifierConfig};
use netcl_tensor::ops::cross_entropy::{CrossEntropy, cross_entropy};
use netcl_tensor::{Result, Tensor};

/// Returns the mean cross entropy of a batch's images, a scalar; for mixed images, that of both labels weighted by their shares.
///
/// # Errors
/// Errors of the operations.
pub(super) fn loss(
    classifier: &Classifier,
    config: &ClassifierConfig,
    inputs: &ImageInputs,
) -> Result<Tensor> {
    let label_smoothing = config.label_smoothing as f32;
    let of = |logits: &Tensor, labels: &Tensor| {
        cross_entropy(logits, labels, CrossEntropy { label_smoothing, ..CrossEntropy::default() })
    };
    let Some((others, share)) = &inputs.mixed else {
        return of(&classifier.network.forward(&inputs.images, true)?, &inputs.labels);
    };
    let logits = classifier.network.forward(&mix(&inputs.images, share)?, true)?;
    let (own, other) = (of(&logits, &inputs.labels)?, of(&logits, others)?);
    // share * own + (1 - share) * other
    other.add(&own.sub(&other)?.mul(share)?)
}
