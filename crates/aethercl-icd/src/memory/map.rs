//! Buffers in the address space of the host.

use super::Mem;
use super::transfer::{both, host_may, read, write};
use crate::cl;
use crate::cl::Result;
use crate::device::Times;
use crate::queue::{After, Ask, Job, enqueue, enqueue_and};
use crate::raw::{Handle, In, Out};
use std::sync::{Arc, MutexGuard, PoisonError};

/// A range that is mapped.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
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
    count: u32,
    list: In<Handle>,
    event: Out<Handle>,
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
    let mapping = Mapping { address: host.address(), offset, bytes, writes };
    mem.maps().push(mapping);
    let (of, target) = (Arc::clone(&queue), Arc::clone(&mem));
    let job = Job::new(move || {
        if invalidate {
            return Ok(Times::at(of.device.now()));
        }
        let (times, data) = read(&of, &target, offset, bytes)?;
        host.write(&data);
        Ok(times)
    });
    let done = enqueue_and(&queue, cl::COMMAND_MAP_BUFFER, Ask { count, list, event }, blocking != 0, job);
    if let Err(code) = done {
        mem.unmapped(mapping.address);
        return Err(code);
    }
    Ok(Handle(host.address()))
}

impl Mem {
    /// Forgets a mapping that begins at this address.
    fn unmapped(&self, address: usize) -> Option<Mapping> {
        let mut maps = self.maps();
        let at = maps.iter().position(|m| m.address == address)?;
        Some(maps.remove(at))
    }
}

/// `clEnqueueUnmapMemObject`.
pub fn enqueue_unmap_mem_object(
    queue: Handle,
    mem: Handle,
    address: usize,
    count: u32,
    list: In<Handle>,
    event: Out<Handle>,
) -> Result<()> {
    let (queue, mem) = both(queue, mem)?;
    let mapping = mem.maps().iter().find(|m| m.address == address).copied().ok_or(cl::INVALID_VALUE)?;
    let (of, target) = (Arc::clone(&queue), Arc::clone(&mem));
    let job = Job::new(move || {
        if !mapping.writes {
            return Ok(Times::at(of.device.now()));
        }
        let data = target.host().plus(mapping.offset).bytes(mapping.bytes);
        write(&of, &target, mapping.offset, data)
    });
    let ask = Ask { count, list, event };
    enqueue(&queue, cl::COMMAND_UNMAP_MEM_OBJECT, ask, After::Usual, job)?;
    mem.unmapped(address);
    Ok(())
}
