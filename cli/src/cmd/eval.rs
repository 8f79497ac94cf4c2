//! `netcl eval`: how well a model predicts a text.

use crate::context::Context;
use crate::loading::{DivisionArgs, divided, shown};
use crate::named::named_by;
use crate::out;
use crate::progress::perplexity;
use crate::reading::ReadingBar;
use crate::table::Table;
use netcl::device::counted;
use netcl::llm::LoadedModel;
use netcl::llm::engine::Options;
use netcl::model::decoder::{Decoder, DecoderConfig, adapter_base, broken_weights, model_folder};
use netcl::model::folder::model_from_dir;
use netcl::model::model::Model;
use netcl::model::tokenizer::Tokenizer;
use netcl::prelude::*;
use netcl::train::config::{DTYPES, MatmulPrecision, Overlay, TrainConfig, storage_type};
use netcl::train::data::{
    DATA_FILE, DataSource, DataWatch, Eval, Reading, Scored, Strided, TextEncoding, TokenCache, Tokens,
};
use netcl::train::evaluate::{Score, evaluate};
use netcl::train::{InputData, open_inputs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Default tokens of a window, if the model's context is longer.
const CONTEXT: usize = 2048;
/// Interval between lines if stderr is not a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// Measure how well a model predicts a text: loss, perplexity, bits per byte
///
/// The text is read in windows of `--context` tokens that start every `--stride` tokens. Each token counts once, in the first window that contains
/// it. A smaller stride takes longer, gives each token more context and a better score. With the default, half the context, every token after the
/// first window has at least half a context before it. If `--stride` equals `--context`, windows do not overlap, and the first token of each is not
/// predicted. Without `--data`, a run is measured as in training: on the same windows of its validation part.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Run folder, checkpoint, or Hugging Face folder of a GPT-2, Llama, Mistral, Qwen, Gemma, … model
    #[arg(short, long, value_name = "DIR")]
    model: PathBuf,
    /// Text or token shards: files, folders, patterns (repeatable) [default: the run's validation part]
    #[arg(long, value_name = "FILE|DIR|GLOB", num_args = 1..)]
    data: Vec<PathBuf>,
    /// Encoding of files that are not UTF-8 and lack a byte order mark (latin1, cp1251, …)
    #[arg(long, value_name = "NAME", requires = "data")]
    encoding: Option<String>,
    /// Read record files (JSON Lines, tables) as plain text, including their markup
    #[arg(long, requires = "data")]
    as_text: bool,
    /// Window length in tokens [default: the model's context, at most 2048]
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Tokens between the starts of two windows [default: context / 2]
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
    /// Windows per batch
    #[arg(long, value_name = "N", default_value_t = 8)]
    batch: usize,
    /// Storage type of the weights, such as bfloat16 or half [default: the file's]
    #[arg(long, value_parser = named_by(&DTYPES, storage_type))]
    dtype: Option<DType>,
    /// Device as in `train`, or several devices that share the layers, as in `generate`
    #[arg(long, visible_alias = "gpu-id", default_value = "auto")]
    device: String,
    #[command(flatten)]
    division: DivisionArgs,
    /// Omit the token that the tokenizer puts before a text, such as Llama's <s>
    #[arg(long)]
    no_bos: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A tokenized text.
struct Text {
    tokens: Tokens,
    /// Description.
    what: String,
    /// Bytes that the tokens encode but the text does not contain.
    added: u64,
}

/// The windows to predict: the whole text, or those of training's evaluation.
enum Windows {
    All(Strided),
    Training(Eval, usize),
}

impl Windows {
    fn batches(&self) -> Box<dyn Iterator<Item = Result<Scored>> + '_> {
        match self {
            Self::All(all) => Box::new(all.batches()),
            Self::Training(eval, _) => Box::new(eval.batches().map(|batch| batch.map(Scored::from))),
        }
    }
    fn batches_in_all(&self) -> usize {
        match self {
            Self::All(all) => all.len(),
            Self::Training(eval, _) => eval.len(),
        }
    }
    fn context(&self) -> usize {
        match self {
            Self::All(all) => all.context(),
            Self::Training(_, context) => *context,
        }
    }
    /// Returns tokens between two windows; `None` if they were drawn at random.
    fn stride(&self) -> Option<usize> {
        match self {
            Self::All(all) => Some(all.stride()),
            Self::Training(..) => None,
        }
    }
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    let trained = trained(args)?;
    let precision = trained.as_ref().map_or(MatmulPrecision::default(), |config| config.matmul_precision);
    let own = DecoderConfig::of_folder(&args.model)?.context;
    if let Some(wanted) = args.context.filter(|wanted| *wanted > own) {
        return Err(Error::format(format!("--context {wanted} exceeds the model's context of {own}")));
    }
    let devices = context.open_devices_with(&args.device, precision)?;
    // The matrices of a GGUF file under adapters stay quantized.
    let blocks = adapter_base(&args.model)?.is_some_and(|(base, _)| base.is_file());
    let (model, tokenizer, dir) = match devices.as_slice() {
        [device] if args.division.layers.is_none() && !blocks => {
            model_from_dir(device, &args.model, args.dtype)?
        }
        devices => {
            let window = trained.as_ref().map_or(own.min(CONTEXT), |config| config.context);
            on_several(args, devices, args.context.unwrap_or(window).min(own), context)?
        }
    };
    let mut reading = ReadingBar::new(context);
    let (text, windows) = match &trained {
        None => text(args, &dir, tokenizer.as_ref(), context, &mut |p| reading.show(p))?,
        Some(config) => {
            let watch: &mut DataWatch<'_> = &mut |p| reading.show(p);
            validation(args, config, (&model, &dir), context, watch)?
        }
    };
    drop(reading);
    let windows = match windows {
        Some(windows) => windows,
        None => Windows::All(all(args, &model, text.tokens.clone())?),
    };
    let began = Instant::now();
    let lengths = tokenizer.as_ref().and_then(Tokenizer::byte_lengths);
    let mut shown = Shown::new(context, windows.batches_in_all());
    let mut score = evaluate(&model, windows.batches(), lengths.as_ref(), &mut |score| shown.show(score))?;
    shown.end();
    if !score.loss().is_finite() {
        return Err(not_a_number(&dir, &model, score.loss()));
    }
    score.bytes = score.bytes.map(|bytes| bytes.saturating_sub(text.added));
    let seconds = began.elapsed().as_secs_f64();
    if args.json {
        json(&model, &dir, &windows, &score, seconds)
    } else {
        show(&model, &dir, &text, &windows, &score, seconds)
    }
}

/// Returns the error for a NaN or infinite loss.
fn not_a_number(dir: &Path, model: &Decoder, loss: f64) -> Error {
    let reason = broken_weights(dir).map_or_else(
        || {
            let dtype = model.params().dtype();
            format!("the weights are finite, so values exceeded the range of {dtype}; use --dtype f32, which has the widest range")
        },
        |tensor| format!("{tensor}; the file is damaged, or the training that wrote it diverged"),
    );
    Error::format(format!("{}: the loss is {loss}: {reason}", dir.display()))
}

/// Loads a model with its layers on several devices, for windows of the given size.
fn on_several(
    args: &Args,
    devices: &[Device],
    window: usize,
    context: &Context,
) -> Result<(Decoder, Option<Tokenizer>, PathBuf)> {
    let layers = args.division.layers.as_deref();
    let options = Options { dtype: args.dtype, context: Some(window), layers, ..Options::default() };
    let model = shown(context, |bar| LoadedModel::open(&args.model, devices, options, bar))?;
    let path = model_folder(&args.model)?;
    let tokenizer = match path.join(netcl::model::tokenizer::FILE).exists() {
        true => Some(Tokenizer::from_dir(&path)?),
        false => None,
    };
    if let Some(divided) = divided(model.decoder()) {
        out::note(&divided);
    }
    Ok((model.into_decoder(), tokenizer, path))
}

/// Returns the settings of the run whose validation part is measured.
fn trained(args: &Args) -> Result<Option<TrainConfig>> {
    if !args.data.is_empty() {
        return Ok(None);
    }
    let path = args.model.join("config.toml");
    if !path.exists() {
        return Err(Error::format(format!(
            "--data is required: {} is not a run folder with a validation part",
            args.model.display()
        )));
    }
    TrainConfig::of_run(&args.model, &Overlay::default()).map(Some)
}

/// Returns windows over the whole text.
fn all(args: &Args, model: &Decoder, tokens: Tokens) -> Result<Strided> {
    let context = args.context.unwrap_or(model.config().context.min(CONTEXT));
    let stride = args.stride.unwrap_or((context / 2).max(1));
    Strided::new(tokens, model.config().vocab, context, stride, args.batch)
}

/// Reads the text of `--data`.
fn text(
    args: &Args,
    dir: &Path,
    tokenizer: Option<&Tokenizer>,
    context: &Context,
    watch: &mut DataWatch<'_>,
) -> Result<(Text, Option<Windows>)> {
    let encoding = args.encoding.as_deref().map(TextEncoding::of).transpose()?;
    let source = DataSource::open_with(
        &args.data,
        Reading { encoding, as_text: args.as_text, records: false },
        watch,
    )?;
    let files = match source.parts() {
        (train, []) => train.len(),
        (_, val) => val.len(),
    };
    if files > 0 && tokenizer.is_none() {
        return Err(Error::format(format!(
            "{} does not have a tokenizer.json, so text cannot be tokenized; pass token shards with --data",
            dir.display()
        )));
    }
    let cache = TokenCache::of(&context.settings);
    let corpus = source.into_corpus_with(tokenizer, cache.as_ref(), watch)?;
    let what = match &corpus.val {
        Some(_) if files > 0 => format!("{} of the validation part", counted(files, "file")),
        Some(_) => "the validation shards".to_owned(),
        None if files > 0 => counted(files, "file"),
        None => "token shards".to_owned(),
    };
    let beginning = tokenizer.map_or(Vec::new(), Tokenizer::beginning);
    let begins = files > 0 && !beginning.is_empty() && !args.no_bos;
    let mut tokens = if begins { Tokens::from(beginning) } else { Tokens::default() };
    tokens.append(corpus.val.unwrap_or(corpus.train));
    // The first token is not predicted if no token precedes it.
    let spaces = if begins { files } else { files.saturating_sub(1) };
    let added = if tokenizer.is_some_and(Tokenizer::adds_space) { spaces as u64 } else { 0 };
    Ok((Text { tokens, what, added }, None))
}

/// Returns a run's validation part, in training's windows by default.
fn validation(
    args: &Args,
    config: &TrainConfig,
    (model, dir): (&Decoder, &Path),
    context: &Context,
    watch: &mut DataWatch<'_>,
) -> Result<(Text, Option<Windows>)> {
    let config = TrainConfig { vocab: Some(model.config().vocab), ..config.clone() };
    let cache = TokenCache::of(&context.settings);
    let inputs = open_inputs(&config, Some(dir), cache.as_ref(), watch)?;
    // If the model was trained on other data, its validation part may contain training text.
    let then = std::fs::read(dir.join(DATA_FILE)).ok().map(|written| inputs.record.since(&written));
    match then {
        Some(Ok(Some(said))) => tracing::warn!("the data differs from that at the checkpoint: {said}"),
        Some(Err(e)) => tracing::warn!("{}", e.message()),
        _ => {}
    }
    let config = inputs.settled(&config)?;
    let tokens = match &inputs.data {
        InputData::Tokens(splits) => splits.val.clone(),
        InputData::Records { .. } => Some(Tokens::default()),
    };
    let none = || {
        Error::format(format!(
            "{} was trained without a validation part (--val-split 0); pass a text with --data",
            args.model.display()
        ))
    };
    let what = "the validation part of the run".to_owned();
    let text = Text { tokens: tokens.ok_or_else(none)?, what, added: 0 };
    if args.context.is_some() || args.stride.is_some() {
        if text.tokens.is_empty() {
            return Err(Error::unsupported(
                "--context and --stride: the run was trained on records, which are evaluated one per row; omit both",
            ));
        }
        return Ok((text, None));
    }
    let context = config.context;
    let eval = inputs.batches(&config)?.1.ok_or_else(none)?;
    Ok((text, Some(Windows::Training(eval.in_batches_of(args.batch)?, context))))
}

/// Progress of the evaluation.
struct Shown {
    bar: indicatif::ProgressBar,
    live: bool,
    batches: usize,
    done: usize,
    printed: Instant,
}

impl Shown {
    fn new(context: &Context, batches: usize) -> Self {
        let live = context.live();
        let bar = out::progress(live, batches as u64, "evaluating");
        Self { bar, live, batches, done: 0, printed: Instant::now() }
    }

    fn show(&mut self, score: &Score) -> bool {
        self.done += 1;
        let line = format!("loss {:.4}, perplexity {}", score.loss(), perplexity(score.perplexity()));
        if self.live {
            self.bar.inc(1);
            self.bar.set_message(line);
        } else if self.printed.elapsed() >= PLAIN_EVERY {
            self.printed = Instant::now();
            out::note(&format!("batch {} of {}: {line}", self.done, self.batches));
        }
        true
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn json(model: &Decoder, dir: &Path, windows: &Windows, score: &Score, seconds: f64) -> Result<()> {
    out::json(&serde_json::json!({
        "model": dir,
        "family": model.config().family.model_type,
        "dtype": model.params().dtype().to_string(),
        "loss": score.loss(),
        "perplexity": score.perplexity(),
        "bits_per_byte": score.bits_per_byte(),
        "tokens": score.tokens,
        "bytes": score.bytes,
        "windows": score.windows,
        "context": windows.context(),
        "stride": windows.stride(),
        "seconds": seconds,
        "tokens_per_s": score.tokens as f64 / seconds.max(1e-9),
    }))
}

fn show(
    model: &Decoder,
    dir: &Path,
    text: &Text,
    windows: &Windows,
    score: &Score,
    seconds: f64,
) -> Result<()> {
    let mut table = Table::new(&["", ""]);
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    let config = model.config();
    let about = format!(
        "{}, {} parameters, {}",
        config.family.model_type,
        config.parameters(),
        model.params().dtype()
    );
    row("model", format!("{} ({about})", dir.display()));
    row("text", format!("{}, {}", text.what, counted(text.tokens.len(), "token")));
    let stride = match windows.stride() {
        Some(stride) => format!("one every {stride}"),
        None => "those of training's evaluation".to_owned(),
    };
    row("windows", format!("{} of {} tokens, {stride}", score.windows, windows.context()));
    row("predicted", counted(usize::try_from(score.tokens).unwrap_or(usize::MAX), "token"));
    row("loss", format!("{:.4} nats per token", score.loss()));
    row("perplexity", perplexity(score.perplexity()));
    let bits =
        score.bits_per_byte().map_or("unknown with this tokenizer".into(), |bits| format!("{bits:.4}"));
    row("bits per byte", bits);
    out::result(&table.lines()[1..].join("\n"))?;
    out::note(&format!("{:.0} tokens/s", score.tokens as f64 / seconds.max(1e-9)));
    Ok(())
}
