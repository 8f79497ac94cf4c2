//! AetherCL as a [`Driver`]: the simulated GPU, available on every machine.
//!
//! Every command is submitted to the simulated machine and computed at once, so that an error belongs to the call that caused it. On the simulated
//! clock, queues and engines still overlap. With checks on, a faulty launch is an error that shows the finding with its source line.

mod profiles;

pub use profiles::profiles;
use profiles::{describe, profile};

use crate::driver::{Access, Arg, Driver, Event, KernelHandle, Memory, Program, QueueKind, Range};
use crate::driver::{Edit, Transfer, TransferKind};
use crate::{Capabilities, Error, ErrorKind, Result, SimSettings};
use aethercl::machine::{
    Binding, Callback, CommandOutcome, Completion, Faults, Fence, Gpu, GpuError, KernelLaunch,
    MachineOptions, Narrator, Packet, TraceLevel,
};
use aethercl::{Checks, Finding, Includes, LaunchOptions, NdRange, Source, Target};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of findings that an error shows; one defect can produce one finding per work-item.
const MAX_SHOWN_FINDINGS: usize = 4;

/// Device state that its memory objects keep alive.
struct Shared {
    gpu: Mutex<Gpu>,
    deferred: Mutex<Option<Error>>,
    /// Path of the timeline that is written at the end.
    trace: Option<PathBuf>,
}

impl Shared {
    fn gpu(&self) -> MutexGuard<'_, Gpu> {
        self.gpu.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn defer(&self, error: Error) {
        *self.deferred.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let gpu = self.gpu.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let (Some(path), Some(timeline)) = (&self.trace, gpu.timeline()) {
            match std::fs::write(path, timeline.json()) {
                Ok(()) if timeline.dropped() > 0 => tracing::warn!(
                    "the timeline in {} ends early: {} spans did not fit",
                    path.display(),
                    timeline.dropped()
                ),
                Ok(()) => tracing::info!("timeline in {}; ui.perfetto.dev opens it", path.display()),
                Err(e) => tracing::warn!("{}", Error::io("writing", path, &e)),
            }
        }
    }
}

/// One allocation; dropping the last handle frees it.
struct Block {
    shared: Arc<Shared>,
    address: u64,
}

impl Drop for Block {
    fn drop(&mut self) {
        let freed = self.shared.gpu().free(self.address);
        if let Err(e) = freed {
            self.shared.defer(error(&e));
        }
    }
}

/// A region of an allocation.
struct SimMemory {
    block: Arc<Block>,
    address: u64,
    bytes: usize,
}

struct SimProgram(Arc<aethercl::Program>, Arc<str>);

struct SimKernel {
    program: Arc<aethercl::Program>,
    name: String,
    /// Bound arguments of a kernel from `bind`.
    bound: Vec<Binding>,
}

struct SimEvent {
    fence: Fence,
    times: (u64, u64),
}

/// The simulated GPU as a [`Driver`].
pub struct SimDriver {
    shared: Arc<Shared>,
    capabilities: Capabilities,
    compute: usize,
    copy: usize,
    /// Additional queues, and the indices of closed ones.
    streams: Mutex<(Vec<usize>, Vec<u32>)>,
    options: LaunchOptions,
    target: Target,
    edit: Option<Edit>,
    /// Recorded transfers while timing is on.
    transfers: Mutex<Option<Vec<Transfer>>>,
}

/// Converts an error of the simulated machine.
fn error(e: &GpuError) -> Error {
    let kind = match e {
        GpuError::OutOfMemory { .. } => ErrorKind::Memory,
        GpuError::Lost => ErrorKind::Device,
        GpuError::BadPacket { .. } | GpuError::Unknown(_) => ErrorKind::Internal,
        _ => ErrorKind::Launch,
    };
    Error::new(kind, e.to_string())
}

fn foreign(what: &str) -> Error {
    Error::internal(format!("a {what} of another driver was given to the simulator"))
}

impl SimDriver {
    /// Opens the simulated device called `name`: `sim`, `sim:<profile>` or `sim:<file>.toml`.
    ///
    /// # Errors
    /// If the profile does not exist, or a setting names an unknown check or level.
    pub fn open(name: &str, settings: &SimSettings) -> Result<Self> {
        Self::with_faults(name, settings, Arc::default())
    }

    /// Same, with faults that a test arms while the device is in use.
    ///
    /// # Errors
    /// Same as [`SimDriver::open`].
    pub fn with_faults(name: &str, settings: &SimSettings, faults: Arc<Faults>) -> Result<Self> {
        let profile = profile(name)?;
        let wrong = |variable: &str, why: String| Error::format(format!("{variable}: {why}"));
        if let Some(path) = &settings.trace {
            crate::check_writable(path).map_err(|e| e.context("NETCL_SIM_TRACE"))?;
        }
        let checks =
            Checks::parse(&settings.check.join(",")).map_err(|e| wrong("NETCL_SIM_CHECK", e.to_string()))?;
        let level: TraceLevel = match settings.trace_level.as_str() {
            "" => TraceLevel::Off,
            level => level.parse().map_err(|e| wrong("NETCL_SIM_TRACE_LEVEL", e))?,
        };
        let memory = settings.memory.unwrap_or(profile.memory.bytes).min(profile.memory.bytes);
        let capabilities = describe(&profile, memory);
        let options = MachineOptions {
            memory: Some(memory),
            timeline: settings.trace.is_some(),
            narrator: Narrator::new(level, Some(Box::new(|line| tracing::info!("sim: {line}")))),
            faults,
            // Counting costs time and is needed only for the simulated clock.
            count_none: settings.trace.is_none() && level == TraceLevel::Off,
            ..MachineOptions::default()
        };
        let launch = LaunchOptions {
            checks,
            threads: std::thread::available_parallelism().map_or(1, Into::into),
            sub_group: profile.compute.simd_width,
            max_time: settings.timeout.unwrap_or(Some(aethercl::MAX_TIME)),
            sample: settings.sample,
            ..LaunchOptions::default()
        };
        let mut gpu = Gpu::new(profile, options);
        let compute = gpu.open_queue().map_err(|e| error(&e))?;
        let copy = gpu.open_queue().map_err(|e| error(&e))?;
        let shared =
            Shared { gpu: Mutex::new(gpu), deferred: Mutex::new(None), trace: settings.trace.clone() };
        let target = Target { extensions: capabilities.extensions.clone() };
        Ok(Self {
            shared: Arc::new(shared),
            capabilities,
            compute,
            copy,
            streams: Mutex::default(),
            options: launch,
            target,
            edit: None,
            transfers: Mutex::default(),
        })
    }

    /// Passes every kernel source through `edit` before the build. Tests use it to plant defects.
    #[must_use]
    pub fn edit_sources(mut self, edit: Edit) -> Self {
        self.edit = Some(edit);
        self
    }

    fn number(&self, queue: QueueKind) -> usize {
        match queue {
            QueueKind::Compute => self.compute,
            QueueKind::Copy => self.copy,
            QueueKind::Stream(n) => {
                let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
                streams.0.get(n as usize).copied().unwrap_or(usize::MAX)
            }
        }
    }

    /// Submits a command, computes it and returns the outcome. The host clock does not wait for it.
    fn do_now(
        &self,
        submit: impl FnOnce(&mut Gpu, Callback) -> std::result::Result<Fence, GpuError>,
    ) -> Result<(Fence, Completion)> {
        let slot = Arc::new(Mutex::new(None));
        let into = Arc::clone(&slot);
        let callback: Callback =
            Box::new(move |done| *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(done));
        let mut gpu = self.shared.gpu();
        let fence = submit(&mut gpu, callback).map_err(|e| error(&e))?;
        gpu.doorbell(fence.queue).map_err(|e| error(&e))?;
        let ran = gpu.run();
        drop(gpu);
        let done = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        match done {
            Some(done) => Ok((fence, done)),
            None => {
                Err(ran.err().map_or_else(|| Error::internal("a command was not executed"), |e| error(&e)))
            }
        }
    }

    fn transfer(
        &self,
        what: (TransferKind, QueueKind, usize),
        submit: impl FnOnce(&mut Gpu, usize, Callback) -> std::result::Result<Fence, GpuError>,
    ) -> Result<CommandOutcome> {
        let number = self.number(what.1);
        let done = self.do_now(|gpu, callback| submit(gpu, number, callback))?.1;
        self.note(what, &done);
        done.outcome.map_err(|e| error(&e))
    }

    fn note(&self, (kind, queue, bytes): (TransferKind, QueueKind, usize), done: &Completion) {
        let mut transfers = self.transfers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(list) = transfers.as_mut() {
            let (start_ns, end_ns) = (done.start_ns, done.end_ns);
            list.push(Transfer { kind, queue, bytes: bytes as u64, start_ns, end_ns });
        }
    }

    fn run(
        &self,
        queue: QueueKind,
        kernel: &SimKernel,
        bindings: Vec<Binding>,
        range: Range,
        timed: bool,
    ) -> Result<Option<Event>> {
        let items: usize = range.local.iter().product();
        if items > self.capabilities.max_group {
            return Err(Error::launch(format!(
                "kernel {}: a group of {items} items, but {} allows {}",
                kernel.name, self.capabilities.id, self.capabilities.max_group
            )));
        }
        let sizes = NdRange {
            global: range.global.map(|n| n as u64),
            local: range.local.map(|n| n as u64),
            offset: [0; 3],
            // Like the OpenCL launches of this crate: always three dimensions; unused ones have size one.
            dimensions: 3,
        };
        let options = self.options.clone();
        let work = KernelLaunch::new(&kernel.program, &kernel.name, bindings, sizes, options).timed(timed);
        let queue = self.number(queue);
        let (fence, done) = self.do_now(|gpu, callback| gpu.launch(queue, Arc::new(work), Some(callback)))?;
        let outcome = done.outcome.map_err(|e| error(&e))?;
        for line in outcome.done.printed.lines() {
            tracing::info!("{}: {line}", kernel.name);
        }
        if !outcome.done.findings.is_empty() {
            return Err(found(&kernel.name, &outcome.done.findings));
        }
        let times = (done.start_ns, done.end_ns);
        Ok(timed.then(|| Event::new(SimEvent { fence, times })))
    }

    /// Returns the bindings of a launch.
    fn bindings(&self, args: &[Arg<'_>]) -> Result<Vec<Binding>> {
        let access = |access: &Access| match access {
            Access::Read => aethercl::Access::Read,
            Access::Write => aethercl::Access::Write,
        };
        let mut out = Vec::with_capacity(args.len());
        for arg in args {
            let binding = match arg {
                Arg::Memory(m, how) => {
                    let m = memory(m)?;
                    Binding::Buffer { address: m.address, bytes: m.bytes as u64, access: access(how) }
                }
                Arg::Scalar(bytes) => Binding::Scalar(bytes.to_vec()),
                Arg::Local(bytes) => Binding::Local(*bytes),
                Arg::Indirect(m, how) => {
                    let m = memory(m)?;
                    Binding::Indirect { address: m.address, bytes: m.bytes as u64, access: access(how) }
                }
            };
            // Several tensors can be parts of one object.
            if !matches!(binding, Binding::Indirect { .. }) || !out.contains(&binding) {
                out.push(binding);
            }
        }
        Ok(out)
    }
}

fn memory(memory: &Memory) -> Result<&SimMemory> {
    memory.get::<SimMemory>().ok_or_else(|| foreign("memory object"))
}

fn sim_event(event: &Event) -> Result<&SimEvent> {
    event.get::<SimEvent>().ok_or_else(|| foreign("event"))
}

/// Returns the address of `bytes` bytes from `offset`, if they are within the object.
fn place(memory: &SimMemory, offset: usize, bytes: usize) -> Result<u64> {
    if offset.checked_add(bytes).is_some_and(|end| end <= memory.bytes) {
        return Ok(memory.address + offset as u64);
    }
    Err(Error::launch(format!(
        "{bytes} bytes at {offset} are outside of a memory object of {} bytes",
        memory.bytes
    )))
}

/// Returns the result of a wait. A failed command was already reported by the call that enqueued it.
fn finished(waited: std::result::Result<(), GpuError>) -> Result<()> {
    match waited {
        Err(e @ (GpuError::Lost | GpuError::Deadlock(_) | GpuError::Unknown(_))) => Err(error(&e)),
        _ => Ok(()),
    }
}

/// Converts the findings of a launch to an error.
fn found(kernel: &str, findings: &[Finding]) -> Error {
    let shown =
        findings.iter().take(MAX_SHOWN_FINDINGS).map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let more = findings.len().saturating_sub(MAX_SHOWN_FINDINGS);
    let rest = if more > 0 { format!("\n… and {more} more") } else { String::new() };
    Error::launch(format!("the simulator found a defect in kernel {kernel}:\n{shown}{rest}"))
}

impl Driver for SimDriver {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&self, bytes: usize, tag: &'static str) -> Result<Memory> {
        let address = self.shared.gpu().allocate(bytes as u64, tag).map_err(|e| error(&e))?;
        let block = Arc::new(Block { shared: Arc::clone(&self.shared), address });
        Ok(Memory::new(SimMemory { block, address, bytes }))
    }

    fn sub_allocate(&self, parent: &Memory, offset: usize, bytes: usize) -> Result<Memory> {
        let parent = memory(parent)?;
        let address = place(parent, offset, bytes)?;
        Ok(Memory::new(SimMemory { block: Arc::clone(&parent.block), address, bytes }))
    }

    fn write(&self, queue: QueueKind, to: &Memory, offset: usize, data: &[u8]) -> Result<()> {
        let at = place(memory(to)?, offset, data.len())?;
        let what = (TransferKind::Upload, queue, data.len());
        self.transfer(what, |gpu, queue, callback| gpu.write(queue, at, data.to_vec(), Some(callback)))?;
        Ok(())
    }

    fn read(&self, queue: QueueKind, from: &Memory, offset: usize, out: &mut [u8]) -> Result<()> {
        let at = place(memory(from)?, offset, out.len())?;
        let number = self.number(queue);
        let bytes = out.len() as u64;
        let (fence, done) = self.do_now(|gpu, callback| gpu.read(number, at, bytes, Some(callback)))?;
        self.note((TransferKind::Download, queue, out.len()), &done);
        let outcome = done.outcome.map_err(|e| error(&e))?;
        if outcome.data.len() != out.len() {
            return Err(Error::internal("a read-back returned a wrong number of bytes"));
        }
        out.copy_from_slice(&outcome.data);
        // The program waits for its data, so its clock waits too.
        self.shared.gpu().wait(fence).map(|_| ()).map_err(|e| error(&e))
    }

    fn copy(
        &self,
        queue: QueueKind,
        from: (&Memory, usize),
        to: (&Memory, usize),
        bytes: usize,
    ) -> Result<()> {
        let source = place(memory(from.0)?, from.1, bytes)?;
        let target = place(memory(to.0)?, to.1, bytes)?;
        let packet = Packet::Copy { to: target, from: source, bytes: bytes as u64 };
        let what = (TransferKind::Copy, queue, bytes);
        self.transfer(what, |gpu, queue, callback| gpu.submit(queue, packet, Some(callback))).map(|_| ())
    }

    fn fill(&self, queue: QueueKind, to: &Memory, offset: usize, bytes: usize, pattern: &[u8]) -> Result<()> {
        let at = place(memory(to)?, offset, bytes)?;
        if ![1, 2, 4, 8, 16].contains(&pattern.len()) {
            return Err(Error::internal(format!("a fill with a pattern of {} bytes", pattern.len())));
        }
        let mut padded = [0; 16];
        padded[..pattern.len()].copy_from_slice(pattern);
        let length = pattern.len() as u32;
        let packet = Packet::Fill { to: at, bytes: bytes as u64, pattern: padded, length };
        let what = (TransferKind::Fill, queue, bytes);
        self.transfer(what, |gpu, queue, callback| gpu.submit(queue, packet, Some(callback))).map(|_| ())
    }

    fn build(&self, source: &str, options: &str) -> Result<Program> {
        let edited = self.edit.as_ref().and_then(|edit| edit(source));
        let text = Source { name: "kernel.cl", text: edited.as_deref().unwrap_or(source) };
        match aethercl::Program::build_for(&text, options, &Includes::none(), &self.target) {
            Ok(program) => Ok(Program::new(SimProgram(Arc::new(program), source.into()))),
            Err(e) => Err(Error::build(format!("AetherCL could not build it\noptions: {options}\n{e}"))),
        }
    }

    /// Returns the source itself: building from source takes milliseconds.
    fn binary(&self, program: &Program) -> Result<Vec<u8>> {
        let program = program.get::<SimProgram>().ok_or_else(|| foreign("program"))?;
        Ok(program.1.as_bytes().to_vec())
    }

    fn load_binary(&self, binary: &[u8], options: &str) -> Result<Program> {
        let text = std::str::from_utf8(binary).map_err(|_| Error::build("not a program of the simulator"))?;
        self.build(text, options)
    }

    fn build_log(&self, _: &Program) -> Result<String> {
        Ok(String::new())
    }
    fn kernel(&self, program: &Program, name: &str) -> Result<KernelHandle> {
        let program = &program.get::<SimProgram>().ok_or_else(|| foreign("program"))?.0;
        if program.kernel(name).is_none() {
            return Err(Error::build(format!("the program does not have a kernel {name}")));
        }
        Ok(KernelHandle::new(SimKernel {
            program: Arc::clone(program),
            name: name.into(),
            bound: Vec::new(),
        }))
    }

    fn kernel_group_limit(&self, kernel: &KernelHandle) -> Result<usize> {
        let kernel = kernel.get::<SimKernel>().ok_or_else(|| foreign("kernel"))?;
        let required = kernel.program.kernel(&kernel.name).and_then(|k| k.required_group);
        Ok(required.map_or(self.capabilities.max_group, |g| g.iter().product::<u64>() as usize))
    }

    fn open_queue(&self) -> Result<QueueKind> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = streams.1.pop() {
            return Ok(QueueKind::Stream(free));
        }
        let queue = self.shared.gpu().open_queue().map_err(|e| error(&e))?;
        streams.0.push(queue);
        Ok(QueueKind::Stream(u32::try_from(streams.0.len() - 1).unwrap_or(u32::MAX)))
    }

    fn close_queue(&self, queue: QueueKind) {
        if let QueueKind::Stream(n) = queue {
            self.streams.lock().unwrap_or_else(PoisonError::into_inner).1.push(n);
        }
    }

    fn launch_in(
        &self,
        queue: QueueKind,
        kernel: &KernelHandle,
        args: &[Arg<'_>],
        range: Range,
        timed: bool,
    ) -> Result<Option<Event>> {
        let kernel = kernel.get::<SimKernel>().ok_or_else(|| foreign("kernel"))?;
        self.run(queue, kernel, self.bindings(args)?, range, timed)
    }

    fn bind(&self, kernel: &KernelHandle, args: &[Arg<'_>]) -> Result<KernelHandle> {
        let like = kernel.get::<SimKernel>().ok_or_else(|| foreign("kernel"))?;
        let (program, name) = (Arc::clone(&like.program), like.name.clone());
        Ok(KernelHandle::new(SimKernel { program, name, bound: self.bindings(args)? }))
    }

    fn launch_bound(&self, bound: &KernelHandle, range: Range, timed: bool) -> Result<Option<Event>> {
        let kernel = bound.get::<SimKernel>().ok_or_else(|| foreign("kernel"))?;
        self.run(QueueKind::Compute, kernel, kernel.bound.clone(), range, timed)
    }

    fn mark(&self, queue: QueueKind) -> Result<Event> {
        let fence = self.shared.gpu().last_fence(self.number(queue)).map_err(|e| error(&e))?;
        Ok(Event::new(SimEvent { fence, times: (0, 0) }))
    }

    fn wait_for(&self, queue: QueueKind, event: &Event) -> Result<()> {
        let Fence { queue: other, value } = sim_event(event)?.fence;
        let number = self.number(queue);
        let packet = Packet::Wait { queue: other as u32, value };
        let done = self.do_now(|gpu, callback| gpu.submit(number, packet, Some(callback)))?.1;
        done.outcome.map(|_| ()).map_err(|e| error(&e))
    }

    fn wait(&self, event: &Event) -> Result<()> {
        let fence = sim_event(event)?.fence;
        if fence.value == 0 {
            // The mark was set before anything was enqueued.
            return Ok(());
        }
        finished(self.shared.gpu().wait(fence).map(|_| ()))
    }

    fn times(&self, event: &Event) -> Result<(u64, u64)> {
        Ok(sim_event(event)?.times)
    }

    fn time_transfers(&self, on: bool) -> Result<Vec<Transfer>> {
        let mut transfers = self.transfers.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::replace(&mut *transfers, on.then(Vec::new)).unwrap_or_default())
    }

    fn flush(&self, queue: QueueKind) -> Result<()> {
        self.shared.gpu().doorbell(self.number(queue)).map_err(|e| error(&e))
    }

    fn finish(&self, queue: QueueKind) -> Result<()> {
        let number = self.number(queue);
        finished(self.shared.gpu().finish(number))
    }

    fn deferred_error(&self) -> Option<Error> {
        self.shared.deferred.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
