//! Resolves `--data` to text files or token shards, both with their validation part if names indicate it.

use super::encoding::TextEncoding;
use super::files::{All, FoundFile};
use super::left_out::{LeftOut, count, some};
use super::progress::{DataWatch, DataWatcher, Stage};
use super::role::{self, Role};
use super::text::{NotText, TextFile};
use super::{Tokens, files, foreign, shard};
use netcl_device::{Error, Result};
use std::path::{Path, PathBuf};

/// Training data before it is encoded.
#[derive(Debug)]
pub enum DataSource {
    /// Text files, ordered by path.
    Text {
        /// Files of the training part, then files of the validation part.
        files: Vec<TextFile>,
        /// Number of files of the validation part.
        val: usize,
    },
    /// Files of records, ordered by path.
    Records {
        /// Files of the training part, then files of the validation part.
        files: Vec<TextFile>,
        /// Number of files of the validation part.
        val: usize,
        /// Their formats, in words.
        formats: String,
    },
    /// Token shards in the format of nanoGPT, llm.c, Megatron or NumPy.
    Shards {
        /// Training shards.
        train: Tokens,
        /// Validation shards, by name: `val.bin`, `fineweb_val_000000.bin`.
        val: Option<Tokens>,
    },
}

/// Options for reading files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Encoding of text that is not UTF-8 and does not begin with a byte order mark.
    pub encoding: Option<TextEncoding>,
    /// Read text that consists of records (JSON Lines, tables) as plain text.
    pub as_text: bool,
    /// Accept records whose fields netcl reads, instead of refusing them.
    pub records: bool,
}

impl DataSource {
    /// Opens files, folders and patterns. Files named `*.bin` and `*.npy` are token shards, all others text. A folder is read as shards if a name in
    /// it contains `train` or `val`, or if it contains only shards. Otherwise its text files are read, and binary files, hidden files and build
    /// products are skipped. Files and folders named `train` and `val` (or their names in other programs) are the training and the validation part.
    ///
    /// # Errors
    /// `Io` for unreadable files; `Format` for an explicitly named file that is empty or not text, and for records that are not plain text. `Format`
    /// also if data of other formats makes up more than the text, or if no file is left.
    pub fn open(specs: &[impl AsRef<Path>]) -> Result<Self> {
        Self::open_with(specs, Reading::default(), &mut |_| true)
    }

    /// Does the same, with options and a progress callback. Skipped files are listed in a message.
    pub fn open_with(specs: &[impl AsRef<Path>], how: Reading, watch: &mut DataWatch<'_>) -> Result<Self> {
        if specs.is_empty() {
            return Err(Error::format("no data given; name a file, a folder or a pattern with --data"));
        }
        let All { files, special, again, .. } = files::find(specs)?;
        if !again.is_empty() {
            let all = again.iter().map(|(path, kept)| format!("{} is {}", path.display(), kept.display()));
            tracing::info!(
                "{} read only once, although found under several paths: {}",
                count(again.len()),
                some(all)
            );
        }
        foreign::no_collection(&files, how.as_text)?;
        let (shards, mut others): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|found| shard::is_named_so(&found.path));
        // The index of a Megatron dataset belongs to its shard.
        let indices: Vec<PathBuf> = shards.iter().filter_map(|found| shard::index_of(&found.path)).collect();
        others.retain(|found| !indices.contains(&found.path));
        let role = |found: &FoundFile| Role::of_shard(&found.path);
        let named_role = shards.iter().any(|shard| shard.named || role(shard).is_some());
        if !shards.is_empty() && (named_role || others.is_empty()) {
            if let Some(text) = others.iter().find(|file| file.named) {
                return Err(Error::format(format!(
                    "--data mixes token shards ({}) and text ({}); give only one kind",
                    shards[0].path.display(),
                    text.path.display()
                )));
            }
            return Self::from_shards(&shards, &others);
        }
        let first = specs[0].as_ref();
        let parts = role::divide(others);
        let wanted = parts.train.len() + parts.val.len();
        let mut left_out = LeftOut { beside: parts.left_out, ..LeftOut::default() };
        let train = look_through(&parts.train, how, watch, &mut left_out)?;
        let val = look_through(&parts.val, how, watch, &mut left_out)?;
        for shard in shards.iter().filter(|_| !train.texts.is_empty()) {
            left_out.add_data(&shard.path, "a token shard");
        }
        if !train.records.is_empty() || !val.records.is_empty() {
            return of_records(train, val, (first, &special), left_out);
        }
        let (train, val) = (train.texts, val.texts);
        left_out.check(&train, &val, first, how.as_text)?;
        left_out.tell(&special, &train, &val);
        let (train, val) = if train.is_empty() { (val, Vec::new()) } else { (train, val) };
        match (train.is_empty(), shards.is_empty()) {
            (false, _) => {
                let count = val.len();
                Ok(Self::Text { files: train.into_iter().chain(val).collect(), val: count })
            }
            (true, false) => Self::from_shards(&shards, &[]),
            (true, true) => Err(left_out.nothing(first, wanted)),
        }
    }

    /// Returns the text files, those of the training part first; empty for shards.
    pub fn files(&self) -> &[TextFile] {
        match self {
            Self::Text { files, .. } | Self::Records { files, .. } => files,
            Self::Shards { .. } => &[],
        }
    }

    /// Returns the text files of the training part, and those of the validation part.
    pub fn parts(&self) -> (&[TextFile], &[TextFile]) {
        match self {
            Self::Text { files, val } | Self::Records { files, val, .. } => {
                files.split_at(files.len().saturating_sub(*val))
            }
            Self::Shards { .. } => (&[], &[]),
        }
    }

    /// Returns this source with the files of `other` as its validation part, which replaces an existing one.
    ///
    /// # Errors
    /// `Format` if one has text and the other records or shards.
    pub fn validated_by(self, other: Self) -> Result<Self> {
        let own = |files: Vec<TextFile>, val: usize| {
            let kept = files.len().saturating_sub(val);
            files.into_iter().take(kept)
        };
        Ok(match (self, other) {
            (Self::Text { files, val }, Self::Text { files: others, .. }) => {
                let count = others.len();
                Self::Text { files: own(files, val).chain(others).collect(), val: count }
            }
            (Self::Records { files, val, formats }, Self::Records { files: others, .. }) => {
                let count = others.len();
                Self::Records { files: own(files, val).chain(others).collect(), val: count, formats }
            }
            (Self::Shards { train, .. }, Self::Shards { train: mut others, val }) => {
                others.append(val.unwrap_or_default());
                Self::Shards { train, val: Some(others) }
            }
            _ => {
                return Err(Error::format(
                    "--data and --eval-data differ: expected records, text or token shards in both",
                ));
            }
        })
    }

    /// Returns the bytes of the text files.
    pub fn bytes(&self) -> u64 {
        self.files().iter().map(|file| file.bytes).sum()
    }

    /// Sorts shards by path and divides them by name. If some names contain `train`, shards that belong to neither part are left out.
    /// Without validation shards, test shards are the validation part.
    fn from_shards(shards: &[FoundFile], others: &[FoundFile]) -> Result<Self> {
        let role = |found: &FoundFile| Role::of_shard(&found.path);
        let some_train = shards.iter().any(|shard| role(shard) == Some(Role::Train));
        let some_val = shards.iter().any(|shard| role(shard) == Some(Role::Val));
        let (mut train, mut val) = (Tokens::default(), Tokens::default());
        let mut left_out: Vec<&Path> = others.iter().map(|found| &*found.path).collect();
        for found in shards {
            match role(found) {
                Some(Role::Val) => val.append(shard::open(&found.path)?),
                Some(Role::Test) if some_train && !some_val => val.append(shard::open(&found.path)?),
                Some(Role::Test) if some_train || some_val => left_out.push(&found.path),
                None if some_train && !found.named => left_out.push(&found.path),
                _ => train.append(shard::open(&found.path)?),
            }
        }
        if !left_out.is_empty() {
            let all = left_out.iter().map(|path| path.display().to_string());
            tracing::info!("{} next to the token shards skipped: {}", count(left_out.len()), some(all));
        }
        // The user named only validation shards, so training uses them.
        if train.is_empty() {
            return Ok(Self::Shards { train: val, val: None });
        }
        Ok(Self::Shards { train, val: Some(val).filter(|val| !val.is_empty()) })
    }
}

/// Text files of a part.
#[derive(Default)]
struct Found {
    texts: Vec<TextFile>,
    /// Files of records that are read, with their formats.
    records: Vec<(TextFile, String)>,
    /// A text file that the user named.
    named: Option<PathBuf>,
}

/// Returns the files of records. Text next to them is skipped, such as a README.
fn of_records(
    train: Found,
    val: Found,
    (spec, special): (&Path, &[(PathBuf, &'static str)]),
    left_out: LeftOut,
) -> Result<DataSource> {
    let texts: Vec<&TextFile> = train.texts.iter().chain(&val.texts).collect();
    let bytes: u64 = texts.iter().map(|text| text.bytes).sum();
    let records = train.records.iter().chain(&val.records);
    let of_records: u64 = records.clone().map(|(file, _)| file.bytes).sum();
    let mut formats: Vec<String> = records.map(|(_, what)| what.clone()).collect();
    formats.sort();
    formats.dedup();
    let (first, _) =
        train.records.iter().chain(&val.records).next().ok_or_else(|| Error::internal("no records"))?;
    let named = train.named.as_deref().or(val.named.as_deref());
    if let Some(text) = named.or_else(|| texts.first().map(|text| text.path()).filter(|_| bytes > of_records))
    {
        return Err(Error::format(format!(
            "{}: records ({}) and plain text ({}) together; name only one kind with --data, or use --as-text to read all of it as text",
            spec.display(),
            first.path().display(),
            text.display()
        )));
    }
    if !texts.is_empty() {
        let all = texts.iter().map(|text| text.path().display().to_string());
        tracing::info!("{} of plain text next to the records skipped: {}", count(texts.len()), some(all));
    }
    let files =
        |records: Vec<(TextFile, String)>| records.into_iter().map(|(file, _)| file).collect::<Vec<_>>();
    let (train, val) = (files(train.records), files(val.records));
    left_out.check(&train, &val, spec, false)?;
    left_out.tell(special, &train, &val);
    let (train, val) = if train.is_empty() { (val, Vec::new()) } else { (train, val) };
    let count = val.len();
    let files = train.into_iter().chain(val).collect();
    Ok(DataSource::Records { files, val: count, formats: formats.join("; ") })
}

/// Selects the text files.
fn look_through(
    found: &[FoundFile],
    how: Reading,
    watch: &mut DataWatch<'_>,
    left_out: &mut LeftOut,
) -> Result<Found> {
    let size = |found: &FoundFile| std::fs::metadata(&found.path).map_or(0, |meta| meta.len());
    let mut watcher = DataWatcher::new(watch, Stage::Reading, found.iter().map(size).sum());
    let mut all = Found::default();
    for file in found {
        let path = file.path.clone();
        match TextFile::open(file, how.encoding, &mut watcher)? {
            Ok(text) => {
                if let Some(records) = text.records()?.filter(|_| !how.as_text) {
                    if how.records && records.readable {
                        all.records.push((text, records.what));
                        continue;
                    }
                    left_out.add_records(&path, records, file.named, text.bytes)?;
                }
                all.named = all.named.or_else(|| file.named.then(|| path.clone()));
                all.texts.push(text);
            }
            Err(wrong) if file.named => {
                return Err(Error::format(format!("{}: {}", path.display(), wrong.what())));
            }
            Err(wrong) => {
                tracing::debug!(path = %path.display(), what = wrong.what(), "left out");
                match wrong {
                    NotText::Foreign(what) => left_out.foreign.push((path, what)),
                    NotText::Data(what) => left_out.add_data(&path, what),
                    NotText::Binary(_) => left_out.binary.push(path),
                    NotText::Empty => left_out.empty.push(path),
                }
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
