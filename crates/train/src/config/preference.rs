//! Settings of objectives that compare answers.

use super::{ObjectiveName, TrainConfig};
use netcl_device::Result;
use netcl_model::names::by_name;

/// A loss that compares answers, by the name that TRL has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossType {
    /// −log σ(β · margin), where the margin is the difference of the log ratios of policy and reference.
    Sigmoid,
    /// The same with means over tokens.
    SigmoidNorm,
    /// max(0, 1 − β · margin) (Zhao et al. 2023).
    Hinge,
    /// The square of the margin's distance from 1 / 2β, with means over tokens.
    Ipo,
    /// The sigmoid loss without the bias of flipped labels (Chowdhury et al. 2024).
    Robust,
    /// Kullback-Leibler divergence of the policy from smoothed labels (Ji et al. 2024).
    ExoPair,
    /// Noise contrastive alignment (Chen et al. 2024).
    NcaPair,
    /// Binary classification of both answers (Jung et al. 2024).
    BcoPair,
    /// Self-play with certain preferences (Wu et al. 2024).
    SppoHard,
    /// Anchored loss that raises the chosen answer (D'Oosterlinck et al. 2024).
    ApoZero,
    /// Anchored loss that lowers both answers.
    ApoDown,
    /// Log probabilities per token with a target margin, without a reference.
    Simpo,
    /// Log odds ratio and the likelihood of the chosen text, without a reference.
    Orpo,
    /// Utility relative to the divergence from the reference.
    Kto,
    /// The anchored loss for answers with labels.
    ApoZeroUnpaired,
}

impl LossType {
    /// Losses that `--loss-type` selects for dpo.
    const PAIRS: [(&str, Self); 11] = [
        ("sigmoid", Self::Sigmoid),
        ("sigmoid_norm", Self::SigmoidNorm),
        ("hinge", Self::Hinge),
        ("ipo", Self::Ipo),
        ("robust", Self::Robust),
        ("exo_pair", Self::ExoPair),
        ("nca_pair", Self::NcaPair),
        ("bco_pair", Self::BcoPair),
        ("sppo_hard", Self::SppoHard),
        ("apo_zero", Self::ApoZero),
        ("apo_down", Self::ApoDown),
    ];
    /// Losses that it selects for kto.
    const LABELED: [(&str, Self); 2] = [("kto", Self::Kto), ("apo_zero_unpaired", Self::ApoZeroUnpaired)];

    fn smooths_labels(self) -> bool {
        matches!(self, Self::Robust | Self::ExoPair | Self::Simpo)
    }
}

impl TrainConfig {
    /// Returns the loss that compares answers; `None` for sft.
    ///
    /// # Errors
    /// `Format` for a name that the objective does not have.
    pub fn preference_loss(&self) -> Result<Option<LossType>> {
        let given = |all, usual| match self.loss_type.as_deref() {
            Some(name) => by_name("loss-type", name, all).map(Some),
            None => Ok(Some(usual)),
        };
        match self.objective {
            ObjectiveName::Sft => Ok(None),
            ObjectiveName::Dpo => given(&LossType::PAIRS, LossType::Sigmoid),
            ObjectiveName::Kto => given(&LossType::LABELED, LossType::Kto),
            ObjectiveName::Ipo => Ok(Some(LossType::Ipo)),
            ObjectiveName::Simpo => Ok(Some(LossType::Simpo)),
            ObjectiveName::Orpo => Ok(Some(LossType::Orpo)),
        }
    }

    /// Returns the rows of a batch; a loss that compares answers has two per record.
    pub fn rows(&self) -> usize {
        self.batch.saturating_mul(self.objective.kind(self.batch).rows())
    }

    /// Returns why settings of the objective are invalid, with the change to make.
    pub(super) fn wrong_objective(&self) -> Option<String> {
        let (objective, usual) = (self.objective, Self::base());
        let loss = match self.preference_loss() {
            Ok(loss) => loss,
            Err(e) => return Some(e.message().to_owned()),
        };
        let is = |names: &[ObjectiveName]| names.contains(&objective);
        let smooths = loss.is_some_and(LossType::smooths_labels);
        let unused = [
            ("loss-type", self.loss_type.is_some(), is(&[ObjectiveName::Dpo, ObjectiveName::Kto])),
            ("beta", self.beta != usual.beta, objective.is_preference()),
            ("label-smoothing", self.label_smoothing != usual.label_smoothing, smooths),
            ("simpo-gamma", self.simpo_gamma != usual.simpo_gamma, is(&[ObjectiveName::Simpo])),
            ("cpo-alpha", self.cpo_alpha != usual.cpo_alpha, is(&[ObjectiveName::Simpo])),
            ("desirable-weight", self.desirable_weight != usual.desirable_weight, is(&[ObjectiveName::Kto])),
            (
                "undesirable-weight",
                self.undesirable_weight != usual.undesirable_weight,
                is(&[ObjectiveName::Kto]),
            ),
        ];
        if let Some((flag, ..)) = unused.iter().find(|(_, given, used)| *given && !used) {
            let other = if *flag == "label-smoothing" { ", or use --loss-type robust" } else { "" };
            return Some(format!("--{flag} has no effect on --objective {objective}; remove it{other}"));
        }
        let loss = loss?;
        let smoothing = self.label_smoothing;
        let refused = |with: &str, why: &str| Some(format!("--objective {objective} {with}: {why}"));
        match () {
            () if loss == LossType::Robust && smoothing >= 0.5 => Some(format!(
                "--label-smoothing {smoothing} is not below 0.5, which --loss-type robust requires"
            )),
            () if loss == LossType::ExoPair && smoothing == 0.0 => {
                Some("--loss-type exo_pair needs --label-smoothing above 0, such as 1e-3".into())
            }
            () if loss == LossType::Kto && self.batch < 2 => refused(
                "with --batch 1",
                "each prompt is also paired with another answer of its batch; use at least 2",
            ),
            () if self.init.is_none() => {
                refused("without --init", "preferences change an existing model; name it with --init DIR")
            }
            () if self.dropout > 0.0 => refused(
                "with --dropout",
                "policy and reference are compared without dropout; use --dropout 0",
            ),
            () if self.pipeline > 1 => {
                refused("with --pipeline", "stages do not compare answers; use --pipeline 1")
            }
            () if self.train_on != super::TrainOn::Answers => {
                refused("with --train-on", "the answers are compared, and nothing else; remove it")
            }
            () if self.as_text => refused("with --as-text", "answers are fields of records; remove it"),
            () => None,
        }
    }
}
