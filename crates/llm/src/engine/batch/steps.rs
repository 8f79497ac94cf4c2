//! Steps of the texts whose prompt is read: which of them, with which proposed tokens, and what each takes of what was sampled.

use super::text::{Taken, Text};
use super::{Engine, Event, RequestId, sample};
use crate::sampler::Finish;
use netcl_nn::decoder::{Line, Pending};
use netcl_tensor::Result;
use netcl_tensor::ops::choose::Rules;
use std::time::Instant;

/// Steps that are enqueued at once, at most.
const MOST_STEPS: usize = 32;

/// The same where tokens are proposed between runs.
const MOST_STEPS_BETWEEN_DRAFTS: usize = 2;

/// How long a run of steps should take in seconds: long beside the host's work between two, short for streams and new requests.
const RUN: f64 = 8e-3;

/// A run of steps: texts with proposed tokens, tokens of each in a step, and steps.
struct Plan {
    texts: Vec<(RequestId, Vec<u32>)>,
    tokens: usize,
    steps: usize,
}

impl<'a> Engine<'a> {
    /// Continues all texts whose prompt is read.
    pub(super) fn go_on(&mut self, events: &mut Vec<Event>) -> Result<()> {
        let Some(mut plan) = self.plan()? else { return Ok(()) };
        let ids: Vec<RequestId> = plan.texts.iter().map(|(id, _)| *id).collect();
        let ahead = plan.tokens + plan.steps - 1;
        let active = self.active.iter().filter(|text| ids.contains(&text.id));
        let lacking: usize = active.map(|text| text.lacks(text.cached + ahead, self.pages.size())).sum();
        if lacking > self.pages.available() {
            // No text has to go for what another one does not need yet.
            (plan.tokens, plan.steps) = (1, 1);
        }
        // Those that came first get pages first, from those that came last if need be.
        for id in ids {
            if let Some(text) = self.active.iter().find(|text| text.id == id) {
                self.provide(id, text.cached + plan.tokens + plan.steps - 1, events)?;
            }
        }
        plan.texts.retain(|(id, _)| self.active.iter().any(|text| text.id == *id));
        if plan.texts.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        self.run(&plan, events)?;
        if plan.tokens == 1 {
            let each = began.elapsed().as_secs_f64() / plan.steps as f64;
            self.steps = ((RUN / each.max(1e-9)) as usize).clamp(1, MOST_STEPS).min(2 * plan.steps);
        }
        Ok(())
    }

    /// The texts that can be in the next step: of those with different rotary angles, some in every step.
    fn texts(&self) -> Option<(usize, Vec<&Text<'a>>)> {
        let class = |text: &Text<'_>| self.cache.class_of_length(text.ids.len());
        let read = || self.active.iter().filter(|text| text.is_read());
        let mut classes: Vec<usize> = read().map(class).collect();
        classes.sort_unstable();
        classes.dedup();
        let chosen = *classes.get(self.rounds % classes.len().max(1))?;
        let read = self.active.iter().filter(|text| text.is_read());
        Some((chosen, read.filter(|text| self.cache.class_of_length(text.ids.len()) == chosen).collect()))
    }

    /// The next run: texts, the tokens of each, and steps.
    fn plan(&mut self) -> Result<Option<Plan>> {
        let (longest, drafted, mut steps) = (self.longest(), self.drafts.tokens(), self.steps);
        if drafted > 0 {
            steps = steps.min(MOST_STEPS_BETWEEN_DRAFTS);
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
        // All tokens of a step need room in the context, also those that nobody proposed, and the same angles.
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

    /// Runs the steps and hands their tokens out.
    fn run(&mut self, plan: &Plan, events: &mut Vec<Event>) -> Result<()> {
        let greedy = Rules::greedy();
        let mut rows = Vec::new();
        for (id, draft) in &plan.texts {
            let Some(text) = self.active.iter().find(|text| text.id == *id) else { continue };
            let draft = &draft[..draft.len().min(plan.tokens - 1)];
            let mut tokens = text.ids[text.cached..].to_vec();
            tokens.extend(draft);
            tokens.resize(plan.tokens, 0);
            let words: Vec<u32> = (0..plan.tokens * plan.steps).map(|n| text.sampler.word(n)).collect();
            rows.push((text, draft, tokens, text.table(), words));
        }
        let lines = rows.iter().map(|(text, _, tokens, pages, words)| {
            let rules = text.rules.as_ref().unwrap_or(&greedy);
            Line { tokens, position: text.cached, pages, rules, words }
        });
        let pending = self.cache.queue(&lines.collect::<Vec<_>>(), plan.steps)?;
        let sampled = self.cache.sampled(&pending)?;
        let rows: Vec<_> = rows.iter().map(|(text, draft, ..)| (text.id, *draft)).collect();
        for (line, ((id, draft), sampled)) in rows.into_iter().zip(sampled).enumerate() {
            let Some(at) = self.active.iter().position(|text| text.id == id) else { continue };
            let finish = self.take(at, (&pending, line), draft, &sampled, events)?;
            let text = &mut self.active[at];
            text.seal(&mut self.pages);
            text.leave(self.window, &mut self.pages);
            self.finish(at, finish, events);
        }
        Ok(())
    }

    /// A text takes the tokens that were sampled for it, one after the other. Where several were checked in a step, those behind one that is not what
    /// was proposed are of another text.
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
                Some(_) => Ok(Taken { token: *token, on_device: true, logprobs: None }),
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
