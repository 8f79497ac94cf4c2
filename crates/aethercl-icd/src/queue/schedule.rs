//! The scheduler: one thread executes ready commands in enqueue order.

use super::event::Event;
use crate::cl;
use crate::cl::Result;
use crate::device::Times;
use aethercl::machine::Fence;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

type Work = Box<dyn FnOnce() -> Result<Times> + Send>;

/// The work of a command.
pub struct Job(Option<Work>);

impl Job {
    /// Returns work on the simulated device. It returns the times or an error code.
    pub fn new(work: impl FnOnce() -> Result<Times> + Send + 'static) -> Self {
        Self(Some(Box::new(work)))
    }
    /// Returns an empty job that only has a position in the order: markers, barriers, empty ranges.
    pub fn nothing() -> Self {
        Self(None)
    }
}

/// A command that has not started.
struct Command {
    event: Arc<Event>,
    number: u64,
    /// Number of unfinished events that it waits for, plus 1 while it is being enqueued.
    pending: AtomicUsize,
    failed: AtomicBool,
    job: Mutex<Job>,
    /// The events that it waits for. Their end times are lower bounds for its start time.
    before: Mutex<Vec<Arc<Event>>>,
}

#[derive(Default)]
struct Ready {
    commands: Mutex<BTreeMap<u64, Arc<Command>>>,
    changed: Condvar,
}

/// Returns the commands of this process that are ready to run. A forked child starts with an empty list, because its parent's commands belong to the
/// parent.
fn ready() -> &'static Ready {
    static READY: Mutex<Option<(u32, &'static Ready)>> = Mutex::new(None);
    let process = std::process::id();
    let mut ready = READY.lock().unwrap_or_else(PoisonError::into_inner);
    match *ready {
        Some((owner, ready)) if owner == process => ready,
        _ => {
            let made: &'static Ready = Box::leak(Box::default());
            *ready = Some((process, made));
            made
        }
    }
}

/// Starts the command thread if it is not running in this process: a forked child does not have its parent's threads.
///
/// # Errors
/// `CL_OUT_OF_RESOURCES` if no thread can be created; a later call tries again.
pub fn start() -> Result<()> {
    static STARTED: Mutex<Option<u32>> = Mutex::new(None);
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if *started != Some(process) {
        let thread = std::thread::Builder::new().name("aethercl-commands".into());
        thread.spawn(|| work(ready())).map_err(|_| cl::OUT_OF_RESOURCES)?;
        *started = Some(process);
    }
    Ok(())
}

fn work(ready: &'static Ready) {
    loop {
        let mut commands = ready.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let command = loop {
            match commands.pop_first() {
                Some((_, command)) => break command,
                None => commands = ready.changed.wait(commands).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(commands);
        command.run();
    }
}

/// Adds a command to the dependency graph. `enter` adds it to its queue and returns the events that it must wait for because of the queue's order.
pub fn submit(
    event: &Arc<Event>,
    listed: Vec<Arc<Event>>,
    enter: impl FnOnce(&Arc<Event>) -> Vec<Arc<Event>>,
    job: Job,
) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let placed = enter(event);
    let command = Arc::new(Command {
        event: Arc::clone(event),
        number: NUMBER.fetch_add(1, Ordering::Relaxed),
        pending: AtomicUsize::new(1 + listed.len() + placed.len()),
        failed: AtomicBool::new(false),
        job: Mutex::new(job),
        before: Mutex::new(listed.iter().chain(&placed).cloned().collect()),
    });
    for (before, listed) in listed.iter().map(|e| (e, true)).chain(placed.iter().map(|e| (e, false))) {
        let waiting = Arc::clone(&command);
        if !before.hold(Box::new(move |failed| waiting.let_go(failed)), listed) {
            command.let_go(listed && before.status() < 0);
        }
    }
    command.let_go(false);
}

impl Command {
    /// Called when one of the events that it waits for has finished.
    fn let_go(self: &Arc<Self>, failed: bool) {
        if failed {
            self.failed.store(true, Ordering::Relaxed);
        }
        if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            let ready = ready();
            let mut commands = ready.commands.lock().unwrap_or_else(PoisonError::into_inner);
            commands.insert(self.number, Arc::clone(self));
            drop(commands);
            ready.changed.notify_one();
        }
    }

    fn run(self: &Arc<Self>) {
        let before = std::mem::take(&mut *self.before.lock().unwrap_or_else(PoisonError::into_inner));
        let job = self.job.lock().unwrap_or_else(PoisonError::into_inner).0.take();
        let event = &self.event;
        if self.failed.load(Ordering::Relaxed) {
            drop(job);
            event.reach(cl::EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, Times::at(event.queued));
            return;
        }
        event.reach(cl::SUBMITTED as i32, Times::default());
        event.reach(cl::RUNNING as i32, Times::default());
        // A panic fails the command, so that waiters do not block forever.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.done(&before, job)));
        match done.unwrap_or(Err(cl::OUT_OF_HOST_MEMORY)) {
            Ok(times) => event.reach(cl::COMPLETE as i32, times),
            Err(code) => event.reach(code, Times::at(event.queued)),
        }
    }

    fn done(&self, before: &[Arc<Event>], job: Option<Work>) -> Result<Times> {
        let event = &self.event;
        let Some(queue) = &event.queue else { return Ok(Times::default()) };
        let times: Vec<Times> = before.iter().map(|e| e.times()).collect();
        let Some(job) = job else {
            let end = times.iter().map(|t| t.end).fold(event.queued, u64::max);
            return Ok(Times { queued: event.queued, ..Times::at(end) });
        };
        let here = |e: &&Arc<Event>| e.queue.as_ref().is_some_and(|q| Arc::ptr_eq(&q.device, &queue.device));
        let fences: Vec<Fence> = before.iter().filter(here).filter_map(|e| e.times().fence).collect();
        // Host time orders commands of other devices, user events and commands without a fence (markers).
        let elsewhere =
            before.iter().filter(|e| !here(e) || e.times().fence.is_none()).map(|e| e.times().end);
        let moment = elsewhere.fold(event.queued, u64::max);
        queue.device.asked(event.queued);
        queue.device.order(queue.number, &fences, moment)?;
        Ok(Times { queued: event.queued, ..job()? })
    }
}
