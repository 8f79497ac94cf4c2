//! Generation ahead of the host: while the host processes tokens, the device computes the next ones.
//!
//! A second graph after the step reads its logits, writes the token to the next step's input, and advances the position. Two runs of such steps are
//! enqueued: the host reads the tokens of one while the device computes the other. If a token ends the text, the steps enqueued after it are
//! discarded by resetting the length of the cache.

use super::Batch;
use super::batch::Queued;
use crate::model::Choice;
use netcl_tensor::Result;
use netcl_tensor::ops::choose::Chooser;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Number of enqueued runs: the host waits for the first while the second keeps the device busy.
const RUNS: usize = 2;
/// Maximum number of steps in a run.
const MAX_RUN_STEPS: usize = 32;
/// Target duration of a run in seconds: long compared with the host's work for it, short enough for streaming and for stopping.
const RUN: f64 = 8e-3;

/// The enqueued steps of a text and the tokens read back from them.
pub(super) struct Ahead {
    by: Arc<Chooser>,
    /// Enqueued runs, oldest first.
    runs: VecDeque<Queued>,
    /// Tokens read back but not yet requested.
    ready: VecDeque<u32>,
    /// Random words of those tokens and of the enqueued steps.
    words: VecDeque<u32>,
    /// The last requested token, initially the input of the first step.
    last: u32,
    /// Number of steps in the next run.
    steps: usize,
    /// Time at which the last run completed.
    done: Instant,
}

impl Ahead {
    /// Returns a state for tokens after `last`, the token passed to [`Batch::start`].
    pub(super) fn new(by: &Arc<Chooser>, last: u32) -> Self {
        let (runs, ready, words) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { by: Arc::clone(by), runs, ready, words, last, steps: 1, done: Instant::now() }
    }

    /// Returns true if the next token is the one after `last` under the same rules and with the same random word.
    pub(super) fn is_behind(&self, last: u32, choice: &Choice<'_>) -> bool {
        let word = self.words.front().is_none_or(|word| *word == (choice.word)(0));
        self.last == last && word && Arc::ptr_eq(&self.by, choice.by)
    }

    /// Returns the next token; `None` if the cache is full.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn next(&mut self, batch: &mut Batch<'_>, choice: &Choice<'_>) -> Result<Option<u32>> {
        // If the host waits for results, they are not computed before they are requested.
        let runs = if batch.waits() { 1 } else { RUNS };
        if self.ready.is_empty() || runs > 1 {
            self.fill(batch, choice, runs)?;
        }
        if self.ready.is_empty() {
            let Some(run) = self.runs.pop_front() else { return Ok(None) };
            self.ready.extend(batch.chosen(&run)?);
            self.pace(run.steps());
            if runs > 1 {
                self.fill(batch, choice, runs)?;
            }
        }
        let token = self.ready.pop_front();
        self.words.pop_front();
        self.last = token.unwrap_or(self.last);
        Ok(token)
    }

    /// Enqueues runs while tokens are requested and the cache has capacity.
    fn fill(&mut self, batch: &mut Batch<'_>, choice: &Choice<'_>, runs: usize) -> Result<()> {
        while self.runs.len() < runs {
            let coming = self.ready.len() + self.runs.iter().map(Queued::steps).sum::<usize>();
            let steps = self.steps.min(batch.left()).min(choice.most.saturating_sub(coming));
            if steps == 0 {
                break;
            }
            let words: Vec<u32> = (coming..coming + steps).map(|n| (choice.word)(n)).collect();
            self.runs.push_back(batch.queue(&self.by, &words)?);
            self.words.extend(words);
        }
        Ok(())
    }

    /// Sets the steps of the next run to the number that takes [`RUN`] at the speed of the completed run, at most doubling. The first runs include
    /// compilation and capture.
    fn pace(&mut self, steps: usize) {
        let each = self.done.elapsed().as_secs_f64() / steps.max(1) as f64;
        self.done = Instant::now();
        self.steps = ((RUN / each.max(1e-9)) as usize).clamp(1, MAX_RUN_STEPS).min(2 * steps);
    }
}
