//! Encodes text files in pieces on all cores with bounded memory; results are cached on disk for later runs.

use super::pieces::{Pieces, TextPiece};
use super::progress::{DataWatch, DataWatcher, Stage};
use super::token_cache::{self, TokenCache, TokenWriter};
use super::{DataSource, TextFile, Tokens};
use netcl_device::{Error, Result};
use netcl_model::tokenizer::{Cuts, Tokenizer};
use std::{
    sync::OnceLock,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// Bytes of text per core between two progress reports.
const BYTES_PER_REPORT: usize = 256 << 10;
/// Smaller texts are not cached: encoding them is faster than the cache.
const CACHED_FROM: u64 = 1 << 20;

/// All tokens of `--data`, before the validation part is split off.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// Training tokens; if `val` is `None`, the validation part is still at their end.
    pub train: Tokens,
    /// Validation tokens, if the data has a validation part.
    pub val: Option<Tokens>,
}

impl DataSource {
    /// Returns the text in blocks that end at word boundaries: the files in order, with a line break after each that lacks one. Empty for shards.
    pub fn blocks(&self) -> impl Iterator<Item = Result<String>> + Send + '_ {
        cut(self.files(), Cuts::Words)
    }

    /// Builds a character tokenizer for the text of both parts.
    ///
    /// # Errors
    /// `Format` without text; `Io`.
    pub fn char_tokenizer(&self, watch: &mut DataWatch<'_>) -> Result<Tokenizer> {
        tokenizer_of(self.files(), (Cuts::Anywhere, Stage::Characters), watch, |blocks| {
            Tokenizer::char_from_text(blocks)
        })
    }

    /// Trains a byte-level BPE tokenizer on the text of the training part.
    ///
    /// # Errors
    /// Errors of [`Tokenizer::train_bpe`]; `Io`.
    pub fn bpe_tokenizer(&self, vocab_size: usize, watch: &mut DataWatch<'_>) -> Result<Tokenizer> {
        tokenizer_of(self.parts().0, (Cuts::Words, Stage::Words), watch, |blocks| {
            Tokenizer::train_bpe(blocks, vocab_size)
        })
    }

    /// Encodes text, with the tokenizer's end-of-text token between files if it has one. Shards are used unchanged. Returns `Format` for text without
    /// a tokenizer or with a character that the tokenizer lacks, and for a single token.
    pub fn into_corpus(self, tokenizer: Option<&Tokenizer>) -> Result<Corpus> {
        self.into_corpus_with(tokenizer, None, &mut |_| true)
    }

    /// Does the same, with an on-disk cache of earlier encodings and a progress callback.
    pub fn into_corpus_with(
        self,
        tokenizer: Option<&Tokenizer>,
        cache: Option<&TokenCache>,
        watch: &mut DataWatch<'_>,
    ) -> Result<Corpus> {
        let corpus = match self {
            Self::Shards { train, val } => Corpus { train, val },
            Self::Records { files, .. } => {
                let first =
                    files.first().map_or_else(String::new, |file| format!("{}: ", file.path().display()));
                return Err(Error::format(format!("{first}records are not plain text")));
            }
            Self::Text { .. } => {
                let tokenizer = tokenizer
                    .ok_or_else(|| Error::format("text requires a tokenizer; name one with --tokenizer"))?;
                let mut of = |files: &[TextFile]| {
                    let bytes = files.iter().map(|file| file.bytes).sum::<u64>();
                    tokens(files, tokenizer, cache.filter(|_| bytes >= CACHED_FROM), watch)
                };
                let (train, val) = self.parts();
                let val = if val.is_empty() { None } else { Some(of(val)?) };
                Corpus { train: of(train)?, val }
            }
        };
        if corpus.train.len() < 2 {
            return Err(Error::format(format!(
                "the data has {} token and nothing to predict; give more --data",
                corpus.train.len()
            )));
        }
        Ok(corpus)
    }
}

fn cut(files: &[TextFile], cuts: Cuts) -> impl Iterator<Item = Result<String>> + Send + '_ {
    Pieces::new(files, cuts).filter_map(|piece| match piece {
        Ok(TextPiece::Text { text, .. }) => Some(Ok(text)),
        Ok(TextPiece::Between { ends_line }) => (!ends_line).then(|| Ok("\n".to_owned())),
        Err(e) => Some(Err(e)),
    })
}

fn tokenizer_of(
    files: &[TextFile],
    (cuts, stage): (Cuts, Stage),
    watch: &mut DataWatch<'_>,
    make: impl FnOnce(&mut (dyn Iterator<Item = String> + Send)) -> Result<Tokenizer>,
) -> Result<Tokenizer> {
    let mut watcher = DataWatcher::new(watch, stage, files.iter().map(|file| file.bytes).sum());
    let mut failed = None;
    let mut blocks = cut(files, cuts).map_while(|block| {
        let block = block.and_then(|text| watcher.read(text.len() as u64).map(|()| text));
        block.map_err(|e| failed = Some(e)).ok()
    });
    let made = make(&mut blocks);
    drop(blocks);
    failed.map_or(made, Err)
}

/// Returns the ids of all files: read from the cache, encoded into the cache, or encoded in memory.
fn tokens(
    files: &[TextFile],
    tokenizer: &Tokenizer,
    cache: Option<&TokenCache>,
    watch: &mut DataWatch<'_>,
) -> Result<Tokens> {
    let Some(cache) = cache else { return in_memory(files, tokenizer, watch) };
    let key = key(files, tokenizer)?;
    if let Some(found) = cache.open(&key, &mut DataWatcher::new(watch, Stage::Cached, 0))? {
        return Ok(found);
    }
    match through_cache(files, tokenizer, cache, &key, watch) {
        // Errors of the text or a stop request are returned; only errors of the cache fall back to memory.
        Err(Failed::Other(error)) => return Err(error),
        Err(Failed::Cache(error)) => {
            tracing::warn!("{}; keeping the tokens in memory instead", token_cache::failed(cache, &error));
        }
        Ok(()) => {
            if let Some(found) = cache.open(&key, &mut DataWatcher::new(watch, Stage::Cached, 0))? {
                return Ok(found);
            }
        }
    }
    in_memory(files, tokenizer, watch)
}

fn key(files: &[TextFile], tokenizer: &Tokenizer) -> Result<String> {
    let tokenizer = tokenizer.files()?;
    let mut parts: Vec<&[u8]> = tokenizer.iter().map(|(_, content)| &**content).collect();
    for file in files {
        parts.push(file.encoding.name().as_bytes());
        parts.push(file.sum.as_bytes());
    }
    Ok(token_cache::key(&parts))
}

fn in_memory(files: &[TextFile], tokenizer: &Tokenizer, watch: &mut DataWatch<'_>) -> Result<Tokens> {
    let other = |failed| match failed {
        Failed::Other(error) => error,
        Failed::Cache(error) => Error::internal(format!("memory: {error}")),
    };
    if narrow(tokenizer) {
        let mut small = Vec::new();
        let take = |ids: &[u32]| {
            small.extend(ids.iter().map(|&id| id as u16));
            Ok(())
        };
        encode(files, tokenizer, watch, take).map_err(other)?;
        return Ok(Tokens::small(small));
    }
    let mut large = Vec::new();
    let take = |ids: &[u32]| {
        large.extend_from_slice(ids);
        Ok(())
    };
    encode(files, tokenizer, watch, take).map_err(other)?;
    Ok(large.into())
}

/// Returns whether every id fits into two bytes.
fn narrow(tokenizer: &Tokenizer) -> bool {
    tokenizer.vocab_size() <= 1 << 16
}

/// Why an encoding ended early.
enum Failed {
    Cache(std::io::Error),
    Other(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

fn through_cache(
    files: &[TextFile],
    tokenizer: &Tokenizer,
    cache: &TokenCache,
    key: &str,
    watch: &mut DataWatch<'_>,
) -> Result<(), Failed> {
    let first: String = files[0].path().display().to_string().chars().take(500).collect();
    let more = if files.len() > 1 { format!(" and {} more", files.len() - 1) } else { String::new() };
    let width = if narrow(tokenizer) { 2 } else { 4 };
    let mut writer: TokenWriter = cache.create(key, first + &more, width).map_err(Failed::Cache)?;
    encode(files, tokenizer, watch, |ids| writer.push(ids))?;
    writer.finish().map_err(Failed::Cache)
}

/// Passes the ids of all files to `take`, in order.
fn encode(
    files: &[TextFile],
    tokenizer: &Tokenizer,
    watch: &mut DataWatch<'_>,
    mut take: impl FnMut(&[u32]) -> std::io::Result<()>,
) -> Result<(), Failed> {
    let total = files.iter().map(|file| file.bytes).sum();
    let mut watcher = DataWatcher::new(watch, Stage::Tokenizing, total);
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let mut pieces = Pieces::new(files, tokenizer.cuts());
    let mut round = Vec::new();
    loop {
        let mut bytes = 0;
        round.clear();
        while bytes < BYTES_PER_REPORT * workers
            && let Some(piece) = pieces.next()
        {
            let piece = piece?;
            // An empty piece also has a cost.
            bytes += 64 + if let TextPiece::Text { text, .. } = &piece { text.len() } else { 0 };
            round.push(piece);
        }
        if round.is_empty() {
            return Ok(());
        }
        for (piece, ids) in round.iter().zip(encode_round(&round, tokenizer, workers)?) {
            let ids = ids.map_err(|e| named(e, piece, files, tokenizer))?;
            watcher.state.tokens += ids.len() as u64;
            take(&ids).map_err(Failed::Cache)?;
        }
        watcher.state.done = pieces.done();
        watcher.tell()?;
    }
}

/// Returns the ids of each piece.
fn encode_round(round: &[TextPiece], tokenizer: &Tokenizer, workers: usize) -> Result<Vec<Result<Vec<u32>>>> {
    let one = |piece: &TextPiece| match (piece, tokenizer.eos()) {
        (TextPiece::Text { text, .. }, _) => tokenizer.encode_piece(text),
        (TextPiece::Between { .. }, Some(eos)) => Ok(vec![eos]),
        (TextPiece::Between { ends_line: true }, None) => Ok(Vec::new()),
        (TextPiece::Between { ends_line: false }, None) => tokenizer.encode_piece("\n"),
    };
    let slots: Vec<OnceLock<Result<Vec<u32>>>> = round.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((piece, slot)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            round.get(at).zip(slots.get(at))
        } {
            // Each slot is used once.
            let _ = slot.set(one(piece));
        }
    };
    let whole = thread::scope(|scope| {
        let helpers: Vec<_> = (1..workers.min(round.len())).map(|_| scope.spawn(work)).collect();
        work();
        helpers.into_iter().all(|helper| helper.join().is_ok())
    });
    if !whole {
        return Err(Error::internal("the tokenizer panicked"));
    }
    let missing = || Err(Error::internal("a piece of text was not encoded"));
    Ok(slots.into_iter().map(|slot| slot.into_inner().unwrap_or_else(missing)).collect())
}

/// Converts the error of a piece into one of its file, with positions counted from the beginning of the file.
fn named(error: Error, piece: &TextPiece, files: &[TextFile], tokenizer: &Tokenizer) -> Error {
    // An unknown character cannot be the line break between files: the tokenizer knows it, or the error is in a file.
    let TextPiece::Text { file, .. } = piece else { return error };
    let of = &files[*file];
    let blocks =
        Pieces::new(std::slice::from_ref(of), Cuts::Anywhere).map_while(|piece| match piece.ok()? {
            TextPiece::Text { text, .. } => Some(text),
            TextPiece::Between { .. } => None,
        });
    tokenizer.first_unknown(blocks).unwrap_or(error).context(of.path().display())
}

#[cfg(test)]
#[path = "corpus_tests.rs"]
mod tests;
