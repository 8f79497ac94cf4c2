//! Pinned staging memory for uploads: a ring of page-locked host memory. A write returns as soon as the data is in the ring, and the transfer runs
//! concurrently with the host. Pageable memory transfers at a third of the speed on discrete GPUs.

use super::objects::{ClEvent, Shared, cl_event};
use super::result::{check, need};
use super::sys::{self, Ptr};
use super::transfers::Transfers;
use crate::driver::TransferKind;
use crate::driver::{Event, QueueKind};
use crate::{Error, Result};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

/// Maximum bytes of the ring: several batches of tokens, or a large part of a weight matrix.
const RING: usize = 8 << 20;

/// `CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST`: the awaited command ended with an error.
const EXEC_STATUS_ERROR: sys::Int = -14;

/// Returns the ring size for a device with this much memory. A small or simulated device has better uses for 8 MiB.
fn ring_bytes(global_mem: u64) -> usize {
    usize::try_from(global_mem / 256).unwrap_or(RING).clamp(64 << 10, RING)
}

pub(super) struct Staging {
    shared: Arc<Shared>,
    transfers: Arc<Transfers>,
    ring: Option<Ring>,
    places: Places<Event>,
}

/// Occupied parts of a ring of `bytes`.
struct Places<T> {
    bytes: usize,
    /// Running transfers, oldest first, and the part of the ring that each reads.
    pending: VecDeque<(Range<usize>, T)>,
    head: usize,
}

impl<T> Places<T> {
    fn new(bytes: usize) -> Self {
        Self { bytes, pending: VecDeque::new(), head: 0 }
    }
    /// Returns the start of a free part, after waiting for the transfers that still read there. The oldest transfer does not always block later ones.
    /// If a piece does not fit before the ring's end, a transfer near the end can stay while others wrap around.
    ///
    /// A transfer is removed after its wait returned successfully. If a wait fails, that transfer and the later ones still own their parts.
    fn reserve<E>(
        &mut self,
        bytes: usize,
        mut wait: impl FnMut(&T) -> std::result::Result<(), E>,
    ) -> std::result::Result<usize, E> {
        let start = if self.head + bytes > self.bytes { 0 } else { self.head };
        let wanted = start..start + bytes;
        let overlaps = |r: &Range<usize>| r.start < wanted.end && wanted.start < r.end;
        let old = self.pending.iter().rposition(|(r, _)| overlaps(r)).map_or(0, |last| last + 1);
        for _ in 0..old {
            if let Some((_, transfer)) = self.pending.front() {
                wait(transfer)?;
            }
            self.pending.pop_front();
        }
        self.head = start + bytes.next_multiple_of(1024);
        Ok(start)
    }
}

struct Ring {
    memory: Ptr,
    host: *mut u8,
}

// SAFETY: the ring is accessed only through `&mut Staging`.
unsafe impl Send for Staging {}

impl Staging {
    pub fn new(shared: Arc<Shared>, transfers: Arc<Transfers>, global_mem: u64) -> Self {
        Self { shared, transfers, ring: None, places: Places::new(ring_bytes(global_mem)) }
    }

    /// Copies `data` into the ring in pieces and enqueues the transfers.
    pub fn write(&mut self, queue: QueueKind, to: Ptr, offset: usize, data: &[u8]) -> Result<()> {
        let write = need(self.shared.table.clEnqueueWriteBuffer, "clEnqueueWriteBuffer")?;
        let host = self.ring()?;
        let half = self.places.bytes / 2;
        for (i, piece) in data.chunks(half).enumerate() {
            let at = self.reserve(piece.len())?;
            let to_offset = offset + i * half;
            let mut event = std::ptr::null_mut();
            let q = self.shared.queue(queue);
            // SAFETY: `reserve` returned a part of the ring that no pending transfer reads and that holds the piece; it stays
            // untouched until the event recorded below has completed.
            let code = unsafe {
                let slot = host.add(at);
                std::ptr::copy_nonoverlapping(piece.as_ptr(), slot, piece.len());
                write(q, to, 0, to_offset, piece.len(), slot.cast(), 0, std::ptr::null(), &raw mut event)
            };
            check("clEnqueueWriteBuffer", || format!("{} bytes at {to_offset}", piece.len()), code)?;
            let event = Event::new(ClEvent::new(&self.shared, event));
            self.transfers.note(TransferKind::Upload, queue, piece.len(), || event.clone());
            self.places.pending.push_back((at..at + piece.len(), event));
        }
        Ok(())
    }

    /// Returns the start of a free part of the ring, after waiting for old transfers that still read there.
    fn reserve(&mut self, bytes: usize) -> Result<usize> {
        let wait = need(self.shared.table.clWaitForEvents, "clWaitForEvents")?;
        let mut failed: Option<Error> = None;
        let start = self.places.reserve(bytes, |event| {
            let event = cl_event(event)?;
            // SAFETY: one live event.
            let code = unsafe { wait(1, &raw const event) };
            let waited = check("clWaitForEvents", || "an upload".into(), code);
            // The transfer ended with an error: nothing reads its part any more.
            if code == EXEC_STATUS_ERROR {
                failed = failed.take().or(waited.err());
                return Ok(());
            }
            waited
        })?;
        failed.map_or(Ok(start), Err)
    }

    fn ring(&mut self) -> Result<*mut u8> {
        if let Some(ring) = &self.ring {
            return Ok(ring.host);
        }
        let create = need(self.shared.table.clCreateBuffer, "clCreateBuffer")?;
        let map = need(self.shared.table.clEnqueueMapBuffer, "clEnqueueMapBuffer")?;
        let flags = sys::MEM_READ_WRITE | sys::MEM_ALLOC_HOST_PTR;
        let mut code = 0;
        // SAFETY: live context, no host pointer.
        let memory = unsafe {
            create(self.shared.context.ptr, flags, self.places.bytes, std::ptr::null_mut(), &raw mut code)
        };
        check("clCreateBuffer", || format!("{} bytes of pinned staging", self.places.bytes), code)?;
        let q = self.shared.queue(QueueKind::Copy);
        // SAFETY: a blocking map of the whole buffer, unmapped when the ring is dropped.
        let host: *mut c_void = unsafe {
            map(
                q,
                memory,
                1,
                sys::MAP_READ_WRITE,
                0,
                self.places.bytes,
                0,
                std::ptr::null(),
                std::ptr::null_mut(),
                &raw mut code,
            )
        };
        if let Err(e) =
            check("clEnqueueMapBuffer", || format!("{} bytes of pinned staging", self.places.bytes), code)
        {
            if let Some(release) = self.shared.table.clReleaseMemObject {
                // SAFETY: made above, released once.
                unsafe { release(memory) };
            }
            return Err(e);
        }
        self.ring = Some(Ring { memory, host: host.cast() });
        Ok(host.cast())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let table = &self.shared.table;
        while let Some((_, event)) = self.places.pending.pop_front() {
            if let (Some(wait), Ok(ptr)) = (table.clWaitForEvents, cl_event(&event)) {
                // SAFETY: one live event; an error here requires no action.
                unsafe { wait(1, &raw const ptr) };
            }
        }
        if let (Some(ring), Some(unmap), Some(release), Some(finish)) =
            (self.ring.take(), table.clEnqueueUnmapMemObject, table.clReleaseMemObject, table.clFinish)
        {
            let q = self.shared.queue(QueueKind::Copy);
            // SAFETY: mapped and created by `ring`; nothing reads it any more.
            unsafe {
                unmap(q, ring.memory, ring.host.cast(), 0, std::ptr::null(), std::ptr::null_mut());
                finish(q);
                release(ring.memory);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part that an earlier transfer still reads is never returned.
    #[test]
    fn parts_under_way_are_never_handed_out() {
        let mut places = Places::<usize>::new(8 << 10);
        let mut draw = crate::draw::Draw::new(1);
        let mut under_way: Vec<(Range<usize>, usize)> = Vec::new();
        // A short piece at the end that nothing overlaps, then two pieces that fill the rest, repeatedly.
        let first = [3 << 10, 4 << 10, 100, 4 << 10, 3 << 10, 4 << 10, 3 << 10];
        for turn in 0..10_000 {
            let bytes = first.get(turn).copied().unwrap_or_else(|| 1 + draw.below(4 << 10));
            let mut waited = Vec::new();
            let wait = |id: &usize| -> Result<()> {
                waited.push(*id);
                Ok(())
            };
            let start = places.reserve(bytes, wait).unwrap();
            assert!(start + bytes <= 8 << 10);
            under_way.retain(|(_, id)| !waited.contains(id));
            let taken = under_way.iter().find(|(r, _)| r.start < start + bytes && start < r.end);
            assert!(taken.is_none(), "turn {turn}: {start}..{} while {taken:?} is read", start + bytes);
            places.pending.push_back((start..start + bytes, turn));
            under_way.push((start..start + bytes, turn));
        }
    }

    /// A failed wait gives no information about the transfer: its part, and those of later transfers, stay occupied.
    #[test]
    fn a_failed_wait_forgets_no_range_in_flight() {
        let mut places = Places::<usize>::new(8 << 10);
        for id in 0..2 {
            let start = places.reserve(4 << 10, |_| Ok::<(), ()>(())).unwrap();
            places.pending.push_back((start..start + (4 << 10), id));
        }
        let mut asked = Vec::new();
        assert_eq!(
            places.reserve(4 << 10, |id| {
                asked.push(*id);
                Err(())
            }),
            Err(())
        );
        assert_eq!((asked.as_slice(), places.pending.len()), ([0].as_slice(), 2));
        // The next piece waits for that transfer again and does not get the part of the second one.
        let mut waited = Vec::new();
        let start = places
            .reserve(4 << 10, |id| {
                waited.push(*id);
                Ok::<(), ()>(())
            })
            .unwrap();
        assert_eq!((start, waited.as_slice()), (0, [0].as_slice()));
    }
}
