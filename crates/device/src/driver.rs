//! The driver interface: about thirty calls that netcl makes to a device. OpenCL implements them, and so does the simulated GPU of the crate
//! `aethercl`.
//!
//! Handles are shared owners: cloning is cheap, and dropping the last one releases the object. A driver only receives handles that it created. It
//! returns [`Error::internal`](crate::Error::internal) for any other handle.

use crate::host::SharedMemory;
use crate::{Capabilities, Result};
use serde::Serialize;
use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

/// A shared owner of an object that a driver created; `K` is the kind of object.
pub struct Handle<K>(Arc<dyn Any + Send + Sync>, PhantomData<fn(K)>);

impl<K> Handle<K> {
    /// Wraps the driver's data for this object.
    pub fn new(inner: impl Any + Send + Sync) -> Self {
        Self(Arc::new(inner), PhantomData)
    }
    /// Returns true if both are clones of one handle.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
    /// Returns a number that no other live object has.
    pub fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
    /// Returns the driver's data if it has type `T`.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl<K> Clone for Handle<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), PhantomData)
    }
}

/// Kinds of objects that a [`Handle`] can refer to.
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
/// One kernel of a program, with separate argument slots.
pub type KernelHandle = Handle<kind::Kernel>;
/// A point in a queue.
pub type Event = Handle<kind::Event>;

/// The queue of a device that a command is enqueued in. Each queue is in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueKind {
    /// Kernels and all commands that must stay in order with them.
    Compute,
    /// Transfers that overlap with kernels.
    Copy,
    /// A queue opened by [`Driver::open_queue`].
    Stream(u32),
}

/// The kind of transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TransferKind {
    /// From the host to the device.
    Upload,
    /// From the device to the host.
    Download,
    /// Within the device.
    Copy,
    /// A repeated pattern.
    Fill,
}

impl TransferKind {
    /// Returns the name that profiles use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::Download => "download",
            Self::Copy => "copy",
            Self::Fill => "fill",
        }
    }
}

/// Timing of one transfer or fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The kind of transfer.
    pub kind: TransferKind,
    /// The queue that the transfer ran in.
    pub queue: QueueKind,
    /// Number of bytes.
    pub bytes: u64,
    /// Start, in nanoseconds of the device clock; in a [`Timeline`](crate::Timeline), since the start of the timeline.
    pub start_ns: u64,
    /// End, on the same clock.
    pub end_ns: u64,
}

/// Kind of access of a kernel to a memory object, declared by the launch. OpenCL drivers ignore it; the simulator checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The kernel loads from the object and does not store to it.
    Read,
    /// The kernel stores to the object and may load from it.
    Write,
}

/// One argument of a kernel.
#[derive(Clone, Copy)]
pub enum Arg<'a> {
    /// A memory object.
    Memory(&'a Memory, Access),
    /// The bytes of a scalar.
    Scalar(&'a [u8]),
    /// Local memory of this many bytes.
    Local(usize),
    /// A memory object that the kernel reaches through addresses that it loads. These arguments come last. Simulated devices receive them. OpenCL
    /// does not: a device that runs such kernels can reach all memory objects.
    Indirect(&'a Memory, Access),
}

/// Global and local sizes of a launch, in work-items. Unused dimensions are 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Work-items in each dimension.
    pub global: [usize; 3],
    /// Work-items per group in each dimension; divides `global`.
    pub local: [usize; 3],
}

/// Interface of one device. Every method may fail; none panics. Sizes and offsets are in bytes.
pub trait Driver: Send + Sync {
    /// Returns the properties of the device.
    fn capabilities(&self) -> &Capabilities;
    /// Allocates uninitialized device memory. `tag` names its purpose for drivers that report memory use.
    fn allocate(&self, bytes: usize, tag: &'static str) -> Result<Memory>;
    /// Returns a part of `parent`; `offset` is a multiple of [`Capabilities::base_align`].
    fn sub_allocate(&self, parent: &Memory, offset: usize, bytes: usize) -> Result<Memory>;
    /// Copies `data` to the device through pinned staging memory. Returns as soon as `data` may be reused, possibly before the copy is complete.
    fn write(&self, queue: QueueKind, to: &Memory, offset: usize, data: &[u8]) -> Result<()>;
    /// Copies `data` without staging. The call returns after the driver has taken the data: drivers put a few KiB into the command itself.
    fn write_now(&self, queue: QueueKind, to: &Memory, offset: usize, data: &[u8]) -> Result<()> {
        self.write(queue, to, offset, data)
    }
    /// Waits for all commands in `queue`, then copies from the device.
    fn read(&self, queue: QueueKind, from: &Memory, offset: usize, out: &mut [u8]) -> Result<()>;
    /// Copies within the device.
    fn copy(
        &self,
        queue: QueueKind,
        from: (&Memory, usize),
        to: (&Memory, usize),
        bytes: usize,
    ) -> Result<()>;
    /// Page-locks host memory so that transfers access it directly for the lifetime of the handle. Returns `None` if the driver does not need or
    /// support this.
    fn pin(&self, _memory: &Arc<SharedMemory>) -> Result<Option<Memory>> {
        Ok(None)
    }
    /// Enqueues a copy from the device to host memory. The driver keeps that memory alive until the copy is complete. The bytes are valid after the
    /// event completes.
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
    /// Enqueues a copy from host memory to the device. The driver keeps that memory alive until the copy is complete. The caller must not change the
    /// bytes until the event completes.
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
    /// Fills a range with `pattern` (1, 2, 4, 8 or 16 bytes).
    fn fill(&self, queue: QueueKind, to: &Memory, offset: usize, bytes: usize, pattern: &[u8]) -> Result<()>;
    /// Compiles source code. The error message includes the build log.
    fn build(&self, source: &str, options: &str) -> Result<Program>;
    /// Loads a binary returned by [`Driver::binary`].
    fn load_binary(&self, binary: &[u8], options: &str) -> Result<Program>;
    /// Returns the program as a binary in the driver's format.
    fn binary(&self, program: &Program) -> Result<Vec<u8>>;
    /// Returns the compiler log of a program that compiled.
    fn build_log(&self, program: &Program) -> Result<String>;
    /// Returns the kernel `name` of a program.
    fn kernel(&self, program: &Program, name: &str) -> Result<KernelHandle>;
    /// Returns the largest work-group that this kernel can be launched with on this device.
    fn kernel_group_limit(&self, kernel: &KernelHandle) -> Result<usize>;
    /// Opens a queue in addition to the compute and copy queues.
    fn open_queue(&self) -> Result<QueueKind>;
    /// Closes an empty queue that [`Driver::open_queue`] opened.
    fn close_queue(&self, queue: QueueKind);
    /// Enqueues a launch in the compute queue. With `timed`, returns an event whose times can be read.
    fn launch(
        &self,
        kernel: &KernelHandle,
        args: &[Arg<'_>],
        range: Range,
        timed: bool,
    ) -> Result<Option<Event>> {
        self.launch_in(QueueKind::Compute, kernel, args, range, timed)
    }
    /// Enqueues a launch in the given queue.
    fn launch_in(
        &self,
        queue: QueueKind,
        kernel: &KernelHandle,
        args: &[Arg<'_>],
        range: Range,
        timed: bool,
    ) -> Result<Option<Event>>;
    /// Returns another object of the same kernel that keeps these arguments and their memory, for launches that repeat unchanged.
    fn bind(&self, kernel: &KernelHandle, args: &[Arg<'_>]) -> Result<KernelHandle>;
    /// Enqueues a launch of a kernel from [`Driver::bind`] with its bound arguments.
    fn launch_bound(&self, bound: &KernelHandle, range: Range, timed: bool) -> Result<Option<Event>>;
    /// Returns an event that completes after everything enqueued so far.
    fn mark(&self, queue: QueueKind) -> Result<Event>;
    /// Makes later commands in `queue` wait for `event`.
    fn wait_for(&self, queue: QueueKind, event: &Event) -> Result<()>;
    /// Blocks until `event` completes.
    fn wait(&self, event: &Event) -> Result<()>;
    /// Returns true if `event` has completed; its command has been flushed. A driver that cannot query this waits for the event.
    fn has_come(&self, event: &Event) -> Result<bool> {
        self.wait(event).map(|()| true)
    }
    /// Returns start and end in nanoseconds of the device clock; valid only for events of timed launches.
    fn times(&self, event: &Event) -> Result<(u64, u64)>;
    /// Starts or stops timing transfers and fills. Waits for those timed since the last call and returns them in enqueue order. Their times use the
    /// clock of [`Driver::times`].
    fn time_transfers(&self, on: bool) -> Result<Vec<Transfer>>;
    /// Submits enqueued commands to the device.
    fn flush(&self, queue: QueueKind) -> Result<()>;
    /// Blocks until `queue` is empty.
    fn finish(&self, queue: QueueKind) -> Result<()>;
    /// Returns and clears an error that a destructor could not report.
    fn deferred_error(&self) -> Option<crate::Error>;
}

/// Rewrites source code before it is built. `None` leaves it unchanged.
pub type Edit = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;
