//! A training run on texts, from start to end.

mod clock;
mod contents;
mod evaluate;
mod opening;
mod piped;
mod report;
mod texts;

use opening::plan_of;
pub(super) use texts::Texts;

use super::observer::Observer;
use super::pipeline::Slots;
use super::profiling::ProfileSettings;
use super::shares::Shares;
use super::told::RankTimes;
use super::training::{Outcome, Run, Sharding};
use crate::config::TrainConfig;
use crate::run::StepMetrics;
use netcl_model::model::Model;
use netcl_tensor::{Result, counted};
use std::path::Path;
use std::time::Duration;

/// A run.
pub struct Trainer {
    run: Run<Texts>,
}

impl Trainer {
    /// Whether all steps of the run are done.
    pub fn is_finished(&self) -> bool {
        self.run.training.progress.is_finished()
    }

    /// Metrics of the last recorded step.
    pub fn last_metrics(&self) -> Option<&StepMetrics> {
        self.run.training.report.history.last()
    }

    /// Lowest validation loss so far, and its step.
    pub fn best(&self) -> Option<(f64, u64)> {
        self.run.training.progress.best
    }

    /// Checks the result of every operation for NaN from now on, to find the operation that produces the first one; slow.
    pub fn detect_anomaly(&mut self, on: bool) {
        let training = &mut self.run.training;
        training.passes.set_detect_anomaly(&training.device, on);
        if on {
            self.run.task.slots = Slots::default();
        }
    }

    /// Requests a profile of some steps of the next [`Trainer::run`]. Profiled steps are slower, because every launch has an event.
    ///
    /// # Errors
    /// `Io` if the trace cannot be written to its path.
    pub fn profile(&mut self, settings: ProfileSettings) -> Result<()> {
        self.run.training.report.profile(settings)
    }

    /// Ends the run if a rank gives no sign of life for so long while steps go; without it after twenty times what a step takes, and at least
    /// 20 seconds.
    pub fn watchdog(&mut self, bound: Option<Duration>) {
        if let Some(parallel) = &mut self.run.training.ranks.parallel {
            parallel.balance.watchdog.given = bound;
        }
    }

    /// Whether the run ended with an error that every rank has, such as a loss that is not finite.
    pub fn failed_together(&self) -> bool {
        self.run.training.ranks.failed_together
    }

    /// How the time of each rank went; empty for a run of one.
    pub fn ranks(&self) -> &[RankTimes] {
        self.run.training.ranks.times()
    }

    /// How the state of the run is divided among ranks; `None` where each has all of it.
    pub fn sharding(&self) -> Option<Sharding> {
        self.run.task.sharding(&self.run.training)
    }

    /// Bytes of moments and master weights on this rank's device.
    pub fn optimizer_bytes(&self) -> usize {
        self.run.training.optimizer.state_bytes()
    }

    /// The model.
    pub fn model(&self) -> &dyn Model {
        &*self.run.task.model
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.run.training.progress.step
    }

    /// Tokens per second in this session: tokens trained on over training time. NaN before the first step.
    pub fn tokens_per_s(&self) -> f64 {
        self.run.task.clock.speed.overall()
    }

    /// The run folder.
    pub fn folder(&self) -> &Path {
        self.run.training.report.folder.path()
    }

    /// The run's configuration.
    pub fn config(&self) -> &TrainConfig {
        &self.run.task.config
    }

    /// The first words of the data, a prompt that the tokenizer can encode; `None` without a tokenizer.
    pub fn opening(&self) -> Option<&str> {
        self.run.task.opening.as_deref()
    }

    /// Text with the memory of parameters, moments, and the buffers of a step as the memory plan placed them; `None` before a step was captured.
    pub fn explain_memory(&self) -> Option<String> {
        self.run.task.explain_memory(&self.run.training)
    }

    /// Why [`explain_memory`](Self::explain_memory) says nothing, `None` where it does: settings of the run, what a capture failed with, or a run that
    /// ended before.
    pub fn why_memory_is_not_explained(&self) -> Option<String> {
        self.run.task.why_memory_is_not_explained(&self.run.training)
    }

    /// Whether steps run as they are called until the end of the run: its settings say so, or capturing one has failed.
    pub fn is_eager(&self) -> bool {
        self.run.training.passes.stepper.is_eager()
    }

    /// How batches are divided among ranks; without it equally among devices of one kind, else by their speed. All ranks call it, before
    /// [`Trainer::run`].
    ///
    /// # Errors
    /// `Format` as [`Shares::check`]; `Memory`, at every rank, where one has no room for its rows.
    pub fn shares(&mut self, shares: &Shares) -> Result<()> {
        let Run { task, training } = &mut self.run;
        let Some(parallel) = &mut training.ranks.parallel else { return Ok(()) };
        parallel.divide(shares)?;
        task.loader = task.loader.clone().part(parallel.rows());
        let device = &training.device;
        let plan = plan_of(&parallel.local(&task.config), task.model.config(), device, Some(&*parallel));
        let fits = plan.and_then(|plan| plan.check(device));
        parallel.all_succeed(fits)
    }

    /// Trains until all steps are done or the observer stops the run. The report is written in any case, also after an error.
    pub fn run(&mut self, observer: &mut dyn Observer) -> Result<Outcome> {
        if self.is_finished() {
            self.was_finished();
            return Ok(Outcome::Finished);
        }
        let outcome = self.run.train(observer);
        let Run { task, training } = &mut self.run;
        let (step, steps) = (training.progress.step, counted(task.config.steps, "step"));
        let status = match &outcome {
            Ok(Outcome::Finished) => format!("finished after {}", counted(step, "step")),
            Ok(Outcome::Stopped) => format!("stopped after {step} of {steps}"),
            Err(e) => {
                let recorded = training.report.history.last().map_or(0, |m| m.step);
                format!("failed after {recorded} of {steps}: {e}")
            }
        };
        task.tell(training, &status);
        outcome
    }

    /// Handles a run whose steps are all done. The report is rewritten if the process ended between the last checkpoint and the report.
    fn was_finished(&mut self) {
        let status = format!("finished after {} steps", self.step());
        let path = self.folder().join("report.html");
        if !std::fs::read_to_string(path).is_ok_and(|page| page.contains(&status)) {
            self.run.task.tell(&mut self.run.training, &status);
        }
    }

    /// The checkpoint of the step just done.
    #[cfg(test)]
    pub(super) fn checkpoint(&self) -> Result<netcl_model::checkpoint::Plan<'static>> {
        self.run.checkpoint()
    }
}
