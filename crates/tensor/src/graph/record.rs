//! What a step does, noted while it runs.

use crate::expr::Lazy;
use crate::tape::{Rollback, settle};
use crate::{Device, Error, Result};
use netcl_device::driver::Access;
use netcl_device::record::{Command, Mode, Recording, Touched};

/// One buffer that a step asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRange {
    /// Bytes.
    pub bytes: usize,
    /// What it is for: the device's tag when it was asked for.
    pub tag: &'static str,
    /// Number of the model's layer, from 1; 0 for none. In a backward pass that of the forward.
    pub layer: u32,
    /// The operation that asked for it.
    pub op: &'static str,
    /// The kernel that writes it first.
    pub made_by: &'static str,
    /// First and last command that touches it; no last one for a buffer that outlives the step, and no first one either if it is
    /// read before it is written. A buffer that no command touches has none.
    pub commands: Option<(usize, usize)>,
    /// Whether it outlives the step.
    pub survives: bool,
}

/// A step's buffers and how many commands it took.
#[derive(Clone, Debug)]
pub struct Trace {
    /// In the order they were asked for.
    pub ranges: Vec<LiveRange>,
    /// What each command is called.
    pub names: Vec<&'static str>,
}

impl Trace {
    /// Runs `step` and notes what it does on this thread.
    ///
    /// # Errors
    /// Those of the step, whose gradients are then dropped; `Unsupported` when another step is being recorded on the device.
    pub fn of<T>(device: &Device, step: impl FnOnce() -> Result<T>) -> Result<(Self, T)> {
        let Recorded { recording, out, gradients } = recorded(device, Mode::Watch, step)?;
        gradients.accept();
        Ok((Self::from(&recording), out))
    }
}

impl Trace {
    /// Notes what `step` would do, without running it and without memory for its buffers. Kernels are compiled on the way; gradients
    /// are afterwards what they were before.
    ///
    /// # Errors
    /// Those of the step; `Unsupported` when it reads results on the host or keeps a buffer that it made.
    pub fn dry_run<T>(device: &Device, step: impl FnOnce() -> Result<T>) -> Result<Self> {
        let Recorded { recording, out, gradients } = recorded(device, Mode::DryRun, step)?;
        let trace = Self::from(&recording);
        // Gradients of a dry run have no memory.
        drop((out, gradients));
        if recording.is_kept() {
            return Err(Error::unsupported("capture: the first step keeps buffers for those that follow"));
        }
        Ok(trace)
    }
}

impl From<&Recording> for Trace {
    fn from(recording: &Recording) -> Self {
        let range = |a: &netcl_device::record::Allocation| LiveRange {
            bytes: a.bytes,
            tag: a.tag,
            layer: a.place.0,
            op: a.place.1,
            made_by: "",
            commands: None,
            survives: a.survives,
        };
        let mut ranges: Vec<LiveRange> = recording.allocations.iter().map(range).collect();
        for (at, command) in recording.commands.iter().enumerate() {
            let all = command.touched();
            for touched in &all {
                let Some(range) = touched.allocation.and_then(|i| ranges.get_mut(i)) else { continue };
                // A command that writes what nothing wrote before does not live on what it reads there: kernels name a result
                // also in the place of an argument that they do not use.
                let writes = |t: &&Touched| t.allocation == touched.allocation && t.access == Access::Write;
                let fresh = if all.iter().any(writes) { at } else { 0 };
                let first = range.commands.map_or(fresh, |(first, _)| first);
                range.commands = Some((first, at));
                if touched.access == Access::Write && range.made_by.is_empty() {
                    range.made_by = command.name();
                }
            }
        }
        for range in ranges.iter_mut().filter(|s| s.survives) {
            range.commands = Some((range.commands.map_or(0, |(first, _)| first), usize::MAX));
        }
        Self { ranges, names: recording.commands.iter().map(Command::name).collect() }
    }
}

/// A step that was recorded.
pub(super) struct Recorded<T> {
    pub recording: Recording,
    pub out: T,
    /// Gradients as they were before: they come back unless this is told that the step counts.
    pub gradients: Rollback,
}

/// Records `step`, and stops recording however it ends. Where it fails or panics, gradients are as they were before: what a captured
/// step has left in their place was never computed.
pub(super) fn recorded<T>(
    device: &Device,
    mode: Mode,
    step: impl FnOnce() -> Result<T>,
) -> Result<Recorded<T>> {
    if matches!(mode, Mode::Capture(_)) && device.debug().needs_each() {
        return Err(Error::unsupported(
            "capture: NETCL_DEBUG checks each launch, which replays of a captured step do not",
        ));
    }
    // What was deferred before the step is no part of it, and what it defers is.
    settle()?;
    let session = device.record(mode)?;
    let gradients = Rollback::start();
    let scope = Lazy::of_capture(!device.settings().no_fuse);
    let out = step().and_then(|out| settle().and_then(|()| scope.finish()).map(|()| out));
    let recording = session.stop()?;
    Ok(Recorded { recording, out: out?, gradients })
}
