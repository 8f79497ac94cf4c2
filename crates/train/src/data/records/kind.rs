//! The content of records: answers, pairs of answers, or answers with labels.

use std::sync::Arc;

/// Log probabilities of the rows of each record under the reference model.
pub(crate) type ReferenceLogProbs = Arc<[[f32; 2]]>;

/// The content of records that an objective needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordKind {
    /// Answers to learn.
    #[default]
    Answers,
    /// A prompt with a chosen and a rejected answer.
    Pairs {
        /// Whether the prompt is also a target.
        prompts: bool,
    },
    /// A prompt with an answer that is desirable or not. Prompts are also paired with other answers, within blocks of this many records.
    Labeled {
        /// Records of a block.
        block: usize,
    },
}

impl RecordKind {
    /// Returns the sequences that are stored for each record.
    pub(super) fn spans(self) -> usize {
        if matches!(self, Self::Pairs { .. }) { 2 } else { 1 }
    }

    /// Returns the rows that a batch has for each record.
    pub fn rows(self) -> usize {
        if self == Self::Answers { 1 } else { 2 }
    }

    /// Returns whether a loss compares answers.
    pub fn is_preference(self) -> bool {
        self != Self::Answers
    }

    /// Returns the keys of its records, for messages.
    pub(super) fn keys(self) -> &'static str {
        match self {
            Self::Answers => {
                "messages, conversations, instruction and output, prompt and completion, or text"
            }
            Self::Pairs { .. } => "chosen and rejected",
            Self::Labeled { .. } => "prompt, completion and label, or chosen and rejected",
        }
    }

    /// Returns a number that differs from that of other kinds of tokens, for the cache.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Answers => 0,
            Self::Pairs { .. } => 1,
            Self::Labeled { .. } => 2,
        }
    }
}
