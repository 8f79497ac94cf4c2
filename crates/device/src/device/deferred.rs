//! Deferred commands of a thread: what they will write is promised, and they are enqueued before anything else uses it.

pub use super::buffer::Promise;

use super::Buffer;
use crate::driver::Access;
use crate::{Error, Result};
use std::cell::RefCell;
use std::rc::Rc;

/// Whoever defers commands on a thread.
pub trait Deferred {
    /// A command of this thread is about to be enqueued that reads or writes `buffer`: what has to come before it is enqueued now.
    ///
    /// # Errors
    /// Those of the deferred commands.
    fn before(&self, buffer: &Buffer, access: Access) -> Result<()>;
    /// All deferred commands are enqueued now.
    ///
    /// # Errors
    /// As [`Deferred::before`].
    fn all(&self) -> Result<()>;
}

thread_local! {
    static DEFERRED: RefCell<Option<Rc<dyn Deferred>>> = const { RefCell::new(None) };
}

/// Who defers commands on this thread from now on; who did so before.
pub fn defer_by(deferred: Option<Rc<dyn Deferred>>) -> Option<Rc<dyn Deferred>> {
    DEFERRED.replace(deferred)
}

/// To be called before a command that uses `buffers` so.
pub(super) fn before<'a>(buffers: impl Iterator<Item = &'a Buffer>, access: Access) -> Result<()> {
    let deferred = DEFERRED.with_borrow(Clone::clone);
    for buffer in buffers {
        if let Some(deferred) = &deferred {
            deferred.before(buffer, access)?;
        }
        if buffer.promise() == Promise::Open {
            return Err(Error::launch(
                "a tensor of a lazy scope or of a captured step is used that was not computed: the scope is another thread's, or it ended with an error",
            ));
        }
    }
    Ok(())
}

/// To be called before what may depend on any command of this thread.
pub(super) fn all() -> Result<()> {
    DEFERRED.with_borrow(Clone::clone).map_or(Ok(()), |deferred| deferred.all())
}
