//! Weights of a graph: on a device, or in a file that is read on demand.

use super::spec::WeightInfo;
use crate::{DType, Device, Error, Result, Tensor};
use netcl_device::MappedFile;
use std::borrow::Cow;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

enum Source {
    Device(Tensor),
    File(Arc<MappedFile>, Range<usize>),
}

struct Weight {
    info: WeightInfo,
    source: Source,
}

/// The weights of a graph.
pub(super) struct GraphWeights {
    path: PathBuf,
    all: Vec<Weight>,
    /// Weights that were read.
    read: Mutex<Option<Vec<Tensor>>>,
}

/// Returns the BLAKE3 hash of bytes in hexadecimal.
pub(super) fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

impl GraphWeights {
    /// Creates weights from tensors on a device.
    pub fn here(infos: &[WeightInfo], tensors: &[Tensor]) -> Self {
        let each = infos.iter().zip(tensors);
        let all =
            each.map(|(info, t)| Weight { info: info.clone(), source: Source::Device(t.clone()) }).collect();
        Self { path: PathBuf::new(), all, read: Mutex::new(Some(tensors.to_vec())) }
    }
    /// Creates weights from a file, each with its byte range.
    pub fn in_file(path: PathBuf, map: &Arc<MappedFile>, infos: Vec<(WeightInfo, Range<usize>)>) -> Self {
        let of = |(info, range)| Weight { info, source: Source::File(Arc::clone(map), range) };
        Self { path, all: infos.into_iter().map(of).collect(), read: Mutex::new(None) }
    }

    /// Returns a weight's bytes. For files, the hash covers these bytes; a mask of words is then converted to bytes.
    pub fn bytes(&self, i: usize) -> Result<Cow<'_, [u8]>> {
        let Some(Weight { info, source }) = self.all.get(i) else {
            return Err(Error::internal(format!("weight {i} is out of range; there are {}", self.all.len())));
        };
        match source {
            Source::Device(tensor) => tensor.to_bytes().map(Cow::Owned),
            Source::File(map, range) => {
                let bytes = map.get(range.clone()).unwrap_or_default();
                match hash(bytes) == info.hash {
                    true if info.dtype == DType::Bool && bytes.len() > info.dims.iter().product() => {
                        Ok(bytes.chunks_exact(4).map(|word| u8::from(word != [0; 4])).collect())
                    }
                    true => Ok(Cow::Borrowed(bytes)),
                    false => Err(Error::format(format!(
                        "{}: the bytes of {} are not what was saved (their hash differs)",
                        self.path.display(),
                        info.name
                    ))),
                }
            }
        }
    }

    /// Returns all weights on a device. The first call reads and checks them.
    pub fn all(&self, device: &Device) -> Result<Vec<Tensor>> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tensors) = &*read {
            return Ok(tensors.clone());
        }
        let _tag = device.tag("weights");
        let upload = |(i, w): (usize, &Weight)| {
            Tensor::from_bytes(device, w.info.dims.clone(), &self.bytes(i)?, w.info.dtype)
        };
        let tensors = self.all.iter().enumerate().map(upload).collect::<Result<Vec<_>>>()?;
        *read = Some(tensors.clone());
        Ok(tensors)
    }
}
