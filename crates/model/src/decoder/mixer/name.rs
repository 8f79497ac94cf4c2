//! Names of mixers.

use std::fmt;

/// The name of a layer's mixer. The mixers' folders define them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MixerName(&'static str);

/// Self-attention, the default mixer.
pub const ATTENTION: MixerName = MixerName::new("attention");

impl MixerName {
    /// Creates a name, in the mixer's folder.
    pub(super) const fn new(name: &'static str) -> Self {
        Self(name)
    }
}

impl Default for MixerName {
    fn default() -> Self {
        ATTENTION
    }
}

impl fmt::Debug for MixerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Display for MixerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
