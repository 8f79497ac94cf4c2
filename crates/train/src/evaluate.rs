//! Evaluates a model on a text (loss, perplexity, bits per byte), for validation during training and for `netcl eval`.

use crate::data::Scored;
use netcl_model::layers::Mode;
use netcl_model::model::Model;
use netcl_model::tokenizer::ByteLengths;
use netcl_tensor::{DType, Result, Tensor, no_grad};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Batches enqueued on the device before the first result is read.
const BATCHES_AHEAD: usize = 4;
/// Targets with this id are ignored by [`Model::loss`].
const IGNORED: i32 = -100;

/// The result of an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Sum of the negative log-likelihoods of the target tokens, in nats.
    pub nll: f64,
    /// Number of target tokens.
    pub tokens: u64,
    /// Number of windows evaluated.
    pub windows: u64,
    /// UTF-8 bytes of the target tokens' text, if the tokenizer allows counting them.
    pub bytes: Option<u64>,
    /// Rewards and log probabilities, if answers were compared. The sum is then that of the records' losses, and their number that of `tokens`.
    pub preference: Option<PreferenceMetrics>,
}

impl Score {
    /// Returns the mean negative log-likelihood, in nats per token.
    pub fn loss(&self) -> f64 {
        self.nll / self.tokens as f64
    }
    /// Returns the perplexity: exp of the loss.
    pub fn perplexity(&self) -> f64 {
        self.loss().exp()
    }
    /// Returns bits per byte of text, which allows comparing models with different tokenizers.
    pub fn bits_per_byte(&self) -> Option<f64> {
        self.bytes.filter(|bytes| *bytes > 0).map(|bytes| self.nll / std::f64::consts::LN_2 / bytes as f64)
    }
}

/// Means over the records of a step or an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PreferenceMetrics {
    /// Reward of chosen, or desirable, answers: β times the log ratio of policy and reference.
    #[serde(rename = "rewards/chosen", default, skip_serializing_if = "Option::is_none")]
    pub chosen_reward: Option<f64>,
    /// Reward of rejected, or undesirable, answers.
    #[serde(rename = "rewards/rejected", default, skip_serializing_if = "Option::is_none")]
    pub rejected_reward: Option<f64>,
    /// Share of pairs whose chosen answer has the higher reward.
    #[serde(rename = "rewards/accuracies", default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Difference of the rewards.
    #[serde(rename = "rewards/margins", default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<f64>,
    /// Log probability of chosen answers; per token for simpo and orpo.
    #[serde(rename = "logps/chosen", default, skip_serializing_if = "Option::is_none")]
    pub chosen_log_prob: Option<f64>,
    /// Log probability of rejected answers.
    #[serde(rename = "logps/rejected", default, skip_serializing_if = "Option::is_none")]
    pub rejected_log_prob: Option<f64>,
    /// Estimated divergence from the reference, of kto.
    #[serde(rename = "kl", default, skip_serializing_if = "Option::is_none")]
    pub divergence: Option<f64>,
    /// Negative log likelihood per token of chosen answers, if the loss includes it.
    #[serde(rename = "nll_loss", default, skip_serializing_if = "Option::is_none")]
    pub likelihood: Option<f64>,
}

impl PreferenceMetrics {
    /// Returns the numbers under TRL's names.
    pub fn named(&self) -> [(&'static str, Option<f64>); 8] {
        [
            ("rewards/chosen", self.chosen_reward),
            ("rewards/rejected", self.rejected_reward),
            ("rewards/accuracies", self.accuracy),
            ("rewards/margins", self.margin),
            ("logps/chosen", self.chosen_log_prob),
            ("logps/rejected", self.rejected_log_prob),
            ("kl", self.divergence),
            ("nll_loss", self.likelihood),
        ]
    }

    /// Returns the numbers of a progress line.
    pub fn line(&self) -> String {
        let accuracy = self.accuracy.map(|share| format!("accuracy {:.1} %", 100.0 * share));
        let margin = self.margin.map(|margin| format!("margin {margin:.4}"));
        accuracy.into_iter().chain(margin).collect::<Vec<_>>().join(", ")
    }
}

/// A batch whose loss was enqueued but not yet read.
struct Pending {
    loss: Tensor,
    tokens: u64,
    windows: u64,
    bytes: Option<u64>,
}

/// Evaluates `model` on windows of a text. `lengths` are the byte lengths of the tokenizer's tokens. `watch` is called after each batch with
/// the score so far; if it returns false, the evaluation ends with that score.
///
/// # Errors
/// Errors of the data and of the device.
pub fn evaluate(
    model: &dyn Model,
    windows: impl Iterator<Item = Result<Scored>>,
    lengths: Option<&ByteLengths>,
    watch: &mut dyn FnMut(&Score) -> bool,
) -> Result<Score> {
    let mut score = Score { bytes: lengths.map(|_| 0), ..Score::default() };
    let mut pending: VecDeque<Pending> = VecDeque::new();
    let read = |score: &mut Score, pending: Pending| -> Result<()> {
        score.nll += f64::from(pending.loss.item()?) * pending.tokens as f64;
        score.tokens += pending.tokens;
        score.windows += pending.windows;
        score.bytes = score.bytes.zip(pending.bytes).map(|(all, bytes)| all + bytes);
        Ok(())
    };
    no_grad(|| {
        for scored in windows {
            pending.push_back(enqueue(model, &scored?, lengths)?);
            if pending.len() > BATCHES_AHEAD
                && let Some(first) = pending.pop_front()
            {
                read(&mut score, first)?;
                if !watch(&score) {
                    return Ok(score);
                }
            }
        }
        while let Some(first) = pending.pop_front() {
            read(&mut score, first)?;
            if !watch(&score) {
                break;
            }
        }
        Ok(score)
    })
}

fn enqueue(model: &dyn Model, scored: &Scored, lengths: Option<&ByteLengths>) -> Result<Pending> {
    let (device, batch) = (model.params().device(), &scored.batch);
    let shape = [batch.rows, batch.context];
    let x = Tensor::from_u32(device, shape, &batch.x)?;
    let tokens = scored.targets();
    let y = if tokens == batch.y.len() {
        Tensor::from_u32(device, shape, &batch.y)?
    } else {
        let rows = batch.y.chunks(batch.context).zip(&scored.counted);
        let target = |(at, id): (usize, &u32), counted: &std::ops::Range<usize>| match counted.contains(&at) {
            true => (*id).cast_signed(),
            false => IGNORED,
        };
        let targets =
            rows.flat_map(|(row, counted)| row.iter().enumerate().map(move |id| target(id, counted)));
        let bytes: Vec<u8> = targets.flat_map(i32::to_le_bytes).collect();
        Tensor::from_bytes(device, shape, &bytes, DType::I32)?
    };
    Ok(Pending {
        loss: model.loss(&x, &y, Mode::eval())?,
        tokens: tokens as u64,
        windows: batch.rows as u64,
        bytes: lengths.and_then(|lengths| lengths.of(scored.ids())),
    })
}
