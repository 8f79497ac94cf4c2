//! Queues in addition to the device's own: commands of one thread that overlap with all others.
//!
//! While a thread is inside [`Stream::run`], its launches, uploads, downloads, copies and fills go into the stream. A stream starts without any order
//! relative to other queues; [`Stream::wait`] and [`Device::wait_for`] establish an order through events.
//!
//! Memory that a stream touches stays alive until its next user is ordered after the stream. The device's own queue is ordered by [`Stream::join`] or
//! by waiting for a later event of the stream. The host is ordered by waiting for the stream.
//!
//! Allocations within a stream get separate memory from the driver, which no command in another queue can still use. Earlier commands may still use
//! memory that was allocated outside: let the stream wait for a [`Device::mark`] first.

use super::buffer::Buffer;
use super::{Device, deferred};
use crate::driver::{Event, QueueKind};
use crate::{Error, Result};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The open queues of a device's streams, and the memory that each keeps alive.
#[derive(Default)]
pub(super) struct Streams(Mutex<Vec<Arc<Queue>>>);

struct Queue {
    kind: QueueKind,
    kept: Mutex<UnorderedMemory>,
}

/// Memory touched by a stream that the device's own queue is not ordered after.
#[derive(Default)]
struct UnorderedMemory {
    /// Memory touched up to each event, oldest event first. Each entry contains only memory that no earlier entry has.
    before: Vec<(Event, HashMap<u64, Buffer>)>,
    /// Memory touched since the last event.
    since: HashMap<u64, Buffer>,
}

impl UnorderedMemory {
    /// Removes and returns the memory touched before `event`, if it is an event of this stream.
    fn until(&mut self, event: &Event) -> Vec<(Event, HashMap<u64, Buffer>)> {
        let at = self.before.iter().position(|(own, _)| own.same(event));
        at.map(|at| self.before.drain(..=at).collect()).unwrap_or_default()
    }
    /// Puts the removed memory back.
    fn restore(&mut self, mut taken: Self) {
        taken.before.append(&mut self.before);
        self.before = taken.before;
        self.since.extend(taken.since);
    }
}

impl Queue {
    fn kept(&self) -> MutexGuard<'_, UnorderedMemory> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// The streams that this thread is inside, each with its device; the innermost is last.
    static WITHIN: RefCell<Vec<(Device, Arc<Queue>)>> = const { RefCell::new(Vec::new()) };
}

impl Streams {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<Queue>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Calls `f` for each queue. No queue is closed meanwhile.
    pub fn each(&self, mut f: impl FnMut(QueueKind) -> Result<()>) -> Result<()> {
        self.all().iter().try_for_each(|queue| f(queue.kind))
    }
}

/// An additional queue of a device. Dropping it waits for its commands. Only one thread at a time may use it: another thread must not enqueue
/// commands that use memory while [`Stream::join`] frees it.
///
/// ```compile_fail
/// fn shared_by_threads<T: Sync>() {}
/// shared_by_threads::<netcl_device::Stream>();
/// ```
///
/// ```
/// use netcl_device::{Device, Settings};
/// # fn main() -> netcl_device::Result<()> {
/// let device = Device::open("sim", &Settings::default())?;
/// let now = device.allocate(1 << 20)?;
/// let stream = device.stream()?;
/// device.fill(&now, &[1])?;
/// // Overlaps with the fill, in memory that no earlier command can still use.
/// let next = stream.run(|| {
///     let next = device.allocate(1 << 20)?;
///     device.upload(&next, 0, &[2; 1 << 20]).map(|()| next)
/// })?;
/// // Later commands of the device run after the stream.
/// stream.join()?;
/// device.copy(&next, 0, &now, 0, 1 << 20)?;
/// # Ok(())
/// # }
/// ```
pub struct Stream {
    device: Device,
    queue: Arc<Queue>,
    /// The stream can move between threads, but threads cannot share it.
    _one_thread: PhantomData<Cell<()>>,
}

impl Stream {
    /// Runs `f`. Its commands on this device and this thread go into the stream. Other queues may use its results after they [wait](Device::wait_for)
    /// for an event of the stream, or after the stream is [joined](Self::join).
    ///
    /// # Errors
    /// Errors of `f`; `Unsupported` while a step is recorded on this thread, because its commands belong to the recording.
    pub fn run<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                WITHIN.with_borrow_mut(|within| within.pop());
            }
        }
        self.enter()?;
        let _leave = Leave;
        let out = f()?;
        deferred::all()?;
        Ok(out)
    }

    /// Directs this thread's commands on this device into the stream until [`Stream::leave`]. [`Stream::run`] is safer where a closure fits: it
    /// also leaves after an error.
    ///
    /// # Errors
    /// `Unsupported` while a step is recorded on this thread, because its commands belong to the recording; errors of deferred commands.
    pub fn enter(&self) -> Result<()> {
        if self.device.is_recording() {
            return Err(Error::unsupported(
                "stream: commands of a recorded step go into its recording; use the stream before or after it",
            ));
        }
        // Commands deferred before this belong to the outer queue, and commands that follow belong to this one.
        deferred::all()?;
        WITHIN.with_borrow_mut(|within| within.push((self.device.clone(), Arc::clone(&self.queue))));
        Ok(())
    }

    /// Ends the effect of [`Stream::enter`].
    ///
    /// # Errors
    /// `Unsupported` if this thread entered another stream since then, or did not enter this one; errors of deferred commands.
    pub fn leave(&self) -> Result<()> {
        let settled = deferred::all();
        let left = WITHIN.with_borrow_mut(|within| match within.last() {
            Some((_, queue)) if Arc::ptr_eq(queue, &self.queue) => within.pop(),
            _ => None,
        });
        left.ok_or_else(|| {
            Error::unsupported(
                "stream: leave streams in reverse order of entering, in the thread that entered them",
            )
        })?;
        settled
    }

    /// Waits on the host for all streams that this thread is inside. Their memory stays with them.
    ///
    /// # Errors
    /// Driver errors.
    pub fn wait_for_entered() -> Result<()> {
        let within: Vec<(Device, QueueKind)> = WITHIN.with_borrow(|within| {
            within.iter().map(|(device, queue)| (device.clone(), queue.kind)).collect()
        });
        within.iter().try_for_each(|(device, kind)| device.driver().finish(*kind))
    }

    /// Returns an event after everything in the stream so far.
    ///
    /// # Errors
    /// Driver errors.
    pub fn record(&self) -> Result<Event> {
        let event = self.mark()?;
        let mut kept = self.queue.kept();
        let since = std::mem::take(&mut kept.since);
        kept.before.push((event.clone(), since));
        Ok(event)
    }

    fn mark(&self) -> Result<Event> {
        let event = self.device.driver().mark(self.queue.kind)?;
        // Flush, so that no one waits for a command that was never submitted.
        self.device.driver().flush(self.queue.kind)?;
        Ok(event)
    }

    /// Submits the commands of the stream to the device without waiting.
    ///
    /// # Errors
    /// Driver errors.
    pub fn flush(&self) -> Result<()> {
        self.device.driver().flush(self.queue.kind)
    }

    /// Makes later commands of the stream wait for `event`, which comes from [`Device::mark`] or another stream.
    ///
    /// # Errors
    /// Driver errors.
    pub fn wait(&self, event: &Event) -> Result<()> {
        // The event's commands must be submitted before another queue can wait for them.
        self.device.driver().flush(QueueKind::Compute)?;
        self.device.driver().wait_for(self.queue.kind, event)
    }

    /// Makes later commands of the device's own queue wait for everything in the stream so far. The stream's memory is then free for other uses.
    ///
    /// # Errors
    /// Driver errors.
    pub fn join(&self) -> Result<()> {
        let kept = std::mem::take(&mut *self.queue.kept());
        let joined = self.mark().and_then(|event| self.device.driver().wait_for(QueueKind::Compute, &event));
        if joined.is_err() {
            self.queue.kept().restore(kept);
        }
        joined
    }

    /// Waits on the host until the stream is empty.
    ///
    /// # Errors
    /// Driver errors.
    pub fn finish(&self) -> Result<()> {
        let kept = std::mem::take(&mut *self.queue.kept());
        let finished = self.device.driver().finish(self.queue.kind);
        if finished.is_err() {
            self.queue.kept().restore(kept);
        }
        finished
    }

    /// Returns the queue, in the form that drivers and profiles use.
    pub fn queue(&self) -> QueueKind {
        self.queue.kind
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A destructor cannot report an error; the next command on the device fails with it too.
        let _ = self.finish();
        let mut all = self.device.streams().all();
        all.retain(|queue| !Arc::ptr_eq(queue, &self.queue));
        drop(all);
        self.device.driver().close_queue(self.queue.kind);
    }
}

impl Device {
    /// Opens an additional in-order queue.
    ///
    /// # Errors
    /// Driver errors, if no more queues are available.
    pub fn stream(&self) -> Result<Stream> {
        let kind = self.driver().open_queue()?;
        let queue = Arc::new(Queue { kind, kept: Mutex::default() });
        self.streams().all().push(Arc::clone(&queue));
        Ok(Stream { device: self.clone(), queue, _one_thread: PhantomData })
    }

    /// Makes later commands wait for `event`. This applies to this thread's current stream or, outside a stream, to the device's own queue.
    ///
    /// # Errors
    /// Driver errors; `Unsupported` within a captured step.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.check_computed(None)?;
        let queue = self.queue();
        self.driver().wait_for(queue, event)?;
        if queue == QueueKind::Compute {
            // Commands of this queue reuse the freed memory, and they now run after the event. Drop it without the lock.
            let freed: Vec<_> = self.streams().all().iter().map(|queue| queue.kept().until(event)).collect();
            drop(freed);
        }
        Ok(())
    }

    fn within_stream<R>(&self, f: impl FnOnce(&Arc<Queue>) -> R) -> Option<R> {
        WITHIN.with_borrow(|within| {
            within.iter().rev().find(|(device, _)| device.same(self)).map(|(_, q)| f(q))
        })
    }

    /// Returns the queue that receives this thread's commands.
    pub fn queue(&self) -> QueueKind {
        self.within_stream(|queue| queue.kind).unwrap_or(QueueKind::Compute)
    }

    /// Keeps the touched memory alive while the stream may use it. Returns the queue of the command.
    pub(super) fn queue_for<'a>(&self, touched: impl Iterator<Item = &'a Buffer>) -> QueueKind {
        let kind = self.within_stream(|queue| {
            let whole = |buffer: &'a Buffer| (buffer.whole().number(), buffer.whole().clone());
            queue.kept().since.extend(touched.map(whole));
            queue.kind
        });
        kind.unwrap_or(QueueKind::Compute)
    }
}
