//! The objective of a run: what its loss rewards.

use crate::data::records::RecordKind;
use netcl_device::{Error, Result};
use netcl_model::names::{by_name, name_of};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The loss of a run on records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ObjectiveName {
    /// Cross entropy of the answers, or of a text.
    #[default]
    Sft,
    /// Direct preference optimization (Rafailov et al. 2023).
    Dpo,
    /// Identity preference optimization (Azar et al. 2023).
    Ipo,
    /// Simple preference optimization (Meng et al. 2024).
    Simpo,
    /// Odds ratio preference optimization (Hong et al. 2024).
    Orpo,
    /// Kahneman-Tversky optimization (Ethayarajh et al. 2024).
    Kto,
}

impl ObjectiveName {
    /// All values, with their names.
    pub const NAMES: [(&str, Self); 6] = [
        ("sft", Self::Sft),
        ("dpo", Self::Dpo),
        ("ipo", Self::Ipo),
        ("simpo", Self::Simpo),
        ("orpo", Self::Orpo),
        ("kto", Self::Kto),
    ];

    /// Returns whether its loss compares answers.
    pub fn is_preference(self) -> bool {
        self != Self::Sft
    }

    /// Returns whether its loss reads the log probabilities of the model that training started from.
    pub fn has_reference(self) -> bool {
        matches!(self, Self::Dpo | Self::Ipo | Self::Kto)
    }

    /// Returns the kind of its records, for batches of `batch` records.
    pub fn kind(self, batch: usize) -> RecordKind {
        match self {
            Self::Sft => RecordKind::Answers,
            Self::Orpo => RecordKind::Pairs { prompts: true },
            Self::Dpo | Self::Ipo | Self::Simpo => RecordKind::Pairs { prompts: false },
            Self::Kto => RecordKind::Labeled { block: batch },
        }
    }
}

impl FromStr for ObjectiveName {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        by_name("objective", name, &Self::NAMES)
    }
}

impl fmt::Display for ObjectiveName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(*self, &Self::NAMES))
    }
}
