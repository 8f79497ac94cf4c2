//! The mode of graph capture.

use netcl_device::{Error, Result};
use netcl_model::names::{by_name, name_of};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Whether training steps are captured as a graph and replayed. The results are bit-identical.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphMode {
    /// Capture if possible; otherwise warn.
    #[default]
    Auto,
    /// Always capture; return an error if that is not possible.
    On,
    /// Never capture.
    Off,
}

impl GraphMode {
    /// All values, with their names.
    pub const NAMES: [(&str, Self); 3] = [("auto", Self::Auto), ("on", Self::On), ("off", Self::Off)];
}

impl FromStr for GraphMode {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        by_name("graph", name, &Self::NAMES)
    }
}

impl fmt::Display for GraphMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(*self, &Self::NAMES))
    }
}
