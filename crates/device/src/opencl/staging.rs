//! Pinned staging for uploads: a ring of page-locked host memory, so that a write returns once the data is in the ring
//! and the transfer runs beside the host. Pageable memory moves at a third of the speed on discrete GPUs.

use super::objects::{ClEvent, Shared, cl_event};
use super::result::{check, need};
use super::sys::{self, Ptr};
use super::transfers::Transfers;
use crate::Result;
use crate::driver::{Event, QueueKind};
use crate::profile::TransferKind;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

/// Most bytes of the ring: several batches of tokens, or a good share of a weight matrix.
const RING: usize = 8 << 20;

/// Bytes of the ring on a device with so much memory: a small device, or a simulated one, has better uses for 8 MiB.
fn ring_bytes(global_mem: u64) -> usize {
    usize::try_from(global_mem / 256).unwrap_or(RING).clamp(64 << 10, RING)
}

pub(super) struct Staging {
    shared: Arc<Shared>,
    transfers: Arc<Transfers>,
    bytes: usize,
    ring: Option<Ring>,
    /// Transfers under way, oldest first, and the part of the ring each reads.
    pending: VecDeque<(Range<usize>, Event)>,
    head: usize,
}

struct Ring {
    memory: Ptr,
    host: *mut u8,
}

// SAFETY: the ring is reached only through `&mut Staging`.
unsafe impl Send for Staging {}

impl Staging {
    pub fn new(shared: Arc<Shared>, transfers: Arc<Transfers>, global_mem: u64) -> Self {
        Self {
            shared,
            transfers,
            bytes: ring_bytes(global_mem),
            ring: None,
            pending: VecDeque::new(),
            head: 0,
        }
    }

    /// Copies `data` into the ring piece by piece and enqueues the transfers.
    pub fn write(&mut self, queue: QueueKind, to: Ptr, offset: usize, data: &[u8]) -> Result<()> {
        let write = need(self.shared.table.clEnqueueWriteBuffer, "clEnqueueWriteBuffer")?;
        let host = self.ring()?;
        let half = self.bytes / 2;
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
            self.pending.push_back((at..at + piece.len(), event));
        }
        Ok(())
    }

    /// Start of a free part of the ring, waiting for old transfers that still read there.
    fn reserve(&mut self, bytes: usize) -> Result<usize> {
        let start = if self.head + bytes > self.bytes { 0 } else { self.head };
        let wanted = start..start + bytes;
        // Pieces follow each other around the ring, so the oldest is always the first in the way.
        let overlaps = |r: &Range<usize>| r.start < wanted.end && wanted.start < r.end;
        while self.pending.front().is_some_and(|(r, _)| overlaps(r)) {
            let Some((_, event)) = self.pending.pop_front() else { break };
            let wait = need(self.shared.table.clWaitForEvents, "clWaitForEvents")?;
            let event = cl_event(&event)?;
            // SAFETY: one live event.
            check("clWaitForEvents", || "an upload".into(), unsafe { wait(1, &raw const event) })?;
        }
        self.head = start + bytes.next_multiple_of(1024);
        Ok(start)
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
        let memory =
            unsafe { create(self.shared.context, flags, self.bytes, std::ptr::null_mut(), &raw mut code) };
        check("clCreateBuffer", || format!("{} bytes of pinned staging", self.bytes), code)?;
        let q = self.shared.queue(QueueKind::Copy);
        // SAFETY: a blocking map of the whole buffer, unmapped when the ring is dropped.
        let host: *mut c_void = unsafe {
            map(
                q,
                memory,
                1,
                sys::MAP_READ_WRITE,
                0,
                self.bytes,
                0,
                std::ptr::null(),
                std::ptr::null_mut(),
                &raw mut code,
            )
        };
        if let Err(e) =
            check("clEnqueueMapBuffer", || format!("{} bytes of pinned staging", self.bytes), code)
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
        while let Some((_, event)) = self.pending.pop_front() {
            if let (Some(wait), Ok(ptr)) = (table.clWaitForEvents, cl_event(&event)) {
                // SAFETY: one live event; an error here leaves nothing to do.
                unsafe { wait(1, &raw const ptr) };
            }
        }
        if let (Some(ring), Some(unmap), Some(release), Some(finish)) =
            (self.ring.take(), table.clEnqueueUnmapMemObject, table.clReleaseMemObject, table.clFinish)
        {
            let q = self.shared.queue(QueueKind::Copy);
            // SAFETY: mapped and created by `ring`, nothing reads it any more.
            unsafe {
                unmap(q, ring.memory, ring.host.cast(), 0, std::ptr::null(), std::ptr::null_mut());
                finish(q);
                release(ring.memory);
            }
        }
    }
}
