//! The text of all files in pieces that can be encoded alone, in order.

use super::text::{TextFile, TextReader};
use crate::tokenizer::Cuts;
use netcl_device::Result;

/// A piece of the text.
#[derive(Debug)]
pub(super) enum Piece {
    /// Text of the file of this number.
    Text { file: usize, text: String },
    /// One file has ended and another begins; whether the one that ended had a line break at its end.
    Between { ends_line: bool },
}

/// The pieces, read as they are taken.
pub(super) struct Pieces<'a> {
    files: &'a [TextFile],
    cuts: Cuts,
    at: usize,
    reader: Option<TextReader<'a>>,
    text: String,
    /// Where the next piece begins in `text`.
    start: usize,
    /// How much behind `start` was looked through for a cut.
    searched: usize,
    ends_line: bool,
    /// Bytes of the files before this one.
    before: u64,
    between: bool,
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
        }
    }

    /// Bytes of files that are read.
    pub fn done(&self) -> u64 {
        self.before + self.reader.as_ref().map_or(0, |reader| reader.read)
    }

    fn step(&mut self) -> Result<Option<Piece>> {
        loop {
            let Some(file) = self.files.get(self.at) else { return Ok(None) };
            let Some(reader) = &mut self.reader else {
                if std::mem::take(&mut self.between) {
                    return Ok(Some(Piece::Between { ends_line: self.ends_line }));
                }
                self.reader = Some(file.read()?);
                continue;
            };
            let rest = &self.text[self.start..];
            if rest.is_empty() && reader.ended {
                self.before += reader.read;
                self.at += 1;
                (self.reader, self.start, self.between) = (None, 0, true);
                self.text.clear();
                continue;
            }
            match self.cuts.first(rest, self.searched, reader.ended) {
                Ok(end) => {
                    let text = rest[..end].to_owned();
                    (self.start, self.searched) = (self.start + end, 0);
                    self.ends_line = text.ends_with('\n');
                    return Ok(Some(Piece::Text { file: self.at, text }));
                }
                Err(searched) => {
                    self.searched = searched;
                    self.text.drain(..std::mem::take(&mut self.start));
                    reader.next(&mut self.text)?;
                }
            }
        }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.step().transpose();
        if matches!(piece, Some(Err(_))) {
            // After an error there is nothing to go on with.
            self.at = self.files.len();
        }
        piece
    }
}
