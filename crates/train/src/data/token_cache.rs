//! Cache of encoded text on disk, under `<cache>/tokens`.
//!
//! The file name is the hash of everything that determines the ids: the bytes of the text files in order, their encodings, the tokenizer. Files are
//! written under a temporary name, synced and renamed. A header of fixed size contains the number and the checksum of the ids, so that truncated and
//! damaged files are detected before use.

use super::{Tokens, id_file::IdFile, id_file::read_at, progress::DataWatcher};
use netcl_device::{Error, Result, Settings};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// Version of the file format and of the encoding.
const FORMAT: u32 = 1;
/// Size of the header in bytes; the ids follow it.
const HEADER_BYTES: u64 = 4096;
/// Extension of complete files.
const SUFFIX: &str = ".ids";
/// Block size for writing and verifying.
const BLOCK: usize = 1 << 20;

/// The token cache of one user.
#[derive(Clone, Debug)]
pub struct TokenCache {
    folder: PathBuf,
}

/// Header of a cached sequence, also shown by `netcl cache ls`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenEntry {
    /// Name of the first text file and number of further ones.
    pub source: String,
    /// Number of ids.
    pub tokens: u64,
    /// Bytes per id.
    pub width: usize,
    /// Size of the file in bytes.
    pub bytes: u64,
    format: u32,
    key: String,
    /// BLAKE3 of the ids.
    sum: String,
}

impl TokenCache {
    /// Returns the cache in the folder of the settings; `None` if caching is disabled.
    pub fn of(settings: &Settings) -> Option<Self> {
        if settings.no_binary_cache {
            return None;
        }
        settings.cache_dir.as_ref().map(|dir| Self { folder: dir.join("tokens") })
    }

    /// Returns the folder of the files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns all complete files, ordered by source.
    pub fn list(&self) -> Vec<TokenEntry> {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut all: Vec<_> = files.filter_map(|file| header(&File::open(file.path()).ok()?).ok()).collect();
        all.sort_by(|a, b| a.source.cmp(&b.source).then(a.key.cmp(&b.key)));
        all
    }

    /// Removes all files and returns their number.
    pub fn clear(&self) -> io::Result<usize> {
        let mut removed = 0;
        for file in fs::read_dir(&self.folder).into_iter().flatten() {
            fs::remove_file(file?.path())?;
            removed += 1;
        }
        Ok(removed)
    }

    /// Removes unfinished files of this process, for use before an immediate exit.
    pub fn abandon(&self) {
        let mine = format!(".tmp-{}-", std::process::id());
        for file in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().contains(&mine) {
                let _ = fs::remove_file(file.path());
            }
        }
    }

    /// Returns the ids stored under `key`, if any. Removes a truncated or damaged file, with a warning.
    pub(super) fn open(&self, key: &str, watch: &mut DataWatcher<'_>) -> Result<Option<Tokens>> {
        let path = self.path(key);
        let Ok(file) = File::open(&path) else { return Ok(None) };
        match verified(&file, key, watch)? {
            Ok(entry) => {
                let ids = IdFile::new(file, &path, HEADER_BYTES, entry.width);
                Ok(Some(Tokens::of_file(ids, entry.tokens as usize)))
            }
            Err(wrong) => {
                tracing::warn!("token cache: {} {wrong}; tokenizing the text again", path.display());
                // If it cannot be removed, it will be replaced.
                let _ = fs::remove_file(&path);
                Ok(None)
            }
        }
    }

    /// Starts a temporary file for the ids of `key`, `width` bytes each.
    pub(super) fn create(&self, key: &str, source: String, width: usize) -> io::Result<TokenWriter> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(&self.folder)?;
        self.tidy();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let aside = self.folder.join(format!("{key}.tmp-{}-{number}", std::process::id()));
        let mut file = File::create(&aside)?;
        file.seek(SeekFrom::Start(HEADER_BYTES))?;
        let entry = TokenEntry {
            source,
            tokens: 0,
            width,
            bytes: 0,
            format: FORMAT,
            key: key.into(),
            sum: String::new(),
        };
        Ok(TokenWriter {
            file,
            aside: Some(aside),
            path: self.path(key),
            hasher: blake3::Hasher::new(),
            buffer: Vec::with_capacity(BLOCK + 64),
            entry,
        })
    }

    /// Removes temporary files of killed processes: those not written to for an hour.
    fn tidy(&self) {
        for file in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let written = file.metadata().and_then(|meta| meta.modified());
            let old = written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age.as_secs() > 3600));
            if old && file.file_name().to_string_lossy().contains(".tmp-") {
                let _ = fs::remove_file(file.path());
            }
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}{SUFFIX}"))
    }
}

/// Reads the header of a file and compares it with the file's length.
fn header(file: &File) -> Result<TokenEntry, String> {
    let mut bytes = vec![0; HEADER_BYTES as usize];
    read_at(file, 0, &mut bytes).map_err(|_| "is truncated: it ends within its header")?;
    let text = bytes.split(|b| *b == b'\n').next().unwrap_or_default();
    let entry: TokenEntry = serde_json::from_slice(text).map_err(|_| "is damaged: its header is invalid")?;
    if entry.format != FORMAT || !matches!(entry.width, 2 | 4) {
        return Err(format!("has format {}, expected {FORMAT}", entry.format));
    }
    let (is, was) = (file.metadata().map_or(0, |meta| meta.len()), entry.bytes);
    if is != was || entry.tokens.checked_mul(entry.width as u64) != was.checked_sub(HEADER_BYTES) {
        return Err(format!("is truncated: it has {is} bytes, but {was} were written"));
    }
    Ok(entry)
}

fn verified(file: &File, key: &str, watch: &mut DataWatcher<'_>) -> Result<Result<TokenEntry, String>> {
    let entry = match header(file) {
        Ok(entry) => entry,
        Err(wrong) => return Ok(Err(wrong)),
    };
    if entry.key != key {
        return Ok(Err("belongs to another text: the file was renamed".into()));
    }
    let (mut hasher, mut block) = (blake3::Hasher::new(), vec![0; BLOCK]);
    watch.state.total = entry.bytes;
    watch.state.tokens = entry.tokens;
    let mut at = HEADER_BYTES;
    while at < entry.bytes {
        let count = (entry.bytes - at).min(BLOCK as u64) as usize;
        if let Err(e) = read_at(file, at, &mut block[..count]) {
            return Ok(Err(format!("cannot be read: {e}")));
        }
        hasher.update(&block[..count]);
        at += count as u64;
        watch.read(count as u64)?;
    }
    let whole = hasher.finalize().to_hex().as_str() == entry.sum;
    Ok(if whole { Ok(entry) } else { Err("is damaged: its checksum is wrong".into()) })
}

/// Writer of a cache file. If dropped before it is finished, the file is removed.
pub(super) struct TokenWriter {
    file: File,
    aside: Option<PathBuf>,
    path: PathBuf,
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
    entry: TokenEntry,
}

impl TokenWriter {
    /// Appends ids, which must fit into `width` bytes.
    pub fn push(&mut self, ids: &[u32]) -> io::Result<()> {
        self.entry.tokens += ids.len() as u64;
        for id in ids {
            let bytes = id.to_le_bytes();
            self.buffer.extend_from_slice(&bytes[..self.entry.width]);
            if self.buffer.len() >= BLOCK {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hasher.update(&self.buffer);
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Completes the file and renames it.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.entry.bytes = HEADER_BYTES + self.entry.tokens * self.entry.width as u64;
        self.entry.sum = self.hasher.finalize().to_hex().to_string();
        let mut header = serde_json::to_vec(&self.entry)?;
        header.push(b'\n');
        if header.len() as u64 > HEADER_BYTES {
            return Err(io::Error::other("the header is too large"));
        }
        // Without ids the file would be shorter than the header.
        self.file.set_len(self.entry.bytes)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&header)?;
        self.file.sync_all()?;
        if let Some(aside) = &self.aside {
            fs::rename(aside, &self.path)?;
        }
        self.aside = None;
        Ok(())
    }
}

impl Drop for TokenWriter {
    fn drop(&mut self) {
        if let Some(aside) = &self.aside {
            let _ = fs::remove_file(aside);
        }
    }
}

/// Returns the cache key of these parts.
pub(super) fn key(parts: &[&[u8]]) -> String {
    let mut hash = blake3::Hasher::new();
    hash.update(&FORMAT.to_le_bytes());
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().to_hex()[..32].to_string()
}

/// Converts a write error.
pub(super) fn failed(cache: &TokenCache, error: &io::Error) -> Error {
    Error::io("writing the token cache in", cache.folder(), error)
}
