//! Events of transfers and fills, kept while their times are requested.

use crate::driver::TransferKind;
use crate::driver::{Event, QueueKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// A transfer whose times have not been read: kind, queue, bytes, event.
type PendingTransfer = (TransferKind, QueueKind, u64, Event);

/// Maximum number of kept transfers: a profile that is never stopped must not exhaust memory.
const MAX_TRANSFERS: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Transfers {
    on: AtomicBool,
    seen: Mutex<Vec<PendingTransfer>>,
}

impl Transfers {
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Starts or stops recording, and returns the transfers recorded so far.
    pub fn switch(&self, on: bool) -> Vec<PendingTransfer> {
        self.on.store(on, Ordering::Relaxed);
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records a transfer if recording is on.
    pub fn note(&self, kind: TransferKind, queue: QueueKind, bytes: usize, event: impl FnOnce() -> Event) {
        if self.is_on() {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.len() < MAX_TRANSFERS {
                seen.push((kind, queue, bytes as u64, event()));
            }
        }
    }
}
