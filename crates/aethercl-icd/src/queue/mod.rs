//! Command queues, their commands and events.
//!
//! Every command has an event. A command is ready when the events it depends on have finished. These are the events of its wait list, and the
//! previous command of its queue (in-order) or the last barrier (out-of-order). One thread executes ready commands of all queues in enqueue order;
//! each kernel uses all cores.

mod callbacks;
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
    /// The context that it belongs to.
    pub context: Arc<Context>,
    /// The device that executes its commands.
    pub device: Arc<Device>,
    /// Number of the simulated device's hardware queue.
    pub number: usize,
    flags: Mutex<u64>,
    properties: Vec<u64>,
    open: Mutex<Open>,
}

/// Commands that have not finished yet.
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

/// Dependencies of a command in addition to its wait list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The queue's default: the previous command (in-order) or the last barrier (out-of-order).
    Usual,
    /// All commands enqueued before.
    Everything,
    /// All commands enqueued before; all commands enqueued later wait for this command.
    Barrier,
    /// The wait list, and in an out-of-order queue the last barrier; all commands enqueued later wait for this command.
    ListBarrier,
}

impl Queue {
    /// Returns true if profiling is enabled.
    pub fn profiles(&self) -> bool {
        self.flags() & cl::QUEUE_PROFILING_ENABLE != 0
    }
    fn flags(&self) -> u64 {
        *self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a command to the queue. Returns the events that it must wait for because of its position.
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

    /// Removes a finished command.
    fn leave(&self, event: &Arc<Event>) {
        let mut open = self.open();
        open.events.retain(|e| !Arc::ptr_eq(e, event));
        if open.barrier.as_ref().is_some_and(|b| Arc::ptr_eq(b, event)) {
            open.barrier = None;
        }
    }

    /// Waits until everything enqueued so far has finished.
    fn finish(&self) {
        let events = self.open().events.clone();
        for event in events {
            // Each command's event reports the error of that command.
            let _ = event.wait();
        }
    }
}

/// The last three parameters of every `clEnqueue…`: wait list and returned event.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Number of events in the wait list.
    pub count: u32,
    /// The wait list.
    pub list: In<Handle>,
    /// Address for the event's handle; may be null.
    pub event: Out<Handle>,
}

impl Ask {
    /// Converts the parameters of a call.
    pub fn new(count: u32, list: In<Handle>, event: Out<Handle>) -> Self {
        Self { count, list, event }
    }

    /// No wait list and no event.
    pub const NOTHING: Self = Self { count: 0, list: In::NULL, event: Out::NULL };
}

/// Enqueues a command and returns its event.
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

/// Enqueues a command; a blocking call waits until it has finished.
///
/// # Errors
/// Same as [`enqueue`]; for a blocking call also the error code of the command.
pub fn enqueue_and(queue: &Arc<Queue>, kind: u32, ask: Ask, blocking: bool, job: Job) -> Result<Arc<Event>> {
    if !blocking {
        return enqueue(queue, kind, ask, After::Usual, job);
    }
    // A failed blocking call must not return an event.
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

const SUPPORTED_PROPERTIES: u64 = cl::QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | cl::QUEUE_PROFILING_ENABLE;

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
    if flags & !(SUPPORTED_PROPERTIES | cl::QUEUE_ON_DEVICE | cl::QUEUE_ON_DEVICE_DEFAULT) != 0 {
        return Err(cl::INVALID_VALUE);
    }
    if flags & !SUPPORTED_PROPERTIES != 0 {
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
            Ok(cl::QUEUE_PROPERTIES) if value & !SUPPORTED_PROPERTIES == 0 => flags = *value,
            // The size is a property of on-device queues, which are not supported.
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
        // Defined only for on-device queues.
        cl::QUEUE_SIZE => Err(cl::INVALID_COMMAND_QUEUE),
        _ => Err(cl::INVALID_VALUE),
    }
}

/// `clSetCommandQueueProperty` from OpenCL 1.0.
pub fn set_command_queue_property(handle: Handle, flags: u64, enable: u32, old: Out<u64>) -> Result<()> {
    let queue = registry::get::<Queue>(handle)?;
    if flags & !SUPPORTED_PROPERTIES != 0 {
        return Err(cl::INVALID_QUEUE_PROPERTIES);
    }
    // Commands enqueued earlier keep the ordering that applied to them.
    queue.finish();
    let mut now = queue.flags.lock().unwrap_or_else(PoisonError::into_inner);
    old.set(*now);
    *now = if enable != 0 { *now | flags } else { *now & !flags };
    Ok(())
}

/// `clFlush`: does nothing, because commands start automatically.
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

/// `clSetDefaultDeviceCommandQueue`: on-device queues are not supported.
pub fn set_default_device_command_queue(context: Handle, device: Handle) -> Result<()> {
    registry::get::<Context>(context)?.device(device)?;
    Err(cl::INVALID_OPERATION)
}
