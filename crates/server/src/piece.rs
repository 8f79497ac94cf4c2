//! Messages from a worker to the readers of a sequence.

use netcl::device::Error;
use netcl::llm::engine::{Logprobs, Usage};
use netcl::llm::sampler::Finish;

/// A token with its probabilities.
#[derive(Clone, Debug)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Probabilities, if requested.
    pub logprobs: Option<Logprobs>,
}

/// New tokens of a sequence after a step.
#[derive(Debug)]
pub struct NewTokens {
    /// Index of the sequence in the request.
    pub choice: usize,
    /// New tokens.
    pub tokens: Vec<Token>,
    /// Final text.
    pub text: String,
    /// Set with the last piece.
    pub end: Option<SequenceEnd>,
}

/// End of a sequence.
#[derive(Debug)]
pub enum SequenceEnd {
    /// The sequence ended normally.
    Done(Finish, Usage),
    /// The sequence ended with an error.
    Failed(Error),
}
