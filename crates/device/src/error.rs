//! The error type of the workspace: a kind, which determines exit code and exception, and a sentence. The sentence says what was expected, what was
//! found and what to do.

use std::fmt;

/// Result of every fallible function in netcl.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error category. The table in `docs/errors.md` maps it to exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Shapes do not match each other or the operation.
    Shape,
    /// The operation does not accept a tensor's dtype.
    DType,
    /// No such device, no OpenCL library, or a lost device.
    Device,
    /// Out of device or host memory, or above a limit of the device.
    Memory,
    /// A kernel did not compile.
    Build,
    /// A driver call for a kernel, copy or queue failed.
    Launch,
    /// This device or version does not support the request.
    Unsupported,
    /// A file or an argument has invalid content.
    Format,
    /// Reading or writing a file failed.
    Io,
    /// A defect in netcl.
    Internal,
}

impl ErrorKind {
    /// All kinds, in the order of `docs/errors.md`.
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

    /// Returns the exit status of the command-line program. 2 is a usage error; 130 and 143 are signals.
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

/// An error: kind and sentence. It is cheap to move because both parts share one box.
#[derive(Clone)]
pub struct Error(Box<Parts>);

#[derive(Clone)]
struct Parts {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// Returns an error of `kind` with `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Parts { kind, message: message.into() }))
    }
    /// Returns the error category.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
    /// Returns the sentence without the kind.
    pub fn message(&self) -> &str {
        &self.0.message
    }
    /// Returns the same error with `context: ` before the sentence.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }
    /// Returns an `Io` error with the path and the attempted operation.
    pub fn io(doing: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        let hint = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                "; free some space and run again; data saved before is intact"
            }
            _ => "",
        };
        Self::new(ErrorKind::Io, format!("{doing} {}: {error}{hint}", path.display()))
    }
}

impl Error {
    /// Creates an error of kind [`ErrorKind::Shape`].
    pub fn shape(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Shape, message)
    }
    /// Creates an error of kind [`ErrorKind::DType`].
    pub fn dtype(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::DType, message)
    }
    /// Creates an error of kind [`ErrorKind::Device`].
    pub fn device(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Device, message)
    }
    /// Creates an error of kind [`ErrorKind::Memory`].
    pub fn memory(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Memory, message)
    }
    /// Creates an error of kind [`ErrorKind::Build`].
    pub fn build(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Build, message)
    }
    /// Creates an error of kind [`ErrorKind::Launch`].
    pub fn launch(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Launch, message)
    }
    /// Creates an error of kind [`ErrorKind::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }
    /// Creates an error of kind [`ErrorKind::Format`].
    pub fn format(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Format, message)
    }
    /// Creates an error of kind [`ErrorKind::Internal`].
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
