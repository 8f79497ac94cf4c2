//! A file of token ids with positional reads. It is not memory-mapped, because a mapped file that another process truncates ends this process with
//! SIGBUS.

use netcl_device::{Error, Result};
use std::{fs::File, path::Path};

/// Little-endian ids of `width` bytes (1, 2, 4 or 8) from byte `offset` on.
#[derive(Debug)]
pub(super) struct IdFile {
    file: File,
    path: Box<Path>,
    offset: u64,
    width: usize,
}

impl IdFile {
    pub fn new(file: File, path: &Path, offset: u64, width: usize) -> Self {
        Self { file, path: path.into(), offset, width }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills `out` with the ids from `at` on. `Format` if the file is shorter than expected.
    pub fn read(&self, at: usize, out: &mut [u32]) -> Result<()> {
        let mut bytes = vec![0; out.len() * self.width];
        let from = self.offset + at as u64 * self.width as u64;
        read_at(&self.file, from, &mut bytes).map_err(|e| self.failed(&e, from + bytes.len() as u64))?;
        match self.width {
            1 => out.iter_mut().zip(&bytes).for_each(|(out, &id)| *out = id.into()),
            2 => {
                for (out, &id) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *out = u16::from_le_bytes(id).into();
                }
            }
            8 => {
                for (out, &id) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
                    // No vocabulary contains the largest id, so it is refused later, with its position.
                    *out = u32::try_from(u64::from_le_bytes(id)).unwrap_or(u32::MAX);
                }
            }
            _ => {
                for (out, &id) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *out = u32::from_le_bytes(id);
                }
            }
        }
        Ok(())
    }

    fn failed(&self, error: &std::io::Error, end: u64) -> Error {
        if error.kind() != std::io::ErrorKind::UnexpectedEof {
            return Error::io("reading", &self.path, error);
        }
        let now = self.file.metadata().map_or(0, |meta| meta.len());
        Error::format(format!(
            "{}: the file was cut short while it was in use: it has {now} bytes, expected at least {end}; restore it and continue with --resume",
            self.path.display()
        ))
    }
}

/// Fills `out` from byte `at` of the file.
#[cfg(unix)]
pub(super) fn read_at(file: &File, at: u64, out: &mut [u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, at)
}

#[cfg(windows)]
pub(super) fn read_at(file: &File, at: u64, out: &mut [u8]) -> std::io::Result<()> {
    use std::os::windows::fs::FileExt;
    let mut filled = 0;
    while filled < out.len() {
        match file.seek_read(&mut out[filled..], at + filled as u64)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
    }
    Ok(())
}
