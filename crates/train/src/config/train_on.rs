//! The messages of conversations that are trained.

use netcl_device::{Error, Result};
use netcl_llm::answers::Answers;
use netcl_model::names::{by_name, name_of};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The messages whose tokens a run learns to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrainOn {
    /// All answers of the model.
    #[default]
    Answers,
    /// The last answer of each conversation.
    Last,
    /// Every message.
    All,
}

impl TrainOn {
    /// All values, with their names.
    pub const NAMES: [(&str, Self); 3] =
        [("answers", Self::Answers), ("last", Self::Last), ("all", Self::All)];

    /// Returns the answers of a conversation that are trained.
    pub fn answers(self) -> Answers {
        match self {
            Self::Answers => Answers::All,
            Self::Last => Answers::Last,
            Self::All => Answers::Everything,
        }
    }
}

impl FromStr for TrainOn {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        by_name("train-on", name, &Self::NAMES)
    }
}

impl fmt::Display for TrainOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(*self, &Self::NAMES))
    }
}
