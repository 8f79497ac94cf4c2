//! Versions of memory: the holder of a buffer can check whether it was overwritten.
//!
//! Every enqueued command that writes a buffer counts: kernels, fills, copies and uploads. Windows share the versions of their parent buffer. A write
//! through a window counts only for its range. Thus one parameter of an arena can change without its neighbors. Graph replays count nothing and cost
//! nothing.

use super::buffer::{Buffer, Promise, WeakBuffer};
use super::writes::Writes;
use crate::{Error, Result};
use std::cell::RefCell;
use std::ops::Range;

/// State of a buffer at one point in time. It does not keep the buffer alive.
#[derive(Clone)]
pub struct Version {
    storage: WeakBuffer,
    range: Range<usize>,
    number: u64,
}

impl Version {
    /// Returns the number of writes to the storage at that time.
    pub fn number(&self) -> u64 {
        self.number
    }
    /// Returns true if `buffer` shares memory with it.
    pub fn shares(&self, buffer: &Buffer) -> bool {
        let range = buffer.range();
        self.storage.is(buffer.whole()) && self.range.start < range.end && range.start < self.range.end
    }
    /// Returns true if `buffer` shares memory with it that was written since.
    pub fn is_stale_in(&self, buffer: &Buffer) -> bool {
        let changed = |writes: &Writes| writes.changed(&self.range, self.number);
        self.shares(buffer) && buffer.whole().write_counts().is_some_and(changed)
    }
}

impl Buffer {
    /// Returns the byte range within [`Buffer::whole`].
    fn range(&self) -> Range<usize> {
        self.start()..self.start() + self.bytes()
    }
    /// Returns the current version.
    pub fn version(&self) -> Version {
        let whole = self.whole();
        Version { storage: whole.downgrade().1, range: self.range(), number: self.writes() }
    }
    /// Returns the number of writes to the storage so far, through any window.
    pub fn writes(&self) -> u64 {
        self.whole().write_counts().map_or(0, Writes::count)
    }
    /// Counts a write.
    pub(crate) fn written(&self) {
        let Some(writes) = self.whole().write_counts() else { return };
        if self.promise() == Promise::Kept {
            return;
        }
        let range = (!self.same(self.whole())).then(|| self.range());
        WATCHED.with_borrow_mut(|watched| {
            // Writes of the watching code itself keep versions current that were current before.
            let own = watched.versions.iter_mut().filter(|v| v.shares(self) && !v.is_stale_in(self));
            let own: Vec<&mut Version> = own.collect();
            let number = writes.write(range.as_ref());
            own.into_iter().for_each(|version| version.number = number);
        });
    }
}

/// A version that was out of date when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Index in the list passed to [`watch`].
    pub index: usize,
    /// Number of writes to the storage at the time of the read.
    pub now: u64,
    /// Number of writes when the version was taken.
    pub then: u64,
}

#[derive(Default)]
struct Watched {
    versions: Vec<Version>,
    stale: Option<Stale>,
}

thread_local! {
    static WATCHED: RefCell<Watched> = const { RefCell::new(Watched { versions: Vec::new(), stale: None }) };
}

/// Restores the previous watch list.
struct Restore(Watched);

impl Drop for Restore {
    fn drop(&mut self) {
        WATCHED.set(std::mem::take(&mut self.0));
    }
}

/// Runs `f`. Within it, a command of this thread that reads memory of one of `versions` fails if that memory was overwritten since. Returns the stale
/// version, if any. Writes by `f` itself do not count.
pub fn watch<R>(versions: Vec<Version>, f: impl FnOnce() -> R) -> (R, Option<Stale>) {
    let _restore = Restore(WATCHED.replace(Watched { versions, stale: None }));
    let out = f();
    (out, WATCHED.with_borrow(|watched| watched.stale))
}

/// Rejects reads of memory that [`watch`] watches and that has changed.
pub(crate) fn check_reads<'a>(buffers: impl Iterator<Item = &'a Buffer>) -> Result<()> {
    WATCHED.with_borrow_mut(|watched| {
        if watched.versions.is_empty() {
            return Ok(());
        }
        for buffer in buffers {
            if let Some(index) = watched.versions.iter().position(|v| v.is_stale_in(buffer)) {
                let (now, then) = (buffer.writes(), watched.versions[index].number);
                watched.stale = Some(Stale { index, now, then });
                // Use a kind that does not make ops try another kernel.
                return Err(Error::launch(format!(
                    "saved memory is at version {now}, expected version {then}: it was overwritten"
                )));
            }
        }
        Ok(())
    })
}
