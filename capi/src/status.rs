//! What a call came to: the one table from kinds of errors to codes.

use aethercl::machine::GpuError;
use netcl::device::{Error, ErrorKind};

/// What a call came to. `netcl_last_error()` has the sentence to any but `NETCL_STATUS_OK`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetclStatus {
    /// It did what it was asked for.
    Ok = 0,
    /// Shapes do not fit each other or the operation.
    Shape = 1,
    /// A tensor has a dtype that the operation does not take.
    Dtype = 2,
    /// No such device, no OpenCL library, a device that was lost, or objects of two devices.
    Device = 3,
    /// Out of memory, or above a limit of the device.
    Memory = 4,
    /// A kernel did not compile; the text has the compiler's log.
    Build = 5,
    /// A kernel, a copy or a queue failed. On the simulated GPU also what its checks found.
    Launch = 6,
    /// This device or version cannot do it.
    Unsupported = 7,
    /// A file, a name or a text does not say what it should.
    Format = 8,
    /// Reading or writing a file failed.
    Io = 9,
    /// A defect of netcl: please report it.
    Internal = 10,
    /// A handle that was freed, belongs to another kind of object, or never was one.
    Handle = 11,
    /// An argument that cannot be: a null pointer, a negative size, an index outside of what there is.
    Argument = 12,
    /// A callback asked to stop.
    Stopped = 13,
}

/// Why a call failed: its code and its sentence.
#[derive(Debug)]
pub struct Failure {
    pub status: NetclStatus,
    pub message: String,
}

pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub fn new(status: NetclStatus, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
    pub fn argument(message: impl Into<String>) -> Self {
        Self::new(NetclStatus::Argument, message)
    }
}

/// The code of a kind.
fn code(kind: ErrorKind) -> NetclStatus {
    match kind {
        ErrorKind::Shape => NetclStatus::Shape,
        ErrorKind::DType => NetclStatus::Dtype,
        ErrorKind::Device => NetclStatus::Device,
        ErrorKind::Memory => NetclStatus::Memory,
        ErrorKind::Build => NetclStatus::Build,
        ErrorKind::Launch => NetclStatus::Launch,
        ErrorKind::Unsupported => NetclStatus::Unsupported,
        ErrorKind::Format => NetclStatus::Format,
        ErrorKind::Io => NetclStatus::Io,
        ErrorKind::Internal => NetclStatus::Internal,
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::new(code(e.kind()), e.message())
    }
}

impl From<GpuError> for Failure {
    fn from(e: GpuError) -> Self {
        let status = match &e {
            GpuError::OutOfMemory { .. } => NetclStatus::Memory,
            GpuError::Lost => NetclStatus::Device,
            GpuError::Unknown(_) | GpuError::Address(_) => NetclStatus::Argument,
            _ => NetclStatus::Launch,
        };
        Self::new(status, e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_code_of_its_own() {
        let mut codes: Vec<i32> = ErrorKind::ALL.iter().map(|kind| code(*kind) as i32).collect();
        codes.dedup();
        assert_eq!(codes, (1..=10).collect::<Vec<_>>());
    }
}
