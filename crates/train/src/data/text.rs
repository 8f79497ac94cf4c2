//! A text file: scanned once for encoding and validity, then read in blocks with constant memory.

use super::encoding::{Decoder, Malformed, TextEncoding, UTF8};
use super::files::FoundFile;
use super::format;
use super::progress::DataWatcher;
use netcl_device::{Error, Result};
use std::{
    fs::File,
    io::{ErrorKind as IoKind, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

/// Bytes read at once.
const BLOCK: usize = 256 << 10;

/// Maximum bytes of text in which the first record must end.
const MAX_FIRST_RECORD_BYTES: usize = 8 << 20;

/// A text file: path, encoding and checksum.
#[derive(Clone, Debug)]
pub struct TextFile {
    path: PathBuf,
    pub(super) encoding: TextEncoding,
    /// Length of the byte order mark.
    mark: usize,
    pub(super) bytes: u64,
    pub(super) sum: blake3::Hash,
}

/// Why a file is not read as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotText {
    /// Binary: it contains a zero byte, and is not valid in any encoding that allows one.
    Empty,
    /// Binary: it contains a zero byte, and is not valid in any encoding that allows one.
    Binary(String),
    /// Probably text in an unknown encoding.
    Foreign(String),
    /// Data in a known format that is not text.
    Data(&'static str),
}

impl NotText {
    /// Returns a description for messages.
    pub fn what(&self) -> String {
        match self {
            Self::Empty => "the file is empty".into(),
            Self::Binary(what) | Self::Foreign(what) => what.clone(),
            Self::Data(what) => format!("is {what}, which netcl does not read. {}", super::format::ADVICE),
        }
    }
}

impl TextFile {
    /// Scans the file; returns an inner `Err` if it is not text in UTF-8, in the encoding of its byte order mark, or in `named`.
    pub(super) fn open(
        found: &FoundFile,
        named: Option<TextEncoding>,
        watch: &mut DataWatcher<'_>,
    ) -> Result<Result<Self, NotText>> {
        let path = &*found.path;
        let head = head(path)?;
        if head.is_empty() {
            return Ok(Err(NotText::Empty));
        }
        if head.starts_with(&[0xff, 0xfe, 0, 0]) || head.starts_with(&[0, 0, 0xfe, 0xff]) {
            let what = "UTF-32 by its byte order mark, which netcl does not read; convert it to UTF-8";
            return Ok(Err(NotText::Foreign(what.into())));
        }
        if let Some(what) = format::binary(&head, path) {
            return Ok(Err(NotText::Data(what)));
        }
        let marked = TextEncoding::of_mark(&head);
        let (first, mark) = marked.unwrap_or((UTF8, 0));
        let seen = look(path, first, mark, watch)?;
        let file =
            |encoding, mark| Self { path: path.to_owned(), encoding, mark, bytes: seen.bytes, sum: seen.sum };
        let Some(wrong) = seen.wrong else {
            let other = named.filter(|named| marked.is_none() && !named.yields_to_utf8());
            return Ok(Ok(file(other.unwrap_or(first), mark)));
        };
        if let (Some(named), None) = (named.filter(|named| *named != UTF8), marked) {
            let again = look(path, named, 0, watch)?;
            return Ok(match again.wrong {
                None => Ok(file(named, 0)),
                Some(wrong) => Err(wrong.in_words(path, named, &head)?),
            });
        }
        Ok(Err(wrong.in_words(path, first, &head)?))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its encoding.
    pub fn encoding(&self) -> TextEncoding {
        self.encoding
    }

    /// Returns the format of its records, judged by the beginning of the text; `None` for plain text.
    ///
    /// # Errors
    /// `Io`; `Format` if the file changed.
    pub(super) fn records(&self) -> Result<Option<format::Records>> {
        let (mut reader, mut text) = (self.read()?, String::new());
        loop {
            reader.next(&mut text)?;
            // A record may be as long as a book.
            let begun = text.trim_start().starts_with(['{', '['])
                && !reader.ended
                && text.len() < MAX_FIRST_RECORD_BYTES;
            let found = format::records(&text, &self.path);
            if found.is_some() || !begun {
                return Ok(found);
            }
        }
    }

    /// Returns a reader of the text from the beginning, without the byte order mark.
    pub(super) fn read(&self) -> Result<TextReader<'_>> {
        let file = File::open(&self.path).map_err(|e| Error::io("opening", &self.path, &e))?;
        Ok(TextReader {
            of: self,
            file,
            decoder: Decoder::new(self.encoding),
            hasher: blake3::Hasher::new(),
            block: vec![0; BLOCK],
            mark: self.mark,
            read: 0,
            ended: false,
        })
    }

    fn changed(&self) -> Error {
        Error::format(format!("{}: changed while it was read; run again", self.path.display()))
    }
}

/// Reader of a text file in blocks.
pub(super) struct TextReader<'a> {
    of: &'a TextFile,
    file: File,
    decoder: Decoder,
    hasher: blake3::Hasher,
    block: Vec<u8>,
    mark: usize,
    /// Bytes read so far.
    pub read: u64,
    /// Whether the last block was returned.
    pub ended: bool,
}

impl TextReader<'_> {
    /// Appends the next block to `text`. `Format` if the file changed since it was opened.
    pub fn next(&mut self, text: &mut String) -> Result<()> {
        let count =
            fill(&mut self.file, &mut self.block).map_err(|e| Error::io("reading", &self.of.path, &e))?;
        let bytes = &self.block[..count];
        self.hasher.update(bytes);
        self.read += count as u64;
        self.ended = count < self.block.len();
        let skip = std::mem::take(&mut self.mark).min(bytes.len());
        let decoded = self.decoder.decode(&bytes[skip..], self.ended, text);
        let same = !self.ended || (self.read == self.of.bytes && self.hasher.finalize() == self.of.sum);
        if decoded.is_err() || !same { Err(self.of.changed()) } else { Ok(()) }
    }
}

/// Result of scanning a file.
struct ScanResult {
    bytes: u64,
    sum: blake3::Hash,
    wrong: Option<Wrong>,
}

enum Wrong {
    /// The block that begins at this byte contains a character U+0000.
    Nul(u64),
    Malformed(Malformed),
}

fn look(path: &Path, encoding: TextEncoding, mark: usize, watch: &mut DataWatcher<'_>) -> Result<ScanResult> {
    let io = |e: std::io::Error| Error::io("reading", path, &e);
    let mut file = File::open(path).map_err(|e| Error::io("opening", path, &e))?;
    let (mut decoder, mut hasher) = (Decoder::new(encoding), blake3::Hasher::new());
    let (mut block, mut text) = (vec![0; BLOCK], String::new());
    let (mut wrong, mut bytes, mut skip) = (None, 0, mark);
    loop {
        let count = fill(&mut file, &mut block).map_err(io)?;
        hasher.update(&block[..count]);
        let last = count < block.len();
        if wrong.is_none() {
            text.clear();
            let decoded = decoder.decode(&block[skip.min(count)..count], last, &mut text);
            wrong = if text.as_bytes().contains(&0) {
                Some(Wrong::Nul(bytes))
            } else {
                decoded.err().map(|m| Wrong::Malformed(Malformed { at: m.at + mark as u64, ..m }))
            };
        }
        skip = 0;
        bytes += count as u64;
        watch.read(count as u64)?;
        if last {
            return Ok(ScanResult { bytes, sum: hasher.finalize(), wrong });
        }
    }
}

impl Wrong {
    fn in_words(self, path: &Path, tried: TextEncoding, head: &[u8]) -> Result<NotText> {
        let io = |e: std::io::Error| Error::io("reading", path, &e);
        match self {
            Self::Nul(block) if looks_like_utf16(head) => Ok(NotText::Foreign(format!(
                "not {}: byte 0x00 in the block at offset {block}; it looks like UTF-16 without a byte order mark; use --encoding utf-16le or \
                 utf-16be",
                tried.name()
            ))),
            Self::Nul(block) => {
                let mut file = File::open(path).map_err(io)?;
                let mut bytes = vec![0; BLOCK];
                file.seek(SeekFrom::Start(block)).map_err(io)?;
                let count = fill(&mut file, &mut bytes).map_err(io)?;
                let at = block + bytes[..count].iter().position(|b| *b == 0).unwrap_or(0) as u64;
                Ok(NotText::Binary(format!(
                    "not text: byte 0x00 at offset {at}; --data takes text, or token shards named *.bin"
                )))
            }
            Self::Malformed(Malformed { at, byte }) => {
                let mut one = [byte.unwrap_or(0)];
                if byte.is_none() {
                    let mut file = File::open(path).map_err(io)?;
                    file.seek(SeekFrom::Start(at)).map_err(io)?;
                    fill(&mut file, &mut one).map_err(io)?;
                }
                let what = format!("byte 0x{:02x} at offset {at} is not {}", one[0], tried.name());
                Ok(if tried == UTF8 && has_nul(path)? {
                    NotText::Binary(format!(
                        "not text: {what}; --data takes text, or token shards named *.bin"
                    ))
                } else {
                    NotText::Foreign(format!(
                        "{what}; use --encoding to name another (latin1, cp1251, utf-16le, shift_jis, …)"
                    ))
                })
            }
        }
    }
}

/// Returns whether a file contains a zero byte; text has none in any encoding except UTF-16.
fn has_nul(path: &Path) -> Result<bool> {
    let io = |e: std::io::Error| Error::io("reading", path, &e);
    let mut file = File::open(path).map_err(io)?;
    let mut block = vec![0; BLOCK];
    loop {
        let count = fill(&mut file, &mut block).map_err(io)?;
        if block[..count].contains(&0) {
            return Ok(true);
        }
        if count < block.len() {
            return Ok(false);
        }
    }
}

/// Guesses whether text is UTF-16: most text has many characters below 256, so every other byte is often 0, and the other bytes rarely are.
fn looks_like_utf16(head: &[u8]) -> bool {
    let zeros = |from: usize| head[from.min(head.len())..].iter().step_by(2).filter(|b| **b == 0).count();
    let (even, odd) = (zeros(0), zeros(1));
    head.len() >= 8 && even.max(odd) * 2 > head.len() / 4 * 2 && even.min(odd) * 8 < even.max(odd)
}

fn head(path: &Path) -> Result<Vec<u8>> {
    let mut file = File::open(path).map_err(|e| Error::io("opening", path, &e))?;
    let mut head = vec![0; 512];
    let count = fill(&mut file, &mut head).map_err(|e| Error::io("reading", path, &e))?;
    head.truncate(count);
    Ok(head)
}

/// Reads until the block is full or the file ends.
fn fill(file: &mut File, block: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < block.len() {
        match file.read(&mut block[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(e) if e.kind() == IoKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}
