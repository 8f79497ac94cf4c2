//! Commands on rectangular regions (boxes): rows of `region[0]` bytes, `region[1]` rows per slice, `region[2]` slices.
//!
//! A box is transferred as one packed block. Rows are gathered or scattered in device memory at no modeled cost, the same as in a copy engine with
//! strides.

use super::Mem;
use super::transfer::{both, host_may};
use crate::cl;
use crate::cl::Result;
use crate::device::{Device, Times};
use crate::queue::{After, Ask, Job, Queue, enqueue, enqueue_and};
use crate::raw::{Handle, Host, In};
use aethercl::machine::Packet;
use aethercl::memory::MemoryError;
use std::sync::Arc;

/// Offsets and pitches of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub start: usize,
    pub row: usize,
    pub slice: usize,
    pub region: [usize; 3],
}

/// Reads an array of three sizes.
pub(super) fn triple(list: In<usize>) -> Result<[usize; 3]> {
    <[usize; 3]>::try_from(list.list(3)).map_err(|_| cl::INVALID_VALUE)
}

impl Layout {
    /// # Errors
    /// `CL_INVALID_VALUE` if the pitches are too small for the region, or on overflow.
    pub(super) fn new(origin: [usize; 3], region: [usize; 3], row: usize, slice: usize) -> Result<Self> {
        if region.contains(&0) {
            return Err(cl::INVALID_VALUE);
        }
        let row = if row == 0 { region[0] } else { row };
        let least = region[1].checked_mul(row).ok_or(cl::INVALID_VALUE)?;
        let slice = if slice == 0 { least } else { slice };
        if row < region[0] || slice < least || slice % row != 0 {
            return Err(cl::INVALID_VALUE);
        }
        let far = |n: usize, pitch: usize| n.checked_mul(pitch);
        let start = far(origin[2], slice).and_then(|z| z.checked_add(far(origin[1], row)?));
        let start = start.and_then(|yz| yz.checked_add(origin[0])).ok_or(cl::INVALID_VALUE)?;
        let layout = Self { start, row, slice, region };
        layout.end().ok_or(cl::INVALID_VALUE)?;
        Ok(layout)
    }

    /// Returns the offset after its last byte; `None` on overflow.
    fn end(&self) -> Option<usize> {
        let [x, y, z] = self.region;
        let last = (z - 1).checked_mul(self.slice)?.checked_add((y - 1).checked_mul(self.row)?)?;
        self.start.checked_add(last)?.checked_add(x)
    }

    /// Returns the offset of each row.
    pub(super) fn rows(&self) -> impl Iterator<Item = usize> + '_ {
        let [_, y, z] = self.region;
        (0..z).flat_map(move |k| (0..y).map(move |j| self.start + k * self.slice + j * self.row))
    }

    pub(super) fn bytes(&self) -> usize {
        self.region.iter().product()
    }

    /// Checks that it is within a buffer.
    pub(super) fn within(&self, mem: &Mem) -> Result<()> {
        mem.holds(0, self.end().ok_or(cl::INVALID_VALUE)?)
    }
}

/// Temporary device memory for a packed box, freed on drop.
pub(super) struct Staging<'a>(&'a Device, pub u64);

impl<'a> Staging<'a> {
    pub(super) fn new(device: &'a Device, bytes: usize) -> Result<Self> {
        let memory = Arc::clone(device.gpu().memory());
        let at = memory.allocate(bytes as u64, "staging").map_err(|_| cl::OUT_OF_RESOURCES)?;
        Ok(Self(device, at))
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        let memory = Arc::clone(self.0.gpu().memory());
        let _ = memory.free(self.1);
    }
}

/// Gathers the rows of a box into a packed block, or scatters them from it.
pub(super) fn pack(device: &Device, at: u64, layout: &Layout, packed: u64, gather: bool) -> Result<()> {
    let memory = Arc::clone(device.gpu().memory());
    let width = layout.region[0] as u64;
    let one = |(i, row): (usize, usize)| -> std::result::Result<(), MemoryError> {
        let (inside, outside) = (packed + i as u64 * width, at + row as u64);
        let (from, to) = if gather { (outside, inside) } else { (inside, outside) };
        memory.copy(from, to, width)
    };
    layout.rows().enumerate().try_for_each(one).map_err(|_| cl::OUT_OF_RESOURCES)
}

pub(super) fn write(queue: &Queue, mem: &Mem, to: &Layout, data: Vec<u8>) -> Result<Times> {
    let address = mem.address_on(&queue.device)?;
    let staging = Staging::new(&queue.device, data.len())?;
    let what = ("write", data.len());
    let done = queue
        .device
        .transfer(queue.number, what, |gpu, q, call| gpu.write(q, staging.1, data, Some(call)))?;
    pack(&queue.device, address, to, staging.1, false)?;
    Ok(done.0)
}

pub(super) fn read(queue: &Queue, mem: &Mem, from: &Layout) -> Result<(Times, Vec<u8>)> {
    let address = mem.address_on(&queue.device)?;
    let staging = Staging::new(&queue.device, from.bytes())?;
    pack(&queue.device, address, from, staging.1, true)?;
    let bytes = from.bytes() as u64;
    queue.device.transfer(queue.number, ("read", from.bytes()), |gpu, q, call| {
        gpu.read(q, staging.1, bytes, Some(call))
    })
}

/// `clEnqueueReadBufferRect`.
pub fn enqueue_read_buffer_rect(
    queue: Handle,
    mem: Handle,
    blocking: u32,
    origin: In<usize>,
    host_origin: In<usize>,
    region: In<usize>,
    row: usize,
    slice: usize,
    host_row: usize,
    host_slice: usize,
    to: usize,
    ask: Ask,
) -> Result<()> {
    let (queue, mem) = both(queue, mem)?;
    let to = Host::at(to)?;
    let region = triple(region)?;
    let from = Layout::new(triple(origin)?, region, row, slice)?;
    let host = Layout::new(triple(host_origin)?, region, host_row, host_slice)?;
    from.within(&mem)?;
    read_box(&queue, (cl::COMMAND_READ_BUFFER_RECT, blocking != 0), (mem, from), (to, host), ask)
}

/// `clEnqueueWriteBufferRect`.
pub fn enqueue_write_buffer_rect(
    queue: Handle,
    mem: Handle,
    blocking: u32,
    origin: In<usize>,
    host_origin: In<usize>,
    region: In<usize>,
    row: usize,
    slice: usize,
    host_row: usize,
    host_slice: usize,
    from: usize,
    ask: Ask,
) -> Result<()> {
    let (queue, mem) = both(queue, mem)?;
    let from = Host::at(from)?;
    let region = triple(region)?;
    let to = Layout::new(triple(origin)?, region, row, slice)?;
    let host = Layout::new(triple(host_origin)?, region, host_row, host_slice)?;
    to.within(&mem)?;
    write_box(&queue, (cl::COMMAND_WRITE_BUFFER_RECT, blocking != 0), (from, host), (mem, to), ask)
}

/// `clEnqueueCopyBufferRect`.
pub fn enqueue_copy_buffer_rect(
    queue: Handle,
    from: Handle,
    to: Handle,
    from_origin: In<usize>,
    to_origin: In<usize>,
    region: In<usize>,
    from_row: usize,
    from_slice: usize,
    to_row: usize,
    to_slice: usize,
    ask: Ask,
) -> Result<()> {
    let (_, from) = both(queue, from)?;
    let (queue, to) = both(queue, to)?;
    let region = triple(region)?;
    let source = Layout::new(triple(from_origin)?, region, from_row, from_slice)?;
    let target = Layout::new(triple(to_origin)?, region, to_row, to_slice)?;
    source.within(&from)?;
    target.within(&to)?;
    if from.shares(&to) {
        // Within one buffer both boxes must have the same pitches.
        if Arc::ptr_eq(&from, &to) && (source.row, source.slice) != (target.row, target.slice) {
            return Err(cl::INVALID_VALUE);
        }
        if overlap((&source, from.root().1), (&target, to.root().1)) {
            return Err(cl::MEM_COPY_OVERLAP);
        }
    }
    copy_boxes(&queue, cl::COMMAND_COPY_BUFFER_RECT, (from, source), (to, target), ask)
}

/// Enqueues a command that reads a box of a buffer or image into a box of the program's memory. Both boxes have rows of the same length.
///
/// # Errors
/// `CL_INVALID_OPERATION` if the host may not read it; same as [`enqueue_and`].
pub(super) fn read_box(
    queue: &Arc<Queue>,
    (kind, blocking): (u32, bool),
    (mem, from): (Arc<Mem>, Layout),
    (to, host): (Host, Layout),
    ask: Ask,
) -> Result<()> {
    host_may(&mem, true)?;
    let of = Arc::clone(queue);
    let job = Job::new(move || {
        let (times, data) = read(&of, &mem, &from)?;
        host.rows().zip(data.chunks(from.region[0])).for_each(|(at, bytes)| to.plus(at).write(bytes));
        Ok(times)
    });
    enqueue_and(queue, kind, ask, blocking, job).map(|_| ())
}

/// Enqueues a command that writes a box of the program's memory into a box of a buffer or image. Both boxes have rows of the same length.
///
/// # Errors
/// `CL_INVALID_OPERATION` if the host may not write it; same as [`enqueue_and`].
pub(super) fn write_box(
    queue: &Arc<Queue>,
    (kind, blocking): (u32, bool),
    (from, host): (Host, Layout),
    (mem, to): (Arc<Mem>, Layout),
    ask: Ask,
) -> Result<()> {
    host_may(&mem, false)?;
    let of = Arc::clone(queue);
    let job = Job::new(move || {
        let data = host.rows().flat_map(|at| from.plus(at).bytes(to.region[0])).collect();
        write(&of, &mem, &to, data)
    });
    enqueue_and(queue, kind, ask, blocking, job).map(|_| ())
}

/// Enqueues a command that copies the rows of one box to those of another.
///
/// # Errors
/// Same as [`enqueue`].
pub(super) fn copy_boxes(
    queue: &Arc<Queue>,
    kind: u32,
    (from, source): (Arc<Mem>, Layout),
    (to, target): (Arc<Mem>, Layout),
    ask: Ask,
) -> Result<()> {
    let of = Arc::clone(queue);
    let job = Job::new(move || {
        let device = &of.device;
        let (at, there) = (from.address_on(device)?, to.address_on(device)?);
        let (one, two) = (Staging::new(device, source.bytes())?, Staging::new(device, source.bytes())?);
        pack(device, at, &source, one.1, true)?;
        let packet = Packet::Copy { to: two.1, from: one.1, bytes: source.bytes() as u64 };
        let done = device.transfer(of.number, ("copy", source.bytes()), |gpu, q, call| {
            gpu.submit(q, packet, Some(call))
        })?;
        pack(device, there, &target, two.1, false)?;
        Ok(done.0)
    });
    enqueue(queue, kind, ask, After::Usual, job).map(|_| ())
}

/// Returns true if two boxes overlap.
pub(super) fn overlap((a, a_origin): (&Layout, usize), (b, b_origin): (&Layout, usize)) -> bool {
    let width = a.region[0];
    let mut rows: Vec<(usize, bool)> =
        a.rows().map(|r| (r + a_origin, false)).chain(b.rows().map(|r| (r + b_origin, true))).collect();
    rows.sort_unstable();
    rows.windows(2).any(|pair| pair[0].1 != pair[1].1 && pair[1].0 < pair[0].0 + width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_where_pitches_say() {
        let l = Layout::new([1, 2, 3], [4, 2, 2], 10, 100).unwrap();
        assert_eq!(l.rows().collect::<Vec<_>>(), [321, 331, 421, 431]);
        assert_eq!((l.end(), l.bytes()), (Some(435), 16));
        let tight = Layout::new([0; 3], [4, 3, 2], 0, 0).unwrap();
        assert_eq!((tight.row, tight.slice, tight.end()), (4, 12, Some(24)));
    }

    #[test]
    fn pitches_that_do_not_hold_the_region_are_refused() {
        for (region, row, slice) in
            [([4, 1, 1], 3, 0), ([4, 3, 1], 4, 11), ([4, 2, 1], 5, 12), ([0, 1, 1], 0, 0)]
        {
            assert_eq!(Layout::new([0; 3], region, row, slice), Err(cl::INVALID_VALUE), "{region:?}");
        }
        assert_eq!(Layout::new([0, usize::MAX, 0], [4, 1, 1], 4, 0), Err(cl::INVALID_VALUE));
    }

    #[test]
    fn boxes_beside_each_other_do_not_overlap() {
        let layout = |x| Layout::new([x, 0, 0], [4, 2, 1], 10, 0).unwrap();
        assert!(!overlap((&layout(0), 0), (&layout(4), 0)));
        assert!(overlap((&layout(0), 0), (&layout(3), 0)));
        assert!(overlap((&layout(0), 0), (&layout(0), 10)));
    }
}
