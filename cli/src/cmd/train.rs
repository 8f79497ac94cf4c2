//! `netcl train`: trains a language model on text or token shards.

use super::{ModelSize, plan, train_among, train_images};
use crate::context::Context;
use crate::named::{named, named_by};
use crate::profile;
use crate::progress::{Progress, already_finished};
use crate::reading::ReadingBar;
use clap::Args as ClapArgs;
use clap::builder::PossibleValuesParser;
use netcl::device::check_writable;
use netcl::dist::launched;
use netcl::model::layers::Recompute;
use netcl::prelude::*;
use netcl::train::config::{
    DTYPES, GraphMode, Overlay, PRESETS, SETTINGS_COPY, SIMULATED, TrainConfig, storage_type,
};
use netcl::train::images::classifier::{self, ClassifierConfig, Diagnostics};
use netcl::train::run::RunFolder;
use netcl::train::schedule::Schedule;
use netcl::train::{ProfileSettings, Shares, Silent, Trainer};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Reads `--shares`.
fn shares(text: &str) -> std::result::Result<Shares, String> {
    match text {
        "equal" => return Ok(Shares::Equal),
        "speed" => return Ok(Shares::BySpeed),
        _ => {}
    }
    let weights: Option<Vec<f64>> = text.split(',').map(|part| part.trim().parse().ok()).collect();
    weights
        .map(Shares::Weights)
        .ok_or_else(|| "expected equal, speed, or a number for each device such as 3,1".into())
}

/// Heading of the flags that come after those of model, recipe and pace.
const RUN: &str = "Run";

/// Train or fine-tune a language model on text or token shards.
#[derive(ClapArgs, Debug, Default)]
#[command(args_override_self = true)]
pub struct Args {
    /// Text files, folders, globs, or token shards (*.bin, *.npy); files and folders named train and val are the two parts. Without it, the sources and docs of the folder netcl runs in.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    data: Vec<String>,
    /// Encoding of text that is not UTF-8 and has no byte order mark, such as latin1, cp1251, utf-16le or shift_jis.
    #[arg(long, value_name = "NAME")]
    encoding: Option<String>,
    /// Train on files of records (JSON Lines, tables) as plain text, with their markup [default: refuse them].
    #[arg(long)]
    as_text: bool,
    /// Named starting point: of language models, or of classifiers of images (mnist-cnn, mnist-lenet, cifar10-resnet18, images-resnet18), of
    /// which --data is one folder of IDX files, CIFAR binaries or a folder of pictures for each class.
    #[arg(long, value_parser = PossibleValuesParser::new(PRESETS.into_iter().chain(classifier::PRESETS)))]
    preset: Option<String>,
    /// TOML file with settings; flags win over it.
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    recipe: RecipeArgs,
    #[command(flatten)]
    pace: PaceArgs,
    /// Storage of weights and activations, by any name such as bfloat16 or half. Arithmetic is f32.
    #[arg(long, value_parser = named_by(&DTYPES, storage_type), help_heading = RUN)]
    dtype: Option<DType>,
    /// Products of f32: highest, or high, which rounds their operands to tf32 where tensor cores take that.
    #[arg(long, value_name = "PRECISION", value_parser = named(&MatmulPrecision::NAMES), help_heading = RUN)]
    matmul_precision: Option<MatmulPrecision>,
    /// Device: auto, <platform>:<index> such as pocl:0 or nvidia:0, an index of `netcl devices`, or sim.
    #[arg(long, visible_alias = "gpu-id", value_name = "DEVICE", help_heading = RUN)]
    device: Option<String>,
    /// Train on all of these devices at once, of any vendors; --batch is divided among them. Under mpirun or srun, those of each machine.
    #[arg(long, value_name = "DEVICE,…", value_delimiter = ',', conflicts_with = "device", help_heading = RUN)]
    devices: Vec<String>,
    /// Run folder; without it, runs/<preset>-<n>.
    #[arg(long, visible_alias = "save-dir", value_name = "DIR", help_heading = RUN)]
    out: Option<PathBuf>,
    /// Go on with the run in this folder.
    #[arg(long, visible_alias = "load-checkpoint", value_name = "DIR", conflicts_with_all = ["out", "preset", "config"], help_heading = RUN)]
    resume: Option<PathBuf>,
    /// Go on with the run in --out if there is one, with as many devices as there are now; else begin it. The same command starts it and,
    /// after an end of any kind, starts it again.
    #[arg(long, requires = "out", conflicts_with = "resume", help_heading = RUN)]
    elastic: bool,
    /// Divide the layers among so many devices, which work on micro-batches one after the other (see --grad-accum); with more devices, as
    /// many copies of the whole model share each batch.
    #[arg(long, value_name = "STAGES", help_heading = RUN)]
    pipeline: Option<usize>,
    /// On several devices: end the run when one gives no sign of life for so long while steps go. Without it, after twenty times what a step
    /// takes, and at least 20 seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..), help_heading = RUN)]
    watchdog: Option<u32>,
    /// On several devices: how batches are divided among them: equal, speed (measured in the first steps, corrected later), or numbers such as
    /// 3,1. Without it equally among devices of one kind, else by speed, which makes the bits of a run depend on times.
    #[arg(long, value_name = "SHARES", value_parser = shares, help_heading = RUN)]
    shares: Option<Shares>,
    /// On several devices: what they divide among them beside the batch: 0 nothing, 1 the optimizer's state (ZeRO-1), 2 gradients as well
    /// (ZeRO-2). Less memory of each device for models of many parameters; the same results but for rounding.
    #[arg(long, value_name = "STAGE", value_parser = clap::value_parser!(u8).range(0..=2), help_heading = RUN)]
    zero: Option<u8>,
    /// Capture a training step once and replay it: on, off, or auto, which is on where it works. The same bits either way.
    #[arg(long, value_name = "MODE", value_parser = named(&GraphMode::NAMES), help_heading = RUN)]
    graph: Option<GraphMode>,
    /// What the backward pass computes again instead of keeping it: none, gelu, norm (with gelu) or block. Less memory, more time.
    #[arg(long, value_name = "WHAT", value_parser = named(&Recompute::NAMES), help_heading = RUN)]
    recompute: Option<Recompute>,
    /// Say where the memory of a training step goes, as soon as one is captured.
    #[arg(long, help_heading = RUN)]
    explain_memory: bool,
    /// Time every kernel of some steps after warm-up, print where the time goes, and write a trace that ui.perfetto.dev opens:
    /// FILE, or trace.json in the run folder. Those steps are slower than the others.
    #[arg(long, value_name = "FILE", num_args = 0..=1, help_heading = RUN)]
    profile: Option<Option<PathBuf>>,
    /// How many steps --profile takes, from the third on; 10 without it.
    #[arg(long, value_name = "N", requires = "profile", value_parser = clap::value_parser!(u64).range(1..), help_heading = RUN)]
    profile_steps: Option<u64>,
    /// Check every op's result and stop at the first NaN or infinity, naming op and tensor. Slow.
    #[arg(long, help_heading = RUN)]
    detect_anomaly: bool,
    /// Of images on several devices: batch normalisation takes the images of all of them, as PyTorch's SyncBatchNorm does, and the run is that
    /// of one device. Without it each device normalises its own, which is faster.
    #[arg(long, help_heading = RUN)]
    sync_batch_norm: bool,
    /// Print configuration, parameters, memory and steps of the run, and do not begin it. Reads the data, writes nothing.
    #[arg(long, help_heading = RUN)]
    dry_run: bool,
    /// Print the run's summary, or the plan of a dry run, as one JSON object on stdout.
    #[arg(long, help_heading = RUN)]
    json: bool,
}

/// The model.
#[derive(ClapArgs, Debug, Default)]
#[command(next_help_heading = "Model")]
struct ModelArgs {
    /// Start from the weights of this model: a folder in the Hugging Face layout, or of a run. Its shape and tokenizer are taken over;
    /// data and schedule are new.
    #[arg(long, value_name = "DIR")]
    init: Option<PathBuf>,
    /// Leave parameters of these names as they are (repeatable), such as 'model.layers.0.*' or '*embed_tokens*'.
    #[arg(long, value_name = "PATTERN")]
    freeze: Vec<String>,
    /// Family of decoders: gpt2, llama, mistral, qwen2, qwen3, gemma2 and others, by the model_type of their config.json.
    #[arg(long)]
    family: Option<String>,
    #[command(flatten)]
    size: ModelSize,
    /// Key and value heads; they divide the heads.
    #[arg(long)]
    kv_heads: Option<usize>,
    /// Width of a head; the width by the heads without it.
    #[arg(long)]
    head_size: Option<usize>,
    /// Width of the MLP's hidden layer; as the family has it without.
    #[arg(long)]
    mlp: Option<usize>,
    /// Base of the rotary frequencies; the family's without it.
    #[arg(long)]
    rope_theta: Option<f64>,
    /// Whether the head is the token table; as the family has it without.
    #[arg(long, value_name = "BOOL")]
    tied: Option<bool>,
    /// `char`, or a tokenizer.json.
    #[arg(long, value_name = "char|FILE")]
    tokenizer: Option<String>,
    /// Size of the vocabulary; at least the tokenizer's. Ids beyond the tokenizer's are never drawn.
    #[arg(long)]
    vocab: Option<usize>,
    /// Dropout probability.
    #[arg(long)]
    dropout: Option<f64>,
}

/// Optimizer and schedule.
#[derive(ClapArgs, Debug, Default)]
#[command(next_help_heading = "Recipe")]
struct RecipeArgs {
    /// Sequences a batch.
    #[arg(long, visible_alias = "batch-size")]
    batch: Option<usize>,
    /// Batches whose gradients are added up for one step.
    #[arg(long)]
    grad_accum: Option<u32>,
    /// Passes over the images, for presets of images.
    #[arg(long)]
    epochs: Option<u64>,
    /// Optimizer steps in all.
    #[arg(long, visible_alias = "max-iters")]
    steps: Option<u64>,
    /// Highest learning rate.
    #[arg(long, visible_alias = "learning-rate")]
    lr: Option<f64>,
    /// Lowest learning rate, reached at the last step.
    #[arg(long)]
    min_lr: Option<f64>,
    /// Steps until the highest learning rate.
    #[arg(long, visible_alias = "warmup-iters")]
    warmup: Option<u64>,
    /// What the learning rate does after warm-up.
    #[arg(long, value_parser = named(&Schedule::NAMES))]
    schedule: Option<Schedule>,
    /// Decoupled weight decay of matrices.
    #[arg(long)]
    weight_decay: Option<f64>,
    /// The two betas of AdamW: 0.9,0.95 or 0.9 0.95.
    #[arg(long, num_args = 1..=2, value_names = ["BETA1,BETA2"], value_delimiter = ',')]
    betas: Option<Vec<f64>>,
    /// Largest norm of all gradients together; 0 does not clip.
    #[arg(long)]
    clip: Option<f64>,
    /// Seed of weights, data order, dropout and samples.
    #[arg(long)]
    seed: Option<u64>,
    /// Part of the data kept for validation.
    #[arg(long, value_name = "FRACTION")]
    val_split: Option<f64>,
}

/// How often what happens.
#[derive(ClapArgs, Debug, Default)]
#[command(next_help_heading = "Pace")]
struct PaceArgs {
    /// Steps between validation losses; 0 never.
    #[arg(long)]
    eval_every: Option<u64>,
    /// Batches a validation loss is taken over.
    #[arg(long)]
    eval_batches: Option<usize>,
    /// Steps between samples; 0 never.
    #[arg(long)]
    sample_every: Option<u64>,
    /// Steps between checkpoints; 0 only the best and the last.
    #[arg(long)]
    checkpoint_every: Option<u64>,
    /// Checkpoints kept beside the best and the last.
    #[arg(long)]
    keep: Option<usize>,
}

impl Args {
    /// What a parser of single flags cannot see. `None` where all is well.
    pub fn mistake(&self) -> Option<String> {
        let betas = self.recipe.betas.as_deref().filter(|betas| betas.len() != 2)?;
        Some(format!(
            "--betas takes two numbers, such as 0.9,0.95; there {} {}",
            if betas.len() == 1 { "is" } else { "are" },
            betas.len()
        ))
    }

    /// The same for several devices at once.
    fn among(&self) -> train_among::Request<'_> {
        train_among::Request {
            devices: &self.devices,
            resume: self.goes_on(),
            out: self.out.as_deref(),
            json: self.json,
            detect_anomaly: self.detect_anomaly,
            watchdog: self.watchdog.map(|seconds| Duration::from_secs(seconds.into())),
            explain_memory: self.explain_memory,
            shares: self.shares.clone(),
            profile: self.profile_settings(),
        }
    }

    /// What is asked of a run with images; `None` for language models.
    fn images(&self) -> Result<Option<train_images::Request<'_>>> {
        let kept = match self.goes_on() {
            Some(dir) => ClassifierConfig::of_run(dir)?.map(|kept| (dir, kept)),
            None => None,
        };
        let (epochs, preset) = (self.recipe.epochs, self.preset.as_deref().unwrap_or_default());
        if kept.is_none() && !train_images::is_for_images(preset) {
            let misplaced = "--epochs is for presets of images; language models take --steps";
            epochs.map_or(Ok(()), |_| Err(Error::format(misplaced)))?;
            return match self.sync_batch_norm {
                true => Err(Error::format(
                    "--sync-batch-norm is for presets of images; language models have none",
                )),
                false => Ok(None),
            };
        }
        let preset = kept.as_ref().map_or(preset, |(_, kept)| &kept.preset);
        let for_text = [("config", self.config.is_some()), ("watchdog", self.watchdog.is_some())];
        if let Some((flag, _)) = for_text.iter().find(|(_, given)| *given) {
            return Err(train_images::misplaced(flag, preset));
        }
        let diagnostics =
            Diagnostics { detect_anomaly: self.detect_anomaly, profile: self.profile_settings() };
        Ok(Some(train_images::Request {
            overlay: self.overlay(),
            epochs,
            sync_batch_norm: self.sync_batch_norm,
            out: self.out.as_ref(),
            kept,
            dry_run: self.dry_run,
            json: self.json,
            explain_memory: self.explain_memory,
            diagnostics,
            devices: &self.devices,
            shares: self.shares.as_ref(),
        }))
    }

    fn profile_settings(&self) -> Option<ProfileSettings> {
        let (file, default) = (self.profile.clone()?, ProfileSettings::default());
        Some(ProfileSettings { file, steps: self.profile_steps.unwrap_or(default.steps), ..default })
    }

    /// The run to go on with.
    fn goes_on(&self) -> Option<&Path> {
        let begun = |dir: &&Path| self.elastic && dir.join("config.toml").exists();
        self.resume.as_deref().or_else(|| self.out.as_deref().filter(begun))
    }

    fn overlay(&self) -> Overlay {
        let (m, r, p) = (&self.model, &self.recipe, &self.pace);
        Overlay {
            preset: self.preset.clone(),
            init: m.init.as_ref().map(|dir| dir.display().to_string()),
            freeze: (!m.freeze.is_empty()).then(|| m.freeze.clone()),
            family: m.family.clone(),
            kv_heads: m.kv_heads,
            head_size: m.head_size,
            mlp: m.mlp,
            rope_theta: m.rope_theta,
            tied: m.tied,
            layers: m.size.layers,
            heads: m.size.heads,
            width: m.size.width,
            context: m.size.context,
            tokenizer: m.tokenizer.clone(),
            vocab: m.vocab,
            dropout: m.dropout,
            data: (!self.data.is_empty()).then(|| self.data.clone()),
            encoding: self.encoding.clone(),
            as_text: self.as_text.then_some(true),
            batch: r.batch,
            grad_accum: r.grad_accum,
            steps: r.steps,
            lr: r.lr,
            min_lr: r.min_lr,
            warmup: r.warmup,
            schedule: r.schedule,
            weight_decay: r.weight_decay,
            betas: r.betas.as_ref().and_then(|b| <[f64; 2]>::try_from(b.as_slice()).ok()),
            clip: r.clip,
            seed: r.seed,
            val_split: r.val_split,
            eval_every: p.eval_every,
            eval_batches: p.eval_batches,
            sample_every: p.sample_every,
            checkpoint_every: p.checkpoint_every,
            keep: p.keep,
            dtype: self.dtype,
            matmul_precision: self.matmul_precision,
            device: self.device.clone(),
            graph: self.graph,
            recompute: self.recompute,
            zero: self.zero,
            pipeline: self.pipeline,
            ..Overlay::default()
        }
    }

    /// The settings of the run, on a simulated device or on a real one.
    fn config(&self, simulated: bool) -> Result<TrainConfig> {
        let kept = self.goes_on();
        let there = |dir: &Path| ["config.toml", SETTINGS_COPY].iter().any(|name| dir.join(name).exists());
        if let Some(dir) = kept.filter(|dir| !there(dir)) {
            return Err(Error::format(format!("{} is no run folder: it has no config.toml", dir.display())));
        }
        let mut overlay = self.overlay();
        if self.elastic && kept.is_some() {
            // The run has the settings of its preset and of --config already.
            overlay.preset = None;
        }
        let mut config = match kept {
            Some(dir) => TrainConfig::of_run(dir, &overlay)?,
            None => TrainConfig::resolve_on(self.config.as_deref(), &overlay, simulated)?,
        };
        if config.data.is_empty() {
            // A folder of programs has files of all kinds.
            (config.data, config.as_text) = (vec![own_sources()?], true);
        }
        Ok(config)
    }
}

/// What is learnt from without `--data`: this very folder, if there is text in it.
fn own_sources() -> Result<String> {
    let here = std::env::current_dir().map_err(|e| Error::io("finding", Path::new("."), &e))?;
    tracing::info!("no --data: learning from the text below {}", here.display());
    Ok(here.display().to_string())
}

/// The run on the device that was opened: a simulated one has another default, and is slow.
fn for_simulated(args: &Args, config: TrainConfig, device: &Device) -> Result<TrainConfig> {
    if !device.capabilities().simulated || args.goes_on().is_some() || config.preset == SIMULATED {
        return Ok(config);
    }
    let id = &device.capabilities().id;
    let usual = args.config(true)?;
    let driver = "a real device needs an OpenCL driver, and a processor is one too (Debian and Ubuntu: apt-get install pocl-opencl-icd)";
    if usual.preset != config.preset {
        tracing::info!("{id} is simulated, and slow: --preset {}", usual.preset);
    } else if usual.init.is_some() {
        tracing::warn!(
            "{id} is simulated: fine-tuning takes long on it. Fewer --steps, a smaller --batch and a shorter --context take less; {driver}"
        );
    } else {
        tracing::warn!(
            "{id} is simulated: `{}` is for real devices and takes far too long on it. --preset {SIMULATED} takes a minute or two; {driver}",
            usual.preset
        );
    }
    Ok(usual)
}

/// Trains a classifier where the preset is one of images; says what cannot be done with one.
fn of_images(args: &Args, context: &Context) -> Option<Result<()>> {
    let request = args.images().transpose()?;
    Some(request.and_then(|request| train_images::run(&request, context)))
}

/// Trains on several devices where there are several.
fn of_several(args: &Args, config: &TrainConfig, context: &Context) -> Option<Result<()>> {
    let launcher = launched(&|name| std::env::var(name).ok());
    if launcher.is_none() && args.devices.len() < 2 {
        return None;
    }
    if args.dry_run {
        let one = "--dry-run is for one device; leave --devices and mpirun out";
        return Some(Err(Error::unsupported(one)));
    }
    Some(match launcher {
        Some(launcher) => train_among::by_mpi(&args.among(), config, &launcher, context),
        None => train_among::by_threads(&args.among(), config, context),
    })
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    if let Some(Some(file)) = &args.profile {
        check_writable(file)?;
    }
    if let Some(done) = of_images(args, context) {
        return done;
    }
    let config = args.config(false)?;
    if let Some(done) = of_several(args, &config, context) {
        return done;
    }
    let name = args.devices.first().unwrap_or(&config.device).clone();
    let device = context.open_device_with(&name, config.matmul_precision)?;
    let config = TrainConfig { device: name, ..for_simulated(args, config, &device)? };
    if args.dry_run {
        return plan::show(&config, &device, context, args.json);
    }
    let ceilings = match &args.profile {
        Some(_) => profile::ceilings(&device, config.dtype)?,
        None => None,
    };
    let goes_on = args.goes_on();
    let mut reading = ReadingBar::new(context);
    let mut watch = |p: &netcl::train::data::Progress| reading.show(p);
    let mut trainer = match goes_on {
        Some(dir) => Trainer::resume_watched(&device, config, dir, &mut watch)?,
        None => {
            let claim = match &args.out {
                Some(out) => RunFolder::claim(out)?,
                None => RunFolder::claim_fresh(Path::new("runs"), &config.preset)?,
            };
            context.leave_nothing_of(claim.leaves());
            Trainer::create_in(&device, config, claim, &mut watch)?
        }
    };
    drop(reading);
    if let (Some(dir), true) = (goes_on, trainer.is_finished()) {
        trainer.run(&mut Silent)?;
        return already_finished(&trainer, dir, args.json);
    }
    trainer.detect_anomaly(args.detect_anomaly);
    if let Some(profile) = args.profile_settings() {
        trainer.profile(profile)?;
    }
    let mut progress = Progress::new(context, args.json, args.explain_memory);
    progress.compare_with(ceilings);
    progress.explain_nothing(&trainer, false);
    // Of a run that goes on nothing is lost until here, and a signal ends at once.
    if !context.polite() {
        return Ok(());
    }
    let outcome = trainer.run(&mut progress).inspect_err(|_| progress.failed())?;
    progress.finish(outcome, &trainer)
}

#[cfg(test)]
mod tests;
