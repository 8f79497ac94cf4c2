//! A training run from start to end.

mod profile;
mod report;
mod step;
mod writing;

pub use profile::ProfileSettings;
use profile::Profiling;
use step::Pending;
use writing::Writing;

use super::companions::Companions;
use super::losses::Losses;
use super::observer::{Observer, RunInfo};
use super::parallel::{Parallel, Shares};
use super::passes::optimizer;
use super::stepper::Stepper;
use super::sums::Sums;
use super::told::RankTimes;
use super::uploads::{PREFETCH, Uploads};
use super::{MemoryPlan, open_inputs, peak};
use crate::checkpoint::Checkpoint;
use crate::config::{GraphMode, Overlay, TrainConfig};
use crate::data::{DATA_FILE, DataRecord, Eval, Loader, Position, Prefetch, Splits, TokenCache, Watch};
use crate::decoder::{Decoder, DecoderConfig, Freeze, ModelFolder};
use crate::model::Model;
use crate::optim::Optimizer;
use crate::run::{Claim, RunFolder, SpeedWindow, StepMetrics};
use crate::schedule::LearningRate;
use crate::tokenizer::{ByteLengths, Tokenizer};
use netcl_device::KernelTime;
use netcl_dist::Group;
use netcl_tensor::random::counter;
use netcl_tensor::{Device, Error, Result, Tensor, counted};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
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
    /// Whether the run failed in the same way at every rank.
    failed_together: bool,
}

/// Components of a run except its folder.
struct Parts {
    model: Box<dyn Model>,
    companions: Companions,
    optimizer: Optimizer,
    loader: Loader,
    eval: Option<Eval>,
    tokenizer: Option<Tokenizer>,
    prompt: Vec<u32>,
    opening: Option<String>,
    record: DataRecord,
    tokens: [usize; 2],
}

impl Parts {
    /// Opens the data and creates the model; tokenizer and vocabulary are taken from the checkpoint `from` if it has them.
    fn build(
        device: &Device,
        config: &TrainConfig,
        from: Option<&(Checkpoint, PathBuf)>,
        watch: &mut Watch<'_>,
        parallel: Option<&Parallel>,
    ) -> Result<Self> {
        config.validate()?;
        let local = parallel.map_or_else(|| config.clone(), |p| p.local(config));
        // The model of the checkpoint, the one to start from, or a new one with the vocabulary of the data.
        let folder = match (from, &config.init) {
            (Some((_, path)), _) => Some(ModelFolder::open(path)?),
            (None, Some(dir)) => Some(ModelFolder::open(Path::new(dir)).map_err(|e| e.context("--init"))?),
            (None, None) => None,
        };
        let shape = |vocab| match &folder {
            Some(folder) => Ok(folder.config.clone()),
            None => config.decoder(vocab),
        };
        // Checked once before the data is read, which may take long, and once with the vocabulary that results from it.
        let plan = |model: &DecoderConfig| {
            let plan = MemoryPlan::of(&local, model, device.capabilities());
            // Ranks accumulate gradients in memory that stays.
            MemoryPlan { gradients_wait: plan.gradients_wait || parallel.is_some(), ..plan }.check(device)
        };
        let vocab = folder.as_ref().map(|folder| folder.config.vocab).or(config.vocab);
        plan(&shape(vocab.unwrap_or(1))?)?;
        let kept = from.map(|(_, path)| path).filter(|path| path.join(crate::tokenizer::FILE).exists());
        let kept = kept.map(|path| Tokenizer::from_dir(path)).transpose()?;
        let cache = TokenCache::of(device.settings());
        let config_of_data = TrainConfig { vocab, ..config.clone() };
        let inputs = open_inputs(&config_of_data, kept, cache.as_ref(), watch)?;
        let shape = shape(inputs.vocab)?;
        plan(&shape)?;
        let freeze = Freeze::new(&config.freeze)?;
        super::ahead::compile(device, &local, &shape, watch)?;
        let dtype = config.dtype;
        let model: Box<dyn Model> = match &folder {
            Some(folder) if from.is_none() => {
                Box::new(folder.decoder(device, Some(dtype), &freeze).map_err(|e| e.context("--init"))?)
            }
            _ => {
                // A resumed run's weights come from its checkpoint.
                let seed = from.is_none().then_some(config.seed);
                Box::new(Decoder::partly_frozen(device, shape, dtype, seed, &freeze)?)
            }
        };
        let companions = match &folder {
            Some(folder) => Companions::of_folder(folder)?,
            None => Companions::of_tokenizer(inputs.tokenizer.as_ref()),
        };
        let optimizer = optimizer(&*model, config)?;
        let tokens =
            [inputs.splits.train.len(), inputs.splits.val.as_ref().map_or(0, crate::data::Tokens::len)];
        let (prompt, opening) = (inputs.prompt()?, inputs.opening());
        let (loader, eval) = batches(inputs.splits, inputs.vocab, config, parallel)?;
        Ok(Self {
            model,
            companions,
            optimizer,
            loader,
            eval,
            tokenizer: inputs.tokenizer,
            prompt,
            opening,
            record: inputs.record,
            tokens,
        })
    }
}

/// What is trained and evaluated on: of several ranks this one's part.
fn batches(
    splits: Splits,
    vocab: usize,
    config: &TrainConfig,
    parallel: Option<&Parallel>,
) -> Result<(Loader, Option<Eval>)> {
    let limit = Some(config.eval_batches);
    let eval = splits.val.map(|val| Eval::new(val, vocab, config.batch, config.context, limit, config.seed));
    let eval = eval.transpose()?;
    let loader = Loader::new(splits.train, vocab, config.batch, config.context, config.grad_accum)?;
    let Some(parallel) = parallel else { return Ok((loader, eval)) };
    let eval = eval.map(|eval| eval.in_batches_of(parallel.eval_rows())).transpose()?;
    Ok((loader.part(parallel.rows()), eval))
}

impl Trainer {
    /// A new run in the folder `out`, which must not contain a run.
    pub fn create(device: &Device, config: TrainConfig, out: &Path) -> Result<Self> {
        Self::create_in(device, config, RunFolder::claim(out)?, &mut |_| true)
    }

    /// A new run in a claimed folder. If it cannot start, the folder is removed. `watch` receives the progress of reading the data and can stop
    /// it.
    pub fn create_in(
        device: &Device,
        config: TrainConfig,
        claim: Claim,
        watch: &mut Watch<'_>,
    ) -> Result<Self> {
        let config = config.with_absolute_paths()?;
        let parts = Parts::build(device, &config, None, watch, None)?;
        crate::data::done(watch)?;
        let folder = RunFolder::create(claim, &config)?;
        Self::assemble(device, config, parts, (folder, Vec::new()))
    }

    /// This rank of a run of all ranks of `group`, each with a device of its own. `config` is that of the whole run: its batch is divided
    /// among the ranks. Rank 0 gives the folder it has claimed, whose `path` all of them name; it alone writes there. `resume` goes on with
    /// the run in it, which every rank has to be able to read.
    ///
    /// # Errors
    /// As [`Trainer::create_in`] and [`Trainer::resume`], at every rank what failed at one; `Format` where the ranks do not agree about the run.
    pub fn create_among(
        group: &Group,
        device: &Device,
        config: TrainConfig,
        (claim, path, resume): (Option<Claim>, &Path, bool),
        watch: &mut Watch<'_>,
    ) -> Result<Self> {
        let mut parallel = group.all_succeed(Parallel::new(group, &config))?;
        let mut trainer = if resume {
            let made = Self::reopened(device, config, (claim, path), watch, Some(&parallel));
            let trainer = group.all_succeed(made)?;
            parallel.begin(&trainer.config, &trainer.data, trainer.step, trainer.model.params().list())?;
            trainer
        } else {
            let made = config.with_absolute_paths().and_then(|config| {
                let parts = Parts::build(device, &config, None, watch, Some(&parallel))?;
                Ok((config, parts))
            });
            let (config, parts) = group.all_succeed(made)?;
            parallel.begin(&config, &parts.record.to_json()?, 0, parts.model.params().list())?;
            // Nothing is written before all ranks have begun.
            let folder = match claim {
                Some(claim) => RunFolder::create(claim, &config),
                None => Ok(RunFolder::follow(path)),
            };
            Self::assemble(device, config, parts, (group.all_succeed(folder)?, Vec::new()))?
        };
        trainer.parallel = Some(parallel);
        Ok(trainer)
    }

    /// Resumes the run in `out` from its newest intact checkpoint, or from the beginning if it has none. Damaged checkpoints are skipped with a
    /// warning. Everything is restored and checked first; the folder is changed only after the first step, so that a run which cannot be
    /// resumed stays unchanged.
    ///
    /// # Errors
    /// `Format` if `out` is not a run folder, all checkpoints are damaged, or `config` changes a setting that must not change
    /// ([`RESUME`](crate::config::RESUME)); `Io` if another process has locked the folder.
    pub fn resume(device: &Device, config: TrainConfig, out: &Path) -> Result<Self> {
        Self::resume_watched(device, config, out, &mut |_| true)
    }

    /// The same; `watch` receives the progress of reading the data and can stop it.
    pub fn resume_watched(
        device: &Device,
        config: TrainConfig,
        out: &Path,
        watch: &mut Watch<'_>,
    ) -> Result<Self> {
        let claim = RunFolder::reopen(out)?;
        Self::reopened(device, config, (Some(claim), out), watch, None)
    }

    /// A run that goes on, written by this process if it has the claim.
    fn reopened(
        device: &Device,
        config: TrainConfig,
        (claim, out): (Option<Claim>, &Path),
        watch: &mut Watch<'_>,
        parallel: Option<&Parallel>,
    ) -> Result<Self> {
        let config = config.with_absolute_paths()?;
        config.validate()?;
        let stored = out.join("config.toml");
        let stored = TrainConfig::resolve(Some(&stored), &Overlay::default())
            .map_err(|e| e.context(stored.display()))?;
        let store = crate::checkpoint::Store::new(out.join("checkpoints"), config.keep);
        let latest = store.latest()?;
        for warning in latest.iter().flat_map(|l| &l.warnings) {
            tracing::warn!("a damaged checkpoint is passed over: {warning}");
        }
        let step = latest.as_ref().map_or(0, |l| l.state.step);
        let mut changes = stored.with_absolute_paths()?.changes(&config, step)?;
        let from = latest.map(|l| Checkpoint::load(&l.path).map(|c| (c, l.path))).transpose()?;
        let parts = Parts::build(device, &config, from.as_ref(), watch, parallel)?;
        let written = from.as_ref().and_then(|(c, _)| c.file(DATA_FILE).ok());
        if let Some(written) = written.filter(|_| step < config.steps) {
            changes.data_since(parts.record.since(written)?);
        }
        let best_step = from.as_ref().and_then(|(c, _)| c.state.best_step);
        let folder = match claim {
            Some(claim) => RunFolder::resume(claim, &config, step, best_step)?,
            None => (RunFolder::follow(out), Vec::new()),
        };
        let mut trainer = Self::assemble(device, config, parts, folder)?;
        if let Some((checkpoint, path)) = &from {
            trainer.restore(checkpoint).map_err(|e| e.context(path.display()))?;
        }
        if changes.data {
            // Losses on different validation data are not comparable.
            trainer.best = None;
            changes.notes.push("the validation data changes with it: the best loss is counted anew".into());
        }
        changes.notes.iter().for_each(|note| tracing::info!("changed with step {}: {note}", step + 1));
        if let Some(rate) = changes.rate.filter(|_| !trainer.is_finished()) {
            tracing::warn!("{rate}");
        }
        Ok(trainer)
    }

    fn assemble(
        device: &Device,
        config: TrainConfig,
        parts: Parts,
        (folder, history): (RunFolder, Vec<StepMetrics>),
    ) -> Result<Self> {
        let position = Position { seed: config.seed, ..Position::default() };
        let last = history.last();
        let (elapsed, trained) = last.map_or((0.0, 0), |m| (m.elapsed, m.tokens));
        Ok(Self {
            model: parts.model,
            companions: parts.companions,
            optimizer: parts.optimizer,
            rate: config.learning_rate(),
            loader: parts.loader,
            eval: parts.eval,
            lengths: parts.tokenizer.as_ref().and_then(Tokenizer::byte_lengths),
            tokenizer: parts.tokenizer,
            prompt: parts.prompt,
            opening: parts.opening,
            elapsed,
            trained,
            folder,
            history,
            kernels: Vec::new(),
            step: 0,
            saved_step: 0,
            position,
            val_loss: None,
            best: None,
            last_done: Instant::now(),
            speed: SpeedWindow::new(elapsed, 0),
            peak_flops: 0.0,
            spared: BTreeSet::new(),
            detect_anomaly: false,
            stepper: Stepper::new(device, config.graph),
            update: Stepper::without_plan(device, config.graph),
            sums: None,
            draws: counter(device, 0)?,
            losses: Losses::new(device)?,
            profiling: None,
            writing: Writing::default(),
            data: parts.record.to_json()?,
            tokens: parts.tokens,
            parallel: None,
            failed_together: false,
            config,
        })
    }

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
            if let Some(sums) = self.sums.take() {
                sums.end();
            }
        }
    }

    /// Ends the run if a rank gives no sign of life for so long while steps go; without it after twenty times what a step takes, and at least
    /// 20 seconds.
    pub fn watchdog(&mut self, bound: Option<Duration>) {
        if let Some(parallel) = &mut self.parallel {
            parallel.watchdog.given = bound;
        }
    }

    /// Whether the run ended with an error that every rank has, such as a loss that is not finite.
    pub fn failed_together(&self) -> bool {
        self.failed_together
    }

    /// How the time of each rank went; empty for a run of one.
    pub fn ranks(&self) -> &[RankTimes] {
        self.parallel.as_ref().map_or(&[], |parallel| &parallel.told.times)
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
                error.context(parallel.name())
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
        parallel.stepped();
        if !parallel.rebalance() {
            return Ok(());
        }
        let device = self.model.params().device().clone();
        let rows = parallel.rows();
        self.loader = self.loader.clone().part(rows.clone());
        // Commands that read the old batches and the captured step may still run.
        device.finish()?;
        *batches = Prefetch::start(self.loader.clone(), self.position, PREFETCH)?;
        *uploads = Uploads::new(&device, rows.len(), self.config.context, self.config.grad_accum as usize)?;
        self.stepper = Stepper::new(&device, self.stepper.mode());
        Ok(())
    }

    /// How batches are divided among ranks; without it equally among devices of one kind, else by their speed. All ranks call it, before
    /// [`Trainer::run`].
    ///
    /// # Errors
    /// `Format` for another number of weights than ranks, or ones that are not positive.
    pub fn shares(&mut self, shares: &Shares) -> Result<()> {
        let Some(parallel) = &mut self.parallel else { return Ok(()) };
        parallel.divide(shares)?;
        self.loader = self.loader.clone().part(parallel.rows());
        Ok(())
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
            Some(parallel) => parallel.asked(),
            None => [observer.should_stop(), observer.should_save()],
        };
        Asked { stop, save }
    }

    /// What is known when a run starts.
    fn info(&self) -> RunInfo {
        let device = self.model.params().device();
        RunInfo {
            parameters: self.model.params().count(),
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
        let Asked { stop, save } = asked;
        let last = self.step == self.config.steps;
        let step = self.step;
        let every = |n: u64| n > 0 && step.is_multiple_of(n);
        let c = &self.config;
        let pauses = [c.eval_every, c.sample_every, c.checkpoint_every].map(|n| every(n) || last);
        if let Some(parallel) = &mut self.parallel {
            parallel.pausing(pauses);
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
        let samples = self.config.sample_every > 0 && !self.folder.follows();
        if !stop && samples && (every(self.config.sample_every) || last) {
            let begun = Instant::now();
            let sample = self.sample();
            metrics.sample = self.spare("samples", sample).flatten();
            self.host_did("sample", begun);
            if let Some(text) = &metrics.sample {
                observer.sample(self.step, text);
            }
        }
        // Before the checkpoint: a run resumed from it does not repeat this step.
        self.publish(metrics, observer)?;
        if stop || save || last || best || every(self.config.checkpoint_every) {
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
