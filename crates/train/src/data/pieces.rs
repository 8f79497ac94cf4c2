//! The text of all files, in order, in pieces that can be encoded independently.

use super::text::{TextFile, TextReader};
use netcl_device::{Error, ErrorKind, Result, available_memory, human};
use netcl_model::tokenizer::Cuts;
use std::path::Path;

/// Memory for encoding per byte of text: the merge state of each character, and the result of the library.
const WHOLE_COST: u64 = 110;
/// Text without a possible cut is checked against the available memory from this size on.
const LARGE_TEXT_BYTES: usize = 8 << 20;

/// An element of the sequence of pieces.
#[derive(Debug)]
pub(super) enum TextPiece {
    /// Text of the file with this index.
    Text { file: usize, text: String },
    /// Boundary between two files, and whether the first one ended with a line break.
    Between { ends_line: bool },
}

/// Iterator over the pieces, which reads files on demand.
pub(super) struct Pieces<'a> {
    files: &'a [TextFile],
    cuts: Cuts,
    at: usize,
    reader: Option<TextReader<'a>>,
    text: String,
    /// Start of the next piece in `text`.
    start: usize,
    /// Bytes after `start` already searched for a cut.
    searched: usize,
    ends_line: bool,
    /// Total size of the previous files.
    before: u64,
    between: bool,
    /// Whether the rest of this file is known to fit into memory.
    weighed: bool,
}

impl<'a> Pieces<'a> {
    pub fn new(files: &'a [TextFile], cuts: Cuts) -> Self {
        Self {
            files,
            cuts,
            at: 0,
            reader: None,
            text: String::new(),
            start: 0,
            searched: 0,
            ends_line: true,
            before: 0,
            between: false,
            weighed: false,
        }
    }

    /// Returns the bytes read so far, over all files.
    pub fn done(&self) -> u64 {
        self.before + self.reader.as_ref().map_or(0, |reader| reader.read)
    }

    fn step(&mut self) -> Result<Option<TextPiece>> {
        loop {
            let Some(file) = self.files.get(self.at) else { return Ok(None) };
            let Some(reader) = &mut self.reader else {
                if std::mem::take(&mut self.between) {
                    return Ok(Some(TextPiece::Between { ends_line: self.ends_line }));
                }
                self.reader = Some(file.read()?);
                continue;
            };
            let rest = &self.text[self.start..];
            if rest.is_empty() && reader.ended {
                self.before += reader.read;
                self.at += 1;
                (self.reader, self.start, self.between, self.weighed) = (None, 0, true, false);
                self.text.clear();
                continue;
            }
            match self.cuts.first(rest, self.searched, reader.ended) {
                Ok(cut) => {
                    let text = rest[..cut.end].to_owned();
                    (self.start, self.searched) = (self.start + cut.next, 0);
                    self.ends_line = text.ends_with('\n');
                    return Ok(Some(TextPiece::Text { file: self.at, text }));
                }
                Err(searched) => {
                    if rest.len() > LARGE_TEXT_BYTES && !self.weighed {
                        let bytes = rest.len() as u64 + file.bytes.saturating_sub(reader.read);
                        fits(file.path(), bytes, available_memory())?;
                        self.weighed = true;
                    }
                    self.searched = searched;
                    self.text.drain(..std::mem::take(&mut self.start));
                    reader.next(&mut self.text)?;
                }
            }
        }
    }
}

/// Checks whether `bytes` of text can be encoded at once with this much available memory, if known.
fn fits(path: &Path, bytes: u64, available: Option<u64>) -> Result<()> {
    let needed = bytes.saturating_mul(WHOLE_COST);
    match available {
        Some(available) if needed > available => Err(Error::new(
            ErrorKind::Memory,
            format!(
                "{}: {} of text that this tokenizer cannot split need about {} to encode, {} available; give the text as several files, or use a \
                 tokenizer that splits words",
                path.display(),
                human(bytes),
                human(needed),
                human(available)
            ),
        )),
        _ => Ok(()),
    }
}

impl Iterator for Pieces<'_> {
    type Item = Result<TextPiece>;

    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.step().transpose();
        if matches!(piece, Some(Err(_))) {
            // The iterator ends after an error.
            self.at = self.files.len();
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_cannot_be_cut_is_refused_where_the_memory_is_short() {
        let path = Path::new("long.txt");
        fits(path, 1 << 40, None).unwrap();
        fits(path, 100 << 20, Some(11 << 30)).unwrap();
        let error = fits(path, 300 << 20, Some(16 << 30)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Memory);
        for part in ["long.txt: 300.0 MiB of text", "about 32.2 GiB", "16.0 GiB available", "several files"] {
            assert!(error.message().contains(part), "{error} lacks: {part}");
        }
        assert!(fits(path, u64::MAX, Some(u64::MAX - 1)).is_err());
    }
}
