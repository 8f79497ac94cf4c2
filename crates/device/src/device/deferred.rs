//! Deferred commands of a thread. Their writes are promised, and they are enqueued before any other command uses the buffers.

pub use super::buffer::Promise;

use super::Buffer;
use crate::driver::Access;
use crate::{Error, Result};
use std::cell::RefCell;
use std::rc::Rc;

/// A component that defers commands on a thread.
pub trait Deferred {
    /// Called before a command of this thread that reads or writes `buffer` is enqueued. Enqueues the deferred commands that must run first.
    ///
    /// # Errors
    /// Errors of the deferred commands.
    fn before(&self, buffer: &Buffer, access: Access) -> Result<()>;
    /// Enqueues all deferred commands.
    ///
    /// # Errors
    /// Same as [`Deferred::before`].
    fn all(&self) -> Result<()>;
}

thread_local! {
    static DEFERRED: RefCell<Option<Rc<dyn Deferred>>> = const { RefCell::new(None) };
}

/// Sets the component that defers commands on this thread and returns the previous one.
pub fn defer_by(deferred: Option<Rc<dyn Deferred>>) -> Option<Rc<dyn Deferred>> {
    DEFERRED.replace(deferred)
}

/// Call this before a command that accesses `buffers` with `access`.
pub(super) fn before<'a>(buffers: impl Iterator<Item = &'a Buffer>, access: Access) -> Result<()> {
    let deferred = DEFERRED.with_borrow(Clone::clone);
    for buffer in buffers {
        if let Some(deferred) = &deferred {
            deferred.before(buffer, access)?;
        }
        if buffer.promise() == Promise::Open {
            return Err(Error::launch(
                "a tensor of a lazy scope or of a captured step is used before it was computed: the scope belongs to another thread, or ended with \
                 an error",
            ));
        }
    }
    Ok(())
}

/// Call this before an operation that may depend on any command of this thread.
pub(super) fn all() -> Result<()> {
    DEFERRED.with_borrow(Clone::clone).map_or(Ok(()), |deferred| deferred.all())
}
