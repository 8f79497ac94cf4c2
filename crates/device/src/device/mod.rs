//! The device interface for the rest of netcl: memory, launches, transfers, counters.

mod buffer;
pub mod deferred;
mod pinned;
pub mod record;
mod stream;
pub mod version;
mod writes;
mod zones;

pub use buffer::{Buffer, WeakBuffer};
pub use pinned::Pinned;
pub use stream::Stream;

use crate::driver::{Access, Arg, Driver, Event, KernelHandle, Memory, QueueKind, Range};
use crate::open::open_driver;
use crate::pool::{Block, BlockPlace, Home, Pool};
use crate::profile::{Label, Profiler};
use crate::quick::QuickMap;
use crate::timeline::{Start, Timeline};
use crate::{Capabilities, Debug, Error, KernelTime, LaunchTime, MemoryStats, Result, Settings};
use buffer::Serial;
use record::{AllocatedMemory, Argument, Command, MemorySource, Recorded, Recorder};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use version::check_reads;

/// An opened device. Clones refer to the same device.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    driver: Box<dyn Driver>,
    settings: Settings,
    debug: Debug,
    pool: Pool,
    profiler: Profiler,
    recorder: Recorder,
    streams: stream::Streams,
    /// Current tags, by the thread that set them.
    tags: Mutex<HashMap<ThreadId, &'static str>>,
    /// Number of current tags.
    tagged: AtomicUsize,
    counters: Counters,
    extensions: RwLock<QuickMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

#[derive(Default)]
struct Counters {
    launches: AtomicU64,
    uploaded: AtomicU64,
    downloaded: AtomicU64,
}

/// Effects of a launch that its arguments do not show.
#[derive(Clone, Copy, Default)]
pub struct Effects<'a> {
    /// Memory that the launch reads through addresses in other arguments (indirect access).
    pub reads: &'a [Buffer],
    /// Memory that the launch reads and writes through such addresses.
    pub writes: &'a [Buffer],
    /// The only windows of written buffers that change. A written buffer without a window in this list changes entirely.
    pub changes: &'a [Buffer],
}

impl Device {
    /// Opens the device called `name`: `auto`, `<platform>:<index>`, `<platform>`, an index into the list, `sim`, or `sim:<profile>`. `auto` takes a
    /// GPU, or else a processor, or else `sim`.
    ///
    /// # Errors
    /// `Device` if no device has this name; the message lists the available devices.
    pub fn open(name: &str, settings: &Settings) -> Result<Self> {
        let debug = Debug::parse(&settings.debug)?;
        let mut settings = settings.clone();
        if debug.bounds && !settings.sim.check.iter().any(|check| check == "bounds" || check == "all") {
            settings.sim.check.push("bounds".into());
        }
        let driver = open_driver(name, &settings)?;
        let capabilities = driver.capabilities();
        if capabilities.simulated {
            tracing::info!("device {} is simulated: {}", capabilities.id, capabilities.name);
        } else if name == "auto" {
            tracing::info!("device {}: {}", capabilities.id, capabilities.name);
        }
        // In a pool, an access past the end of a buffer reaches a neighboring block, and a use after free is not detected.
        let checked = capabilities.simulated && !settings.sim.check.is_empty();
        let exact_memory = settings.exact_memory || checked;
        Ok(Self::from_driver(driver, Settings { exact_memory, ..settings }))
    }

    /// Returns a device that uses any driver.
    pub fn from_driver(driver: Box<dyn Driver>, settings: Settings) -> Self {
        // Opening the device by name already rejected unknown names.
        let debug = Debug::parse(&settings.debug).unwrap_or_default();
        let zones = debug.bounds && !driver.capabilities().simulated;
        Self(Arc::new(Inner {
            driver,
            pool: Pool::new(
                settings.exact_memory,
                settings.keep_memory,
                zones,
                settings.memory_for_buffers(),
            ),
            debug,
            settings,
            profiler: Profiler::default(),
            recorder: Recorder::default(),
            streams: stream::Streams::default(),
            tags: Mutex::default(),
            tagged: AtomicUsize::new(0),
            counters: Counters::default(),
            extensions: RwLock::default(),
        }))
    }

    /// Returns the properties of the device.
    pub fn capabilities(&self) -> &Capabilities {
        self.0.driver.capabilities()
    }
    /// Returns the settings that the device was opened with.
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }
    /// Returns the checks that `NETCL_DEBUG` enables.
    pub fn debug(&self) -> Debug {
        self.0.debug
    }
    /// Returns the underlying driver.
    pub fn driver(&self) -> &dyn Driver {
        &*self.0.driver
    }
    pub(crate) fn pool(&self) -> &Pool {
        &self.0.pool
    }
    fn streams(&self) -> &stream::Streams {
        &self.0.streams
    }
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.0.recorder
    }

    /// Allocates uninitialized memory and counts it under the current tag.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer> {
        check_size(bytes)?;
        self.check_deferred()?;
        let tag = self.current_tag();
        let Some(AllocatedMemory { serial, place }) =
            self.0.recorder.allocate(bytes, self.0.pool.class(bytes), tag)?
        else {
            // Commands in another queue may still use the memory in the pool.
            if self.queue() != QueueKind::Compute {
                return self.allocate_own(bytes);
            }
            let block = self.0.pool.take(self.driver(), bytes, tag)?;
            let buffer = Buffer::new(self.clone(), (block, None), bytes, tag, None);
            return self.watched(buffer);
        };
        let block = match place {
            MemorySource::At(chunk, offset) => (self.part(&chunk, offset, bytes)?, Some(chunk)),
            MemorySource::Again(block) => {
                self.0.pool.take_again(&block, tag);
                (block, None)
            }
            MemorySource::Nowhere => (nowhere(serial, bytes), None),
            MemorySource::Pool | MemorySource::Unplanned => {
                (self.0.pool.take(self.driver(), bytes, tag)?, None)
            }
        };
        let buffer = Buffer::new(self.clone(), block, bytes, tag, Some(serial));
        self.0.recorder.made(&buffer);
        self.watched(buffer)
    }

    /// Marks the guard zones around a new buffer if they are enabled.
    fn watched(&self, buffer: Buffer) -> Result<Buffer> {
        if self.0.debug.bounds && !self.capabilities().simulated {
            self.mark_zones(&buffer)?;
        }
        Ok(buffer)
    }

    /// Allocates memory of exactly this size. It returns to the driver when it is no longer used.
    pub fn allocate_own(&self, bytes: usize) -> Result<Buffer> {
        check_size(bytes)?;
        self.check_deferred()?;
        let tag = self.current_tag();
        let block = self.0.pool.take_own(self.driver(), bytes.max(1), tag)?;
        self.watched(Buffer::new(self.clone(), (block, None), bytes, tag, None))
    }

    /// Returns a block within a chunk or, without an offset, the chunk itself.
    fn part(&self, chunk: &Buffer, offset: Option<usize>, bytes: usize) -> Result<Block> {
        let root = chunk.memory().clone();
        let memory = match offset {
            Some(offset) => self.driver().sub_allocate(&root, offset, bytes.max(1))?,
            None => root.clone(),
        };
        let address = Arc::default();
        Ok(Block { memory, root, offset: offset.unwrap_or(0), bytes, address, home: Home::Part })
    }

    /// Accepts a block whose buffer was dropped.
    pub(crate) fn give_back(&self, block: Block, tag: &'static str, serial: Option<Serial>) {
        let bytes = block.bytes;
        match self.0.recorder.freed(serial, block) {
            Some(Block { home: Home::Part | Home::Nowhere(_), .. }) => {}
            Some(block) => self.0.pool.give_back(block, tag),
            None => self.0.pool.release(bytes, tag),
        }
    }

    /// Counts this thread's allocations under `tag` until the guard is dropped.
    #[must_use]
    pub fn tag(&self, tag: &'static str) -> TagGuard {
        let thread = std::thread::current().id();
        TagGuard { device: self.clone(), thread, before: self.set_tag(thread, Some(tag)) }
    }

    fn tags(&self) -> MutexGuard<'_, HashMap<ThreadId, &'static str>> {
        self.0.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the previous tag.
    fn set_tag(&self, thread: ThreadId, tag: Option<&'static str>) -> Option<&'static str> {
        let mut tags = self.tags();
        let before = match tag {
            Some(tag) => tags.insert(thread, tag),
            None => tags.remove(&thread),
        };
        self.0.tagged.store(tags.len(), Ordering::Release);
        before
    }

    fn current_tag(&self) -> &'static str {
        // A thread sees only tags that it set: without any tags no lookup is needed.
        if self.0.tagged.load(Ordering::Acquire) == 0 {
            return "other";
        }
        self.tags().get(&std::thread::current().id()).copied().unwrap_or("other")
    }

    /// Copies `data` into `to`. Returns before the copy is complete; later commands see it.
    pub fn upload(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<()> {
        check_range("upload", to, offset, data.len())?;
        self.0.counters.uploaded.fetch_add(data.len() as u64, Ordering::Relaxed);
        if data.is_empty() {
            return Ok(());
        }
        deferred::before([to].into_iter(), Access::Write)?;
        to.written();
        if !self.note_write(to, offset, data) {
            Ok(())
        } else if self.0.settings.keep_memory {
            self.upload_whole(to, offset, data)
        } else {
            self.driver().write(self.queue_for([to].into_iter()), to.memory(), offset, data)
        }
    }

    /// Copies without staging in one call, for a few KiB that a caller waits for; see [`Driver::write_now`].
    ///
    /// # Errors
    /// Same as [`Device::upload`].
    pub fn upload_now(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<()> {
        if self.is_recording() || self.0.settings.keep_memory {
            return self.upload(to, offset, data);
        }
        check_range("upload", to, offset, data.len())?;
        deferred::before([to].into_iter(), Access::Write)?;
        self.check_computed(None)?;
        self.0.counters.uploaded.fetch_add(data.len() as u64, Ordering::Relaxed);
        to.written();
        self.driver().write_now(self.queue_for([to].into_iter()), to.memory(), offset, data)
    }

    /// Records an upload if a recording is active. Returns true if the upload must run now.
    fn note_write(&self, to: &Buffer, offset: usize, data: &[u8]) -> bool {
        self.0
            .recorder
            .command(|touch| Command::Write { to: (touch(to, Access::Write), offset), data: data.into() })
    }

    /// Uploads with one write of the whole buffer, for memory checkers that track only such writes (Oclgrind 21.10).
    fn upload_whole(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<()> {
        if data.len() == to.bytes() {
            return self.driver().write_now(QueueKind::Compute, to.memory(), 0, data);
        }
        let mut whole = vec![0; to.bytes()];
        self.driver().read(QueueKind::Compute, to.memory(), 0, &mut whole)?;
        whole[offset..offset + data.len()].copy_from_slice(data);
        self.driver().write_now(QueueKind::Compute, to.memory(), 0, &whole)
    }

    /// Copies `data` into `to` on the copy queue, concurrently with running kernels. Kernels enqueued from now on see it. No enqueued command may use
    /// `to`: the caller keeps separate buffers for this and knows when they are free.
    pub fn upload_overlapped(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<()> {
        check_range("upload", to, offset, data.len())?;
        self.0.counters.uploaded.fetch_add(data.len() as u64, Ordering::Relaxed);
        if data.is_empty() {
            return Ok(());
        }
        deferred::before([to].into_iter(), Access::Write)?;
        to.written();
        if !self.note_write(to, offset, data) {
            return Ok(());
        }
        self.driver().write(QueueKind::Copy, to.memory(), offset, data)?;
        let done = self.driver().mark(QueueKind::Copy)?;
        self.driver().flush(QueueKind::Copy)?;
        self.driver().wait_for(QueueKind::Compute, &done)
    }

    /// Waits for everything enqueued and copies `from` to the host.
    pub fn download(&self, from: &Buffer, offset: usize, out: &mut [u8]) -> Result<()> {
        check_range("download", from, offset, out.len())?;
        deferred::before([from].into_iter(), Access::Read)?;
        self.check_computed(Some(from))?;
        check_reads([from].into_iter())?;
        self.0.counters.downloaded.fetch_add(out.len() as u64, Ordering::Relaxed);
        if out.is_empty() {
            self.finish()
        } else {
            self.driver().read(self.queue(), from.memory(), offset, out)
        }
    }

    /// Returns an event after everything enqueued so far. It belongs to this thread's current stream or, outside a stream, to the device's own queue.
    ///
    /// # Errors
    /// `Unsupported` within a captured step, whose commands are not enqueued.
    pub fn mark(&self) -> Result<Event> {
        deferred::all()?;
        self.check_computed(None)?;
        self.driver().mark(self.queue())
    }

    /// Waits until `event` has completed.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.driver().wait(event)
    }

    /// Waits for an event that will complete soon and whose commands are flushed. It polls for at most `most`, then waits through the driver, which
    /// may put the thread to sleep. Polling occupies a core.
    ///
    /// # Errors
    /// Same as [`Device::wait`].
    pub fn wait_awake(&self, event: &Event, most: Duration) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < most {
            if self.driver().has_come(event)? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.driver().wait(event)
    }

    /// Copies `from` to the host after `event` has completed, without waiting for commands enqueued after it.
    pub fn download_after(&self, event: &Event, from: &Buffer, offset: usize, out: &mut [u8]) -> Result<()> {
        check_range("download", from, offset, out.len())?;
        deferred::before([from].into_iter(), Access::Read)?;
        self.check_computed(Some(from))?;
        self.0.counters.downloaded.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.driver().wait(event)?;
        self.driver().read(QueueKind::Copy, from.memory(), offset, out)
    }

    /// Copies within the device, in order with kernels.
    pub fn copy(
        &self,
        from: &Buffer,
        from_offset: usize,
        to: &Buffer,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        check_range("copy", from, from_offset, bytes)?;
        check_range("copy", to, to_offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        deferred::before([from].into_iter(), Access::Read)?;
        deferred::before([to].into_iter(), Access::Write)?;
        self.0.recorder.check_owner([from, to].into_iter())?;
        check_reads([from].into_iter())?;
        to.written();
        let run = self.0.recorder.command(|touch| {
            let (from, to) = (touch(from, Access::Read), touch(to, Access::Write));
            Command::Copy { from: (from, from_offset), to: (to, to_offset), bytes }
        });
        if !run {
            return Ok(());
        }
        let queue = self.queue_for([from, to].into_iter());
        self.driver().copy(queue, (from.memory(), from_offset), (to.memory(), to_offset), bytes)
    }

    /// Fills the whole buffer with `pattern` (1, 2, 4, 8 or 16 bytes).
    ///
    /// # Errors
    /// `Shape` for any other pattern size, and if the buffer size is not a multiple of the pattern size.
    pub fn fill(&self, to: &Buffer, pattern: &[u8]) -> Result<()> {
        let bytes = to.bytes();
        if ![1, 2, 4, 8, 16].contains(&pattern.len()) || !bytes.is_multiple_of(pattern.len()) {
            return Err(Error::shape(format!(
                "fill: a pattern of {} bytes over a buffer of {bytes} bytes; expected 1, 2, 4, 8 or 16 bytes that divide it",
                pattern.len()
            )));
        }
        if bytes == 0 {
            return Ok(());
        }
        to.check_there()?;
        deferred::before([to].into_iter(), Access::Write)?;
        to.written();
        if self.0.settings.keep_memory {
            // Oclgrind 21.10 treats memory written by a fill as uninitialized.
            self.upload(to, 0, &pattern.repeat(bytes / pattern.len()))
        } else {
            // Equal bytes become a memset on CPUs, three times as fast as the driver's loop over patterns.
            let equal = self.capabilities().is_cpu() && pattern.iter().all(|b| *b == pattern[0]);
            let pattern = if equal { &pattern[..1] } else { pattern };
            // GPU drivers store one pattern at a time. NVIDIA's driver writes 0.8 TB/s with two-byte patterns on a card with 2.7 TB/s.
            let widened = pattern.repeat(16 / pattern.len());
            let wide = !self.capabilities().is_cpu() && bytes.is_multiple_of(16);
            let pattern = if wide { &widened[..] } else { pattern };
            let run = self.0.recorder.command(|touch| Command::Fill {
                to: touch(to, Access::Write),
                bytes,
                pattern: pattern.into(),
            });
            if !run {
                return Ok(());
            }
            self.driver().fill(self.queue_for([to].into_iter()), to.memory(), 0, bytes, pattern)
        }
    }

    /// Enqueues a kernel; it is timed during profiling.
    pub fn launch(
        &self,
        kernel: &KernelHandle,
        args: &[Argument],
        range: Range,
        label: Label,
        effects: Effects<'_>,
    ) -> Result<()> {
        self.enqueue(kernel, args, range, label, effects)?;
        if !self.0.debug.bounds || self.capabilities().simulated || self.is_capturing() {
            return Ok(());
        }
        let own = args.iter().enumerate().filter_map(|(i, arg)| match arg {
            Argument::Memory(buffer, _) => Some((Some(i), buffer)),
            _ => None,
        });
        let reached = effects.reads.iter().chain(effects.writes).map(|buffer| (None, buffer));
        self.check_zones(label, own.chain(reached))
    }

    fn enqueue(
        &self,
        kernel: &KernelHandle,
        args: &[Argument],
        range: Range,
        label: Label,
        effects: Effects<'_>,
    ) -> Result<()> {
        self.touch(args, effects)?;
        let run = self.0.recorder.command(|touch| {
            let args = args.iter().map(|arg| match arg {
                Argument::Memory(buffer, access) => Recorded::Memory(touch(buffer, *access)),
                Argument::Scalar(bytes, size) => Recorded::Scalar(*bytes, *size),
                Argument::Local(bytes) => Recorded::Local(*bytes),
            });
            let (kernel, args) = (kernel.clone(), args.collect());
            let reads = effects.reads.iter().map(|buffer| (buffer, Access::Read));
            let writes = effects.writes.iter().map(|buffer| (buffer, Access::Write));
            let indirect = reads.chain(writes).map(|(buffer, access)| touch(buffer, access)).collect();
            Command::Launch { kernel, args, indirect, range, label }
        });
        if !run {
            return Ok(());
        }
        let bound = args.iter().filter_map(|arg| match arg {
            Argument::Memory(buffer, _) => Some(buffer),
            _ => None,
        });
        let queue = self.queue_for(bound.chain(effects.reads).chain(effects.writes));
        if self.capabilities().simulated && effects.reads.len() + effects.writes.len() > 0 {
            let reads = effects.reads.iter().map(|buffer| Arg::Indirect(buffer.memory(), Access::Read));
            let writes = effects.writes.iter().map(|buffer| Arg::Indirect(buffer.memory(), Access::Write));
            let args: Vec<Arg<'_>> = args.iter().map(Argument::arg).chain(reads).chain(writes).collect();
            return self
                .launched(label, range, |timed| self.driver().launch_in(queue, kernel, &args, range, timed));
        }
        let mut few = [Arg::Local(0); 48];
        match few.get_mut(..args.len()) {
            Some(few) => {
                few.iter_mut().zip(args).for_each(|(to, arg)| *to = arg.arg());
                self.launched(label, range, |timed| self.driver().launch_in(queue, kernel, few, range, timed))
            }
            None => {
                let args: Vec<Arg<'_>> = args.iter().map(Argument::arg).collect();
                self.launched(label, range, |timed| {
                    self.driver().launch_in(queue, kernel, &args, range, timed)
                })
            }
        }
    }

    /// Checks the reads of a launch and counts its writes.
    fn touch(&self, args: &[Argument], effects: Effects<'_>) -> Result<()> {
        let memory = |wanted: Access| {
            args.iter().filter_map(move |arg| match arg {
                Argument::Memory(buffer, access) if *access == wanted => Some(buffer),
                _ => None,
            })
        };
        deferred::before(memory(Access::Read).chain(effects.reads), Access::Read)?;
        deferred::before(memory(Access::Write).chain(effects.writes), Access::Write)?;
        self.0.recorder.check_owner(
            memory(Access::Read).chain(memory(Access::Write)).chain(effects.reads).chain(effects.writes),
        )?;
        let mut all =
            memory(Access::Read).chain(memory(Access::Write)).chain(effects.reads).chain(effects.writes);
        all.try_for_each(Buffer::check_there)?;
        check_reads(memory(Access::Read).chain(effects.reads))?;
        for buffer in memory(Access::Write).chain(effects.writes) {
            let mut parts =
                effects.changes.iter().filter(|part| part.whole().same(buffer.whole())).peekable();
            match parts.peek() {
                Some(_) => parts.for_each(Buffer::written),
                None => buffer.written(),
            }
        }
        Ok(())
    }

    /// Enqueues a launch whose arguments are [bound](Driver::bind); it is timed during profiling.
    pub fn launch_bound(&self, bound: &KernelHandle, range: Range, label: Label) -> Result<()> {
        self.launched(label, range, |timed| self.driver().launch_bound(bound, range, timed))
    }

    fn launched(
        &self,
        label: Label,
        range: Range,
        launch: impl FnOnce(bool) -> Result<Option<Event>>,
    ) -> Result<()> {
        self.0.counters.launches.fetch_add(1, Ordering::Relaxed);
        // A driver that runs kernels inside this process can crash it. The last of these lines then names the kernel.
        tracing::trace!(variant = label.variant, "launch {}", label.name);
        match launch(self.0.profiler.is_on())? {
            Some(event) => self.0.profiler.record(self.driver(), label, event, range),
            None => Ok(()),
        }
    }

    /// Submits everything enqueued to the device without waiting.
    pub fn flush(&self) -> Result<()> {
        self.driver().flush(self.queue())
    }

    /// Waits until the device is idle, and reports a deferred error of a destructor.
    pub fn finish(&self) -> Result<()> {
        deferred::all()?;
        self.driver().finish(QueueKind::Compute)?;
        self.driver().finish(QueueKind::Copy)?;
        self.streams().each(|queue| self.driver().finish(queue))?;
        self.check_deferred()
    }

    fn check_deferred(&self) -> Result<()> {
        self.driver().deferred_error().map_or(Ok(()), Err)
    }

    /// Returns memory statistics.
    pub fn memory(&self) -> MemoryStats {
        self.0.pool.stats()
    }
    /// Returns the memory that the pool keeps for reuse, sorted by place.
    pub fn free_blocks(&self) -> Vec<BlockPlace> {
        self.0.pool.free_blocks()
    }
    /// Resets the peak to the current live bytes.
    pub fn reset_memory_peak(&self) {
        self.0.pool.reset_peak();
    }
    /// Returns cached memory to the driver.
    pub fn release_cached_memory(&self) {
        self.0.pool.trim();
    }
    /// Returns the number of launches so far.
    pub fn launches(&self) -> u64 {
        self.0.counters.launches.load(Ordering::Relaxed)
    }
    /// Returns the bytes copied to and from the device so far.
    pub fn transferred(&self) -> (u64, u64) {
        (self.0.counters.uploaded.load(Ordering::Relaxed), self.0.counters.downloaded.load(Ordering::Relaxed))
    }

    /// Times every launch from now on.
    pub fn start_profile(&self) {
        self.0.profiler.start();
    }
    /// Stops timing and returns the time per kernel since the start, most expensive first.
    pub fn stop_profile(&self) -> Result<Vec<KernelTime>> {
        self.0.profiler.stop(self.driver())
    }
    /// Stops timing and returns each launch since the start, in order. With more than 4096 launches, returns only the last ones.
    pub fn stop_profile_each(&self) -> Result<Vec<LaunchTime>> {
        self.0.profiler.stop_each(self.driver())
    }

    /// Records the time of every launch and transfer from now on, on the host clock. Waits for enqueued commands first.
    ///
    /// # Errors
    /// `Unsupported` if the device reports no times or another timeline is being recorded.
    pub fn start_timeline(&self) -> Result<()> {
        self.finish()?;
        self.0.profiler.start_timeline(|| Start::now(self.driver()))?;
        self.driver().time_transfers(true).map(|_| ())
    }
    /// Waits for enqueued commands and returns everything since [`Device::start_timeline`].
    ///
    /// # Errors
    /// `Internal` if no timeline was started.
    pub fn stop_timeline(&self) -> Result<Timeline> {
        let finished = self.finish();
        let transfers = self.driver().time_transfers(false);
        let (start, launches) = self.0.profiler.stop_timeline(self.driver())?;
        finished?;
        start.conclude(self.driver(), launches, transfers?)
    }

    /// Returns state that a later crate keeps with the device (kernel caches, tuning). It is created on first use.
    pub fn extension<T: Any + Send + Sync>(&self, make: impl FnOnce(&Self) -> T) -> Arc<T> {
        let key = TypeId::of::<T>();
        let found = self.0.extensions.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(value) = found.and_then(|v| v.downcast::<T>().ok()) {
            return value;
        }
        let made: Arc<T> = Arc::new(make(self));
        let mut map = self.0.extensions.write().unwrap_or_else(PoisonError::into_inner);
        let kept = map.entry(key).or_insert_with(|| made.clone() as Arc<dyn Any + Send + Sync>).clone();
        kept.downcast::<T>().unwrap_or(made)
    }

    /// Returns true if both are the same opened device.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Returns a block without memory.
fn nowhere(serial: Serial, bytes: usize) -> Block {
    let memory = Memory::new(());
    // The addresses are a terabyte apart, so buffers never overlap and every alignment holds.
    let home = Home::Nowhere((serial.1 as u64 + 1) << 40);
    Block { root: memory.clone(), memory, offset: 0, bytes, address: Arc::default(), home }
}

/// Restores the previous tag.
pub struct TagGuard {
    device: Device,
    thread: ThreadId,
    before: Option<&'static str>,
}

impl Drop for TagGuard {
    fn drop(&mut self) {
        self.device.set_tag(self.thread, self.before);
    }
}

/// Lets one device be passed where several are accepted.
impl AsRef<[Device]> for Device {
    fn as_ref(&self) -> &[Device] {
        std::slice::from_ref(self)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.capabilities().id)
    }
}

/// Rejects sizes near the integer maximum, which would wrap when rounded up to a size class.
fn check_size(bytes: usize) -> Result<()> {
    if bytes <= isize::MAX.cast_unsigned() / 2 {
        return Ok(());
    }
    Err(Error::memory(format!("a buffer of {bytes} bytes exceeds the address space")))
}

fn check_range(what: &str, buffer: &Buffer, offset: usize, bytes: usize) -> Result<()> {
    buffer.check_there()?;
    if offset.checked_add(bytes).is_some_and(|end| end <= buffer.bytes()) {
        return Ok(());
    }
    Err(Error::internal(format!(
        "{what} of {bytes} bytes at {offset} exceeds a buffer of {} bytes",
        buffer.bytes()
    )))
}
