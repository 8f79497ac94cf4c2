//! Memory objects. The bytes of an object are on one device of its context. They move when a command on another device uses the object.

mod image;
mod map;
pub mod picture;
mod rect;
mod texels;
mod transfer;

pub use image::{
    create_image, create_image_2d, create_image_3d, create_image_with_properties, get_image_info,
    get_supported_image_formats,
};
pub use map::{enqueue_map_buffer, enqueue_unmap_mem_object};
pub use rect::{enqueue_copy_buffer_rect, enqueue_read_buffer_rect, enqueue_write_buffer_rect};
pub use texels::{
    enqueue_copy_buffer_to_image, enqueue_copy_image, enqueue_copy_image_to_buffer, enqueue_fill_image,
    enqueue_map_image, enqueue_read_image, enqueue_write_image,
};
pub use transfer::{
    enqueue_copy_buffer, enqueue_fill_buffer, enqueue_migrate_mem_objects, enqueue_read_buffer,
    enqueue_write_buffer,
};

use picture::Picture;

use crate::answer::Room;
use crate::cl;
use crate::cl::{Code, Result};
use crate::context::Context;
use crate::device::{Device, max_alloc};
use crate::raw::{Block, Handle, Host, In, Notify};
use crate::registry::{self, Object, Tag};
use crate::report;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A buffer, a sub-buffer, or an image.
pub struct Mem {
    tag: Tag,
    /// The context that it belongs to.
    pub context: Arc<Context>,
    /// `CL_MEM_…`.
    pub flags: u64,
    /// Size in bytes.
    pub size: usize,
    /// The parent of a sub-buffer or of an image created from a buffer, and the offset in it.
    parent: Option<(Arc<Mem>, usize)>,
    /// The `host_ptr` of `CL_MEM_USE_HOST_PTR`; 0 without the flag.
    host_ptr: usize,
    properties: Vec<u64>,
    /// Format and layout of an image; `None` for buffers.
    pub picture: Option<Picture>,
    /// Device and address of its bytes; not used for sub-buffers.
    place: Mutex<Place>,
    /// Host memory that mapping returns, unless the program provided memory.
    shadow: OnceLock<Block>,
    maps: Mutex<Vec<map::Mapping>>,
    destructors: Mutex<Vec<(Notify, usize)>>,
}

/// Device and address of a buffer's bytes.
type Place = Option<(Arc<Device>, u64)>;

impl Object for Mem {
    const INVALID: Code = cl::INVALID_MEM_OBJECT;
    const NAME: &'static str = "memory object";
    fn tag(&self) -> &Tag {
        &self.tag
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        let place = self.place.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((device, address)) = place {
            // It was allocated there, so freeing cannot fail.
            let _ = device.gpu().free(address);
        }
        let list = std::mem::take(self.destructors.get_mut().unwrap_or_else(PoisonError::into_inner));
        for (function, data) in list.into_iter().rev() {
            if let Some(function) = function {
                function(self.tag.handle(), data);
            }
        }
    }
}

impl Mem {
    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the parent buffer that owns the bytes (or this object), and the offset in it.
    fn root(&self) -> (&Mem, usize) {
        match &self.parent {
            Some((parent, origin)) => {
                let (root, first) = parent.root();
                (root, first + origin)
            }
            None => (self, 0),
        }
    }

    /// Returns a buffer without parent, host memory and properties.
    fn plain(context: &Arc<Context>, flags: u64, size: usize) -> Self {
        Self {
            tag: Tag::default(),
            flags,
            size,
            parent: None,
            host_ptr: 0,
            properties: Vec::new(),
            picture: None,
            place: Mutex::default(),
            shadow: OnceLock::new(),
            maps: Mutex::default(),
            destructors: Mutex::default(),
            context: Arc::clone(context),
        }
    }

    /// Returns its address on a device. Allocates the memory or moves the bytes there if necessary.
    ///
    /// # Errors
    /// `CL_MEM_OBJECT_ALLOCATION_FAILURE` if the device is out of memory.
    pub fn address_on(&self, device: &Arc<Device>) -> Result<u64> {
        let (root, origin) = self.root();
        let mut place = root.place();
        if let Some((there, address)) = &*place
            && Arc::ptr_eq(there, device)
        {
            return Ok(address + origin as u64);
        }
        let allocated = {
            let mut gpu = device.gpu();
            gpu.asked(device.now());
            gpu.allocate(root.size as u64, &root.name())
        };
        let address = allocated.map_err(|e| {
            report::failure(&e.to_string());
            cl::MEM_OBJECT_ALLOCATION_FAILURE
        })?;
        if let Some((other, old)) = place.take() {
            let from = other.gpu().memory().find(old);
            let to = device.gpu().memory().find(address);
            // Copies the bytes and the record of which ones were initialized.
            match (from, to) {
                (Some((from, 0)), Some((to, 0))) => to.restore(&from.save(0, root.size)),
                _ => return Err(cl::OUT_OF_RESOURCES),
            }
            other.gpu().free(old).map_err(|_| cl::OUT_OF_RESOURCES)?;
        }
        *place = Some((Arc::clone(device), address));
        Ok(address + origin as u64)
    }

    /// Returns the name used in findings.
    fn name(&self) -> String {
        match self.picture {
            Some(picture) => {
                let sizes = picture.shape.extent.map(|n| n.to_string());
                format!("image of {} texels", sizes[..picture.shape.kind.numbers()].join(" x "))
            }
            None => format!("buffer of {} bytes", self.size),
        }
    }

    /// Returns the host address that mapping returns for its first byte.
    fn host(&self) -> Host {
        let (root, origin) = self.root();
        match Host::at(root.host_ptr) {
            Ok(host) if root.flags & cl::MEM_USE_HOST_PTR != 0 => host.plus(origin),
            _ => root.shadow.get_or_init(|| Block::new(root.size)).host().plus(origin),
        }
    }

    /// Checks that a range is within the object.
    ///
    /// # Errors
    /// `CL_INVALID_VALUE` if it is not.
    fn holds(&self, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(cl::INVALID_VALUE),
        }
    }

    /// Checks the alignment of a sub-buffer.
    ///
    /// # Errors
    /// `CL_MISALIGNED_SUB_BUFFER_OFFSET`.
    fn aligned(&self) -> Result<()> {
        match &self.parent {
            Some((_, origin)) if origin % ALIGN != 0 => Err(cl::MISALIGNED_SUB_BUFFER_OFFSET),
            _ => Ok(()),
        }
    }

    /// Returns true if two objects use the same parent buffer.
    fn shares(&self, other: &Mem) -> bool {
        std::ptr::eq(self.root().0, other.root().0)
    }
}

/// Alignment of sub-buffers in bytes (`CL_DEVICE_MEM_BASE_ADDR_ALIGN`).
const ALIGN: usize = 128;

const ACCESS: u64 = cl::MEM_READ_WRITE | cl::MEM_WRITE_ONLY | cl::MEM_READ_ONLY;
const HOST_ACCESS: u64 = cl::MEM_HOST_WRITE_ONLY | cl::MEM_HOST_READ_ONLY | cl::MEM_HOST_NO_ACCESS;
const HOST_PTR: u64 = cl::MEM_USE_HOST_PTR | cl::MEM_ALLOC_HOST_PTR | cl::MEM_COPY_HOST_PTR;

/// Checks that flags are known and do not contradict each other.
fn check_flags(flags: u64) -> Result<()> {
    let one_at_most = |mask: u64| (flags & mask).count_ones() <= 1;
    let known = flags & !(ACCESS | HOST_ACCESS | HOST_PTR) == 0;
    let using = flags & cl::MEM_USE_HOST_PTR != 0;
    let other = flags & (cl::MEM_ALLOC_HOST_PTR | cl::MEM_COPY_HOST_PTR) != 0;
    let fits = known && one_at_most(ACCESS) && one_at_most(HOST_ACCESS) && !(using && other);
    if fits { Ok(()) } else { Err(cl::INVALID_VALUE) }
}

/// `clCreateBuffer`.
pub fn create_buffer(context: Handle, flags: u64, size: usize, host_ptr: usize) -> Result<Handle> {
    create(context, Vec::new(), flags, size, host_ptr)
}

/// `clCreateBufferWithProperties`: no properties exist.
pub fn create_buffer_with_properties(
    context: Handle,
    list: In<u64>,
    flags: u64,
    size: usize,
    host_ptr: usize,
) -> Result<Handle> {
    if !list.pairs().is_empty() {
        return Err(cl::INVALID_PROPERTY);
    }
    let properties = if list.is_null() { Vec::new() } else { vec![0] };
    create(context, properties, flags, size, host_ptr)
}

fn create(context: Handle, properties: Vec<u64>, flags: u64, size: usize, host_ptr: usize) -> Result<Handle> {
    let context = registry::get::<Context>(context)?;
    check_flags(flags)?;
    let most = context.devices.iter().map(|d| max_alloc(&d.profile)).max().unwrap_or(0);
    if size == 0 || size as u64 > most {
        return Err(cl::INVALID_BUFFER_SIZE);
    }
    let given = flags & (cl::MEM_USE_HOST_PTR | cl::MEM_COPY_HOST_PTR) != 0;
    if given != (host_ptr != 0) {
        return Err(cl::INVALID_HOST_PTR);
    }
    let flags = if flags & ACCESS == 0 { flags | cl::MEM_READ_WRITE } else { flags };
    let mut mem = Mem::plain(&context, flags, size);
    mem.host_ptr = if flags & cl::MEM_USE_HOST_PTR != 0 { host_ptr } else { 0 };
    mem.properties = properties;
    // The memory is allocated on the first device at once, so that this call reports a lack of memory.
    let device = &context.devices[0];
    let address = mem.address_on(device)?;
    if given {
        let memory = Arc::clone(device.gpu().memory());
        let host = Host::at(host_ptr)?;
        for at in (0..size).step_by(CHUNK) {
            let bytes = host.plus(at).bytes(CHUNK.min(size - at));
            memory.write(address + at as u64, &bytes).map_err(|_| cl::OUT_OF_RESOURCES)?;
        }
    }
    Ok(registry::publish(&Arc::new(mem)))
}

/// Chunk size of copies from the host, bytes.
const CHUNK: usize = 16 << 20;

/// `clCreateSubBuffer`.
pub fn create_sub_buffer(parent: Handle, flags: u64, kind: u32, region: In<usize>) -> Result<Handle> {
    let parent = registry::get::<Mem>(parent)?;
    if parent.parent.is_some() || parent.picture.is_some() {
        return Err(cl::INVALID_MEM_OBJECT);
    }
    if flags & HOST_PTR != 0 || kind != cl::BUFFER_CREATE_TYPE_REGION || region.is_null() {
        return Err(cl::INVALID_VALUE);
    }
    check_flags(flags)?;
    let widens = |only: u64, wanted: u64| parent.flags & only != 0 && flags & wanted != 0;
    if widens(cl::MEM_WRITE_ONLY, cl::MEM_READ_WRITE | cl::MEM_READ_ONLY)
        || widens(cl::MEM_READ_ONLY, cl::MEM_READ_WRITE | cl::MEM_WRITE_ONLY)
        || widens(cl::MEM_HOST_WRITE_ONLY, cl::MEM_HOST_READ_ONLY)
        || widens(cl::MEM_HOST_READ_ONLY, cl::MEM_HOST_WRITE_ONLY)
        || widens(cl::MEM_HOST_NO_ACCESS, cl::MEM_HOST_READ_ONLY | cl::MEM_HOST_WRITE_ONLY)
    {
        return Err(cl::INVALID_VALUE);
    }
    let region = region.list(2);
    let (origin, size) = (region[0], region[1]);
    if size == 0 {
        return Err(cl::INVALID_BUFFER_SIZE);
    }
    parent.holds(origin, size)?;
    if origin % ALIGN != 0 {
        return Err(cl::MISALIGNED_SUB_BUFFER_OFFSET);
    }
    let own = |mask: u64| if flags & mask != 0 { flags & mask } else { parent.flags & mask };
    let flags = own(ACCESS) | own(HOST_ACCESS) | parent.flags & HOST_PTR;
    let mut mem = Mem::plain(&parent.context, flags, size);
    mem.host_ptr = if parent.host_ptr != 0 { parent.host_ptr + origin } else { 0 };
    mem.parent = Some((parent, origin));
    Ok(registry::publish(&Arc::new(mem)))
}

/// `clGetMemObjectInfo`.
pub fn get_mem_object_info(handle: Handle, name: u32, room: Room) -> Result<()> {
    let mem = registry::get::<Mem>(handle)?;
    match name {
        cl::MEM_TYPE => {
            let of = mem.picture.map_or(cl::MEM_OBJECT_BUFFER, |p| image::type_number(p.shape.kind));
            room.give(&of)
        }
        cl::MEM_FLAGS => room.give(&mem.flags),
        cl::MEM_SIZE => room.give(&mem.size),
        cl::MEM_HOST_PTR => room.give(&mem.host_ptr),
        cl::MEM_MAP_COUNT => room.give(&(mem.maps().len() as u32)),
        cl::MEM_REFERENCE_COUNT => room.give(&registry::references(&*mem)),
        cl::MEM_CONTEXT => room.give(&mem.context.handle()),
        cl::MEM_ASSOCIATED_MEMOBJECT => {
            room.give(&mem.parent.as_ref().map_or(Handle::NULL, |(p, _)| p.tag.handle()))
        }
        cl::MEM_OFFSET => room.give(&mem.parent.as_ref().map_or(0, |(_, origin)| *origin)),
        cl::MEM_USES_SVM_POINTER => room.give(&false),
        cl::MEM_PROPERTIES => room.give(&mem.properties[..]),
        _ => Err(cl::INVALID_VALUE),
    }
}

/// `clSetMemObjectDestructorCallback`.
pub fn set_mem_object_destructor_callback(handle: Handle, function: Notify, data: usize) -> Result<()> {
    let mem = registry::get::<Mem>(handle)?;
    if function.is_none() {
        return Err(cl::INVALID_VALUE);
    }
    mem.destructors.lock().unwrap_or_else(PoisonError::into_inner).push((function, data));
    Ok(())
}
