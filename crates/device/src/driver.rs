//! What netcl asks of a device: about twenty calls. OpenCL answers them, and the simulated GPU of the crate `aethercl`.
//!
//! Handles are shared owners: cloning is cheap, dropping the last one releases the object. A driver receives
//! back only handles it made, and says [`Error::internal`](crate::Error::internal) for a foreign one.

use crate::host::SharedMemory;
use crate::{Capabilities, Result};
use serde::Serialize;
use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

/// A shared owner of something a driver made; `K` says what.
pub struct Handle<K>(Arc<dyn Any + Send + Sync>, PhantomData<fn(K)>);

impl<K> Handle<K> {
    /// Wraps what the driver keeps for this object.
    pub fn new(inner: impl Any + Send + Sync) -> Self {
        Self(Arc::new(inner), PhantomData)
    }
    /// Whether both are clones of one handle.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
    /// What the driver kept, if it is of this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl<K> Clone for Handle<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), PhantomData)
    }
}

/// What a [`Handle`] can stand for.
pub mod kind {
    /// A region of device memory.
    pub enum Memory {}
    /// A built program.
    pub enum Program {}
    /// A kernel of a program.
    pub enum Kernel {}
    /// A point in a queue.
    pub enum Event {}
}

/// A region of device memory.
pub type Memory = Handle<kind::Memory>;
/// A built program.
pub type Program = Handle<kind::Program>;
/// One kernel of a program, with its own argument slots.
pub type KernelHandle = Handle<kind::Kernel>;
/// A point in a queue.
pub type Event = Handle<kind::Event>;

/// Which of a device's queues a command goes to. Each is in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueKind {
    /// Kernels and everything that must stay in order with them.
    Compute,
    /// Transfers that overlap with kernels.
    Copy,
    /// One that [`Driver::open_queue`] made.
    Stream(u32),
}

/// What was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TransferKind {
    /// From the host to the device.
    Upload,
    /// From the device to the host.
    Download,
    /// Within the device.
    Copy,
    /// A pattern, repeated.
    Fill,
}

impl TransferKind {
    /// As profiles call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::Download => "download",
            Self::Copy => "copy",
            Self::Fill => "fill",
        }
    }
}

/// What one transfer or fill took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// What was moved.
    pub kind: TransferKind,
    /// The queue it was in.
    pub queue: QueueKind,
    /// How much.
    pub bytes: u64,
    /// When it began, nanoseconds of the device's clock; in a [`Timeline`](crate::Timeline), since that began.
    pub start_ns: u64,
    /// When it ended, likewise.
    pub end_ns: u64,
}

/// What a launch says that its kernel does with a memory object. OpenCL drivers do not ask; the simulator checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It loads from it and stores nothing.
    Read,
    /// It stores to it, and may load from it.
    Write,
}

/// One argument of a kernel.
#[derive(Clone, Copy)]
pub enum Arg<'a> {
    /// A memory object.
    Memory(&'a Memory, Access),
    /// A scalar, as its bytes.
    Scalar(&'a [u8]),
    /// Local memory of this many bytes.
    Local(usize),
    /// A memory object that the kernel reaches by addresses which it reads; behind all others. Simulated devices are told of them. OpenCL is
    /// not: a device that runs such kernels has all memory objects in reach.
    Indirect(&'a Memory, Access),
}

/// Global and local sizes of a launch, in work-items; unused dimensions are 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Work-items in each dimension.
    pub global: [usize; 3],
    /// Work-items a group in each dimension; divides `global`.
    pub local: [usize; 3],
}

/// Calls of one device. Every method may fail; none panics. Sizes and offsets are bytes.
pub trait Driver: Send + Sync {
    /// What the device is and can do.
    fn capabilities(&self) -> &Capabilities;
    /// Uninitialised device memory. `tag` says what for, to drivers that report on memory.
    fn allocate(&self, bytes: usize, tag: &'static str) -> Result<Memory>;
    /// A part of `parent`; `offset` is a multiple of [`Capabilities::base_align`].
    fn sub_allocate(&self, parent: &Memory, offset: usize, bytes: usize) -> Result<Memory>;
    /// Copies `data` to the device through pinned staging; returns once `data` may be reused, before the copy is done.
    fn write(&self, queue: QueueKind, to: &Memory, offset: usize, data: &[u8]) -> Result<()>;
    /// The same without staging, by a call that returns when the driver has taken the data: drivers put a few KiB into the command itself.
    fn write_now(&self, queue: QueueKind, to: &Memory, offset: usize, data: &[u8]) -> Result<()> {
        self.write(queue, to, offset, data)
    }
    /// Waits for everything in `queue` and copies from the device.
    fn read(&self, queue: QueueKind, from: &Memory, offset: usize, out: &mut [u8]) -> Result<()>;
    /// Copies within the device.
    fn copy(
        &self,
        queue: QueueKind,
        from: (&Memory, usize),
        to: (&Memory, usize),
        bytes: usize,
    ) -> Result<()>;
    /// Makes host memory one that transfers reach directly (page-locked), as long as the handle lives; `None` where the driver has no need
    /// or no means of it.
    fn pin(&self, _memory: &Arc<SharedMemory>) -> Result<Option<Memory>> {
        Ok(None)
    }
    /// Enqueues a copy from the device into host memory. The driver keeps that memory alive until the copy is done; its bytes are the result
    /// once the event has completed.
    fn read_into(
        &self,
        queue: QueueKind,
        from: (&Memory, usize),
        to: (&Arc<SharedMemory>, usize),
        bytes: usize,
    ) -> Result<Event> {
        let mut data = vec![0; bytes];
        self.read(queue, from.0, from.1, &mut data)?;
        to.0.write(to.1, &data)?;
        self.mark(queue)
    }
    /// Enqueues a copy from host memory to the device. The driver keeps that memory alive until the copy is done; the caller leaves its bytes
    /// unchanged until the event has completed.
    fn write_from(
        &self,
        queue: QueueKind,
        from: (&Arc<SharedMemory>, usize),
        to: (&Memory, usize),
        bytes: usize,
    ) -> Result<Event> {
        let mut data = vec![0; bytes];
        from.0.read(from.1, &mut data)?;
        self.write(queue, to.0, to.1, &data)?;
        self.mark(queue)
    }
    /// Repeats `pattern` (1, 2, 4, 8 or 16 bytes) over a range.
    fn fill(&self, queue: QueueKind, to: &Memory, offset: usize, bytes: usize, pattern: &[u8]) -> Result<()>;
    /// Compiles source text. The error's message carries the build log.
    fn build(&self, source: &str, options: &str) -> Result<Program>;
    /// Loads what [`Driver::binary`] gave.
    fn load_binary(&self, binary: &[u8], options: &str) -> Result<Program>;
    /// The program as the driver's own binary.
    fn binary(&self, program: &Program) -> Result<Vec<u8>>;
    /// What the compiler said about a program that it accepted.
    fn build_log(&self, program: &Program) -> Result<String>;
    /// The kernel `name` of a program.
    fn kernel(&self, program: &Program, name: &str) -> Result<KernelHandle>;
    /// Largest work-group this kernel can be launched with here.
    fn kernel_group_limit(&self, kernel: &KernelHandle) -> Result<usize>;
    /// A queue beside the two that there are.
    fn open_queue(&self) -> Result<QueueKind>;
    /// Gives a queue of [`Driver::open_queue`] back, which is empty.
    fn close_queue(&self, queue: QueueKind);
    /// Enqueues a launch in the compute queue; with `timed`, returns an event whose times can be read.
    fn launch(
        &self,
        kernel: &KernelHandle,
        args: &[Arg<'_>],
        range: Range,
        timed: bool,
    ) -> Result<Option<Event>> {
        self.launch_in(QueueKind::Compute, kernel, args, range, timed)
    }
    /// The same in another queue.
    fn launch_in(
        &self,
        queue: QueueKind,
        kernel: &KernelHandle,
        args: &[Arg<'_>],
        range: Range,
        timed: bool,
    ) -> Result<Option<Event>>;
    /// Another object of the same kernel that keeps these arguments and their memory, for launches that are repeated unchanged.
    fn bind(&self, kernel: &KernelHandle, args: &[Arg<'_>]) -> Result<KernelHandle>;
    /// Enqueues a launch of what [`Driver::bind`] made, with the arguments it has.
    fn launch_bound(&self, bound: &KernelHandle, range: Range, timed: bool) -> Result<Option<Event>>;
    /// An event that completes when everything enqueued so far has.
    fn mark(&self, queue: QueueKind) -> Result<Event>;
    /// Makes what is enqueued next in `queue` wait for `event`.
    fn wait_for(&self, queue: QueueKind, event: &Event) -> Result<()>;
    /// Blocks until `event` completes.
    fn wait(&self, event: &Event) -> Result<()>;
    /// Whether `event` has completed; its command has been flushed. A driver that cannot tell waits for it.
    fn has_come(&self, event: &Event) -> Result<bool> {
        self.wait(event).map(|()| true)
    }
    /// Start and end in nanoseconds of the device's clock; only for events of timed launches.
    fn times(&self, event: &Event) -> Result<(u64, u64)>;
    /// With `on`, times transfers and fills from now on. Waits for those that were timed since it was last asked, and returns them
    /// in the order they were enqueued; their times are as those of [`Driver::times`].
    fn time_transfers(&self, on: bool) -> Result<Vec<Transfer>>;
    /// Hands enqueued commands to the device.
    fn flush(&self, queue: QueueKind) -> Result<()>;
    /// Blocks until a queue is empty.
    fn finish(&self, queue: QueueKind) -> Result<()>;
    /// An error that a destructor could not report, if any; it is forgotten by being asked.
    fn deferred_error(&self) -> Option<crate::Error>;
}

/// Rewrites a source text before it is built; `None` leaves it as it is.
pub type Edit = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;
