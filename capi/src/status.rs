//! Status codes of calls, and the table that maps kinds of errors to them.

use aethercl::machine::GpuError;
use netcl::device::{Error, ErrorKind};

/// The status of a call. For every status except `NETCL_STATUS_OK`, `netcl_last_error()` returns the message.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetclStatus {
    /// Success.
    Ok = 0,
    /// The shapes do not match each other or the operation.
    Shape = 1,
    /// The operation does not support a tensor's dtype.
    Dtype = 2,
    /// Unknown device, missing OpenCL library, lost device, or objects of different devices.
    Device = 3,
    /// Out of memory, or above a limit of the device.
    Memory = 4,
    /// A kernel did not compile. The message contains the compiler's log.
    Build = 5,
    /// A kernel, copy or queue failed, or the simulated GPU's checks reported a finding.
    Launch = 6,
    /// This device or version does not support the request.
    Unsupported = 7,
    /// The contents of a file, a name or a string are invalid.
    Format = 8,
    /// Reading or writing a file failed.
    Io = 9,
    /// A defect of netcl. Please report it.
    Internal = 10,
    /// An invalid handle: freed, random, or of another kind of object.
    Handle = 11,
    /// An invalid argument: a null pointer, a negative size, or an index out of range.
    Argument = 12,
    /// A callback requested a stop.
    Stopped = 13,
}

/// The reason why a call failed: status code and message.
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

/// Returns the status code of a kind of error.
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
