//! The device as its host sees it: memory to allocate, queues to write commands into, a doorbell, fences and callbacks.
//!
//! A command goes this way: [`Gpu::submit`] writes it into a queue's ring, followed by a SIGNAL with the next number of the
//! queue's fence; [`Gpu::doorbell`] announces it by writing a register; the command processor (`processor.rs`) reads it
//! when its turn comes, an engine works on it, the SIGNAL writes the fence and raises an interrupt; the host clears the
//! interrupt and calls back. Everything is computed when [`Gpu::run`] or [`Gpu::wait`] is called, in an order and at times
//! that depend on the commands alone: two runs of a program see the same clock.

use super::engines::Engines;
use super::host::HostMemory;
use super::journal::Journal;
use super::narrate::{Narrator, TraceLevel};
use super::packet::Packet;
use super::registers::{Effect, QUEUES, Registers, offset, status};
use super::ring::Ring;
use super::trace::{Timeline, Track};
use super::vram::Vram;
use super::window::Window;
use super::{Callback, Completion, Faults, Fence, GpuError, Outcome, Work, human_ns};
use crate::memory::Memory;
use crate::model::{Estimate, Profile};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Words of a ring, unless [`Options::ring_words`] says otherwise.
const RING_WORDS: usize = 4096;
/// Results kept a queue for who asks with [`Gpu::wait`] later than a callback would.
pub(super) const KEPT: usize = 256;

/// How a device is opened.
pub struct Options {
    /// Bytes of memory, where they are to be fewer than the profile's.
    pub memory: Option<u64>,
    /// Keeps a timeline.
    pub timeline: bool,
    /// Keeps what a [`Device`](crate::report::Device) of a report shows.
    pub journal: bool,
    /// What is told in words, and to whom.
    pub narrator: Narrator,
    /// What is to go wrong.
    pub faults: Arc<Faults>,
    /// Words of a queue's ring.
    pub ring_words: usize,
    /// Counts every launch anew; otherwise launches of one signature take the time of the first.
    pub count_all: bool,
    /// Counts only launches whose [`Work::timed`](super::Work::timed) asks for it: others take no time on the simulated clock.
    pub count_none: bool,
}

impl Default for Options {
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
        }
    }
}

/// One queue: its ring, and where it stands.
pub(super) struct Queue {
    pub ring: Ring,
    /// When the last command read is done.
    pub ready_ns: u64,
    /// The number that the next command's SIGNAL writes.
    pub next: u64,
    /// What the last command came to, until its SIGNAL is read.
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
    ring_words: usize,
    /// Registers and rings as memory, where a program asked for them.
    pub(super) window: Option<Window>,
    /// The host's clock: what it has spent on commands, and waited.
    pub(super) host_ns: u64,
}

impl Gpu {
    /// Powers a device on.
    pub fn new(profile: Profile, options: Options) -> Self {
        let bytes = options.memory.map_or(profile.memory.bytes, |m| m.min(profile.memory.bytes));
        Self {
            // Pages decide what fits; addresses are plenty.
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
            ring_words: options.ring_words,
            window: None,
            host_ns: 0,
            profile,
        }
    }

    /// What it models.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }
    /// The address space that kernels see.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
    /// The pages behind it.
    pub fn vram(&self) -> &Vram {
        &self.vram
    }
    /// Words of each queue's ring.
    pub(super) fn ring_words(&self) -> usize {
        Ring::new(self.ring_words).capacity()
    }
    /// Tells what happens to another listener from now on.
    pub fn set_narrator(&mut self, narrator: Narrator) {
        self.narrator = narrator;
    }
    /// Host memory that the copy engines reach at this bus address, and at those behind it, until [`Gpu::unpin`].
    pub fn pin(&mut self, data: Vec<u8>) -> u64 {
        self.host.keep(data)
    }
    /// Takes memory of [`Gpu::pin`] back, with what was copied there.
    pub fn unpin(&mut self, at: u64) -> Option<Vec<u8>> {
        self.host.unpin(at)
    }
    /// Describes a launch in host memory: what a LAUNCH packet that a program writes itself points to, once.
    pub fn describe(&mut self, work: Arc<dyn Work>) -> u64 {
        self.host.describe(work)
    }
    /// The host's clock, ns.
    pub fn now(&self) -> u64 {
        self.host_ns
    }
    /// The host has done something else until then, ns of its clock. It does not go back.
    pub fn host_reaches(&mut self, ns: u64) {
        self.host_ns = self.host_ns.max(ns);
    }
    /// The timeline so far, where one is kept.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref()
    }
    /// What has happened so far, where a journal is kept.
    pub fn journal(&self) -> Option<crate::report::Device> {
        self.journal.as_ref().map(|j| j.device(&self.profile))
    }
    /// The program has asked for what comes now at this moment of its clock, which the journal tells.
    pub fn asked(&mut self, ns: u64) {
        if let Some(journal) = &mut self.journal {
            journal.asked = ns;
        }
    }
    /// Whether the device is gone.
    pub fn is_lost(&self) -> bool {
        self.registers.has(status::LOST)
    }

    /// Opens a queue.
    ///
    /// # Errors
    /// When the register file has no room for another.
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
        Ok(number)
    }

    /// Uninitialised memory; `tag` names it in findings and traces.
    ///
    /// # Errors
    /// When there are not enough free pages, or the device is gone.
    pub fn allocate(&mut self, bytes: u64, tag: &str) -> Result<u64, GpuError> {
        self.alive()?;
        let limit = self.faults.memory_limit();
        let capacity = limit.unwrap_or(u64::MAX).min(self.vram.capacity());
        let full =
            GpuError::OutOfMemory { asked: bytes, free: capacity.saturating_sub(self.vram.used()), capacity };
        if !self.vram.fits(bytes, limit) {
            return Err(full);
        }
        let address = self.memory.allocate(bytes, tag).map_err(|_| full.clone())?;
        let runs = self.vram.map(address, bytes).ok_or(full)?.to_vec();
        if let Some(journal) = &mut self.journal {
            journal.allocated(self.host_ns, address, bytes, tag);
        }
        self.narrator.say(TraceLevel::Steps, self.host_ns, || {
            let pages: Vec<String> =
                runs.iter().map(|(start, n)| format!("{start}..{}", start + n)).collect();
            format!("host: allocates {bytes} bytes for {tag} at {address:#x}, pages {}", pages.join(", "))
        });
        Ok(address)
    }

    /// Gives memory back. Commands announced before have been done by then.
    ///
    /// # Errors
    /// When no allocation starts there.
    pub fn free(&mut self, address: u64) -> Result<(), GpuError> {
        self.memory.free(address).map_err(|e| GpuError::Address(e.to_string()))?;
        self.vram.unmap(address);
        if let Some(journal) = &mut self.journal {
            journal.freed(self.host_ns, address);
        }
        self.narrator.say(TraceLevel::Steps, self.host_ns, || format!("host: frees {address:#x}"));
        Ok(())
    }

    /// Writes a command into a queue's ring, and after it the SIGNAL that tells when it is done. Nothing happens until the
    /// doorbell is rung. The command processor has to read on first where the ring is full.
    ///
    /// # Errors
    /// When there is no such queue, the device is gone, or the ring stays full because its queue waits for ever.
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
    /// As [`Gpu::submit`].
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

    /// Reads bytes back: pins room and submits the copy; the callback, or [`Gpu::wait`], gets them in [`Outcome::data`].
    ///
    /// # Errors
    /// As [`Gpu::submit`].
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

    /// Describes a launch in host memory and submits it.
    ///
    /// # Errors
    /// As [`Gpu::submit`].
    pub fn launch(
        &mut self,
        queue: usize,
        work: Arc<dyn Work>,
        callback: Option<Callback>,
    ) -> Result<Fence, GpuError> {
        let descriptor = self.host.describe(work);
        self.submit(queue, Packet::Launch { descriptor }, callback)
    }

    /// Rings: the command processor may read everything in the queue's ring.
    ///
    /// # Errors
    /// When there is no such queue, or the device is gone.
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

    /// Empties every ring. What was announced and not yet done fails.
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

    /// Blocks until a command is done; how it went. Announces what its queue holds if that was not done.
    ///
    /// # Errors
    /// What went wrong with the command; when the device is gone; when its queue waits for ever. Also when it was done so
    /// long ago that its result is forgotten and the device is not well.
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
                outcome: Ok(Outcome::default()),
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

    /// Waits for everything of a queue.
    ///
    /// # Errors
    /// As [`Gpu::wait`], of the last command.
    pub fn finish(&mut self, queue: usize) -> Result<(), GpuError> {
        let last = self.queue(queue)?.next - 1;
        if last == 0 {
            return self.alive();
        }
        self.wait(Fence { queue, value: last }).map(|_| ())
    }

    /// The last command's fence of a queue: what everything enqueued so far is done at.
    ///
    /// # Errors
    /// When there is no such queue.
    pub fn last_fence(&self, queue: usize) -> Result<Fence, GpuError> {
        Ok(Fence { queue, value: self.queue(queue)?.next - 1 })
    }

    /// Clears interrupts and calls back who waits for the fences that moved.
    pub(super) fn service(&mut self) {
        let pending = self.registers.pending();
        if pending == 0 {
            return;
        }
        // A program that sees the registers clears them by itself.
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
                    // Read-backs are large and wanted once.
                    let data = kept.outcome.as_mut().map(|o| std::mem::take(&mut o.data)).unwrap_or_default();
                    let mut mine = kept.clone();
                    if let Ok(outcome) = &mut mine.outcome {
                        outcome.data = data;
                    }
                    mine
                });
                callback(completion.unwrap_or_else(missing));
            }
            while queue.results.len() > KEPT {
                queue.results.pop_first();
            }
        }
    }

    /// Allocations that nobody freed: bytes and tag.
    pub fn leaks(&self) -> Vec<(u64, String)> {
        self.memory.live().into_iter().map(|(_, bytes, tag)| (bytes, tag)).collect()
    }

    pub(super) fn alive(&self) -> Result<(), GpuError> {
        if self.is_lost() { Err(GpuError::Lost) } else { Ok(()) }
    }

    fn queue(&self, queue: usize) -> Result<&Queue, GpuError> {
        self.queues.get(queue).ok_or_else(|| GpuError::Unknown(format!("there is no queue {queue}")))
    }
}
