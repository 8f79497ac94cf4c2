//! Decoding steps of prefilled sequences: selection, proposed tokens, and distribution of sampled tokens.

use super::text::{ChosenToken, Text};
use super::{Engine, Event, RequestId, sample};
use crate::sampler::Finish;
use netcl_model::decoder::{Line, Pending};
use netcl_tensor::Result;
use netcl_tensor::ops::choose::Rules;
use std::time::Instant;

/// Maximum number of steps that are enqueued at once.
const MAX_STEPS: usize = 32;

/// The same if tokens are proposed between runs.
const MAX_STEPS_BETWEEN_DRAFTS: usize = 2;

/// Target duration of a run in seconds. It is long compared with the host's work between two runs, which the device does not wait for if the next run
/// is already enqueued. It is short for streams and new requests.
const RUN: f64 = 4e-3;

/// A planned run: sequences with proposed tokens, tokens per sequence and step, and number of steps.
struct Plan {
    texts: Vec<(RequestId, Vec<u32>)>,
    tokens: usize,
    steps: usize,
}

/// A run that was enqueued on the device.
pub(super) struct Run {
    /// Sequences with proposed tokens, and the number of tokens in the cache before.
    texts: Vec<(RequestId, Vec<u32>, usize)>,
    tokens: usize,
    steps: usize,
    pending: Pending,
    began: Instant,
    /// Number of prefilled sequences, including those of other runs.
    beside: usize,
    /// Whether no prompt is prefilled before it; the time of a prefill would count as its own.
    timed: bool,
}

impl Run {
    /// Returns true if its steps continue a sequence from its current state.
    pub fn is_behind(&self, text: &Text<'_>) -> bool {
        self.texts.iter().any(|(id, _, cached)| *id == text.id && *cached == text.cached)
    }
}

impl<'a> Engine<'a> {
    /// Advances all prefilled sequences.
    pub(super) fn go_on(&mut self, events: &mut Vec<Event>) -> Result<()> {
        self.turn();
        let run = match self.ahead.take().filter(|run| run.texts.iter().any(|text| self.is_behind_run(text)))
        {
            Some(run) => run,
            None => match self.begin(events)? {
                Some(run) => run,
                None => return Ok(()),
            },
        };
        self.ahead = self.begin_behind(&run)?;
        let sampled = self.cache.sampled(&run.pending)?;
        let now = Instant::now();
        if run.tokens == 1 && run.timed {
            // The device started it after the previous run.
            let began = self.sampled.map_or(run.began, |last| last.max(run.began));
            let each = now.duration_since(began).as_secs_f64() / run.steps as f64;
            let step = self.costs.add(run.texts.len(), run.beside, each);
            self.steps = ((RUN / step.max(1e-9)) as usize).clamp(1, MAX_STEPS).min(2 * run.steps);
        }
        self.sampled = Some(now);
        self.hand_out(&run, sampled, events)
    }

    /// Returns true if a sequence of a run still exists with the tokens that the run continues.
    fn is_behind_run(&self, (id, _, cached): &(RequestId, Vec<u32>, usize)) -> bool {
        self.active.iter().any(|text| text.id == *id && text.is_read() && text.cached == *cached)
    }

    /// Enqueues the next run.
    fn begin(&mut self, events: &mut Vec<Event>) -> Result<Option<Run>> {
        let Some(mut plan) = self.plan()? else { return Ok(None) };
        let ids: Vec<RequestId> = plan.texts.iter().map(|(id, _)| *id).collect();
        let ahead = plan.tokens + plan.steps - 1;
        let active = self.active.iter().filter(|text| ids.contains(&text.id));
        let lacking: usize = active.map(|text| text.lacks(text.cached + ahead, self.pages.size())).sum();
        if lacking > self.pages.available() {
            // A sequence must not be preempted for pages that another one does not need yet.
            (plan.tokens, plan.steps) = (1, 1);
        }
        self.enqueue(plan, None, events)
    }

    /// Enqueues a run after `run`, so that the device continues while the host reads and distributes the samples of `run`. Not possible if another
    /// sequence is prefilled or paused next, or if a sequence may end too early. Tokens sampled after a sequence's end are dropped. Waiting sequences
    /// can only be admitted after one has ended or is paused: they start one run later.
    fn begin_behind(&mut self, run: &Run) -> Result<Option<Run>> {
        let read = self.active.iter().filter(|text| text.is_read()).count();
        let alone = read == self.active.len() && !self.pauses_after(run.steps);
        if !alone || run.tokens > 1 || self.drafts.tokens() > 0 || !self.cache.queues_behind() {
            return Ok(None);
        }
        if read != run.texts.len() {
            return if run.texts.len() == 1 { self.begin_other(run) } else { Ok(None) };
        }
        self.rounds = self.rounds.wrapping_add(1);
        if read > 1 && self.is_faster_one_by_one(read) {
            return Ok(None);
        }
        let (longest, size) = (self.longest(), self.pages.size());
        let (mut steps, mut texts) = (self.steps, Vec::new());
        for own in &run.texts {
            let text = self.active.iter().find(|text| text.id == own.0 && self.is_behind_run(own));
            let Some(text) = text.filter(|text| text.rules.is_some()) else { return Ok(None) };
            let left = text.left(longest).saturating_sub(run.steps);
            steps = steps.min(left);
            texts.push((text.id, text.cached + run.steps));
        }
        let ends = || texts.iter().map(|(_, cached)| cached + steps);
        let class = |length: usize| self.cache.class_of_length(length);
        let first = texts.first().map_or(0, |(_, cached)| class(*cached));
        if steps == 0 || !ends().all(|end| end <= longest && class(end) == first) {
            return Ok(None);
        }
        let of = |id: RequestId| self.active.iter().find(move |text| text.id == id);
        let lacking: usize =
            texts.iter().zip(ends()).filter_map(|((id, _), end)| Some(of(*id)?.lacks(end, size))).sum();
        if lacking > self.pages.available() {
            return Ok(None);
        }
        let texts = texts.into_iter().map(|(id, _)| (id, Vec::new())).collect();
        self.enqueue(Plan { texts, tokens: 1, steps }, Some(run), &mut Vec::new())
    }

    /// Enqueues the run of a sequence that takes turns with the one of `run`. Not possible if the host samples, because its logits would be
    /// overwritten.
    fn begin_other(&mut self, run: &Run) -> Result<Option<Run>> {
        let own = run.texts[0].0;
        let sampled = |text: &Text<'_>| text.rules.is_some() || text.id != own;
        let Some(plan) = self.plan()?.filter(|plan| plan.texts.len() == 1 && plan.texts[0].0 != own) else {
            return Ok(None);
        };
        let id = plan.texts[0].0;
        let Some(text) = self.active.iter().find(|text| text.id == id) else { return Ok(None) };
        let end = text.cached + plan.steps;
        // One more page, because a shared page may have to be copied.
        let lacks = text.lacks(end, self.pages.size()) + 1 > self.pages.available();
        if text.rules.is_none() || lacks || !self.active.iter().all(sampled) {
            return Ok(None);
        }
        self.enqueue(plan, None, &mut Vec::new())
    }

    /// Returns true if stepping `texts` sequences one by one takes less time than one batched step.
    fn is_faster_one_by_one(&self, texts: usize) -> bool {
        self.drafts.tokens() == 0 && self.costs.is_faster_one_by_one(texts, self.rounds)
    }

    /// Returns the sequences that can be in the next step. With different rotary angles, each step has some of them.
    fn texts(&self) -> Option<(usize, Vec<&Text<'a>>)> {
        let class = |text: &Text<'_>| self.cache.class_of_length(text.ids.len());
        let read = || self.active.iter().filter(|text| text.is_read());
        let mut classes: Vec<usize> = read().map(class).collect();
        classes.sort_unstable();
        classes.dedup();
        let chosen = *classes.get(self.rounds % classes.len().max(1))?;
        let read = self.active.iter().filter(|text| text.is_read());
        let mut texts: Vec<_> =
            read.filter(|text| self.cache.class_of_length(text.ids.len()) == chosen).collect();
        if texts.len() > 1 && self.is_faster_one_by_one(texts.len()) {
            texts = vec![texts[self.rounds / classes.len() % texts.len()]];
        }
        Some((chosen, texts))
    }

    /// Plans the next run: sequences, tokens per sequence, and steps.
    fn plan(&mut self) -> Result<Option<Plan>> {
        let (longest, drafted, mut steps) = (self.longest(), self.drafts.tokens(), self.steps);
        if drafted > 0 {
            steps = steps.min(MAX_STEPS_BETWEEN_DRAFTS);
        }
        self.rounds = self.rounds.wrapping_add(1);
        let mut drafts = std::mem::take(&mut self.drafts);
        let Some((class, texts)) = self.texts() else {
            self.drafts = drafts;
            return Ok(None);
        };
        let mut plan = Plan { texts: Vec::new(), tokens: 1, steps };
        let mut proposed = Ok(());
        for text in &texts {
            let left = text.left(longest);
            plan.steps = if text.rules.is_some() { plan.steps.min(left) } else { 1 };
            let mut draft = Vec::new();
            if drafted > 0 && proposed.is_ok() {
                match drafts.propose(text.id.0, &text.ids) {
                    Ok(tokens) => draft = tokens,
                    Err(error) => proposed = Err(error),
                }
            }
            draft.truncate(left.saturating_sub(1));
            plan.texts.push((text.id, draft));
        }
        if plan.texts.iter().any(|(_, draft)| !draft.is_empty()) {
            (plan.tokens, plan.steps) = (1 + drafted, 1);
        }
        // All tokens of a step must fit in the context and have the same angles, even those that were not proposed.
        let fit = |ahead: usize| {
            let mut ends = texts.iter().map(|text| text.cached + ahead);
            ends.all(|end| end <= longest && self.cache.class_of_length(end) == class)
        };
        if !fit(plan.tokens) {
            plan.tokens = 1;
        }
        if !fit(plan.tokens + plan.steps - 1) {
            plan.steps = 1;
        }
        self.drafts = drafts;
        proposed.map(|()| Some(plan))
    }

    /// Enqueues a plan on the device, with pages for the results; `behind` is the previous run, whose tokens have not been read yet. Returns `None`
    /// if no sequence of it is left.
    fn enqueue(&mut self, plan: Plan, behind: Option<&Run>, events: &mut Vec<Event>) -> Result<Option<Run>> {
        let (tokens, steps, before) = (plan.tokens, plan.steps, behind.map_or(0, |run| run.steps));
        // Older sequences get pages first, if necessary from newer ones.
        for (id, _) in &plan.texts {
            if let Some(text) = self.active.iter().find(|text| text.id == *id) {
                self.provide(*id, text.cached + before + tokens + steps - 1, events)?;
            }
        }
        let greedy = Rules::greedy();
        let (mut rows, mut texts) = (Vec::new(), Vec::new());
        for (id, mut draft) in plan.texts {
            let Some(text) = self.active.iter().find(|text| text.id == id) else { continue };
            let mut own = Vec::new();
            if behind.is_none() {
                draft.truncate(tokens - 1);
                own = text.ids[text.cached..].to_vec();
                own.extend(&draft);
                own.resize(tokens, 0);
            }
            let words: Vec<u32> = (before..before + tokens * steps).map(|n| text.sampler.word(n)).collect();
            rows.push((text, own, text.table(), words));
            texts.push((id, draft, text.cached + before));
        }
        if rows.is_empty() {
            return Ok(None);
        }
        let lines = rows.iter().map(|(text, tokens, pages, words)| {
            let rules = text.rules.as_ref().unwrap_or(&greedy);
            Line { tokens, position: text.cached + before, pages, rules, words }
        });
        let (lines, began): (Vec<_>, _) = (lines.collect(), Instant::now());
        let pending = match behind {
            Some(run) => self.cache.queue_behind(&run.pending, &lines, steps)?,
            None => self.cache.queue(&lines, steps)?,
        };
        for (id, _, position) in &texts {
            if let Some(text) = self.active.iter_mut().find(|text| text.id == *id) {
                text.wrote(position + tokens + steps - 1);
            }
        }
        // The time of a prefill before the run would count as its own.
        let timed = behind.is_some() || !self.has_read;
        let beside = self.active.iter().filter(|text| text.is_read()).count();
        Ok(Some(Run { texts, tokens, steps, pending, began, beside, timed }))
    }

    /// Distributes the sampled tokens of a run. A sequence that has ended or was canceled meanwhile gets none.
    fn hand_out(&mut self, run: &Run, sampled: Vec<Vec<u32>>, events: &mut Vec<Event>) -> Result<()> {
        for (line, (own, sampled)) in run.texts.iter().zip(sampled).enumerate() {
            if !self.is_behind_run(own) {
                continue;
            }
            let Some(at) = self.active.iter().position(|text| text.id == own.0) else { continue };
            let finish = self.take(at, (&run.pending, line), &own.1, &sampled, events)?;
            let text = &mut self.active[at];
            text.seal(&mut self.pages);
            text.leave(self.window, &mut self.pages);
            self.finish(at, finish, events);
        }
        Ok(())
    }

    /// Appends the tokens sampled for a sequence, in order. If a step checked several tokens, those after a rejected proposal are discarded.
    fn take(
        &mut self,
        at: usize,
        (pending, line): (&Pending, usize),
        draft: &[u32],
        sampled: &[u32],
        events: &mut Vec<Event>,
    ) -> Result<Result<Option<Finish>>> {
        let text = &mut self.active[at];
        text.usage.drafted += draft.len();
        for (n, token) in sampled.iter().enumerate() {
            let given = match &text.rules {
                Some(_) => Ok(ChosenToken { token: *token, on_device: true, logprobs: None }),
                None => {
                    let logits = self.cache.logits(pending, line, n)?;
                    sample(&mut text.sampler, logits, &self.unknown, text.logprobs)
                }
            };
            let (before, proposed) = (text.ids.len(), draft.get(n));
            let finish = given.and_then(|taken| {
                let accepted = proposed == Some(&taken.token);
                text.usage.accepted += usize::from(accepted);
                text.push(taken, events).map(|finish| (finish, accepted))
            });
            if text.ids.len() > before {
                text.cached = before;
            }
            match finish {
                Ok((None, accepted)) if accepted || !pending.has_several_tokens() => {}
                Ok((finish, _)) => return Ok(Ok(finish)),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(None))
    }
}
