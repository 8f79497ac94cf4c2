//! A file that grows by whole records, also across a disk that is full for a while.

use netcl_device::{Error, Result};
use std::{
    fs::File,
    io::{Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// Bytes of records that are kept for later while the file cannot be written.
const KEPT: usize = 16 << 20;

/// An open file. A record that could not be written is kept, and goes before the next one.
#[derive(Debug)]
pub(super) struct Appender {
    path: PathBuf,
    file: File,
    /// Bytes of whole records in the file.
    len: u64,
    pending: Vec<u8>,
}

impl Appender {
    /// Goes on at the end of `file`, which is open for writing.
    pub fn new(path: &Path, file: File) -> Result<Self> {
        let len = file.metadata().map_err(|e| Error::io("reading", path, &e))?.len();
        Ok(Self { path: path.into(), file, len, pending: Vec::new() })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// `Io` where nothing was written; the file then ends with the record before.
    pub fn push(&mut self, record: &[u8]) -> Result<()> {
        if self.pending.len() + record.len() <= KEPT {
            self.pending.extend_from_slice(record);
        }
        self.flush()
    }

    /// Writes what could not be written before.
    pub fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        // One call, so that a kill leaves whole records.
        match self.file.write_all(&self.pending) {
            Ok(()) => {
                self.len += self.pending.len() as u64;
                self.pending.clear();
                Ok(())
            }
            Err(e) => {
                // A part of a record would spoil the one after it.
                let _ = self.file.set_len(self.len);
                let _ = self.file.seek(SeekFrom::Start(self.len));
                Err(Error::io("writing", &self.path, &e))
            }
        }
    }

    /// The file of another, with the records that wait here.
    #[cfg(test)]
    pub fn take_over(&mut self, other: Self) {
        *self = Self { pending: std::mem::take(&mut self.pending), ..other };
    }
}
