//! Events: status of a command, its waiters, callbacks and profiling times.

use super::Queue;
use super::callbacks;
use crate::answer::Room;
use crate::cl;
use crate::cl::{Code, Result};
use crate::context::Context;
use crate::device::Times;
use crate::raw::{EventNotify, Handle, In};
use crate::registry::{self, Object, Tag};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// An event.
pub struct Event {
    tag: Tag,
    /// The context that it belongs to.
    pub context: Arc<Context>,
    /// The queue of its command; `None` for a user event.
    pub queue: Option<Arc<Queue>>,
    kind: u32,
    profiled: bool,
    /// Enqueue time of its command, ns of the device clock.
    pub queued: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// Notifies a command that an event has finished, and whether that event failed.
pub(super) type Waiter = Box<dyn FnOnce(bool) + Send>;

/// Status of the command, and the waiters to notify when it changes.
struct State {
    /// `CL_QUEUED` … `CL_COMPLETE`, or an error.
    status: i32,
    times: Times,
    /// Commands that wait for this event. The flag says whether the event is in their wait list; if not, they wait because of queue order.
    waiters: Vec<(Waiter, bool)>,
    callbacks: Vec<(i32, EventNotify, usize)>,
}

impl Object for Event {
    const INVALID: Code = cl::INVALID_EVENT;
    const NAME: &'static str = "event";
    fn tag(&self) -> &Tag {
        &self.tag
    }
}

impl Event {
    /// Returns a new event for a command of this queue.
    pub(super) fn of_command(queue: &Arc<Queue>, kind: u32) -> Self {
        Self {
            queued: queue.device.enqueued(),
            profiled: queue.profiles(),
            queue: Some(Arc::clone(queue)),
            ..Self::of_user(Arc::clone(&queue.context), kind, cl::QUEUED)
        }
    }

    fn of_user(context: Arc<Context>, kind: u32, status: u32) -> Self {
        let state = State {
            status: status as i32,
            times: Times::default(),
            waiters: Vec::new(),
            callbacks: Vec::new(),
        };
        Self {
            tag: Tag::default(),
            context,
            queue: None,
            kind,
            profiled: false,
            queued: 0,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current execution status.
    pub fn status(&self) -> i32 {
        self.state().status
    }

    /// Returns profiling times; all 0 until the command has finished.
    pub fn times(&self) -> Times {
        self.state().times
    }

    /// Registers a command that waits for this event. Returns false if the event has already finished.
    pub(super) fn hold(&self, waiter: Waiter, listed: bool) -> bool {
        let mut state = self.state();
        let open = state.status > 0;
        if open {
            state.waiters.push((waiter, listed));
        }
        open
    }

    /// Sets a new status. Ignored if the command has already finished.
    pub(super) fn reach(self: &Arc<Self>, status: i32, times: Times) {
        let mut state = self.state();
        if state.status <= 0 {
            return;
        }
        state.status = status;
        if status > 0 {
            self.call(&mut state);
            return;
        }
        state.times = times;
        let waiters = std::mem::take(&mut state.waiters);
        self.call(&mut state);
        drop(state);
        if let Some(queue) = &self.queue {
            queue.leave(self);
        }
        self.changed.notify_all();
        for (waiter, listed) in waiters {
            waiter(listed && status < 0);
        }
    }

    /// Passes the callbacks that are due at this status to the callback thread.
    fn call(self: &Arc<Self>, state: &mut State) {
        let status = state.status;
        let (due, later) = std::mem::take(&mut state.callbacks)
            .into_iter()
            .partition::<Vec<_>, _>(|(wanted, ..)| status <= *wanted);
        state.callbacks = later;
        for (wanted, function, data) in due {
            let told = if status < 0 { status } else { wanted };
            let event = Arc::clone(self);
            callbacks::send(move || {
                if let Some(function) = function {
                    function(event.tag().handle(), told, data);
                }
            });
        }
    }

    /// Blocks until the command has finished, and advances the modeled host clock to its end.
    ///
    /// # Errors
    /// The error code of the command.
    pub fn wait(&self) -> Result<()> {
        let mut state = self.state();
        while state.status > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(queue) = &self.queue {
            queue.device.waited(state.times.end);
        }
        if state.status < 0 { Err(state.status) } else { Ok(()) }
    }
}

/// `clCreateUserEvent`.
pub fn create_user_event(context: Handle) -> Result<Handle> {
    let context = registry::get::<Context>(context)?;
    Ok(registry::publish(&Arc::new(Event::of_user(context, cl::COMMAND_USER, cl::SUBMITTED))))
}

/// `clSetUserEventStatus`.
pub fn set_user_event_status(handle: Handle, status: i32) -> Result<()> {
    let event = registry::get::<Event>(handle)?;
    if event.queue.is_some() {
        return Err(cl::INVALID_EVENT);
    }
    if status > 0 {
        return Err(cl::INVALID_VALUE);
    }
    if event.status() <= 0 {
        return Err(cl::INVALID_OPERATION);
    }
    let now = event.context.devices.iter().map(|d| d.now()).max().unwrap_or(0);
    event.reach(status, Times::at(now));
    Ok(())
}

/// `clWaitForEvents`.
pub fn wait_for_events(count: u32, list: In<Handle>) -> Result<()> {
    if count == 0 || list.is_null() {
        return Err(cl::INVALID_VALUE);
    }
    let events = registry::all::<Event>(&list.list(count as usize))?;
    if events.iter().any(|e| !Arc::ptr_eq(&e.context, &events[0].context)) {
        return Err(cl::INVALID_CONTEXT);
    }
    let failed = events.iter().filter(|event| event.wait().is_err()).count();
    if failed > 0 { Err(cl::EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) } else { Ok(()) }
}

/// `clGetEventInfo`.
pub fn get_event_info(handle: Handle, name: u32, room: Room) -> Result<()> {
    let event = registry::get::<Event>(handle)?;
    match name {
        cl::EVENT_COMMAND_QUEUE => {
            room.give(&event.queue.as_ref().map_or(Handle::NULL, |q| q.tag().handle()))
        }
        cl::EVENT_CONTEXT => room.give(&event.context.handle()),
        cl::EVENT_COMMAND_TYPE => room.give(&event.kind),
        cl::EVENT_COMMAND_EXECUTION_STATUS => room.give(&event.status()),
        cl::EVENT_REFERENCE_COUNT => room.give(&registry::references(&*event)),
        _ => Err(cl::INVALID_VALUE),
    }
}

/// `clGetEventProfilingInfo`: returns modeled times.
pub fn get_event_profiling_info(handle: Handle, name: u32, room: Room) -> Result<()> {
    let event = registry::get::<Event>(handle)?;
    if !event.profiled || event.status() != cl::COMPLETE as i32 {
        return Err(cl::PROFILING_INFO_NOT_AVAILABLE);
    }
    let times = event.times();
    match name {
        cl::PROFILING_COMMAND_QUEUED => room.give(&times.queued),
        cl::PROFILING_COMMAND_SUBMIT => room.give(&times.submitted),
        cl::PROFILING_COMMAND_START => room.give(&times.start),
        cl::PROFILING_COMMAND_END | cl::PROFILING_COMMAND_COMPLETE => room.give(&times.end),
        _ => Err(cl::INVALID_VALUE),
    }
}

/// `clSetEventCallback`.
pub fn set_event_callback(handle: Handle, status: i32, function: EventNotify, data: usize) -> Result<()> {
    let event = registry::get::<Event>(handle)?;
    let known = [cl::SUBMITTED, cl::RUNNING, cl::COMPLETE].contains(&(status as u32));
    if function.is_none() || !known {
        return Err(cl::INVALID_VALUE);
    }
    callbacks::start()?;
    let mut state = event.state();
    state.callbacks.push((status, function, data));
    event.call(&mut state);
    Ok(())
}
