//! Continuous batching (Yu et al. 2022, "Orca"): requests arrive and end at any time. Prompts are prefilled in chunks between decoding steps, and
//! sequences with the same prefix share its pages of the cache (Kwon et al. 2023, "PagedAttention").
//!
//! An [`Engine`] belongs to one thread. The thread calls [`add`](Engine::add) and [`cancel`](Engine::cancel) when requests arrive and end. It calls
//! [`step`](Engine::step) until the engine is [idle](Engine::is_idle), and forwards the events of a step to the requesters:
//!
//! ```no_run
//! # use netcl_llm::engine::*;
//! # use netcl_llm::sampler::Sampler;
//! # use std::{collections::HashMap, sync::mpsc};
//! # fn serve(model: &LoadedModel, requests: &mpsc::Receiver<(Job, mpsc::Sender<Event>)>) -> netcl_tensor::Result<()> {
//! # use netcl_llm::LoadedModel;
//! let mut engine = model.engine(EngineOptions::default(), Speculation::Off)?;
//! let mut listeners = HashMap::new();
//! loop {
//!     // Without work wait for a request, otherwise take one if available.
//!     let come = if engine.is_idle() { requests.recv().ok() } else { requests.try_recv().ok() };
//!     if let Some((job, listener)) = come {
//!         listeners.insert(engine.add(job)?, listener);
//!     } else if engine.is_idle() {
//!         return Ok(());
//!     }
//!     for event in engine.step()? {
//!         let id = event.id();
//!         let heard = listeners.get(&id).is_some_and(|listener| listener.send(event).is_ok());
//!         if !heard {
//!             engine.cancel(id); // the receiver is gone
//!         }
//!     }
//! }
//! # }
//! ```
//!
//! Guarantees:
//!
//! - A sequence does not depend on concurrent sequences, only on its prompt, its sampler and the model. (The last bits of logits differ with the
//!   batch size, the same as between devices.)
//! - Requests are admitted in turns: first the one with the fewest tokens so far (the first of equal ones), then the one that has waited longest.
//!   Prompts take turns, a chunk each, or several short prompts instead of one. Then all prefilled sequences are decoded, in runs of about 4 ms; one
//!   more run may already be enqueued.
//! - While requests wait, sequences have time slices of 8 to 32 tokens. At the end of its slice a sequence is paused: it keeps its pages and waits
//!   after the others. If the next one lacks pages, slices are longer, and paused sequences lose their pages.
//! - All keys of a sequence are rotated by the same frequencies. A sequence that exceeds the original context of LongRoPE is prefilled again, once,
//!   the same as in `transformers`.
//! - If pages run out, paused sequences give up theirs, then the newest sequence, which waits before all others. Both are prefilled again, mostly
//!   from pages that are still cached. A single sequence without enough pages ends with [`Finish::Context`]. Nothing is ever truncated.
//! - A full queue is an error of [`add`](Engine::add) (`Memory`; check [`is_full`](Engine::is_full) first: HTTP's 429). A prompt that is too long is
//!   another one (`Format`: 400). An error of one sequence is [`Event::Failed`]. An error of [`step`](Engine::step) comes from the device, and the
//!   engine is then unusable.

mod costs;
mod draft;
mod pages;
mod request;
mod slices;
mod steps;
mod text;

pub use costs::StepCost;
pub use draft::{MAX_DRAFTED, Speculation};
pub use request::{EngineOptions, Event, Job, Load, Logprobs, RequestId, Usage};

use super::LoadedModel;
use super::fit::{available, is_on_host, is_shared, shared};
use crate::sampler::{Finish, Sampler};
use crate::tokenizer::Tokenizer;
use draft::Drafts;
use netcl_device::{ErrorKind, counted, human};
use netcl_model::decoder::{Decoder, Paged, Span};
use netcl_model::model::Model as _;
use netcl_tensor::ops::choose::Rules;
use netcl_tensor::{Device, Error, Result};
use pages::Allocator;
use std::collections::VecDeque;
use std::time::Instant;
use text::{ChosenToken, Text};

/// Maximum number of prompts that are prefilled between two runs.
const MAX_PROMPTS: usize = 8;

/// Decodes many sequences at the same time.
pub struct Engine<'a> {
    decoder: &'a Decoder,
    tokenizer: Option<&'a Tokenizer>,
    /// Token ids without a text.
    unknown: Vec<usize>,
    options: EngineOptions,
    cache: Paged<'a>,
    pages: Allocator,
    drafts: Drafts<'a>,
    window: Option<usize>,
    /// Requests that are not admitted yet, and paused sequences.
    waiting: VecDeque<Text<'a>>,
    /// Sequences in prefill or decode, oldest first.
    active: Vec<Text<'a>>,
    /// Number of sequences admitted so far.
    admitted: usize,
    /// Whether the sequence to be admitted next lacks pages.
    lacks_pages: bool,
    /// The sequence whose prompt was prefilled last.
    turn: RequestId,
    next: u64,
    /// Number of steps of the next run.
    steps: usize,
    /// A run that is already enqueued.
    ahead: Option<steps::Run>,
    /// Time at which the tokens of the last run were read.
    sampled: Option<Instant>,
    /// Whether this step prefills part of a prompt.
    has_read: bool,
    costs: costs::Costs,
    /// Runs so far.
    rounds: usize,
    /// Maximum number of new tokens for a request without a limit.
    usual: Option<usize>,
}

impl LoadedModel {
    /// Returns the bytes that steps and prompts of an engine need in addition to weights and cache.
    pub fn workspace(&self, options: EngineOptions) -> u64 {
        self.needs.workspace(self.decoder().config().context, options.texts, options.page)
    }

    /// Returns an engine for this model. Its [workspace](Self::workspace) is subtracted from the permitted [memory](EngineOptions::memory).
    ///
    /// # Errors
    /// Same as [`Engine::new`].
    pub fn engine<'a>(&'a self, options: EngineOptions, speculation: Speculation<'a>) -> Result<Engine<'a>> {
        let unknown = match self.tokenizer() {
            Ok(_) => self.unknown()?,
            Err(_) => Vec::new(),
        };
        let work = self.workspace(options);
        let memory = options.memory.map(|memory| memory.saturating_sub(work));
        let options = EngineOptions { memory, ..options };
        let made = Engine::new(self.decoder(), self.tokenizer().ok(), unknown, options, speculation);
        let made = made.map(|engine| Engine { usual: self.usual_length(), ..engine });
        made.map_err(|error| match memory {
            Some(_) if error.kind() == ErrorKind::Memory => error.context(format!(
                "with {} reserved for prompts and steps of {}",
                human(work),
                counted(options.texts, "text")
            )),
            _ => error,
        })
    }
}

impl<'a> Engine<'a> {
    /// Returns an engine for a decoder. Tokens of `unknown` are never sampled. Without a tokenizer, results have tokens but not text, and
    /// neither end tokens nor stop strings end a sequence.
    ///
    /// # Errors
    /// `Format` for options that are 0 or a draft model with another vocabulary; `Memory` if the cache does not fit.
    pub fn new(
        decoder: &'a Decoder,
        tokenizer: Option<&'a Tokenizer>,
        unknown: Vec<usize>,
        options: EngineOptions,
        speculation: Speculation<'a>,
    ) -> Result<Self> {
        let EngineOptions { texts, page, chunk, .. } = options;
        if texts == 0 || page == 0 || chunk == 0 {
            return Err(Error::format(format!(
                "engine: {texts} texts, pages of {page} tokens, chunks of {chunk}: expected at least 1 of each"
            )));
        }
        let vocab = decoder.config().vocab;
        let count = page_count(decoder, options)?;
        let bias = (!unknown.is_empty()).then(|| {
            let mut bias = vec![0.0; vocab];
            unknown.iter().for_each(|id| bias[*id] = f32::NEG_INFINITY);
            bias
        });
        let cache = Paged::new(decoder, count, page, options.cache, bias.as_deref())?;
        Ok(Self {
            decoder,
            tokenizer,
            unknown,
            options,
            cache,
            pages: Allocator::new(count, page, options.share),
            drafts: Drafts::new(speculation, options.drafted, vocab)?,
            window: decoder.longest_window(),
            waiting: VecDeque::new(),
            active: Vec::new(),
            admitted: 0,
            lacks_pages: false,
            turn: RequestId(0),
            next: 0,
            steps: 1,
            ahead: None,
            sampled: None,
            has_read: false,
            costs: costs::Costs::default(),
            rounds: 0,
            usual: None,
        })
    }

    /// Returns the maximum number of tokens of a sequence: the context length, or the capacity of the cache.
    pub fn longest(&self) -> usize {
        self.cache.longest()
    }
    /// Returns true if no work is left.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty()
    }
    /// Returns true if [`add`](Self::add) would reject a request because too many are waiting.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= self.options.queue
    }
    /// Returns its load.
    pub fn load(&self) -> Load {
        let running = self.active.iter().filter(|text| text.is_read()).count();
        Load {
            waiting: self.waiting.len(),
            reading: self.active.len() - running,
            running,
            pages: self.pages.count(),
            available: self.pages.available(),
            idle: self.pages.idle(),
        }
    }

    /// Returns the costs of its steps so far, by number of sequences.
    pub fn costs(&self) -> Vec<StepCost> {
        self.costs.list(|texts| self.cache.launches(texts))
    }

    /// Adds a request. Its first event comes from a later [`step`](Self::step).
    ///
    /// # Errors
    /// `Format` for a prompt that is empty, longer than the context or the cache, or has unknown tokens. `Unsupported` for a request with a sliding
    /// context. `Memory` if the queue is full; check [`is_full`](Self::is_full) first.
    pub fn add(&mut self, mut job: Job) -> Result<RequestId> {
        job.request.max = job.request.max.or(self.usual);
        let (vocab, n) = (self.decoder.config().vocab, job.prompt.len());
        if n == 0 {
            return Err(Error::format("the prompt is empty: expected at least one token to continue"));
        }
        if let Some(id) = job.prompt.iter().find(|id| **id as usize >= vocab) {
            return Err(Error::format(format!(
                "token {id} of the prompt is outside the vocabulary of {vocab}"
            )));
        }
        if n > self.longest() {
            return Err(Error::format(format!(
                "the prompt has {n} tokens, but a text here has at most {} (context {}, cache {}); nothing was cut: shorten it",
                self.longest(),
                self.decoder.config().context,
                counted(self.pages.count() * self.pages.size(), "token")
            )));
        }
        if job.request.slide {
            return Err(Error::unsupported("texts that continue beyond the context cannot be batched"));
        }
        if self.is_full() {
            return Err(Error::memory(format!(
                "the queue is full: {} waiting in addition to {}; try again later",
                counted(self.waiting.len(), "request"),
                counted(self.active.len(), "text")
            )));
        }
        self.next += 1;
        let id = RequestId(self.next);
        let rules = self.rules(&job.sampler).filter(|_| job.logprobs.is_none());
        let kind = self.cache.class_of_length(n);
        let text = Text::new(id, job, self.tokenizer, rules, (kind, self.cache.reach()));
        self.waiting.push_back(text);
        Ok(id)
    }

    /// Adds `n` requests for the same prompt. They share its pages, and it is prefilled once. The i-th sampler uses the seed of the job plus i.
    ///
    /// # Errors
    /// Same as [`add`](Self::add), also if the queue cannot hold all of them; none is added then. `Format` if `n` is 0.
    pub fn add_choices(&mut self, job: Job, n: usize) -> Result<Vec<RequestId>> {
        if n == 0 {
            return Err(Error::format("no choices: expected at least 1"));
        }
        let room = self.options.queue.saturating_sub(self.waiting.len());
        if n > room {
            return Err(Error::memory(format!(
                "the queue has room for {}, but {n} choices were requested; try again later",
                counted(room, "request")
            )));
        }
        let seed = job.sampler.sampling().seed;
        let mut ids: Vec<RequestId> = Vec::with_capacity(n);
        for i in 0..n {
            let sampler = job.sampler.clone().seeded(seed.wrapping_add(i as u64));
            ids.push(self.add(Job { sampler, ..job.clone() })?);
            if let Some(text) = self.waiting.back_mut().filter(|_| self.options.share) {
                text.after = ids.first().copied().filter(|first| *first != text.id);
            }
        }
        Ok(ids)
    }

    /// Returns true if a sequence waits until another one with the same prompt is prefilled.
    fn is_behind(&self, text: &Text<'_>) -> bool {
        let Some(first) = text.after else { return false };
        let mut unread = self.waiting.iter().chain(self.active.iter().filter(|text| !text.has_begun()));
        unread.any(|other| other.id == first && !other.has_begun())
    }

    /// Returns the rules of a sampler that the device supports; biases of a single sequence are applied on the host.
    fn rules(&self, sampler: &Sampler) -> Option<Rules> {
        sampler.rules(self.decoder.config().vocab).filter(|_| sampler.sampling().logit_bias.is_empty())
    }

    /// Ends a request early and returns its last events; none if it has already ended.
    pub fn cancel(&mut self, id: RequestId) -> Vec<Event> {
        let mut events = Vec::new();
        if let Some(at) = self.waiting.iter().position(|text| text.id == id) {
            if let Some(mut text) = self.waiting.remove(at) {
                text.release(&mut self.pages);
                self.drafts.forget(id.0);
                text.close(Finish::Stopped, &mut events);
            }
        } else if let Some(at) = self.active.iter().position(|text| text.id == id) {
            self.end(at, Ok(Finish::Stopped), &mut events);
        }
        events
    }

    /// Performs some work: admits requests, prefills a chunk of one prompt, and advances all sequences by a few tokens. Returns the events.
    ///
    /// # Errors
    /// Device errors. Errors of a single sequence are [`Event::Failed`].
    pub fn step(&mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        self.admit();
        self.read(&mut events)?;
        self.go_on(&mut events)?;
        Ok(events)
    }

    /// Returns the number of tokens of a sequence that need pages for its prompt at the same time.
    fn to_read(&self, text: &Text<'_>) -> usize {
        let ahead = self.window.map_or(usize::MAX, |window| text.cached + window + self.options.chunk);
        text.ids.len().min(ahead)
    }

    /// Prefills a chunk of one sequence, or of several with short chunks; sequences take turns.
    fn read(&mut self, events: &mut Vec<Event>) -> Result<()> {
        self.turn();
        let mut left = self.options.chunk;
        self.has_read = false;
        while let Some(at) = self.next_unread() {
            let text = &self.active[at];
            let (end, length) = (text.chunk(self.options.chunk), text.ids.len());
            // Even the shortest prompt takes some time.
            let tokens = (end - text.cached).max(self.options.chunk / MAX_PROMPTS);
            if self.has_read && tokens > left {
                return Ok(());
            }
            (left, self.has_read) = (left.saturating_sub(tokens.max(1)), true);
            self.read_chunk(at, end, length, events)?;
        }
        Ok(())
    }

    /// Resets sequences that exceed the context of LongRoPE's short frequencies, so that they are prefilled again with the long ones. Truncates other
    /// sequences to the content of their states, unless enqueued steps continue them.
    fn turn(&mut self) {
        for text in &mut self.active {
            let kind = self.cache.class_of_length(text.ids.len());
            text.turn(kind, &mut self.pages);
            if !self.ahead.as_ref().is_some_and(|run| run.is_behind(text)) {
                text.go_back();
            }
        }
    }

    /// Returns the next sequence to prefill.
    fn next_unread(&self) -> Option<usize> {
        let unread = |text: &Text<'_>| !text.is_read();
        let after = self.active.iter().position(|text| unread(text) && text.id > self.turn);
        after.or_else(|| self.active.iter().position(unread))
    }

    /// Prefills a sequence up to `end`; `length` is the length of a sequence with the same rotary angles.
    fn read_chunk(&mut self, at: usize, end: usize, length: usize, events: &mut Vec<Event>) -> Result<()> {
        let text = &self.active[at];
        let (id, begun, all) = (text.id, text.has_begun(), text.ids.len());
        self.turn = id;
        if !self.provide(id, end, events)? {
            return Ok(());
        }
        let Some(at) = self.active.iter().position(|text| text.id == id) else { return Ok(()) };
        let text = &mut self.active[at];
        let (from, table) = (text.cached, text.table());
        let (ids, first) = (&text.ids[from..end], end == all && !begun);
        let logits = match first {
            true => Some(self.cache.read(ids, from, &table, length)?),
            false => self.cache.fill(ids, from, &table, length).map(|_| None)?,
        };
        text.cached = end;
        text.wrote(end);
        text.seal(&mut self.pages);
        text.leave(self.window, &mut self.pages);
        if let Some(logits) = logits {
            let sampled = sample(&mut text.sampler, logits.to_vec()?, &self.unknown, text.logprobs);
            let finish = sampled.and_then(|taken| text.push(taken, events));
            self.finish(at, finish, events);
        }
        Ok(())
    }

    /// Allocates pages for the tokens of a sequence up to `end` that are not in the cache yet. Returns false if the sequence was preempted.
    fn provide(&mut self, id: RequestId, end: usize, events: &mut Vec<Event>) -> Result<bool> {
        let size = self.pages.size();
        loop {
            let Some(at) = self.active.iter().position(|text| text.id == id) else { return Ok(false) };
            let text = &mut self.active[at];
            let first = text.cached / size;
            let shared = (first..text.pages.len())
                .find(|page| text.pages[*page].is_some_and(|page| self.pages.is_shared(page)));
            if shared.is_none() && text.pages.len() * size >= end {
                return Ok(true);
            }
            let Some(new) = self.pages.take() else {
                if !self.reclaim() && !self.preempt(id, events) {
                    return Ok(false);
                }
                continue;
            };
            match shared {
                Some(page) => {
                    let old = text.pages[page].replace(new);
                    if let Some(old) = old {
                        self.cache.copy(old, new)?;
                        self.pages.give(old);
                    }
                }
                None => text.pages.push(Some(new)),
            }
        }
    }

    /// Preempts the newest sequence: takes its pages and lets it wait before all others; `wanting` is the sequence that needs them. If it is the only
    /// sequence, it ends because the cache is full. Returns false if `wanting` itself was preempted.
    fn preempt(&mut self, wanting: RequestId, events: &mut Vec<Event>) -> bool {
        if self.active.len() <= 1 {
            self.end(0, Ok(Finish::Context), events);
            return false;
        }
        let Some(mut text) = self.active.pop() else { return false };
        let other = text.id != wanting;
        text.release(&mut self.pages);
        text.usage.preempted += 1;
        self.waiting.push_front(text);
        other
    }

    /// Handles a token that may end a sequence.
    fn finish(&mut self, at: usize, finish: Result<Option<Finish>>, events: &mut Vec<Event>) {
        let full = self.active[at].left(self.longest()) == 0;
        match finish {
            Err(error) => self.end(at, Err(error), events),
            Ok(Some(finish)) => self.end(at, Ok(finish), events),
            Ok(None) if full => self.end(at, Ok(Finish::Context), events),
            Ok(None) => {}
        }
    }

    fn end(&mut self, at: usize, finish: Result<Finish>, events: &mut Vec<Event>) {
        if at >= self.active.len() {
            return;
        }
        let mut text = self.active.remove(at);
        text.release(&mut self.pages);
        self.drafts.forget(text.id.0);
        match finish {
            Ok(finish) => text.close(finish, events),
            Err(error) => text.fail(error, events),
        }
    }
    #[cfg(test)]
    fn held(&self) -> Vec<u32> {
        let texts = self.active.iter().chain(&self.waiting);
        texts.flat_map(|text| text.pages.iter().flatten().copied()).collect()
    }
}

/// Samples a token on the host, with its probability and those of the requested number of others.
fn sample(
    sampler: &mut Sampler,
    mut logits: Vec<f32>,
    unknown: &[usize],
    listed: Option<usize>,
) -> Result<ChosenToken> {
    for id in unknown {
        if let Some(logit) = logits.get_mut(*id) {
            *logit = f32::NEG_INFINITY;
        }
    }
    let before = listed.map(|most| (logits.clone(), most));
    let token = sampler.sample(logits)?;
    let logprobs = before.map(|(logits, most)| Logprobs::of(&logits, token, most));
    Ok(ChosenToken { token, on_device: false, logprobs })
}

/// Returns the number of cache pages: the requested number, or as many as the sequences can use and the devices have memory for, each for its layers.
fn page_count(decoder: &Decoder, options: EngineOptions) -> Result<usize> {
    let EngineOptions { texts, page, cache, tokens, .. } = options;
    let spans: Vec<&Span> = decoder.spans().collect();
    let bytes_of = |span: &Span| decoder.page_bytes(span.layers.clone(), page, cache);
    // Each device for its layers, and all devices that share one memory together.
    let mut fit = (usize::MAX, 0, 0, "");
    for span in &spans {
        let capabilities = span.device.capabilities();
        let sharing = || spans.iter().filter(|other| is_shared(other.device.capabilities(), capabilities));
        let all = sharing().fold(0u64, |all, other| all.saturating_add(bytes_of(other)));
        let live = taken(sharing().map(|span| &span.device));
        for (bytes, room) in [(bytes_of(span), available(capabilities)), (all, shared(capabilities))] {
            // Steps and prompts need memory in addition to the cache.
            let free = room.saturating_sub(live) / 10 * 9;
            let pages = usize::try_from(free / bytes.max(1)).unwrap_or(usize::MAX);
            if pages < fit.0 {
                fit = (pages, bytes, free, capabilities.id.as_str());
            }
        }
    }
    if let Some(memory) = options.memory {
        let bytes = spans.iter().fold(0u64, |all, span| all.saturating_add(bytes_of(span)));
        let pages = usize::try_from(memory / bytes.max(1)).unwrap_or(usize::MAX);
        if pages < fit.0 {
            fit = (pages, bytes, memory, "the memory that models may take");
        }
    }
    let (fit, bytes, free, device) = fit;
    let wanted = match tokens {
        Some(tokens) => tokens.div_ceil(page),
        None => texts.saturating_mul(decoder.config().context.div_ceil(page)).min(fit),
    };
    if wanted == 0 || wanted > fit {
        let wanted = wanted.max(1);
        return Err(Error::memory(format!(
            "a cache of {} needs {}; {device} has {} for it, which is enough for {}",
            counted(wanted.saturating_mul(page), "token"),
            human(bytes.saturating_mul(wanted as u64)),
            human(free),
            counted(fit.saturating_mul(page), "token")
        )));
    }
    Ok(wanted)
}

/// Returns the bytes in use in the memory of these devices. The host's available memory already excludes them.
fn taken<'a>(devices: impl Iterator<Item = &'a Device>) -> u64 {
    let (mut live, mut seen) = (0, Vec::<&Device>::new());
    for device in devices {
        if !is_on_host(device.capabilities()) && !seen.iter().any(|other| other.same(device)) {
            live += device.memory().live as u64;
        }
        seen.push(device);
    }
    live
}

#[cfg(test)]
mod hybrid_tests;
#[cfg(test)]
mod request_tests;
#[cfg(test)]
mod slice_tests;
#[cfg(test)]
mod tests;
