//! Diagnostics of training: times of kernels, and results that are not finite.

use crate::config::GraphMode;
use crate::train::ProfileSettings;

/// Diagnostics to run while a network is trained.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    /// Check every op's result in forward and backward, and stop at the first NaN or infinity, with the op and the tensor. Slow; steps are not
    /// captured.
    pub detect_anomaly: bool,
    /// Profile these steps.
    pub profile: Option<ProfileSettings>,
}

impl Diagnostics {
    /// Returns the graph mode: a check reads results on the host, which a captured step cannot do.
    pub(super) fn graph(&self, asked: GraphMode) -> GraphMode {
        if self.detect_anomaly { GraphMode::Off } else { asked }
    }
}
