//! Training data of a run according to its configuration: opens files, loads or trains the tokenizer, splits off the validation part.

use crate::config::{TrainConfig, padded_vocab};
use crate::data::{
    Corpus, DataRecord, DataSource, DataWatch, Reading, Splits, TextEncoding, TokenCache, Tokens, split,
};
use netcl_model::tokenizer::Tokenizer;
use netcl_tensor::{Error, Result};
use std::path::Path;

/// The data of a run: tokens and tokenizer.
pub struct Inputs {
    /// Training and validation tokens.
    pub splits: Splits,
    /// The tokenizer; `None` for token shards without one.
    pub tokenizer: Option<Tokenizer>,
    /// Vocabulary of the model.
    pub vocab: usize,
    /// The files that the tokens come from.
    pub record: DataRecord,
}

impl Inputs {
    /// Returns the prompt of samples: a line break, or the first token of the data if the tokenizer is missing or lacks a token for one.
    pub(super) fn prompt(&self) -> Result<Vec<u32>> {
        let line = self.tokenizer.as_ref().and_then(|t| t.encode("\n").ok()).filter(|ids| !ids.is_empty());
        if let Some(ids) = line {
            return Ok(ids);
        }
        let mut first = vec![0u32; 1];
        self.splits.train.read(0, &mut first)?;
        Ok(first)
    }

    /// Returns the first words of the data, a prompt that the tokenizer can certainly encode; `None` without a tokenizer.
    pub(super) fn opening(&self) -> Option<String> {
        let tokenizer = self.tokenizer.as_ref()?;
        let mut ids = vec![0u32; OPENING_TOKENS.min(self.splits.train.len())];
        self.splits.train.read(0, &mut ids).ok()?;
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

/// Opens the data of a run. `tokenizer` is that of a resumed checkpoint and takes precedence over the configuration; `cache` holds the tokens of text
/// encoded by earlier runs.
///
/// # Errors
/// Errors of [`DataSource::open_with`], of the tokenizer and of [`split`]; `Format` if a token is outside the vocabulary; `Io` if `watch` asks to
/// stop.
pub fn open_inputs(
    config: &TrainConfig,
    tokenizer: Option<Tokenizer>,
    cache: Option<&TokenCache>,
    watch: &mut DataWatch<'_>,
) -> Result<Inputs> {
    let encoding = config.encoding.as_deref().map(TextEncoding::of).transpose()?;
    let source = DataSource::open_with(&config.data, Reading { encoding, as_text: config.as_text }, watch)?;
    let shards = matches!(source, DataSource::Shards { .. });
    let tokenizer = match (tokenizer, config.tokenizer.as_str()) {
        (Some(kept), _) => Some(kept),
        (None, "char") if shards => None,
        (None, "char") => Some(source.char_tokenizer(watch)?),
        (None, file) => match Tokenizer::from_file(Path::new(file)) {
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
    let vocab = match (config.vocab, &tokenizer) {
        (Some(vocab), _) => vocab,
        (None, Some(tokenizer)) => padded_vocab(tokenizer.vocab_size()),
        (None, None) => padded_vocab(needed.map_or(1, |id| id as usize + 1)),
    };
    if needed.is_some_and(|id| id as usize >= vocab) {
        corpus.train.check_vocab(vocab)?;
        if let Some(val) = &corpus.val {
            val.check_vocab(vocab)?;
        }
    }
    if tokenizer.as_ref().is_some_and(|t| t.vocab_size() > vocab) {
        return Err(Error::format(format!(
            "the tokenizer has {} tokens, more than the vocabulary of {vocab}: omit or raise --vocab (`vocab` in a file)",
            tokenizer.as_ref().map_or(0, Tokenizer::vocab_size)
        )));
    }
    let splits = split(corpus, config.val_split, config.context)?;
    Ok(Inputs { splits, tokenizer, vocab, record })
}

fn largest(corpus: &Corpus) -> Result<Option<u32>> {
    let val = corpus.val.as_ref().map_or(Ok(None), Tokens::max_id)?;
    Ok(corpus.train.max_id()?.max(val))
}
