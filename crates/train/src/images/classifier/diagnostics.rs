//! What is looked at while a network is trained: times of kernels, and results that are not finite.

use crate::config::GraphMode;
use crate::train::{Profile, ProfileSettings, Profiling};
use netcl_tensor::{Device, Result};
use std::path::Path;
use std::time::Instant;

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

/// The same during a run.
pub(super) struct Looking {
    pub detect_anomaly: bool,
    /// Whether it was said where memory goes.
    pub explained: bool,
    profiling: Option<Profiling>,
    /// Steps that were begun in this process.
    begun: u64,
}

impl Looking {
    pub fn new(asked: &Diagnostics) -> Result<Self> {
        let profiling = asked.profile.clone().map(Profiling::new).transpose()?;
        Ok(Self { detect_anomaly: asked.detect_anomaly, explained: false, profiling, begun: 0 })
    }

    /// A step comes next, after `step` others.
    pub fn begin(&mut self, device: &Device, step: u64) -> Result<()> {
        self.profiling.as_mut().map_or(Ok(()), |p| p.begin(device, step, self.begun))?;
        self.begun += 1;
        Ok(())
    }

    /// Records a host activity.
    pub fn did(&mut self, name: &'static str, step: u64, begun: Instant) {
        if let Some(p) = &mut self.profiling {
            p.host_did(name, step, begun);
        }
    }

    /// The profile if `step` is its last step or the run has ended, and whether its trace was written.
    pub fn end(
        &mut self,
        device: &Device,
        (step, replayed): (u64, bool),
        ended: bool,
        dir: &Path,
    ) -> Result<Option<(Profile, Result<()>)>> {
        let Some(p) = self.profiling.take_if(|p| ended || p.ends_with(step)) else { return Ok(None) };
        p.end(device, (step, replayed), dir)
    }
}
