//! Queues beside the device's own: commands of one thread that overlap with those of the rest.
//!
//! A thread's commands go into a stream while it is within [`Stream::run`]: launches, uploads, downloads, copies and fills. A stream begins
//! with no order to anything else; [`Stream::wait`] and [`Device::wait_for`] make one by events. What a stream touches stays alive until the
//! device's own queue is ordered behind it, or the host has waited for it, so that nothing else gets its memory meanwhile; and what is
//! allocated within it gets memory of its own from the driver, which no command in another queue can still use. Memory that was allocated
//! outside may be used by commands before: let the stream wait for a [`Device::mark`] first.

use super::buffer::Buffer;
use super::{Device, deferred};
use crate::driver::{Event, QueueKind};
use crate::{Error, Result};
use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The open queues of a device's streams, and what each keeps alive.
#[derive(Default)]
pub(super) struct Streams(Mutex<Vec<Arc<Queue>>>);

struct Queue {
    kind: QueueKind,
    /// What it touched since it was last joined.
    kept: Mutex<Vec<Buffer>>,
}

impl Queue {
    fn kept(&self) -> MutexGuard<'_, Vec<Buffer>> {
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

/// A queue of a device beside its own. Dropping it waits for what is in it.
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
        let event = self.device.driver().mark(self.queue.kind)?;
        // Whoever waits for it shall not wait for a command that was never handed over.
        self.device.driver().flush(self.queue.kind)?;
        Ok(event)
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
        let joined =
            self.record().and_then(|event| self.device.driver().wait_for(QueueKind::Compute, &event));
        if joined.is_err() {
            self.queue.kept().extend(kept);
        }
        joined
    }

    /// Waits on the host until the stream is empty.
    ///
    /// # Errors
    /// The driver's.
    pub fn finish(&self) -> Result<()> {
        // What another thread enqueues meanwhile stays.
        let kept = std::mem::take(&mut *self.queue.kept());
        let finished = self.device.driver().finish(self.queue.kind);
        if finished.is_err() {
            self.queue.kept().extend(kept);
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
        Ok(Stream { device: self.clone(), queue })
    }

    /// What comes next, in the stream that this thread is within or else in the device's own queue, begins when `event` has come.
    ///
    /// # Errors
    /// The driver's; `Unsupported` within a captured step.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.check_computed(None)?;
        self.driver().wait_for(self.queue(), event)
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
            queue.kept().extend(touched.map(|buffer| buffer.whole().clone()));
            queue.kind
        });
        kind.unwrap_or(QueueKind::Compute)
    }
}
