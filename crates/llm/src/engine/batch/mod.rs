//! Continuous batching (Yu et al. 2022, "Orca"): requests come and go at any time, prompts are read in chunks between the steps of the texts that are
//! being continued, and texts with the same beginning share its pages of the cache (Kwon et al. 2023, "PagedAttention").
//!
//! An [`Engine`] belongs to one thread. That calls [`add`](Engine::add) and [`cancel`](Engine::cancel) as requests come and go, and
//! [`step`](Engine::step) as long as the engine is not [idle](Engine::is_idle); the events of a step go to whoever asked:
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
//!     // With nothing to do wait for a request, else take what has come.
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
//!             engine.cancel(id); // nobody listens any more
//!         }
//!     }
//! }
//! # }
//! ```
//!
//! Rules of the house:
//!
//! - A text is what it is alone, whatever other texts there are: it depends on its prompt, its sampler and the model. (Logits differ in their last bits
//!   with the number of texts in a step, as they do between devices.)
//! - Requests are let in by turns: first the one with the fewest tokens so far, of equal ones the first, then the one that has waited longest. Prompts
//!   take turns, a chunk each, or several short ones instead of one; then all texts that are read go on, in runs of about 4 ms, of which one more may be
//!   enqueued already.
//! - While requests wait, texts have time slices, of 8 to 32 tokens. At its end a text is paused: it keeps its pages and waits behind the others. Where
//!   the next one lacks pages, slices are longer, and texts that are paused lose theirs.
//! - All keys of a text are rotated by the same frequencies. A text that grows beyond the original context of LongRoPE is read again, once, as
//!   `transformers` does.
//! - If pages run out, paused texts give theirs up, then the text that came last, which waits in front of all others. Both are read again, mostly from
//!   pages that still hold them. A text that is alone and has no room ends with [`Finish::Context`]. Nothing is ever cut.
//! - A full queue is an error of [`add`](Engine::add) (`Memory`; [`is_full`](Engine::is_full) says it beforehand: HTTP's 429), a prompt that is too long
//!   another one (`Format`: 400). What goes wrong with one text is [`Event::Failed`]; an error of [`step`](Engine::step) is of the device, and the engine
//!   is of no use any more.

mod costs;
mod draft;
mod pages;
mod request;
mod slices;
mod steps;
mod text;

pub use costs::StepCost;
pub use draft::{MOST_DRAFTED, Speculation};
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
use text::{Taken, Text};

/// Prompts that are read between two runs, at most.
const MOST_PROMPTS: usize = 8;

/// Continues many texts at the same time.
pub struct Engine<'a> {
    decoder: &'a Decoder,
    tokenizer: Option<&'a Tokenizer>,
    /// Tokens that no text belongs to.
    unknown: Vec<usize>,
    options: EngineOptions,
    cache: Paged<'a>,
    pages: Allocator,
    drafts: Drafts<'a>,
    window: Option<usize>,
    /// Requests that are not let in yet, and texts that are paused.
    waiting: VecDeque<Text<'a>>,
    /// Texts that are read or continued, those that came first in front.
    active: Vec<Text<'a>>,
    /// Texts that were let in so far.
    admitted: usize,
    /// Whether the text that waits to be let in lacks pages.
    lacks_pages: bool,
    /// The text whose prompt was read last.
    turn: RequestId,
    next: u64,
    /// Steps of the next run.
    steps: usize,
    /// A run that is enqueued already.
    ahead: Option<steps::Run>,
    /// When the tokens of the last run were read.
    sampled: Option<Instant>,
    /// Whether this step reads a part of a prompt.
    has_read: bool,
    costs: costs::Costs,
    /// Runs so far.
    rounds: usize,
    /// New tokens at most of a request that does not say how many.
    usual: Option<usize>,
}

impl LoadedModel {
    /// Bytes that the steps and prompts of an engine take beside weights and cache.
    pub fn workspace(&self, options: EngineOptions) -> u64 {
        self.needs.workspace(self.decoder().config().context, options.texts, options.page)
    }

    /// An engine for this model. Of the [memory](EngineOptions::memory) that it may take its [workspace](Self::workspace) is kept free.
    ///
    /// # Errors
    /// As [`Engine::new`].
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
    /// An engine for a decoder. Tokens of `unknown` are never sampled. Without a tokenizer there is no text beside tokens, and neither end tokens nor
    /// stop texts end one.
    ///
    /// # Errors
    /// `Format` for options that are 0 or a draft model of another vocabulary; `Memory` if the cache does not fit.
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

    /// Tokens that a text can have at most: the context, or what the cache has room for.
    pub fn longest(&self) -> usize {
        self.cache.longest()
    }
    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty()
    }
    /// Whether [`add`](Self::add) would refuse a request because too many wait.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= self.options.queue
    }
    /// How busy it is.
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

    /// What its steps have taken so far, by the number of texts in them.
    pub fn costs(&self) -> Vec<StepCost> {
        self.costs.list(|texts| self.cache.launches(texts))
    }

    /// Adds a request. Its first event comes with a later [`step`](Self::step).
    ///
    /// # Errors
    /// `Format` for a prompt that is empty, longer than the context or the cache, or of unknown tokens; `Unsupported` for a request that slides;
    /// `Memory` if the queue is full, which [`is_full`](Self::is_full) says beforehand.
    pub fn add(&mut self, mut job: Job) -> Result<RequestId> {
        job.request.max = job.request.max.or(self.usual);
        let (vocab, n) = (self.decoder.config().vocab, job.prompt.len());
        if n == 0 {
            return Err(Error::format("the prompt is empty: give at least one token to continue"));
        }
        if let Some(id) = job.prompt.iter().find(|id| **id as usize >= vocab) {
            return Err(Error::format(format!(
                "token {id} of the prompt is outside the vocabulary of {vocab}"
            )));
        }
        if n > self.longest() {
            return Err(Error::format(format!(
                "the prompt has {n} tokens, a text here at most {} (context {}, cache {}): nothing was cut, shorten it",
                self.longest(),
                self.decoder.config().context,
                counted(self.pages.count() * self.pages.size(), "token")
            )));
        }
        if job.request.slide {
            return Err(Error::unsupported("texts that go on beyond the context cannot be batched"));
        }
        if self.is_full() {
            return Err(Error::memory(format!(
                "the queue is full: {} waiting beside {}; try again later",
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

    /// Adds `n` requests for the same prompt, whose pages they share: it is read once. The sampler of the i-th draws with the seed of the job's plus i.
    ///
    /// # Errors
    /// As [`add`](Self::add), also if the queue has no room for all of them; none is added then. `Format` for none.
    pub fn add_choices(&mut self, job: Job, n: usize) -> Result<Vec<RequestId>> {
        if n == 0 {
            return Err(Error::format("no choices: expected at least 1"));
        }
        let room = self.options.queue.saturating_sub(self.waiting.len());
        if n > room {
            return Err(Error::memory(format!(
                "the queue has room for {}, and {n} choices are wanted; try again later",
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

    /// Whether a text waits for another one with the same prompt to be read.
    fn is_behind(&self, text: &Text<'_>) -> bool {
        let Some(first) = text.after else { return false };
        let mut unread = self.waiting.iter().chain(self.active.iter().filter(|text| !text.has_begun()));
        unread.any(|other| other.id == first && !other.has_begun())
    }

    /// The rules of a sampler that the device can follow; those with biases of a text are followed by the host.
    fn rules(&self, sampler: &Sampler) -> Option<Rules> {
        sampler.rules(self.decoder.config().vocab).filter(|_| sampler.sampling().logit_bias.is_empty())
    }

    /// Ends a request early. Its last events are returned; none for one that is done already.
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

    /// Does some work: lets requests in, reads a chunk of one prompt, and continues all texts by a few tokens. What happened.
    ///
    /// # Errors
    /// Those of the device. What concerns a single text is [`Event::Failed`].
    pub fn step(&mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        self.admit();
        self.read(&mut events)?;
        self.go_on(&mut events)?;
        Ok(events)
    }

    /// Tokens of a text that need pages for its prompt at the same time.
    fn to_read(&self, text: &Text<'_>) -> usize {
        let ahead = self.window.map_or(usize::MAX, |window| text.cached + window + self.options.chunk);
        text.ids.len().min(ahead)
    }

    /// Reads a chunk of a text that is not read yet, or of several whose chunks are as long together; they take turns.
    fn read(&mut self, events: &mut Vec<Event>) -> Result<()> {
        self.turn();
        let mut left = self.options.chunk;
        self.has_read = false;
        while let Some(at) = self.next_unread() {
            let text = &self.active[at];
            let (end, length) = (text.chunk(self.options.chunk), text.ids.len());
            // The shortest prompt takes a while as well.
            let tokens = (end - text.cached).max(self.options.chunk / MOST_PROMPTS);
            if self.has_read && tokens > left {
                return Ok(());
            }
            (left, self.has_read) = (left.saturating_sub(tokens.max(1)), true);
            self.read_chunk(at, end, length, events)?;
        }
        Ok(())
    }

    /// Texts that have grown beyond the context of LongRoPE's short frequencies are read again with the long ones. Others go back to what their states
    /// hold, unless enqueued steps continue them.
    fn turn(&mut self) {
        for text in &mut self.active {
            let kind = self.cache.class_of_length(text.ids.len());
            text.turn(kind, &mut self.pages);
            if !self.ahead.as_ref().is_some_and(|run| run.is_behind(text)) {
                text.go_back();
            }
        }
    }

    /// The text whose turn it is, of those that are not read.
    fn next_unread(&self) -> Option<usize> {
        let unread = |text: &Text<'_>| !text.is_read();
        let after = self.active.iter().position(|text| unread(text) && text.id > self.turn);
        after.or_else(|| self.active.iter().position(unread))
    }

    /// Reads a text up to `end`; `length` is that of a text with the same rotary angles.
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

    /// Pages of its own for the tokens of a text that are not in the cache yet, up to `end`. False if the text had to go.
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

    /// Takes the pages of the text that came last, which waits then in front of all others; `wanting` is who wants them. If that is the only text, it
    /// ends: there is no room for more of it. False if it is `wanting` itself that had to go.
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

    /// A text takes a token that may end it.
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

/// A token that the host samples, and how likely it and as many others were.
fn sample(
    sampler: &mut Sampler,
    mut logits: Vec<f32>,
    unknown: &[usize],
    listed: Option<usize>,
) -> Result<Taken> {
    for id in unknown {
        if let Some(logit) = logits.get_mut(*id) {
            *logit = f32::NEG_INFINITY;
        }
    }
    let before = listed.map(|most| (logits.clone(), most));
    let token = sampler.sample(logits)?;
    let logprobs = before.map(|(logits, most)| Logprobs::of(&logits, token, most));
    Ok(Taken { token, on_device: false, logprobs })
}

/// Pages of the cache: as many as were asked for, or as the texts can take and the devices have memory for, each for its layers.
fn page_count(decoder: &Decoder, options: EngineOptions) -> Result<usize> {
    let EngineOptions { texts, page, cache, tokens, .. } = options;
    let spans: Vec<&Span> = decoder.spans().collect();
    let bytes_of = |span: &Span| decoder.page_bytes(span.layers.clone(), page, cache);
    // Each device for its layers, and all in one memory together.
    let mut fit = (usize::MAX, 0, 0, "");
    for span in &spans {
        let capabilities = span.device.capabilities();
        let sharing = || spans.iter().filter(|other| is_shared(other.device.capabilities(), capabilities));
        let all = sharing().fold(0u64, |all, other| all.saturating_add(bytes_of(other)));
        let live = taken(sharing().map(|span| &span.device));
        for (bytes, room) in [(bytes_of(span), available(capabilities)), (all, shared(capabilities))] {
            // Steps and prompts need memory beside the cache.
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

/// Bytes that are taken in the memory of these devices. What the host says is there does not count what is taken already.
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
