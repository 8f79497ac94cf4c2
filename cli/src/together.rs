//! Several prompts at the same time, and speculative decoding: texts that the engine continues.

use crate::context::Context;
use crate::named::named;
use clap::Args as ClapArgs;
use netcl::device::{ErrorKind, counted};
use netcl::llm::LoadedModel;
use netcl::llm::engine::{
    CacheType, EngineOptions, Event, Job, Loading, MAX_DRAFTED, Options, RequestId, Speculation, Usage,
};
use netcl::llm::sampler::Finish;
use netcl::prelude::*;
use std::path::Path;
use std::time::Instant;

/// Flags of texts that the engine continues.
#[derive(ClapArgs, Clone, Debug)]
#[command(next_help_heading = "Several prompts, and speculative decoding")]
pub struct EngineArgs {
    /// Maximum number of prompts that are continued at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=4096))]
    parallel: u16,
    /// Storage of keys and values: that of the weights, or 8 bits with a scale per 32 elements
    #[arg(long, value_name = "TYPE", default_value = "weights", value_parser = named(&CacheType::NAMES))]
    cache_type: CacheType,
    /// Speculative decoding: a smaller model of the same vocabulary, or ngram; the text is the same
    ///
    /// One step checks several proposed tokens. ngram proposes the tokens that followed the last ones at their previous occurrence.
    #[arg(long, value_name = "MODEL|ngram")]
    draft: Option<String>,
    /// Maximum number of proposed tokens per step
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=MAX_DRAFTED as i64))]
    draft_max: u8,
}

/// The text of a prompt.
#[derive(Default)]
pub struct PromptResult {
    pub tokens: Vec<u32>,
    pub text: String,
    /// Why it ended, and its usage.
    pub end: Option<(Finish, Usage)>,
}

/// All texts, and their time.
pub struct Together {
    pub texts: Vec<PromptResult>,
    pub seconds: f64,
}

impl EngineArgs {
    /// Returns whether a flag requires the engine.
    pub fn is_needed(&self, prompts: usize) -> bool {
        prompts > 1 || self.draft.is_some() || self.cache_type != CacheType::Weights
    }

    /// Returns the name of the source of proposals.
    pub fn draft(&self) -> Option<&str> {
        self.draft.as_deref()
    }

    /// Opens the draft model, on the same device, or on the first of several.
    fn draft_model(
        &self,
        model: &LoadedModel,
        load: impl FnOnce(&Path, Options<'static>) -> Result<LoadedModel>,
    ) -> Result<Option<LoadedModel>> {
        let Some(path) = self.draft.as_deref().filter(|name| !["ngram", "ngrams"].contains(name)) else {
            return Ok(None);
        };
        let options = Options { activations: model.activations(), ..Options::default() };
        load(Path::new(path), options).map(Some)
    }

    /// Continues all jobs. `show` receives each piece of text with the number of its job, and the end of each job; `load` opens a draft model.
    pub fn run(
        &self,
        model: &LoadedModel,
        jobs: Vec<Job>,
        context: &Context,
        load: impl FnOnce(
            &Path,
            Options<'static>,
            &mut dyn FnMut(Loading<'_>) -> Result<()>,
        ) -> Result<LoadedModel>,
        show: &mut dyn FnMut(usize, Option<&str>) -> Result<()>,
    ) -> Result<Together> {
        let draft = self.draft_model(model, |path, options| {
            crate::loading::shown(context, |bar| load(path, options, bar))
        })?;
        let speculation = match (&self.draft, &draft) {
            (None, _) => Speculation::Off,
            (Some(_), Some(draft)) => Speculation::Model(draft.decoder()),
            (Some(_), None) => Speculation::NGrams,
        };
        let mut options = EngineOptions {
            texts: usize::from(self.parallel).min(jobs.len().max(1)),
            queue: jobs.len(),
            cache: self.cache_type,
            drafted: usize::from(self.draft_max),
            ..EngineOptions::default()
        };
        options.tokens = Some(room(&jobs, options, model.context()));
        let mut engine = match model.engine(options, speculation) {
            // With less memory, some texts wait for others.
            Err(e) if e.kind() == ErrorKind::Memory => {
                model.engine(EngineOptions { tokens: None, ..options }, speculation)?
            }
            engine => engine?,
        };
        let mut texts: Vec<PromptResult> = jobs.iter().map(|_| PromptResult::default()).collect();
        let began = Instant::now();
        let ids = jobs.into_iter().map(|job| engine.add(job)).collect::<Result<Vec<RequestId>>>()?;
        let at = |id: RequestId| ids.iter().position(|own| *own == id).unwrap_or(0);
        while !engine.is_idle() {
            let events = match context.interrupted() {
                true => ids.iter().flat_map(|id| engine.cancel(*id)).collect(),
                false => engine.step()?,
            };
            for event in events {
                match event {
                    Event::Token { id, token, text, .. } => {
                        texts[at(id)].tokens.push(token);
                        texts[at(id)].text.push_str(&text);
                        show(at(id), Some(&text))?;
                    }
                    Event::Text { id, text } => {
                        texts[at(id)].text.push_str(&text);
                        show(at(id), Some(&text))?;
                    }
                    Event::Done { id, finish, usage } => {
                        texts[at(id)].end = Some((finish, usage));
                        show(at(id), None)?;
                    }
                    Event::Failed { error, .. } => return Err(error),
                }
            }
        }
        Ok(Together { texts, seconds: began.elapsed().as_secs_f64() })
    }
}

/// Returns the tokens of a cache with room for the longest texts that run at the same time, including partly filled pages.
fn room(jobs: &[Job], options: EngineOptions, context: usize) -> usize {
    let length = |job: &Job| {
        let end = job.request.max.map_or(context, |max| job.prompt.len().saturating_add(max));
        end.saturating_add(MAX_DRAFTED).min(context) + 2 * options.page
    };
    let mut lengths: Vec<usize> = jobs.iter().map(length).collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    lengths.iter().take(options.texts).sum()
}

impl Together {
    /// Reports counts and speeds of all texts.
    pub fn summary(&self, draft: Option<&str>) -> String {
        let usage = || self.texts.iter().filter_map(|text| text.end.as_ref()).map(|(_, usage)| usage);
        let sum = |of: fn(&Usage) -> usize| usage().map(of).sum::<usize>();
        let (made, reused, preempted) = (sum(|u| u.made), sum(|u| u.reused), sum(|u| u.preempted));
        let mut told = format!(
            "prompts: {}, {} of them shared; texts: {} in {:.2} s, {:.1} tokens/s",
            counted(sum(|u| u.prompt), "token"),
            reused,
            counted(made, "token"),
            self.seconds,
            made as f64 / self.seconds.max(1e-9)
        );
        if preempted > 0 {
            told += &format!("; {} recomputed due to lack of memory", counted(preempted, "text"));
        }
        if let Some(draft) = draft {
            told += &format!("; {}", accepted(draft, sum(|u| u.drafted), sum(|u| u.accepted)));
        }
        let full = self.texts.iter().filter(|text| matches!(&text.end, Some((Finish::Context, _)))).count();
        if full > 0 {
            told += &format!("; {} ended because the context is full", counted(full, "text"));
        }
        told
    }
}

/// Formats the number of proposals and of accepted ones.
fn accepted(draft: &str, drafted: usize, accepted: usize) -> String {
    let share = 100.0 * accepted as f64 / drafted.max(1) as f64;
    format!("{draft}: {accepted} of {} accepted, {share:.0} %", counted(drafted, "proposed token"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_proposed_and_shared_is_told() {
        let usage = Usage { prompt: 7, reused: 4, made: 10, drafted: 8, accepted: 6, ..Usage::default() };
        let text = || PromptResult { end: Some((Finish::Length, usage)), ..PromptResult::default() };
        let together = Together { texts: vec![text(), text()], seconds: 2.0 };
        assert_eq!(
            together.summary(Some("ngram")),
            "prompts: 14 tokens, 8 of them shared; texts: 20 tokens in 2.00 s, 10.0 tokens/s; \
             ngram: 12 of 16 proposed tokens accepted, 75 %"
        );
    }
}
