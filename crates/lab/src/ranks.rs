//! The end of a rank of several processes.

use crate::out;
use netcl::dist::Group;
use netcl::prelude::*;

/// Reason for the end of a rank.
pub enum Failed {
    /// Every rank has this error, and the first one prints it.
    Shared(Error),
    /// Only this rank has this error.
    Own(Error),
}

impl Failed {
    /// Returns the error.
    pub fn into_error(self) -> Error {
        match self {
            Self::Shared(e) | Self::Own(e) => e,
        }
    }
}

/// Ends this process's part of `group`: in order, together after a shared error, or with all others after its own error.
///
/// # Errors
/// The error in `done`; those of the group.
pub fn finish(group: &Group, done: Result<(), Failed>) -> Result<()> {
    match done {
        Ok(()) => group.close(),
        Err(Failed::Shared(error)) => {
            if group.leads() {
                out::failure(&error);
            }
            out::hush();
            // A launcher ends the others when one process fails, so no rank leaves before the error is printed.
            group.barrier().and_then(|()| group.close()).unwrap_or_else(|e| tracing::debug!("{e}"));
            Err(error)
        }
        Err(Failed::Own(error)) => {
            out::failure(&error);
            out::hush();
            group.abort(error.kind().exit_code());
            Err(error)
        }
    }
}
