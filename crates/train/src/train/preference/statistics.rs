//! Numbers of a step or an evaluation: rewards, accuracy and log probabilities, under TRL's names.

use super::loss::{PreferenceLoss, RecordLosses, RecordNumbers};
use crate::data::records::value;
use crate::evaluate::PreferenceMetrics;
use netcl_device::driver::Event;
use netcl_tensor::ops::join::stack;
use netcl_tensor::{DType, Device, Result, Tensor, no_grad};

/// Sums of a step.
const SUMS: usize = 9;
/// Sums kept on the device: of the running step, of the previous one, which is being read, and one more.
const KEPT_STEPS: u64 = 3;

/// Returns the means of sums.
fn means(sums: &[f64; SUMS], loss: &PreferenceLoss) -> PreferenceMetrics {
    let [first, second, chosen, rejected, right, chosen_log, rejected_log, divergence, likelihood] = *sums;
    let mean = |sum: f64, count: f64| (count > 0.0).then(|| sum / count);
    let (chosen_reward, rejected_reward) = (mean(chosen, first), mean(rejected, second));
    let records = if loss.is_labeled() { first + second } else { first };
    PreferenceMetrics {
        chosen_reward,
        rejected_reward,
        accuracy: mean(right, first).filter(|_| !loss.is_labeled()),
        margin: chosen_reward.zip(rejected_reward).map(|(chosen, rejected)| chosen - rejected),
        chosen_log_prob: mean(chosen_log, first),
        rejected_log_prob: mean(rejected_log, second),
        divergence: mean(divergence, records).filter(|_| loss.needs_divergence()),
        likelihood: mean(likelihood, first).filter(|_| loss.likelihood() > 0.0),
    }
}

/// Sums on the device, to which each pass adds.
pub(super) struct PreferenceSums {
    sums: Tensor,
    /// Sums of the last steps.
    kept: Vec<Tensor>,
}

impl PreferenceSums {
    /// Allocates the sums, which are zero.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(device: &Device) -> Result<Self> {
        let zeros = || Tensor::zeros(device, [SUMS], DType::F32);
        Ok(Self { sums: zeros()?, kept: (0..KEPT_STEPS).map(|_| zeros()).collect::<Result<_>>()? })
    }

    /// Returns the tensor that passes change.
    pub fn buffer(&self) -> &Tensor {
        &self.sums
    }

    /// Adds the numbers of P records; `likelihood` (P) are negative log likelihoods of chosen rows.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn add(
        &self,
        loss: &PreferenceLoss,
        found: &RecordLosses,
        numbers: RecordNumbers<'_>,
        likelihood: Option<&Tensor>,
    ) -> Result<()> {
        no_grad(|| {
            let present = numbers.at(value::PRESENT)?;
            let [first, second] = match loss.is_labeled() {
                false => [present.clone(), present.clone()],
                true => {
                    let good = numbers.at(value::DESIRABLE)?;
                    [present.mul(&good)?, present.mul(&good.rsub_scalar(1.0)?)?]
                }
            };
            let [chosen, rejected] = &found.rewards;
            let right = chosen.gt(rejected)?.to_dtype(DType::F32)?.mul(&present)?;
            let divergence = found.divergence.as_ref().map(|kl| present.mul(kl)).transpose()?;
            let likelihood =
                likelihood.map(|sums| numbers.at(value::LIKELIHOOD)?.mul(sums)?.mul(&present)).transpose()?;
            let none = present.mul_scalar(0.0)?;
            let rows = [
                first.mul(chosen)?,
                second.mul(rejected)?,
                right,
                first.mul(&found.log_probs[0])?,
                second.mul(&found.log_probs[1])?,
                divergence.unwrap_or_else(|| none.clone()),
                likelihood.unwrap_or(none),
            ];
            let all: Vec<&Tensor> = [&first, &second].into_iter().chain(&rows).collect();
            self.sums.assign(&self.sums.add(&stack(&all, 0)?.sum_f32(&[1], false)?)?)
        })
    }

    /// Enqueues a copy of the sums of step `step`, and resets them.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn keep(&self, step: u64) -> Result<()> {
        let slot = &self.kept[(step % KEPT_STEPS) as usize];
        let (from, to) = (self.sums.storage(), slot.storage());
        to.device().copy(from, 0, to, 0, to.bytes())?;
        self.reset()
    }

    /// Resets the sums.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn reset(&self) -> Result<()> {
        self.sums.set_all(0.0)
    }

    /// Returns the means of step `step`, once `done` has happened.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn of_step(&self, step: u64, done: &Event, loss: &PreferenceLoss) -> Result<PreferenceMetrics> {
        let bits = self.kept[(step % KEPT_STEPS) as usize].bits_as(DType::U32)?.u32_after(done)?;
        Ok(metrics_of(bits.into_iter().map(f32::from_bits), loss))
    }

    /// Returns the means of all passes since the last reset, and resets the sums.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn take(&self, loss: &PreferenceLoss) -> Result<PreferenceMetrics> {
        let sums = self.sums.to_vec()?;
        self.reset()?;
        Ok(metrics_of(sums.into_iter(), loss))
    }
}

fn metrics_of(sums: impl Iterator<Item = f32>, loss: &PreferenceLoss) -> PreferenceMetrics {
    let mut all = [0.0; SUMS];
    for (place, sum) in all.iter_mut().zip(sums) {
        *place = f64::from(sum);
    }
    means(&all, loss)
}
