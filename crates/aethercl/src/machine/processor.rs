//! The command processor and the queue scheduler: they determine the next command, its effect and its time.
//!
//! Queues are read one command at a time. The queue whose next command can begin first is read, on a tie the one with the lower number. A queue that
//! waits for another's fence is skipped until that fence is reached. A [`DispatchScheduler`](super::DispatchScheduler) may choose another queue.

use super::engines::CopyDirection;
use super::fault::Fate;
use super::gpu::{Gpu, KEPT_RESULTS};
use super::journal::unit_runs;
use super::narrate::TraceLevel;
use super::packet::Packet;
use super::registers::status;
use super::scheduling::{self, ReadyQueue};
use super::trace::Track;
use super::work::{CommandOutcome, Completion, Done, Failure};
use super::{GpuError, Work, human_ns};
use crate::model::{self, Estimate};
use std::sync::Arc;

/// Start and end of a command.
type Times = (u64, u64);

impl Gpu {
    /// Reads and executes everything announced, then serves interrupts.
    ///
    /// # Errors
    /// If the remaining queues all wait for one another. Completions contain the results of individual commands.
    pub fn run(&mut self) -> Result<(), GpuError> {
        let mut stuck = None;
        self.narrator.announce();
        while !self.is_lost() {
            match self.next_queue() {
                Next::Queue(queue) => self.step(queue),
                Next::Nothing => break,
                Next::Stuck(who) => {
                    stuck = Some(who);
                    break;
                }
            }
            if self.registers.pending() != 0 {
                self.service();
            }
        }
        self.registers.set_status(status::BUSY, stuck.is_some());
        self.registers.advance(self.engines.idle_at());
        self.narrator.settle(self.host_ns);
        match stuck {
            Some(who) => Err(GpuError::Deadlock(who)),
            None => self.alive(),
        }
    }

    /// Returns the queue whose next command can begin first, or the one that the dispatch scheduler chooses.
    fn next_queue(&mut self) -> Next {
        let mut heads = Vec::new();
        let mut waiting = Vec::new();
        for number in 0..self.queues.len() {
            let (packet, announced) = match self.queues[number].ring.peek() {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                // Read it; it fails then.
                Err(_) => return Next::Queue(number),
            };
            let mut ready = self.engines.earliest(announced.max(self.queues[number].ready_ns));
            if let Packet::Wait { queue, value } = packet {
                if self.registers.fence(queue as usize) < value {
                    waiting.push(format!("queue {number} for fence {value} of queue {queue}"));
                    continue;
                }
                ready = ready.max(self.queues.get(queue as usize).map_or(0, |q| q.ready_ns));
            }
            heads.push(ReadyQueue { queue: number, ready_ns: ready, announced_ns: announced, packet });
        }
        match heads.is_empty() {
            false => Next::Queue(self.choose(&heads)),
            true if waiting.is_empty() => Next::Nothing,
            true => Next::Stuck(waiting.join(", ")),
        }
    }

    /// Returns the queue to read. SIGNAL and PAD take no engine, so they are not left to the dispatch scheduler.
    fn choose(&mut self, heads: &[ReadyQueue]) -> usize {
        let first = scheduling::earliest(heads);
        let Some(scheduler) = &mut self.schedulers.dispatch else { return heads[first].queue };
        let is_marker =
            |head: &&ReadyQueue| matches!(head.packet, Packet::Signal { .. } | Packet::Pad { .. });
        if let Some(marker) = heads.iter().find(is_marker) {
            return marker.queue;
        }
        let chosen = scheduler.choose(heads);
        heads.get(chosen).map_or(heads[first].queue, |head| head.queue)
    }

    /// Reads and executes one command of a queue.
    fn step(&mut self, number: usize) {
        let (packet, announced) = match self.queues[number].ring.peek() {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(bad) => return self.bad_packet(number, bad.header),
        };
        self.queues[number].ring.pop();
        let (capacity, head) = (self.queues[number].ring.capacity(), self.queues[number].ring.head());
        self.registers.set_ring(number, capacity, head);
        match packet {
            Packet::Pad { .. } => {}
            Packet::Signal { value } => self.signal(number, value),
            Packet::Wait { queue, .. } => {
                let there = self.queues.get(queue as usize).map_or(0, |q| q.ready_ns);
                let ready = self.queues[number].ready_ns.max(there).max(announced);
                self.queues[number].ready_ns = ready;
                self.complete(number, announced, (ready, ready), Ok(CommandOutcome::default()));
            }
            _ => {
                let launch = matches!(packet, Packet::Launch { .. });
                match self.faults.next(launch) {
                    Fate::Runs => self.execute(number, packet, announced, false),
                    Fate::Hangs => self.execute(number, packet, announced, true),
                    Fate::Lost => self.lose(),
                    Fate::Fails => {
                        self.forget(packet);
                        let at = self.queues[number].ready_ns.max(announced);
                        self.complete(number, announced, (at, at), Err(GpuError::Injected));
                    }
                }
            }
        }
    }

    /// Executes a command on an engine. `hang`: the kernel runs forever.
    fn execute(&mut self, number: usize, packet: Packet, announced: u64, hang: bool) {
        let fetched = self.engines.fetch(announced, self.profile.launch.command_ns);
        self.narrator.say(TraceLevel::Steps, fetched, || {
            format!(
                "[{}] command processor: read from queue {number}: {}",
                human_ns(fetched),
                packet.describe()
            )
        });
        let ready = fetched.max(self.queues[number].ready_ns);
        let ready = match self.make_resident(&packet, ready) {
            Ok(ready) => ready,
            Err(e) => {
                self.forget(packet);
                self.queues[number].ready_ns = ready;
                return self.complete(number, announced, (ready, ready), Err(e));
            }
        };
        let (times, outcome) = match packet {
            Packet::CopyIn { to, from, bytes } => self.copy_in(ready, to, from, bytes),
            Packet::CopyOut { to, from, bytes } => self.copy_out(ready, to, from, bytes),
            Packet::Copy { to, from, bytes } => {
                let done = self.memory.copy(from, to, bytes);
                self.within(ready, "copy", bytes, true, done)
            }
            Packet::Fill { to, bytes, pattern, length } => {
                let done = self.memory.fill(to, &pattern[..length as usize], bytes);
                self.within(ready, "fill", bytes, false, done)
            }
            Packet::Launch { descriptor } => self.kernel(number, ready, descriptor, hang),
            Packet::Pad { .. } | Packet::Signal { .. } | Packet::Wait { .. } => {
                ((ready, ready), Ok(CommandOutcome::default()))
            }
        };
        self.queues[number].ready_ns = times.1;
        if let Some(timeline) = &mut self.timeline {
            timeline.add(Track::Queue(number), &title(&packet, &outcome), times, &details(&outcome));
        }
        if let Some(journal) = &mut self.journal {
            journal.command(&packet, (number, announced), times, &outcome);
        }
        self.complete(number, announced, times, outcome);
    }

    fn copy_in(
        &mut self,
        ready: u64,
        to: u64,
        from: u64,
        bytes: u64,
    ) -> (Times, Result<CommandOutcome, GpuError>) {
        let outcome = match self.host.source(from, bytes) {
            Some(data) => self.memory.write(to, &data).map_err(|e| GpuError::Address(e.to_string())),
            None => Err(GpuError::Address(format!("no {bytes} bytes of pinned host memory at {from:#x}"))),
        };
        // A failed transfer moves nothing.
        let moved = if outcome.is_ok() { bytes } else { 0 };
        let ns = model::copy_ns(&self.profile, moved);
        let times = self.transfer(CopyDirection::In, ready, "copy in", moved, ns);
        (times, outcome.map(|()| CommandOutcome::default()))
    }

    fn copy_out(
        &mut self,
        ready: u64,
        to: u64,
        from: u64,
        bytes: u64,
    ) -> (Times, Result<CommandOutcome, GpuError>) {
        let outcome = match self.host.room(to, bytes) {
            Some(mut data) => self
                .memory
                .read(from, &mut data)
                .map(|()| CommandOutcome { data: self.host.arrived(to, data), ..CommandOutcome::default() })
                .map_err(|e| GpuError::Address(e.to_string())),
            None => Err(GpuError::Address(format!("no {bytes} bytes of pinned host memory at {to:#x}"))),
        };
        let moved = if outcome.is_ok() { bytes } else { 0 };
        let ns = model::copy_ns(&self.profile, moved);
        let times = self.transfer(CopyDirection::Out, ready, "copy out", moved, ns);
        (times, outcome)
    }

    fn within(
        &mut self,
        ready: u64,
        what: &str,
        bytes: u64,
        reads: bool,
        done: Result<(), crate::memory::MemoryError>,
    ) -> (Times, Result<CommandOutcome, GpuError>) {
        let moved = if done.is_ok() { bytes } else { 0 };
        let ns = model::fill_ns(&self.profile, moved, reads);
        let times = self.transfer(CopyDirection::Within, ready, what, moved, ns);
        (times, done.map(|()| CommandOutcome::default()).map_err(|e| GpuError::Address(e.to_string())))
    }

    pub(super) fn transfer(
        &mut self,
        direction: CopyDirection,
        ready: u64,
        what: &str,
        bytes: u64,
        ns: u64,
    ) -> Times {
        let (engine, time) = self.engines.copy(direction, ready, ns);
        self.narrator.say(TraceLevel::Commands, time.start, || {
            format!(
                "[{}] copy engine {engine}: {what}, {bytes} bytes in {} ({:.2} GB/s)",
                human_ns(time.start),
                human_ns(ns),
                bytes as f64 / ns.max(1) as f64
            )
        });
        if let Some(journal) = &mut self.journal {
            journal.engine = Some(engine as u32);
        }
        if let Some(timeline) = &mut self.timeline {
            let size = [("bytes", bytes.to_string())];
            timeline.add(Track::CopyEngine(engine), what, (time.start, time.end), &size);
        }
        (time.start, time.end)
    }

    fn kernel(
        &mut self,
        number: usize,
        ready: u64,
        descriptor: u64,
        hang: bool,
    ) -> (Times, Result<CommandOutcome, GpuError>) {
        let Some(work) = self.host.take(descriptor) else {
            let e = GpuError::Address(format!("no launch descriptor at host {descriptor:#x}"));
            return ((ready, ready), Err(e));
        };
        if let Err(why) = work.check_resources(&self.profile) {
            return ((ready, ready), Err(GpuError::Resources { name: work.name().into(), why }));
        }
        let signature = work.signature();
        // If the journal no longer has the counters of such a launch, count it again.
        let forgotten = self.journal.as_ref().is_some_and(|j| !j.knows(work.as_ref(), signature));
        let anew = self.count_all || forgotten;
        let known = if anew { None } else { self.history.get(&signature).cloned() };
        let count = known.is_none() && (work.timed() || !self.count_none);
        let result = if hang {
            Err(Failure::Endless("a test asked for it".into()))
        } else {
            let memory = Arc::clone(&self.memory);
            work.run(&memory, count)
        };
        let done = match result {
            Ok(done) => done,
            Err(failure) => return self.failed(ready, work.as_ref(), failure),
        };
        let estimate = known.or_else(|| {
            let counted = done.counters.as_ref()?;
            Some(Arc::new(model::kernel(&self.profile, counted)))
        });
        if let (Some(estimate), true) = (&estimate, count) {
            self.history.insert(signature, Arc::clone(estimate));
        }
        let times = self.place(number, ready, work.name(), estimate.as_deref());
        if let (Some(journal), Some(estimate)) = (&mut self.journal, &estimate) {
            journal.launched(&self.profile, work.as_ref(), signature, (&done, estimate));
        }
        (times, Ok(CommandOutcome { data: Vec::new(), kernel: work.name().into(), done, estimate }))
    }

    fn failed(
        &mut self,
        ready: u64,
        work: &dyn Work,
        failure: Failure,
    ) -> (Times, Result<CommandOutcome, GpuError>) {
        let name = work.name().to_owned();
        match failure {
            Failure::Trap(why) => ((ready, ready), Err(GpuError::Kernel { name, why })),
            Failure::Endless(why) => {
                let after_ms = self.profile.launch.watchdog_ms;
                let (time, mut shares) = self.engines.compute(ready, u64::MAX, after_ms * 1_000_000);
                if let Some(journal) = &mut self.journal {
                    // The number of executed groups is unknown.
                    shares.iter_mut().for_each(|s| s.groups = 0);
                    journal.units = unit_runs(&shares);
                }
                ((time.start, time.end), Err(GpuError::Hang { name, after_ms, why }))
            }
        }
    }

    /// Schedules a launch on the compute units.
    fn place(&mut self, number: usize, ready: u64, name: &str, estimate: Option<&Estimate>) -> Times {
        let Some(estimate) = estimate else { return (ready, ready) };
        let (time, shares) = self.engines.compute(ready, estimate.groups, estimate.ns);
        self.narrator.say(TraceLevel::Commands, time.start, || {
            let o = &estimate.occupancy;
            format!(
                "[{}] queue {number}: kernel {name}, {} groups on {} units, {} at a time on each ({}), {}, bound by {}",
                human_ns(time.start),
                estimate.groups,
                shares.len(),
                o.groups,
                o.limit,
                human_ns(estimate.ns),
                estimate.bound()
            )
        });
        for share in &shares {
            self.narrator.say(TraceLevel::All, share.time.start, || {
                format!(
                    "[{}] unit {}: {} groups of {name} until {}",
                    human_ns(share.time.start),
                    share.unit,
                    share.groups,
                    human_ns(share.time.end)
                )
            });
            if let Some(timeline) = &mut self.timeline {
                let groups = [("groups", share.groups.to_string())];
                timeline.add(Track::Unit(share.unit), name, (share.time.start, share.time.end), &groups);
            }
        }
        if let Some(journal) = &mut self.journal {
            journal.units = unit_runs(&shares);
            journal.resident = estimate.occupancy.groups;
        }
        (time.start, time.end + self.profile.launch.drain_ns)
    }

    /// Keeps the result of a command until its SIGNAL.
    fn complete(
        &mut self,
        number: usize,
        queued_ns: u64,
        (start_ns, end_ns): Times,
        outcome: Result<CommandOutcome, GpuError>,
    ) {
        if let Err(e) = &outcome {
            self.registers.fail(e.code(), number);
            self.narrator.say(TraceLevel::Commands, end_ns, || {
                format!("[{}] queue {number}: failed: {e}", human_ns(end_ns))
            });
        }
        self.queues[number].last = Some(Completion { queued_ns, start_ns, end_ns, outcome });
    }

    fn signal(&mut self, number: usize, value: u64) {
        let queue = &mut self.queues[number];
        let end = queue.ready_ns;
        let completion = queue.last.take().unwrap_or(Completion {
            queued_ns: end,
            start_ns: end,
            end_ns: end,
            outcome: Ok(CommandOutcome::default()),
        });
        // A program that writes packets itself chooses the numbers.
        queue.next = queue.next.max(value.saturating_add(1));
        queue.results.insert(value, completion);
        self.registers.signal(number, value);
        self.narrator.say(TraceLevel::Steps, end, || {
            format!("[{}] command processor: fence of queue {number} is {value}", human_ns(end))
        });
    }

    /// Handles words that are not a command: nothing after them in the ring can be trusted, so all of it fails.
    fn bad_packet(&mut self, number: usize, header: u32) {
        let e = GpuError::BadPacket { header, queue: number };
        self.registers.fail(e.code(), number);
        let queue = &mut self.queues[number];
        queue.ring.clear();
        let at = queue.ready_ns;
        let reached = self.registers.fence(number);
        // Older results are discarded anyway.
        let first = reached.saturating_add(1).max(queue.next.saturating_sub(KEPT_RESULTS as u64));
        for value in first..queue.next {
            let failed = Completion { queued_ns: at, start_ns: at, end_ns: at, outcome: Err(e.clone()) };
            queue.results.insert(value, failed);
        }
        let value = queue.next - 1;
        self.registers.signal(number, value);
    }

    /// Handles a lost device: all running and waiting commands fail.
    fn lose(&mut self) {
        self.narrator.say(TraceLevel::Commands, self.host_ns, || "device: is gone".into());
        self.registers.set_status(status::LOST, true);
        for number in 0..self.queues.len() {
            self.queues[number].ring.clear();
            let value = self.queues[number].next - 1;
            self.registers.signal(number, value);
        }
        self.service();
    }

    /// Releases the host memory of a command that will not run.
    fn forget(&mut self, packet: Packet) {
        match packet {
            Packet::CopyIn { from, .. } => drop(self.host.unpin(from)),
            Packet::CopyOut { to, .. } => drop(self.host.unpin(to)),
            Packet::Launch { descriptor } => drop(self.host.take(descriptor)),
            _ => {}
        }
    }
}

enum Next {
    Queue(usize),
    Nothing,
    /// The queues that wait for each other.
    Stuck(String),
}

fn title(packet: &Packet, outcome: &Result<CommandOutcome, GpuError>) -> String {
    match (packet, outcome) {
        (Packet::CopyIn { .. }, _) => "copy in".into(),
        (Packet::CopyOut { .. }, _) => "copy out".into(),
        (Packet::Copy { .. }, _) => "copy".into(),
        (Packet::Fill { .. }, _) => "fill".into(),
        (_, Err(GpuError::Hang { name, .. } | GpuError::Kernel { name, .. })) => format!("{name} (failed)"),
        (_, Ok(outcome)) => outcome.kernel.clone(),
        (_, Err(_)) => "failed".into(),
    }
}

fn details(outcome: &Result<CommandOutcome, GpuError>) -> Vec<(&'static str, String)> {
    match outcome {
        Err(e) => vec![("error", e.to_string())],
        Ok(CommandOutcome { estimate: Some(e), done: Done { findings, .. }, .. }) => vec![
            ("bound by", e.bound().to_string()),
            ("groups", e.groups.to_string()),
            ("waves resident", format!("{:.0} %", 100.0 * e.occupied)),
            ("device memory", format!("{} bytes", e.dram_bytes)),
            ("findings", findings.len().to_string()),
        ],
        Ok(_) => Vec::new(),
    }
}
