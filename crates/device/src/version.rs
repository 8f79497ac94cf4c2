//! Versions of memory: whoever keeps a buffer for later can tell whether it was overwritten meanwhile.
//!
//! Every command that is enqueued and writes a buffer counts, whether a kernel, a fill, a copy or an upload. Windows share the
//! versions of the buffer that they are windows of: a write through one of them counts where it lies, so that one parameter of an
//! arena can change without those beside it. Replays of a graph count nothing and cost nothing.

use crate::buffer::WeakBuffer;
use crate::{Buffer, Error, Result};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Parts of a buffer that are told apart; beyond that a write of one counts as a write of all.
const PARTS: usize = 1 << 14;

/// Writes of one buffer and of its windows.
#[derive(Default)]
pub(crate) struct Versions {
    /// Writes so far, each numbered by this count.
    writes: AtomicU64,
    /// The last write that counts for the whole buffer.
    whole: AtomicU64,
    /// The last write of each window that was written: first byte, end, number of the write; by the first byte.
    parts: Mutex<Vec<(usize, usize, u64)>>,
}

impl Versions {
    fn parts(&self) -> MutexGuard<'_, Vec<(usize, usize, u64)>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a write of `range`, or of all without one; its number.
    fn write(&self, range: Option<&Range<usize>>) -> u64 {
        let number = self.writes.fetch_add(1, Ordering::AcqRel) + 1;
        let Some(Range { start, end }) = range.cloned() else {
            self.whole.fetch_max(number, Ordering::AcqRel);
            return number;
        };
        let mut parts = self.parts();
        match parts.binary_search_by_key(&(start, end), |part| (part.0, part.1)) {
            Ok(at) => parts[at].2 = number,
            Err(at) if parts.len() < PARTS => parts.insert(at, (start, end, number)),
            Err(_) => {
                parts.clear();
                self.whole.fetch_max(number, Ordering::AcqRel);
            }
        }
        number
    }

    /// Whether `range` was written after write `number`.
    fn changed(&self, range: &Range<usize>, number: u64) -> bool {
        if self.writes.load(Ordering::Acquire) == number {
            return false;
        }
        let meets =
            |part: &(usize, usize, u64)| part.2 > number && part.0 < range.end && range.start < part.1;
        self.whole.load(Ordering::Acquire) > number || self.parts().iter().any(meets)
    }
}

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
        let changed = |versions: &Versions| versions.changed(&self.range, self.number);
        self.shares(buffer) && buffer.whole().versions().is_some_and(changed)
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
        self.whole().versions().map_or(0, |v| v.writes.load(Ordering::Acquire))
    }
    /// Counts a write.
    pub(crate) fn written(&self) {
        let Some(versions) = self.whole().versions() else { return };
        let range = (!self.same(self.whole())).then(|| self.range());
        WATCHED.with_borrow_mut(|watched| {
            // What was current before a write of those who watch it stays theirs.
            let own = watched.versions.iter_mut().filter(|v| v.shares(self) && !v.is_stale_in(self));
            let own: Vec<&mut Version> = own.collect();
            let number = versions.write(range.as_ref());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_written_leaves_its_neighbours_as_they_were() {
        let versions = Versions::default();
        let whole = versions.write(None);
        assert!(!versions.changed(&(0..64), whole));
        let part = versions.write(Some(&(16..32)));
        assert!(versions.changed(&(0..64), whole) && versions.changed(&(31..40), whole));
        assert!(!versions.changed(&(0..16), whole) && !versions.changed(&(32..64), whole));
        assert!(!versions.changed(&(16..32), part));
        let again = versions.write(Some(&(16..32)));
        assert!(versions.changed(&(16..17), part) && again == 3);
        versions.write(None);
        assert!(versions.changed(&(0..16), again));
    }

    #[test]
    fn more_parts_than_are_told_apart_count_as_all() {
        let versions = Versions::default();
        for i in 0..PARTS {
            versions.write(Some(&(i..i + 1)));
        }
        let number = versions.writes.load(Ordering::Acquire);
        assert!(!versions.changed(&(PARTS..2 * PARTS), 0));
        versions.write(Some(&(PARTS..PARTS + 1)));
        assert!(versions.changed(&(0..1), number) && versions.parts().is_empty());
    }
}
