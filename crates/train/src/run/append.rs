//! An append-only file of records that tolerates a temporarily full disk.

use netcl_device::{Error, Result};
use std::{
    fs::File,
    io::{Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// Maximum size of pending records in bytes.
const MAX_PENDING_BYTES: usize = 16 << 20;

/// An open file. Records that could not be written are kept and written before the next one.
#[derive(Debug)]
pub(super) struct Appender {
    path: PathBuf,
    file: File,
    /// Size of the complete records in the file.
    len: u64,
    pending: Vec<u8>,
}

impl Appender {
    /// Creates an appender for `file`, which is open for writing.
    pub fn new(path: &Path, file: File) -> Result<Self> {
        let len = file.metadata().map_err(|e| Error::io("reading", path, &e))?.len();
        Ok(Self { path: path.into(), file, len, pending: Vec::new() })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// `Io` if the record was not written; the file then ends with the previous record.
    pub fn push(&mut self, record: &[u8]) -> Result<()> {
        if self.pending.len() + record.len() <= MAX_PENDING_BYTES {
            self.pending.extend_from_slice(record);
        }
        self.flush()
    }

    /// Writes pending records.
    pub fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        // A single write call, so that a killed process leaves complete records.
        match self.file.write_all(&self.pending) {
            Ok(()) => {
                self.len += self.pending.len() as u64;
                self.pending.clear();
                Ok(())
            }
            Err(e) => {
                // An incomplete record would corrupt the next one.
                let _ = self.file.set_len(self.len);
                let _ = self.file.seek(SeekFrom::Start(self.len));
                Err(Error::io("writing", &self.path, &e))
            }
        }
    }

    /// Continues with another file and the pending records of this one.
    #[cfg(test)]
    pub fn take_over(&mut self, other: Self) {
        *self = Self { pending: std::mem::take(&mut self.pending), ..other };
    }
}
