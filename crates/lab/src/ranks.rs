//! How a rank of several processes ends.

use crate::out;
use netcl::dist::Group;
use netcl::prelude::*;

/// Why a rank ends.
pub enum Failed {
    /// Every rank has this error, and the first one says it.
    Shared(Error),
    /// Only this rank knows of it.
    Own(Error),
}

impl Failed {
    /// The error itself.
    pub fn into_error(self) -> Error {
        match self {
            Self::Shared(e) | Self::Own(e) => e,
        }
    }
}

/// Ends this process's part of `group`: in order, together after an error of all, or with all others after one of its own.
///
/// # Errors
/// What `done` says; those of the group.
pub fn finish(group: &Group, done: Result<(), Failed>) -> Result<()> {
    match done {
        Ok(()) => group.close(),
        Err(Failed::Shared(error)) => {
            if group.leads() {
                out::failure(&error);
            }
            out::hush();
            // A launcher ends the others when one process fails: nobody leaves before it was said.
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
