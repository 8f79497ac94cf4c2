//! Image commands: read, write, copy, fill, map. A region of an image is a box of rows, like a rectangular region of a buffer.

use super::Mem;
use super::map::map;
use super::picture::Picture;
use super::rect::{Layout, Staging, copy_boxes, overlap, pack, read_box, triple, write_box};
use super::transfer::objects;
use crate::cl;
use crate::cl::Result;
use crate::queue::{After, Ask, Job, Queue, enqueue};
use crate::raw::{Handle, Host, In, Out};
use aethercl::machine::Packet;
use std::sync::Arc;

/// Returns queue and image of a call.
fn both(queue: Handle, image: Handle) -> Result<(Arc<Queue>, Arc<Mem>, Picture)> {
    let (queue, mem) = objects(queue, image)?;
    let picture = mem.picture.ok_or(cl::INVALID_MEM_OBJECT)?;
    Ok((queue, mem, picture))
}

/// Returns the rows of a call's region, and the region in texels.
fn part(picture: &Picture, origin: In<usize>, region: In<usize>) -> Result<(Layout, [usize; 3])> {
    let region = triple(region)?;
    Ok((picture.part(triple(origin)?, region)?, region))
}

/// `clEnqueueReadImage`.
pub fn enqueue_read_image(
    queue: Handle,
    image: Handle,
    blocking: u32,
    origin: In<usize>,
    region: In<usize>,
    row: usize,
    slice: usize,
    to: usize,
    ask: Ask,
) -> Result<()> {
    let (queue, mem, picture) = both(queue, image)?;
    let to = Host::at(to)?;
    let (from, region) = part(&picture, origin, region)?;
    let host = picture.host(region, row, slice)?;
    read_box(&queue, (cl::COMMAND_READ_IMAGE, blocking != 0), (mem, from), (to, host), ask)
}

/// `clEnqueueWriteImage`.
pub fn enqueue_write_image(
    queue: Handle,
    image: Handle,
    blocking: u32,
    origin: In<usize>,
    region: In<usize>,
    row: usize,
    slice: usize,
    from: usize,
    ask: Ask,
) -> Result<()> {
    let (queue, mem, picture) = both(queue, image)?;
    let from = Host::at(from)?;
    let (to, region) = part(&picture, origin, region)?;
    let host = picture.host(region, row, slice)?;
    write_box(&queue, (cl::COMMAND_WRITE_IMAGE, blocking != 0), (from, host), (mem, to), ask)
}

/// `clEnqueueCopyImage`.
pub fn enqueue_copy_image(
    queue: Handle,
    from: Handle,
    to: Handle,
    from_origin: In<usize>,
    to_origin: In<usize>,
    region: In<usize>,
    ask: Ask,
) -> Result<()> {
    let (_, from, one) = both(queue, from)?;
    let (queue, to, two) = both(queue, to)?;
    if one.format != two.format {
        return Err(cl::IMAGE_FORMAT_MISMATCH);
    }
    let (source, _) = part(&one, from_origin, region)?;
    let (target, _) = part(&two, to_origin, region)?;
    if from.shares(&to) && overlap((&source, from.root().1), (&target, to.root().1)) {
        return Err(cl::MEM_COPY_OVERLAP);
    }
    copy_boxes(&queue, cl::COMMAND_COPY_IMAGE, (from, source), (to, target), ask)
}

/// `clEnqueueCopyImageToBuffer`.
pub fn enqueue_copy_image_to_buffer(
    queue: Handle,
    from: Handle,
    to: Handle,
    origin: In<usize>,
    region: In<usize>,
    offset: usize,
    ask: Ask,
) -> Result<()> {
    let (_, from, picture) = both(queue, from)?;
    let (queue, to) = super::transfer::both(queue, to)?;
    let (source, _) = part(&picture, origin, region)?;
    let target = Layout::new([offset, 0, 0], source.region, 0, 0)?;
    target.within(&to)?;
    copy_boxes(&queue, cl::COMMAND_COPY_IMAGE_TO_BUFFER, (from, source), (to, target), ask)
}

/// `clEnqueueCopyBufferToImage`.
pub fn enqueue_copy_buffer_to_image(
    queue: Handle,
    from: Handle,
    to: Handle,
    offset: usize,
    origin: In<usize>,
    region: In<usize>,
    ask: Ask,
) -> Result<()> {
    let (_, to, picture) = both(queue, to)?;
    let (queue, from) = super::transfer::both(queue, from)?;
    let (target, _) = part(&picture, origin, region)?;
    let source = Layout::new([offset, 0, 0], target.region, 0, 0)?;
    source.within(&from)?;
    copy_boxes(&queue, cl::COMMAND_COPY_BUFFER_TO_IMAGE, (from, source), (to, target), ask)
}

/// `clEnqueueFillImage`: the color is four `float`s, `int`s or `uint`s, depending on the format.
pub fn enqueue_fill_image(
    queue: Handle,
    image: Handle,
    colour: In<u32>,
    origin: In<usize>,
    region: In<usize>,
    ask: Ask,
) -> Result<()> {
    let (queue, mem, picture) = both(queue, image)?;
    let colour = <[u32; 4]>::try_from(colour.list(4)).map_err(|_| cl::INVALID_VALUE)?;
    let (to, _) = part(&picture, origin, region)?;
    let pattern = picture.shape.format.encode(colour).to_le_bytes();
    let of = Arc::clone(&queue);
    let job = Job::new(move || {
        let device = &of.device;
        let address = mem.address_on(device)?;
        let staging = Staging::new(device, to.bytes())?;
        let length = picture.texel() as u32;
        let packet = Packet::Fill { to: staging.1, bytes: to.bytes() as u64, pattern, length };
        let done = device
            .transfer(of.number, ("fill", to.bytes()), |gpu, q, call| gpu.submit(q, packet, Some(call)))?;
        pack(device, address, &to, staging.1, false)?;
        Ok(done.0)
    });
    enqueue(&queue, cl::COMMAND_FILL_IMAGE, ask, After::Usual, job).map(|_| ())
}

/// `clEnqueueMapImage`: returns the address of the region's first texel.
pub fn enqueue_map_image(
    queue: Handle,
    image: Handle,
    blocking: u32,
    flags: u64,
    (origin, region): (In<usize>, In<usize>),
    (row, slice): (Out<usize>, Out<usize>),
    ask: Ask,
) -> Result<Handle> {
    let (queue, mem, picture) = both(queue, image)?;
    let (part, _) = part(&picture, origin, region)?;
    let pitches = picture.pitches();
    if row.is_null() || (pitches.1 != 0 && slice.is_null()) {
        return Err(cl::INVALID_VALUE);
    }
    let mapped = map(&queue, &mem, (cl::COMMAND_MAP_IMAGE, blocking != 0), flags, part, ask)?;
    row.set(pitches.0);
    slice.set(pitches.1);
    Ok(mapped)
}
