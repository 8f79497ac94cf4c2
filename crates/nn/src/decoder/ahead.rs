//! Tokens that a device makes ahead of those who read them: while the host looks at some, the next are on their way.

use super::Batch;
use super::batch::Queued;
use crate::model::Choice;
use netcl_tensor::Result;
use netcl_tensor::ops::choose::Chooser;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Runs of steps that are enqueued: one that the host waits for, and one behind it for the device to go on with.
const RUNS: usize = 2;
/// Steps of a run at most.
const MOST: usize = 32;
/// How long a run should take, seconds: long beside what the host does for each, and short for someone who waits for a word or ends the text.
const RUN: f64 = 8e-3;

/// Tokens of a text, some steps ahead.
pub(super) struct Ahead {
    by: Arc<Chooser>,
    /// Steps on their way.
    runs: VecDeque<Queued>,
    /// Tokens that came and nobody has asked for.
    ready: VecDeque<u32>,
    /// The words that those were chosen with, and those on their way.
    words: VecDeque<u32>,
    /// The last token that was asked for, or the one from which it began.
    last: u32,
    /// Steps of the next run.
    steps: usize,
    /// When the last run was done.
    done: Instant,
}

impl Ahead {
    /// Behind `last`, from which the batch [starts](Batch::start).
    pub(super) fn new(by: &Arc<Chooser>, last: u32) -> Self {
        let (runs, ready, words) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { by: Arc::clone(by), runs, ready, words, last, steps: 1, done: Instant::now() }
    }

    /// Whether its tokens come behind `last`, chosen as it is asked.
    pub(super) fn is_behind(&self, last: u32, choice: &Choice<'_>) -> bool {
        let word = self.words.front().is_none_or(|word| *word == (choice.word)(0));
        self.last == last && word && Arc::ptr_eq(&self.by, choice.by)
    }

    /// The next token; `None` where the batch has no room for one.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn next(&mut self, batch: &mut Batch<'_>, choice: &Choice<'_>) -> Result<Option<u32>> {
        self.fill(batch, choice)?;
        if self.ready.is_empty() {
            let Some(run) = self.runs.pop_front() else { return Ok(None) };
            self.ready.extend(batch.chosen(&run)?);
            self.pace(run.steps());
            self.fill(batch, choice)?;
        }
        let token = self.ready.pop_front();
        self.words.pop_front();
        self.last = token.unwrap_or(self.last);
        Ok(token)
    }

    /// Enqueues runs, as far as tokens are wanted and there is room.
    fn fill(&mut self, batch: &mut Batch<'_>, choice: &Choice<'_>) -> Result<()> {
        while self.runs.len() < RUNS {
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

    /// As many steps as take [`RUN`], by the run that is done; no more than twice as many as in that, because the first compile and capture.
    fn pace(&mut self, steps: usize) {
        let each = self.done.elapsed().as_secs_f64() / steps.max(1) as f64;
        self.done = Instant::now();
        self.steps = ((RUN / each.max(1e-9)) as usize).clamp(1, MOST).min(2 * steps);
    }
}
