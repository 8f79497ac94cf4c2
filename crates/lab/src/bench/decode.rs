//! `netcl bench decode`: speed of reading a prompt and generating tokens, measured like llama-bench: a prompt (pp512), and consecutive tokens from an
//! empty context (tg128), for one text and for several texts in a batch.

use super::line::Printer;
use super::llama_bench::{self, RequestedMeasurement, Speed};
use super::measure::median;
use super::profile::{Profile, file_of};
use super::side_by_side::SideBySide;
use super::step::{bytes_of_step, bytes_of_weights, checked, checked_behind, read_speed};
use crate::context::Context;
use crate::loading::{DivisionArgs, LoraArgs, divided, shown};
use crate::named::{named, named_by};
use crate::out;
use netcl::device::human;
use netcl::kernel::ceiling::Ceilings;
use netcl::llm::LoadedModel;
use netcl::llm::engine::{CHUNK, Options};
use netcl::llm::model::{Mix, Preset, RandomModel};
use netcl::model::decoder::{Batch, DecoderConfig};
use netcl::model::model::Model as _;
use netcl::prelude::*;
use netcl::tensor::ops::choose::{Chooser, Rules};
use netcl::tensor::quant::Activations;
use netcl::train::config::{DTYPES, TrainConfig, models, storage_type};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Flags of `bench decode`.
#[derive(clap::Args)]
pub struct Args {
    /// A .gguf file, Hugging Face folder, run folder or checkpoint
    #[arg(short, long, value_name = "PATH", required_unless_present = "shape")]
    model: Option<PathBuf>,
    #[command(flatten)]
    lora: LoraArgs,
    /// Random weights of a shape: 15m, 110m, llama-3-8b, a preset, or numbers (repeatable)
    ///
    /// Known shapes include 15m, 110m, smollm-135m, tinyllama-1.1b and llama-3-8b. Numbers are such as
    /// layers=22,heads=32,kv_heads=4,width=2048,mlp=5632,vocab=32000.
    #[arg(long, value_name = "SHAPE", conflicts_with = "model")]
    shape: Vec<String>,
    /// Type of random weights, as in `quantize` (repeatable, or separated by commas)
    #[arg(long, value_name = "TYPE", default_value = "q4_0", value_delimiter = ',', value_parser = mix)]
    r#type: Vec<&'static Mix>,
    /// Device to measure, or several devices that share the layers, as in `generate`
    #[arg(long, visible_alias = "gpu-id", default_value = "auto")]
    device: String,
    #[command(flatten)]
    division: DivisionArgs,
    /// Tokens of the prompt; 0 skips it
    #[arg(short, long, visible_alias = "n-prompt", default_value_t = 512)]
    prompt: usize,
    /// Tokens generated one after another; 0 skips them
    #[arg(short = 'n', long, visible_alias = "n-gen", default_value_t = 128)]
    tokens: usize,
    /// Number of texts in a batch
    #[arg(short, long, value_delimiter = ',', default_value = "1,2,4,8,16,32", value_parser = batch)]
    batch: Vec<usize>,
    /// Input tokens: random (known in advance, as in llama-bench), or greedy (sampled on the device)
    ///
    /// With greedy, each token is sampled on the device from the previous step.
    #[arg(long, value_enum, default_value_t = Feed::Random)]
    feed: Feed,
    /// Timed runs; the median is reported
    #[arg(short, long, default_value_t = 5)]
    rounds: usize,
    /// Storage type of unquantized weights, keys and values [default: the file's]
    ///
    /// For a quantized model the default is f16.
    #[arg(long, value_parser = named_by(&DTYPES, storage_type))]
    dtype: Option<DType>,
    /// Convert quantized matrices to the type of --dtype as well
    #[arg(long)]
    dequantise: bool,
    /// Operand type of products with quantized matrices, as in `generate`
    #[arg(long, value_parser = named(&Activations::NAMES))]
    activations: Option<Activations>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// llama.cpp's llama-bench, to measure the same file; llama-batched-bench next to it for batches
    #[arg(long, value_name = "PROGRAM")]
    peer: Option<PathBuf>,
    /// Additional argument for llama-bench, such as -fa=1 (repeatable)
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true, requires = "peer")]
    peer_arg: Vec<String>,
    /// Profile some further texts: print time per kernel and write a trace [default FILE: trace.json]
    ///
    /// With -n 0, profiles prompts. ui.perfetto.dev opens the trace. With several models or batches, their names are added to the file name.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "trace.json")]
    profile: Option<PathBuf>,
}

/// Input tokens of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Feed {
    Random,
    Greedy,
}

fn mix(name: &str) -> Result<&'static Mix, String> {
    Mix::named(name).map_err(|e| e.message().to_owned())
}

fn batch(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (1..=4096).contains(n));
    n.ok_or_else(|| "expected texts between 1 and 4096".into())
}

/// A model to measure.
struct Case {
    name: String,
    /// Type of the weights.
    kind: String,
    model: LoadedModel,
    /// Seconds until the model was loaded, and until the first token.
    load_s: f64,
    first_token_s: f64,
}

/// Device, ceilings and output.
struct Bench<'a> {
    args: &'a Args,
    /// The first device.
    device: Device,
    /// All named devices.
    devices: Vec<Device>,
    ceilings: Ceilings,
    /// Measured read bandwidth, GB/s.
    read_gbps: f64,
    printer: Printer,
    header: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    let devices = context.open_devices(&args.device)?;
    if let Some(device) = devices.iter().find(|device| device.capabilities().simulated) {
        return Err(Error::unsupported(format!(
            "bench decode: {} is simulated, so its time is modeled, not measured",
            device.capabilities().id
        )));
    }
    if devices.len() > 1 && args.profile.is_some() {
        return Err(Error::unsupported("bench decode: --profile supports only one device"));
    }
    let device = devices.first().cloned().ok_or_else(|| Error::internal("the list of devices is empty"))?;
    let ceilings = crate::profile::ceilings(&device, args.dtype.unwrap_or(DType::F16))?
        .ok_or_else(|| Error::internal("only a simulated device has measured ceilings"))?;
    let read_gbps = read_speed(&device)?;
    let mut printer = Printer::new(args.json);
    printer.ceilings(&device, &ceilings)?;
    let mut bench = Bench { args, device, devices, ceilings, read_gbps, printer, header: false };
    if let Some(path) = &args.model {
        let case = Case::of_file(path, args, &bench.devices, context)?;
        return bench.case(&case, args.peer.as_ref().map(|peer| (peer, path.clone())), true);
    }
    let alone = args.shape.len() * args.r#type.len() == 1;
    for shape in &args.shape {
        let config = shape_of(shape, args)?;
        for mix in &args.r#type {
            let mut model = RandomModel::new(&config, mix)?;
            let case = Case::random(shape, &mut model, args, &bench.devices, context)?;
            let file = args.peer.as_ref().map(|_| Temporary::write(&mut model, context)).transpose()?;
            let peer = args.peer.as_ref().zip(file.as_ref().map(|file| file.0.clone()));
            bench.case(&case, peer, alone)?;
        }
    }
    Ok(())
}

/// Returns a known shape, numbers, or the model of a preset, with a context for the measurement.
fn shape_of(name: &str, args: &Args) -> Result<DecoderConfig> {
    let config = match models().any(|preset| preset == name) {
        true => {
            let preset = TrainConfig::preset(name)?;
            preset.decoder(super::train::vocabulary(&preset))?
        }
        false => Preset::config(name)?,
    };
    Ok(DecoderConfig { context: args.prompt.max(args.tokens).max(CHECKED), ..config })
}

/// Number of tokens in the check of the step.
const CHECKED: usize = 24;

/// A file of random weights for the peer, removed when dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn write(model: &mut RandomModel, context: &Context) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("netcl-bench-{}.gguf", std::process::id()));
        context.leave_nothing_of(vec![path.clone()]);
        out::note(&format!("writing {} for the peer", path.display()));
        let file = Self(path);
        model.write(&file.0, &mut |_, _| Ok(())).map(|()| file)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Args {
    fn options(&self) -> Options<'_> {
        let (dtype, dequantise, activations) = (self.dtype, self.dequantise, self.activations);
        let layers = self.division.layers.as_deref();
        Options { dtype, dequantise, activations, layers, ..Options::default() }
    }
}

impl Case {
    fn of_file(path: &Path, args: &Args, devices: &[Device], context: &Context) -> Result<Self> {
        let began = Instant::now();
        let (adapters, options) = (&args.lora.lora, args.options());
        let model = shown(context, |bar| LoadedModel::open_adapted(path, adapters, devices, options, bar))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let kind = if model.decoder().params().block_bytes() > 0 {
            "quantised".into()
        } else {
            model.dtype().to_string()
        };
        Self::loaded(name, kind, model, began)
    }

    fn random(
        shape: &str,
        random: &mut RandomModel,
        args: &Args,
        devices: &[Device],
        context: &Context,
    ) -> Result<Self> {
        let began = Instant::now();
        let kind = random.mix().name.to_owned();
        let model = shown(context, |bar| LoadedModel::random(random, devices, args.options(), bar))?;
        Self::loaded(shape.to_owned(), kind, model, began)
    }

    /// Records a loaded model; also generates the first token, including compilation of kernels.
    fn loaded(name: String, kind: String, model: LoadedModel, began: Instant) -> Result<Self> {
        model.decoder().finish()?;
        let load_s = began.elapsed().as_secs_f64();
        model.decoder().continuation()?.logits_after(&[0])?;
        Ok(Self { name, kind, model, load_s, first_token_s: began.elapsed().as_secs_f64() })
    }

    /// Returns token `i` of text `b`, any of the vocabulary.
    fn token(&self, b: usize, i: usize) -> u32 {
        ((b * 104_729 + i * 7919 + 1) % self.model.config().vocab) as u32
    }
}

/// Timed runs of a test.
struct TimedRuns {
    /// `pp` or `tg`.
    test: &'static str,
    tokens: usize,
    batch: usize,
    /// Seconds of each run.
    seconds: Vec<f64>,
    launches: Option<usize>,
    /// Bytes read by a step; for a prompt, the weights.
    bytes: u64,
    flops: f64,
    memory_peak: usize,
}

impl TimedRuns {
    fn all(&self) -> f64 {
        (self.tokens * self.batch) as f64
    }
    /// Returns the tokens per second of the median run, and of the slowest and the fastest.
    fn speeds(&self) -> [f64; 3] {
        let mut seconds = self.seconds.clone();
        let middle = median(&mut seconds);
        let ends = [seconds.last(), seconds.first()].map(|s| s.copied().unwrap_or(middle));
        [middle, ends[0], ends[1]].map(|s| self.all() / s.max(1e-12))
    }
}

impl Bench<'_> {
    fn case(&mut self, case: &Case, peer: Option<(&PathBuf, PathBuf)>, alone: bool) -> Result<()> {
        let (args, model) = (self.args, &case.model);
        let decoder = model.decoder();
        let weights = bytes_of_weights(decoder);
        let end = CHECKED.min(model.context());
        let ids: Vec<u32> = (0..end).map(|i| case.token(0, i)).collect();
        if end > 1 {
            checked(decoder, &ids, end / 2)?;
        }
        self.loaded(case, weights)?;
        let (prompt, tokens) = (args.prompt.min(model.context()), args.tokens.min(model.context()));
        if (prompt, tokens) != (args.prompt, args.tokens) {
            out::note(&format!(
                "the context of {} has only {} tokens, so fewer are measured",
                case.name,
                model.context()
            ));
        }
        let deepest = prompt.max(tokens);
        if deepest > end {
            checked_behind(decoder, &(0..deepest).map(|i| case.token(0, i)).collect::<Vec<_>>())?;
        }
        let speeds = match peer {
            Some((program, file)) => {
                let asked = RequestedMeasurement {
                    model: &file,
                    prompt,
                    tokens,
                    batches: &args.batch,
                    rounds: args.rounds.max(1),
                    more: &args.peer_arg,
                };
                llama_bench::run(program, &asked)?
            }
            None => Vec::new(),
        };
        if prompt > 0 {
            let measured = self.prompt(case, prompt)?;
            self.line(case, &measured, &speeds)?;
            if let Some(file) = args.profile.as_deref().filter(|_| tokens == 0) {
                self.profile_prompt(case, prompt, file, alone)?;
            }
        }
        if tokens == 0 {
            return Ok(());
        }
        for &batch in &args.batch {
            let measured = self.tokens(case, tokens, batch)?;
            self.line(case, &measured, &speeds)?;
            let Some(file) = &args.profile else { continue };
            let one = alone && args.batch.len() == 1;
            let file = file_of(file, &format!("{}-{}-b{batch}", case.name, case.kind), one);
            let about = json!({ "model": case.name, "type": case.kind, "batch": batch });
            let mut texts = Texts::new(case, batch, tokens, self.args.feed)?;
            let dtype = model.dtype();
            Profile { device: &self.device, dtype, about, steps: tokens as u64, file: &file }
                .print(&mut self.printer, &mut || texts.run(case, tokens, None))?;
        }
        Ok(())
    }

    /// Prints the time to load the model.
    fn loaded(&self, case: &Case, weights: u64) -> Result<()> {
        let Case { name, kind, load_s, first_token_s, .. } = case;
        let config = case.model.config();
        if self.args.json {
            return out::json(&json!({
                "op": "load", "model": name, "type": kind, "dtype": case.model.dtype().to_string(),
                "activations": case.model.activations().map(|a| a.to_string()),
                "device": self.args_device(), "devices": devices_of(case), "layers": layers_of(case),
                "parameters": config.parameters(), "weight_bytes": weights, "load_s": load_s,
                "first_token_s": first_token_s, "memory": self.memory(|device| device.memory().live),
                "memory_by_device": self.devices.iter().map(|device| device.memory().live).collect::<Vec<_>>(),
            }));
        }
        if let Some(divided) = divided(case.model.decoder()) {
            out::result(&divided)?;
        }
        out::result(&format!(
            "{name} {kind}: {:.1} M parameters, {} of weights; {load_s:.2} s to load, {first_token_s:.2} s to the first token",
            config.parameters() as f64 * 1e-6,
            human(weights)
        ))
    }

    /// Returns the memory on all devices.
    fn memory(&self, of: impl Fn(&Device) -> usize) -> usize {
        self.devices.iter().map(of).sum()
    }

    /// Returns their names, as given.
    fn args_device(&self) -> String {
        let ids: Vec<&str> = self.devices.iter().map(|device| device.capabilities().id.as_str()).collect();
        ids.join(",")
    }

    /// Times `run`, once `warm` has run.
    fn times(
        &self,
        warm: &mut dyn FnMut() -> Result<()>,
        run: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<f64>> {
        let finish = || self.devices.iter().try_for_each(Device::finish);
        self.devices.iter().for_each(Device::reset_memory_peak);
        warm()?;
        finish()?;
        let one = |_| {
            let began = Instant::now();
            run()?;
            finish()?;
            Ok(began.elapsed().as_secs_f64())
        };
        (0..self.args.rounds.max(1)).map(one).collect()
    }

    /// Returns a prompt's tokens in chunks.
    fn chunks(&self, case: &Case, tokens: usize) -> Result<Vec<Tensor>> {
        let ids: Vec<u32> = (0..tokens).map(|i| case.token(0, i)).collect();
        ids.chunks(CHUNK).map(|part| Tensor::from_u32(&self.device, [1, part.len()], part)).collect()
    }

    fn profile_prompt(&mut self, case: &Case, tokens: usize, file: &Path, alone: bool) -> Result<()> {
        let file = file_of(file, &format!("{}-{}-pp", case.name, case.kind), alone);
        let about = json!({ "model": case.name, "type": case.kind, "prompt": tokens });
        let (mut texts, chunks) = (case.model.decoder().batch(1, tokens)?, self.chunks(case, tokens)?);
        Profile { device: &self.device, dtype: case.model.dtype(), about, steps: 1, file: &file }.print(
            &mut self.printer,
            &mut || {
                texts.truncate(0);
                chunks.iter().try_for_each(|chunk| texts.read(chunk).map(drop))
            },
        )
    }

    fn prompt(&self, case: &Case, tokens: usize) -> Result<TimedRuns> {
        let decoder = case.model.decoder();
        let texts = std::cell::RefCell::new(decoder.batch(1, tokens)?);
        let chunks = self.chunks(case, tokens)?;
        let read = || {
            let mut texts = texts.borrow_mut();
            texts.truncate(0);
            chunks.iter().try_for_each(|chunk| texts.read(chunk).map(drop))
        };
        let seconds = self.times(&mut || read(), &mut || read())?;
        Ok(TimedRuns {
            test: "pp",
            tokens,
            batch: 1,
            seconds,
            launches: None,
            bytes: bytes_of_weights(decoder),
            // A training step counts three times as much.
            flops: decoder.config().flops(tokens, tokens) / 3.0,
            memory_peak: self.memory(|device| device.memory().peak),
        })
    }

    fn tokens(&self, case: &Case, tokens: usize, batch: usize) -> Result<TimedRuns> {
        let decoder = case.model.decoder();
        let texts = std::cell::RefCell::new(Texts::new(case, batch, tokens, self.args.feed)?);
        let seconds = self
            .times(&mut || texts.borrow_mut().run(case, tokens, Some(Instant::now())), &mut || {
                texts.borrow_mut().run(case, tokens, None)
            })?;
        let config = decoder.config();
        Ok(TimedRuns {
            test: "tg",
            tokens,
            batch,
            seconds,
            launches: texts.borrow().launches(),
            bytes: bytes_of_step(decoder, batch, tokens / 2),
            flops: config.flops(tokens * batch, tokens) / 3.0,
            memory_peak: self.memory(|device| device.memory().peak),
        })
    }

    fn line(&mut self, case: &Case, m: &TimedRuns, peers: &[Speed]) -> Result<()> {
        let [speed, slowest, fastest] = m.speeds();
        let us = 1e6 * m.batch as f64 / speed;
        // For a prompt, once per chunk.
        let passes = if m.test == "pp" {
            m.tokens.div_ceil(CHUNK) as f64 / m.tokens as f64
        } else {
            1.0 / m.batch as f64
        };
        let gbps = m.bytes as f64 * passes * speed * 1e-9;
        let gflops = m.flops / m.all() * speed * 1e-9;
        // Peak rates are those of one device.
        let one = self.devices.len() == 1;
        let shares = [gbps / self.read_gbps, gflops / self.ceilings.gflops].map(|share| one.then_some(share));
        let peer = peers.iter().find(|peer| peer.test == (m.test, m.batch)).map(|peer| peer.tokens_per_s);
        let test = format!("{}{}", m.test, m.tokens);
        if self.args.json {
            return out::json(&json!({
                "op": "decode", "test": test, "batch": m.batch, "model": case.name, "type": case.kind,
                "dtype": case.model.dtype().to_string(), "activations": case.model.activations().map(|a| a.to_string()),
                "device": self.args_device(), "devices": devices_of(case), "layers": layers_of(case), "feed": format!("{:?}", self.args.feed).to_lowercase(),
                "tokens_per_s": speed, "slowest": slowest, "fastest": fastest, "us_per_token": 1e6 / speed, "us_per_step": us, "seconds": m.seconds,
                "launches_per_token": m.launches, "bytes_per_token": m.bytes, "gbps": gbps, "read_gbps": self.read_gbps,
                "share_of_read": shares[0], "gflops": gflops, "share_of_peak": shares[1], "memory_peak": m.memory_peak,
                "peer_tokens_per_s": peer, "ratio": peer.map(|peer| speed / peer), "checked": true,
            }));
        }
        if !std::mem::replace(&mut self.header, true) {
            out::result(&row(&[
                "test", "texts", "tokens/s", "±", "µs/step", "launches", "GB/s", "of read", "GFLOP/s",
                "of peak", "peer", "ratio",
            ]))?;
        }
        let percent =
            |share: Option<f64>| share.map_or(String::new(), |share| format!("{:.0} %", share * 100.0));
        let or_nothing = |n: Option<f64>, digits: usize| n.map_or(String::new(), |n| format!("{n:.digits$}"));
        out::result(&row(&[
            &test,
            &m.batch.to_string(),
            &format!("{speed:.1}"),
            &format!("{:.1} %", (fastest - slowest) / 2.0 / speed * 100.0),
            &format!("{us:.1}"),
            &m.launches.map_or(String::new(), |n| n.to_string()),
            &format!("{gbps:.1}"),
            &percent(shares[0]),
            &format!("{gflops:.1}"),
            &percent(shares[1]),
            &or_nothing(peer, 1),
            &or_nothing(peer.map(|peer| speed / peer), 2),
        ]))
    }
}

/// Returns the devices that have layers, and their numbers.
fn devices_of(case: &Case) -> Vec<&str> {
    case.model.decoder().spans().map(|span| span.device.capabilities().id.as_str()).collect()
}

fn layers_of(case: &Case) -> Vec<usize> {
    case.model.decoder().spans().map(|span| span.layers.len()).collect()
}

/// Maximum duration of the warm-up in seconds.
const WARM_S: f64 = 1.0;

fn row(cells: &[&str; 12]) -> String {
    let [test, rest @ ..] = cells;
    let rest: String = rest.iter().map(|c| format!("{c:>10}")).collect();
    format!("{test:<8}{rest}").trim_end().into()
}

/// The texts to measure: one text in its own cache, or several in pages.
enum Texts<'a> {
    One { text: Box<Batch<'a>>, by: Option<Arc<Chooser>> },
    Several { texts: Box<SideBySide<'a>>, greedy: bool },
}

impl<'a> Texts<'a> {
    fn new(case: &'a Case, batch: usize, tokens: usize, feed: Feed) -> Result<Self> {
        let (decoder, greedy) = (case.model.decoder(), feed == Feed::Greedy);
        if batch > 1 {
            let texts = Box::new(SideBySide::new(decoder, batch, tokens)?);
            return Ok(Self::Several { texts, greedy });
        }
        let (device, vocab) = (decoder.last_device(), decoder.config().vocab);
        let by = if greedy { Chooser::new(device, &Rules::greedy(), 1, vocab, None)? } else { None };
        Ok(Self::One { text: Box::new(decoder.batch(1, tokens)?), by: by.map(Arc::new) })
    }

    fn launches(&self) -> Option<usize> {
        match self {
            Self::One { text, .. } => text.launches(),
            Self::Several { texts, .. } => texts.launches(),
        }
    }

    /// Generates `tokens` tokens from an empty context. `warm` is the start time of a warm-up, which may end early.
    fn run(&mut self, case: &Case, tokens: usize, warm: Option<Instant>) -> Result<()> {
        // A step is captured the second time.
        let done = |i: usize| i > 4 && warm.is_some_and(|began| began.elapsed().as_secs_f64() > WARM_S);
        match self {
            Self::One { text, by } => one(case, text, tokens, by.as_ref(), (warm.is_some(), &done)),
            Self::Several { texts, greedy } => {
                texts.run(tokens, *greedy, warm.is_some(), &|b, i| case.token(b, i), &done)
            }
        }
    }
}

/// Generates one text; with `by`, tokens are sampled on the device. A warm-up waits for each step.
fn one(
    case: &Case,
    text: &mut Batch<'_>,
    tokens: usize,
    by: Option<&Arc<Chooser>>,
    (warm, done): (bool, &dyn Fn(usize) -> bool),
) -> Result<()> {
    text.truncate(0);
    let Some(by) = by else {
        for i in 0..tokens {
            text.step(&[case.token(0, i)])?;
            if warm {
                case.model.decoder().finish()?;
            }
            if done(i) {
                break;
            }
        }
        return Ok(());
    };
    text.start(&[case.token(0, 0)])?;
    let (run, mut made, mut waiting) = (if warm { 1 } else { RUN }, 0, None);
    while made < tokens && !done(made) {
        let steps = run.min(tokens - made);
        let queued = text.queue(by, &vec![0; steps])?;
        made += steps;
        // The device already has the next steps while the host reads these.
        if let Some(before) = waiting.replace(queued) {
            text.chosen(&before)?;
        }
    }
    waiting.map_or(Ok(()), |last| text.chosen(&last).map(drop))
}

/// Number of steps enqueued at once.
const RUN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_of_the_median_run() {
        let m = TimedRuns {
            test: "tg",
            tokens: 128,
            batch: 2,
            seconds: vec![2.0, 1.0, 4.0],
            launches: None,
            bytes: 0,
            flops: 0.0,
            memory_peak: 0,
        };
        assert_eq!(m.speeds(), [128.0, 64.0, 256.0]);
    }
}
