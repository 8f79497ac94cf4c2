//! Host memory that several devices and processes share, for use in device transfers.

use super::{Device, check_range, deferred};
use crate::driver::{Access, Event, Memory};
use crate::host::SharedMemory;
use crate::{Buffer, Error, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Host memory that a device copies from and to without waiting. Dropping it waits for the device.
pub struct Pinned {
    device: Device,
    memory: Arc<SharedMemory>,
    /// The driver's hold on its pages.
    _locked: Option<Memory>,
}

impl Pinned {
    /// Returns the memory.
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// Returns true if `device` has pinned it.
    pub fn is_of(&self, device: &Device) -> bool {
        self.device.same(device)
    }

    /// Checks the device: dropping waits only for the device that pinned the memory.
    fn check_device(&self, device: &Device) -> Result<()> {
        if self.is_of(device) {
            return Ok(());
        }
        Err(Error::internal("host memory that was pinned for another device"))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Running copies still access the memory. A destructor cannot report an error, but the next command fails with it too.
        let _ = self.device.finish();
    }
}

impl Device {
    /// Prepares host memory for [`Device::download_into`] and [`Device::upload_from`]. The driver page-locks it if possible, which makes transfers
    /// several times as fast on discrete GPUs.
    pub fn pin(&self, memory: &Arc<SharedMemory>) -> Pinned {
        let locked = self.driver().pin(memory).unwrap_or_else(|e| {
            tracing::debug!("{} bytes of host memory stay pageable: {e}", memory.bytes());
            None
        });
        Pinned { device: self.clone(), memory: Arc::clone(memory), _locked: locked }
    }

    /// Enqueues a copy of `bytes` of `from` into host memory, in this thread's current stream or, outside a stream, in the device's own queue. The
    /// host may read the bytes after waiting for the event. The event is the event of the copy itself, without another command. With NVIDIA's driver
    /// (580), a mark in a copy queue completed milliseconds late while kernels ran in another queue.
    ///
    /// # Errors
    /// Driver errors; `Unsupported` within a captured step.
    pub fn download_into(&self, from: (&Buffer, usize), to: (&Pinned, usize), bytes: usize) -> Result<Event> {
        to.0.check_device(self)?;
        check_range("download", from.0, from.1, bytes)?;
        deferred::before([from.0].into_iter(), Access::Read)?;
        self.check_computed(Some(from.0))?;
        self.0.counters.downloaded.fetch_add(bytes as u64, Ordering::Relaxed);
        if bytes == 0 {
            return self.mark();
        }
        let queue = self.queue_for([from.0].into_iter());
        self.driver().read_into(queue, (from.0.memory(), from.1), (&to.0.memory, to.1), bytes)
    }

    /// Enqueues a copy of `bytes` of host memory into `to`, in the same queue as [`Device::download_into`]. The host must not change the bytes before
    /// it has waited for the event.
    ///
    /// # Errors
    /// Driver errors; `Unsupported` within a captured step.
    pub fn upload_from(&self, from: (&Pinned, usize), to: (&Buffer, usize), bytes: usize) -> Result<Event> {
        from.0.check_device(self)?;
        check_range("upload", to.0, to.1, bytes)?;
        deferred::before([to.0].into_iter(), Access::Write)?;
        self.check_computed(None)?;
        self.0.counters.uploaded.fetch_add(bytes as u64, Ordering::Relaxed);
        if bytes == 0 {
            return self.mark();
        }
        to.0.written();
        let queue = self.queue_for([to.0].into_iter());
        self.driver().write_from(queue, (&from.0.memory, from.1), (to.0.memory(), to.1), bytes)
    }
}
