//! The device from the view of its host: memory to allocate, queues for commands, a doorbell, fences and callbacks.
//!
//! The path of a command:
//! - [`Gpu::submit`] writes it into a queue's ring, followed by a SIGNAL with the next number of the queue's fence.
//! - [`Gpu::doorbell`] announces it by writing a register.
//! - The command processor (`processor.rs`) reads it in turn, an engine executes it, the SIGNAL writes the fence and raises an interrupt.
//! - The host clears the interrupt and calls the callback.
//!
//! Everything is computed when [`Gpu::run`] or [`Gpu::wait`] is called. Order and times depend only on the commands: two runs of a program see the
//! same clock.

use super::engines::Engines;
use super::host::HostMemory;
use super::journal::Journal;
use super::moves::Residency;
use super::narrate::{Narrator, TraceLevel};
use super::packet::Packet;
use super::registers::{Effect, QUEUES, Registers, offset, status};
use super::ring::Ring;
use super::scheduling::Schedulers;
use super::trace::{Timeline, Track};
use super::vram::Vram;
use super::window::Window;
use super::{Callback, CommandOutcome, Completion, Faults, Fence, GpuError, Work, human_ns};
use crate::memory::Memory;
use crate::model::{Estimate, Profile};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Words of a ring [default, see [`MachineOptions::ring_words`]].
const RING_WORDS: usize = 4096;
/// Results kept per queue for a [`Gpu::wait`] that comes later than a callback would.
pub(super) const KEPT_RESULTS: usize = 256;

/// Options for opening a device.
pub struct MachineOptions {
    /// Bytes of memory, to set fewer than the profile has.
    pub memory: Option<u64>,
    /// Keeps a timeline.
    pub timeline: bool,
    /// Whether to record the data of a report's [`Device`](crate::report::Device).
    pub journal: bool,
    /// Level and sink of the text log.
    pub narrator: Narrator,
    /// Faults to inject.
    pub faults: Arc<Faults>,
    /// Words of a queue's ring.
    pub ring_words: usize,
    /// Whether to count every launch anew. If false, launches with one signature take the time of the first.
    pub count_all: bool,
    /// Counts only launches that request it through [`Work::timed`](super::Work::timed): others take no time on the simulated clock.
    pub count_none: bool,
    /// Replacements of the order of commands and of the places of allocations.
    pub schedulers: Schedulers,
}

impl Default for MachineOptions {
    fn default() -> Self {
        Self {
            memory: None,
            timeline: false,
            journal: false,
            narrator: Narrator::default(),
            faults: Arc::default(),
            ring_words: RING_WORDS,
            count_all: false,
            count_none: false,
            schedulers: Schedulers::default(),
        }
    }
}

/// One queue: its ring and its state.
pub(super) struct Queue {
    pub ring: Ring,
    /// End time of the last command read.
    pub ready_ns: u64,
    /// The number that the next command's SIGNAL writes.
    pub next: u64,
    /// Result of the last command, until its SIGNAL is read.
    pub last: Option<Completion>,
    pub callbacks: VecDeque<(u64, Callback)>,
    pub results: BTreeMap<u64, Completion>,
}

/// A simulated GPU.
pub struct Gpu {
    pub(super) profile: Profile,
    pub(super) memory: Arc<Memory>,
    pub(super) vram: Vram,
    pub(super) registers: Registers,
    pub(super) queues: Vec<Queue>,
    pub(super) engines: Engines,
    pub(super) host: HostMemory,
    pub(super) narrator: Narrator,
    pub(super) timeline: Option<Timeline>,
    pub(super) journal: Option<Journal>,
    pub(super) faults: Arc<Faults>,
    pub(super) history: HashMap<u64, Arc<Estimate>>,
    pub(super) count_all: bool,
    pub(super) count_none: bool,
    pub(super) schedulers: Schedulers,
    pub(super) residency: Residency,
    ring_words: usize,
    /// Registers and rings as memory, if a program mapped them.
    pub(super) window: Option<Window>,
    /// The host clock: time spent on commands, and waiting.
    pub(super) host_ns: u64,
}

impl Gpu {
    /// Powers a device on.
    pub fn new(profile: Profile, options: MachineOptions) -> Self {
        let bytes = options.memory.map_or(profile.memory.bytes, |m| m.min(profile.memory.bytes));
        Self {
            // Pages limit allocations; addresses are plentiful.
            memory: Arc::new(Memory::new(1 << 46)),
            vram: Vram::new(bytes),
            registers: Registers::new(profile.compute.units),
            queues: Vec::new(),
            engines: Engines::new(&profile),
            host: HostMemory::default(),
            narrator: options.narrator,
            timeline: options.timeline.then(Timeline::default),
            journal: options.journal.then(|| Journal::new(&profile, bytes)),
            faults: options.faults,
            history: HashMap::new(),
            count_all: options.count_all,
            count_none: options.count_none,
            schedulers: options.schedulers,
            residency: Residency::default(),
            ring_words: options.ring_words,
            window: None,
            host_ns: 0,
            profile,
        }
    }

    /// Returns the profile of the modeled device.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }
    /// Returns the address space that kernels see.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
    /// Returns the physical pages.
    pub fn vram(&self) -> &Vram {
        &self.vram
    }
    /// Returns the words of each queue's ring.
    pub(super) fn ring_words(&self) -> usize {
        Ring::new(self.ring_words).capacity()
    }
    /// Replaces the narrator.
    pub fn set_narrator(&mut self, narrator: Narrator) {
        self.narrator = narrator;
    }
    /// Pins host memory: copy engines access it at the returned bus address and the following ones, until [`Gpu::unpin`].
    pub fn pin(&mut self, data: Vec<u8>) -> u64 {
        self.host.keep(data)
    }
    /// Releases memory of [`Gpu::pin`] and returns its content.
    pub fn unpin(&mut self, at: u64) -> Option<Vec<u8>> {
        self.host.unpin(at)
    }
    /// Stores a launch descriptor in host memory. A LAUNCH packet written by the program refers to it, once.
    pub fn describe(&mut self, work: Arc<dyn Work>) -> u64 {
        self.host.describe(work)
    }
    /// Returns the host clock, ns.
    pub fn now(&self) -> u64 {
        self.host_ns
    }
    /// Advances the host clock to this time, ns, for other work of the host. It never goes back.
    pub fn host_reaches(&mut self, ns: u64) {
        self.host_ns = self.host_ns.max(ns);
    }
    /// Returns the timeline so far, if one is recorded.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref()
    }
    /// Returns the journal so far, if one is recorded.
    pub fn journal(&self) -> Option<crate::report::Device> {
        self.journal.as_ref().map(|j| j.device(&self.profile))
    }
    /// Sets the program's request time of the next commands, for the journal.
    pub fn asked(&mut self, ns: u64) {
        if let Some(journal) = &mut self.journal {
            journal.asked = ns;
        }
    }
    /// Returns true if the device is lost.
    pub fn is_lost(&self) -> bool {
        self.registers.has(status::LOST)
    }

    /// Opens a queue.
    ///
    /// # Errors
    /// If the register file is full.
    pub fn open_queue(&mut self) -> Result<usize, GpuError> {
        let number = self.queues.len();
        if number == QUEUES {
            return Err(GpuError::Unknown(format!("there are only {QUEUES} queues")));
        }
        let ring = Ring::new(self.ring_words);
        self.registers.set_ring(number, ring.capacity(), 0);
        self.narrator.say(TraceLevel::Steps, self.host_ns, || {
            format!("host: opens queue {number} with a ring of {} words", ring.capacity())
        });
        self.queues.push(Queue {
            ring,
            ready_ns: 0,
            next: 1,
            last: None,
            callbacks: VecDeque::new(),
            results: BTreeMap::new(),
        });
        if self.window.is_some() {
            self.show_window();
        }
        Ok(number)
    }

    /// Writes a command into a queue's ring, followed by the SIGNAL for its completion. Nothing happens before the doorbell is rung. If the ring is
    /// full, the command processor must first read on.
    ///
    /// # Errors
    /// If the queue does not exist, the device is lost, or the ring stays full because its queue waits forever.
    pub fn submit(
        &mut self,
        queue: usize,
        packet: Packet,
        callback: Option<Callback>,
    ) -> Result<Fence, GpuError> {
        self.alive()?;
        let value = self.queue(queue)?.next;
        for packet in [packet, Packet::Signal { value }] {
            let at = self.queues[queue].ring.tail();
            if !self.queues[queue].ring.push(&packet) {
                self.narrator.say(TraceLevel::Steps, self.host_ns, || {
                    format!("host: the ring of queue {queue} is full, so it waits")
                });
                self.doorbell(queue)?;
                self.run()?;
                if !self.queues[queue].ring.push(&packet) {
                    return Err(GpuError::Deadlock(format!("queue {queue} is full and does not move")));
                }
            }
            self.narrator.say(TraceLevel::Steps, self.host_ns, || {
                let words = packet.encode().len();
                format!("host: {words} words at word {at} of queue {queue}'s ring: {}", packet.describe())
            });
        }
        self.queues[queue].next = self.queues[queue].next.saturating_add(1);
        if let Some(callback) = callback {
            self.queues[queue].callbacks.push_back((value, callback));
        }
        Ok(Fence { queue, value })
    }

    /// Copies bytes to the device: pins them and submits the copy.
    ///
    /// # Errors
    /// Same as [`Gpu::submit`].
    pub fn write(
        &mut self,
        queue: usize,
        to: u64,
        data: Vec<u8>,
        callback: Option<Callback>,
    ) -> Result<Fence, GpuError> {
        let bytes = data.len() as u64;
        let from = self.host.pin(data);
        self.submit(queue, Packet::CopyIn { to, from, bytes }, callback)
    }

    /// Reads bytes back: pins memory and submits the copy. The callback, or [`Gpu::wait`], gets them in [`CommandOutcome::data`].
    ///
    /// # Errors
    /// Same as [`Gpu::submit`].
    pub fn read(
        &mut self,
        queue: usize,
        from: u64,
        bytes: u64,
        callback: Option<Callback>,
    ) -> Result<Fence, GpuError> {
        let room = usize::try_from(bytes).map_err(|_| GpuError::Address(format!("{bytes} bytes")))?;
        let to = self.host.pin(vec![0; room]);
        self.submit(queue, Packet::CopyOut { to, from, bytes }, callback)
    }

    /// Stores a launch descriptor in host memory and submits the launch.
    ///
    /// # Errors
    /// Same as [`Gpu::submit`].
    pub fn launch(
        &mut self,
        queue: usize,
        work: Arc<dyn Work>,
        callback: Option<Callback>,
    ) -> Result<Fence, GpuError> {
        let descriptor = self.host.describe(work);
        self.submit(queue, Packet::Launch { descriptor }, callback)
    }

    /// Rings the doorbell: the command processor may read everything in the queue's ring.
    ///
    /// # Errors
    /// If the queue does not exist, or the device is lost.
    pub fn doorbell(&mut self, queue: usize) -> Result<(), GpuError> {
        self.alive()?;
        let tail = self.queue(queue)?.ring.tail();
        let begun = self.host_ns;
        self.host_ns += self.profile.launch.submit_ns;
        if let Some(timeline) = &mut self.timeline {
            timeline.add(Track::Host, &format!("doorbell of queue {queue}"), (begun, self.host_ns), &[]);
        }
        let at = offset::QUEUES + queue as u32 * offset::QUEUE_STRIDE + offset::DOORBELL;
        self.write_register(at, tail as u32);
        Ok(())
    }

    /// Reads a register.
    pub fn read_register(&mut self, at: u32) -> u32 {
        self.registers.advance(self.host_ns);
        let value = self.registers.read(at);
        self.narrator
            .say(TraceLevel::All, self.host_ns, || format!("host: reads {value:#x} from register {at:#05x}"));
        value
    }

    /// Writes a register.
    pub fn write_register(&mut self, at: u32, value: u32) {
        self.narrator
            .say(TraceLevel::All, self.host_ns, || format!("host: writes {value:#x} to register {at:#05x}"));
        match self.registers.write(at, value) {
            Effect::None => {}
            Effect::Doorbell(queue, tail) => {
                let now = self.host_ns;
                if let Some(q) = self.queues.get_mut(queue) {
                    q.ring.doorbell(tail as usize, now);
                    self.registers.set_status(status::BUSY, true);
                    self.narrator.announce();
                    self.narrator.say(TraceLevel::Steps, self.host_ns, || {
                        format!(
                            "[{}] host: rings the doorbell of queue {queue}: up to word {tail}",
                            human_ns(now)
                        )
                    });
                }
            }
            Effect::Reset => self.reset(),
        }
    }

    /// Empties every ring. Announced commands that have not completed fail.
    fn reset(&mut self) {
        self.narrator.say(TraceLevel::Steps, self.host_ns, || "device: resets, every ring is emptied".into());
        for queue in 0..self.queues.len() {
            self.queues[queue].ring.clear();
            let value = self.queues[queue].next - 1;
            self.registers.signal(queue, value);
            self.queues[queue].last = None;
            self.registers.set_ring(
                queue,
                self.queues[queue].ring.capacity(),
                self.queues[queue].ring.head(),
            );
        }
        self.service();
    }

    /// Blocks until a command is complete and returns its result. Announces the queue's commands if necessary.
    ///
    /// # Errors
    /// The error of the command, a lost device, or a queue that waits forever. Also if the device is in an error state and the result of an old
    /// command was discarded.
    pub fn wait(&mut self, fence: Fence) -> Result<Completion, GpuError> {
        if self.queue(fence.queue)?.next <= fence.value {
            return Err(GpuError::Unknown(format!("{fence} was never submitted")));
        }
        if self.registers.fence(fence.queue) < fence.value {
            self.alive()?;
            if self.queues[fence.queue].ring.tail() != self.announced(fence.queue) {
                self.doorbell(fence.queue)?;
            }
            self.run()?;
        }
        let kept = self.queues[fence.queue].results.get(&fence.value).cloned();
        let completion = match kept {
            Some(completion) => completion,
            None if self.is_lost() => return Err(GpuError::Lost),
            None => Completion {
                queued_ns: 0,
                start_ns: 0,
                end_ns: self.queues[fence.queue].ready_ns,
                outcome: Ok(CommandOutcome::default()),
            },
        };
        let begun = self.host_ns;
        self.host_ns = self.host_ns.max(completion.end_ns);
        self.narrator.settle(self.host_ns);
        if let Some(timeline) = self.timeline.as_mut().filter(|_| self.host_ns > begun) {
            timeline.add(Track::Host, &format!("waits for {fence}"), (begun, self.host_ns), &[]);
        }
        completion.outcome.as_ref().map_err(Clone::clone)?;
        Ok(completion)
    }

    fn announced(&self, queue: usize) -> usize {
        let at = offset::QUEUES + queue as u32 * offset::QUEUE_STRIDE + offset::DOORBELL;
        self.registers.read(at) as usize
    }

    /// Waits for all commands of a queue.
    ///
    /// # Errors
    /// Same as [`Gpu::wait`] for the last command.
    pub fn finish(&mut self, queue: usize) -> Result<(), GpuError> {
        let last = self.queue(queue)?.next - 1;
        if last == 0 {
            return self.alive();
        }
        self.wait(Fence { queue, value: last }).map(|_| ())
    }

    /// Returns the fence of a queue's last command, at which everything enqueued so far is complete.
    ///
    /// # Errors
    /// If the queue does not exist.
    pub fn last_fence(&self, queue: usize) -> Result<Fence, GpuError> {
        Ok(Fence { queue, value: self.queue(queue)?.next - 1 })
    }

    /// Clears interrupts and calls the callbacks of the fences that advanced.
    pub(super) fn service(&mut self) {
        let pending = self.registers.pending();
        if pending == 0 {
            return;
        }
        // A program that maps the registers clears them itself.
        if self.window.is_none() {
            self.registers.write(offset::IRQ_STATUS, pending);
        }
        for number in (0..self.queues.len()).filter(|q| pending >> q & 1 != 0) {
            let reached = self.registers.fence(number);
            self.narrator.say(TraceLevel::Steps, self.queues[number].ready_ns, || {
                format!("host: interrupt of queue {number}, its fence reads {reached}")
            });
            let lost = self.is_lost();
            let queue = &mut self.queues[number];
            while queue.callbacks.front().is_some_and(|(value, _)| *value <= reached) {
                let Some((value, callback)) = queue.callbacks.pop_front() else { break };
                let missing = || Completion {
                    queued_ns: queue.ready_ns,
                    start_ns: queue.ready_ns,
                    end_ns: queue.ready_ns,
                    outcome: Err(if lost {
                        GpuError::Lost
                    } else {
                        GpuError::Unknown("the device was reset".into())
                    }),
                };
                let completion = queue.results.get_mut(&value).map(|kept| {
                    // Read-back data is large and needed once.
                    let data = kept.outcome.as_mut().map(|o| std::mem::take(&mut o.data)).unwrap_or_default();
                    let mut mine = kept.clone();
                    if let Ok(outcome) = &mut mine.outcome {
                        outcome.data = data;
                    }
                    mine
                });
                callback(completion.unwrap_or_else(missing));
            }
            while queue.results.len() > KEPT_RESULTS {
                queue.results.pop_first();
            }
        }
    }

    pub(super) fn alive(&self) -> Result<(), GpuError> {
        if self.is_lost() { Err(GpuError::Lost) } else { Ok(()) }
    }

    fn queue(&self, queue: usize) -> Result<&Queue, GpuError> {
        self.queues.get(queue).ok_or_else(|| GpuError::Unknown(format!("queue {queue} does not exist")))
    }
}
