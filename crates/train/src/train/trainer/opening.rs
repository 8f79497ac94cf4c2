//! Creates a run, alone or as one of several ranks, and resumes one from a checkpoint.

use super::Trainer;
use super::clock::TokenClock;
use super::texts::Texts;
use crate::config::{Overlay, TrainConfig};
use crate::data::{DATA_FILE, DataRecord, DataWatch, Eval, Loader, TokenCache};
use crate::optim::Optimizer;
use crate::run::{Claim, RunFolder, StepMetrics};
use crate::train::adapters::{BaseRecord, Start, new_decoder};
use crate::train::companions::Companions;
use crate::train::fitting::fitted;
use crate::train::parallel::Parallel;
use crate::train::pipeline::{Pipe, Slots, plan_of_stage};
use crate::train::preference::{PreferenceObjective, References, prepare};
use crate::train::rows::TokenRows;
use crate::train::rule::{optimizer, rule};
use crate::train::sums::is_apart;
use crate::train::training::{
    Accumulation, Loop, Ranks, Reporting, Run, Training, Zero, newest, tell_changes,
};
use crate::train::zero::Shards;
use crate::train::{InputData, Inputs, MemoryPlan, open_inputs};
use netcl_dist::Group;
use netcl_model::checkpoint::Checkpoint;
use netcl_model::decoder::{Decoder, DecoderConfig, Freeze, ModelFolder, Span};
use netcl_model::model::Model;
use netcl_model::tokenizer::Tokenizer;
use netcl_tensor::random::counter;
use netcl_tensor::{DType, Device, Error, Result};
use std::path::{Path, PathBuf};

/// Components of a run except its folder.
struct Parts {
    /// The settings, with those that follow from the data.
    config: TrainConfig,
    model: Box<dyn Model>,
    companions: Companions,
    base: Option<BaseRecord>,
    optimizer: Optimizer,
    shards: Option<Shards>,
    loader: Loader,
    eval: Option<Eval>,
    tokenizer: Option<Tokenizer>,
    prompt: Vec<u32>,
    opening: Option<String>,
    fitting: Option<String>,
    record: DataRecord,
    tokens: [usize; 2],
}

impl Parts {
    /// Opens the data and creates the model; tokenizer and vocabulary are taken from the checkpoint `from` if it has them.
    fn build(
        device: &Device,
        config: &TrainConfig,
        from: Option<&(Checkpoint, PathBuf)>,
        watch: &mut DataWatch<'_>,
        parallel: Option<&Parallel>,
    ) -> Result<Self> {
        config.validate()?;
        staged(config, parallel)?;
        // The model of the checkpoint, the one to start from, or a new one with the vocabulary of the data.
        let opened = |dir: &String| Start::open(Path::new(dir)).map_err(|e| e.context("--init"));
        // The weights under adapters are those of the base model, also in a resumed run.
        let start = config.init.as_ref().filter(|_| from.is_none() || config.lora.is_some());
        let start = start.map(opened).transpose()?;
        let resumed = from.map(|(_, path)| ModelFolder::open(path)).transpose()?;
        let folder = resumed.as_ref().or(start.as_ref().map(|start| &start.folder));
        let shape = |vocab| match folder {
            Some(folder) => Ok(folder.config.clone()),
            None => config.decoder(vocab),
        };
        // Checked before the data is read, which may take long, and again with the resulting vocabulary. The rows of records may be shorter.
        let plan = |model: &DecoderConfig| check_memory(device, config, model, parallel);
        let vocab = folder.map(|folder| folder.config.vocab).or(config.vocab);
        let early = plan(&shape(vocab.unwrap_or(1))?);
        if config.init.is_none() {
            early?;
        }
        let kept = from.map(|(_, path)| path.as_path());
        let tokenizer =
            start.as_ref().map_or_else(|| config.tokenizer.clone(), |start| start.tokenizer(config));
        let cache = TokenCache::of(device.settings());
        let config_of_data = TrainConfig { vocab, tokenizer, ..config.clone() };
        let inputs = open_inputs(&config_of_data, kept, cache.as_ref(), watch)?;
        let shape = shape(inputs.vocab)?;
        let (config, fitting) = fit(device, inputs.settled(config)?, &shape, parallel)?;
        let config = &config;
        let local = parallel.map_or_else(|| config.clone(), |p| p.local(config));
        let weighted = matches!(inputs.data, InputData::Records { .. });
        // Kernels of quantized weights, and those of losses that compare answers, are compiled at their first launch.
        if !start.as_ref().is_some_and(Start::is_file) && !config.objective.is_preference() {
            crate::train::ahead::compile(device, &local, &shape, (parallel.is_some(), weighted), watch)?;
        }
        let base = BaseRecord::of(config, from.map(|(checkpoint, _)| checkpoint))?;
        // A resumed run's weights come from its checkpoint.
        let seed = from.is_none().then_some(config.seed);
        let pipe = parallel.and_then(Parallel::pipe);
        let model = model_of(device, config, (start.as_ref(), seed), shape, pipe)?;
        let companions = companions(folder, from.is_some(), &inputs)?;
        let shards = shards(&*model, config, parallel)?;
        let optimizer = optimizer(model.params(), config, shards.as_ref().map(Shards::parts))?;
        let tokens = inputs.tokens();
        let (prompt, opening) = (inputs.prompt()?, inputs.opening());
        let (tokenizer, record) = (inputs.tokenizer.clone(), inputs.record.clone());
        let (loader, eval) = batches(inputs, config, parallel)?;
        Ok(Self {
            config: config.clone(),
            model,
            companions,
            base,
            optimizer,
            shards,
            loader,
            eval,
            tokenizer,
            prompt,
            opening,
            fitting,
            record,
            tokens,
        })
    }
}

/// Refuses stages without ranks.
fn staged(config: &TrainConfig, parallel: Option<&Parallel>) -> Result<()> {
    let stages = config.pipeline;
    if parallel.is_some() || stages < 2 {
        return Ok(());
    }
    Err(Error::format(format!(
        "--pipeline {stages} on one device: name one device per stage with --devices, or start {stages} processes with mpirun; --pipeline 1 trains the \
         whole model on one device"
    )))
}

/// Returns the companion files of the model, with the chat template of its records.
fn companions(folder: Option<&ModelFolder>, resumed: bool, inputs: &Inputs) -> Result<Companions> {
    let tokenizer = inputs.tokenizer.as_ref();
    let companions = match folder {
        Some(folder) if resumed => Companions::of_folder(folder)?,
        Some(folder) => Companions::of_start(folder, tokenizer)?,
        None => Companions::of_tokenizer(tokenizer),
    };
    match &inputs.data {
        InputData::Records { tokenizer, .. } => companions.with_template(tokenizer.given()),
        InputData::Tokens(_) => Ok(companions),
    }
}

/// Creates the model on this rank's device, in a pipeline its stage: that of `init`, or a new one, with zeros for weights without a seed.
fn model_of(
    device: &Device,
    config: &TrainConfig,
    (init, seed): (Option<&Start>, Option<u64>),
    shape: DecoderConfig,
    pipe: Option<&Pipe>,
) -> Result<Box<dyn Model>> {
    let (dtype, freeze) = (config.dtype, Freeze::new(&config.freeze)?);
    let span = pipe.map(|pipe| stage_span(pipe, &shape, device)).transpose()?;
    let model = match (init, &span) {
        (Some(start), None) => start.decoder(device, config, seed),
        (Some(start), Some(span)) => start.folder.part(span, dtype, &freeze),
        (None, None) => new_decoder(device, config, shape, seed),
        (None, Some(span)) => Decoder::part(span, shape, dtype, seed, &freeze),
    };
    let model = model.map_err(|e| if init.is_some() { e.context("--init") } else { e })?;
    if pipe.is_some() && model.params().trained().is_empty() {
        return Err(Error::unsupported(
            "--freeze leaves a stage of --pipeline without parameters to train: freeze fewer, or use fewer stages",
        ));
    }
    Ok(Box::new(model))
}

/// Returns the settings of a run that fits into memory, and a line about the choice; one of several ranks recomputes what its settings say.
fn fit(
    device: &Device,
    config: TrainConfig,
    model: &DecoderConfig,
    parallel: Option<&Parallel>,
) -> Result<(TrainConfig, Option<String>)> {
    let (config, line) = match parallel {
        None => fitted(device, &config, model)?,
        Some(_) => (config, None),
    };
    check_memory(device, &config, model, parallel)?;
    Ok((config, line))
}

/// Checks that memory suffices for a run, with several ranks for this one's rows; records the number of rows that would fit.
fn check_memory(
    device: &Device,
    config: &TrainConfig,
    model: &DecoderConfig,
    parallel: Option<&Parallel>,
) -> Result<()> {
    let Some(parallel) = parallel else { return plan_of(config, model, device, None)?.check(device) };
    let plan =
        |batch: usize| plan_of(&TrainConfig { batch, ..config.clone() }, model, device, Some(parallel));
    // Memory grows with the rows.
    let (mut fits, mut lacks) = (0, config.batch.saturating_add(1));
    while lacks - fits > 1 {
        let rows = fits + (lacks - fits) / 2;
        let room = plan(rows).is_ok_and(|plan| plan.has_room(device));
        *(if room { &mut fits } else { &mut lacks }) = rows;
    }
    parallel.balance.has_room_for(fits);
    plan(parallel.rows().len())?.check(device)
}

/// Returns the model of the newest checkpoint of a run, if one can be read.
fn model_of_run(out: &Path, config: &TrainConfig) -> Option<DecoderConfig> {
    let store = netcl_model::checkpoint::Store::new(out.join("checkpoints"), config.keep);
    let latest = store.latest().ok().flatten()?;
    Some(ModelFolder::open(&latest.path).ok()?.config)
}

/// Returns the memory of a run with this part of the batch on its device; in a pipeline, of its stage.
pub(super) fn plan_of(
    local: &TrainConfig,
    model: &DecoderConfig,
    device: &Device,
    parallel: Option<&Parallel>,
) -> Result<MemoryPlan> {
    let capabilities = device.capabilities();
    if let Some(pipe) = parallel.and_then(Parallel::pipe) {
        let layers = pipe.own_layers(model)?;
        return Ok(plan_of_stage(local, model, capabilities, (&layers, pipe.stage(), pipe.stages())));
    }
    let plan = MemoryPlan::of(local, model, capabilities);
    let Some(parallel) = parallel.filter(|parallel| parallel.size() > 1) else { return Ok(plan) };
    let plan = plan.divided_between(parallel.size(), local.zero, parallel.one_machine);
    let twice = if local.zero == 0 { table_apart(model, local.dtype) } else { 0 };
    Ok(MemoryPlan { gradients: plan.gradients.saturating_add(twice), ..plan })
}

/// Returns the bytes of a tied table whose embedding's gradient has a separate accumulator.
fn table_apart(model: &DecoderConfig, dtype: DType) -> u64 {
    let count = model.vocab.saturating_mul(model.width);
    let apart = model.tied && is_apart(count, dtype);
    if apart { (count as u64).saturating_mul(dtype.size() as u64) } else { 0 }
}

/// Returns how state is divided, if it is.
fn shards(model: &dyn Model, config: &TrainConfig, parallel: Option<&Parallel>) -> Result<Option<Shards>> {
    let parallel = parallel.filter(|p| config.zero > 0 && p.size() > 1);
    let shards =
        |p: &Parallel| Shards::new(&model.params().trained(), p.place(), config.zero, &*rule(config));
    parallel.map(shards).transpose()
}

/// Returns the layers of this rank's stage, on its device.
fn stage_span(pipe: &Pipe, model: &DecoderConfig, device: &Device) -> Result<Span> {
    if model.mlp.moe.is_some_and(|moe| moe.balance) {
        return Err(Error::unsupported(
            "--pipeline does not support a mixture of experts with a balance loss, which combines the routers of all layers",
        ));
    }
    Ok(Span { device: device.clone(), layers: pipe.own_layers(model)? })
}

/// Returns the training and evaluation batches; with several ranks, this one's part.
fn batches(
    inputs: Inputs,
    config: &TrainConfig,
    parallel: Option<&Parallel>,
) -> Result<(Loader, Option<Eval>)> {
    let (loader, eval) = inputs.batches(config)?;
    let Some(parallel) = parallel else { return Ok((loader, eval)) };
    let eval = eval.map(|eval| eval.in_batches_of(parallel.eval_rows())).transpose()?;
    Ok((loader.part(parallel.rows()), eval))
}

/// Checks that a resumed run has as many rows per step as before if it trains on records, whose place in the data follows from the step.
fn same_rows(loader: &Loader, (stored, asked): (&TrainConfig, &TrainConfig), step: u64) -> Result<()> {
    let rows = |config: &TrainConfig| (config.batch as u64).saturating_mul(config.grad_accum.into());
    if !loader.is_weighted() || step == 0 || rows(stored) == rows(asked) {
        return Ok(());
    }
    Err(Error::format(format!(
        "--batch {} times --grad-accum {} is {} records per step, but the run had {} before; a resumed run continues at the next record, so the product \
         must stay the same",
        asked.batch,
        asked.grad_accum,
        rows(asked),
        rows(stored)
    )))
}

impl Trainer {
    /// Creates a run in the folder `out`, which must not contain a run.
    pub fn create(device: &Device, config: TrainConfig, out: &Path) -> Result<Self> {
        Self::create_in(device, config, RunFolder::claim(out)?, &mut |_| true)
    }

    /// Creates a run in a claimed folder. If it cannot start, the folder is removed. `watch` receives the progress of reading the data and can stop
    /// it.
    pub fn create_in(
        device: &Device,
        config: TrainConfig,
        claim: Claim,
        watch: &mut DataWatch<'_>,
    ) -> Result<Self> {
        let config = config.with_absolute_paths()?;
        let parts = Parts::build(device, &config, None, watch, None)?;
        crate::data::done(watch)?;
        let folder = RunFolder::create(claim, &parts.config)?;
        Self::assemble(device, parts, (folder, Vec::new()), true)
    }

    /// Creates this rank of a run of all ranks of `group`, each with its own device. `config` is that of the whole run: its batch is divided among
    /// the ranks. Rank 0 passes the folder it has claimed, whose `path` all of them name; only rank 0 writes there. `resume` continues the run in it,
    /// which every rank must be able to read.
    ///
    /// # Errors
    /// Errors of [`Trainer::create_in`] and [`Trainer::resume`]: on every rank the failure of one; `Format` if the ranks do not agree about the run.
    pub fn create_distributed(
        group: &Group,
        device: &Device,
        config: TrainConfig,
        (claim, path, resume): (Option<Claim>, &Path, bool),
        watch: &mut DataWatch<'_>,
    ) -> Result<Self> {
        if config.objective.is_preference() && group.size() > 1 {
            return Err(Error::unsupported(format!(
                "--objective {} on several devices: rewards are not summed over ranks yet; use one device, and --grad-accum for larger steps",
                config.objective
            )));
        }
        let mut parallel = group.all_succeed(Parallel::new(group, &config))?;
        parallel.one_machine = group.is_on_one_machine()?;
        parallel.divide_layers(&config, device)?;
        let mut trainer = if resume {
            let model = model_of_run(path, &config);
            loop {
                let room =
                    model.as_ref().map_or(Ok(()), |m| check_memory(device, &config, m, Some(&parallel)));
                if parallel.balance.make_room(room)?.is_some() {
                    break;
                }
            }
            let made = Self::reopened(device, config, (claim, path), watch, Some(&parallel));
            let trainer = group.all_succeed(made)?;
            let (task, step) = (&trainer.run.task, trainer.step());
            let weights = (task.model.config(), task.model.params().list());
            parallel.begin(&task.config, &task.data, step, weights)?;
            trainer
        } else {
            let config = group.all_succeed(config.with_absolute_paths())?;
            let parts = loop {
                let made = Parts::build(device, &config, None, watch, Some(&parallel));
                if let Some(parts) = parallel.balance.make_room(made)? {
                    break parts;
                }
            };
            let config = &parts.config;
            let weights = (parts.model.config(), parts.model.params().list());
            parallel.begin(config, &parts.record.to_json()?, 0, weights)?;
            parallel.copy_tied(&*parts.model)?;
            // Nothing is written before all ranks have started.
            let folder = match claim {
                Some(claim) => RunFolder::create(claim, config),
                None => Ok(RunFolder::follow(path)),
            };
            Self::assemble(device, parts, (group.all_succeed(folder)?, Vec::new()), true)?
        };
        parallel.rows = trainer.model().tied_embedding().map(|table| TokenRows::new(table.dims()[0]));
        trainer.run.training.ranks.parallel = Some(parallel);
        Ok(trainer)
    }

    /// Resumes the run in `out` from its newest intact checkpoint, or from the beginning if it has none. Damaged checkpoints are skipped with a
    /// warning. Everything is restored and checked first; the folder is changed only after the first step, so that a run which cannot be
    /// resumed stays unchanged.
    ///
    /// # Errors
    /// `Format` if `out` is not a run folder, all checkpoints are damaged, or `config` changes a setting that must not change
    /// ([`resume_rules`](crate::config::resume_rules)); `Io` if another process has locked the folder.
    pub fn resume(device: &Device, config: TrainConfig, out: &Path) -> Result<Self> {
        Self::resume_watched(device, config, out, &mut |_| true)
    }

    /// Does the same; `watch` receives the progress of reading the data and can stop it.
    pub fn resume_watched(
        device: &Device,
        config: TrainConfig,
        out: &Path,
        watch: &mut DataWatch<'_>,
    ) -> Result<Self> {
        let claim = RunFolder::reopen(out)?;
        Self::reopened(device, config, (Some(claim), out), watch, None)
    }

    /// Opens a resumed run, which this process writes if it has the claim.
    fn reopened(
        device: &Device,
        config: TrainConfig,
        (claim, out): (Option<Claim>, &Path),
        watch: &mut DataWatch<'_>,
        parallel: Option<&Parallel>,
    ) -> Result<Self> {
        let config = config.with_absolute_paths()?;
        config.validate()?;
        let stored = TrainConfig::of_run(out, &Overlay::default())?;
        let latest = newest(out, config.keep)?;
        let step = latest.as_ref().map_or(0, |l| l.state.step);
        let stored = stored.with_absolute_paths()?;
        let mut changes = stored.changes(&config, step)?;
        let from = latest.map(|l| Checkpoint::load(&l.path).map(|c| (c, l.path))).transpose()?;
        let parts = Parts::build(device, &config, from.as_ref(), watch, parallel)?;
        let config = &parts.config;
        same_rows(&parts.loader, (&stored, config), step)?;
        let written = from.as_ref().and_then(|(c, _)| c.file(DATA_FILE).ok());
        if let Some(written) = written.filter(|_| step < config.steps) {
            changes.data_since(parts.record.since(written)?);
        }
        let best_step = from.as_ref().and_then(|(c, _)| c.state.best_step);
        let folder = match claim {
            Some(claim) => RunFolder::resume(claim, config, step, best_step)?,
            None => (RunFolder::follow(out), Vec::new()),
        };
        // The model below adapters is the one that training started from.
        let is_reference = from.is_none() || config.lora.is_some();
        let mut trainer = Self::assemble(device, parts, folder, is_reference)?;
        if let Some((checkpoint, path)) = &from {
            let Run { task, training } = &mut trainer.run;
            task.restore(training, checkpoint).map_err(|e| e.context(path.display()))?;
        }
        if changes.data {
            // Losses on different validation data are not comparable.
            trainer.run.training.progress.best = None;
            changes.notes.push("the validation data changes with it: the best loss starts anew".into());
        }
        tell_changes(&changes, &trainer.run.training.progress);
        Ok(trainer)
    }

    /// Puts a run together. `is_reference` says whether the model is now the one that training started from.
    fn assemble(
        device: &Device,
        mut parts: Parts,
        (folder, history): (RunFolder, Vec<StepMetrics>),
        is_reference: bool,
    ) -> Result<Self> {
        let references = References { model: &*parts.model, is_loaded: is_reference, folder: folder.path() };
        prepare(&references, &parts.config, &mut parts.loader, parts.eval.as_mut())?;
        let comparison = PreferenceObjective::of(&parts.config, device)?;
        let last = history.last();
        let (elapsed, trained) = last.map_or((0.0, 0), |m| (m.elapsed, m.tokens));
        let config = parts.config;
        let (rate, sharding) = (config.learning_rate(), (config.zero, config.graph_mode()));
        let zero = parts.shards.map(|shards| Zero::new(shards, device, sharding)).transpose()?;
        let training = Training {
            device: device.clone(),
            optimizer: parts.optimizer,
            progress: Loop::new(rate, config.steps, config.seed),
            passes: Accumulation::new(device, config.graph_mode())?,
            ranks: Ranks { zero, ..Ranks::default() },
            report: Reporting::new(folder, history, config.keep),
        };
        let task = Texts {
            model: parts.model,
            companions: parts.companions,
            base: parts.base,
            loader: parts.loader,
            eval: parts.eval,
            lengths: parts.tokenizer.as_ref().and_then(Tokenizer::byte_lengths),
            tokenizer: parts.tokenizer,
            prompt: parts.prompt,
            opening: parts.opening,
            fitting: parts.fitting,
            data: parts.record.to_json()?,
            tokens: parts.tokens,
            comparison,
            draws: counter(device, 0)?,
            slots: Slots::default(),
            clock: TokenClock::new(elapsed, trained),
            peak_flops: 0.0,
            config,
        };
        Ok(Self { run: Run { task, training } })
    }
}
