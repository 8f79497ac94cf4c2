//! Counts the writes of one buffer and of its windows, each window separately.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of separately counted parts of a buffer. Above it, a write to one part counts as a write to the whole.
const PARTS: usize = 1 << 14;

/// Writes of one buffer and of its windows.
#[derive(Default)]
pub(crate) struct Writes {
    /// Number of writes so far. It also numbers each write.
    writes: AtomicU64,
    /// The last write that counts for the whole buffer.
    whole: AtomicU64,
    /// The last write of each written window: first byte, end, number of the write; sorted by the first byte.
    parts: Mutex<Vec<(usize, usize, u64)>>,
}

impl Writes {
    /// Returns the number of writes so far.
    pub fn count(&self) -> u64 {
        self.writes.load(Ordering::Acquire)
    }

    fn parts(&self) -> MutexGuard<'_, Vec<(usize, usize, u64)>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a write of `range`, or of the whole buffer for `None`. Returns its number.
    pub fn write(&self, range: Option<&Range<usize>>) -> u64 {
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

    /// Returns true if `range` was written after write `number`.
    pub fn changed(&self, range: &Range<usize>, number: u64) -> bool {
        if self.count() == number {
            return false;
        }
        let overlaps =
            |part: &(usize, usize, u64)| part.2 > number && part.0 < range.end && range.start < part.1;
        self.whole.load(Ordering::Acquire) > number || self.parts().iter().any(overlaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_written_leaves_its_neighbours_as_they_were() {
        let writes = Writes::default();
        let whole = writes.write(None);
        assert!(!writes.changed(&(0..64), whole));
        let part = writes.write(Some(&(16..32)));
        assert!(writes.changed(&(0..64), whole) && writes.changed(&(31..40), whole));
        assert!(!writes.changed(&(0..16), whole) && !writes.changed(&(32..64), whole));
        assert!(!writes.changed(&(16..32), part));
        let again = writes.write(Some(&(16..32)));
        assert!(writes.changed(&(16..17), part) && again == 3);
        writes.write(None);
        assert!(writes.changed(&(0..16), again));
    }

    #[test]
    fn more_parts_than_are_told_apart_count_as_all() {
        let writes = Writes::default();
        for i in 0..PARTS {
            writes.write(Some(&(i..i + 1)));
        }
        let number = writes.count();
        assert!(!writes.changed(&(PARTS..2 * PARTS), 0));
        writes.write(Some(&(PARTS..PARTS + 1)));
        assert!(writes.changed(&(0..1), number) && writes.parts().is_empty());
    }
}
