//! Records what a step does while it runs.

use crate::expr::Lazy;
use crate::tape::{Rollback, settle};
use crate::{Device, Error, Result};
use netcl_device::driver::Access;
use netcl_device::record::{Command, Mode, Recording, Touched};

/// A buffer that a step allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRange {
    /// Size in bytes.
    pub bytes: usize,
    /// Purpose: the device's tag at the allocation.
    pub tag: &'static str,
    /// Number of the model's layer, from 1; 0 for none. In a backward pass, the layer of the forward.
    pub layer: u32,
    /// Operation that allocated it.
    pub op: &'static str,
    /// First kernel that writes it.
    pub made_by: &'static str,
    /// First and last command that uses it. The last command is `None` if the buffer outlives the step, and no first command either if it is
    /// read before it is written. `None` if no command uses it.
    pub commands: Option<(usize, usize)>,
    /// Whether it outlives the step.
    pub survives: bool,
}

/// A step's buffers and commands.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Buffers in the order of their allocation.
    pub ranges: Vec<LiveRange>,
    /// Name of each command.
    pub names: Vec<&'static str>,
}

impl Trace {
    /// Runs `step` and records what it does on this thread.
    ///
    /// # Errors
    /// Errors of the step, whose gradients are then dropped; `Unsupported` if another step is being recorded on the device.
    pub fn of<T>(device: &Device, step: impl FnOnce() -> Result<T>) -> Result<(Self, T)> {
        let Recorded { recording, out, gradients } = recorded(device, Mode::Watch, step)?;
        gradients.accept();
        Ok((Self::from(&recording), out))
    }
}

impl Trace {
    /// Records what `step` would do, without running it and without memory for its buffers. Kernels are compiled. Gradients are restored
    /// afterwards.
    ///
    /// # Errors
    /// Errors of the step; `Unsupported` if it reads results on the host or keeps a buffer that it allocated.
    pub fn dry_run<T>(device: &Device, step: impl FnOnce() -> Result<T>) -> Result<Self> {
        let Recorded { recording, out, gradients } = recorded(device, Mode::DryRun, step)?;
        let trace = Self::from(&recording);
        // Gradients of a dry run do not have memory.
        drop((out, gradients));
        if recording.is_kept() {
            return Err(Error::unsupported(
                "capture: the first step keeps buffers for later steps; run it once before",
            ));
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
                // Reading memory that was never written does not keep it alive: kernels also pass a result in the place of an unused
                // argument.
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

/// A recorded step.
pub(super) struct Recorded<T> {
    pub recording: Recording,
    pub out: T,
    /// Earlier gradients. They are restored unless the step is accepted.
    pub gradients: Rollback,
}

/// Records `step`, and stops recording however it ends. If it fails or panics, gradients are restored: the gradients that a captured step
/// has left were never computed.
pub(super) fn recorded<T>(
    device: &Device,
    mode: Mode,
    step: impl FnOnce() -> Result<T>,
) -> Result<Recorded<T>> {
    if matches!(mode, Mode::Capture(_)) && device.debug().needs_each() {
        return Err(Error::unsupported(
            "capture: NETCL_DEBUG checks each launch, which replays of a captured step do not support",
        ));
    }
    // Ops deferred before the step are not part of it; ops that it defers are.
    settle()?;
    let session = device.record(mode)?;
    let gradients = Rollback::start();
    let scope = Lazy::of_capture(!device.settings().no_fuse);
    let out = step().and_then(|out| settle().and_then(|()| scope.finish()).map(|()| out));
    let recording = session.stop()?;
    Ok(Recorded { recording, out: out?, gradients })
}
