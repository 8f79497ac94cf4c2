//! Files of `--data` that are skipped, by reason, and files that are read with a message.

use super::format::{ADVICE, Records};
use super::text::TextFile;
use netcl_device::{Error, Result, human};
use std::path::{Path, PathBuf};

/// Number of files listed in a message; others are counted.
const MAX_NAMED_FILES: usize = 8;

/// Skipped files, by reason.
#[derive(Default)]
pub(super) struct LeftOut {
    /// Files in another encoding, with the problem of each.
    pub foreign: Vec<(PathBuf, String)>,
    pub binary: Vec<PathBuf>,
    pub empty: Vec<PathBuf>,
    /// Files next to a training part that belong to no part.
    pub beside: Vec<PathBuf>,
    /// Data in unsupported formats, with the format and the size.
    pub data: Vec<(PathBuf, &'static str, u64)>,
    /// Texts of records that are read as plain text, with the format and the size.
    pub records: Vec<(PathBuf, String, u64)>,
}

impl LeftOut {
    /// Records data in a format that is not read as text.
    pub fn add_data(&mut self, path: &Path, what: &'static str) {
        let bytes = std::fs::metadata(path).map_or(0, |meta| meta.len());
        self.data.push((path.to_owned(), what, bytes));
    }

    /// Records a text that consists of records.
    ///
    /// # Errors
    /// `Format` if their fields are those of training data, or the file was named.
    pub fn add_records(&mut self, path: &Path, records: Records, named: bool, bytes: u64) -> Result<()> {
        if named || records.known || records.readable {
            return Err(as_text(&path.display().to_string(), &records.what));
        }
        self.records.push((path.to_owned(), records.what, bytes));
        Ok(())
    }

    /// Checks that text is the larger part.
    ///
    /// # Errors
    /// `Format` if records, or data that is not read, make up more than the text.
    pub fn check(&self, train: &[TextFile], val: &[TextFile], spec: &Path, anyway: bool) -> Result<()> {
        let texts: u64 = train.iter().chain(val).map(|text| text.bytes).sum();
        let of_records: u64 = self.records.iter().map(|(_, _, bytes)| bytes).sum();
        let of_data: u64 = self.data.iter().map(|(_, _, bytes)| bytes).sum();
        if let Some((path, what, _)) = self.records.first().filter(|_| of_records * 2 > texts) {
            return Err(as_text(&path.display().to_string(), what));
        }
        if anyway || of_data <= texts || train.is_empty() {
            return Ok(());
        }
        Err(Error::format(format!(
            "{}: it has {} of text, and {} in other formats that netcl does not read have {}: {}. {ADVICE}; or name only the text, as in --data \
             '{}', or use --as-text to skip the others",
            spec.display(),
            human(texts),
            count(self.data.len()),
            human(of_data),
            self.formats(),
            spec.join("**/*.txt").display(),
        )))
    }

    fn formats(&self) -> String {
        some(self.data.iter().map(|(path, what, _)| format!("{} ({what})", path.display())))
    }

    /// Reports which files are skipped, with reasons, and which ones are the validation part.
    pub fn tell(&self, special: &[(PathBuf, &'static str)], train: &[TextFile], val: &[TextFile]) {
        if let Some(text) = self.foreign_in_words() {
            tracing::warn!("{text}");
        }
        if !self.data.is_empty() {
            tracing::warn!(
                "{} skipped, because netcl does not read these formats as text: {}",
                count(self.data.len()),
                self.formats()
            );
        }
        if !self.records.is_empty() {
            let all = self.records.iter().map(|(path, what, _)| format!("{} ({what})", path.display()));
            tracing::warn!("{} of records read as plain text: {}", count(self.records.len()), some(all));
        }
        if !special.is_empty() {
            let all = special.iter().map(|(path, what)| format!("{} is {what}", path.display()));
            tracing::warn!(
                "{} skipped, because only regular files are read: {}",
                count(special.len()),
                some(all)
            );
        }
        for (what, paths) in [
            ("binary", &self.binary),
            ("empty", &self.empty),
            ("outside the parts of the data", &self.beside),
        ] {
            if !paths.is_empty() {
                let all = paths.iter().map(|path| path.display().to_string());
                tracing::info!("{} skipped as {what}: {}", count(paths.len()), some(all));
            }
        }
        if !val.is_empty() && !train.is_empty() {
            let all = val.iter().map(|text| text.path().display().to_string());
            tracing::info!("{} used as validation part, by their names: {}", count(val.len()), some(all));
        }
        let texts = train.iter().chain(val);
        let mut other: Vec<_> = texts.map(|t| t.encoding().name()).filter(|n| *n != "UTF-8").collect();
        other.sort_unstable();
        for name in other.chunk_by(|a, b| a == b) {
            tracing::info!("{} read as {}", count(name.len()), name[0]);
        }
    }

    pub fn foreign_in_words(&self) -> Option<String> {
        let (path, what) = self.foreign.first()?;
        let all = self.foreign.iter().map(|(path, _)| path.display().to_string());
        Some(format!(
            "{} skipped, because the text is in another encoding: {} ({}: {what})",
            count(self.foreign.len()),
            some(all),
            path.display()
        ))
    }

    /// Returns the error for data without any text file.
    pub fn nothing(&self, spec: &Path, files: usize) -> Error {
        let foreign = self.foreign_in_words().map(|text| format!("; {text}")).unwrap_or_default();
        let data = match self.data.len() {
            0 => String::new(),
            n => format!("; {} in formats that netcl does not read: {}. {ADVICE}", count(n), self.formats()),
        };
        let what = if files == self.foreign.len() {
            "none is UTF-8".to_owned()
        } else {
            format!("{} binary, {} empty", self.binary.len(), self.empty.len())
        };
        Error::format(format!("{}: no text found; of {} {what}{foreign}{data}", spec.display(), count(files)))
    }
}

/// Returns the error for records where text is expected.
fn as_text(path: &str, what: &str) -> Error {
    Error::format(format!(
        "{path}: {what}; netcl does not read the fields of these records here. `netcl train` reads messages, conversations, instruction and output, \
         prompt and completion, and text: rename the fields, write the text to a .txt file, or use --as-text to read the file as it is, including its \
         markup"
    ))
}

pub(super) fn count(files: usize) -> String {
    if files == 1 { "1 file".into() } else { format!("{files} files") }
}

/// Formats the first entries of a list for messages.
pub(super) fn some(all: impl ExactSizeIterator<Item = String>) -> String {
    let more = all.len().saturating_sub(MAX_NAMED_FILES);
    let names = all.take(MAX_NAMED_FILES).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{names} and {more} more (RUST_LOG=debug lists all)") } else { names }
}
