//! `netcl bench train`: whole training steps of GPTs: forward, backward, clipping and AdamW.

use super::losses;
use super::measure::median;
use super::profile::file_of;
use super::{Bench, Common, Line};
use crate::model_size::ModelSize;
use crate::named::named;
use crate::out;
use clap::builder::PossibleValuesParser;
use netcl::device::human;
use netcl::model::decoder::{Decoder, DecoderConfig, FileFacts};
use netcl::model::layers::Mode;
use netcl::model::layers::Recompute;
use netcl::model::model::Model;
use netcl::prelude::*;
use netcl::train::config::{GraphMode, TrainConfig, models, padded_vocab};
use netcl::train::optim::{AdamW, LossScale, Optimizer, ParamGroup};
use netcl::train::{MemoryPlan, Stepper};
use serde_json::json;
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Flags of `bench train`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    /// Model and batch of a preset (repeatable) [default: char-cpu, and char with a batch of 8]
    #[arg(long, value_parser = PossibleValuesParser::new(models()))]
    preset: Vec<String>,
    /// Decoder family that replaces the preset's, with its sizes
    #[arg(long)]
    family: Option<String>,
    #[command(flatten)]
    size: ModelSize,
    /// Sequences per step
    #[arg(long)]
    batch: Option<usize>,
    /// Tokens of the vocabulary [default: 65 for character models, 50304 for GPT-2's sizes]
    #[arg(long)]
    vocab: Option<usize>,
    /// Replay captured steps
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = named(&GraphMode::NAMES))]
    graph: GraphMode,
    /// Results that the backward pass recomputes
    #[arg(long, value_name = "WHAT", default_value = "none", value_parser = named(&Recompute::NAMES))]
    recompute: Recompute,
    /// Let the peer compile its model (torch.compile)
    #[arg(long)]
    compile: bool,
    /// Profile some further steps: print time per kernel and write a trace [default FILE: trace.json]
    ///
    /// ui.perfetto.dev opens the trace. With several models, their names are added to the file name.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "trace.json")]
    profile: Option<PathBuf>,
}

/// Characters of Shakespeare's works: the vocabulary of the character presets.
const CHARACTERS: usize = 65;
/// Vocabulary sizes of the tokenizers for the presets of families.
const TOKENIZERS: [(&str, usize); 3] =
    [("llama-110m", 32_000), ("llama-1b", 128_256), ("qwen3-0.6b", 151_936)];
/// Vocabulary of GPT-2, for all other presets.
const GPT2: usize = 50_257;

/// Returns the usual vocabulary of a preset.
pub fn vocabulary(config: &TrainConfig) -> usize {
    let own = TOKENIZERS.iter().find(|(preset, _)| *preset == config.preset).map_or(GPT2, |(_, n)| *n);
    padded_vocab(if config.tokenizer == "char" { CHARACTERS } else { own })
}

/// Largest norm of the gradients, as in the recipes.
const CLIP: f64 = 1.0;
/// Batches used in turn.
const BATCHES: usize = 8;

pub fn run(args: &Args, bench: &mut Bench) -> Result<()> {
    let presets: Vec<(&str, Option<usize>)> = match args.preset.as_slice() {
        [] if args.size.layers.or(args.size.width).is_some() => vec![("char-cpu", None)],
        [] => vec![("char-cpu", None), ("char", Some(8))],
        names => names.iter().map(|n| (n.as_str(), None)).collect(),
    };
    let alone = presets.len() == 1;
    for (preset, batch) in presets {
        let config = TrainConfig::preset(preset)?;
        let size = &args.size;
        let config = TrainConfig {
            layers: size.layers.unwrap_or(config.layers),
            heads: size.heads.unwrap_or(config.heads),
            width: size.width.unwrap_or(config.width),
            context: size.context.unwrap_or(config.context),
            family: args.family.clone().unwrap_or(config.family),
            // The same as in the peer's model.
            bias: true,
            ..config
        };
        let model = config.decoder(args.vocab.unwrap_or_else(|| vocabulary(&config)))?;
        let batch = args.batch.or(batch).unwrap_or(config.batch);
        let dtype = bench.dtype;
        let recompute = args.recompute;
        let step = TrainConfig { batch, grad_accum: 1, dropout: 0.0, dtype, recompute, ..config };
        MemoryPlan::of(&step, &model, bench.device.capabilities()).check(&bench.device)?;
        case(bench, (preset, alone), &model, batch, args)?;
    }
    Ok(())
}

fn case(
    bench: &mut Bench,
    (preset, alone): (&str, bool),
    model: &DecoderConfig,
    batch: usize,
    args: &Args,
) -> Result<()> {
    // Peak rates were measured with larger buffers than a small model uses.
    bench.device.release_cached_memory();
    bench.device.reset_memory_peak();
    let mut steps = Steps::new(&bench.device, model, batch, bench.dtype, (args.graph, args.recompute))?;
    checked(&mut steps, &bench.device, (model, batch, bench.dtype), args)?;
    let tokens = batch * model.context;
    let DecoderConfig { layers, width, context, vocab, .. } = *model;
    let heads = model.attention.heads;
    let mut line = Line {
        op: "train".into(),
        shape: vec![batch, context],
        flops: model.flops(tokens, context) as u64,
        checked: true,
        ..Line::default()
    };
    for (key, value) in [("layers", layers), ("heads", heads), ("width", width), ("vocab", vocab)] {
        line.extra.insert(key.into(), value.into());
    }
    line.extra.insert("preset".into(), preset.into());
    line.extra.insert("parameters".into(), model.parameters().into());
    line.extra.insert("family".into(), model.family.model_type.into());
    let mut request = json!({
        "op": "train", "layers": layers, "heads": heads, "width": width, "context": context, "batch": batch,
        "vocab": vocab, "clip": CLIP, "compile": args.compile, "dtype": bench.kind,
    });
    if model.family.model_type != "gpt2" {
        // The peer has its own model for these.
        request["config"] = model.to_json(&FileFacts::default())?;
    }
    let request = (bench.dtype != DType::F16).then_some(request);
    let (launches, host_us) = steps.host()?;
    line.extra.insert("launches".into(), launches.into());
    line.extra.insert("memory_peak".into(), bench.device.memory().peak.into());
    line.extra.insert("memory_between_steps".into(), bench.device.memory().live.into());
    line.extra.insert("recompute".into(), args.recompute.to_string().into());
    line.extra.insert("graph".into(), steps.stepper.is_captured().into());
    line.extra.insert("host_us_per_step".into(), json!(host_us));
    line.extra.insert("host_us_per_launch".into(), json!(host_us / launches.max(1) as f64));
    let line = bench.measure(line, request, &mut || steps.run().map(|_| ()))?;
    let peer =
        line.peer_median_ms.map_or(String::new(), |ms| format!(", peer {:.0}", tokens as f64 / ms * 1e3));
    let memory = line.peer_memory.map_or(String::new(), |bytes| format!(" (peer {})", human(bytes)));
    out::note(&format!(
        "{preset}: {layers} layers, {heads} heads, width {width}, {context}×{batch} tokens: {:.0} tokens/s{peer}; {launches} launches{} of {:.1} µs \
         host time each, {host_us:.0} µs per step; peak {} of device memory{memory}, {} between steps",
        tokens as f64 / line.median_ms * 1e3,
        if steps.stepper.is_captured() { " replayed" } else { "" },
        host_us / launches.max(1) as f64,
        human(bench.device.memory().peak as u64),
        human(bench.device.memory().live as u64)
    ));
    args.profile.as_deref().map_or(Ok(()), |file| {
        let about = json!({ "preset": preset, "replayed": steps.stepper.is_captured() });
        bench.profile((about, 1), &file_of(file, preset, alone), &mut || steps.run().map(drop))
    })
}

/// Learning rate of the timed steps.
const RATE: f64 = 1e-3;
/// Learning rate that suits a model of [`SMALL_MODEL`] layers and width.
const GENTLE: f64 = 1e-4;
/// Layers and width of such a model.
const SMALL_MODEL: (usize, usize) = (4, 128);
/// Number of checked steps.
const CHECKED: usize = 4;

/// Returns the learning rate of step `step` of the checked ones, small enough that the loss of the same batch falls. AdamW's first steps move each
/// weight by the whole rate, whatever its gradient is. A sum of such moves over a width and a depth grows with both, so the rate is smaller for wider
/// and deeper models. It also rises over the steps, as in training.
fn gentle(model: &DecoderConfig, step: usize) -> f64 {
    let part = |small: usize, size: usize| (small as f64 / size as f64).min(1.0);
    GENTLE * part(SMALL_MODEL.0, model.layers) * part(SMALL_MODEL.1, model.width) * (step + 1) as f64
        / CHECKED as f64
}

/// Trains a few steps on one batch before anything is timed, and checks their losses; if steps may be replayed from a graph, another model does the
/// same steps without one.
fn checked(
    steps: &mut Steps,
    device: &Device,
    (model, batch, dtype): (&DecoderConfig, usize, DType),
    args: &Args,
) -> Result<()> {
    let seen = |steps: &mut Steps| -> Result<Vec<f32>> {
        let one = |step| {
            steps.rate = gentle(model, step);
            steps.step(0)?.item()
        };
        let losses = (0..CHECKED).map(one).collect();
        steps.rate = RATE;
        losses
    };
    let eager = match args.graph {
        GraphMode::Off => None,
        _ => Some(seen(&mut Steps::new(device, model, batch, dtype, (GraphMode::Off, args.recompute))?)?),
    };
    device.finish()?;
    device.release_cached_memory();
    device.reset_memory_peak();
    // Loss scaling skips steps until the scale fits.
    let falls = dtype != DType::F16;
    let new = losses::New { classes: model.vocab, within: 1.0 };
    losses::check("train", &seen(steps)?, eager.as_deref(), new, falls)
}

/// A model in training on random tokens.
struct Steps {
    model: Decoder,
    optimizer: Optimizer,
    recompute: Recompute,
    batches: Vec<(Tensor, Tensor)>,
    /// Buffer from which a captured step reads its batch.
    inputs: (Tensor, Tensor),
    stepper: Stepper,
    turn: Cell<usize>,
    /// Learning rate.
    rate: f64,
}

impl Steps {
    fn new(
        device: &Device,
        config: &DecoderConfig,
        batch: usize,
        dtype: DType,
        (graph, recompute): (GraphMode, Recompute),
    ) -> Result<Self> {
        let model = Decoder::new(device, config.clone(), dtype, 1)?;
        let rule = Arc::new(AdamW { betas: [0.9, 0.99], eps: 1e-8 });
        let groups = ParamGroup::gpt(model.params().list(), 0.1);
        let mut optimizer = match dtype {
            DType::F16 => Optimizer::with_loss_scale(rule, groups, LossScale::default())?,
            _ => Optimizer::new(rule, groups)?,
        };
        optimizer.clip_grad_norm(CLIP);
        let ids = |seed: usize| {
            let n = batch * config.context;
            let data: Vec<u32> =
                (0..n).map(|i| (((i + seed) * 2_654_435_761) >> 7) as u32 % config.vocab as u32).collect();
            Tensor::from_u32(device, [batch, config.context], &data)
        };
        let batches = (0..BATCHES).map(|i| Ok((ids(i)?, ids(i + 1)?))).collect::<Result<_>>()?;
        let (inputs, stepper) = ((ids(0)?, ids(1)?), Stepper::new(device, graph));
        Ok(Self { model, optimizer, recompute, batches, inputs, stepper, turn: Cell::new(0), rate: RATE })
    }

    /// Enqueues one step with the next batch; returns its loss, which the next step may overwrite.
    fn run(&mut self) -> Result<Tensor> {
        let turn = self.turn.replace(self.turn.get() + 1);
        self.step(turn)
    }

    fn step(&mut self, turn: usize) -> Result<Tensor> {
        let Self { model, optimizer, recompute, batches, inputs, stepper, rate, .. } = self;
        let batch = &batches[turn % BATCHES];
        let fixed = !stepper.is_eager();
        if fixed {
            for (from, to) in [(&batch.0, &inputs.0), (&batch.1, &inputs.1)] {
                to.device().copy(from.storage(), 0, to.storage(), 0, to.storage().bytes())?;
            }
        }
        let (x, y) = if fixed { &*inputs } else { batch };
        let mode = Mode { recompute: *recompute, ..Mode::eval() };
        optimizer.set_rate(*rate)?;
        if stepper.is_cold() {
            dry_run(stepper, model, optimizer, (x, y), mode)?;
        }
        let loss = stepper.run(|| {
            let loss = model.loss(x, y, mode)?;
            optimizer.backward(&loss)?;
            optimizer.apply()?;
            optimizer.zero_grad();
            Ok(loss.detach())
        })?;
        optimizer.count();
        Ok(loss)
    }

    /// Returns the launches of a step, and the microseconds the host needs to enqueue them. A CPU device uses the host's core meanwhile; there it is
    /// the processor time of this thread, if the system reports it.
    fn host(&mut self) -> Result<(u64, f64)> {
        let device = self.model.params().device().clone();
        let is_cpu = device.capabilities().is_cpu();
        let processor_time = || if is_cpu { thread_time_us() } else { None };
        for _ in 0..4 {
            self.run()?; // compiles, and captures
        }
        // Linux counts in ticks of some milliseconds, so two readings are many steps apart.
        let (mut windows, mut launches) = (Vec::new(), 0);
        let begun = Instant::now();
        while windows.is_empty()
            || windows.len() < HOST_WINDOWS && begun.elapsed().as_secs_f64() < HOST_SECONDS
        {
            device.finish()?;
            let before = device.launches();
            let cpu = processor_time();
            let mut enqueueing = 0.0;
            let mut steps = 0;
            while steps == 0 || steps < HOST_STEPS && begun.elapsed().as_secs_f64() < HOST_SECONDS {
                let started = Instant::now();
                self.run()?;
                enqueueing += started.elapsed().as_secs_f64() * 1e6;
                device.finish()?;
                steps += 1;
            }
            launches = (device.launches() - before) / steps;
            let spent = processor_time().zip(cpu).map_or(enqueueing, |(after, before)| after - before);
            windows.push(spent / steps as f64);
        }
        Ok((launches, median(&mut windows)))
    }
}

/// Steps before [`step_seconds`] measures, which compile and capture.
const WARMUP_STEPS: usize = 4;
/// Maximum number of measured steps, and of seconds.
const MAX_STEPS_AND_SECONDS: (usize, f64) = (20, 5.0);

/// Returns the seconds of a training step of one batch of `config` with its update: the median of some.
pub fn step_seconds(device: &Device, model: &DecoderConfig, config: &TrainConfig) -> Result<f64> {
    let step = TrainConfig { grad_accum: 1, ..config.clone() };
    MemoryPlan::of(&step, model, device.capabilities()).check(device)?;
    let how = (config.graph, config.recompute);
    let mut steps = Steps::new(device, model, config.batch, config.dtype, how)?;
    for _ in 0..WARMUP_STEPS {
        steps.run()?;
    }
    device.finish()?;
    let (begun, mut times) = (Instant::now(), Vec::new());
    while times.is_empty()
        || times.len() < MAX_STEPS_AND_SECONDS.0 && begun.elapsed().as_secs_f64() < MAX_STEPS_AND_SECONDS.1
    {
        let started = Instant::now();
        steps.run()?;
        device.finish()?;
        times.push(started.elapsed().as_secs_f64());
    }
    Ok(median(&mut times))
}

/// Plans a step's memory before the first one, as training does.
fn dry_run(
    stepper: &mut Stepper,
    model: &Decoder,
    optimizer: &mut Optimizer,
    (x, y): (&Tensor, &Tensor),
    mode: Mode<'_>,
) -> Result<()> {
    let optimizer = std::cell::RefCell::new(optimizer);
    let gradients = |x: &Tensor, y: &Tensor| {
        let loss = model.loss(x, y, mode)?;
        optimizer.borrow().backward(&loss)?;
        Ok(loss.detach())
    };
    let warm = || {
        let row = |ids: &Tensor| ids.window(0, [1, ids.dims()[1]]);
        gradients(&row(x)?, &row(y)?)?;
        optimizer.borrow_mut().prepare()
    };
    let step = || {
        optimizer.borrow().zero_grad();
        let loss = gradients(x, y)?;
        optimizer.borrow_mut().apply()?;
        optimizer.borrow().zero_grad();
        Ok(loss)
    };
    let planned = stepper.dry_run(warm, step);
    optimizer.borrow().zero_grad();
    planned
}

/// Steps over which the host's time is averaged.
const HOST_STEPS: u64 = 40;
/// Maximum time per reading: a large model needs fewer steps between two readings.
const HOST_SECONDS: f64 = 3.0;
/// Number of readings, whose median is used.
const HOST_WINDOWS: usize = 11;

/// Returns the processor time of this thread so far, in microseconds, on Linux.
fn thread_time_us() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    (nanoseconds > 0.0).then_some(nanoseconds / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::tests;
    use clap::Parser;
    use netcl::model::decoder::Sizes;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn check(device: &Device, model: &DecoderConfig, batch: usize, dtype: DType) -> Result<()> {
        let Line { args } = Line::parse_from(["bench", "--graph", "auto"]);
        let mut steps = Steps::new(device, model, batch, dtype, (args.graph, args.recompute))?;
        checked(&mut steps, device, (model, batch, dtype), &args)
    }

    fn model(layers: usize, width: usize, vocab: usize) -> DecoderConfig {
        let sizes = Sizes { layers, heads: 2, width, context: 16, vocab, ..Sizes::default() };
        DecoderConfig::of("gpt2", &sizes).unwrap()
    }

    fn shallow() -> DecoderConfig {
        model(1, 32, 65)
    }

    /// Returns a model with the depth of gpt2-1558m, and a width that a CPU trains in seconds.
    fn deep() -> DecoderConfig {
        model(48, 64, 500)
    }

    #[test]
    fn an_update_that_does_nothing_is_found_however_deep_the_model() {
        // The rate that the update multiplies with: zero, and the wrong sign.
        for (gpt, change) in [(shallow(), "-0.0f"), (deep(), "s.lr")] {
            let broken = tests::device(move |text| text.replace(BROKEN, change));
            let message = check(&broken, &gpt, 2, DType::F32).unwrap_err().to_string();
            assert!(message.contains("does not fall"), "{change}: {message}");
        }
    }

    #[test]
    fn a_deep_model_that_learns_passes_the_check() {
        let sound = tests::device(|text| text.to_owned());
        for gpt in [shallow(), deep()] {
            check(&sound, &gpt, 2, DType::F32).unwrap();
        }
    }

    #[test]
    fn the_rate_of_the_check_suits_every_preset() {
        for name in models() {
            let config = TrainConfig::preset(name).unwrap();
            let gpt = config.decoder(vocabulary(&config)).unwrap();
            let rates: Vec<f64> = (0..CHECKED).map(|step| gentle(&gpt, step)).collect();
            assert!(rates.is_sorted_by(|a, b| a < b), "{name}: {rates:?}");
            // Below the recipe's rate, and far above the resolution of f32.
            assert!(rates[CHECKED - 1] < config.lr / 4.0 && rates[0] > 1e-8, "{name}: {rates:?}");
            if name == "gpt2-1558m" {
                // At 1e-4 its loss rises from the second step on.
                assert!(rates[CHECKED - 1] < 1e-6, "{rates:?}");
            }
        }
    }

    /// The rate in the source of the update.
    const BROKEN: &str = "-s.lr";
}
