//! Owners of OpenCL objects: each releases what it owns when it is dropped, and keeps the context alive until then.

use super::args::Set;
use super::result::check;
use super::sys::{Int, Ptr, Table};
use crate::driver::{Event, Memory, Program, QueueKind};
use crate::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

static NEXT_MEMORY: AtomicU64 = AtomicU64::new(0);

/// Context and queues of one device; every object keeps it alive.
pub(super) struct Shared {
    pub table: Table,
    pub device: Ptr,
    pub context: Ptr,
    pub compute: Ptr,
    pub copy: Ptr,
    pub deferred: Mutex<Option<Error>>,
}

// SAFETY: OpenCL 1.2 objects may be used from any thread except `clSetKernelArg` on one kernel (appendix A.2), which
// `ClKernel` guards with a mutex.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub fn queue(&self, kind: QueueKind) -> Ptr {
        match kind {
            QueueKind::Compute => self.compute,
            QueueKind::Copy => self.copy,
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
        for queue in [self.compute, self.copy] {
            if let (Some(finish), Some(release), false) =
                (self.table.clFinish, self.table.clReleaseCommandQueue, queue.is_null())
            {
                // SAFETY: the queue is ours and released once. A failing finish leaves nothing to do here.
                unsafe { (finish(queue), release(queue)) };
            }
        }
        if let (Some(release), false) = (self.table.clReleaseContext, self.context.is_null()) {
            // SAFETY: the context is ours and released once.
            unsafe { release(self.context) };
        }
    }
}

type Release = Option<unsafe extern "C" fn(Ptr) -> Int>;

/// One OpenCL object; dropping it releases it and leaves any error for the next call.
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
    pub owner: Owner,
    /// A sub-buffer keeps its parent.
    _parent: Option<Memory>,
    /// Tells it from every other memory object of this process, unlike its address, which may be used again.
    pub id: u64,
}

impl ClMemory {
    pub fn memory(shared: &Arc<Shared>, ptr: Ptr, parent: Option<Memory>) -> Memory {
        let release = ("clReleaseMemObject", shared.table.clReleaseMemObject);
        let owner = Owner { ptr, shared: Arc::clone(shared), release };
        Memory::new(Self { owner, _parent: parent, id: NEXT_MEMORY.fetch_add(1, Ordering::Relaxed) })
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
    pub owner: Owner,
    pub name: String,
    /// What it is a kernel of, to make another one with arguments of its own.
    pub program: Program,
    /// What its arguments were last set to, owned by whoever sets and enqueues. Setting one costs drivers an allocation.
    pub slots: Mutex<Vec<Option<Set>>>,
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

pub(super) fn foreign(what: &str) -> Error {
    Error::internal(format!("a {what} of another driver was given to OpenCL"))
}

pub(super) fn cl_memory(memory: &Memory) -> Result<Ptr> {
    memory.get::<ClMemory>().map(|m| m.owner.ptr).ok_or_else(|| foreign("memory object"))
}

pub(super) fn cl_event(event: &Event) -> Result<Ptr> {
    event.get::<ClEvent>().map(|e| e.0.ptr).ok_or_else(|| foreign("event"))
}
