//! Checks that inputs and results that a backward reads are those of the forward. Each node records their versions, and reading memory that
//! was overwritten since is an error. Tensors that a backward does not read may change.

use super::Tensor;
use crate::{DType, Error, Result, Shape};
use netcl_device::version::{Stale, Version, watch};

/// Versions of tensors that a backward may read.
#[derive(Clone)]
pub(crate) struct SavedVersions(Vec<Version>);

/// Shape and type of a tensor that may no longer exist.
pub(crate) type ShapeAndType = (Shape, DType);

impl SavedVersions {
    /// Records the current versions.
    pub fn now<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Self {
        Self(tensors.map(|t| t.storage().version()).collect())
    }

    /// Updates versions of results whose memory an op reused for the gradient. An op may overwrite its input with the input's gradient if
    /// nothing else can access that memory; the input is a result of the previous node. `from` is the index of the first result.
    pub fn replaced_by<'a>(&mut self, from: usize, dys: impl Iterator<Item = &'a Tensor> + Clone) {
        for version in self.0.iter_mut().skip(from) {
            if let Some(dy) = dys.clone().find(|dy| version.shares(dy.storage())) {
                *version = dy.storage().version();
            }
        }
    }

    /// Runs `backward`, which must not read overwritten tensors. `error` describes the tensor with a given index.
    pub fn hold<R>(
        self,
        backward: impl FnOnce() -> Result<R>,
        error: impl FnOnce(usize) -> String,
    ) -> Result<R> {
        match watch(self.0, backward) {
            (outcome, None) => outcome,
            (_, Some(Stale { index, now, then })) => Err(Error::unsupported(format!(
                "{} was overwritten after the forward saved it: it is at version {now}, expected version {then}. Write to it \
                 after the backward, or give the operation a copy",
                error(index)
            ))),
        }
    }
}

/// Describes a saved tensor for error messages.
pub(crate) fn described(what: &str, name: Option<&str>, (shape, dtype): &ShapeAndType) -> String {
    let name = name.map_or(String::new(), |name| format!(" ({name})"));
    format!("{what}{name}, a tensor of shape {shape} and type {dtype},")
}
