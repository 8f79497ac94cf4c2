//! Buffers in the address space of the host.

use super::Mem;
use super::transfer::{both, host_may, read, write};
use crate::cl;
use crate::cl::Result;
use crate::device::Times;
use crate::queue::{After, Ask, Job, enqueue, enqueue_and};
use crate::raw::Handle;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

/// A range that is mapped.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// Tells mappings of one range apart.
    number: u64,
    address: usize,
    offset: usize,
    bytes: usize,
    writes: bool,
}

impl Mem {
    pub(super) fn maps(&self) -> MutexGuard<'_, Vec<Mapping>> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `clEnqueueMapBuffer`: the address.
pub fn enqueue_map_buffer(
    queue: Handle,
    mem: Handle,
    blocking: u32,
    flags: u64,
    offset: usize,
    bytes: usize,
    ask: Ask,
) -> Result<Handle> {
    let (queue, mem) = both(queue, mem)?;
    let shared = cl::MAP_READ | cl::MAP_WRITE;
    let invalidate = flags & cl::MAP_WRITE_INVALIDATE_REGION != 0;
    if flags & !(shared | cl::MAP_WRITE_INVALIDATE_REGION) != 0 || (invalidate && flags & shared != 0) {
        return Err(cl::INVALID_VALUE);
    }
    if bytes == 0 {
        return Err(cl::INVALID_VALUE);
    }
    mem.holds(offset, bytes)?;
    let writes = flags & !cl::MAP_READ != 0;
    if flags & cl::MAP_READ != 0 {
        host_may(&mem, true)?;
    }
    if writes {
        host_may(&mem, false)?;
    }
    let host = mem.host().plus(offset);
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    mem.maps().push(Mapping { number, address: host.address(), offset, bytes, writes });
    let (of, target) = (Arc::clone(&queue), Arc::clone(&mem));
    let job = Job::new(move || {
        if invalidate {
            return Ok(Times::at(of.device.now()));
        }
        let (times, data) = read(&of, &target, offset, bytes)?;
        host.write(&data);
        Ok(times)
    });
    let done = enqueue_and(&queue, cl::COMMAND_MAP_BUFFER, ask, blocking != 0, job);
    if let Err(code) = done {
        mem.maps().retain(|m| m.number != number);
        return Err(code);
    }
    Ok(Handle(host.address()))
}

/// `clEnqueueUnmapMemObject`.
pub fn enqueue_unmap_mem_object(queue: Handle, mem: Handle, address: usize, ask: Ask) -> Result<()> {
    let (queue, mem) = both(queue, mem)?;
    // Taken at once, so that no other call unmaps the same one.
    let mapping = {
        let mut maps = mem.maps();
        let at = maps.iter().position(|m| m.address == address).ok_or(cl::INVALID_VALUE)?;
        maps.remove(at)
    };
    let (of, target) = (Arc::clone(&queue), Arc::clone(&mem));
    let job = Job::new(move || {
        if !mapping.writes {
            return Ok(Times::at(of.device.now()));
        }
        let data = target.host().plus(mapping.offset).bytes(mapping.bytes);
        write(&of, &target, mapping.offset, data)
    });
    let done = enqueue(&queue, cl::COMMAND_UNMAP_MEM_OBJECT, ask, After::Usual, job);
    if done.is_err() {
        mem.maps().push(mapping);
    }
    done.map(|_| ())
}
