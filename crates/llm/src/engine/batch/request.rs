//! What is asked of an engine, and what it tells.

use crate::engine::Request;
use crate::engine::session::CHUNK;
use crate::sampler::{Finish, Sampler};
use netcl_model::decoder::CacheType;
use netcl_tensor::Error;
use std::time::Duration;

/// What an engine has.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Texts that are read or continued at the same time, at most.
    pub texts: usize,
    /// Requests that wait for that, at most.
    pub queue: usize,
    /// Tokens that the cache has room for; without it the context for each text, or of that as much as fits.
    pub tokens: Option<usize>,
    /// Bytes that the cache may take, and of a [`LoadedModel`](crate::LoadedModel) with it what prompts and steps work with; without it what the
    /// devices have.
    pub memory: Option<u64>,
    /// Tokens of a page.
    pub page: usize,
    /// Tokens of a prompt that are read between two steps.
    pub chunk: usize,
    /// Storage of keys and values.
    pub cache: CacheType,
    /// Whether texts share pages with the same content, and prompts begin with what is in the cache already.
    pub share: bool,
    /// Tokens that are [proposed](Speculation) in a step, at most [`MOST_DRAFTED`].
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

/// Names a request of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A request: what to continue, how tokens are chosen, and when to end. A request that slides ([`Request::slide`]) is refused.
#[derive(Clone, Debug)]
pub struct Job {
    /// The tokens to continue.
    pub prompt: Vec<u32>,
    /// How the text's tokens are chosen.
    pub sampler: Sampler,
    /// When it ends.
    pub request: Request,
    /// Whether [`Event::Token`] says how likely tokens were, and how many of the likeliest it lists besides. The host reads all logits then.
    pub logprobs: Option<usize>,
}

impl Job {
    /// Without log probabilities.
    pub fn new(prompt: Vec<u32>, sampler: Sampler, request: Request) -> Self {
        Self { prompt, sampler, request, logprobs: None }
    }
}

/// How likely a token was: natural logarithms of the model's probabilities, before biases, penalties, temperature and grammars.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    /// Of the token that was taken.
    pub token: f32,
    /// The likeliest tokens with theirs, the likeliest first; of equally likely ones those with lower ids.
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

/// What a text took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Of those, tokens that were in the cache already.
    pub reused: usize,
    /// New tokens, without the one that ended the text.
    pub made: usize,
    /// Tokens that were proposed for the text.
    pub drafted: usize,
    /// Of those, tokens that it took.
    pub accepted: usize,
    /// How often its pages were given to other texts, and it was read again.
    pub preempted: usize,
    /// From the request to the first token.
    pub prompt_time: Duration,
    /// From then to the end.
    pub generation_time: Duration,
}

/// What happened to a text.
#[derive(Debug)]
pub enum Event {
    /// The next token, and text that is final, in whole characters; often empty. Models without a tokenizer give none.
    Token {
        /// Of which request.
        id: RequestId,
        /// The token.
        token: u32,
        /// What can be shown.
        text: String,
        /// How likely it was, if that was [asked for](Job::logprobs).
        logprobs: Option<Logprobs>,
    },
    /// Text that was held back and is final now that the text ends.
    Text {
        /// Of which request.
        id: RequestId,
        /// What can be shown.
        text: String,
    },
    /// The text is complete. No further event names its request.
    Done {
        /// Which request.
        id: RequestId,
        /// Why it ended.
        finish: Finish,
        /// What it took.
        usage: Usage,
    },
    /// The text cannot be continued. No further event names its request; other texts go on.
    Failed {
        /// Which request.
        id: RequestId,
        /// Why.
        error: Error,
    },
}

impl Event {
    /// The request it is about.
    pub fn id(&self) -> RequestId {
        match self {
            Self::Token { id, .. }
            | Self::Text { id, .. }
            | Self::Done { id, .. }
            | Self::Failed { id, .. } => *id,
        }
    }
}

/// How busy an engine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that wait, and texts that are paused.
    pub waiting: usize,
    /// Texts whose prompt is being read.
    pub reading: usize,
    /// Texts that are being continued.
    pub running: usize,
    /// Pages of the cache.
    pub pages: usize,
    /// Of those, pages that no text has.
    pub available: usize,
    /// Of those, pages with the beginnings of earlier texts.
    pub idle: usize,
}
