//! Command queues, their commands and events.
//!
//! Every command has an event. It runs when the events before it have come to an end: those of its wait list, and in its queue the command
//! before (in-order), or the last barrier (out-of-order). One thread runs commands that are ready, in the order they were enqueued in, whichever
//! queue it is in; a kernel has all cores by itself.

mod event;
mod schedule;

pub use event::{
    Event, create_user_event, get_event_info, get_event_profiling_info, set_event_callback,
    set_user_event_status, wait_for_events,
};
pub use schedule::Job;

use crate::answer::Room;
use crate::cl;
use crate::cl::{Code, Result};
use crate::context::Context;
use crate::device::Device;
use crate::raw::{Handle, In, Out};
use crate::registry::{self, Object, Tag};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A command queue.
pub struct Queue {
    tag: Tag,
    /// Whose objects its commands may use.
    pub context: Arc<Context>,
    /// Where its commands run.
    pub device: Arc<Device>,
    /// Its queue of the machine.
    pub number: usize,
    flags: Mutex<u64>,
    properties: Vec<u64>,
    open: Mutex<Open>,
}

/// Commands that have not come to an end.
#[derive(Default)]
struct Open {
    events: Vec<Arc<Event>>,
    barrier: Option<Arc<Event>>,
}

impl Object for Queue {
    const INVALID: Code = cl::INVALID_COMMAND_QUEUE;
    const NAME: &'static str = "command queue";
    fn tag(&self) -> &Tag {
        &self.tag
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.device.close_queue(self.number);
    }
}

/// What a command waits for beside its wait list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// What its queue's mode says.
    Usual,
    /// Everything enqueued before.
    Everything,
    /// The same, and everything enqueued later waits for it.
    Barrier,
    /// The wait list, and in an out-of-order queue the last barrier; everything enqueued later waits for it.
    ListBarrier,
}

impl Queue {
    /// Whether its events have times.
    pub fn profiles(&self) -> bool {
        self.flags() & cl::QUEUE_PROFILING_ENABLE != 0
    }
    fn flags(&self) -> u64 {
        *self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a new command has to wait for by its place in the queue; the command is in the queue from now on.
    fn enter(&self, event: &Arc<Event>, after: After) -> Vec<Arc<Event>> {
        let in_order = self.flags() & cl::QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE == 0;
        let mut open = self.open();
        let before = match after {
            _ if in_order => open.events.last().cloned().into_iter().collect(),
            After::Usual | After::ListBarrier => open.barrier.iter().cloned().collect(),
            After::Everything | After::Barrier => open.events.clone(),
        };
        if matches!(after, After::Barrier | After::ListBarrier) {
            open.barrier = Some(Arc::clone(event));
        }
        open.events.push(Arc::clone(event));
        before
    }

    /// A command has come to its end.
    fn leave(&self, event: &Arc<Event>) {
        let mut open = self.open();
        open.events.retain(|e| !Arc::ptr_eq(e, event));
        if open.barrier.as_ref().is_some_and(|b| Arc::ptr_eq(b, event)) {
            open.barrier = None;
        }
    }

    /// Waits for everything enqueued so far.
    fn finish(&self) {
        let events = self.open().events.clone();
        for event in events {
            // A command that failed says so in its own event.
            let _ = event.wait();
        }
    }
}

/// Where a command's event goes, and what it waits for.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Events in the wait list.
    pub count: u32,
    /// The wait list.
    pub list: In<Handle>,
    /// Where the program wants the command's event.
    pub event: Out<Handle>,
}

impl Ask {
    /// Of a call's parameters.
    pub fn new(count: u32, list: In<Handle>, event: Out<Handle>) -> Self {
        Self { count, list, event }
    }

    /// Of a call without any of them.
    pub const NOTHING: Self = Self { count: 0, list: In::NULL, event: Out::NULL };
}

/// Enqueues a command; its event.
///
/// # Errors
/// `CL_INVALID_EVENT_WAIT_LIST`, `CL_INVALID_CONTEXT` for an event of another context.
pub fn enqueue(queue: &Arc<Queue>, kind: u32, ask: Ask, after: After, job: Job) -> Result<Arc<Event>> {
    let waits = wait_list(&queue.context, ask)?;
    schedule::start()?;
    let event = Arc::new(Event::of_command(queue, kind));
    if !ask.event.is_null() {
        ask.event.set(registry::publish(&event));
    }
    schedule::submit(&event, waits, |event| queue.enter(event, after), job);
    Ok(event)
}

/// The same; waits for its end where the call blocks.
///
/// # Errors
/// As [`enqueue`]; of a blocking call also the code that the command ended with.
pub fn enqueue_and(queue: &Arc<Queue>, kind: u32, ask: Ask, blocking: bool, job: Job) -> Result<Arc<Event>> {
    if !blocking {
        return enqueue(queue, kind, ask, After::Usual, job);
    }
    // A call that fails gives the program no event.
    let event = enqueue(queue, kind, Ask { event: Out::NULL, ..ask }, After::Usual, job)?;
    event.wait()?;
    if !ask.event.is_null() {
        ask.event.set(registry::publish(&event));
    }
    Ok(event)
}

fn wait_list(context: &Arc<Context>, ask: Ask) -> Result<Vec<Arc<Event>>> {
    registry::wait_list_length(ask.count, ask.list.is_null())?;
    let events = registry::all::<Event>(&ask.list.list(ask.count as usize))
        .map_err(|_| cl::INVALID_EVENT_WAIT_LIST)?;
    if events.iter().any(|e| !Arc::ptr_eq(&e.context, context)) {
        return Err(cl::INVALID_CONTEXT);
    }
    Ok(events)
}

const KNOWN: u64 = cl::QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | cl::QUEUE_PROFILING_ENABLE;

fn create(context: Handle, device: Handle, flags: u64, properties: Vec<u64>) -> Result<Handle> {
    let context = registry::get::<Context>(context)?;
    let device = context.device(device)?;
    let number = device.open_queue()?;
    let queue = Queue {
        tag: Tag::default(),
        context,
        device,
        number,
        flags: Mutex::new(flags),
        properties,
        open: Mutex::default(),
    };
    Ok(registry::publish(&Arc::new(queue)))
}

/// `clCreateCommandQueue`.
pub fn create_command_queue(context: Handle, device: Handle, flags: u64) -> Result<Handle> {
    if flags & !(KNOWN | cl::QUEUE_ON_DEVICE | cl::QUEUE_ON_DEVICE_DEFAULT) != 0 {
        return Err(cl::INVALID_VALUE);
    }
    if flags & !KNOWN != 0 {
        return Err(cl::INVALID_QUEUE_PROPERTIES);
    }
    create(context, device, flags, Vec::new())
}

/// `clCreateCommandQueueWithProperties`.
pub fn create_command_queue_with_properties(
    context: Handle,
    device: Handle,
    list: In<u64>,
) -> Result<Handle> {
    let pairs = list.pairs();
    let mut flags = 0;
    for (name, value) in &pairs {
        match u32::try_from(*name) {
            Ok(cl::QUEUE_PROPERTIES) if value & !KNOWN == 0 => flags = *value,
            // On-device queues, whose size this would be, do not exist.
            Ok(cl::QUEUE_PROPERTIES | cl::QUEUE_SIZE) => return Err(cl::INVALID_QUEUE_PROPERTIES),
            _ => return Err(cl::INVALID_VALUE),
        }
    }
    let mut properties: Vec<u64> = pairs.iter().flat_map(|(name, value)| [*name, *value]).collect();
    if !list.is_null() {
        properties.push(0);
    }
    create(context, device, flags, properties)
}

/// `clGetCommandQueueInfo`.
pub fn get_command_queue_info(handle: Handle, name: u32, room: Room) -> Result<()> {
    let queue = registry::get::<Queue>(handle)?;
    match name {
        cl::QUEUE_CONTEXT => room.give(&queue.context.handle()),
        cl::QUEUE_DEVICE => room.give(&queue.device.handle()),
        cl::QUEUE_REFERENCE_COUNT => room.give(&registry::references(&*queue)),
        cl::QUEUE_PROPERTIES => room.give(&queue.flags()),
        cl::QUEUE_PROPERTIES_ARRAY => room.give(&queue.properties[..]),
        cl::QUEUE_DEVICE_DEFAULT => room.give(&Handle::NULL),
        // There is one for queues on the device only.
        cl::QUEUE_SIZE => Err(cl::INVALID_COMMAND_QUEUE),
        _ => Err(cl::INVALID_VALUE),
    }
}

/// `clSetCommandQueueProperty`, which OpenCL 1.0 had.
pub fn set_command_queue_property(handle: Handle, flags: u64, enable: u32, old: Out<u64>) -> Result<()> {
    let queue = registry::get::<Queue>(handle)?;
    if flags & !KNOWN != 0 {
        return Err(cl::INVALID_QUEUE_PROPERTIES);
    }
    // Commands before keep the order they were promised.
    queue.finish();
    let mut now = queue.flags.lock().unwrap_or_else(PoisonError::into_inner);
    old.set(*now);
    *now = if enable != 0 { *now | flags } else { *now & !flags };
    Ok(())
}

/// `clFlush`: commands begin by themselves.
pub fn flush(handle: Handle) -> Result<()> {
    registry::get::<Queue>(handle).map(|_| ())
}

/// `clFinish`.
pub fn finish(handle: Handle) -> Result<()> {
    registry::get::<Queue>(handle)?.finish();
    Ok(())
}

/// `clEnqueueMarkerWithWaitList`.
pub fn enqueue_marker_with_wait_list(handle: Handle, ask: Ask) -> Result<()> {
    let after = if ask.count == 0 { After::Everything } else { After::Usual };
    nothing(handle, cl::COMMAND_MARKER, ask, after)
}

/// `clEnqueueBarrierWithWaitList`.
pub fn enqueue_barrier_with_wait_list(handle: Handle, ask: Ask) -> Result<()> {
    let after = if ask.count == 0 { After::Barrier } else { After::ListBarrier };
    nothing(handle, cl::COMMAND_BARRIER, ask, after)
}

/// `clEnqueueMarker`.
pub fn enqueue_marker(handle: Handle, event: Out<Handle>) -> Result<()> {
    if event.is_null() {
        return Err(cl::INVALID_VALUE);
    }
    nothing(handle, cl::COMMAND_MARKER, Ask { event, ..Ask::NOTHING }, After::Everything)
}

/// `clEnqueueWaitForEvents`.
pub fn enqueue_wait_for_events(handle: Handle, count: u32, list: In<Handle>) -> Result<()> {
    if count == 0 || list.is_null() {
        return Err(cl::INVALID_VALUE);
    }
    let ask = Ask { count, list, event: Out::NULL };
    nothing(handle, cl::COMMAND_BARRIER, ask, After::ListBarrier).map_err(|code| match code {
        cl::INVALID_EVENT_WAIT_LIST => cl::INVALID_EVENT,
        code => code,
    })
}

/// `clEnqueueBarrier`.
pub fn enqueue_barrier(handle: Handle) -> Result<()> {
    nothing(handle, cl::COMMAND_BARRIER, Ask::NOTHING, After::Barrier)
}

fn nothing(handle: Handle, kind: u32, ask: Ask, after: After) -> Result<()> {
    let queue = registry::get::<Queue>(handle)?;
    enqueue(&queue, kind, ask, after, Job::nothing())?;
    Ok(())
}

/// `clSetDefaultDeviceCommandQueue`: queues on the device do not exist.
pub fn set_default_device_command_queue(context: Handle, device: Handle, queue: Handle) -> Result<()> {
    registry::get::<Context>(context)?.device(device)?;
    registry::get::<Queue>(queue)?;
    Err(cl::INVALID_OPERATION)
}
