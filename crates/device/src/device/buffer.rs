//! A piece of a device's memory, owned: dropping the last clone gives it back to the pool.

use super::Device;
use super::writes::Writes;
use crate::driver::Memory;
use crate::pool::{Block, Home, ZONE};
use crate::{Error, Result};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Numbers buffers in the order they are made in.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Which recording and which of its allocations a buffer is.
pub(crate) type Serial = (u64, usize);

/// What is promised of a buffer's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Promise {
    /// Nothing: they are what the commands enqueued so far make them.
    None,
    /// A deferred command writes them.
    Open,
    /// That command is being enqueued. The write was counted when it was promised.
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
    /// Nothing for a window, and once it was [released](Buffer::release).
    block: Mutex<Option<Block>>,
    released: AtomicBool,
    /// A [`Promise`]; a window's is its parent's.
    promise: AtomicU8,
    number: u64,
    memory: Memory,
    bytes: usize,
    tag: &'static str,
    /// A window into another buffer keeps that buffer's block.
    parent: Option<Buffer>,
    /// The buffer that a block of [`Home::Part`] is a part of.
    chunk: Option<Buffer>,
    /// Where this buffer starts within its root object.
    offset: usize,
    /// What it is in the recording it was made in.
    serial: Option<Serial>,
    /// Writes so far; a window's are its parent's.
    writes: Option<Writes>,
}

impl Inner {
    fn block(&self) -> Option<Block> {
        self.block.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A buffer that this does not keep alive.
#[derive(Clone)]
pub struct WeakBuffer(Weak<Inner>);

impl WeakBuffer {
    /// The buffer, if it is still there.
    pub fn upgrade(&self) -> Option<Buffer> {
        self.0.upgrade().map(Buffer)
    }
    /// Whether it is this one.
    pub(crate) fn is(&self, buffer: &Buffer) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&buffer.0))
    }
}

impl Buffer {
    /// A buffer of a whole block. A block of [`Home::Part`] comes with the buffer that it is a part of, `chunk`.
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
    /// A number above those of all buffers there are, and at most those of buffers that are made from now on.
    pub fn next_number() -> u64 {
        NEXT.load(Ordering::Relaxed)
    }
    /// Its number, or that of the buffer it is a window of.
    pub fn number(&self) -> u64 {
        self.whole().0.number
    }
    /// A handle that does not keep it.
    pub fn weak(&self) -> WeakBuffer {
        WeakBuffer(Arc::downgrade(&self.0))
    }
    /// Gives the memory back to the pool although handles are left, whose use is an error from now on. Commands that are enqueued are not disturbed:
    /// what gets the memory next is enqueued behind them. Memory of a captured step stays; whether it is free now.
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
    /// Whether its memory is there.
    ///
    /// # Errors
    /// `Memory` where it was [released](Self::release).
    pub(crate) fn check_there(&self) -> Result<()> {
        if !self.whole().0.released.load(Ordering::Acquire) {
            return Ok(());
        }
        // No kind that makes operations try another kernel.
        Err(Error::launch(
            "a tensor is used whose memory was freed, by itself or at the end of the scope it was made in; make it outside of the scope, or take it out",
        ))
    }
    /// What is promised of its contents.
    pub fn promise(&self) -> Promise {
        Promise::of(self.whole().0.promise.load(Ordering::Acquire))
    }
    /// Promises contents that a command will write which is not enqueued yet, says that it is being enqueued, or that it is.
    pub fn set_promise(&self, promise: Promise) {
        self.whole().0.promise.store(promise as u8, Ordering::Release);
    }
    pub(crate) fn write_counts(&self) -> Option<&Writes> {
        self.0.writes.as_ref()
    }
    pub(crate) fn serial(&self) -> Option<Serial> {
        self.0.serial
    }
    /// Which buffer this is, and a handle that does not keep it.
    pub(crate) fn downgrade(&self) -> (usize, WeakBuffer) {
        (Arc::as_ptr(&self.0) as usize, WeakBuffer(Arc::downgrade(&self.0)))
    }
    /// The device that holds it.
    pub fn device(&self) -> &Device {
        &self.0.device
    }
    /// Bytes asked for.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }
    /// The driver's object, to bind as an argument.
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }
    /// What it is used for, as the statistics say it.
    pub fn tag(&self) -> &'static str {
        self.0.tag
    }
    /// Whether `offset` is one a sub-buffer may start at.
    pub fn can_window(&self, offset: usize) -> bool {
        let at = self.0.offset.checked_add(offset);
        at.is_some_and(|at| at.is_multiple_of(self.0.device.capabilities().base_align.max(1)))
    }
    /// A part of this buffer as an object of its own.
    ///
    /// # Errors
    /// `Shape` when the part does not lie within this buffer; the driver's error where [`Buffer::can_window`] says no.
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
    /// Where it starts in the device's address space, as kernels see it. `ask` finds that out for a whole block, which is
    /// needed once for each block of the pool, however often the pool hands it out.
    ///
    /// # Errors
    /// What `ask` answers.
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
    /// Where this buffer starts within [`Buffer::whole`], in bytes.
    pub fn start(&self) -> usize {
        self.0.offset - self.whole().0.offset
    }
    /// The buffer that this one is a window of, or itself.
    pub fn whole(&self) -> &Self {
        let mut at = self;
        while let Some(parent) = &at.0.parent {
            at = parent;
        }
        at
    }
    /// The guard zones around this whole buffer: where they start in its root object, and their bytes. `None` where there are none.
    pub(super) fn zones(&self) -> Option<[(usize, usize); 2]> {
        let block = self.0.block().filter(|block| block.offset == ZONE && self.0.chunk.is_none())?;
        Some([(0, ZONE), (block.offset + block.bytes, ZONE)])
    }
    pub(super) fn root(&self) -> Memory {
        let at = self.whole();
        at.0.block().map_or_else(|| at.0.memory.clone(), |b| b.root)
    }
    /// Whether this is the only handle of memory that is no part of another buffer.
    pub fn is_unshared(&self) -> bool {
        self.0.parent.is_none() && Arc::strong_count(&self.0) == 1
    }
    /// Whether both are the same memory object.
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
