//! Reads the records of files, encodes them on all cores, and keeps their tokens in the cache or in memory.

use super::encoder::{RecordEncoder, RecordTokenizer, Refused};
use super::example::Example;
use super::packing::Packing;
use super::reader::{FoundRecord, RecordReader};
use super::set::{BROKEN, Fitted, RecordSet, RecordSplits};
use crate::data::progress::{DataWatch, DataWatcher, Stage};
use crate::data::token_cache::{self, TokenCache};
use crate::data::{TextFile, Tokens};
use netcl_device::{Error, Result, counted};
use std::sync::Arc;
use std::thread;

/// Records encoded by a thread at a time.
const RECORDS_PER_THREAD: usize = 64;
/// Smaller files are not cached.
const CACHED_FROM: u64 = 1 << 20;
/// Rows have a multiple of this many tokens, if no record is as long as the context.
const CONTEXT_MULTIPLE: usize = 64;
/// Broken records whose error is logged.
const MAX_NAMED_RECORDS: usize = 8;
/// Version of the encoding, for the cache.
const VERSION: &[u8] = b"records 2";

/// Options for records.
#[derive(Clone, Copy, Debug)]
pub struct RecordOptions {
    /// Maximum tokens of a record.
    pub context: usize,
    /// Whether several records share a row.
    pub pack: bool,
    /// Whether longer records are left out instead of truncated.
    pub drop_long: bool,
    /// Whether broken records are counted instead of being an error.
    pub skip_bad: bool,
    /// Fraction of the records for validation, without files for it.
    pub val_split: f64,
}

/// Numbers of the records, for one line before training.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordReport {
    /// The formats, in words.
    pub formats: String,
    /// Records that are used, for training and for validation.
    pub records: [usize; 2],
    /// Tokens of all used records.
    pub tokens: usize,
    /// Trained ones.
    pub trained: usize,
    /// Tokens of the longest record, before it was truncated.
    pub longest: usize,
    /// Tokens of a row.
    pub context: usize,
    /// Training rows, if a row has several records.
    pub packed_rows: Option<usize>,
    /// Tokens of all training records.
    pub train_tokens: usize,
    /// Records that were truncated.
    pub truncated: usize,
    /// Records that were left out because they are longer than the context.
    pub dropped: usize,
    /// Records that were left out because no token of theirs is trained.
    pub untrained: usize,
    /// Records that could not be read.
    pub broken: usize,
}

impl RecordReport {
    /// Returns the report as one line.
    pub fn line(&self) -> String {
        let [train, val] = self.records.map(|n| counted(n as u64, "record"));
        let share = 100.0 * self.trained as f64 / self.tokens.max(1) as f64;
        let mut line = format!(
            "{}: {train} to train and {val} to validate, {} tokens, {share:.1} % of them trained; the longest record has {}, rows have {}",
            self.formats, self.tokens, self.longest, self.context
        );
        if let Some(rows) = self.packed_rows {
            let full = 100.0 * self.train_tokens as f64 / (rows * self.context).max(1) as f64;
            line += &format!(
                "; the records to train are packed into {}, {full:.1} % full",
                counted(rows as u64, "row")
            );
        }
        for (count, what) in [
            (self.truncated, "truncated to --context"),
            (self.dropped, "dropped as longer than --context"),
            (self.untrained, "left out without a trained token"),
            (self.broken, "skipped as broken"),
        ] {
            if count > 0 {
                line += &format!("; {count} {what}");
            }
        }
        line
    }
}

/// Opens the records of training and validation files.
///
/// # Errors
/// `Format` with file and line of the first broken record, unless those are skipped; if no record is left; `Io`.
pub(crate) fn open(
    [train, val]: [&[TextFile]; 2],
    formats: &str,
    tokenizer: &RecordTokenizer,
    options: RecordOptions,
    cache: Option<&TokenCache>,
    watch: &mut DataWatch<'_>,
) -> Result<(RecordSplits, RecordReport)> {
    let mut read = |files: &[TextFile]| match files.is_empty() {
        true => Ok(None),
        false => tokens(files, tokenizer, options.skip_bad, cache, watch)
            .and_then(|tokens| RecordSet::of(tokens, tokenizer.kind()))
            .map(Some),
    };
    let (train, val) = (read(train)?, read(val)?);
    let (train, broken) = train.ok_or_else(|| Error::internal("records without files"))?;
    let (train, val, broken) = match val {
        Some((val, more)) => (train, Some(val), broken + more),
        None => {
            let (train, val) = train.divided((train.len() as f64 * options.val_split) as usize);
            (train, Some(val).filter(|val| !val.is_empty()), broken)
        }
    };
    let longest = train.longest().max(val.as_ref().map_or(0, RecordSet::longest));
    // Packed rows are as long as the context, unless all records fit into less.
    let most = if options.pack { train.tokens().max(longest) } else { longest };
    let context = options.context.min(most.next_multiple_of(CONTEXT_MULTIPLE).max(1));
    let (train, fitted) = train.fitted(context, options.drop_long)?;
    let (val, more) = match val {
        Some(val) => val.fitted(context, options.drop_long).map(|(val, fitted)| (Some(val), fitted))?,
        None => (None, Fitted::default()),
    };
    let val = val.filter(|val| !val.is_empty());
    let sum = |of: fn(&RecordSet) -> usize| of(&train) + val.as_ref().map_or(0, of);
    let packing = options.pack.then(|| Arc::new(Packing::of(&train.lengths(), context)));
    let report = RecordReport {
        packed_rows: packing.as_ref().map(|packing| packing.len()),
        train_tokens: train.tokens(),
        formats: formats.to_owned(),
        records: [train.len(), val.as_ref().map_or(0, RecordSet::len)],
        tokens: sum(RecordSet::tokens),
        trained: sum(RecordSet::trained),
        longest,
        context,
        truncated: fitted.truncated + more.truncated,
        dropped: fitted.dropped + more.dropped,
        untrained: fitted.untrained + more.untrained,
        broken,
    };
    if train.is_empty() {
        return Err(Error::format(format!(
            "no record is left to train on ({}); expected records with an answer that fits into --context {}",
            report.line(),
            options.context
        )));
    }
    Ok((RecordSplits { train, val, context, packing }, report))
}

/// Returns the tokens of all records of some files, with the bits of [`RecordSet`].
fn tokens(
    files: &[TextFile],
    tokenizer: &RecordTokenizer,
    skip_bad: bool,
    cache: Option<&TokenCache>,
    watch: &mut DataWatch<'_>,
) -> Result<Tokens> {
    let bytes = files.iter().map(|file| file.bytes).sum::<u64>();
    let Some(cache) = cache.filter(|_| bytes >= CACHED_FROM) else {
        return in_memory(files, tokenizer, skip_bad, watch);
    };
    let key = key(files, tokenizer, skip_bad);
    if let Some(found) = cache.open(&key, &mut DataWatcher::new(watch, Stage::Cached, 0))? {
        return Ok(found);
    }
    let first: String = files[0].path().display().to_string().chars().take(500).collect();
    let more = if files.len() > 1 { format!(" and {} more", files.len() - 1) } else { String::new() };
    let mut failed = None;
    match cache.create(&key, first + &more, 4) {
        Err(e) => failed = Some(e),
        Ok(mut writer) => {
            let mut push = |words: &[u32]| {
                if failed.is_none() {
                    failed = writer.push(words).err();
                }
                failed.is_none()
            };
            encode(files, tokenizer, skip_bad, watch, &mut push)?;
            failed = failed.or_else(|| writer.finish().err());
        }
    }
    if let Some(error) = &failed {
        tracing::warn!("{}; keeping the tokens in memory instead", token_cache::failed(cache, error));
    } else if let Some(found) = cache.open(&key, &mut DataWatcher::new(watch, Stage::Cached, 0))? {
        return Ok(found);
    }
    in_memory(files, tokenizer, skip_bad, watch)
}

fn in_memory(
    files: &[TextFile],
    tokenizer: &RecordTokenizer,
    skip_bad: bool,
    watch: &mut DataWatch<'_>,
) -> Result<Tokens> {
    let mut all = Vec::new();
    encode(files, tokenizer, skip_bad, watch, &mut |words| {
        all.extend_from_slice(words);
        true
    })?;
    Ok(all.into())
}

fn key(files: &[TextFile], tokenizer: &RecordTokenizer, skip_bad: bool) -> String {
    let (own, settings) = (tokenizer.file(), tokenizer.key());
    let mut parts: Vec<&[u8]> = vec![VERSION, if skip_bad { b"skip" } else { b"all" }, &settings, own];
    for file in files {
        parts.push(file.encoding().name().as_bytes());
        parts.push(file.sum.as_bytes());
        // The ending decides how a file is divided.
        parts.push(file.path().extension().map_or(b"", |ending| ending.as_encoded_bytes()));
    }
    token_cache::key(&parts)
}

/// Passes the tokens of all records to `take`, which returns whether to continue.
fn encode(
    files: &[TextFile],
    tokenizer: &RecordTokenizer,
    skip_bad: bool,
    watch: &mut DataWatch<'_>,
    take: &mut dyn FnMut(&[u32]) -> bool,
) -> Result<()> {
    let encoder = tokenizer.encoder()?;
    let mut watcher = DataWatcher::new(watch, Stage::Tokenizing, files.iter().map(|file| file.bytes).sum());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut named = 0;
    for file in files {
        let (mut reader, mut read) = (RecordReader::open(file)?, 0);
        loop {
            let mut records = Vec::new();
            while records.len() < threads * RECORDS_PER_THREAD
                && let Some(record) = reader.next()?
            {
                records.push(record);
            }
            if records.is_empty() {
                break;
            }
            for (line, words) in on_threads(&encoder, records, threads) {
                let words = match words {
                    Ok(words) => words,
                    Err(Refused::All(error)) => return Err(error.context(file.path().display())),
                    Err(Refused::Example(why)) => {
                        let error = format!("{}, line {line}: {why}", file.path().display());
                        if !skip_bad {
                            return Err(Error::format(format!(
                                "{error}. Correct it, or skip broken records with --skip-bad"
                            )));
                        }
                        if named < MAX_NAMED_RECORDS {
                            tracing::warn!("skipped: {error}");
                        }
                        named += 1;
                        vec![BROKEN]
                    }
                };
                watcher.state.tokens += words.len() as u64;
                if !take(&words) {
                    return Ok(());
                }
            }
            watcher.read(reader.bytes() - read)?;
            read = reader.bytes();
        }
    }
    Ok(())
}

type Encoded = Result<Vec<u32>, Refused>;

/// Encodes records on several threads; returns their lines and tokens in order.
fn on_threads(
    encoder: &RecordEncoder<'_>,
    records: Vec<FoundRecord>,
    threads: usize,
) -> Vec<(usize, Encoded)> {
    let one = |record: &FoundRecord| {
        let example = record.content.as_ref().map_err(Clone::clone).and_then(Example::of);
        let tokens = match example {
            Ok(example) => encoder.words(&example),
            Err(why) => Err(Refused::Example(why)),
        };
        let tokens = tokens.and_then(|tokens| match tokens.is_empty() {
            true => Err(Refused::Example("the record is empty".into())),
            false => Ok(tokens),
        });
        (record.line, tokens)
    };
    if records.len() < 2 || threads < 2 {
        return records.iter().map(one).collect();
    }
    thread::scope(|scope| {
        let parts = records.chunks(records.len().div_ceil(threads));
        let parts: Vec<_> =
            parts.map(|part| scope.spawn(move || part.iter().map(one).collect::<Vec<_>>())).collect();
        let panicked =
            || vec![(0, Err(Refused::All(Error::internal("a thread that encodes records panicked"))))];
        parts.into_iter().flat_map(|part| part.join().unwrap_or_else(|_| panicked())).collect()
    })
}
