//! Training data of a run according to its configuration: opens files, loads or trains the tokenizer, splits off the validation part.

use crate::config::{TrainConfig, padded_vocab};
use crate::data::records::{self, RecordOptions, RecordReport, RecordSet, RecordSplits, RecordTokenizer};
use crate::data::{
    Corpus, DataRecord, DataSource, DataWatch, Eval, Loader, Reading, Splits, TextEncoding, TokenCache,
    Tokens, split,
};
use netcl_llm::gguf::Gguf;
use netcl_llm::model::{Source, tokenizer_file, write_description};
use netcl_model::tokenizer::{FILE, Tokenizer};
use netcl_tensor::{Error, Result};
use std::path::Path;
use tempfile::TempDir;

/// The data of a run: tokens and tokenizer.
pub struct Inputs {
    /// Training and validation data.
    pub data: InputData,
    /// The tokenizer; `None` for token shards without one.
    pub tokenizer: Option<Tokenizer>,
    /// Vocabulary of the model.
    pub vocab: usize,
    /// The files that the tokens come from.
    pub record: DataRecord,
}

/// Training and validation data.
pub enum InputData {
    /// Sequences of tokens.
    Tokens(Splits),
    /// Records.
    Records {
        /// Their tokens.
        splits: RecordSplits,
        /// Their tokenizer and chat template.
        tokenizer: Box<RecordTokenizer>,
        /// Their numbers.
        report: Box<RecordReport>,
    },
}

impl Inputs {
    /// Returns the numbers of training and validation tokens.
    pub fn tokens(&self) -> [usize; 2] {
        match &self.data {
            InputData::Tokens(Splits { train, val }) => [train.len(), val.as_ref().map_or(0, Tokens::len)],
            InputData::Records { splits: RecordSplits { train, val, .. }, .. } => {
                [train.tokens(), val.as_ref().map_or(0, RecordSet::tokens)]
            }
        }
    }

    /// Returns the settings of a run with this data. Rows are as long as the longest record, and the steps follow from `epochs`, or from one epoch if
    /// neither was given.
    ///
    /// # Errors
    /// `Format` for `epochs` of data that has none; errors of [`TrainConfig::validate`].
    pub fn settled(&self, config: &TrainConfig) -> Result<TrainConfig> {
        let mut config = config.clone();
        let InputData::Records { splits, .. } = &self.data else {
            if config.pack {
                return Err(Error::format(
                    "--pack: text and token shards fill their rows already; it packs records, such as conversations",
                ));
            }
            return match config.epochs {
                Some(epochs) => Err(Error::format(format!(
                    "--epochs {epochs}: text and token shards are read in random windows, not in epochs; use --steps"
                ))),
                None => Ok(config),
            };
        };
        config.context = splits.context;
        if config.unset.steps {
            config.epochs = Some(1);
        }
        if let Some(epochs) = config.epochs {
            let rows = (config.batch as u64).saturating_mul(u64::from(config.grad_accum)).max(1);
            config.steps = (splits.rows() as u64).saturating_mul(epochs).div_ceil(rows);
            if config.unset.warmup || config.warmup > config.steps {
                config.warmup = config.warmup.min(config.steps / 10);
            }
        }
        config.validate()?;
        Ok(config)
    }

    /// Returns the training and evaluation batches of a run with these settings.
    ///
    /// # Errors
    /// Errors of [`Loader::new`] and [`Eval::new`].
    pub fn batches(self, config: &TrainConfig) -> Result<(Loader, Option<Eval>)> {
        let TrainConfig { batch, context, grad_accum, seed, .. } = *config;
        let (vocab, limit) = (self.vocab, Some(config.eval_batches));
        match self.data {
            InputData::Tokens(splits) => {
                let eval = splits.val.map(|val| Eval::new(val, vocab, batch, context, limit, seed));
                Ok((Loader::new(splits.train, vocab, batch, context, grad_accum)?, eval.transpose()?))
            }
            InputData::Records { splits, .. } => {
                let sizes = [batch, context];
                let eval = splits.val.map(|val| Eval::of_records(val, vocab, sizes, limit, seed));
                let loader = Loader::of_records(
                    (splits.train, splits.packing),
                    vocab,
                    sizes,
                    grad_accum,
                    config.epochs,
                )?;
                Ok((loader, eval.transpose()?))
            }
        }
    }

    /// Returns the prompt of samples. For records it is the tokens before the first trained one. Otherwise it is a line break, or the first token of the
    /// data if the tokenizer is missing or lacks a token for one.
    pub(super) fn prompt(&self) -> Result<Vec<u32>> {
        let train = match &self.data {
            InputData::Tokens(splits) => &splits.train,
            InputData::Records { splits, .. } => {
                let record = splits.val.as_ref().unwrap_or(&splits.train).record(0)?;
                let before = record.iter().skip(1).take_while(|(_, trained)| !trained);
                return Ok(record.iter().take(1).chain(before).map(|(id, _)| *id).collect());
            }
        };
        let line = self.tokenizer.as_ref().and_then(|t| t.encode("\n").ok()).filter(|ids| !ids.is_empty());
        if let Some(ids) = line {
            return Ok(ids);
        }
        let mut first = vec![0u32; 1];
        train.read(0, &mut first)?;
        Ok(first)
    }

    /// Returns the first words of the data, a prompt that the tokenizer can certainly encode; `None` without a tokenizer, and for records.
    pub(super) fn opening(&self) -> Option<String> {
        let (tokenizer, InputData::Tokens(splits)) = (self.tokenizer.as_ref()?, &self.data) else {
            return None;
        };
        let mut ids = vec![0u32; OPENING_TOKENS.min(splits.train.len())];
        splits.train.read(0, &mut ids).ok()?;
        let text = tokenizer.decode(&ids).ok()?;
        let line = text.lines().map(str::trim).find(|line| line.chars().any(char::is_alphanumeric))?;
        let words: Vec<&str> = line.split_whitespace().take(3).collect();
        let known = |text: &String| tokenizer.encode(text).is_ok_and(|ids| !ids.is_empty());
        // Words separated by another character than a space may not be encodable when joined by spaces.
        Some(words.join(" ")).filter(known).or_else(|| Some(words.first()?.to_string()).filter(known))
    }
}

/// Number of tokens that [`Inputs::opening`] reads.
const OPENING_TOKENS: usize = 64;

/// Opens the data of a run. `kept` is the folder of a resumed checkpoint, whose tokenizer and chat template take precedence over the configuration;
/// `cache` holds the tokens of text encoded by earlier runs.
///
/// # Errors
/// Errors of [`DataSource::open_with`], of the tokenizer and of [`split`]; `Format` if a token is outside the vocabulary, and for a broken record;
/// `Io` if `watch` asks to stop.
pub fn open_inputs(
    config: &TrainConfig,
    kept: Option<&Path>,
    cache: Option<&TokenCache>,
    watch: &mut DataWatch<'_>,
) -> Result<Inputs> {
    let described = if kept.is_none() { described(config)? } else { None };
    let config = described.as_ref().map_or(config, |(config, _)| config);
    let source = source(config, watch)?;
    let compares = config.objective.is_preference();
    if compares && !matches!(source, DataSource::Records { .. }) {
        return Err(Error::format(format!(
            "--objective {} needs records that compare answers, such as JSON Lines with prompt, chosen and rejected; found text or token shards",
            config.objective
        )));
    }
    let kept = kept.filter(|folder| folder.join(FILE).exists());
    if let DataSource::Records { .. } = source {
        return of_records(config, &source, kept, cache, watch);
    }
    let shards = matches!(source, DataSource::Shards { .. });
    let tokenizer = match (kept, config.tokenizer.as_str()) {
        (Some(kept), _) => Some(Tokenizer::from_dir(kept)?),
        (None, "char") if shards => None,
        (None, "char") => Some(source.char_tokenizer(watch)?),
        (None, file) => match in_file(file).map_or_else(|| Tokenizer::from_file(Path::new(file)), Err) {
            Ok(tokenizer) => Some(tokenizer),
            // Shards contain tokens, so without the tokenizer only samples are missing.
            Err(e) if shards => {
                tracing::warn!("no samples will be shown: {e}");
                None
            }
            Err(e) => return Err(e),
        },
    };
    let record = source.record()?;
    let corpus = source.into_corpus_with(tokenizer.as_ref(), cache, watch)?;
    // Ids from the tokenizer are below its size; ids in shards must be checked.
    let needed = if shards { largest(&corpus)? } else { None };
    let vocab = vocab(config, tokenizer.as_ref(), needed)?;
    if needed.is_some_and(|id| id as usize >= vocab) {
        corpus.train.check_vocab(vocab)?;
        if let Some(val) = &corpus.val {
            val.check_vocab(vocab)?;
        }
    }
    let splits = split(corpus, config.val_split, config.context)?;
    Ok(Inputs { data: InputData::Tokens(splits), tokenizer, vocab, record })
}

/// Returns the settings with the `tokenizer.json` of a GGUF file that is model and tokenizer, and what keeps it; `None` for other tokenizers.
fn described(config: &TrainConfig) -> Result<Option<(TrainConfig, TempDir)>> {
    let file = Path::new(&config.tokenizer);
    if config.init.as_ref() != Some(&config.tokenizer) || !file.is_file() {
        return Ok(None);
    }
    let folder = TempDir::new().map_err(|e| Error::io("creating", &std::env::temp_dir(), &e))?;
    write_description(&Source::open(file)?, folder.path())?;
    let own = folder.path().join(FILE);
    let tokenizer = own.to_str().filter(|_| own.exists()).map(str::to_owned);
    Ok(tokenizer.map(|tokenizer| (TrainConfig { tokenizer, ..config.clone() }, folder)))
}

/// Opens the files of `--data` and `--eval-data`.
fn source(config: &TrainConfig, watch: &mut DataWatch<'_>) -> Result<DataSource> {
    let encoding = config.encoding.as_deref().map(TextEncoding::of).transpose()?;
    let how = Reading { encoding, as_text: config.as_text, records: true };
    let source = DataSource::open_with(&config.data, how, watch)?;
    if config.eval_data.is_empty() {
        return Ok(source);
    }
    let validation =
        DataSource::open_with(&config.eval_data, how, watch).map_err(|e| e.context("--eval-data"))?;
    source.validated_by(validation)
}

/// Opens records with the tokenizer and the chat template of the model.
fn of_records(
    config: &TrainConfig,
    source: &DataSource,
    kept: Option<&Path>,
    cache: Option<&TokenCache>,
    watch: &mut DataWatch<'_>,
) -> Result<Inputs> {
    let DataSource::Records { formats, .. } = source else {
        return Err(Error::internal("records of another source"));
    };
    let folder = match (kept, Path::new(&config.tokenizer)) {
        (Some(kept), _) => kept,
        (None, file) if config.tokenizer != "char" && file.file_name().is_some_and(|name| name == FILE) => {
            file.parent().unwrap_or(Path::new(""))
        }
        (None, _) if let Some(error) = in_file(&config.tokenizer) => return Err(error),
        _ => {
            let first =
                source.files().first().map_or_else(String::new, |file| file.path().display().to_string());
            return Err(Error::format(format!(
                "{first}: {formats}. Records need the tokenizer of a model: start from one with --init, or name its tokenizer.json with --tokenizer. \
                 --as-text trains on the file as plain text, including its markup"
            )));
        }
    };
    // The template of a checkpoint is the one that the run began with.
    let template = config.chat_template.as_deref().filter(|_| kept.is_none());
    let records = RecordTokenizer::open(folder, template, config.train_on.answers())?;
    let records = records.beginning(config.init.as_deref().is_some_and(|init| Path::new(init).is_file()));
    let records = records.for_kind(config.objective.kind(config.batch));
    let tokenizer = Tokenizer::from_dir(folder)?;
    let vocab = vocab(config, Some(&tokenizer), None)?;
    let options = RecordOptions {
        context: config.context,
        pack: config.pack,
        drop_long: config.drop_long,
        skip_bad: config.skip_bad,
        val_split: config.val_split,
    };
    let parts = source.parts();
    let (splits, report) = records::open([parts.0, parts.1], formats, &records, options, cache, watch)?;
    tracing::info!("{}", report.line());
    let data = InputData::Records { splits, tokenizer: Box::new(records), report: Box::new(report) };
    Ok(Inputs { data, tokenizer: Some(tokenizer), vocab, record: source.record()? })
}

/// Returns the error for the tokenizer of a GGUF file that a `tokenizer.json` cannot describe, if `path` is such a file.
fn in_file(path: &str) -> Option<Error> {
    let why = |e: Error| {
        Error::new(
            e.kind(),
            format!(
                "{}: training needs a tokenizer.json; name that of the model with --tokenizer DIR/tokenizer.json",
                e.message()
            ),
        )
    };
    let tokenizer = || Gguf::open(Path::new(path)).and_then(|file| tokenizer_file(&file));
    path.ends_with(".gguf").then(|| match tokenizer() {
        Ok(_) => Error::format(format!(
            "--tokenizer {path}: expected a tokenizer.json, or the same file as --init"
        )),
        Err(e) => why(e),
    })
}

/// Returns the vocabulary of the model.
fn vocab(config: &TrainConfig, tokenizer: Option<&Tokenizer>, largest: Option<u32>) -> Result<usize> {
    let vocab = match (config.vocab, tokenizer) {
        (Some(vocab), _) => vocab,
        (None, Some(tokenizer)) => padded_vocab(tokenizer.vocab_size()),
        (None, None) => padded_vocab(largest.map_or(1, |id| id as usize + 1)),
    };
    match tokenizer.map(Tokenizer::vocab_size).filter(|size| *size > vocab) {
        Some(size) => Err(Error::format(format!(
            "the tokenizer has {size} tokens, more than the vocabulary of {vocab}: omit or raise --vocab (`vocab` in a file)"
        ))),
        None => Ok(vocab),
    }
}

fn largest(corpus: &Corpus) -> Result<Option<u32>> {
    let val = corpus.val.as_ref().map_or(Ok(None), Tokens::max_id)?;
    Ok(corpus.train.max_id()?.max(val))
}
