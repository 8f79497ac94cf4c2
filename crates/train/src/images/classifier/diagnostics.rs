//! What is looked at while a network is trained: times of kernels, and results that are not finite.

use crate::config::GraphMode;
use crate::train::ProfileSettings;

/// What is looked at while a network is trained.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    /// Check every op's result of forward and backward, and stop at the first NaN or infinity, naming op and tensor. Steps are not captured then;
    /// slow.
    pub detect_anomaly: bool,
    /// Profile these steps.
    pub profile: Option<ProfileSettings>,
}

impl Diagnostics {
    /// How steps run: results are read on the host for a check, which a captured step cannot do.
    pub(super) fn graph(&self, asked: GraphMode) -> GraphMode {
        if self.detect_anomaly { GraphMode::Off } else { asked }
    }
}
