//! Tensors in host memory, and reading and writing of safetensors files.

use super::{FileDtype, FileSum, durable};
use half::{bf16, f16};
use netcl_device::{Error, MappedFile, Result};
use safetensors::SafeTensors;
use serde_json::{Map, json};
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// A tensor in host memory: little-endian, row-major.
#[derive(Clone, PartialEq)]
pub struct TensorData {
    /// Unique in its file.
    pub name: String,
    /// Type of the elements.
    pub dtype: FileDtype,
    /// Sizes of the axes, outermost first.
    pub shape: Vec<usize>,
    /// Bytes of the elements; their number follows from shape and type.
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for TensorData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}{:?}", self.name, self.dtype, self.shape)
    }
}

/// A borrowed tensor: its bytes are in a [`TensorData`] or in a mapped file.
#[derive(Clone, Copy)]
pub struct TensorView<'a> {
    /// Unique in its file.
    pub name: &'a str,
    /// Type of the elements.
    pub dtype: FileDtype,
    /// Sizes of the axes, outermost first.
    pub shape: &'a [usize],
    /// Bytes of the elements; their number follows from shape and type.
    pub bytes: &'a [u8],
}

impl TensorView<'_> {
    /// # Errors
    /// `Format` for a type that [`floats`](Self::floats) does not convert.
    pub fn check_float(&self) -> Result<()> {
        match self.dtype {
            FileDtype::F32 | FileDtype::F16 | FileDtype::BF16 | FileDtype::F64 => Ok(()),
            other => {
                Err(Error::format(format!("{} is {other:?}, expected F32, F16, BF16 or F64", self.name)))
            }
        }
    }

    /// Returns the elements converted to f32, from F16, BF16, F32 or F64 (rounded to nearest, ties to even).
    ///
    /// # Errors
    /// `Format` for other types, and for a finite F64 element outside the range of f32.
    pub fn floats(&self) -> Result<Vec<f32>> {
        self.check_float()?;
        let bytes = self.bytes;
        Ok(match self.dtype {
            FileDtype::F16 => {
                bytes.chunks_exact(2).map(|c| f16::from_le_bytes([c[0], c[1]]).to_f32()).collect()
            }
            FileDtype::BF16 => {
                bytes.chunks_exact(2).map(|c| bf16::from_le_bytes([c[0], c[1]]).to_f32()).collect()
            }
            FileDtype::F64 => self.rounded()?,
            _ => bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect(),
        })
    }

    fn rounded(&self) -> Result<Vec<f32>> {
        let (numbers, _) = self.bytes.as_chunks::<8>();
        let round = |(at, bytes): (usize, &[u8; 8])| {
            let exact = f64::from_le_bytes(*bytes);
            let nearest = exact as f32;
            if nearest.is_infinite() && exact.is_finite() {
                return Err(Error::format(format!(
                    "{}: element {at} is {exact:e}, beyond the range of f32",
                    self.name
                )));
            }
            Ok(nearest)
        };
        numbers.iter().enumerate().map(round).collect()
    }
}

impl TensorData {
    /// Returns a view without a copy of the bytes.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { name: &self.name, dtype: self.dtype, shape: &self.shape, bytes: &self.bytes }
    }

    /// Returns the same as [`TensorView::floats`].
    ///
    /// # Errors
    /// Same as there, `Format`.
    pub fn floats(&self) -> Result<Vec<f32>> {
        self.view().floats()
    }
}

/// A tensor to be written: its bytes, or a function that provides them when they are written.
pub struct TensorToWrite<'a> {
    /// Unique in its file.
    pub name: String,
    /// Type of the elements.
    pub dtype: FileDtype,
    /// Sizes of the axes, outermost first.
    pub shape: Vec<usize>,
    /// Its bytes.
    pub bytes: Bytes<'a>,
}

/// Bytes of a [`TensorToWrite`] tensor.
pub enum Bytes<'a> {
    /// In memory.
    Here(&'a [u8]),
    /// Provided on demand, usually by a copy from the device.
    Later(Box<dyn Fn() -> Result<Vec<u8>> + 'a>),
}

impl TensorToWrite<'_> {
    /// Returns the size in bytes by type and shape.
    pub fn size(&self) -> Option<u64> {
        let elements = self.shape.iter().try_fold(1u64, |all, &size| all.checked_mul(size as u64));
        elements.and_then(|n| n.checked_mul(self.dtype.bitsize() as u64)).map(|bits| bits.div_ceil(8))
    }

    /// Returns the tensor with its bytes in memory.
    pub fn take(&self) -> Result<TensorData> {
        let bytes = match &self.bytes {
            Bytes::Here(bytes) => bytes.to_vec(),
            Bytes::Later(get) => get()?,
        };
        Ok(TensorData { name: self.name.clone(), dtype: self.dtype, shape: self.shape.clone(), bytes })
    }
}

impl<'a> From<&'a TensorData> for TensorToWrite<'a> {
    fn from(t: &'a TensorData) -> Self {
        Self { name: t.name.clone(), dtype: t.dtype, shape: t.shape.clone(), bytes: Bytes::Here(&t.bytes) }
    }
}

/// Writes a safetensors file with the metadata that PyTorch tools expect, synced to disk, without a second copy of the data in memory.
///
/// # Errors
/// `Format` for duplicate names or bytes that do not match the shape; `Io`, for example if the disk is full.
pub fn write_tensors(path: &Path, tensors: &[TensorData]) -> Result<FileSum> {
    let planned: Vec<_> = tensors.iter().map(TensorToWrite::from).collect();
    write_planned(path, &planned, &AtomicU64::new(0))
}

/// Does the same with one tensor in memory at a time; `written` counts the bytes.
///
/// # Errors
/// Same as [`write_tensors`], and errors of providing a tensor's bytes.
pub fn write_planned(path: &Path, tensors: &[TensorToWrite<'_>], written: &AtomicU64) -> Result<FileSum> {
    // Wide types first, so that each tensor is aligned to its own size.
    let mut order: Vec<_> = tensors.iter().collect();
    order.sort_by(|a, b| b.dtype.bitsize().cmp(&a.dtype.bitsize()).then_with(|| a.name.cmp(&b.name)));
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut end = 0u64;
    for tensor in &order {
        let size = tensor.size().ok_or_else(|| misfit(tensor, 0))?;
        if let Bytes::Here(bytes) = tensor.bytes
            && bytes.len() as u64 != size
        {
            return Err(misfit(tensor, bytes.len()));
        }
        let start = end;
        end += size;
        let entry = json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end] });
        if header.insert(tensor.name.clone(), entry).is_some() {
            return Err(Error::format(format!("{}: two tensors are named {}", path.display(), tensor.name)));
        }
    }
    let mut header = serde_json::Value::Object(header).to_string();
    // Spaces after the header, so that the data starts at a multiple of 8.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    // A device error is passed through the writer and returned unchanged.
    let mut failed = None;
    let sum = durable::write(path, written, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        order.iter().try_for_each(|tensor| match &tensor.bytes {
            Bytes::Here(bytes) => file.write_all(bytes),
            Bytes::Later(get) => {
                let fits = |bytes: &Vec<u8>| Some(bytes.len() as u64) == tensor.size();
                let bytes = get().and_then(|b| if fits(&b) { Ok(b) } else { Err(misfit(tensor, b.len())) });
                file.write_all(&bytes.map_err(|e| {
                    failed = Some(e);
                    std::io::Error::other("no bytes")
                })?)
            }
        })
    });
    failed.map_or(sum, Err)
}

fn misfit(tensor: &TensorToWrite<'_>, len: usize) -> Error {
    Error::format(format!(
        "{}: {} of shape {:?} does not match {len} bytes",
        tensor.name, tensor.dtype, tensor.shape
    ))
}

/// Reads a safetensors file; tensors are in file order. `Format` with the file and the problem.
pub fn read_tensors(path: &Path) -> Result<Vec<TensorData>> {
    let map = MappedFile::open(path)?;
    let file = SafeTensors::deserialize(&map)
        .map_err(|e| Error::format(format!("{}: not a complete safetensors file: {e}", path.display())))?;
    let mut tensors: Vec<_> = file.iter().collect();
    tensors.sort_by_key(|(_, view)| view.data().as_ptr());
    let copy = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| TensorData {
        name: name.into(),
        dtype: view.dtype(),
        shape: view.shape().into(),
        bytes: view.data().into(),
    };
    Ok(tensors.into_iter().map(copy).collect())
}
