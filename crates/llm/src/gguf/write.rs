//! Writes a GGUF file, version 3: to a temporary path, one tensor at a time, and renames it when it is complete.

use super::part::{ALIGNMENT, ALIGNMENT_KEY, AXES};
use super::value::Kind;
use netcl_device::files::temporary_sibling;
use netcl_tensor::quant::Format;
use netcl_tensor::{Error, Result};
use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// A metadata value to write.
#[derive(Clone, Debug, PartialEq)]
pub enum Meta {
    /// An integer, used for most sizes.
    U32(u32),
    /// An integer that may be negative.
    I32(i32),
    /// Single precision.
    F32(f32),
    /// True or false.
    Bool(bool),
    /// Text.
    Str(String),
    /// Several texts.
    Strs(Vec<String>),
    /// Several numbers.
    F32s(Vec<f32>),
    /// Several whole numbers.
    I32s(Vec<i32>),
    /// Several truth values.
    Bools(Vec<bool>),
    /// A value in the file format of another file.
    Raw(Kind, Vec<u8>),
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// An array's head.
fn array(out: &mut Vec<u8>, kind: Kind, len: usize) {
    out.extend((kind as u32).to_le_bytes());
    out.extend((len as u64).to_le_bytes());
}

impl Meta {
    fn kind(&self) -> Kind {
        match self {
            Self::U32(_) => Kind::U32,
            Self::I32(_) => Kind::I32,
            Self::F32(_) => Kind::F32,
            Self::Bool(_) => Kind::Bool,
            Self::Str(_) => Kind::String,
            Self::Strs(_) | Self::F32s(_) | Self::I32s(_) | Self::Bools(_) => Kind::Array,
            Self::Raw(kind, _) => *kind,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::U32(n) => out.extend(n.to_le_bytes()),
            Self::I32(n) => out.extend(n.to_le_bytes()),
            Self::F32(x) => out.extend(x.to_le_bytes()),
            Self::Bool(b) => out.push(u8::from(*b)),
            Self::Str(s) => text(out, s),
            Self::Strs(all) => {
                array(out, Kind::String, all.len());
                all.iter().for_each(|s| text(out, s));
            }
            Self::F32s(all) => {
                array(out, Kind::F32, all.len());
                out.extend(all.iter().flat_map(|x| x.to_le_bytes()));
            }
            Self::I32s(all) => {
                array(out, Kind::I32, all.len());
                out.extend(all.iter().flat_map(|n| n.to_le_bytes()));
            }
            Self::Bools(all) => {
                array(out, Kind::Bool, all.len());
                out.extend(all.iter().map(|b| u8::from(*b)));
            }
            Self::Raw(_, bytes) => out.extend(bytes),
        }
    }
}

/// A tensor to write.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorToWrite {
    /// Its name, unique in the file.
    pub name: String,
    /// Lengths of its axes, outermost first.
    pub dims: Vec<usize>,
    /// Storage format of its elements.
    pub format: &'static Format,
}

impl TensorToWrite {
    /// Returns its size in bytes.
    ///
    /// # Errors
    /// `Shape` for rows that are not whole blocks, no axis or too many.
    pub fn size(&self) -> Result<usize> {
        let count = self.dims.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
        let row = self.dims.last().copied().unwrap_or(0);
        let whole = (1..=AXES).contains(&self.dims.len()) && row.is_multiple_of(self.format.block);
        let size = count.filter(|n| whole && *n > 0).and_then(|n| self.format.size(n));
        size.ok_or_else(|| {
            let Self { name, dims, format } = self;
            Error::shape(format!(
                "{name}: shape {dims:?} cannot be stored in {format}, whose blocks have {}",
                format.block
            ))
        })
    }
}

/// A file to write: metadata and tensor descriptions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Keys and values, in this order.
    pub keys: Vec<(String, Meta)>,
    /// Tensors, in this order.
    pub tensors: Vec<TensorToWrite>,
}

impl Plan {
    /// Sets a key; an existing key keeps its position.
    pub fn set(&mut self, key: impl Into<String>, value: Meta) {
        let key = key.into();
        match self.keys.iter_mut().find(|(name, _)| *name == key) {
            Some((_, old)) => *old = value,
            None => self.keys.push((key, value)),
        }
    }

    fn alignment(&self) -> Result<usize> {
        let given = self.keys.iter().find(|(name, _)| name == ALIGNMENT_KEY);
        let n = match given {
            None => return Ok(ALIGNMENT),
            Some((_, Meta::U32(n))) => *n,
            Some((_, Meta::Raw(Kind::U32, bytes))) => {
                bytes.as_slice().try_into().map(u32::from_le_bytes).unwrap_or(0)
            }
            Some(_) => 0,
        };
        match n.is_power_of_two() && n <= 1 << 20 {
            true => Ok(n as usize),
            false => {
                Err(Error::format(format!("{ALIGNMENT_KEY} must be a u32, a power of two up to {}", 1 << 20)))
            }
        }
    }

    /// Returns the header up to the data, and the offset of each tensor in the data.
    fn header(&self, alignment: usize) -> Result<(Vec<u8>, Vec<usize>)> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            text(&mut out, key);
            out.extend((value.kind() as u32).to_le_bytes());
            value.put(&mut out);
        }
        let (mut at, mut offsets) = (0usize, Vec::with_capacity(self.tensors.len()));
        for tensor in &self.tensors {
            text(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().rev().for_each(|n| out.extend((*n as u64).to_le_bytes()));
            out.extend(tensor.format.number.to_le_bytes());
            out.extend((at as u64).to_le_bytes());
            offsets.push(at);
            let end = at.checked_add(tensor.size()?).and_then(|end| end.checked_next_multiple_of(alignment));
            at = end.ok_or_else(|| Error::shape("more bytes than a file can have"))?;
        }
        out.resize(out.len().next_multiple_of(alignment), 0);
        Ok((out, offsets))
    }

    /// Returns the file up to the bytes of its tensors.
    ///
    /// # Errors
    /// Same as [`write`](Self::write).
    pub fn head(&self) -> Result<Vec<u8>> {
        Ok(self.header(self.alignment()?)?.0)
    }

    /// Returns the size of the file in bytes.
    ///
    /// # Errors
    /// Same as [`write`](Self::write).
    pub fn size(&self) -> Result<u64> {
        let alignment = self.alignment()?;
        let (header, offsets) = self.header(alignment)?;
        let last = offsets.last().zip(self.tensors.last());
        let data = last.map_or(Ok(0), |(at, tensor)| Ok(at + tensor.size()?.next_multiple_of(alignment)))?;
        Ok((header.len() + data) as u64)
    }

    /// Writes the file at `path`; `bytes` writes the data of each tensor by its index, in the order of the plan. An existing file at `path` is
    /// unchanged until the new file is complete.
    ///
    /// # Errors
    /// `Io` with the path; `Shape` and `Format` for an invalid plan; errors of `bytes`, and `Internal` if it writes more or less than the tensor's
    /// size.
    pub fn write(
        &self,
        path: &Path,
        mut bytes: impl FnMut(usize, &mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        let mut names: Vec<&str> = self.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::format(format!("two tensors are named {}", pair[0])));
        }
        let alignment = self.alignment()?;
        let (header, _) = self.header(alignment)?;
        let fail = |e: io::Error| Error::io("writing", path, &e);
        let aside = temporary_sibling(path);
        let mut put = || {
            let file = OpenOptions::new().write(true).create_new(true).open(&aside).map_err(fail)?;
            let mut out = Counted { inner: BufWriter::with_capacity(1 << 20, file), bytes: 0 };
            out.write_all(&header).map_err(fail)?;
            for (i, tensor) in self.tensors.iter().enumerate() {
                let (start, size) = (out.bytes, tensor.size()? as u64);
                bytes(i, &mut out)?;
                if out.bytes - start != size {
                    let found = out.bytes - start;
                    return Err(Error::internal(format!("{}: {found} bytes, expected {size}", tensor.name)));
                }
                let padding = size.next_multiple_of(alignment as u64) - size;
                out.write_all(&vec![0; padding as usize]).map_err(fail)?;
            }
            let file = out.inner.into_inner().map_err(|e| fail(e.into_error()))?;
            file.sync_all().map_err(fail)?;
            drop(file);
            fs::rename(&aside, path).map_err(fail)
        };
        put().inspect_err(|_| {
            // If it was never created, there is nothing to remove.
            let _ = fs::remove_file(&aside);
        })
    }
}

/// Counts what passes.
struct Counted<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(buffer)?;
        self.bytes += n as u64;
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
