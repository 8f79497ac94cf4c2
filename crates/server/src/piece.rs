//! Messages of a worker to the readers of a text.

use netcl::device::Error;
use netcl::llm::engine::{Logprobs, Usage};
use netcl::llm::sampler::Finish;

/// A token with what is known of it.
#[derive(Clone, Debug)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// How likely it was, if that was asked for.
    pub logprobs: Option<Logprobs>,
}

/// New tokens of a text after a step.
#[derive(Debug)]
pub struct Piece {
    /// Which text of the request.
    pub choice: usize,
    /// New tokens.
    pub tokens: Vec<Token>,
    /// Text that is final.
    pub text: String,
    /// Set with the last piece.
    pub end: Option<End>,
}

/// How a text ended.
#[derive(Debug)]
pub enum End {
    /// As it should.
    Done(Finish, Usage),
    /// With an error.
    Failed(Error),
}
