//! Messages from rank to rank: the interface that every transport implements.

use crate::Watch;
use netcl_device::Result;

/// Messages between the ranks `0..size`. Messages from one rank to another arrive in the order they were sent.
///
/// Ranks call the same operations in the same order. An operation that only some ranks call waits for the others until it times out.
pub trait Transport: Send + Sync {
    /// Returns this rank.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn size(&self) -> usize;

    /// Sends bytes to one rank and fills the buffer in `from` with bytes from another, at the same time. Either argument may be absent.
    ///
    /// # Errors
    /// `Device` if a rank has ended or does not answer; the message names it.
    fn exchange(&self, to: Option<(usize, &[u8])>, from: Option<(usize, &mut [u8])>) -> Result<()>;

    /// Returns the watch: the wait timeout of this rank and its wait statistics.
    fn watch(&self) -> &Watch;

    /// Returns a display name of the transport: `threads`, `Open MPI 4.1.4`.
    fn name(&self) -> String;

    /// Returns true if ranks of one machine may exchange data through shared memory in addition to these messages.
    fn may_share_memory(&self) -> bool {
        true
    }

    /// Ends all ranks at once, because this one cannot continue. Does nothing if ranks are threads: waiting ranks detect the end when this one is
    /// dropped.
    fn abort(&self, _code: u8) {}

    /// Ends this rank's participation in order: all ranks call it, after their last message.
    ///
    /// # Errors
    /// `Device` if the transport could not be closed.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}
