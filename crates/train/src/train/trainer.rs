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
use super::rank_stats::RankTimes;
use super::shares::Shares;
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
    /// Returns whether all steps of the run are done.
    pub fn is_finished(&self) -> bool {
        self.run.training.progress.is_finished()
    }

    /// Returns the metrics of the last recorded step.
    pub fn last_metrics(&self) -> Option<&StepMetrics> {
        self.run.training.report.history.last()
    }

    /// Returns the lowest validation loss so far, and its step.
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

    /// Sets the time after which the run is aborted if a rank is silent; the default is 20 times a step's time, at least 20 seconds.
    pub fn watchdog(&mut self, bound: Option<Duration>) {
        if let Some(parallel) = &mut self.run.training.ranks.parallel {
            parallel.balance.watchdog.given = bound;
        }
    }

    /// Returns whether the run ended with an error that every rank has, such as a loss that is not finite.
    pub fn failed_together(&self) -> bool {
        self.run.training.ranks.failed_together
    }

    /// Returns the times of each rank; empty for a single rank.
    pub fn ranks(&self) -> &[RankTimes] {
        self.run.training.ranks.times()
    }

    /// Returns how the state of the run is divided between ranks; `None` if each has all of it.
    pub fn sharding(&self) -> Option<Sharding> {
        self.run.task.sharding(&self.run.training)
    }

    /// Returns the bytes of moments and master weights on this rank's device.
    pub fn optimizer_bytes(&self) -> usize {
        self.run.training.optimizer.state_bytes()
    }

    /// Returns the model.
    pub fn model(&self) -> &dyn Model {
        &*self.run.task.model
    }

    /// Returns the steps done.
    pub fn step(&self) -> u64 {
        self.run.training.progress.step
    }

    /// Returns the tokens per second in this session: tokens trained on over training time. NaN before the first step.
    pub fn tokens_per_s(&self) -> f64 {
        self.run.task.clock.speed.overall()
    }

    /// Returns the run folder.
    pub fn folder(&self) -> &Path {
        self.run.training.report.folder.path()
    }

    /// Returns the run's configuration.
    pub fn config(&self) -> &TrainConfig {
        &self.run.task.config
    }

    /// Returns the first words of the data, a prompt that the tokenizer can encode; `None` without a tokenizer.
    pub fn opening(&self) -> Option<&str> {
        self.run.task.opening.as_deref()
    }

    /// Returns a text with the memory of parameters, moments, and the buffers of a step at their planned addresses; `None` before a step was
    /// captured.
    pub fn explain_memory(&self) -> Option<String> {
        self.run.task.explain_memory(&self.run.training)
    }

    /// Returns why [`explain_memory`](Self::explain_memory) returns nothing: settings of the run, the failure of a capture, or an early end of the
    /// run. `None` if it does return a text.
    pub fn why_memory_is_not_explained(&self) -> Option<String> {
        self.run.task.why_memory_is_not_explained(&self.run.training)
    }

    /// Returns whether steps run eagerly until the end of the run, because of its settings or a failed capture.
    pub fn is_eager(&self) -> bool {
        self.run.training.passes.stepper.is_eager()
    }

    /// Sets the division of batches between ranks. By default, devices of one kind get equal parts, and others get parts by speed. All ranks call it,
    /// before [`Trainer::run`].
    ///
    /// # Errors
    /// `Format` as in [`Shares::check`]; `Memory`, on every rank, if one lacks room for its rows.
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

    /// Returns the checkpoint of the step just done.
    #[cfg(test)]
    pub(super) fn checkpoint(&self) -> Result<netcl_model::checkpoint::Plan<'static>> {
        self.run.checkpoint()
    }
}
