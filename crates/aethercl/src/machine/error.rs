//! What can go wrong on the machine, each with what a person needs to know.

use std::fmt;

/// A failure of the machine or of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuError {
    /// Not enough device memory.
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes of free pages.
        free: u64,
        /// Bytes there may be in all.
        capacity: u64,
    },
    /// An address range that is not inside one allocation, or one that was freed.
    Address(String),
    /// A kernel could not run, or stopped: what the engine says.
    Kernel {
        /// The kernel.
        name: String,
        /// Why.
        why: String,
    },
    /// A work-group of a kernel takes more than the device has: nothing ran.
    Resources {
        /// The kernel.
        name: String,
        /// What it takes and what there is.
        why: String,
    },
    /// A kernel did not end and the watchdog ended it.
    Hang {
        /// The kernel.
        name: String,
        /// After how long, ms of the device's clock.
        after_ms: u64,
        /// What is known of why.
        why: String,
    },
    /// Words in a ring that are no command.
    BadPacket {
        /// The header found.
        header: u32,
        /// The queue.
        queue: usize,
    },
    /// Every queue waits for another.
    Deadlock(String),
    /// The device is gone.
    Lost,
    /// Asked for by a test.
    Injected,
    /// Something that does not exist was named.
    Unknown(String),
}

impl fmt::Display for GpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory { asked, free, capacity } => {
                write!(f, "out of device memory: asked for {asked} bytes, {free} of {capacity} free")
            }
            Self::Address(what) | Self::Unknown(what) => f.write_str(what),
            Self::Kernel { name, why } => write!(f, "kernel {name}: {why}"),
            Self::Resources { name, why } => write!(f, "kernel {name}: CL_OUT_OF_RESOURCES: {why}"),
            Self::Hang { name, after_ms, why } => {
                write!(
                    f,
                    "kernel {name} did not end within {after_ms} ms of the device's clock and was ended"
                )?;
                if why.is_empty() { Ok(()) } else { write!(f, ": {why}") }
            }
            Self::BadPacket { header, queue } => {
                write!(f, "queue {queue}: the word {header:#010x} in its ring is no command")
            }
            Self::Deadlock(who) => write!(f, "every queue waits for another: {who}"),
            Self::Lost => f.write_str("the device is gone: it no longer answers"),
            Self::Injected => f.write_str("injected failure of a command"),
        }
    }
}

impl std::error::Error for GpuError {}

impl GpuError {
    /// What the register FAULT reads after it.
    pub(super) fn code(&self) -> u32 {
        match self {
            Self::BadPacket { .. } | Self::Deadlock(_) | Self::Unknown(_) => 1,
            Self::Address(_) | Self::OutOfMemory { .. } => 2,
            Self::Hang { .. } => 4,
            Self::Kernel { .. } | Self::Resources { .. } | Self::Injected | Self::Lost => 3,
        }
    }
}
