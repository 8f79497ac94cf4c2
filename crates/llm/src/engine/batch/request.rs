//! Requests to an engine, and its events.

use crate::engine::Request;
use crate::engine::session::CHUNK;
use crate::sampler::{Finish, Sampler};
use netcl_model::decoder::CacheType;
use netcl_tensor::Error;
use std::time::Duration;

/// Options of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Maximum number of sequences in prefill or decode.
    pub texts: usize,
    /// Maximum number of waiting requests.
    pub queue: usize,
    /// Capacity of the cache in tokens [default: the context length per sequence, or as much as fits].
    pub tokens: Option<usize>,
    /// Bytes that the cache may use; for a [`LoadedModel`](crate::LoadedModel), including the workspace of prompts and steps [default: the memory of
    /// the devices].
    pub memory: Option<u64>,
    /// Tokens per page.
    pub page: usize,
    /// Prompt tokens that are prefilled between two steps.
    pub chunk: usize,
    /// Storage type of keys and values.
    pub cache: CacheType,
    /// Whether sequences share pages with the same content, and prompts reuse content of the cache.
    pub share: bool,
    /// Tokens that are [proposed](Speculation) per step, at most [`MAX_DRAFTED`].
    pub drafted: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            texts: 8,
            queue: 64,
            tokens: None,
            memory: None,
            page: 32,
            chunk: CHUNK,
            cache: CacheType::Weights,
            share: true,
            drafted: 4,
        }
    }
}

/// Identifies a request of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A request: prompt, sampler and stop conditions. A request with a sliding context ([`Request::slide`]) is rejected.
#[derive(Clone, Debug)]
pub struct Job {
    /// Prompt tokens.
    pub prompt: Vec<u32>,
    /// Sampler of the sequence's tokens.
    pub sampler: Sampler,
    /// Conditions for the end.
    pub request: Request,
    /// Whether [`Event::Token`] reports probabilities, and the number of most likely tokens that it lists in addition. The host then reads all
    /// logits.
    pub logprobs: Option<usize>,
}

impl Job {
    /// Without log probabilities.
    pub fn new(prompt: Vec<u32>, sampler: Sampler, request: Request) -> Self {
        Self { prompt, sampler, request, logprobs: None }
    }
}

/// Log-probability of a token: natural logarithms of the model's probabilities, before biases, penalties, temperature and grammars.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    /// Log-probability of the chosen token.
    pub token: f32,
    /// The most likely tokens with theirs, in descending order; equally likely ones by ascending id.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// From logits (V).
    pub(super) fn of(logits: &[f32], token: u32, most: usize) -> Self {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|v| f64::from(v - largest).exp()).sum();
        let log = |v: f32| (f64::from(v - largest) - sum.ln()) as f32;
        let most = most.min(logits.len());
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        let order = |a: &u32, b: &u32| {
            let of = |id: &u32| logits.get(*id as usize).copied().unwrap_or(f32::NEG_INFINITY);
            of(b).total_cmp(&of(a)).then(a.cmp(b))
        };
        if most > 0 && most < ids.len() {
            ids.select_nth_unstable_by(most - 1, order);
        }
        ids.truncate(most);
        ids.sort_unstable_by(order);
        let of = |id: u32| logits.get(id as usize).map_or(f32::NEG_INFINITY, |v| log(*v));
        Self { token: of(token), top: ids.into_iter().map(|id| (id, of(id))).collect() }
    }
}

/// Usage of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt: usize,
    /// Prompt tokens that were already in the cache.
    pub reused: usize,
    /// New tokens, without the end token.
    pub made: usize,
    /// Tokens that were proposed for the sequence.
    pub drafted: usize,
    /// Proposed tokens that it accepted.
    pub accepted: usize,
    /// Number of times that its pages were given to other sequences and it was prefilled again.
    pub preempted: usize,
    /// Time from the request to the first token.
    pub prompt_time: Duration,
    /// Time from the first token to the end.
    pub generation_time: Duration,
}

/// Event of a sequence.
#[derive(Debug)]
pub enum Event {
    /// The next token, and final text in whole characters; often empty. Models without a tokenizer return no text.
    Token {
        /// The request id.
        id: RequestId,
        /// The token.
        token: u32,
        /// Text to show.
        text: String,
        /// Its probability, if [requested](Job::logprobs).
        logprobs: Option<Logprobs>,
    },
    /// Text that was held back and became final at the end of the sequence.
    Text {
        /// The request id.
        id: RequestId,
        /// Text to show.
        text: String,
    },
    /// The sequence is complete. No further event has its request id.
    Done {
        /// The request.
        id: RequestId,
        /// Reason for the end.
        finish: Finish,
        /// Its usage.
        usage: Usage,
    },
    /// The sequence failed. No further event has its request id; other sequences continue.
    Failed {
        /// The request.
        id: RequestId,
        /// The error that ended it.
        error: Error,
    },
}

impl Event {
    /// Returns the request id.
    pub fn id(&self) -> RequestId {
        match self {
            Self::Token { id, .. }
            | Self::Text { id, .. }
            | Self::Done { id, .. }
            | Self::Failed { id, .. } => *id,
        }
    }
}

/// Load of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Waiting requests and paused sequences.
    pub waiting: usize,
    /// Sequences in prefill.
    pub reading: usize,
    /// Sequences in decode.
    pub running: usize,
    /// Pages of the cache.
    pub pages: usize,
    /// Pages without a sequence.
    pub available: usize,
    /// Available pages with reusable prefixes.
    pub idle: usize,
}
