//! The one error of the workspace: a kind, which decides exit code and exception, and a sentence that says
//! what was expected, what was found and what to do.

use std::fmt;

/// Result of everything fallible in netcl.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, coarsely: the table in `docs/errors.md` maps it to exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Shapes do not fit each other or the operation.
    Shape,
    /// A tensor has a dtype the operation does not take.
    DType,
    /// No such device, no OpenCL library, or a device that was lost.
    Device,
    /// Out of device or host memory, or above a limit of the device.
    Memory,
    /// A kernel did not compile.
    Build,
    /// A driver call for a kernel, copy or queue failed.
    Launch,
    /// Asked for something this device or version cannot do.
    Unsupported,
    /// A file or an argument does not say what it should.
    Format,
    /// Reading or writing a file failed.
    Io,
    /// A defect of netcl itself.
    Internal,
}

impl ErrorKind {
    /// Every kind, in the order of `docs/errors.md`.
    pub const ALL: [ErrorKind; 10] = [
        Self::Shape,
        Self::DType,
        Self::Device,
        Self::Memory,
        Self::Build,
        Self::Launch,
        Self::Unsupported,
        Self::Format,
        Self::Io,
        Self::Internal,
    ];

    /// Exit status of the command line program. 2 is usage, 130 and 143 are signals.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Device => 3,
            Self::Memory => 4,
            Self::Build => 5,
            Self::Launch => 6,
            _ => 1,
        }
    }
}

/// An error: kind and sentence. Cheap to move; the parts are behind one box.
#[derive(Clone)]
pub struct Error(Box<Parts>);

#[derive(Clone)]
struct Parts {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Parts { kind, message: message.into() }))
    }
    /// The coarse kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
    /// The sentence alone, without the kind.
    pub fn message(&self) -> &str {
        &self.0.message
    }
    /// The same error with `context: ` before its sentence.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }
    /// `Io`, with the path and what was being done to it.
    pub fn io(doing: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        let hint = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                "; free some space and run again, what was saved before is intact"
            }
            _ => "",
        };
        Self::new(ErrorKind::Io, format!("{doing} {}: {error}{hint}", path.display()))
    }
}

impl Error {
    /// Kind [`ErrorKind::Shape`].
    pub fn shape(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Shape, message)
    }
    /// Kind [`ErrorKind::DType`].
    pub fn dtype(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::DType, message)
    }
    /// Kind [`ErrorKind::Device`].
    pub fn device(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Device, message)
    }
    /// Kind [`ErrorKind::Memory`].
    pub fn memory(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Memory, message)
    }
    /// Kind [`ErrorKind::Build`].
    pub fn build(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Build, message)
    }
    /// Kind [`ErrorKind::Launch`].
    pub fn launch(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Launch, message)
    }
    /// Kind [`ErrorKind::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }
    /// Kind [`ErrorKind::Format`].
    pub fn format(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Format, message)
    }
    /// Kind [`ErrorKind::Internal`].
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)
    }
}

impl std::error::Error for Error {}
