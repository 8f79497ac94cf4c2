//! The clipped loss of answers with advantages.

use netcl_tensor::{DType, Error, Result, Tensor};

/// The mean over tokens and answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GrpoVariant {
    /// The mean over all tokens of the step (DAPO, Yu et al. 2025), TRL's default.
    #[default]
    Dapo,
    /// The mean over answers of their means over tokens.
    Grpo,
    /// The mean over the tokens of the batch.
    Bnpo,
    /// The sum over tokens, divided by the answers and their maximum length (Dr. GRPO, Liu et al. 2025).
    DrGrpo,
}

/// The loss and its settings, under TRL's names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GrpoLoss {
    /// The mean (`loss_type`).
    pub variant: GrpoVariant,
    /// Lower bound of the ratio of probabilities: 1 − `epsilon`.
    pub epsilon: f32,
    /// Upper bound: 1 + `epsilon_high` [default: `epsilon`].
    pub epsilon_high: Option<f32>,
    /// Upper bound of the ratio that is not clipped.
    pub delta: Option<f32>,
    /// Weight of the divergence from the reference; 0 for none.
    pub beta: f32,
    /// Whether the divergence is multiplied by the ratio of probabilities, which makes its gradient unbiased.
    pub use_bias_correction_kl: bool,
    /// Maximum tokens of an answer, for [`GrpoVariant::DrGrpo`].
    pub max_completion_length: usize,
}

impl Default for GrpoLoss {
    fn default() -> Self {
        Self {
            variant: GrpoVariant::default(),
            epsilon: 0.2,
            epsilon_high: None,
            delta: None,
            beta: 0.0,
            use_bias_correction_kl: true,
            max_completion_length: 256,
        }
    }
}

/// B answers of at most T tokens, in f32.
#[derive(Clone, Copy)]
pub struct Rollouts<'a> {
    /// Log probabilities (B, T) of the tokens under the trained policy.
    pub policy: &'a Tensor,
    /// Those under the policy that sampled the answers [default: the trained policy].
    pub sampling: Option<&'a Tensor>,
    /// Those under the reference; required for `beta` above 0.
    pub reference: Option<&'a Tensor>,
    /// 1 for the tokens of an answer, 0 after it (B, T).
    pub mask: &'a Tensor,
    /// Advantages of the answers (B).
    pub advantages: &'a Tensor,
    /// Tokens of all answers of the step, for [`GrpoVariant::Dapo`].
    pub step_tokens: f32,
}

/// The result of [`GrpoLoss::of`]: scalars.
pub struct GrpoResult {
    /// The loss.
    pub loss: Tensor,
    /// Mean divergence from the reference per token, if `beta` is above 0.
    pub divergence: Option<Tensor>,
    /// Shares of tokens whose ratio was clipped at the lower and at the upper bound.
    pub clipped: [Tensor; 2],
}

impl GrpoLoss {
    /// Computes the loss of given answers.
    ///
    /// # Errors
    /// `Shape` if the tensors do not have the same B and T; `Format` for `beta` above 0 without a reference; errors of the device.
    pub fn of(&self, rollouts: Rollouts<'_>) -> Result<GrpoResult> {
        let Rollouts { policy, sampling, reference, mask, advantages, step_tokens } = rollouts;
        let [answers, _] = policy.dims2().map_err(|e| e.context("grpo: log probabilities"))?;
        let others = [sampling, reference, Some(mask)].into_iter().flatten();
        if others.into_iter().any(|x| x.dims() != policy.dims()) || advantages.dims() != [answers] {
            return Err(Error::shape(format!(
                "grpo: log probabilities and mask must have the shape {} of the policy's, and advantages [{answers}]",
                policy.shape()
            )));
        }
        let old = sampling.map_or_else(|| policy.detach(), Tensor::detach);
        let advantages = advantages.detach().reshape([answers, 1])?;
        let ratio = policy.sub(&old)?.exp()?;
        let [low, high] = [1.0 - self.epsilon, 1.0 + self.epsilon_high.unwrap_or(self.epsilon)];
        let clipped = ratio.clamp(low, high)?.mul(&advantages)?;
        let bounded = self.delta.map_or(Ok(ratio.clone()), |delta| ratio.clamp(f32::MIN, delta))?;
        let mut losses = bounded.mul(&advantages)?.minimum(&clipped)?.neg()?;
        let tokens = mask.sum_f32(&[], false)?.clamp(1.0, f32::MAX)?;
        let mean = |x: &Tensor| x.mul(mask)?.sum_f32(&[], false)?.div(&tokens);
        let mut divergence = None;
        if self.beta != 0.0 {
            let reference = reference.ok_or_else(|| {
                Error::format(format!("grpo: beta {} needs log probabilities of the reference", self.beta))
            })?;
            let difference = reference.detach().sub(policy)?;
            let each = difference.exp()?.sub(&difference)?.sub_scalar(1.0)?;
            let each = if self.use_bias_correction_kl { each.mul(&ratio)? } else { each };
            losses = losses.add(&each.mul_scalar(self.beta)?)?;
            divergence = Some(mean(&each.detach())?);
        }
        let share = |outside: Tensor, sign: Tensor| {
            mean(&outside.to_dtype(DType::F32)?.mul(&sign.to_dtype(DType::F32)?)?)
        };
        let (ratio, zero) = (bounded.detach(), advantages.mul_scalar(0.0)?);
        let bound = |value: f32| zero.add_scalar(value);
        let clipped = [
            share(ratio.lt(&bound(low)?)?, advantages.lt(&zero)?)?,
            share(ratio.gt(&bound(high)?)?, advantages.gt(&zero)?)?,
        ];
        Ok(GrpoResult {
            loss: self.reduced(&losses.mul(mask)?, mask, &tokens, step_tokens)?,
            divergence,
            clipped,
        })
    }

    /// Returns the mean of the losses of tokens (B, T), which are 0 after the answers.
    fn reduced(&self, losses: &Tensor, mask: &Tensor, tokens: &Tensor, step_tokens: f32) -> Result<Tensor> {
        let answers = losses.dims()[0] as f32;
        match self.variant {
            GrpoVariant::Dapo => losses.sum_f32(&[], false)?.div_scalar(step_tokens.max(1.0)),
            GrpoVariant::Bnpo => losses.sum_f32(&[], false)?.div(tokens),
            GrpoVariant::DrGrpo => {
                losses.sum_f32(&[], false)?.div_scalar(answers * self.max_completion_length as f32)
            }
            GrpoVariant::Grpo => {
                let lengths = mask.sum_f32(&[1], false)?.clamp(1.0, f32::MAX)?;
                losses.sum_f32(&[1], false)?.div(&lengths)?.sum_f32(&[], false)?.div_scalar(answers)
            }
        }
    }
}
