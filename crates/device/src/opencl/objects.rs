//! Owners of OpenCL objects. Each releases its object when dropped and keeps the context alive until then.

use super::context::Context;
use super::parts::Parts;
use super::result::{check, need};
use super::sys::{Int, Ptr, Table, Ulong};
use crate::driver::{Event, Memory, Program, QueueKind};
use crate::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

static NEXT_MEMORY: AtomicU64 = AtomicU64::new(0);

/// Context and queues of one device. Every object keeps them alive.
pub(super) struct Shared {
    pub table: Table,
    pub device: Ptr,
    pub context: Arc<Context>,
    pub compute: Ptr,
    pub copy: Ptr,
    /// Properties for creating queues.
    pub flags: Ulong,
    /// Additional queues; null for a closed one.
    pub streams: Mutex<Vec<Ptr>>,
    pub deferred: Mutex<Option<Error>>,
}

// SAFETY: OpenCL 1.2 objects may be used from any thread except `clSetKernelArg` on one kernel (appendix A.2), which
// `ClKernel` guards with a mutex.
unsafe impl Send for Shared {}
// SAFETY: same as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub fn queue(&self, kind: QueueKind) -> Ptr {
        match kind {
            QueueKind::Compute => self.compute,
            QueueKind::Copy => self.copy,
            QueueKind::Stream(n) => {
                self.streams().get(n as usize).copied().unwrap_or_else(std::ptr::null_mut)
            }
        }
    }
    fn streams(&self) -> MutexGuard<'_, Vec<Ptr>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Opens another queue.
    pub fn open_queue(&self) -> Result<QueueKind> {
        let make = need(self.table.clCreateCommandQueue, "clCreateCommandQueue")?;
        let mut code = 0;
        // SAFETY: context and device are live.
        let queue = unsafe { make(self.context.ptr, self.device, self.flags, &raw mut code) };
        check("clCreateCommandQueue", || "of a stream".into(), code)?;
        let mut streams = self.streams();
        let free = streams.iter().position(|queue| queue.is_null()).unwrap_or(streams.len());
        match streams.get_mut(free) {
            Some(place) => *place = queue,
            None => streams.push(queue),
        }
        Ok(QueueKind::Stream(u32::try_from(free).unwrap_or(u32::MAX)))
    }
    /// Closes a queue; the driver finishes its commands.
    pub fn close_queue(&self, queue: QueueKind) {
        let QueueKind::Stream(n) = queue else { return };
        let taken = self.streams().get_mut(n as usize).map(|q| std::mem::replace(q, std::ptr::null_mut()));
        if let (Some(release), Some(queue)) =
            (self.table.clReleaseCommandQueue, taken.filter(|q| !q.is_null()))
        {
            // SAFETY: the queue is ours, and was removed from the list that other threads search.
            self.defer("clReleaseCommandQueue", unsafe { release(queue) });
        }
    }
    fn defer(&self, call: &str, code: Int) {
        if let Err(e) = check(call, || "a release".into(), code) {
            *self.deferred.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let streams = std::mem::take(&mut *self.streams());
        for queue in [self.compute, self.copy].into_iter().chain(streams) {
            if let (Some(finish), Some(release), false) =
                (self.table.clFinish, self.table.clReleaseCommandQueue, queue.is_null())
            {
                // SAFETY: the queue is ours and released once. A failing finish requires no action here.
                unsafe { (finish(queue), release(queue)) };
            }
        }
    }
}

type Release = Option<unsafe extern "C" fn(Ptr) -> Int>;

/// One OpenCL object. Dropping it releases it and stores any error for the next call.
pub(super) struct Owner {
    pub ptr: Ptr,
    pub shared: Arc<Shared>,
    pub release: (&'static str, Release),
}

// SAFETY: see `Shared`.
unsafe impl Send for Owner {}
// SAFETY: see `Shared`.
unsafe impl Sync for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(release) = self.release.1 {
            // SAFETY: `ptr` came from a successful create call and is released once.
            self.shared.defer(self.release.0, unsafe { release(self.ptr) });
        }
    }
}

pub(super) struct ClMemory {
    ptr: Ptr,
    kind: Kind,
    /// Unique id among all memory objects of this process. An address is not unique because it may be reused.
    pub id: u64,
    /// Kernels that have this object as an argument.
    users: Mutex<Vec<Weak<Arguments>>>,
}

enum Kind {
    /// A buffer. It owns its sub-buffers, which keep it alive through their [`Kind::Part`].
    Whole { parts: Mutex<Parts<Owner>>, _owner: Owner },
    /// A sub-buffer, and its number in the parent.
    Part { parent: Memory, number: u64 },
}

// SAFETY: see `Shared`.
unsafe impl Send for ClMemory {}
// SAFETY: see `Shared`.
unsafe impl Sync for ClMemory {}

/// Clears arguments first. Kernels do not keep memory objects alive, so a set argument would refer to a released object. NVIDIA's driver (580.159)
/// crashed in a launch after a part of the launched buffer was released while it was still an argument of another kernel object. It did not crash
/// when nothing was released.
impl Drop for ClMemory {
    fn drop(&mut self) {
        let users = std::mem::take(self.users.get_mut().unwrap_or_else(PoisonError::into_inner));
        users.iter().filter_map(Weak::upgrade).for_each(|kernel| kernel.forget(self.id));
        if let Kind::Part { parent, number } = &self.kind
            && let Some(parts) = parent.get::<Self>().and_then(Self::parts)
        {
            parts.lock().unwrap_or_else(PoisonError::into_inner).remove(*number);
        }
    }
}

impl ClMemory {
    /// Returns a buffer.
    pub fn whole(shared: &Arc<Shared>, ptr: Ptr) -> Memory {
        Self::handle(ptr, Kind::Whole { parts: Mutex::default(), _owner: Self::owner(shared, ptr) })
    }
    /// Returns the sub-buffer `ptr` of a buffer: `bytes` bytes from `start`.
    pub fn part(
        shared: &Arc<Shared>,
        ptr: Ptr,
        parent: &Memory,
        start: usize,
        bytes: usize,
    ) -> Result<Memory> {
        let owner = Self::owner(shared, ptr);
        let parts = parent.get::<Self>().and_then(Self::parts).ok_or_else(|| foreign("parent"))?;
        let number = parts.lock().unwrap_or_else(PoisonError::into_inner).add(start, bytes, owner);
        Ok(Self::handle(ptr, Kind::Part { parent: parent.clone(), number }))
    }
    fn handle(ptr: Ptr, kind: Kind) -> Memory {
        let id = NEXT_MEMORY.fetch_add(1, Ordering::Relaxed);
        Memory::new(Self { ptr, kind, id, users: Mutex::default() })
    }
    fn owner(shared: &Arc<Shared>, ptr: Ptr) -> Owner {
        Owner {
            ptr,
            shared: Arc::clone(shared),
            release: ("clReleaseMemObject", shared.table.clReleaseMemObject),
        }
    }
    fn parts(&self) -> Option<&Mutex<Parts<Owner>>> {
        match &self.kind {
            Kind::Whole { parts, .. } => Some(parts),
            Kind::Part { .. } => None,
        }
    }
    /// Records a kernel that has this object as an argument from now on.
    pub fn used_by(&self, kernel: &Arc<Arguments>) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if !users.iter().any(|user| std::ptr::eq(user.as_ptr(), Arc::as_ptr(kernel))) {
            users.push(Arc::downgrade(kernel));
        }
    }
}

/// A kernel object and the last values of its arguments. The thread that sets arguments and enqueues owns it. Setting an argument costs some drivers
/// an allocation.
pub(super) struct Arguments {
    pub owner: Owner,
    slots: Mutex<Vec<Option<Set>>>,
}

impl Arguments {
    pub fn new(owner: Owner) -> Arc<Self> {
        Arc::new(Self { owner, slots: Mutex::default() })
    }
    pub fn lock(&self) -> MutexGuard<'_, Vec<Option<Set>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Clears every argument that is memory object `id`.
    fn forget(&self, id: u64) {
        let Some(set) = self.owner.shared.table.clSetKernelArg else { return };
        for (i, slot) in (0u32..).zip(self.lock().iter_mut()) {
            if *slot == Some(Set::Memory(id)) {
                *slot = None;
                let none: Ptr = std::ptr::null_mut();
                // SAFETY: a live kernel whose lock is held; a null memory object is a valid argument value.
                let code = unsafe { set(self.owner.ptr, i, size_of::<Ptr>(), (&raw const none).cast()) };
                self.owner.shared.defer("clSetKernelArg", code);
            }
        }
    }
}

pub(super) struct ClProgram(pub Owner);

impl ClProgram {
    pub fn new(shared: &Arc<Shared>, ptr: Ptr) -> Self {
        let release = ("clReleaseProgram", shared.table.clReleaseProgram);
        Self(Owner { ptr, shared: Arc::clone(shared), release })
    }
}

pub(super) struct ClKernel {
    pub arguments: Arc<Arguments>,
    pub name: String,
    /// Program of the kernel, needed to create another kernel object with separate arguments.
    pub program: Program,
    /// Memory of the bound arguments.
    pub memory: Mutex<Vec<Memory>>,
}
pub(super) struct ClEvent(pub Owner);

impl ClEvent {
    pub fn new(shared: &Arc<Shared>, ptr: Ptr) -> Self {
        Self(Owner {
            ptr,
            shared: Arc::clone(shared),
            release: ("clReleaseEvent", shared.table.clReleaseEvent),
        })
    }
}

/// Value of an argument.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Set {
    Memory(u64),
    Scalar([u8; 8], usize),
    Local(usize),
}

pub(super) fn foreign(what: &str) -> Error {
    Error::internal(format!("a {what} of another driver was given to OpenCL"))
}

pub(super) fn cl_memory(memory: &Memory) -> Result<Ptr> {
    memory.get::<ClMemory>().map(|m| m.ptr).ok_or_else(|| foreign("memory object"))
}

pub(super) fn cl_event(event: &Event) -> Result<Ptr> {
    event.get::<ClEvent>().map(|e| e.0.ptr).ok_or_else(|| foreign("event"))
}
