//! Recomputation: activations that a backward pass computes again instead of keeping them.

use crate::names::{by_name, name_of};
use netcl_device::{Error, Result};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Activations that the backward pass recomputes instead of keeping them. Each option saves more memory and takes more time than the previous
/// one; the results are bit-identical.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// None.
    #[default]
    None,
    /// Outputs of GELUs.
    Gelu,
    /// Those and the outputs of the norms in blocks.
    Norm,
    /// Everything in a block; only its input is kept.
    Block,
    /// The same, with the inputs of blocks in host memory.
    Offload,
}

impl Recompute {
    /// All values, with their names.
    pub const NAMES: [(&str, Self); 5] = [
        ("none", Self::None),
        ("gelu", Self::Gelu),
        ("norm", Self::Norm),
        ("block", Self::Block),
        ("offload", Self::Offload),
    ];
}

impl FromStr for Recompute {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        by_name("recompute", name, &Self::NAMES)
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(*self, &Self::NAMES))
    }
}
