//! The optimizer of a run, by name.

use crate::optim::{KINDS, OptimizerKind};
use netcl_device::Result;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::fmt;

/// An optimizer of [`KINDS`], which settings and `config.toml` name.
#[derive(Clone, Copy)]
pub struct OptimizerName(&'static OptimizerKind);

impl OptimizerName {
    /// All names.
    pub const ALL: [&'static str; KINDS.len()] = {
        let (mut all, mut i) = ([""; KINDS.len()], 0);
        while i < KINDS.len() {
            all[i] = KINDS[i].name;
            i += 1;
        }
        all
    };

    /// The optimizer of this name.
    ///
    /// # Errors
    /// `Format` with the list of names.
    pub fn parse(name: &str) -> Result<Self> {
        OptimizerKind::named(name).map(Self)
    }

    /// The optimizer without its hyperparameters.
    pub fn kind(self) -> &'static OptimizerKind {
        self.0
    }

    /// Whether it has a hyperparameter of this name.
    pub(super) fn has(self, name: &str) -> bool {
        self.0.hyper.iter().any(|hyper| hyper.name == name)
    }
}

impl Default for OptimizerName {
    fn default() -> Self {
        Self(KINDS[0])
    }
}

impl PartialEq for OptimizerName {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl fmt::Debug for OptimizerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for OptimizerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

impl Serialize for OptimizerName {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.serialize_str(self.0.name)
    }
}

impl<'de> Deserialize<'de> for OptimizerName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        Self::parse(&String::deserialize(from)?).map_err(|e| D::Error::custom(e.message()))
    }
}
