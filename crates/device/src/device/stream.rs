//! Queues beside the device's own: commands of one thread that overlap with those of the rest.
//!
//! A thread's commands go into a stream while it is within [`Stream::run`]: launches, uploads, downloads, copies and fills. A stream begins
//! with no order to anything else; [`Stream::wait`] and [`Device::wait_for`] make one by events. What a stream touches stays alive until the
//! device's own queue is ordered behind it, by [`Stream::join`] or by waiting for a later event of the stream, or the host has waited for
//! it, so that nothing else gets its memory meanwhile; and what is
//! allocated within it gets memory of its own from the driver, which no command in another queue can still use. Memory that was allocated
//! outside may be used by commands before: let the stream wait for a [`Device::mark`] first.

use super::buffer::Buffer;
use super::{Device, deferred};
use crate::driver::{Event, QueueKind};
use crate::{Error, Result};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The open queues of a device's streams, and what each keeps alive.
#[derive(Default)]
pub(super) struct Streams(Mutex<Vec<Arc<Queue>>>);

struct Queue {
    kind: QueueKind,
    kept: Mutex<Kept>,
}

/// What a stream touched that the device's own queue is not ordered behind.
#[derive(Default)]
struct Kept {
    /// What it touched up to each of its events, the oldest first: for each event what no earlier one has.
    before: Vec<(Event, HashMap<u64, Buffer>)>,
    /// What it touched since the last event.
    since: HashMap<u64, Buffer>,
}

impl Kept {
    /// Takes out what was touched before `event`, if it is one of this stream's.
    fn until(&mut self, event: &Event) -> Vec<(Event, HashMap<u64, Buffer>)> {
        let at = self.before.iter().position(|(own, _)| own.same(event));
        at.map(|at| self.before.drain(..=at).collect()).unwrap_or_default()
    }
    /// Puts back what was taken out.
    fn restore(&mut self, mut taken: Self) {
        taken.before.append(&mut self.before);
        self.before = taken.before;
        self.since.extend(taken.since);
    }
}

impl Queue {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// The streams that this thread is within, each with its device, the innermost last.
    static WITHIN: RefCell<Vec<(Device, Arc<Queue>)>> = const { RefCell::new(Vec::new()) };
}

impl Streams {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<Queue>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Calls `f` for each queue, none of which is closed meanwhile.
    pub fn each(&self, mut f: impl FnMut(QueueKind) -> Result<()>) -> Result<()> {
        self.all().iter().try_for_each(|queue| f(queue.kind))
    }
}

/// A queue of a device beside its own. Dropping it waits for what is in it. One thread at a time has it: what [`Stream::join`] frees must not
/// be what another thread enqueues meanwhile.
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
/// // Goes on beside the fill, in memory that no command before can still use.
/// let next = stream.run(|| {
///     let next = device.allocate(1 << 20)?;
///     device.upload(&next, 0, &[2; 1 << 20]).map(|()| next)
/// })?;
/// // What the device does from here on comes after it.
/// stream.join()?;
/// device.copy(&next, 0, &now, 0, 1 << 20)?;
/// # Ok(())
/// # }
/// ```
pub struct Stream {
    device: Device,
    queue: Arc<Queue>,
    /// Moves between threads, and is not shared by them.
    _one_thread: PhantomData<Cell<()>>,
}

impl Stream {
    /// Runs `f`, whose commands on this device, on this thread, go into the stream. Results that `f` makes are there for other queues once they
    /// [wait](Device::wait_for) for an event of the stream, or it is [joined](Self::join).
    ///
    /// # Errors
    /// Those of `f`; `Unsupported` while a step is being recorded on this thread, whose commands belong to the recording.
    pub fn run<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                WITHIN.with_borrow_mut(|within| within.pop());
            }
        }
        if self.device.is_recording() {
            return Err(Error::unsupported(
                "stream: commands of a step that is being recorded go into its recording; use the stream before or after it",
            ));
        }
        // What was deferred before belongs to the queue around this one, and what `f` defers to this one.
        deferred::all()?;
        WITHIN.with_borrow_mut(|within| within.push((self.device.clone(), Arc::clone(&self.queue))));
        let _leave = Leave;
        let out = f()?;
        deferred::all()?;
        Ok(out)
    }

    /// A point after everything in the stream so far.
    ///
    /// # Errors
    /// The driver's.
    pub fn record(&self) -> Result<Event> {
        let event = self.mark()?;
        let mut kept = self.queue.kept();
        let since = std::mem::take(&mut kept.since);
        kept.before.push((event.clone(), since));
        Ok(event)
    }

    fn mark(&self) -> Result<Event> {
        let event = self.device.driver().mark(self.queue.kind)?;
        // Whoever waits for it shall not wait for a command that was never handed over.
        self.device.driver().flush(self.queue.kind)?;
        Ok(event)
    }

    /// Hands what is in the stream to the device without waiting.
    ///
    /// # Errors
    /// The driver's.
    pub fn flush(&self) -> Result<()> {
        self.device.driver().flush(self.queue.kind)
    }

    /// What comes next in the stream begins when `event` has come: one of [`Device::mark`], or of another stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait(&self, event: &Event) -> Result<()> {
        // The event's commands have to be handed over before another queue can wait for them.
        self.device.driver().flush(QueueKind::Compute)?;
        self.device.driver().wait_for(self.queue.kind, event)
    }

    /// What comes next in the device's own queue begins after everything in the stream so far, whose memory is free for others then.
    ///
    /// # Errors
    /// The driver's.
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
    /// The driver's.
    pub fn finish(&self) -> Result<()> {
        let kept = std::mem::take(&mut *self.queue.kept());
        let finished = self.device.driver().finish(self.queue.kind);
        if finished.is_err() {
            self.queue.kept().restore(kept);
        }
        finished
    }

    /// Which queue it is, as drivers and profiles call it.
    pub fn queue(&self) -> QueueKind {
        self.queue.kind
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // There is nobody to tell of an error; the next command on the device meets it as well.
        let _ = self.finish();
        let mut all = self.device.streams().all();
        all.retain(|queue| !Arc::ptr_eq(queue, &self.queue));
        drop(all);
        self.device.driver().close_queue(self.queue.kind);
    }
}

impl Device {
    /// A queue beside the device's own, in order in itself.
    ///
    /// # Errors
    /// The driver's, when it has no more queues.
    pub fn stream(&self) -> Result<Stream> {
        let kind = self.driver().open_queue()?;
        let queue = Arc::new(Queue { kind, kept: Mutex::default() });
        self.streams().all().push(Arc::clone(&queue));
        Ok(Stream { device: self.clone(), queue, _one_thread: PhantomData })
    }

    /// What comes next, in the stream that this thread is within or else in the device's own queue, begins when `event` has come.
    ///
    /// # Errors
    /// The driver's; `Unsupported` within a captured step.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.check_computed(None)?;
        let queue = self.queue();
        self.driver().wait_for(queue, event)?;
        if queue == QueueKind::Compute {
            // Freed memory is taken by commands of this queue, which come after the event now. Dropped without the lock.
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

    /// The queue that this thread's commands go into.
    pub fn queue(&self) -> QueueKind {
        self.within_stream(|queue| queue.kind).unwrap_or(QueueKind::Compute)
    }

    /// Keeps what a command touches as long as the stream may use it; the queue it goes into.
    pub(super) fn queue_for<'a>(&self, touched: impl Iterator<Item = &'a Buffer>) -> QueueKind {
        let kind = self.within_stream(|queue| {
            let whole = |buffer: &'a Buffer| (buffer.whole().number(), buffer.whole().clone());
            queue.kept().since.extend(touched.map(whole));
            queue.kind
        });
        kind.unwrap_or(QueueKind::Compute)
    }
}
