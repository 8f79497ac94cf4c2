//! Records commands as they are enqueued: launches, fills, copies and uploads, with the memory that each touches.
//!
//! Watching records commands that also run. Capturing records them instead of running them. Captured commands are bound and enqueued later, any
//! number of times, so the pool may not give their memory to other buffers. Freed blocks of a capture therefore stay with it. The capture reuses
//! them, or places buffers according to a plan.
//!
//! The recorder knows only what launches declare: `read`, `write`, and `read_indirect` for memory whose address is in an argument, such as a tensor
//! map. The declarations must be complete.

use super::Device;
use super::buffer::{Buffer, Serial, WeakBuffer};
use crate::driver::{Access, Arg, KernelHandle, Memory, QueueKind, Range};
use crate::pool::{Block, Home};
use crate::{Error, Label, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// One argument of a launch.
#[derive(Clone)]
pub enum Argument {
    /// Memory, from the start of the buffer.
    Memory(Buffer, Access),
    /// A scalar: its bytes and the number of valid bytes.
    Scalar([u8; 8], u8),
    /// Local memory of this many bytes.
    Local(usize),
}

impl Argument {
    /// Returns the argument in the form that drivers take.
    pub fn arg(&self) -> Arg<'_> {
        match self {
            Self::Memory(buffer, access) => Arg::Memory(buffer.memory(), *access),
            Self::Scalar(bytes, size) => Arg::Scalar(&bytes[..usize::from(*size).min(8)]),
            Self::Local(bytes) => Arg::Local(*bytes),
        }
    }
}

/// Memory that a recorded command touches.
#[derive(Clone)]
pub struct Touched {
    /// The driver's object, kept alive by this value.
    pub memory: Memory,
    /// The kind of access.
    pub access: Access,
    /// Index of the recording's allocation that contains the memory; `None` for memory allocated before the recording.
    pub allocation: Option<usize>,
    /// Offset of the object within that allocation.
    pub start: usize,
    /// Number of bytes from there that may be touched.
    pub bytes: usize,
    /// [`Buffer::number`] of the buffer or of its parent.
    pub buffer: u64,
}

impl Touched {
    /// Returns the indirect argument in the form that drivers take.
    pub fn indirect(&self) -> Arg<'_> {
        Arg::Indirect(&self.memory, self.access)
    }
}

/// An argument of a recorded launch.
#[derive(Clone)]
pub enum Recorded {
    /// Memory.
    Memory(Touched),
    /// A scalar: its bytes and the number of valid bytes.
    Scalar([u8; 8], u8),
    /// Local memory of this many bytes.
    Local(usize),
}

impl Recorded {
    /// Returns the argument in the form that drivers take.
    pub fn arg(&self) -> Arg<'_> {
        match self {
            Self::Memory(touched) => Arg::Memory(&touched.memory, touched.access),
            Self::Scalar(bytes, size) => Arg::Scalar(&bytes[..usize::from(*size).min(8)]),
            Self::Local(bytes) => Arg::Local(*bytes),
        }
    }
}

/// One recorded command.
#[derive(Clone)]
pub enum Command {
    /// A launch.
    Launch {
        /// The kernel, whose arguments may have changed since.
        kernel: KernelHandle,
        /// Its arguments.
        args: Vec<Recorded>,
        /// Memory that the kernel reaches through addresses in other arguments (indirect access).
        indirect: Vec<Touched>,
        /// Global and local sizes.
        range: Range,
        /// Label for the profiler.
        label: Label,
    },
    /// Fills the first bytes of an object with a pattern.
    Fill {
        /// Destination.
        to: Touched,
        /// Number of bytes.
        bytes: usize,
        /// The pattern.
        pattern: Vec<u8>,
    },
    /// A copy within the device. Offsets are relative to the starts of the objects.
    Copy {
        /// Source and offset.
        from: (Touched, usize),
        /// Destination and offset.
        to: (Touched, usize),
        /// Number of bytes.
        bytes: usize,
    },
    /// An upload of host bytes.
    Write {
        /// Destination and offset.
        to: (Touched, usize),
        /// The bytes.
        data: Arc<[u8]>,
    },
}

impl Command {
    /// Returns all memory that the command touches.
    pub fn touched(&self) -> Vec<&Touched> {
        match self {
            Self::Launch { args, indirect, .. } => {
                let memory = args.iter().filter_map(|arg| match arg {
                    Recorded::Memory(touched) => Some(touched),
                    _ => None,
                });
                memory.chain(indirect).collect()
            }
            Self::Fill { to, .. } | Self::Write { to: (to, _), .. } => vec![to],
            Self::Copy { from, to, .. } => vec![&from.0, &to.0],
        }
    }
    /// Returns the name that the profiler uses.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Launch { label, .. } => label.name,
            Self::Fill { .. } => "fill",
            Self::Copy { .. } => "copy",
            Self::Write { .. } => "upload",
        }
    }
}

/// A buffer allocated during a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Requested bytes.
    pub bytes: usize,
    /// The current tag.
    pub tag: &'static str,
    /// Layer and operation, from [`Device::within`].
    pub place: (u32, &'static str),
    /// Whether the buffer was still alive at the end of the recording.
    pub survives: bool,
}

/// Memory plan of a recording: one place per allocation, in order.
#[derive(Clone)]
pub struct Placement {
    /// Blocks of memory that have no other user.
    pub chunks: Vec<Buffer>,
    /// Chunk, offset and bytes of each allocation. Without an offset, the allocation is the chunk's whole object.
    pub places: Vec<(usize, Option<usize>, usize)>,
}

/// Recording mode.
pub enum Mode {
    /// Commands run.
    Watch,
    /// Commands do not run and buffers do not have memory: shows what a step would do.
    DryRun,
    /// Commands do not run. Without a placement, freed memory is reused with the rules of the pool.
    Capture(Option<Placement>),
}

/// The recorded commands, with the memory that they need.
pub struct Recording {
    /// Commands in order.
    pub commands: Vec<Command>,
    /// Allocations in order.
    pub allocations: Vec<Allocation>,
    /// Bytes of earlier memory that commands read; each buffer or window counts once.
    pub read: u64,
    /// Memory that captured commands use. It stays reserved for the capture.
    pub held: CaptureMemory,
    /// Launches with a [`Device::describe_launch`] description: command index and description.
    pub described: Vec<(usize, String)>,
    /// Buffers of a dry run.
    buffers: Vec<WeakBuffer>,
}

impl Recording {
    /// Returns true if a handle of a dry-run buffer, which does not have memory, still exists.
    pub fn is_kept(&self) -> bool {
        self.buffers.iter().any(|buffer| buffer.upgrade().is_some())
    }
}

/// Memory that belongs to a capture. Dropping it returns the memory.
pub struct CaptureMemory {
    device: Device,
    blocks: Vec<Block>,
    _buffers: Vec<Buffer>,
}

impl CaptureMemory {
    /// Returns the bytes of blocks that only the capture uses.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(|b| b.bytes).sum()
    }
}

/// Statistics tag of memory that a capture holds.
const TAG: &str = "graph";

impl Drop for CaptureMemory {
    fn drop(&mut self) {
        for block in self.blocks.drain(..) {
            self.device.pool().give_back(block, TAG);
        }
    }
}

#[derive(Default)]
pub(crate) struct Recorder {
    on: AtomicBool,
    state: Mutex<Option<State>>,
    /// Locked while a replay is enqueued.
    replays: Mutex<()>,
}

struct State {
    number: u64,
    thread: ThreadId,
    /// Depth of [`Device::outside_capture`].
    outside: usize,
    mode: Mode,
    commands: Vec<Command>,
    described: Vec<(usize, String)>,
    allocations: Vec<Allocation>,
    place: (u32, &'static str),
    /// Whether freed memory may be reused. False for checkers that treat reused memory as initialized.
    reuse: bool,
    /// Blocks that the capture may reuse, and blocks that it only keeps.
    free: HashMap<usize, Vec<Block>>,
    kept: Vec<Block>,
    /// Buffers that the commands use, by identity.
    buffers: HashMap<usize, WeakBuffer>,
    /// Bytes read from earlier memory, by identity and start.
    read: HashMap<(usize, usize), usize>,
}

static NUMBER: AtomicU64 = AtomicU64::new(1);

impl State {
    fn captures(&self) -> bool {
        matches!(self.mode, Mode::Capture(_) | Mode::DryRun)
    }
    fn touch(&mut self, buffer: &Buffer, access: Access) -> Touched {
        let whole = buffer.whole();
        let allocation = whole.serial().filter(|(number, _)| *number == self.number).map(|(_, i)| i);
        if access == Access::Read && allocation.is_none() {
            self.read.insert((whole.downgrade().0, buffer.start()), buffer.bytes());
        }
        // Buffers of a dry run are recorded when they are created.
        if self.captures() && !(matches!(self.mode, Mode::DryRun) && allocation.is_none()) {
            let (key, weak) = whole.downgrade();
            self.buffers.insert(key, weak);
        }
        Touched {
            memory: buffer.memory().clone(),
            access,
            allocation,
            start: buffer.start(),
            bytes: buffer.bytes(),
            buffer: whole.number(),
        }
    }
}

impl Recorder {
    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with the recording that this thread's commands belong to, if any.
    fn here<R>(&self, f: impl FnOnce(&mut State) -> R) -> Option<R> {
        if !self.on.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.state();
        let state = state.as_mut().filter(|s| s.outside == 0 && s.thread == std::thread::current().id())?;
        Some(f(state))
    }

    /// Returns true if the host cannot read `from` (or, for `None`, cannot read any result), because commands are captured instead of run.
    fn lacks(&self, from: Option<&Buffer>) -> bool {
        if !self.on.load(Ordering::Acquire) {
            return false;
        }
        let state = self.state();
        let Some(state) = state.as_ref().filter(|s| s.captures()) else { return false };
        let made = from.and_then(|buffer| buffer.whole().serial());
        made.is_some_and(|(number, _)| number == state.number)
            || state.outside == 0 && state.thread == std::thread::current().id()
    }

    /// From now on, this thread's commands run and are not recorded. Returns true if a recording is active on this thread.
    fn leave_capture(&self) -> bool {
        self.of_this_thread(|s| s.outside += 1)
    }
    /// Ends the last [`Recorder::leave_capture`].
    fn return_to_capture(&self) {
        self.of_this_thread(|s| s.outside = s.outside.saturating_sub(1));
    }
    fn of_this_thread(&self, f: impl FnOnce(&mut State)) -> bool {
        if !self.on.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.state();
        state.as_mut().filter(|s| s.thread == std::thread::current().id()).map(f).is_some()
    }

    /// Returns true if this thread's commands are captured and must not run.
    pub fn captures(&self) -> bool {
        self.here(|s| s.captures()).unwrap_or(false)
    }

    /// Rejects access to memory that another thread's capture allocated: it does not have contents yet, and the capture may reuse it.
    ///
    /// # Errors
    /// `Unsupported` for such a buffer.
    pub fn check_owner<'a>(&self, mut buffers: impl Iterator<Item = &'a Buffer>) -> Result<()> {
        if !self.on.load(Ordering::Acquire) {
            return Ok(());
        }
        let state = self.state();
        let here = std::thread::current().id();
        let Some(state) = state.as_ref().filter(|s| s.captures() && s.thread != here) else { return Ok(()) };
        match buffers.any(|b| b.whole().serial().is_some_and(|(number, _)| number == state.number)) {
            true => Err(Error::unsupported(
                "capture: a buffer of a step that another thread is capturing does not have content yet; use it after the capture and a replay",
            )),
            false => Ok(()),
        }
    }

    /// Records the command that `make` describes. Returns true if the command must also run.
    pub fn command(&self, make: impl FnOnce(&mut dyn FnMut(&Buffer, Access) -> Touched) -> Command) -> bool {
        let noted = self.here(|s| {
            let command = make(&mut |buffer, access| s.touch(buffer, access));
            s.commands.push(command);
            !s.captures()
        });
        noted.unwrap_or(true)
    }

    /// Allocates a buffer of the recording: returns its number, and memory if the recording provides it. Returns `Err` if the plan does not match.
    pub fn allocate(&self, bytes: usize, class: usize, tag: &'static str) -> Result<Option<AllocatedMemory>> {
        let taken = self.here(|s| {
            let index = s.allocations.len();
            let place = s.place;
            s.allocations.push(Allocation { bytes, tag, place, survives: true });
            let place = match &s.mode {
                Mode::Watch => MemorySource::Pool,
                Mode::DryRun => MemorySource::Nowhere,
                Mode::Capture(None) => {
                    s.free.get_mut(&class).and_then(Vec::pop).map_or(MemorySource::Pool, MemorySource::Again)
                }
                Mode::Capture(Some(plan)) => match plan.places.get(index) {
                    Some((chunk, offset, planned)) if *planned == bytes => plan
                        .chunks
                        .get(*chunk)
                        .map_or(MemorySource::Unplanned, |b| MemorySource::At(b.clone(), *offset)),
                    _ => MemorySource::Unplanned,
                },
            };
            AllocatedMemory { serial: (s.number, index), place }
        });
        match taken {
            Some(AllocatedMemory { place: MemorySource::Unplanned, serial }) => {
                Err(Error::unsupported(format!(
                    "capture: allocation {} of {bytes} bytes differs from that of the planned step",
                    serial.1
                )))
            }
            taken => Ok(taken),
        }
    }

    /// Records a new buffer.
    pub fn made(&self, buffer: &Buffer) {
        self.here(|s| {
            if matches!(s.mode, Mode::DryRun) {
                let (key, weak) = buffer.downgrade();
                s.buffers.insert(key, weak);
            }
        });
    }

    /// Handles a dropped buffer. Returns its block if it goes back to the pool.
    pub fn freed(&self, serial: Option<Serial>, block: Block) -> Option<Block> {
        if !self.on.load(Ordering::Acquire) {
            return Some(block);
        }
        let mut state = self.state();
        let Some(state) = state.as_mut() else { return Some(block) };
        let own = serial.filter(|(number, _)| *number == state.number);
        if let Some(allocation) = own.and_then(|(_, i)| state.allocations.get_mut(i)) {
            allocation.survives = false;
        }
        if !state.captures() || !matches!(block.home, Home::Pool) {
            return Some(block);
        }
        match own.filter(|_| state.reuse) {
            Some(_) => state.free.entry(block.bytes).or_default().push(block),
            None => state.kept.push(block),
        }
        None
    }
}

/// Memory that an allocation of a recording receives.
pub(crate) struct AllocatedMemory {
    pub serial: Serial,
    pub place: MemorySource,
}

pub(crate) enum MemorySource {
    /// Memory from the pool.
    Pool,
    /// A block that the capture used before.
    Again(Block),
    /// A part of a chunk, or the whole chunk.
    At(Buffer, Option<usize>),
    /// No memory.
    Nowhere,
    /// The plan does not contain the allocation.
    Unplanned,
}

impl Device {
    /// Records this thread's commands until the session ends.
    ///
    /// # Errors
    /// `Unsupported` if a recording is already active on this device.
    pub fn record(&self, mode: Mode) -> Result<Session> {
        let recorder = self.recorder();
        let mut state = recorder.state();
        if state.is_some() {
            return Err(Error::unsupported("capture: another step is being captured on this device"));
        }
        *state = Some(State {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            thread: std::thread::current().id(),
            outside: 0,
            mode,
            commands: Vec::new(),
            described: Vec::new(),
            allocations: Vec::new(),
            place: (0, ""),
            reuse: !self.settings().keep_memory,
            free: HashMap::new(),
            kept: Vec::new(),
            buffers: HashMap::new(),
            read: HashMap::new(),
        });
        recorder.on.store(true, Ordering::Release);
        Ok(Session { device: self.clone(), open: true })
    }

    fn stop_recording(&self) -> Result<Recording> {
        let recorder = self.recorder();
        let state = recorder.state().take();
        recorder.on.store(false, Ordering::Release);
        let Some(state) = state else { return Err(Error::internal("capture: no step is being recorded")) };
        let State { commands, described, allocations, free, kept, buffers, mode, read, .. } = state;
        let read = read.into_values().map(|bytes| bytes as u64).sum();
        let blocks: Vec<Block> = free.into_values().flatten().chain(kept).collect();
        for block in &blocks {
            self.pool().take_again(block, TAG);
        }
        let (dry, captured) = match mode {
            Mode::DryRun => (buffers.into_values().collect(), Vec::new()),
            _ => (Vec::new(), buffers.into_values().filter_map(|weak| weak.upgrade()).collect()),
        };
        let held = CaptureMemory { device: self.clone(), blocks, _buffers: captured };
        Ok(Recording { commands, allocations, read, held, described, buffers: dry })
    }

    /// Returns the exclusive right to enqueue a replay. Commands of other replays on this device cannot interleave with its commands.
    ///
    /// # Errors
    /// `Unsupported` while this thread's commands are recorded, because the recording would not contain the replay. Also within a stream, because
    /// replays go into the device's own queue.
    pub fn start_replay(&self) -> Result<MutexGuard<'_, ()>> {
        super::deferred::all()?;
        if self.recorder().here(|_| ()).is_some() {
            return Err(Error::unsupported(
                "capture: the step replays a graph, which cannot be part of another one; call the graph's original function, or replay the graph \
                 before or after this step",
            ));
        }
        if self.queue() != QueueKind::Compute {
            return Err(Error::unsupported(
                "stream: a graph is replayed in the device's own queue; replay it outside of the stream, ordered by an event or by join",
            ));
        }
        Ok(self.recorder().replays.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Rejects a wait for results that a capture of this thread has not computed. With `from`, also rejects memory that any thread's capture
    /// allocated.
    pub(crate) fn check_computed(&self, from: Option<&Buffer>) -> Result<()> {
        if !self.recorder().lacks(from) {
            return Ok(());
        }
        Err(Error::unsupported(
            "capture: the step reads a result on the host that is not computed yet; read it after the replay",
        ))
    }

    /// Returns true if this thread's step is a dry run. Its buffers do not have memory, so nothing that outlives the step may keep one.
    pub fn is_dry_run(&self) -> bool {
        self.recorder().here(|s| matches!(s.mode, Mode::DryRun)).unwrap_or(false)
    }

    /// Returns true if this thread's commands are captured and do not run.
    pub fn is_capturing(&self) -> bool {
        self.recorder().captures()
    }

    /// Returns the number of commands that this thread's recording contains so far; 0 without a recording.
    pub fn commands_noted(&self) -> usize {
        self.recorder().here(|s| s.commands.len()).unwrap_or(0)
    }

    /// Adds a description of the next launch to the recording of this thread's commands.
    pub fn describe_launch(&self, text: impl FnOnce() -> String) {
        self.recorder().here(|s| {
            if matches!(s.mode, Mode::Watch) {
                s.described.push((s.commands.len(), text()));
            }
        });
    }

    /// Returns true if this thread's commands are recorded, whether or not they run.
    pub fn is_recording(&self) -> bool {
        self.recorder().here(|_| ()).is_some()
    }

    /// Runs `f` outside any recording: commands run, and buffers come from the pool.
    pub fn outside_capture<R>(&self, f: impl FnOnce() -> R) -> R {
        let _back = self.recorder().leave_capture().then(|| Restore(|| self.recorder().return_to_capture()));
        f()
    }

    /// Labels the commands of `f` in a recording with the layer of a model, counted from 1, and the operation.
    pub fn within<R>(&self, place: (u32, &'static str), f: impl FnOnce() -> R) -> R {
        let before = self.recorder().here(|s| std::mem::replace(&mut s.place, place));
        let _back = before.map(|before| {
            Restore(move || {
                self.recorder().here(|s| s.place = before);
            })
        });
        f()
    }
}

/// Runs a restoring closure when it is dropped, even during a panic.
struct Restore<F: FnMut()>(F);

impl<F: FnMut()> Drop for Restore<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// An active recording. It ends when this is dropped, even during a panic.
pub struct Session {
    device: Device,
    open: bool,
}

impl Session {
    /// Ends the recording and returns it.
    ///
    /// # Errors
    /// `Internal` if no recording was active.
    pub fn stop(mut self) -> Result<Recording> {
        self.open = false;
        self.device.stop_recording()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.open {
            // The recording is dropped; a destructor cannot report an error.
            drop(self.device.stop_recording());
        }
    }
}
