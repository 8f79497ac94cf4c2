//! Messages from rank to rank: all that a means of transport has to offer.

use crate::Watch;
use netcl_device::Result;

/// Messages between the ranks `0..size`. Messages from one rank to another arrive in the order they were sent.
///
/// Ranks call the same operations in the same order; what one of them does alone waits for the others until it gives up.
pub trait Transport: Send + Sync {
    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Sends bytes to a rank and receives as many as `from` has room for from another, at the same time; either may be absent.
    ///
    /// # Errors
    /// `Device` if a rank has ended or does not answer; the message names it.
    fn exchange(&self, to: Option<(usize, &[u8])>, from: Option<(usize, &mut [u8])>) -> Result<()>;

    /// How long this rank waits for others, and what it knows of its waiting.
    fn watch(&self) -> &Watch;

    /// What carries the messages, for people: `threads`, `Open MPI 4.1.4`.
    fn name(&self) -> String;

    /// Whether ranks of one machine may exchange data through memory that they share, beside these messages.
    fn may_share_memory(&self) -> bool {
        true
    }

    /// Ends all ranks at once, because this one cannot go on. Where ranks are threads, those that wait for this one learn of its end when
    /// it is dropped, and nothing happens here.
    fn abort(&self, _code: u8) {}

    /// Ends this rank's part in order: all ranks call it, after their last message.
    ///
    /// # Errors
    /// `Device` if the transport could not be closed.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}
