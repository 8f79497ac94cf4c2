//! A training run from start to end.

mod opening;
mod piped;
mod profile;
mod report;
mod same;
mod sharded;
mod step;
mod writing;

use opening::plan_of;
pub use sharded::Sharding;
use sharded::Zero;
use step::Pending;
use writing::Writing;

use super::companions::Companions;
use super::losses::Losses;
use super::observer::{Observer, RunInfo};
use super::parallel::Parallel;
use super::peak;
use super::pipeline::Slots;
use super::profiling::Profiling;
use super::shares::Shares;
use super::stepper::Stepper;
use super::sums::Sums;
use super::told::RankTimes;
use super::uploads::{PREFETCH, Uploads};
use crate::config::{GraphMode, TrainConfig};
use crate::data::{Eval, Loader, Position, Prefetch};
use crate::optim::Optimizer;
use crate::run::{RunFolder, SpeedWindow, StepMetrics};
use crate::schedule::LearningRate;
use netcl_device::KernelTime;
use netcl_model::model::Model;
use netcl_model::tokenizer::{ByteLengths, Tokenizer};
use netcl_tensor::{Device, Error, Result, Tensor, counted};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Steps whose kernels are timed for the report, after compilation.
const PROFILED: std::ops::Range<u64> = 5..8;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps were done.
    Finished,
    /// The observer stopped the run; a checkpoint was written.
    Stopped,
}

/// Request of the observer.
#[derive(Clone, Copy)]
struct Asked {
    stop: bool,
    /// Write a checkpoint and continue.
    save: bool,
}

/// A run.
pub struct Trainer {
    pub(super) config: TrainConfig,
    pub(super) model: Box<dyn Model>,
    /// Companion files of the model.
    pub(super) companions: Companions,
    pub(super) optimizer: Optimizer,
    pub(super) rate: LearningRate,
    pub(super) loader: Loader,
    pub(super) eval: Option<Eval>,
    pub(super) tokenizer: Option<Tokenizer>,
    /// Byte lengths of the tokenizer's tokens, if known.
    pub(super) lengths: Option<ByteLengths>,
    /// Prompt of samples: the first tokens of the data.
    pub(super) prompt: Vec<u32>,
    opening: Option<String>,
    pub(super) folder: RunFolder,
    pub(super) history: Vec<StepMetrics>,
    pub(super) kernels: Vec<KernelTime>,
    pub(super) step: u64,
    /// Step of the newest checkpoint, written or being written.
    pub(super) saved_step: u64,
    pub(super) position: Position,
    pub(super) val_loss: Option<f64>,
    pub(super) best: Option<(f64, u64)>,
    pub(super) elapsed: f64,
    /// Tokens trained on so far; steps before a resumption may have had another batch size.
    pub(super) trained: u64,
    pub(super) last_done: Instant,
    pub(super) speed: SpeedWindow,
    pub(super) peak_flops: f64,
    /// Optional outputs that failed and were reported.
    pub(super) spared: BTreeSet<&'static str>,
    pub(super) detect_anomaly: bool,
    /// Executes steps of one batch, or forward and backward of a micro-batch.
    pub(super) stepper: Stepper,
    /// Executes the update after several micro-batches.
    pub(super) update: Stepper,
    /// Accumulators of several micro-batches, if they are captured.
    pub(super) sums: Option<Sums>,
    /// The micro-batches that a stage of a pipeline has at a time.
    pub(super) slots: Slots,
    /// Counter of the draws before the dropout of the current step.
    pub(super) draws: Tensor,
    /// Losses of the last steps.
    pub(super) losses: Losses,
    profiling: Option<Profiling>,
    writing: Writing,
    /// Record of the data files, as stored in checkpoints.
    pub(super) data: Vec<u8>,
    tokens: [usize; 2],
    /// This rank's part, if there are others.
    pub(super) parallel: Option<Parallel>,
    /// What this rank has of state that is divided among ranks.
    pub(super) zero: Option<Zero>,
    /// Whether the run failed in the same way at every rank.
    failed_together: bool,
}

impl Trainer {
    /// Whether all steps of the run are done.
    pub fn is_finished(&self) -> bool {
        self.step >= self.config.steps
    }

    /// Metrics of the last recorded step.
    pub fn last_metrics(&self) -> Option<&StepMetrics> {
        self.history.last()
    }

    /// Lowest validation loss so far, and its step.
    pub fn best(&self) -> Option<(f64, u64)> {
        self.best
    }

    /// Checks the result of every operation for NaN from now on, to find the operation that produces the first one; slow.
    pub fn detect_anomaly(&mut self, on: bool) {
        self.detect_anomaly = on;
        if on {
            // The check reads results on the host.
            let device = self.model.params().device();
            self.stepper = Stepper::new(device, GraphMode::Off);
            self.update = Stepper::new(device, GraphMode::Off);
            self.slots = Slots::default();
            if let Some(sums) = self.sums.take() {
                sums.end();
            }
        }
    }

    /// Ends the run if a rank gives no sign of life for so long while steps go; without it after twenty times what a step takes, and at least
    /// 20 seconds.
    pub fn watchdog(&mut self, bound: Option<Duration>) {
        if let Some(parallel) = &mut self.parallel {
            parallel.balance.watchdog.given = bound;
        }
    }

    /// Whether the run ended with an error that every rank has, such as a loss that is not finite.
    pub fn failed_together(&self) -> bool {
        self.failed_together
    }

    /// How the time of each rank went; empty for a run of one.
    pub fn ranks(&self) -> &[RankTimes] {
        self.parallel.as_ref().map_or(&[], |parallel| parallel.balance.times())
    }

    /// The model.
    pub fn model(&self) -> &dyn Model {
        &*self.model
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Tokens per second in this session: tokens trained on over training time. NaN before the first step.
    pub fn tokens_per_s(&self) -> f64 {
        self.speed.overall()
    }

    /// The run folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The run's configuration.
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    /// The first words of the data, a prompt that the tokenizer can encode; `None` without a tokenizer.
    pub fn opening(&self) -> Option<&str> {
        self.opening.as_deref()
    }

    /// Trains until all steps are done or the observer stops the run. The report is written in any case, also after an error.
    pub fn run(&mut self, observer: &mut dyn Observer) -> Result<Outcome> {
        if self.is_finished() {
            self.was_finished();
            return Ok(Outcome::Finished);
        }
        let outcome = self.train(observer).map_err(|e| self.named(e));
        let steps = counted(self.config.steps, "step");
        let status = match &outcome {
            Ok(Outcome::Finished) => format!("finished after {}", counted(self.step, "step")),
            Ok(Outcome::Stopped) => format!("stopped after {} of {steps}", self.step),
            Err(e) => format!("failed after {} of {steps}: {e}", self.history.last().map_or(0, |m| m.step)),
        };
        self.tell(&status);
        outcome
    }

    /// An error that only this rank has, with its name.
    fn named(&self, error: Error) -> Error {
        match &self.parallel {
            Some(parallel) if !self.failed_together && !error.message().starts_with("rank ") => {
                let device = self.model.params().device();
                less_memory(parallel, &self.config, device, error).context(parallel.balance.name())
            }
            _ => error,
        }
    }

    fn train(&mut self, observer: &mut dyn Observer) -> Result<Outcome> {
        let device = self.model.params().device().clone();
        self.measure_peak(&device)?;
        self.speed = SpeedWindow::new(self.elapsed, self.trained);
        observer.started(&self.info());
        let mut batches = Prefetch::start(self.loader.clone(), self.position, PREFETCH)?;
        let c = &self.config;
        let rows = self.parallel.as_ref().map_or(c.batch, |p| p.rows().len());
        let mut uploads = Uploads::new(&device, rows, c.context, c.grad_accum as usize)?;
        self.last_done = Instant::now();
        let mut pending: Option<Pending> = None;
        let mut outcome = Outcome::Finished;
        let started = self.step;
        let (mut explained, profiled) = (false, self.profiling.is_some());
        while self.step < self.config.steps {
            if self.step - started == PROFILED.start && !profiled {
                device.start_profile();
            }
            self.begin_profile(self.step - started)?;
            let next = self.enqueue((&mut batches, &mut uploads), &mut pending, observer)?;
            let Some(next) = next else {
                self.stop_within_step(pending.take(), observer)?;
                outcome = Outcome::Stopped;
                break;
            };
            self.same_weights_in_time()?;
            self.rebalance((&mut batches, &mut uploads))?;
            if let Some(before) = pending.replace(next) {
                self.finish_step(&before, observer)?;
            }
            if let (false, Some(text)) = (explained, self.explain_memory()) {
                observer.memory_explained(&text);
                explained = true;
            }
            if self.step - started == PROFILED.end && !profiled {
                let kernels = device.stop_profile();
                self.kernels = self.spare("the time of each kernel", kernels).unwrap_or_default();
            }
            self.watch_saving(observer)?;
            let asked = self.asked(observer);
            let stop = asked.stop;
            if (stop || asked.save || self.due())
                && let Some(last) = pending.take()
            {
                let metrics = self.finish_step_quietly(&last)?;
                self.pause(metrics, asked, observer)?;
                self.last_done = Instant::now();
            }
            self.end_profile(stop, observer)?;
            if stop {
                outcome = Outcome::Stopped;
                break;
            }
        }
        self.end_profile(true, observer)?;
        self.finish_saving(observer)?;
        Ok(outcome)
    }

    /// After a step of several ranks: sets how long they wait for each other, and divides batches anew where that pays.
    fn rebalance(&mut self, (batches, uploads): (&mut Prefetch, &mut Uploads)) -> Result<()> {
        let Some(parallel) = &mut self.parallel else { return Ok(()) };
        parallel.balance.stepped();
        if !parallel.balance.rebalance() {
            return Ok(());
        }
        self.rows_changed((batches, uploads))
    }

    /// Takes the rows that this rank has now, from the next step on.
    pub(super) fn rows_changed(&mut self, (batches, uploads): (&mut Prefetch, &mut Uploads)) -> Result<()> {
        let Some(parallel) = &self.parallel else { return Ok(()) };
        let device = self.model.params().device().clone();
        let rows = parallel.rows();
        self.loader = self.loader.clone().part(rows.clone());
        // Commands that read the old batches and the captured step may still run.
        device.finish()?;
        // First the memory of the old step, which may be what there was too little of.
        self.stepper = Stepper::new(&device, self.stepper.mode());
        *batches = Prefetch::start(self.loader.clone(), self.position, PREFETCH)?;
        *uploads = Uploads::new(&device, rows.len(), self.config.context, self.config.grad_accum as usize)?;
        Ok(())
    }

    /// How batches are divided among ranks; without it equally among devices of one kind, else by their speed. All ranks call it, before
    /// [`Trainer::run`].
    ///
    /// # Errors
    /// `Format` as [`Shares::check`]; `Memory`, at every rank, where one has no room for its rows.
    pub fn shares(&mut self, shares: &Shares) -> Result<()> {
        let Some(parallel) = &mut self.parallel else { return Ok(()) };
        parallel.divide(shares)?;
        self.loader = self.loader.clone().part(parallel.rows());
        let device = self.model.params().device();
        let plan = plan_of(&parallel.local(&self.config), self.model.config(), device, Some(&*parallel));
        let fits = plan.and_then(|plan| plan.check(device));
        parallel.all_succeed(fits)
    }

    /// Measures the peak of the device, of ranks that of all together.
    fn measure_peak(&mut self, device: &Device) -> Result<()> {
        let peak = peak::measure(device, self.model.params().dtype());
        self.peak_flops = self.spare("the share of the device's peak", peak).unwrap_or(0.0);
        if let Some(parallel) = &self.parallel {
            self.peak_flops = parallel.total_of(self.peak_flops)?;
        }
        Ok(())
    }

    /// What the observer asked for in this step, or any rank's.
    fn asked(&self, observer: &mut dyn Observer) -> Asked {
        let [stop, save] = match &self.parallel {
            Some(parallel) => parallel.balance.asked(),
            None => [observer.should_stop(), observer.should_save()],
        };
        Asked { stop, save }
    }

    /// What is known when a run starts.
    fn info(&self) -> RunInfo {
        let device = self.model.params().device();
        RunInfo {
            parameters: self.parameters(),
            vocab: self.model.config().vocab,
            known: self.tokenizer.as_ref().map(Tokenizer::vocab_size),
            tokens: self.tokens,
            device: match &self.parallel {
                Some(parallel) => parallel.devices(),
                None => format!("{} ({})", device.capabilities().id, device.capabilities().name),
            },
            peak_flops: self.peak_flops,
            ranks: self.parallel.as_ref().map_or(1, Parallel::size),
            from_step: self.step,
            steps: self.config.steps,
            folder: self.folder.path().into(),
        }
    }

    /// Number of parameters of the whole model.
    fn parameters(&self) -> usize {
        match self.parallel.as_ref().and_then(Parallel::pipe) {
            Some(_) => self.model.config().parameters(),
            None => self.model.params().count(),
        }
    }

    /// Handles a run whose steps are all done. The report is rewritten if the process ended between the last checkpoint and the report.
    fn was_finished(&mut self) {
        let status = format!("finished after {} steps", self.step);
        let path = self.folder.path().join("report.html");
        if !std::fs::read_to_string(path).is_ok_and(|page| page.contains(&status)) {
            self.tell(&status);
        }
    }

    /// Whether evaluation, a sample or a checkpoint is due after the step enqueued last.
    fn due(&self) -> bool {
        let every = |n: u64| n > 0 && self.step.is_multiple_of(n);
        let c = &self.config;
        self.step == c.steps || every(c.eval_every) || every(c.sample_every) || every(c.checkpoint_every)
    }

    /// Ends a run within a step: the previous step is the last one, and is saved if it was not.
    fn stop_within_step(&mut self, last: Option<Pending>, observer: &mut dyn Observer) -> Result<()> {
        if let Some(last) = last {
            let metrics = self.finish_step_quietly(&last)?;
            return self.pause(metrics, Asked { stop: true, save: false }, observer);
        }
        if self.step > self.saved_step {
            self.save(false, observer)?;
        }
        Ok(())
    }

    fn finish_step_quietly(&mut self, pending: &Pending) -> Result<StepMetrics> {
        let begun = Instant::now();
        let done = self.collect(pending)?;
        self.host_did("read loss", begun);
        let metrics = self.metrics(&done);
        if !done.loss.is_finite() {
            self.record(metrics)?;
            self.failed_together = self.parallel.is_some();
            return Err(self.diverged(&done));
        }
        Ok(metrics)
    }

    fn finish_step(&mut self, pending: &Pending, observer: &mut dyn Observer) -> Result<()> {
        let metrics = self.finish_step_quietly(pending)?;
        self.publish(metrics, observer)
    }

    fn publish(&mut self, metrics: StepMetrics, observer: &mut dyn Observer) -> Result<()> {
        observer.step(&metrics);
        self.record(metrics)
    }

    /// After a step: evaluates, samples, notifies the observer and saves, as due.
    fn pause(&mut self, mut metrics: StepMetrics, asked: Asked, observer: &mut dyn Observer) -> Result<()> {
        self.settle_parameters()?;
        let Asked { stop, save } = asked;
        let last = self.step == self.config.steps;
        let step = self.step;
        let every = |n: u64| n > 0 && step.is_multiple_of(n);
        let c = &self.config;
        let pauses = [c.eval_every, c.sample_every, c.checkpoint_every].map(|n| every(n) || last);
        if let Some(parallel) = &mut self.parallel {
            parallel.balance.pausing(pauses);
        }
        let mut best = false;
        if !stop && (every(self.config.eval_every) || last && self.config.eval_every > 0) {
            let begun = Instant::now();
            let score = self.evaluate()?;
            self.host_did("evaluation", begun);
            self.val_loss = score.map(|score| score.loss());
            if let Some(score) = score {
                metrics.evaluated(&score);
                let loss = score.loss();
                best = self.best.is_none_or(|(lowest, _)| loss < lowest);
                if best {
                    self.best = Some((loss, self.step));
                }
                observer.evaluated(self.step, &score, best);
            }
        }
        let samples = self.config.sample_every > 0 && self.samples();
        if !stop && samples && (every(self.config.sample_every) || last) {
            let begun = Instant::now();
            let sample = self.sample();
            // Stages that sample together have to stay together.
            let piped = self.parallel.as_ref().is_some_and(|parallel| parallel.pipe().is_some());
            metrics.sample = if piped { sample? } else { self.spare("samples", sample).flatten() };
            self.host_did("sample", begun);
            if let Some(text) = &metrics.sample {
                observer.sample(self.step, text);
            }
        }
        // Before the checkpoint: a run resumed from it does not repeat this step.
        self.publish(metrics, observer)?;
        if stop || save || last || best || every(self.config.checkpoint_every) {
            self.same_weights()?;
            let begun = Instant::now();
            self.save(best, observer)?;
            self.host_did("checkpoint", begun);
        }
        if !last && !stop {
            self.tell(&format!("running, {} of {}", self.step, counted(self.config.steps, "step")));
        }
        Ok(())
    }
}

/// An error of a rank without memory for its rows says what else it has, and what to change.
fn less_memory(parallel: &Parallel, config: &TrainConfig, device: &Device, error: Error) -> Error {
    let part = format!("{} of --batch {}", counted(parallel.rows().len() as u64, "row"), config.batch);
    let change =
        "give it fewer with --shares, lower --batch, or recompute activations with --recompute block";
    parallel.balance.less_memory(device, error, (&part, change))
}
