//! One text of an engine: its tokens, its pages, and what is still to come.

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
pub(super) struct Taken {
    pub token: u32,
    /// By the device; the sampler does not know of it yet.
    pub on_device: bool,
    pub logprobs: Option<Logprobs>,
}

/// A request that waits, is read or is continued.
pub(super) struct Text<'a> {
    pub id: RequestId,
    /// Prompt, then what was made.
    pub ids: Vec<u32>,
    /// Tokens whose states are in the cache.
    pub cached: usize,
    /// How far it can go back.
    reach: Reach,
    /// The pages with those, in order; none where they are behind every window.
    pub pages: Vec<Option<u32>>,
    /// Pages from the beginning that are sealed.
    sealed: usize,
    /// The shortest length of a text with the rotary angles of the keys in the cache.
    kind: usize,
    pub sampler: Sampler,
    /// How many of the likeliest tokens are listed with each, if any.
    pub logprobs: Option<usize>,
    /// The request whose prompt, the same, is read first.
    pub after: Option<RequestId>,
    /// How tokens are sampled on the device, if they are.
    pub rules: Option<Rules>,
    /// None for a model without a tokenizer.
    output: Option<Output<'a>>,
    /// Tokens that may still come.
    left: usize,
    /// Tokens that it had made when it was let in last.
    pub before: usize,
    pub usage: Usage,
    began: Instant,
    /// When the first token was there.
    first: Option<Instant>,
}

impl<'a> Text<'a> {
    /// `rules` samples its tokens on the device.
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

    /// Whether tokens of it are still to be read before it goes on: all but the last have to be in the cache, or all if none was made yet.
    pub fn is_read(&self) -> bool {
        self.first.is_some() && self.cached + 1 == self.ids.len()
    }
    /// Whether its first token was made.
    pub fn has_begun(&self) -> bool {
        self.first.is_some()
    }
    /// Tokens that may still come, in a context of `longest` tokens.
    pub fn left(&self, longest: usize) -> usize {
        self.left.min((longest + 1).saturating_sub(self.ids.len()))
    }
    /// The end of the next tokens to be read, up to `most`.
    pub fn chunk(&self, most: usize) -> usize {
        (self.ids.len() - usize::from(self.has_begun())).min(self.cached + most)
    }
    /// Gives all pages back if the text has grown to a length with other rotary angles than those in the cache: it is read again with these.
    pub fn turn(&mut self, kind: usize, all: &mut Allocator) {
        if self.kind != kind {
            self.release(all);
            self.kind = kind;
        }
    }
    /// Pages that its first `tokens` tokens still lack.
    pub fn lacks(&self, tokens: usize, page: usize) -> usize {
        tokens.div_ceil(page).saturating_sub(self.pages.len())
    }
    /// The pages as a step's table has them. Those that nothing is read from are any.
    pub fn table(&self) -> Vec<u32> {
        self.pages.iter().map(|page| page.unwrap_or(0)).collect()
    }

    /// Takes over pages that hold the beginning of the text. The last token is never among what they spare: the logits behind it are wanted.
    pub fn find(&mut self, all: &mut Allocator) {
        let mut found = all.find(&self.ids, self.kind);
        let end = found.len() * all.size();
        self.reach.wrote(end);
        self.cached = self.reach.back(end.min(self.ids.len() - 1));
        // Without the last token its page is still the text's.
        let pages = (self.cached + 1).min(end).div_ceil(all.size());
        found.drain(pages..).for_each(|page| all.give(page));
        // A page that is written to again is a copy.
        self.sealed = self.cached / all.size();
        self.pages = found.into_iter().map(Some).collect();
        self.usage.reused = self.usage.reused.max(self.cached.min(self.usage.prompt));
    }

    /// Tokens up to `end` are written, or will be by steps that are enqueued.
    pub fn wrote(&mut self, end: usize) {
        self.reach.wrote(end);
    }

    /// Goes back to what its states hold, where further tokens were written behind those that it took: the others are read again.
    pub fn go_back(&mut self) {
        self.cached = self.reach.back(self.cached);
    }

    /// Seals pages that became full of tokens that do not change any more.
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

    /// Gives back pages whose tokens no further one sees, if all layers have windows of at most `window` tokens.
    pub fn leave(&mut self, window: Option<usize>, all: &mut Allocator) {
        let Some(window) = window else { return };
        let unseen = ((self.cached + 1).saturating_sub(window) / all.size()).min(self.pages.len());
        self.pages[..unseen].iter_mut().filter_map(Option::take).for_each(|page| all.give(page));
    }

    /// Gives all pages back, the last first: of what is not used, ends are forgotten before beginnings.
    pub fn release(&mut self, all: &mut Allocator) {
        self.pages.drain(..).rev().flatten().for_each(|page| all.give(page));
        (self.cached, self.sealed) = (0, 0);
        self.reach.clear();
    }

    /// Takes the next token. Whether the text is done.
    ///
    /// # Errors
    /// Of a text whose logits were not numbers.
    pub fn push(&mut self, taken: Taken, events: &mut Vec<Event>) -> Result<Option<Finish>> {
        let Taken { token, on_device, logprobs } = taken;
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

    /// What was held back, and the end.
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

    /// The end of a text that something is wrong with.
    pub fn fail(self, error: Error, events: &mut Vec<Event>) {
        events.push(Event::Failed { id: self.id, error });
    }
}
