//! Mapping buffers and images into host memory.

use super::Mem;
use super::rect::{Layout, read, write};
use super::transfer::{both, host_may, objects};
use crate::cl;
use crate::cl::Result;
use crate::device::Times;
use crate::queue::{After, Ask, Job, Queue, enqueue, enqueue_and};
use crate::raw::Handle;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

/// A mapped region.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// Unique number: one region can be mapped several times.
    number: u64,
    address: usize,
    part: Layout,
    writes: bool,
}

impl Mem {
    pub(super) fn maps(&self) -> MutexGuard<'_, Vec<Mapping>> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `clEnqueueMapBuffer`: returns the address.
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
    if bytes == 0 {
        return Err(cl::INVALID_VALUE);
    }
    mem.holds(offset, bytes)?;
    let part = Layout::new([offset, 0, 0], [bytes, 1, 1], 0, 0)?;
    map(&queue, &mem, (cl::COMMAND_MAP_BUFFER, blocking != 0), flags, part, ask)
}

/// Maps a region and returns the host address of its first byte.
pub(super) fn map(
    queue: &Arc<Queue>,
    mem: &Arc<Mem>,
    (kind, blocking): (u32, bool),
    flags: u64,
    part: Layout,
    ask: Ask,
) -> Result<Handle> {
    let shared = cl::MAP_READ | cl::MAP_WRITE;
    let invalidate = flags & cl::MAP_WRITE_INVALIDATE_REGION != 0;
    if flags & !(shared | cl::MAP_WRITE_INVALIDATE_REGION) != 0 || (invalidate && flags & shared != 0) {
        return Err(cl::INVALID_VALUE);
    }
    let writes = flags & !cl::MAP_READ != 0;
    if flags & cl::MAP_READ != 0 {
        host_may(mem, true)?;
    }
    if writes {
        host_may(mem, false)?;
    }
    let host = mem.host();
    let address = host.plus(part.start).address();
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    mem.maps().push(Mapping { number, address, part, writes });
    let (of, target) = (Arc::clone(queue), Arc::clone(mem));
    let job = Job::new(move || {
        if invalidate {
            return Ok(Times::at(of.device.now()));
        }
        let (times, data) = read(&of, &target, &part)?;
        part.rows().zip(data.chunks(part.region[0])).for_each(|(at, bytes)| host.plus(at).write(bytes));
        Ok(times)
    });
    let done = enqueue_and(queue, kind, ask, blocking, job);
    if let Err(code) = done {
        mem.maps().retain(|m| m.number != number);
        return Err(code);
    }
    Ok(Handle(address))
}

/// `clEnqueueUnmapMemObject`.
pub fn enqueue_unmap_mem_object(queue: Handle, mem: Handle, address: usize, ask: Ask) -> Result<()> {
    let (queue, mem) = objects(queue, mem)?;
    // The mapping is removed now rather than in the command, so that no other call can unmap it again.
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
        let (host, part) = (target.host(), mapping.part);
        let data = part.rows().flat_map(|at| host.plus(at).bytes(part.region[0])).collect();
        write(&of, &target, &part, data)
    });
    let done = enqueue(&queue, cl::COMMAND_UNMAP_MEM_OBJECT, ask, After::Usual, job);
    if done.is_err() {
        mem.maps().push(mapping);
    }
    done.map(|_| ())
}
