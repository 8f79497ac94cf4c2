//! The [`Driver`] over OpenCL's objects.

use super::context::Context;
use super::discover::OpenClDevice;
use super::objects::{
    Arguments, ClEvent, ClKernel, ClMemory, ClProgram, Owner, Set, Shared, cl_event, cl_memory, foreign,
};
use super::pinned::PinnedRegion;
use super::result::{check, info_bytes, need, number, text};
use super::staging::Staging;
use super::sys::{self, Ptr, Table};
use super::transfers::Transfers;
use crate::driver::{Arg, Driver, Event, KernelHandle, Memory, Program, QueueKind, Range};
use crate::driver::{Transfer, TransferKind};
use crate::host::SharedMemory;
use crate::{Capabilities, Error, ErrorKind, Result};
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

/// OpenCL as a [`Driver`].
pub struct OpenClDriver {
    shared: Arc<Shared>,
    capabilities: Capabilities,
    staging: Mutex<Staging>,
    transfers: Arc<Transfers>,
    /// Host memory of copies that may still be running.
    host_copies: Mutex<Vec<(Event, Arc<SharedMemory>)>>,
}

/// Number of running copies from and to host memory above which finished ones are searched for.
const MAX_COPIES: usize = 16;

/// Maximum number of bytes that one command fills.
const MAX_FILLED: usize = 1 << 30;

impl OpenClDriver {
    /// Opens a device: one context, an in-order compute queue and a copy queue. With `profiling`, launches can be timed. Queues created for profiling
    /// cost more per launch, so request it only if times are needed.
    pub fn open(device: &OpenClDevice, profiling: bool) -> Result<Self> {
        let table = device.platform.table;
        let what = || device.capabilities.name.clone();
        let queue = need(table.clCreateCommandQueue, "clCreateCommandQueue")?;
        let (id, mut code) = (device.id, 0);
        let context = Context::of(device)?;
        let (ptr, null) = (context.ptr, std::ptr::null_mut());
        let flags = if profiling { sys::QUEUE_PROFILING_ENABLE } else { 0 };
        let (streams, deferred) = (Mutex::default(), Mutex::default());
        let mut shared =
            Shared { table, device: id, context, compute: null, copy: null, flags, streams, deferred };
        // SAFETY: context and device are live.
        shared.compute = unsafe { queue(ptr, id, flags, &raw mut code) };
        check("clCreateCommandQueue", what, code)?;
        // SAFETY: same as above.
        shared.copy = unsafe { queue(ptr, id, flags, &raw mut code) };
        check("clCreateCommandQueue", what, code)?;
        let (shared, transfers) = (Arc::new(shared), Arc::new(Transfers::default()));
        let staging =
            Staging::new(Arc::clone(&shared), Arc::clone(&transfers), device.capabilities.global_mem);
        Ok(Self {
            shared,
            capabilities: device.capabilities.clone(),
            staging: Mutex::new(staging),
            transfers,
            host_copies: Mutex::default(),
        })
    }

    /// Keeps the host memory of a copy alive until the copy is complete.
    fn keep_until_done(&self, event: &Event, memory: &Arc<SharedMemory>) {
        let mut copies = self.host_copies.lock().unwrap_or_else(PoisonError::into_inner);
        copies.push((event.clone(), Arc::clone(memory)));
        let many = copies.len() > MAX_COPIES;
        drop(copies);
        // Frees the memory of copies that no caller waits for.
        if many {
            self.drop_done_copies();
        }
    }

    /// Releases the host memory of a copy whose event has completed.
    fn drop_copy(&self, event: &Event) {
        let mut copies = self.host_copies.lock().unwrap_or_else(PoisonError::into_inner);
        copies.retain(|(kept, _)| !kept.same(event));
    }

    /// Releases the host memory of completed copies. An event without a status counts as still running.
    fn drop_done_copies(&self) {
        let mut copies = self.host_copies.lock().unwrap_or_else(PoisonError::into_inner);
        copies.retain(|(event, _)| !matches!(self.status(event), Ok(status) if status <= 0));
    }

    /// Returns the execution status of an event's command: 0 if complete, negative for an error.
    fn status(&self, event: &Event) -> Result<sys::Int> {
        let get = need(self.table().clGetEventInfo, "clGetEventInfo")?;
        let (cl, mut status): (Ptr, sys::Int) = (cl_event(event)?, 0);
        let key = sys::EVENT_COMMAND_EXECUTION_STATUS;
        // SAFETY: the status is one cl_int.
        let code =
            unsafe { get(cl, key, size_of::<sys::Int>(), (&raw mut status).cast(), std::ptr::null_mut()) };
        check("clGetEventInfo", String::new, code).map(|()| status)
    }

    fn table(&self) -> &Table {
        &self.shared.table
    }

    fn build_anew(&self, source: &str, options: &str) -> Result<ClProgram> {
        let create = need(self.table().clCreateProgramWithSource, "clCreateProgramWithSource")?;
        let (at, length) = (source.as_ptr().cast(), source.len());
        let mut code = 0;
        // SAFETY: one source with its length.
        let ptr =
            unsafe { create(self.shared.context.ptr, 1, &raw const at, &raw const length, &raw mut code) };
        check("clCreateProgramWithSource", || format!("{length} bytes of source"), code)?;
        let program = ClProgram::new(&self.shared, ptr);
        self.compile(&program, options)?;
        Ok(program)
    }

    fn compile(&self, program: &ClProgram, options: &str) -> Result<()> {
        let build = need(self.table().clBuildProgram, "clBuildProgram")?;
        let options_c = CString::new(options).map_err(|_| Error::internal("build options contain a NUL"))?;
        let device = self.shared.device;
        // SAFETY: live program and device, NUL-terminated options, no callback.
        let code = unsafe {
            build(
                program.0.ptr,
                1,
                &raw const device,
                options_c.as_ptr(),
                std::ptr::null(),
                std::ptr::null_mut(),
            )
        };
        if code == 0 {
            return Ok(());
        }
        let log = self.log_of(program).unwrap_or_default();
        let status = check("clBuildProgram", || self.capabilities.name.clone(), code);
        let status = status.map_or_else(|e| e.message().to_string(), |()| String::new());
        Err(Error::build(format!("{status}\noptions: {options}\n{log}")))
    }

    /// Sets the arguments of a kernel that differ from `slots`. `tracked`: the kernel may outlive its arguments.
    fn set_arguments(
        &self,
        kernel: &ClKernel,
        slots: &mut Vec<Option<Set>>,
        args: &[Arg<'_>],
        tracked: bool,
    ) -> Result<()> {
        let set = need(self.table().clSetKernelArg, "clSetKernelArg")?;
        slots.resize(args.len(), None);
        for ((i, arg), slot) in (0u32..).zip(args).zip(slots.iter_mut()) {
            let new = Set::of(arg)?;
            if new.is_some() && *slot == new {
                continue;
            }
            *slot = None;
            if let Arg::Memory(m, _) = arg
                && tracked
                && let Some(memory) = m.get::<ClMemory>()
            {
                memory.used_by(&kernel.arguments);
            }
            let mem;
            let (size, at): (usize, *const c_void) = match arg {
                Arg::Memory(m, _) => {
                    mem = cl_memory(m)?;
                    (size_of::<Ptr>(), (&raw const mem).cast())
                }
                Arg::Scalar(bytes) => (bytes.len(), bytes.as_ptr().cast()),
                Arg::Local(bytes) => (*bytes, std::ptr::null()),
                Arg::Indirect(..) => continue,
            };
            // SAFETY: `at` points to `size` bytes, or is null for local memory.
            let code = unsafe { set(kernel.arguments.owner.ptr, i, size, at) };
            check(
                "clSetKernelArg",
                || format!("argument {i} ({size} bytes) of kernel {}", kernel.name),
                code,
            )?;
            *slot = new;
        }
        Ok(())
    }

    fn enqueue(
        &self,
        queue: QueueKind,
        kernel: &ClKernel,
        range: Range,
        timed: bool,
    ) -> Result<Option<Event>> {
        let enqueue = need(self.table().clEnqueueNDRangeKernel, "clEnqueueNDRangeKernel")?;
        let mut event = std::ptr::null_mut();
        let slot = if timed { &raw mut event } else { std::ptr::null_mut() };
        let Range { global, local } = range;
        let (q, null) = (self.shared.queue(queue), std::ptr::null());
        // SAFETY: sizes are arrays of three, every argument is set: just now under the kernel's lock, or once by `bind`.
        let code = unsafe {
            enqueue(
                q,
                kernel.arguments.owner.ptr,
                3,
                null,
                global.as_ptr(),
                local.as_ptr(),
                0,
                null.cast(),
                slot,
            )
        };
        check(
            "clEnqueueNDRangeKernel",
            || format!("kernel {} with global {global:?}, local {local:?}", kernel.name),
            code,
        )?;
        Ok(timed.then(|| Event::new(ClEvent::new(&self.shared, event))))
    }

    /// Returns the pointer where a transfer call stores its event: null unless transfers are timed.
    fn event_slot(&self, event: &mut Ptr) -> *mut Ptr {
        if self.transfers.is_on() { &raw mut *event } else { std::ptr::null_mut() }
    }

    /// Records a transfer that produced an event.
    fn timed(&self, kind: TransferKind, queue: QueueKind, bytes: usize, event: Ptr) {
        if !event.is_null() {
            let event = Event::new(ClEvent::new(&self.shared, event));
            self.transfers.note(kind, queue, bytes, || event);
        }
    }

    fn log_of(&self, program: &ClProgram) -> Result<String> {
        let get = need(self.table().clGetProgramBuildInfo, "clGetProgramBuildInfo")?;
        // SAFETY: `info_bytes` passes a buffer of the size it names.
        Ok(text(&info_bytes("clGetProgramBuildInfo", |n, p, s| unsafe {
            get(program.0.ptr, self.shared.device, sys::PROGRAM_BUILD_LOG, n, p.cast(), s)
        })?))
    }
}

impl Drop for OpenClDriver {
    /// Waits for copies from and to host memory, which is dropped with the driver.
    fn drop(&mut self) {
        let copies = std::mem::take(self.host_copies.get_mut().unwrap_or_else(PoisonError::into_inner));
        // A failed copy has also ended.
        copies.iter().for_each(|(event, _)| drop(self.wait(event)));
    }
}

impl Driver for OpenClDriver {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&self, bytes: usize, _: &'static str) -> Result<Memory> {
        let create = need(self.table().clCreateBuffer, "clCreateBuffer")?;
        let mut code = 0;
        // SAFETY: live context, no host pointer.
        let ptr = unsafe {
            create(self.shared.context.ptr, sys::MEM_READ_WRITE, bytes, std::ptr::null_mut(), &raw mut code)
        };
        check("clCreateBuffer", || format!("{bytes} bytes"), code)?;
        Ok(ClMemory::whole(&self.shared, ptr))
    }

    fn sub_allocate(&self, parent: &Memory, offset: usize, bytes: usize) -> Result<Memory> {
        let create = need(self.table().clCreateSubBuffer, "clCreateSubBuffer")?;
        let region = [offset, bytes];
        let mut code = 0;
        // SAFETY: `region` is a cl_buffer_region; the parent is live and kept by the new object.
        let ptr = unsafe {
            create(
                cl_memory(parent)?,
                0,
                sys::BUFFER_CREATE_TYPE_REGION,
                region.as_ptr().cast(),
                &raw mut code,
            )
        };
        check("clCreateSubBuffer", || format!("{bytes} bytes at {offset}"), code)?;
        ClMemory::part(&self.shared, ptr, parent, offset, bytes)
    }

    fn write(&self, queue: QueueKind, to: &Memory, offset: usize, data: &[u8]) -> Result<()> {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        staging.write(queue, cl_memory(to)?, offset, data)
    }

    fn write_now(&self, queue: QueueKind, to: &Memory, offset: usize, data: &[u8]) -> Result<()> {
        let write = need(self.table().clEnqueueWriteBuffer, "clEnqueueWriteBuffer")?;
        let (q, to, n) = (self.shared.queue(queue), cl_memory(to)?, data.len());
        if n == 0 {
            return Ok(());
        }
        let mut event = std::ptr::null_mut();
        let slot = self.event_slot(&mut event);
        // SAFETY: a blocking write of a slice of exactly `n` bytes.
        let code = unsafe { write(q, to, 1, offset, n, data.as_ptr().cast(), 0, std::ptr::null(), slot) };
        check("clEnqueueWriteBuffer", || format!("{n} bytes at {offset}"), code)?;
        self.timed(TransferKind::Upload, queue, n, event);
        Ok(())
    }

    fn read(&self, queue: QueueKind, from: &Memory, offset: usize, out: &mut [u8]) -> Result<()> {
        let read = need(self.table().clEnqueueReadBuffer, "clEnqueueReadBuffer")?;
        let (q, from, n) = (self.shared.queue(queue), cl_memory(from)?, out.len());
        if n == 0 {
            return self.finish(queue);
        }
        let mut event = std::ptr::null_mut();
        let slot = self.event_slot(&mut event);
        // SAFETY: a blocking read into a slice of exactly `n` bytes.
        let code = unsafe { read(q, from, 1, offset, n, out.as_mut_ptr().cast(), 0, std::ptr::null(), slot) };
        check("clEnqueueReadBuffer", || format!("{n} bytes at {offset}"), code)?;
        self.timed(TransferKind::Download, queue, n, event);
        Ok(())
    }

    fn copy(
        &self,
        queue: QueueKind,
        from: (&Memory, usize),
        to: (&Memory, usize),
        bytes: usize,
    ) -> Result<()> {
        let copy = need(self.table().clEnqueueCopyBuffer, "clEnqueueCopyBuffer")?;
        let (q, src, dst) = (self.shared.queue(queue), cl_memory(from.0)?, cl_memory(to.0)?);
        let mut event = std::ptr::null_mut();
        let slot = self.event_slot(&mut event);
        // SAFETY: live objects of this context.
        let code = unsafe { copy(q, src, dst, from.1, to.1, bytes, 0, std::ptr::null(), slot) };
        check("clEnqueueCopyBuffer", || format!("{bytes} bytes"), code)?;
        self.timed(TransferKind::Copy, queue, bytes, event);
        Ok(())
    }

    fn pin(&self, memory: &Arc<SharedMemory>) -> Result<Option<Memory>> {
        // A CPU device uses host memory directly.
        if self.capabilities.is_cpu() {
            return Ok(None);
        }
        PinnedRegion::new(&self.shared, memory).map(|region| Some(Memory::new(region)))
    }

    fn read_into(
        &self,
        queue: QueueKind,
        from: (&Memory, usize),
        to: (&Arc<SharedMemory>, usize),
        bytes: usize,
    ) -> Result<Event> {
        let read = need(self.table().clEnqueueReadBuffer, "clEnqueueReadBuffer")?;
        let (q, memory, at) = (self.shared.queue(queue), cl_memory(from.0)?, to.0.address(to.1, bytes)?);
        let mut event = std::ptr::null_mut();
        // SAFETY: `bytes` from `at` are inside the host memory, which `keep_until_done` holds until the copy is done.
        let code =
            unsafe { read(q, memory, 0, from.1, bytes, at.cast(), 0, std::ptr::null(), &raw mut event) };
        check("clEnqueueReadBuffer", || format!("{bytes} bytes at {}", from.1), code)?;
        let event = Event::new(ClEvent::new(&self.shared, event));
        self.keep_until_done(&event, to.0);
        self.transfers.note(TransferKind::Download, queue, bytes, || event.clone());
        Ok(event)
    }

    fn write_from(
        &self,
        queue: QueueKind,
        from: (&Arc<SharedMemory>, usize),
        to: (&Memory, usize),
        bytes: usize,
    ) -> Result<Event> {
        let write = need(self.table().clEnqueueWriteBuffer, "clEnqueueWriteBuffer")?;
        let (q, memory, at) = (self.shared.queue(queue), cl_memory(to.0)?, from.0.address(from.1, bytes)?);
        let mut event = std::ptr::null_mut();
        // SAFETY: same as in `read_into`.
        let code =
            unsafe { write(q, memory, 0, to.1, bytes, at.cast(), 0, std::ptr::null(), &raw mut event) };
        check("clEnqueueWriteBuffer", || format!("{bytes} bytes at {}", to.1), code)?;
        let event = Event::new(ClEvent::new(&self.shared, event));
        self.keep_until_done(&event, from.0);
        self.transfers.note(TransferKind::Upload, queue, bytes, || event.clone());
        Ok(event)
    }

    fn fill(&self, queue: QueueKind, to: &Memory, offset: usize, bytes: usize, pattern: &[u8]) -> Result<()> {
        let fill = need(self.table().clEnqueueFillBuffer, "clEnqueueFillBuffer")?;
        let (q, to) = (self.shared.queue(queue), cl_memory(to)?);
        // A single fill of 16 GB never completed with NVIDIA's driver (580).
        let most = MAX_FILLED / pattern.len().max(1) * pattern.len();
        for start in (offset..offset + bytes).step_by(most) {
            let bytes = most.min(offset + bytes - start);
            let mut event = std::ptr::null_mut();
            let slot = self.event_slot(&mut event);
            // SAFETY: the driver copies the pattern before returning.
            let code = unsafe {
                let pattern_at = pattern.as_ptr().cast();
                fill(q, to, pattern_at, pattern.len(), start, bytes, 0, std::ptr::null(), slot)
            };
            check("clEnqueueFillBuffer", || format!("{bytes} bytes at {start}"), code)?;
            self.timed(TransferKind::Fill, queue, bytes, event);
        }
        Ok(())
    }

    fn build(&self, source: &str, options: &str) -> Result<Program> {
        let build = || self.build_anew(source, options).map(|program| (program.0.ptr, program));
        let found = |ptr| ClProgram::new(&self.shared, ptr);
        self.shared.context.program((source, options), build, found).map(Program::new)
    }

    fn load_binary(&self, binary: &[u8], options: &str) -> Result<Program> {
        let create = need(self.table().clCreateProgramWithBinary, "clCreateProgramWithBinary")?;
        let (at, length, device) = (binary.as_ptr(), binary.len(), self.shared.device);
        let (mut status, mut code) = (0, 0);
        // SAFETY: one device with one binary and its length.
        let ptr = unsafe {
            create(
                self.shared.context.ptr,
                1,
                &raw const device,
                &raw const length,
                &raw const at,
                &raw mut status,
                &raw mut code,
            )
        };
        check(
            "clCreateProgramWithBinary",
            || format!("{length} bytes"),
            if code == 0 { status } else { code },
        )?;
        let program = ClProgram::new(&self.shared, ptr);
        self.compile(&program, options)?;
        Ok(Program::new(program))
    }

    fn binary(&self, program: &Program) -> Result<Vec<u8>> {
        let get = need(self.table().clGetProgramInfo, "clGetProgramInfo")?;
        let program = program.get::<ClProgram>().ok_or_else(|| foreign("program"))?;
        // SAFETY: `info_bytes` passes a buffer of the size it names.
        let size = info_bytes("clGetProgramInfo", |n, p, s| unsafe {
            get(program.0.ptr, sys::PROGRAM_BINARY_SIZES, n, p.cast(), s)
        })?;
        let mut out = vec![0u8; usize::try_from(number(&size)).unwrap_or(0)];
        let mut at = out.as_mut_ptr();
        // SAFETY: the context has one device, so the result is one pointer; it points to a buffer of the requested size.
        let code = unsafe {
            get(
                program.0.ptr,
                sys::PROGRAM_BINARIES,
                size_of::<*mut u8>(),
                (&raw mut at).cast::<c_void>(),
                std::ptr::null_mut(),
            )
        };
        check("clGetProgramInfo", || "the program's binary".into(), code)?;
        Ok(out)
    }

    fn build_log(&self, program: &Program) -> Result<String> {
        self.log_of(program.get::<ClProgram>().ok_or_else(|| foreign("program"))?)
    }

    fn kernel(&self, program: &Program, name: &str) -> Result<KernelHandle> {
        let create = need(self.table().clCreateKernel, "clCreateKernel")?;
        let of = program.get::<ClProgram>().ok_or_else(|| foreign("program"))?;
        let symbol = CString::new(name).map_err(|_| Error::internal("a kernel name contains a NUL"))?;
        let mut code = 0;
        // SAFETY: live program, NUL-terminated name.
        let ptr = unsafe { create(of.0.ptr, symbol.as_ptr(), &raw mut code) };
        check("clCreateKernel", || format!("kernel {name}"), code)?;
        let release = ("clReleaseKernel", self.table().clReleaseKernel);
        let owner = Owner { ptr, shared: Arc::clone(&self.shared), release };
        let (arguments, program) = (Arguments::new(owner), program.clone());
        Ok(KernelHandle::new(ClKernel { arguments, name: name.into(), program, memory: Mutex::default() }))
    }

    fn kernel_group_limit(&self, kernel: &KernelHandle) -> Result<usize> {
        let get = need(self.table().clGetKernelWorkGroupInfo, "clGetKernelWorkGroupInfo")?;
        let kernel = kernel.get::<ClKernel>().ok_or_else(|| foreign("kernel"))?;
        // SAFETY: `info_bytes` passes a buffer of the size it names.
        let bytes = info_bytes("clGetKernelWorkGroupInfo", |n, p, s| unsafe {
            get(kernel.arguments.owner.ptr, self.shared.device, sys::KERNEL_WORK_GROUP_SIZE, n, p.cast(), s)
        })?;
        Ok(usize::try_from(number(&bytes)).unwrap_or(usize::MAX))
    }

    fn open_queue(&self) -> Result<QueueKind> {
        self.shared.open_queue()
    }

    fn close_queue(&self, queue: QueueKind) {
        self.shared.close_queue(queue);
    }

    fn launch_in(
        &self,
        queue: QueueKind,
        kernel: &KernelHandle,
        args: &[Arg<'_>],
        range: Range,
        timed: bool,
    ) -> Result<Option<Event>> {
        let kernel = kernel.get::<ClKernel>().ok_or_else(|| foreign("kernel"))?;
        // Hold the lock until the launch is enqueued: arguments belong to the kernel, not to the launch.
        let mut slots = kernel.arguments.lock();
        self.set_arguments(kernel, &mut slots, args, true)?;
        self.enqueue(queue, kernel, range, timed)
    }

    fn bind(&self, kernel: &KernelHandle, args: &[Arg<'_>]) -> Result<KernelHandle> {
        let like = kernel.get::<ClKernel>().ok_or_else(|| foreign("kernel"))?;
        let bound = self.kernel(&like.program, &like.name)?;
        let own = bound.get::<ClKernel>().ok_or_else(|| foreign("kernel"))?;
        self.set_arguments(own, &mut Vec::new(), args, false)?;
        let memory = args.iter().filter_map(|arg| match arg {
            Arg::Memory(m, _) | Arg::Indirect(m, _) => Some((*m).clone()),
            Arg::Scalar(_) | Arg::Local(_) => None,
        });
        *own.memory.lock().unwrap_or_else(PoisonError::into_inner) = memory.collect();
        Ok(bound)
    }

    fn launch_bound(&self, bound: &KernelHandle, range: Range, timed: bool) -> Result<Option<Event>> {
        self.enqueue(
            QueueKind::Compute,
            bound.get::<ClKernel>().ok_or_else(|| foreign("kernel"))?,
            range,
            timed,
        )
    }

    fn mark(&self, queue: QueueKind) -> Result<Event> {
        let mark = need(self.table().clEnqueueMarkerWithWaitList, "clEnqueueMarkerWithWaitList")?;
        let mut event = std::ptr::null_mut();
        // SAFETY: live queue, empty wait list.
        let code = unsafe { mark(self.shared.queue(queue), 0, std::ptr::null(), &raw mut event) };
        check("clEnqueueMarkerWithWaitList", String::new, code)?;
        Ok(Event::new(ClEvent::new(&self.shared, event)))
    }

    fn wait_for(&self, queue: QueueKind, event: &Event) -> Result<()> {
        let barrier = need(self.table().clEnqueueBarrierWithWaitList, "clEnqueueBarrierWithWaitList")?;
        let event = cl_event(event)?;
        // SAFETY: one live event.
        let code = unsafe { barrier(self.shared.queue(queue), 1, &raw const event, std::ptr::null_mut()) };
        check("clEnqueueBarrierWithWaitList", String::new, code)
    }

    fn wait(&self, event: &Event) -> Result<()> {
        let wait = need(self.table().clWaitForEvents, "clWaitForEvents")?;
        let cl = cl_event(event)?;
        // SAFETY: one live event.
        let outcome = check("clWaitForEvents", String::new, unsafe { wait(1, &raw const cl) });
        self.drop_copy(event);
        outcome
    }

    fn has_come(&self, event: &Event) -> Result<bool> {
        let status = self.status(event)?;
        if status == 0 {
            self.drop_copy(event);
        }
        // Report a failed command the same way as a wait does.
        if status < 0 { self.wait(event).map(|()| true) } else { Ok(status == 0) }
    }

    fn times(&self, event: &Event) -> Result<(u64, u64)> {
        let get = need(self.table().clGetEventProfilingInfo, "clGetEventProfilingInfo")?;
        let event = cl_event(event)?;
        let read = |key| {
            let mut out = 0u64;
            // SAFETY: the property is one cl_ulong.
            let code = unsafe { get(event, key, 8, (&raw mut out).cast(), std::ptr::null_mut()) };
            check("clGetEventProfilingInfo", String::new, code).map(|()| out)
        };
        Ok((read(sys::PROFILING_COMMAND_START)?, read(sys::PROFILING_COMMAND_END)?))
    }

    fn time_transfers(&self, on: bool) -> Result<Vec<Transfer>> {
        let seen = self.transfers.switch(on);
        seen.into_iter()
            .map(|(kind, queue, bytes, event)| {
                self.wait(&event)?;
                let (start_ns, end_ns) = self.times(&event)?;
                Ok(Transfer { kind, queue, bytes, start_ns, end_ns })
            })
            .collect()
    }

    fn flush(&self, queue: QueueKind) -> Result<()> {
        let flush = need(self.table().clFlush, "clFlush")?;
        // SAFETY: live queue.
        check("clFlush", String::new, unsafe { flush(self.shared.queue(queue)) })
    }

    fn finish(&self, queue: QueueKind) -> Result<()> {
        let finish = need(self.table().clFinish, "clFinish")?;
        // SAFETY: live queue.
        let outcome = check("clFinish", String::new, unsafe { finish(self.shared.queue(queue)) });
        self.drop_done_copies();
        outcome
    }

    fn deferred_error(&self) -> Option<Error> {
        let mut slot = self.shared.deferred.lock().unwrap_or_else(PoisonError::into_inner);
        slot.take().map(|e| Error::new(ErrorKind::Launch, e.message()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::discover::devices;
    use super::super::objects::Set;
    use super::*;
    use crate::Settings;
    use crate::driver::Access;

    /// Copies are enqueued after a long kernel. The last owner of the host memory outside the driver is dropped before they run.
    #[test]
    fn host_memory_outlives_its_copies() {
        for device in devices(&Settings::default()).unwrap_or_default() {
            let Ok(driver) = OpenClDriver::open(&device, false) else { continue };
            let text = "__kernel void slow(__global uint *x) { uint v = get_global_id(0);\n\
                for (int i = 0; i < 20000000; i++) v = v * 1664525u + 1013904223u; x[get_global_id(0)] = v; }";
            let kernel = driver.kernel(&driver.build(text, "").unwrap(), "slow").unwrap();
            let bytes = 4 << 20;
            let memory = driver.allocate(bytes, "test").unwrap();
            let args = [Arg::Memory(&memory, Access::Write)];
            driver.launch(&kernel, &args, Range { global: [4, 1, 1], local: [1, 1, 1] }, false).unwrap();
            let host = Arc::new(SharedMemory::new(bytes).unwrap());
            host.write(64, &[9; 4]).unwrap();
            let watched = Arc::downgrade(&host);
            driver.write_from(QueueKind::Compute, (&host, 64), (&memory, 64), bytes - 64).unwrap();
            let last = driver.read_into(QueueKind::Compute, (&memory, 0), (&host, 0), bytes).unwrap();
            drop(host);
            let kept = watched.upgrade().expect("copies are pending, but their memory was freed");
            driver.wait(&last).unwrap();
            let mut got = [0; 4];
            kept.read(64, &mut got).unwrap();
            assert_eq!(got, [9; 4], "{}", device.capabilities.id);
            drop(kept);
            driver.finish(QueueKind::Compute).unwrap();
            assert!(watched.upgrade().is_none(), "memory of finished copies is kept");
        }
    }

    /// A bound launch keeps the memory of its arguments alive.
    #[test]
    fn a_bound_launch_outlives_its_memory() {
        for device in devices(&Settings::default()).unwrap_or_default() {
            let Ok(driver) = OpenClDriver::open(&device, false) else { continue };
            let text = "__kernel void set(__global int *x, __global int *y) { y[get_global_id(0)] = x[get_global_id(0)] + 1; }";
            let kernel = driver.kernel(&driver.build(text, "").unwrap(), "set").unwrap();
            let (x, y) = (driver.allocate(1 << 20, "test").unwrap(), driver.allocate(64, "test").unwrap());
            driver.fill(QueueKind::Compute, &x, 0, 1 << 20, &7i32.to_ne_bytes()).unwrap();
            let args = [Arg::Memory(&x, Access::Read), Arg::Memory(&y, Access::Write)];
            let bound = driver.bind(&kernel, &args).unwrap();
            drop(x);
            let other = driver.allocate(1 << 20, "test").unwrap();
            driver.fill(QueueKind::Compute, &other, 0, 1 << 20, &1i32.to_ne_bytes()).unwrap();
            driver.launch_bound(&bound, Range { global: [16, 1, 1], local: [16, 1, 1] }, false).unwrap();
            let mut got = [0u8; 64];
            driver.read(QueueKind::Compute, &y, 0, &mut got).unwrap();
            assert!(got.chunks(4).all(|x| x == 8i32.to_ne_bytes()), "{}", device.capabilities.id);
        }
    }

    /// A kernel forgets a released argument and accepts another in its place.
    #[test]
    fn released_memory_is_no_argument_any_more() {
        for device in devices(&Settings::default()).unwrap_or_default() {
            let Ok(driver) = OpenClDriver::open(&device, false) else { continue };
            let text = "__kernel void set(__global int *x, int v) { x[get_global_id(0)] = v; }";
            let kernel = driver.kernel(&driver.build(text, "").unwrap(), "set").unwrap();
            let own = kernel.get::<ClKernel>().unwrap();
            let range = Range { global: [16, 1, 1], local: [16, 1, 1] };
            let run = |memory: &Memory, v: i32| {
                let bytes = v.to_ne_bytes();
                let args = [Arg::Memory(memory, Access::Write), Arg::Scalar(&bytes)];
                driver.launch(&kernel, &args, range, false).unwrap();
            };
            let whole = driver.allocate(8192, "test").unwrap();
            let part = driver.sub_allocate(&whole, 4096, 64).unwrap();
            run(&part, 5);
            driver.finish(QueueKind::Compute).unwrap();
            assert!(matches!(own.arguments.lock()[0], Some(Set::Memory(_))));
            drop(part);
            assert!(own.arguments.lock()[0].is_none() && own.arguments.lock()[1].is_some());
            run(&whole, 7);
            let mut got = [0u8; 64];
            driver.read(QueueKind::Compute, &whole, 0, &mut got).unwrap();
            assert!(got.chunks(4).all(|x| x == 7i32.to_ne_bytes()), "{}", device.capabilities.id);
            driver.read(QueueKind::Compute, &whole, 4096, &mut got).unwrap();
            assert!(got.chunks(4).all(|x| x == 5i32.to_ne_bytes()), "{}", device.capabilities.id);
            assert!(driver.deferred_error().is_none());
        }
    }
}
