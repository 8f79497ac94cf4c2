//! Training on texts: batches of tokens, the loss of the next token, evaluation and samples.

use super::clock::TokenClock;
use crate::config::TrainConfig;
use crate::data::records::VALUES;
use crate::data::{Batch, DATA_FILE, Eval, Loader, Position, Prefetch};
use crate::run::StepMetrics;
use crate::train::adapters::{self, BaseRecord};
use crate::train::companions::Companions;
use crate::train::next_token::NextToken;
use crate::train::observer::{Observer, RunInfo};
use crate::train::parallel::Parallel;
use crate::train::peak;
use crate::train::pipeline::Slots;
use crate::train::preference::PreferenceObjective;
use crate::train::training::{
    At, Gathered, Loop, Objective, ObserverRequests, Ranks, StepResults, Task, Training, divergence,
};
use crate::train::uploads::{PREFETCH, UploadedBatch, Uploads};
use netcl_model::checkpoint::TensorToWrite;
use netcl_model::decoder::broken_weights;
use netcl_model::layers::Mode;
use netcl_model::model::Model;
use netcl_model::params::Params;
use netcl_model::tokenizer::{ByteLengths, Tokenizer};
use netcl_tensor::random::set_counter;
use netcl_tensor::{Device, Error, Result, Tensor, counted};
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

/// A language model in training, its data, and related information.
pub(crate) struct Texts {
    pub config: TrainConfig,
    pub model: Box<dyn Model>,
    /// Companion files of the model.
    pub companions: Companions,
    /// Files of the base model, if adapters are trained.
    pub base: Option<BaseRecord>,
    pub loader: Loader,
    pub eval: Option<Eval>,
    pub tokenizer: Option<Tokenizer>,
    /// Byte lengths of the tokenizer's tokens, if known.
    pub lengths: Option<ByteLengths>,
    /// Prompt of samples: the first tokens of the data.
    pub prompt: Vec<u32>,
    pub opening: Option<String>,
    /// A line about the memory plan.
    pub fitting: Option<String>,
    /// Record of the data files, as stored in checkpoints.
    pub data: Vec<u8>,
    /// Training and validation tokens.
    pub tokens: [usize; 2],
    /// The objective, if it compares answers.
    pub comparison: Option<PreferenceObjective>,
    /// Counter of the draws before the dropout of the current pass.
    pub draws: Tensor,
    /// The micro-batches that a stage of a pipeline has at a time.
    pub slots: Slots,
    pub clock: TokenClock,
    pub peak_flops: f64,
}

/// Batches computed ahead, and their uploads.
pub(crate) struct Feed {
    batches: Prefetch,
    uploads: Uploads,
}

/// The source of batches.
pub(crate) struct TextBatchSource {
    loader: Loader,
    from: Position,
    device: Device,
    /// Rows, context and micro-batches.
    sizes: [usize; 3],
    /// Whether the losses of a batch are weighted, and whether its rows have several records.
    kind: [bool; 2],
    /// Numbers of a batch's records.
    values: usize,
}

impl Texts {
    /// Returns the weight of the sum of a batch's losses. A pass multiplies it by `share`, this rank's share of the rows, and divides it by the number
    /// of micro-batches. The result is 1 / the targets of the step.
    pub(super) fn weight(&self, batch: &Batch, share: f32) -> f32 {
        let passes = f64::from(self.config.grad_accum) / f64::from(share);
        batch.step_targets.map_or(0.0, |targets| (passes / targets.max(1) as f64) as f32)
    }

    fn next_token(&self) -> NextToken<'_> {
        NextToken { model: &*self.model, config: &self.config, draws: &self.draws }
    }

    /// Measures the peak of the device; with several ranks, of all together.
    fn measure_peak(&mut self, training: &mut Training<StepMetrics>) -> Result<()> {
        let peak = peak::measure(&training.device, self.model.params().dtype());
        self.peak_flops = training.report.spare("the share of the device's peak", peak).unwrap_or(0.0);
        if let Some(parallel) = &training.ranks.parallel {
            self.peak_flops = parallel.total_of(self.peak_flops)?;
        }
        Ok(())
    }

    /// Returns the information for the start of a run.
    fn info(&self, training: &Training<StepMetrics>) -> RunInfo {
        let capabilities = training.device.capabilities();
        let parallel = training.ranks.parallel.as_ref();
        RunInfo {
            parameters: self.parameters(&training.ranks),
            trained: match training.ranks.is_piped() {
                true => self.parameters(&training.ranks),
                false => self.model.params().trained().iter().map(Tensor::count).sum(),
            },
            vocab: self.model.config().vocab,
            known: self.tokenizer.as_ref().map(Tokenizer::vocab_size),
            tokens: self.tokens,
            device: match parallel {
                Some(parallel) => parallel.devices(),
                None => format!("{} ({})", capabilities.id, capabilities.name),
            },
            memory: self.fitting.clone(),
            peak_flops: self.peak_flops,
            ranks: parallel.map_or(1, Parallel::size),
            from_step: training.progress.step,
            steps: self.config.steps,
            folder: training.report.folder.path().into(),
        }
    }

    /// Returns number of parameters of the whole model.
    pub fn parameters(&self, ranks: &Ranks) -> usize {
        let params = self.model.params();
        match () {
            () if ranks.is_piped() => self.model.config().parameters(),
            // Quantized matrices are not parameters; what is trained comes on top.
            () if params.block_bytes() > 0 => params
                .trained()
                .iter()
                .map(Tensor::count)
                .fold(self.model.config().parameters(), usize::saturating_add),
            () => params.count(),
        }
    }
}

impl Objective for Texts {
    type Inputs = UploadedBatch;

    fn micros(&self) -> u32 {
        self.next_token().micros()
    }

    fn params(&self) -> &Params {
        self.model.params()
    }

    fn loss(&self, inputs: &UploadedBatch, rows_before: usize) -> Result<Tensor> {
        match &self.comparison {
            Some(comparison) => {
                let mode = Mode { recompute: self.config.recompute, rows_before, ..Mode::eval() };
                comparison.loss(&*self.model, inputs, mode)
            }
            None => self.next_token().loss(inputs, rows_before),
        }
    }

    fn one_row(&self, inputs: &UploadedBatch) -> Result<UploadedBatch> {
        match &self.comparison {
            Some(_) => PreferenceObjective::one_record(inputs),
            None => self.next_token().one_row(inputs),
        }
    }

    fn buffers(&self) -> Vec<Tensor> {
        self.comparison.iter().map(PreferenceObjective::buffer).collect()
    }

    fn tied(&self) -> Option<Tensor> {
        self.next_token().tied()
    }
}

impl Task for Texts {
    type Batch = (Position, Batch);
    type Source = TextBatchSource;
    type Feed = Feed;
    type Metrics = StepMetrics;
    type Record = StepMetrics;
    type Watch<'w> = dyn Observer + 'w;

    const PLANS_AHEAD: bool = true;
    /// Steps to profile, after the compilation of kernels.
    const PROFILED: Range<u64> = 5..8;
    const NAMES_RANK: bool = true;
    const WATCHED: bool = true;

    fn source(&self, training: &Training<StepMetrics>) -> TextBatchSource {
        let c = &self.config;
        let records = training.ranks.parallel.as_ref().map_or(c.batch, |p| p.rows().len());
        let rows = records * c.objective.kind(c.batch).rows();
        TextBatchSource {
            loader: self.loader.clone(),
            from: training.progress.position,
            device: training.device.clone(),
            sizes: [rows, c.context, c.grad_accum as usize],
            kind: [self.loader.is_weighted(), self.loader.is_packed()],
            values: if c.objective.is_preference() { records * VALUES } else { 0 },
        }
    }

    fn ahead<O>(source: TextBatchSource, work: impl FnOnce(&mut Feed) -> Result<O>) -> Result<O> {
        let TextBatchSource { loader, from, device, sizes, kind, values } = source;
        let batches = Prefetch::start(loader, from, PREFETCH)?;
        let uploads = Uploads::new(&device, sizes, kind, values)?;
        work(&mut Feed { batches, uploads })
    }

    fn take(feed: &mut Feed) -> Result<(Position, Batch)> {
        feed.batches.next().unwrap_or_else(|| Err(Error::internal("the batches ended")))
    }

    fn send(
        &mut self,
        feed: &mut Feed,
        (position, batch): (Position, Batch),
        at: At,
        ranks: &mut Ranks,
    ) -> Result<(UploadedBatch, Position)> {
        if let Some(rows) = ranks.parallel.as_mut().and_then(|parallel| parallel.rows.as_mut()) {
            if at.micro == 0 {
                rows.clear();
            }
            rows.add(&batch.x);
        }
        let weight = self.weight(&batch, ranks.parallel.as_ref().map_or(1.0, Parallel::share));
        let inputs = feed.uploads.send(&batch, weight, at.fixed)?;
        if self.config.dropout > 0.0 {
            let pass = at.step * u64::from(self.config.grad_accum) + u64::from(at.micro);
            set_counter(&self.draws, Mode::draws(pass))?;
        }
        Ok((inputs, self.loader.next(position)))
    }

    fn sent(feed: &mut Feed) -> Result<()> {
        feed.uploads.sent()
    }

    fn enqueued(&mut self, step: u64) -> Result<()> {
        self.comparison.as_ref().map_or(Ok(()), |comparison| comparison.enqueued(step))
    }

    fn rows_changed(&mut self, parallel: &mut Parallel) -> Result<()> {
        self.loader = self.loader.clone().part(parallel.rows());
        Ok(())
    }

    fn part(&self, parallel: &Parallel) -> (String, &'static str) {
        let rows = counted(parallel.rows().len() as u64, "row");
        let change =
            "give it fewer with --shares, lower --batch, or recompute activations with --recompute block";
        (format!("{rows} of --batch {}", self.config.batch), change)
    }

    fn step_of_stage(
        &mut self,
        training: &mut Training<StepMetrics>,
        feed: &mut Feed,
        asked: &mut dyn FnMut() -> [bool; 2],
    ) -> Result<(Tensor, Position)> {
        self.piped(training, &mut feed.batches, asked)
    }

    fn started(
        &mut self,
        training: &mut Training<StepMetrics>,
        watch: &mut (dyn Observer + '_),
    ) -> Result<()> {
        self.measure_peak(training)?;
        if let Some(comparison) = &self.comparison {
            comparison.reset()?;
        }
        watch.started(&self.info(training));
        self.clock.start();
        Ok(())
    }

    fn measure(
        &mut self,
        training: &mut Training<StepMetrics>,
        done: &StepResults<'_>,
        _: &mut (dyn Observer + '_),
    ) -> Result<StepMetrics> {
        self.metrics(training, done)
    }

    fn diverged(
        &mut self,
        training: &mut Training<StepMetrics>,
        done: &StepResults<'_>,
        place: &str,
    ) -> Result<Error> {
        let metrics = self.metrics(training, done)?;
        training.report.record(metrics)?;
        let init = self.config.init.as_deref().filter(|_| done.step == 1);
        if let Some((dir, tensor)) = init.and_then(|dir| Some((dir, broken_weights(Path::new(dir))?))) {
            return Ok(Error::format(format!(
                "--init {dir}: {tensor}; a model with such weights cannot be trained. They are damaged, or the training that wrote them diverged: \
                 start from an earlier checkpoint"
            )));
        }
        Ok(Error::launch(format!(
            "{}, increase --warmup, or clip with --clip; --detect-anomaly finds the op that caused it. The checkpoints before this step are intact",
            divergence(done, place)
        )))
    }

    fn publish(
        &mut self,
        training: &mut Training<StepMetrics>,
        metrics: StepMetrics,
        watch: &mut (dyn Observer + '_),
    ) -> Result<()> {
        watch.step(&metrics);
        training.report.record(metrics)
    }

    fn explain(&self, training: &Training<StepMetrics>) -> Option<String> {
        self.explain_memory(training)
    }

    fn is_captured(&self, training: &Training<StepMetrics>) -> bool {
        training.passes.stepper.is_captured() || self.slots.are_captured()
    }

    fn due(&self, progress: &Loop) -> [bool; 3] {
        let c = &self.config;
        [c.eval_every, c.sample_every, c.checkpoint_every].map(|n| progress.every(n) || progress.is_last())
    }

    fn review(
        &mut self,
        training: &mut Training<StepMetrics>,
        mut metrics: StepMetrics,
        asked: ObserverRequests,
        watch: &mut (dyn Observer + '_),
    ) -> Result<bool> {
        let [evaluates, samples, _] = self.due(&training.progress);
        let mut best = false;
        if evaluates && self.config.eval_every > 0 && !asked.stop {
            best = self.evaluated(training, &mut metrics, watch)?;
        }
        if samples && self.config.sample_every > 0 && !asked.stop && self.samples(training) {
            let begun = Instant::now();
            let sample = self.sample(training);
            // Stages that sample together must stay together.
            metrics.sample = match training.ranks.is_piped() {
                true => sample?,
                false => training.report.spare("samples", sample).flatten(),
            };
            training.host_did("sample", begun);
            if let Some(text) = &metrics.sample {
                watch.sample(training.progress.step, text);
            }
        }
        // Before the checkpoint, so that a run resumed from it does not repeat this step.
        self.publish(training, metrics, watch)?;
        Ok(best)
    }

    fn paused(
        &mut self,
        training: &mut Training<StepMetrics>,
        asked: ObserverRequests,
        _: &mut (dyn Observer + '_),
    ) -> Result<bool> {
        if !training.progress.is_last() && !asked.stop {
            let (step, steps) = (training.progress.step, counted(self.config.steps, "step"));
            self.tell(training, &format!("running, {step} of {steps}"));
        }
        self.clock.go_on();
        Ok(asked.stop)
    }

    fn planned(&self) -> Vec<TensorToWrite<'static>> {
        self.model.state()
    }

    fn alike(&self) -> Vec<Tensor> {
        self.model.params().trained()
    }

    fn files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let mut files = vec![
            ("config.json".to_string(), self.config_json()?),
            (DATA_FILE.to_string(), self.data.clone()),
        ];
        files.extend(adapters::files(&self.config, self.model.config(), self.base.as_ref())?);
        files.extend(self.companions.files.clone());
        if let Some(tokenizer) = &self.tokenizer {
            let new =
                |(name, _): &(String, Vec<u8>)| !self.companions.files.iter().any(|(own, _)| own == name);
            files.extend(tokenizer.files()?.into_iter().filter(new));
        }
        Ok(files)
    }

    fn gathered(&self, training: &Training<StepMetrics>) -> Result<Option<Gathered>> {
        self.gathered_stages(training)
    }
}
