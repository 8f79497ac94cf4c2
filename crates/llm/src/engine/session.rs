//! A single sequence: prefill through the cache, then decoding steps.
//!
//! States stay on the device. If a prompt shares a prefix with the last one, only the rest is prefilled, in chunks with a chance to stop between
//! them.

use super::LoadedModel;
use crate::sampler::{Finish, Output, Sampler, StopTexts};
use crate::tokenizer::Tokenizer;
use netcl_model::model::{Choice, Continuation, Model as _};
use netcl_tensor::ops::choose::{Chooser, Rules};
use netcl_tensor::{Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Prompt tokens per prefill chunk.
pub const CHUNK: usize = 512;

/// A generation request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Maximum number of new tokens; `None` for the [default](LoadedModel::usual_length) of the model's files, or the rest of the context.
    pub max: Option<usize>,
    /// Stop strings.
    pub stops: StopTexts,
    /// Whether to continue after end tokens.
    pub ignore_ends: bool,
    /// Whether to continue when the context is full: the last half of the sequence is prefilled again, and the earlier half is dropped.
    pub slide: bool,
    /// Whether names of control tokens are part of the text.
    pub controls: bool,
}

impl Request {
    /// Returns the converter from tokens to text.
    pub(super) fn output<'a>(&self, tokenizer: &'a Tokenizer) -> Output<'a> {
        let output = Output::new(tokenizer, self.stops.clone(), self.max);
        let output = if self.controls { output.with_controls() } else { output };
        if self.ignore_ends { output.ignoring_ends() } else { output }
    }

    /// Returns the maximum number of further tokens after `made`, with room for `left` in the context.
    fn wanted(&self, made: usize, left: usize) -> usize {
        let left = if self.slide { usize::MAX } else { left };
        self.max.map_or(left, |max| left.min(max.saturating_sub(made)))
    }
}

/// Callbacks during generation.
pub struct Watch<'a> {
    /// Receives final text in whole characters.
    pub text: &'a mut dyn FnMut(&str) -> Result<()>,
    /// Returns true to end early.
    pub stop: &'a dyn Fn() -> bool,
}

/// Result of a generation.
#[derive(Clone, Debug)]
pub struct Generated {
    /// New tokens without the end token.
    pub tokens: Vec<u32>,
    /// Their text.
    pub text: String,
    /// Reason for the end.
    pub finish: Finish,
    /// Number of prompt tokens.
    pub prompt: usize,
    /// Prompt tokens that were prefilled; the others were already in the cache.
    pub read: usize,
    /// Prefill time.
    pub prompt_time: Duration,
    /// Number of tokens decoded one by one.
    pub steps: usize,
    /// Decoding time.
    pub generation_time: Duration,
}

impl Generated {
    /// Returns the prompt tokens per second.
    pub fn prompt_speed(&self) -> f64 {
        self.read as f64 / self.prompt_time.as_secs_f64().max(1e-9)
    }
    /// Returns the new tokens per second.
    pub fn speed(&self) -> f64 {
        self.steps as f64 / self.generation_time.as_secs_f64().max(1e-9)
    }
}

/// A sequence whose keys and values stay on the device: a prompt with the same prefix is prefilled only after that prefix.
pub struct Session<'a> {
    model: &'a LoadedModel,
    text: Box<dyn Continuation + 'a>,
    /// Tokens in the cache.
    kept: Vec<u32>,
    unknown: Vec<usize>,
    /// Sampling on the device for the latest sampler.
    chooser: Option<CachedRules>,
}

/// Rules, logit bias, and their copy on the device.
struct CachedRules {
    rules: Rules,
    bias: Vec<(u32, f32)>,
    by: Arc<Chooser>,
}

impl<'a> Session<'a> {
    pub(super) fn new(model: &'a LoadedModel) -> Result<Self> {
        let (text, unknown) = (model.decoder().continuation()?, model.unknown()?);
        Ok(Self { model, text, kept: Vec::new(), unknown, chooser: None })
    }

    /// Returns the model.
    pub fn model(&self) -> &'a LoadedModel {
        self.model
    }

    /// Clears the cache.
    ///
    /// # Errors
    /// Device errors.
    pub fn clear(&mut self) -> Result<()> {
        self.text = self.model.decoder().continuation()?;
        self.kept.clear();
        Ok(())
    }

    fn check(&self, prompt: &[u32]) -> Result<()> {
        let (vocab, context) = (self.model.config().vocab, self.model.context());
        if prompt.is_empty() {
            return Err(Error::format("the prompt is empty: expected at least one token to continue"));
        }
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab) {
            return Err(Error::format(format!(
                "token {id} of the prompt is outside the vocabulary of {vocab}"
            )));
        }
        if prompt.len() > context {
            let trained = self.model.trained_context();
            let advice = match trained > context {
                true => format!("; the model supports up to {trained} (-c)"),
                false => String::new(),
            };
            return Err(Error::format(format!(
                "the prompt has {} tokens, but the context has {context}{advice}; nothing was cut: shorten it",
                prompt.len()
            )));
        }
        Ok(())
    }

    /// Returns the logits (V) after the last of `ids`; those of ids without text are −∞.
    fn logits(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let mut logits = self.text.logits_after(ids)?;
        self.kept.clear();
        self.kept.extend_from_slice(ids);
        for id in &self.unknown {
            if let Some(logit) = logits.get_mut(*id) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(logits)
    }

    /// Sampling on the device with the settings of `sampler`; `None` if it is not supported there.
    pub(super) fn chooser(&mut self, sampler: &Sampler) -> Result<Option<Arc<Chooser>>> {
        let vocab = self.model.config().vocab;
        let bias = &sampler.sampling().logit_bias;
        // Sampling on the host reports invalid tokens, and adds several biases of one token in their order.
        let mut ids: Vec<u32> = bias.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.len() < bias.len() || ids.last().is_some_and(|id| *id as usize >= vocab) {
            return Ok(None);
        }
        let Some(rules) = sampler.rules(vocab) else { return Ok(None) };
        if let Some(known) = self.chooser.as_ref().filter(|known| known.rules == rules && known.bias == *bias)
        {
            return Ok(Some(Arc::clone(&known.by)));
        }
        let mut added = vec![0.0; if self.unknown.is_empty() && bias.is_empty() { 0 } else { vocab }];
        bias.iter().for_each(|(id, more)| added[*id as usize] = *more);
        self.unknown.iter().for_each(|id| added[*id] = f32::NEG_INFINITY);
        let device = self.model.decoder().last_device();
        let added = Some(&added[..]).filter(|added| !added.is_empty());
        let Some(by) = Chooser::new(device, &rules, 1, vocab, added)? else { return Ok(None) };
        let by = Arc::new(by);
        self.chooser = Some(CachedRules { rules, bias: bias.clone(), by: Arc::clone(&by) });
        Ok(Some(by))
    }

    /// Returns the token after `ids`, sampled on the device if possible. At most `most` tokens will be requested.
    fn next(
        &mut self,
        ids: &[u32],
        sampler: &mut Sampler,
        by: Option<&Arc<Chooser>>,
        most: usize,
    ) -> Result<u32> {
        if let Some(by) = by {
            let choice = Choice { by, word: &|ahead| sampler.word(ahead), most };
            if let Some(id) = self.text.token_after(ids, &choice)? {
                self.kept.clear();
                self.kept.extend_from_slice(ids);
                sampler.took(id);
                return Ok(id);
            }
        }
        let logits = self.logits(ids)?;
        sampler.sample(logits)
    }

    /// Prefills a prompt in chunks from the end of the cache. Returns `None` if `stop` returned true in between.
    fn read(&mut self, prompt: &[u32], stop: &dyn Fn() -> bool) -> Result<(usize, Option<Vec<f32>>)> {
        if !self.text.keeps(prompt.len()) {
            self.kept.clear();
        }
        let same = self.kept.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(prompt.len() - 1);
        let mut end = same;
        loop {
            if stop() {
                return Ok((end - same, None));
            }
            end = (end + CHUNK).min(prompt.len());
            if end == prompt.len() {
                return Ok((end - same, Some(self.logits(prompt)?)));
            }
            self.text.begin(&prompt[..end], prompt.len())?;
            self.kept.clear();
            self.kept.extend_from_slice(&prompt[..end]);
        }
    }

    /// Continues `prompt`. A prompt that is longer than the context is an error.
    ///
    /// # Errors
    /// `Format` for a prompt that is empty, too long or has unknown tokens; errors of the sampler, of the device and of `watch`.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        sampler: &mut Sampler,
        request: Request,
        watch: &mut Watch<'_>,
    ) -> Result<Generated> {
        self.check(prompt)?;
        let request = Request { max: request.max.or(self.model.usual_length()), ..request };
        let (tokenizer, context) = (self.model.tokenizer()?, self.model.context());
        let began = Instant::now();
        let (read, logits) = self.read(prompt, watch.stop)?;
        let mut out = Generated {
            tokens: Vec::new(),
            text: String::new(),
            finish: Finish::Length,
            prompt: prompt.len(),
            read,
            prompt_time: began.elapsed(),
            steps: 0,
            generation_time: Duration::ZERO,
        };
        let Some(logits) = logits else {
            out.finish = Finish::Stopped;
            return Ok(out);
        };
        if request.max == Some(0) {
            return Ok(out);
        }
        let mut output = request.output(tokenizer);
        sampler.begin(prompt);
        let by = self.chooser(sampler)?;
        let began = Instant::now();
        let mut ids = prompt.to_vec();
        let mut id = sampler.sample(logits)?;
        let mut said = |out: &mut Generated, text: &str| {
            out.text.push_str(text);
            if text.is_empty() { Ok(()) } else { (watch.text)(text) }
        };
        out.finish = loop {
            let chunk = output.push(id)?;
            said(&mut out, &chunk.text)?;
            ids.push(id);
            if !matches!(chunk.finish, Some(Finish::Token(_))) {
                out.tokens.push(id);
            }
            let early = match chunk.finish {
                Some(finish) => break finish,
                None if (watch.stop)() => Some(Finish::Stopped),
                None if ids.len() > context && !request.slide => Some(Finish::Context),
                None => None,
            };
            if let Some(finish) = early {
                said(&mut out, &output.close())?;
                break finish;
            }
            let most = request.wanted(out.tokens.len(), (context + 1).saturating_sub(ids.len()));
            id = self.next(&ids, sampler, by.as_ref(), most)?;
            out.steps += 1;
        };
        out.generation_time = began.elapsed();
        if ids.len() > context {
            // The cached tokens have other positions than a new sequence.
            self.clear()?;
        }
        Ok(out)
    }
}
