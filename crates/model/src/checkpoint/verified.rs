//! Verified reading of a checkpoint's files: the bytes that are hashed are the bytes that are loaded.
//!
//! A file that is verified and then opened again may have been replaced, and a memory mapping shows later writes. Therefore each file is opened
//! once and read from start to end, and the checksum is computed over the bytes that are returned.

use super::{FileSum, TensorData, durable};
use netcl_device::{Error, Result};
use safetensors::tensor::{Metadata, TensorInfo};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Block size for bytes that are only hashed.
const PIECE: usize = 1 << 20;
/// Size of the length field before a safetensors header.
const PREFIX: usize = 8;

/// A file that is being read and hashed.
pub(super) struct Verified<'a> {
    file: File,
    path: PathBuf,
    sum: &'a FileSum,
    hasher: blake3::Hasher,
    left: u64,
}

impl<'a> Verified<'a> {
    /// Opens a file of the checkpoint in `dir`. `Format` with its name if it is outside the folder, missing, or not of the recorded size.
    pub fn open(dir: &Path, name: &str, sum: &'a FileSum) -> Result<Self> {
        let name =
            durable::name_of_file(name).map_err(|e| e.context(dir.join(super::STATE_FILE).display()))?;
        let path = dir.join(name);
        let wrong = |what: String| Error::format(format!("{} {what}", path.display()));
        // The type is checked before opening: opening a pipe would wait for a writer.
        if !path.is_file() {
            return Err(wrong("is missing".into()));
        }
        let file = File::open(&path).map_err(|e| Error::io("opening", &path, &e))?;
        let about = file.metadata().map_err(|e| Error::io("reading", &path, &e))?;
        if !about.is_file() {
            return Err(wrong("is missing: it is no longer a file".into()));
        }
        let (is, was) = (about.len(), sum.bytes);
        if is != was {
            let what = if is < was { "is truncated" } else { "has grown" };
            return Err(wrong(format!("{what}: {is} bytes, but {was} were written")));
        }
        Ok(Self { file, path, sum, hasher: blake3::Hasher::new(), left: was })
    }

    /// Fills `out`. `Format` if the file ends early.
    fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        if out.len() as u64 > self.left {
            return Err(self.wrong("is damaged: its header announces more than it contains"));
        }
        self.file.read_exact(out).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => self.wrong("was truncated while it was read"),
            _ => Error::io("reading", &self.path, &e),
        })?;
        self.hasher.update(out);
        self.left -= out.len() as u64;
        Ok(())
    }

    fn wrong(&self, what: &str) -> Error {
        Error::format(format!("{} {what}", self.path.display()))
    }

    /// Reads the rest; `Format` if the checksum differs from the recorded one.
    pub fn check(mut self) -> Result<()> {
        let mut piece = vec![0; PIECE.min(usize::try_from(self.left).unwrap_or(PIECE))];
        while self.left > 0 {
            let n = piece.len().min(usize::try_from(self.left).unwrap_or(PIECE));
            self.fill(&mut piece[..n])?;
        }
        if self.hasher.finalize().to_hex().as_str() == self.sum.blake3 {
            return Ok(());
        }
        Err(self.wrong("is damaged: its checksum is wrong"))
    }

    /// Reads the whole file.
    pub fn bytes(mut self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len(self.left)?];
        self.fill(&mut bytes)?;
        self.check()?;
        Ok(bytes)
    }

    /// Reads the tensors of a safetensors file in file order, each directly to its destination.
    pub fn tensors(mut self) -> Result<Vec<TensorData>> {
        let not_whole = |path: &Path, e: &dyn std::fmt::Display| {
            Error::format(format!("{}: not a complete safetensors file: {e}", path.display()))
        };
        let mut prefix = [0; PREFIX];
        self.fill(&mut prefix)?;
        let length = prefix.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        // Bounded by the size of the file.
        if length > self.left {
            // The checksum distinguishes a damaged file from one that was invalid from the start.
            let path = self.path.clone();
            self.check()?;
            return Err(not_whole(&path, &"its header is longer than the file"));
        }
        let mut header = vec![0; self.len(length)?];
        self.fill(&mut header)?;
        let read = self.read_tensors(&header);
        let path = self.path.clone();
        // The checksum is checked first: it distinguishes a damaged file from one that was invalid from the beginning.
        self.check()?;
        read.map_err(|e| not_whole(&path, &e))
    }

    /// Parses a header; its tensors must be contiguous and fill the file.
    fn read_tensors(&mut self, header: &[u8]) -> std::result::Result<Vec<TensorData>, String> {
        let metadata: Metadata = serde_json::from_slice(header).map_err(|e| e.to_string())?;
        let mut order: Vec<(String, TensorInfo)> =
            metadata.tensors().into_iter().map(|(name, info)| (name, info.clone())).collect();
        order.sort_by(|a, b| (a.1.data_offsets, &a.0).cmp(&(b.1.data_offsets, &b.0)));
        let mut at = 0;
        let mut tensors = Vec::with_capacity(order.len());
        for (name, TensorInfo { dtype, shape, data_offsets: (start, end) }) in order {
            if start != at || end < start {
                return Err(format!("{name} is at {start}..{end}, expected at {at}"));
            }
            let elements = shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
            let bytes = elements.and_then(|n| n.checked_mul(dtype.bitsize())).map(|bits| bits.div_ceil(8));
            if bytes != Some(end - start) {
                return Err(format!(
                    "{name}: {dtype} of shape {shape:?} does not match {} bytes",
                    end - start
                ));
            }
            at = end;
            let mut bytes = vec![0; self.len((end - start) as u64).map_err(|e| e.to_string())?];
            self.fill(&mut bytes).map_err(|e| e.to_string())?;
            tensors.push(TensorData { name, dtype, shape, bytes });
        }
        if self.left > 0 {
            return Err(format!("it has {} bytes after its tensors", self.left));
        }
        Ok(tensors)
    }

    /// Returns a byte count after comparing it with the file size.
    fn len(&self, bytes: u64) -> Result<usize> {
        if bytes > self.sum.bytes {
            return Err(self.wrong("is damaged: its header announces more than it contains"));
        }
        usize::try_from(bytes).map_err(|_| self.wrong("is larger than this machine's memory"))
    }
}
