//! An owned piece of device memory: dropping the last clone returns it to the pool.

use super::Device;
use super::writes::Writes;
use crate::driver::Memory;
use crate::pool::{Block, BlockPlace, Home, ZONE};
use crate::{Error, Result};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Counter that numbers buffers in creation order.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Identifies a buffer in a recording: the recording and the index of the allocation.
pub(crate) type Serial = (u64, usize);

/// State of a buffer's contents with respect to deferred commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Promise {
    /// No promise: the contents result from the commands enqueued so far.
    None,
    /// A deferred command will write the contents.
    Open,
    /// The deferred command is being enqueued. The write was counted when it was promised.
    Kept,
}

impl Promise {
    fn of(number: u8) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Open,
            _ => Self::Kept,
        }
    }
}

/// Device memory. Clones share it.
#[derive(Clone)]
pub struct Buffer(Arc<Inner>);

struct Inner {
    device: Device,
    /// `None` for a window, and after the buffer was [released](Buffer::release).
    block: Mutex<Option<Block>>,
    released: AtomicBool,
    /// A [`Promise`]; a window uses that of its parent.
    promise: AtomicU8,
    number: u64,
    memory: Memory,
    bytes: usize,
    tag: &'static str,
    /// The parent of a window. It keeps the parent's block alive.
    parent: Option<Buffer>,
    /// The buffer that a [`Home::Part`] block is a part of.
    chunk: Option<Buffer>,
    /// Offset of this buffer within its root object.
    offset: usize,
    /// Identity of the buffer in the recording that created it.
    serial: Option<Serial>,
    /// Writes so far; a window uses those of its parent.
    writes: Option<Writes>,
}

impl Inner {
    fn block(&self) -> Option<Block> {
        self.block.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A handle that does not keep the buffer alive.
#[derive(Clone)]
pub struct WeakBuffer(Weak<Inner>);

impl WeakBuffer {
    /// Returns the buffer if it still exists.
    pub fn upgrade(&self) -> Option<Buffer> {
        self.0.upgrade().map(Buffer)
    }
    /// Returns true if this handle refers to `buffer`.
    pub(crate) fn is(&self, buffer: &Buffer) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&buffer.0))
    }
}

impl Buffer {
    /// Returns a buffer of a whole block. A [`Home::Part`] block also needs `chunk`, the buffer that it is a part of.
    pub(crate) fn new(
        device: Device,
        (block, chunk): (Block, Option<Buffer>),
        bytes: usize,
        tag: &'static str,
        serial: Option<Serial>,
    ) -> Self {
        let (memory, offset) = (block.memory.clone(), block.offset);
        let (parent, block, writes) = (None, Mutex::new(Some(block)), Some(Writes::default()));
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Inner {
            device,
            block,
            released: AtomicBool::new(false),
            promise: AtomicU8::new(0),
            number,
            memory,
            bytes,
            tag,
            parent,
            chunk,
            offset,
            serial,
            writes,
        }))
    }
    /// Returns a number that is larger than those of all existing buffers, and at most those of all future buffers.
    pub fn next_number() -> u64 {
        NEXT.load(Ordering::Relaxed)
    }
    /// Returns the buffer's number; a window has its parent's number.
    pub fn number(&self) -> u64 {
        self.whole().0.number
    }
    /// Returns a handle that does not keep the buffer alive.
    pub fn weak(&self) -> WeakBuffer {
        WeakBuffer(Arc::downgrade(&self.0))
    }
    /// Returns the memory to the pool even if handles remain; using such a handle is an error from now on. Enqueued commands are not affected,
    /// because the next user's commands are enqueued after them. Memory of a captured step is kept. Returns true if the memory is now free.
    pub fn release(&self) -> bool {
        let whole = &self.whole().0;
        if whole.serial.is_some() || whole.chunk.is_some() {
            return false;
        }
        whole.released.store(true, Ordering::Release);
        let block = whole.block.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(block) = block {
            whole.device.give_back(block, whole.tag, whole.serial);
        }
        true
    }
    /// Checks that the memory still exists.
    ///
    /// # Errors
    /// `Memory` if it was [released](Self::release).
    pub(crate) fn check_there(&self) -> Result<()> {
        if !self.whole().0.released.load(Ordering::Acquire) {
            return Ok(());
        }
        // Use a kind that does not make operations try another kernel.
        Err(Error::launch(
            "a tensor is used after its memory was freed, explicitly or at the end of its scope; create it outside of the scope, or move it out",
        ))
    }
    /// Returns the promise about the contents.
    pub fn promise(&self) -> Promise {
        Promise::of(self.whole().0.promise.load(Ordering::Acquire))
    }
    /// Sets the promise: a command that is not enqueued yet will write the contents, is being enqueued, or is enqueued.
    pub fn set_promise(&self, promise: Promise) {
        self.whole().0.promise.store(promise as u8, Ordering::Release);
    }
    pub(crate) fn write_counts(&self) -> Option<&Writes> {
        self.0.writes.as_ref()
    }
    pub(crate) fn serial(&self) -> Option<Serial> {
        self.0.serial
    }
    /// Returns the buffer's identity and a handle that does not keep it alive.
    pub(crate) fn downgrade(&self) -> (usize, WeakBuffer) {
        (Arc::as_ptr(&self.0) as usize, WeakBuffer(Arc::downgrade(&self.0)))
    }
    /// Returns the device that holds the buffer.
    pub fn device(&self) -> &Device {
        &self.0.device
    }
    /// Returns the requested size in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }
    /// Returns the driver's object, to bind as an argument.
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }
    /// Returns the tag under which the statistics count this buffer.
    pub fn tag(&self) -> &'static str {
        self.0.tag
    }
    /// Returns true if a sub-buffer may start at `offset`.
    pub fn can_window(&self, offset: usize) -> bool {
        let at = self.0.offset.checked_add(offset);
        at.is_some_and(|at| at.is_multiple_of(self.0.device.capabilities().base_align.max(1)))
    }
    /// Returns a part of this buffer as a separate object.
    ///
    /// # Errors
    /// `Shape` if the part exceeds this buffer; the driver's error if [`Buffer::can_window`] returns false.
    pub fn window(&self, offset: usize, bytes: usize) -> Result<Self> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.0.bytes) {
            return Err(Error::shape(format!(
                "window: {bytes} bytes from byte {offset} of a buffer of {} bytes",
                self.0.bytes
            )));
        }
        let root = self.root();
        let at = self.0.offset + offset;
        self.check_there()?;
        let memory = match self.whole().0.block().map(|block| block.home) {
            Some(Home::Nowhere(_)) => Memory::new(()),
            _ => self.0.device.driver().sub_allocate(&root, at, bytes.max(1))?,
        };
        Ok(Self(Arc::new(Inner {
            device: self.0.device.clone(),
            block: Mutex::new(None),
            released: AtomicBool::new(false),
            promise: AtomicU8::new(0),
            number: self.number(),
            memory,
            bytes,
            tag: self.0.tag,
            parent: Some(self.clone()),
            chunk: None,
            offset: at,
            serial: None,
            writes: None,
        })))
    }
    /// Returns the start address in the device's address space, as kernels see it. `ask` queries the address of a whole block. Each block of the pool
    /// needs it only once, even if the pool reuses the block.
    ///
    /// # Errors
    /// Errors of `ask`.
    pub fn address(&self, ask: impl FnOnce(&Self) -> Result<u64>) -> Result<u64> {
        let (whole, inside) = (self.whole(), self.start() as u64);
        let Some(block) = whole.0.block() else { return Ok(ask(whole)? + inside) };
        if let Some(chunk) = &whole.0.chunk {
            return Ok(chunk.address(ask)? + block.offset as u64 + inside);
        }
        if let Home::Nowhere(address) = block.home {
            return Ok(address + inside);
        }
        if let Some(known) = block.address.get() {
            return Ok(known + inside);
        }
        let found = ask(whole)?;
        Ok(block.address.get_or_init(|| found) + inside)
    }
    /// Returns the offset of this buffer within [`Buffer::whole`], in bytes.
    pub fn start(&self) -> usize {
        self.0.offset - self.whole().0.offset
    }
    /// Returns the buffer that this one is a window of, or the buffer itself.
    pub fn whole(&self) -> &Self {
        let mut at = self;
        while let Some(parent) = &at.0.parent {
            at = parent;
        }
        at
    }
    /// Returns the guard zones around this whole buffer as start in the root object and bytes. `None` without guard zones.
    pub(super) fn zones(&self) -> Option<[(usize, usize); 2]> {
        let block = self.0.block().filter(|block| block.offset == ZONE && self.0.chunk.is_none())?;
        Some([(0, ZONE), (block.offset + block.bytes, ZONE)])
    }
    pub(super) fn root(&self) -> Memory {
        let at = self.whole();
        at.0.block().map_or_else(|| at.0.memory.clone(), |b| b.root)
    }
    /// Returns the place of this buffer's memory in the pool. `None` for a released buffer and for a part of a captured step's memory.
    pub fn place(&self) -> Option<BlockPlace> {
        let whole = self.whole();
        whole.0.device.pool().place(&whole.0.block()?)
    }
    /// Returns true if this is the only handle of memory that is not a part of another buffer.
    pub fn is_unshared(&self) -> bool {
        self.0.parent.is_none() && Arc::strong_count(&self.0) == 1
    }
    /// Returns true if both are the same memory object.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let block = self.block.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(block) = block {
            self.device.give_back(block, self.tag, self.serial);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes on {})", self.0.bytes, self.0.device.capabilities().id)
    }
}
