//! Losses of records whose answers are compared, as TRL defines them.

use crate::config::{LossType, TrainConfig};
use crate::data::records::value;
use netcl_tensor::{Result, Tensor};

/// A loss with its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreferenceLoss {
    kind: LossType,
    beta: f32,
    smoothing: f32,
    gamma: f32,
    /// Factor of the chosen answers' negative log likelihood.
    likelihood: f32,
    /// Weights of desirable and of undesirable answers.
    weights: [f32; 2],
}

/// Losses of P records, (P) each.
pub(super) struct RecordLosses {
    pub losses: Tensor,
    /// Rewards of both answers; of labeled answers twice that of the answer.
    pub rewards: [Tensor; 2],
    /// Log probabilities of both answers, as the loss uses them: sums, or means over tokens.
    pub log_probs: [Tensor; 2],
    /// Estimated divergence from the reference, a scalar.
    pub divergence: Option<Tensor>,
}

/// Numbers of P records, which the host computes: (VALUES, P).
#[derive(Clone, Copy)]
pub(super) struct RecordNumbers<'a>(pub &'a Tensor);

impl RecordNumbers<'_> {
    /// Returns one number of each record (P).
    pub fn at(&self, place: usize) -> Result<Tensor> {
        self.0.slice(0, place..place + 1)?.reshape([self.0.dims()[1]])
    }

    fn both(&self, places: [usize; 2]) -> Result<[Tensor; 2]> {
        Ok([self.at(places[0])?, self.at(places[1])?])
    }
}

/// Returns log σ(x).
fn log_sigmoid(x: &Tensor) -> Result<Tensor> {
    x.neg()?.softplus()?.neg()
}

/// Returns log(1 − eˣ) for x below 0, as log tanh(−x/2) + log(1 + eˣ), which keeps its digits near 0.
fn log_one_minus_exp(x: &Tensor) -> Result<Tensor> {
    x.mul_scalar(-0.5)?.tanh()?.log()?.add(&x.softplus()?)
}

fn each(x: &[Tensor; 2], y: &[Tensor; 2], f: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<[Tensor; 2]> {
    Ok([f(&x[0], &y[0])?, f(&x[1], &y[1])?])
}

fn scaled(x: &[Tensor; 2], factor: f32) -> Result<[Tensor; 2]> {
    Ok([x[0].mul_scalar(factor)?, x[1].mul_scalar(factor)?])
}

impl PreferenceLoss {
    /// Returns the loss of a run; `None` for one that does not compare answers.
    ///
    /// # Errors
    /// `Format` for an unknown loss.
    pub fn of(config: &TrainConfig) -> Result<Option<Self>> {
        let Some(kind) = config.preference_loss()? else { return Ok(None) };
        let likelihood = match kind {
            LossType::Orpo => 1.0,
            LossType::Simpo => config.cpo_alpha as f32,
            _ => 0.0,
        };
        Ok(Some(Self {
            kind,
            beta: config.beta as f32,
            smoothing: config.label_smoothing as f32,
            gamma: config.simpo_gamma as f32,
            likelihood,
            weights: [config.desirable_weight as f32, config.undesirable_weight as f32],
        }))
    }

    /// Returns the factor of the chosen answers' negative log likelihood.
    pub fn likelihood(&self) -> f32 {
        self.likelihood
    }

    /// Returns whether targets include the prompt, so that answers must be selected.
    pub fn includes_prompts(&self) -> bool {
        self.kind == LossType::Orpo
    }

    /// Returns whether records have one answer with a label.
    pub fn is_labeled(&self) -> bool {
        matches!(self.kind, LossType::Kto | LossType::ApoZeroUnpaired)
    }

    /// Returns whether the loss reads the divergence from the reference.
    pub fn needs_divergence(&self) -> bool {
        self.kind == LossType::Kto
    }

    /// Computes the losses of P records from the log probabilities (P) of both rows, f32.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn of_records(&self, policy: [Tensor; 2], numbers: RecordNumbers<'_>) -> Result<RecordLosses> {
        match self.kind {
            LossType::Kto | LossType::ApoZeroUnpaired => self.labeled(policy, numbers),
            LossType::Simpo | LossType::Orpo => self.without_reference(policy, numbers),
            _ => self.pairs(policy, numbers),
        }
    }

    fn pairs(&self, policy: [Tensor; 2], numbers: RecordNumbers<'_>) -> Result<RecordLosses> {
        let ratios = each(&policy, &numbers.both(value::REFERENCE)?, Tensor::sub)?;
        let rewards = scaled(&ratios, self.beta)?;
        let [chosen, rejected] = &rewards;
        let margin = chosen.sub(rejected)?;
        let per_token = || -> Result<Tensor> {
            let [chosen, rejected] = each(&ratios, &numbers.both(value::INVERSE_LENGTH)?, Tensor::mul)?;
            chosen.sub(&rejected)
        };
        let s = self.smoothing;
        let losses = match self.kind {
            LossType::SigmoidNorm => log_sigmoid(&per_token()?.mul_scalar(self.beta)?)?.neg()?,
            LossType::Hinge => margin.rsub_scalar(1.0)?.relu()?,
            LossType::Ipo => per_token()?.sub_scalar(1.0 / (2.0 * self.beta))?.square()?,
            LossType::Robust => {
                let (clean, flipped) = (margin.neg()?.softplus()?, margin.softplus()?);
                clean.mul_scalar(1.0 - s)?.sub(&flipped.mul_scalar(s)?)?.div_scalar(1.0 - 2.0 * s)?
            }
            LossType::ExoPair => {
                let part = |x: &Tensor, label: f32| x.sigmoid()?.mul(&log_sigmoid(x)?.sub_scalar(label)?);
                part(&margin, (-s).ln_1p())?.add(&part(&margin.neg()?, s.ln())?)?
            }
            LossType::NcaPair => {
                let both = chosen.softplus()?.add(&rejected.softplus()?)?.mul_scalar(0.5)?;
                chosen.neg()?.softplus()?.add(&both)?
            }
            LossType::BcoPair => chosen.neg()?.softplus()?.add(&rejected.softplus()?)?,
            LossType::SppoHard => {
                let half = 0.5 / self.beta;
                let (winner, loser) = (ratios[0].sub_scalar(half)?, ratios[1].add_scalar(half)?);
                winner.square()?.add(&loser.square()?)?
            }
            LossType::ApoZero => rejected.sigmoid()?.add(&chosen.sigmoid()?.rsub_scalar(1.0)?)?,
            LossType::ApoDown => chosen.sigmoid()?.add(&margin.sigmoid()?.rsub_scalar(1.0)?)?,
            _ => log_sigmoid(&margin)?.neg()?,
        };
        Ok(RecordLosses { losses, rewards, log_probs: policy, divergence: None })
    }

    /// Computes losses of log probabilities per token.
    fn without_reference(&self, policy: [Tensor; 2], numbers: RecordNumbers<'_>) -> Result<RecordLosses> {
        let means = each(&policy, &numbers.both(value::INVERSE_LENGTH)?, Tensor::mul)?;
        let rewards = scaled(&means, self.beta)?;
        let losses = if self.kind == LossType::Orpo {
            // An empty row has probability 1, whose odds are infinite.
            let absent = numbers.at(value::PRESENT)?.sub_scalar(1.0)?;
            let odds = |x: &Tensor| -> Result<Tensor> {
                let x = x.add(&absent)?;
                x.sub(&log_one_minus_exp(&x)?)
            };
            let log_odds = odds(&means[0])?.sub(&odds(&means[1])?)?;
            log_sigmoid(&log_odds)?.mul_scalar(-self.beta)?
        } else {
            let margin = rewards[0].sub(&rewards[1])?.sub_scalar(self.gamma)?;
            let (clean, flipped) = (margin.neg()?.softplus()?, margin.softplus()?);
            clean.mul_scalar(1.0 - self.smoothing)?.add(&flipped.mul_scalar(self.smoothing)?)?
        };
        Ok(RecordLosses { losses, rewards, log_probs: means, divergence: None })
    }

    /// Computes the losses of answers with labels. The second log probabilities are those of prompts with other answers.
    fn labeled(&self, [own, other]: [Tensor; 2], numbers: RecordNumbers<'_>) -> Result<RecordLosses> {
        let (present, desirable) = (numbers.at(value::PRESENT)?, numbers.at(value::DESIRABLE)?);
        let [reference, other_reference] = numbers.both(value::REFERENCE)?;
        let ratio = own.sub(&reference)?;
        let divergence = match self.needs_divergence() {
            true => {
                let sum = other.detach().sub(&other_reference)?.mul(&present)?.sum_f32(&[], false)?;
                let count = present.sum_f32(&[], false)?.clamp(1.0, f32::MAX)?;
                Some(sum.div(&count)?.relu()?)
            }
            false => None,
        };
        let distance = divergence.as_ref().map_or(Ok(ratio.clone()), |kl| ratio.sub(kl))?;
        let sign = desirable.mul_scalar(2.0)?.sub_scalar(1.0)?;
        let utility = distance.mul(&sign)?.mul_scalar(self.beta)?.sigmoid()?;
        let [good, bad] = self.weights;
        let weight = desirable.mul_scalar(good - bad)?.add_scalar(bad)?;
        let reward = ratio.mul_scalar(self.beta)?;
        Ok(RecordLosses {
            losses: utility.rsub_scalar(1.0)?.mul(&weight)?,
            rewards: [reward.clone(), reward],
            log_probs: [own.clone(), own],
            divergence,
        })
    }
}
