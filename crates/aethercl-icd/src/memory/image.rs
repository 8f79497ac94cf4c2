//! Image objects: creation, queries, supported formats.

use super::picture::{Picture, TYPES, format_of, kind_of};
use super::{ACCESS, HOST_ACCESS, HOST_PTR, Mem, check_flags};
use crate::answer::Room;
use crate::cl;
use crate::cl::Result;
use crate::context::Context;
use crate::device::max_alloc;
use crate::limits::PITCH_ALIGNMENT;
use crate::raw::{Handle, Host, ImageDescriptor, ImageFormat, In, Out};
use crate::registry::{self, Object};
use aethercl::image::Format;
use aethercl::types::ImageKind;
use std::sync::Arc;

/// `clCreateImage`.
pub fn create_image(
    context: Handle,
    flags: u64,
    format: In<ImageFormat>,
    descriptor: In<ImageDescriptor>,
    host_ptr: usize,
) -> Result<Handle> {
    create(context, Vec::new(), flags, format.get(), descriptor.get(), host_ptr)
}

/// `clCreateImageWithProperties`: no properties exist.
pub fn create_image_with_properties(
    context: Handle,
    list: In<u64>,
    flags: u64,
    format: In<ImageFormat>,
    descriptor: In<ImageDescriptor>,
    host_ptr: usize,
) -> Result<Handle> {
    if !list.pairs().is_empty() {
        return Err(cl::INVALID_PROPERTY);
    }
    let properties = if list.is_null() { Vec::new() } else { vec![0] };
    create(context, properties, flags, format.get(), descriptor.get(), host_ptr)
}

/// `clCreateImage2D` from OpenCL 1.0.
pub fn create_image_2d(
    context: Handle,
    flags: u64,
    format: In<ImageFormat>,
    width: usize,
    height: usize,
    row_pitch: usize,
    host_ptr: usize,
) -> Result<Handle> {
    let kind = cl::MEM_OBJECT_IMAGE2D;
    let descriptor = ImageDescriptor { kind, width, height, row_pitch, ..ImageDescriptor::default() };
    old(create(context, Vec::new(), flags, format.get(), Some(descriptor), host_ptr))
}

/// `clCreateImage3D` from OpenCL 1.0.
pub fn create_image_3d(
    context: Handle,
    flags: u64,
    format: In<ImageFormat>,
    [width, height, depth]: [usize; 3],
    row_pitch: usize,
    slice_pitch: usize,
    host_ptr: usize,
) -> Result<Handle> {
    let kind = cl::MEM_OBJECT_IMAGE3D;
    let sizes = ImageDescriptor { kind, width, height, depth, ..ImageDescriptor::default() };
    let descriptor = ImageDescriptor { row_pitch, slice_pitch, ..sizes };
    old(create(context, Vec::new(), flags, format.get(), Some(descriptor), host_ptr))
}

/// Converts errors for the functions of OpenCL 1.0. They do not have a descriptor, so errors in it are reported as invalid sizes.
fn old(made: Result<Handle>) -> Result<Handle> {
    made.map_err(|code| if code == cl::INVALID_IMAGE_DESCRIPTOR { cl::INVALID_IMAGE_SIZE } else { code })
}

fn create(
    context: Handle,
    properties: Vec<u64>,
    flags: u64,
    format: Option<ImageFormat>,
    descriptor: Option<ImageDescriptor>,
    host_ptr: usize,
) -> Result<Handle> {
    let context = registry::get::<Context>(context)?;
    check_flags(flags)?;
    let format = format_of(format)?;
    let descriptor = descriptor.ok_or(cl::INVALID_IMAGE_DESCRIPTOR)?;
    let of_buffer = descriptor.buffer != Handle::NULL;
    let given = flags & (cl::MEM_USE_HOST_PTR | cl::MEM_COPY_HOST_PTR) != 0;
    if of_buffer {
        check_alignment(format.0, &descriptor)?;
    }
    let picture = Picture::new(format, &descriptor, host_ptr != 0 || of_buffer)?;
    let kind = picture.shape.kind;
    if of_buffer || kind == ImageKind::Buffer {
        if host_ptr != 0 {
            return Err(cl::INVALID_HOST_PTR);
        }
        return of_memory(&context, properties, flags, picture, descriptor.buffer);
    }
    let most = context.devices.iter().map(|d| max_alloc(&d.profile)).max().unwrap_or(0);
    if picture.bytes() as u64 > most {
        return Err(cl::INVALID_IMAGE_SIZE);
    }
    if given != (host_ptr != 0) {
        return Err(cl::INVALID_HOST_PTR);
    }
    // With `CL_MEM_USE_HOST_PTR` the image keeps the program's pitches, because mapping returns the program's memory.
    let used = flags & cl::MEM_USE_HOST_PTR != 0;
    let own = if used { picture } else { picture.packed() };
    let flags = if flags & ACCESS == 0 { flags | cl::MEM_READ_WRITE } else { flags };
    let mut mem = Mem::plain(&context, flags, own.bytes());
    mem.properties = properties;
    mem.host_ptr = if used { host_ptr } else { 0 };
    mem.picture = Some(own);
    let device = &context.devices[0];
    let address = mem.address_on(device)?;
    if given {
        let memory = Arc::clone(device.gpu().memory());
        let host = Host::at(host_ptr)?;
        let whole = picture.shape.extent.map(|n| n as usize);
        let (from, to) = (picture.part([0; 3], whole)?, own.part([0; 3], whole)?);
        for (row, to) in from.rows().zip(to.rows()) {
            let bytes = host.plus(row).bytes(from.region[0]);
            memory.write(address + to as u64, &bytes).map_err(|_| cl::OUT_OF_RESOURCES)?;
        }
    }
    Ok(registry::publish(&Arc::new(mem)))
}

/// Checks row pitch and base address of a 2D image created from a buffer.
///
/// # Errors
/// `CL_INVALID_IMAGE_FORMAT_DESCRIPTOR`: the standard's code for this (`clCreateImage`), although the pitch is part of the image descriptor.
fn check_alignment(format: Format, descriptor: &ImageDescriptor) -> Result<()> {
    if kind_of(descriptor.kind) != Some(ImageKind::Plane) {
        return Ok(());
    }
    let texel = format.bytes() as usize;
    let unit = PITCH_ALIGNMENT * texel;
    let row =
        if descriptor.row_pitch == 0 { descriptor.width.saturating_mul(texel) } else { descriptor.row_pitch };
    let parent = registry::get::<Mem>(descriptor.buffer).map_err(|_| cl::INVALID_IMAGE_DESCRIPTOR)?;
    // The base address matters only if the buffer uses the program's memory.
    let shown = if parent.flags & cl::MEM_USE_HOST_PTR != 0 { parent.host_ptr } else { 0 };
    if row.is_multiple_of(unit) && shown.is_multiple_of(unit) {
        Ok(())
    } else {
        Err(cl::INVALID_IMAGE_FORMAT_DESCRIPTOR)
    }
}

/// Creates an image from a buffer.
fn of_memory(
    context: &Arc<Context>,
    properties: Vec<u64>,
    flags: u64,
    picture: Picture,
    parent: Handle,
) -> Result<Handle> {
    let wrong = cl::INVALID_IMAGE_DESCRIPTOR;
    if !matches!(picture.shape.kind, ImageKind::Buffer | ImageKind::Plane) {
        return Err(wrong);
    }
    let parent = registry::get::<Mem>(parent).map_err(|_| wrong)?;
    if parent.picture.is_some() || !Arc::ptr_eq(&parent.context, context) {
        return Err(wrong);
    }
    if flags & HOST_PTR != 0 {
        return Err(cl::INVALID_VALUE);
    }
    let widens = |only: u64, wanted: u64| parent.flags & only != 0 && flags & wanted != 0;
    if widens(cl::MEM_WRITE_ONLY, cl::MEM_READ_WRITE | cl::MEM_READ_ONLY)
        || widens(cl::MEM_READ_ONLY, cl::MEM_READ_WRITE | cl::MEM_WRITE_ONLY)
    {
        return Err(cl::INVALID_VALUE);
    }
    if picture.bytes() > parent.size {
        return Err(cl::INVALID_IMAGE_SIZE);
    }
    let own = |mask: u64| if flags & mask != 0 { flags & mask } else { parent.flags & mask };
    let flags = own(ACCESS) | own(HOST_ACCESS) | parent.flags & HOST_PTR;
    let mut mem = Mem::plain(context, flags, picture.bytes());
    mem.properties = properties;
    mem.host_ptr = parent.host_ptr;
    mem.picture = Some(picture);
    mem.parent = Some((parent, 0));
    Ok(registry::publish(&Arc::new(mem)))
}

/// `clGetSupportedImageFormats`: every format for every kind and use.
pub fn get_supported_image_formats(
    context: Handle,
    flags: u64,
    kind: u32,
    room: u32,
    formats: Out<ImageFormat>,
    count: Out<u32>,
) -> Result<()> {
    registry::get::<Context>(context)?;
    check_flags(flags & !cl::MEM_KERNEL_READ_AND_WRITE)?;
    if kind_of(kind).is_none() || (room == 0 && !formats.is_null()) {
        return Err(cl::INVALID_VALUE);
    }
    let own = |f: Format| ImageFormat { order: f.order.code(), channel: f.channel.code() };
    let list: Vec<ImageFormat> = Format::all().map(own).collect();
    formats.set_list(&list[..list.len().min(room as usize)]);
    count.set(list.len() as u32);
    Ok(())
}

/// `clGetImageInfo`.
pub fn get_image_info(handle: Handle, name: u32, room: Room) -> Result<()> {
    let mem = registry::get::<Mem>(handle)?;
    let picture = mem.picture.ok_or(cl::INVALID_MEM_OBJECT)?;
    let kind = picture.shape.kind;
    let [width, y, z] = picture.shape.extent.map(|n| n as usize);
    let (row, slice) = picture.pitches();
    let layered = kind.has_layers();
    match name {
        cl::IMAGE_FORMAT => room.give(&[picture.format.order, picture.format.channel][..]),
        cl::IMAGE_ELEMENT_SIZE => room.give(&picture.texel()),
        cl::IMAGE_ROW_PITCH => room.give(&row),
        cl::IMAGE_SLICE_PITCH => room.give(&slice),
        cl::IMAGE_WIDTH => room.give(&width),
        cl::IMAGE_HEIGHT => room.give(&if kind.axes() > 1 { y } else { 0 }),
        cl::IMAGE_DEPTH => room.give(&if kind == ImageKind::Volume { z } else { 0 }),
        cl::IMAGE_ARRAY_SIZE if layered => room.give(&if kind.axes() == 1 { y } else { z }),
        cl::IMAGE_ARRAY_SIZE => room.give(&0usize),
        cl::IMAGE_BUFFER => room.give(&mem.parent.as_ref().map_or(Handle::NULL, |(p, _)| p.tag().handle())),
        cl::IMAGE_NUM_MIP_LEVELS | cl::IMAGE_NUM_SAMPLES => room.give(&0u32),
        _ => Err(cl::INVALID_VALUE),
    }
}

/// Returns the `CL_MEM_OBJECT_…` constant of an image kind.
pub(super) fn type_number(kind: ImageKind) -> u32 {
    TYPES.iter().find(|(_, own)| *own == kind).map_or(cl::MEM_OBJECT_IMAGE2D, |(number, _)| *number)
}
