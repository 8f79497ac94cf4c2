//! Errors of the machine, each with the relevant details.

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
        /// Total capacity in bytes.
        capacity: u64,
    },
    /// An address range that is not inside one allocation, or a freed one.
    Address(String),
    /// A kernel could not run or stopped: the engine's message.
    Kernel {
        /// The kernel.
        name: String,
        /// The engine's message.
        why: String,
    },
    /// A work-group of a kernel needs more resources than the device has: nothing ran.
    Resources {
        /// The kernel.
        name: String,
        /// Required and available resources.
        why: String,
    },
    /// A kernel did not end, and the watchdog stopped it.
    Hang {
        /// The kernel.
        name: String,
        /// Run time until it was stopped, in ms of the device clock.
        after_ms: u64,
        /// Known details of the cause.
        why: String,
    },
    /// Words in a ring that are not a command.
    BadPacket {
        /// The header found.
        header: u32,
        /// The queue.
        queue: usize,
    },
    /// Every queue waits for another.
    Deadlock(String),
    /// The device was lost.
    Lost,
    /// A fault injected by a test.
    Injected,
    /// A reference to an object that does not exist.
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
                write!(f, "queue {queue}: the word {header:#010x} in its ring is not a command")
            }
            Self::Deadlock(who) => write!(f, "every queue waits for another: {who}"),
            Self::Lost => f.write_str("the device is gone: it no longer answers"),
            Self::Injected => f.write_str("injected failure of a command"),
        }
    }
}

impl std::error::Error for GpuError {}

impl GpuError {
    /// Returns the value of the register FAULT after this error.
    pub(super) fn code(&self) -> u32 {
        match self {
            Self::BadPacket { .. } | Self::Deadlock(_) | Self::Unknown(_) => 1,
            Self::Address(_) | Self::OutOfMemory { .. } => 2,
            Self::Hang { .. } => 4,
            Self::Kernel { .. } | Self::Resources { .. } | Self::Injected | Self::Lost => 3,
        }
    }
}
