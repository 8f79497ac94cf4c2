//! What a backward reads of its node's inputs and results must be what the forward saw: each node notes their versions, and a read
//! of memory that was overwritten since is an error. What a backward does not read may change.

use super::Tensor;
use crate::{DType, Error, Result, Shape};
use netcl_device::version::{Stale, Version, watch};

/// The versions of tensors that a backward may come back to.
#[derive(Clone)]
pub(crate) struct Saved(Vec<Version>);

/// Shape and type of a tensor that is perhaps gone.
pub(crate) type Form = (Shape, DType);

impl Saved {
    /// As they are now.
    pub fn now<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Self {
        Self(tensors.map(|t| t.storage().version()).collect())
    }

    /// An op may have written the gradient of its input over that input where nothing else could see it, which is a result of the
    /// node before: what comes as a gradient is no longer that result. `from`: where results start.
    pub fn replaced_by<'a>(&mut self, from: usize, dys: impl Iterator<Item = &'a Tensor> + Clone) {
        for version in self.0.iter_mut().skip(from) {
            if let Some(dy) = dys.clone().find(|dy| version.shares(dy.storage())) {
                *version = dy.storage().version();
            }
        }
    }

    /// Runs `backward`, which may not read what was overwritten; `error` says what the tensor of a number is.
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

/// A saved tensor as errors say it.
pub(crate) fn described(what: &str, name: Option<&str>, (shape, dtype): &Form) -> String {
    let name = name.map_or(String::new(), |name| format!(" ({name})"));
    format!("{what}{name}, a tensor of shape {shape} and type {dtype},")
}
