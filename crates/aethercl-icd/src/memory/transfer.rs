//! Buffer commands: read, write, copy, fill, migrate.

use super::Mem;
use crate::cl;
use crate::cl::Result;
use crate::device::Times;
use crate::queue::{After, Ask, Job, Queue, enqueue, enqueue_and};
use crate::raw::{Handle, Host, In};
use crate::registry;
use aethercl::machine::Packet;
use std::sync::Arc;

/// Looks up queue and buffer of a call.
///
/// # Errors
/// Same as [`objects`]; images are also an error.
pub(super) fn both(queue: Handle, mem: Handle) -> Result<(Arc<Queue>, Arc<Mem>)> {
    let (queue, mem) = objects(queue, mem)?;
    if mem.picture.is_some() { Err(cl::INVALID_MEM_OBJECT) } else { Ok((queue, mem)) }
}

/// Looks up queue and memory object of a call.
///
/// # Errors
/// Invalid handles, objects of different contexts, misaligned sub-buffers.
pub(super) fn objects(queue: Handle, mem: Handle) -> Result<(Arc<Queue>, Arc<Mem>)> {
    let queue = registry::get::<Queue>(queue)?;
    let mem = registry::get::<Mem>(mem)?;
    if !Arc::ptr_eq(&queue.context, &mem.context) {
        return Err(cl::INVALID_CONTEXT);
    }
    mem.aligned()?;
    Ok((queue, mem))
}

/// Checks the host access flags of a memory object.
pub(super) fn host_may(mem: &Mem, reads: bool) -> Result<()> {
    let against = if reads { cl::MEM_HOST_WRITE_ONLY } else { cl::MEM_HOST_READ_ONLY };
    if mem.flags & (against | cl::MEM_HOST_NO_ACCESS) != 0 { Err(cl::INVALID_OPERATION) } else { Ok(()) }
}

/// Copies bytes from the host to a buffer.
pub(super) fn write(queue: &Arc<Queue>, mem: &Arc<Mem>, offset: usize, data: Vec<u8>) -> Result<Times> {
    let to = mem.address_on(&queue.device)? + offset as u64;
    let what = ("write", data.len());
    let done =
        queue.device.transfer(queue.number, what, |gpu, q, call| gpu.write(q, to, data, Some(call)))?;
    Ok(done.0)
}

/// Copies bytes from a buffer to the host.
pub(super) fn read(
    queue: &Arc<Queue>,
    mem: &Arc<Mem>,
    offset: usize,
    bytes: usize,
) -> Result<(Times, Vec<u8>)> {
    let from = mem.address_on(&queue.device)? + offset as u64;
    let bytes = bytes as u64;
    queue
        .device
        .transfer(queue.number, ("read", bytes as usize), |gpu, q, call| gpu.read(q, from, bytes, Some(call)))
}

/// `clEnqueueReadBuffer`.
pub fn enqueue_read_buffer(
    queue: Handle,
    mem: Handle,
    blocking: u32,
    offset: usize,
    bytes: usize,
    to: usize,
    ask: Ask,
) -> Result<()> {
    let (queue, mem) = both(queue, mem)?;
    let to = Host::at(to)?;
    mem.holds(offset, bytes)?;
    host_may(&mem, true)?;
    let of = Arc::clone(&queue);
    let job = Job::new(move || {
        let (times, data) = read(&of, &mem, offset, bytes)?;
        to.write(&data);
        Ok(times)
    });
    enqueue_and(&queue, cl::COMMAND_READ_BUFFER, ask, blocking != 0, job).map(|_| ())
}

/// `clEnqueueWriteBuffer`.
pub fn enqueue_write_buffer(
    queue: Handle,
    mem: Handle,
    blocking: u32,
    offset: usize,
    bytes: usize,
    from: usize,
    ask: Ask,
) -> Result<()> {
    let (queue, mem) = both(queue, mem)?;
    let from = Host::at(from)?;
    mem.holds(offset, bytes)?;
    host_may(&mem, false)?;
    let of = Arc::clone(&queue);
    let job = Job::new(move || write(&of, &mem, offset, from.bytes(bytes)));
    enqueue_and(&queue, cl::COMMAND_WRITE_BUFFER, ask, blocking != 0, job).map(|_| ())
}

/// `clEnqueueCopyBuffer`.
pub fn enqueue_copy_buffer(
    queue: Handle,
    from: Handle,
    to: Handle,
    from_offset: usize,
    to_offset: usize,
    bytes: usize,
    ask: Ask,
) -> Result<()> {
    let (_, from) = both(queue, from)?;
    let (queue, to) = both(queue, to)?;
    from.holds(from_offset, bytes)?;
    to.holds(to_offset, bytes)?;
    let (source, target) = (from.root().1 + from_offset, to.root().1 + to_offset);
    if from.shares(&to) && source < target + bytes && target < source + bytes {
        return Err(cl::MEM_COPY_OVERLAP);
    }
    let of = Arc::clone(&queue);
    let job = Job::new(move || {
        let from = from.address_on(&of.device)? + from_offset as u64;
        let to = to.address_on(&of.device)? + to_offset as u64;
        let packet = Packet::Copy { to, from, bytes: bytes as u64 };
        let done = of
            .device
            .transfer(of.number, ("copy", bytes), |gpu, q, call| gpu.submit(q, packet, Some(call)))?;
        Ok(done.0)
    });
    enqueue(&queue, cl::COMMAND_COPY_BUFFER, ask, After::Usual, job).map(|_| ())
}

/// `clEnqueueFillBuffer`.
pub fn enqueue_fill_buffer(
    queue: Handle,
    mem: Handle,
    pattern: In<u8>,
    length: usize,
    offset: usize,
    bytes: usize,
    ask: Ask,
) -> Result<()> {
    let (queue, mem) = both(queue, mem)?;
    let sizes = [1, 2, 4, 8, 16, 32, 64, 128];
    if pattern.is_null()
        || !sizes.contains(&length)
        || !offset.is_multiple_of(length)
        || !bytes.is_multiple_of(length)
    {
        return Err(cl::INVALID_VALUE);
    }
    mem.holds(offset, bytes)?;
    let pattern = pattern.list(length);
    let of = Arc::clone(&queue);
    let job = Job::new(move || {
        let to = mem.address_on(&of.device)? + offset as u64;
        let mut short = [0; 16];
        let part = length.min(16);
        short[..part].copy_from_slice(&pattern[..part]);
        let packet = Packet::Fill { to, bytes: bytes as u64, pattern: short, length: part as u32 };
        let done = of
            .device
            .transfer(of.number, ("fill", bytes), |gpu, q, call| gpu.submit(q, packet, Some(call)))?;
        if length > part {
            // The simulated GPU supports patterns of up to 16 bytes. Its fill gives the time, and the longer pattern is written here.
            let memory = Arc::clone(of.device.gpu().memory());
            let repeated: Vec<u8> = pattern.iter().copied().cycle().take(bytes).collect();
            memory.write(to, &repeated).map_err(|_| cl::OUT_OF_RESOURCES)?;
        }
        Ok(done.0)
    });
    enqueue(&queue, cl::COMMAND_FILL_BUFFER, ask, After::Usual, job).map(|_| ())
}

/// `clEnqueueMigrateMemObjects`.
pub fn enqueue_migrate_mem_objects(
    queue: Handle,
    objects: u32,
    handles: In<Handle>,
    flags: u64,
    ask: Ask,
) -> Result<()> {
    let queue = registry::get::<Queue>(queue)?;
    let known = cl::MIGRATE_MEM_OBJECT_HOST | cl::MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED;
    if objects == 0 || handles.is_null() || flags & !known != 0 {
        return Err(cl::INVALID_VALUE);
    }
    let mems = registry::all::<Mem>(&handles.list(objects as usize))?;
    if mems.iter().any(|m| !Arc::ptr_eq(&m.context, &queue.context)) {
        return Err(cl::INVALID_CONTEXT);
    }
    let of = Arc::clone(&queue);
    let job = Job::new(move || {
        if flags & cl::MIGRATE_MEM_OBJECT_HOST == 0 {
            mems.iter().try_for_each(|m| m.address_on(&of.device).map(|_| ()))?;
        }
        Ok(Times::at(of.device.now()))
    });
    enqueue(&queue, cl::COMMAND_MIGRATE_MEM_OBJECTS, ask, After::Usual, job).map(|_| ())
}
