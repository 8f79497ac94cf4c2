//! Events of transfers and fills, kept while somebody wants to know their times.

use crate::driver::TransferKind;
use crate::driver::{Event, QueueKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// A transfer whose times were not read yet: what, where, bytes, when.
type Seen = (TransferKind, QueueKind, u64, Event);

/// Transfers kept at most: a profile that nobody ends must not fill the memory.
const MOST: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Transfers {
    on: AtomicBool,
    seen: Mutex<Vec<Seen>>,
}

impl Transfers {
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Begins or ends, and hands over what was seen so far.
    pub fn switch(&self, on: bool) -> Vec<Seen> {
        self.on.store(on, Ordering::Relaxed);
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes a transfer while that is wanted.
    pub fn note(&self, kind: TransferKind, queue: QueueKind, bytes: usize, event: impl FnOnce() -> Event) {
        if self.is_on() {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.len() < MOST {
                seen.push((kind, queue, bytes as u64, event()));
            }
        }
    }
}
