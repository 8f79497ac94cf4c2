//! Versions of memory: whoever keeps a buffer for later can tell whether it was overwritten meanwhile.
//!
//! Every command that is enqueued and writes a buffer counts, whether a kernel, a fill, a copy or an upload. Windows share the
//! versions of the buffer that they are windows of: a write through one of them counts where it lies, so that one parameter of an
//! arena can change without those beside it. Replays of a graph count nothing and cost nothing.

use super::buffer::{Buffer, Promise, WeakBuffer};
use super::writes::Writes;
use crate::{Error, Result};
use std::cell::RefCell;
use std::ops::Range;

/// What a buffer was at one time. It does not keep the buffer.
#[derive(Clone)]
pub struct Version {
    storage: WeakBuffer,
    range: Range<usize>,
    number: u64,
}

impl Version {
    /// How many writes of the storage there had been.
    pub fn number(&self) -> u64 {
        self.number
    }
    /// Whether `buffer` shares memory with it.
    pub fn shares(&self, buffer: &Buffer) -> bool {
        let range = buffer.range();
        self.storage.is(buffer.whole()) && self.range.start < range.end && range.start < self.range.end
    }
    /// Whether `buffer` shares memory with it that was written since.
    pub fn is_stale_in(&self, buffer: &Buffer) -> bool {
        let changed = |writes: &Writes| writes.changed(&self.range, self.number);
        self.shares(buffer) && buffer.whole().write_counts().is_some_and(changed)
    }
}

impl Buffer {
    /// Bytes of [`Buffer::whole`] that this is.
    fn range(&self) -> Range<usize> {
        self.start()..self.start() + self.bytes()
    }
    /// What it is now.
    pub fn version(&self) -> Version {
        let whole = self.whole();
        Version { storage: whole.downgrade().1, range: self.range(), number: self.writes() }
    }
    /// Writes of the storage so far, through any window of it.
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
            // What was current before a write of those who watch it stays theirs.
            let own = watched.versions.iter_mut().filter(|v| v.shares(self) && !v.is_stale_in(self));
            let own: Vec<&mut Version> = own.collect();
            let number = writes.write(range.as_ref());
            own.into_iter().for_each(|version| version.number = number);
        });
    }
}

/// A version that was not current any more when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Which of those that [`watch`] was given.
    pub index: usize,
    /// Writes of its storage by then.
    pub now: u64,
    /// Writes when it was kept.
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

/// Puts back what was watched before.
struct Restore(Watched);

impl Drop for Restore {
    fn drop(&mut self) {
        WATCHED.set(std::mem::take(&mut self.0));
    }
}

/// Runs `f`, in which commands of this thread that read memory of one of `versions` fail if it was overwritten since; says which, if
/// any did. What `f` itself overwrites is its own affair.
pub fn watch<R>(versions: Vec<Version>, f: impl FnOnce() -> R) -> (R, Option<Stale>) {
    let _restore = Restore(WATCHED.replace(Watched { versions, stale: None }));
    let out = f();
    (out, WATCHED.with_borrow(|watched| watched.stale))
}

/// Refuses to read what [`watch`] was told to watch and is not what it was.
pub(crate) fn check_reads<'a>(buffers: impl Iterator<Item = &'a Buffer>) -> Result<()> {
    WATCHED.with_borrow_mut(|watched| {
        if watched.versions.is_empty() {
            return Ok(());
        }
        for buffer in buffers {
            if let Some(index) = watched.versions.iter().position(|v| v.is_stale_in(buffer)) {
                let (now, then) = (buffer.writes(), watched.versions[index].number);
                watched.stale = Some(Stale { index, now, then });
                // No kind that makes ops try another kernel.
                return Err(Error::launch(format!(
                    "memory that was kept is at version {now}, expected version {then}: it was overwritten"
                )));
            }
        }
        Ok(())
    })
}
