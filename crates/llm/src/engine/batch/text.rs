//! One sequence of an engine: its tokens, its pages, and its limits.

use super::pages::Allocator;
use super::request::{Event, Job, Logprobs, RequestId, Usage};
use crate::sampler::{Finish, Output, Sampler};
use crate::tokenizer::Tokenizer;
use netcl_model::decoder::Reach;
use netcl_model::model::check_token;
use netcl_tensor::ops::choose::Rules;
use netcl_tensor::{Error, Result};
use std::time::Instant;

/// A token that was chosen.
pub(super) struct ChosenToken {
    pub token: u32,
    /// Whether the device chose it, so that the sampler does not know it yet.
    pub on_device: bool,
    pub logprobs: Option<Logprobs>,
}

/// A sequence that is waiting, in prefill or in decode.
pub(super) struct Text<'a> {
    pub id: RequestId,
    /// Prompt followed by generated tokens.
    pub ids: Vec<u32>,
    /// Number of tokens whose states are in the cache.
    pub cached: usize,
    /// Truncation state.
    reach: Reach,
    /// The pages with those tokens, in order; `None` for pages outside every attention window.
    pub pages: Vec<Option<u32>>,
    /// Number of sealed pages from the start.
    sealed: usize,
    /// The shortest length of a sequence with the rotary angles of the keys in the cache.
    kind: usize,
    pub sampler: Sampler,
    /// Number of most likely tokens to list with each token, if any.
    pub logprobs: Option<usize>,
    /// The request with the same prompt that is prefilled first.
    pub after: Option<RequestId>,
    /// Sampling rules for the device, if it samples.
    pub rules: Option<Rules>,
    /// `None` for a model without a tokenizer.
    output: Option<Output<'a>>,
    /// Maximum number of further tokens.
    left: usize,
    /// Number of generated tokens at its last admission.
    pub before: usize,
    pub usage: Usage,
    began: Instant,
    /// Time of the first token.
    first: Option<Instant>,
}

impl<'a> Text<'a> {
    /// With `rules`, the device samples its tokens.
    pub fn new(
        id: RequestId,
        job: Job,
        tokenizer: Option<&'a Tokenizer>,
        rules: Option<Rules>,
        (kind, reach): (usize, Reach),
    ) -> Self {
        let Job { prompt, mut sampler, request, logprobs } = job;
        sampler.begin(&prompt);
        let output = tokenizer.map(|tokenizer| request.output(tokenizer));
        let usage = Usage { prompt: prompt.len(), ..Usage::default() };
        Self {
            id,
            ids: prompt,
            cached: 0,
            reach,
            pages: Vec::new(),
            sealed: 0,
            kind,
            sampler,
            logprobs,
            after: None,
            rules,
            output,
            left: request.max.unwrap_or(usize::MAX),
            before: 0,
            usage,
            began: Instant::now(),
            first: None,
        }
    }

    /// Returns true if tokens must be prefilled before it is decoded: all but the last must be in the cache, or all if no token was generated yet.
    pub fn is_read(&self) -> bool {
        self.first.is_some() && self.cached + 1 == self.ids.len()
    }
    /// Returns true if its first token was generated.
    pub fn has_begun(&self) -> bool {
        self.first.is_some()
    }
    /// Returns the maximum number of further tokens in a context of `longest` tokens.
    pub fn left(&self, longest: usize) -> usize {
        self.left.min((longest + 1).saturating_sub(self.ids.len()))
    }
    /// Returns the end of the next tokens to prefill, up to `most`.
    pub fn chunk(&self, most: usize) -> usize {
        (self.ids.len() - usize::from(self.has_begun())).min(self.cached + most)
    }
    /// Releases all pages if the length now requires other rotary angles than those in the cache: the sequence is prefilled again.
    pub fn turn(&mut self, kind: usize, all: &mut Allocator) {
        if self.kind != kind {
            self.release(all);
            self.kind = kind;
        }
    }
    /// Returns the number of pages that its first `tokens` tokens still lack.
    pub fn lacks(&self, tokens: usize, page: usize) -> usize {
        tokens.div_ceil(page).saturating_sub(self.pages.len())
    }
    /// Returns the page table for a step. Entries of pages that are not read are arbitrary.
    pub fn table(&self) -> Vec<u32> {
        self.pages.iter().map(|page| page.unwrap_or(0)).collect()
    }

    /// Takes over pages that hold the prefix of the sequence. The last token is never skipped, because its logits are needed.
    pub fn find(&mut self, all: &mut Allocator) {
        let mut found = all.find(&self.ids, self.kind);
        let end = found.len() * all.size();
        self.reach.wrote(end);
        self.cached = self.reach.back(end.min(self.ids.len() - 1));
        // The last token's page still belongs to the sequence.
        let pages = (self.cached + 1).min(end).div_ceil(all.size());
        found.drain(pages..).for_each(|page| all.give(page));
        // A page that is written again is a copy.
        self.sealed = self.cached / all.size();
        self.pages = found.into_iter().map(Some).collect();
        self.usage.reused = self.usage.reused.max(self.cached.min(self.usage.prompt));
    }

    /// Records that tokens up to `end` are written, or will be by enqueued steps.
    pub fn wrote(&mut self, end: usize) {
        self.reach.wrote(end);
    }

    /// Truncates the sequence to the content of its states if more tokens were written than accepted. The missing tokens are prefilled again.
    pub fn go_back(&mut self) {
        self.cached = self.reach.back(self.cached);
    }

    /// Seals pages that became full of final tokens.
    pub fn seal(&mut self, all: &mut Allocator) {
        let size = all.size();
        while (self.sealed + 1) * size <= self.cached {
            let at = self.sealed;
            self.sealed += 1;
            let before = at.checked_sub(1).map(|before| self.pages.get(before).copied().flatten());
            let (Some(Some(page)), false) = (self.pages.get(at).copied(), before == Some(None)) else {
                continue;
            };
            self.pages[at] =
                Some(all.seal(page, before.flatten(), &self.ids[at * size..(at + 1) * size], self.kind));
        }
    }

    /// Releases pages whose tokens are no longer visible, if all layers have windows of at most `window` tokens.
    pub fn leave(&mut self, window: Option<usize>, all: &mut Allocator) {
        let Some(window) = window else { return };
        let unseen = ((self.cached + 1).saturating_sub(window) / all.size()).min(self.pages.len());
        self.pages[..unseen].iter_mut().filter_map(Option::take).for_each(|page| all.give(page));
    }

    /// Releases all pages, the last first: unused ends are evicted before prefixes.
    pub fn release(&mut self, all: &mut Allocator) {
        self.pages.drain(..).rev().flatten().for_each(|page| all.give(page));
        (self.cached, self.sealed) = (0, 0);
        self.reach.clear();
    }

    /// Appends the next token. Returns the finish reason if the sequence is complete.
    ///
    /// # Errors
    /// An error if its logits were NaN.
    pub fn push(&mut self, taken: ChosenToken, events: &mut Vec<Event>) -> Result<Option<Finish>> {
        let ChosenToken { token, on_device, logprobs } = taken;
        let token = check_token(token)?;
        if on_device {
            self.sampler.took(token);
        }
        self.first.get_or_insert_with(Instant::now);
        self.left = self.left.saturating_sub(1);
        let (text, finish) = match &mut self.output {
            Some(output) => {
                let chunk = output.push(token)?;
                (chunk.text, chunk.finish)
            }
            None => (String::new(), (self.left == 0).then_some(Finish::Length)),
        };
        if !matches!(finish, Some(Finish::Token(_))) {
            self.ids.push(token);
            self.usage.made += 1;
            events.push(Event::Token { id: self.id, token, text, logprobs });
        } else if !text.is_empty() {
            events.push(Event::Text { id: self.id, text });
        }
        Ok(finish)
    }

    /// Sends the text that was held back, and the end.
    pub fn close(mut self, finish: Finish, events: &mut Vec<Event>) {
        let early = matches!(finish, Finish::Context | Finish::Stopped);
        if let Some(text) =
            self.output.as_mut().filter(|_| early).map(Output::close).filter(|text| !text.is_empty())
        {
            events.push(Event::Text { id: self.id, text });
        }
        let now = Instant::now();
        let first = self.first.unwrap_or(now);
        self.usage.prompt_time = first - self.began;
        self.usage.generation_time = now - first;
        events.push(Event::Done { id: self.id, finish, usage: self.usage });
    }

    /// Ends a sequence with an error.
    pub fn fail(self, error: Error, events: &mut Vec<Event>) {
        events.push(Event::Failed { id: self.id, error });
    }
}
