//! The machine of the `simulated_…` functions. It exists from the first call until `netcl_simulated_shutdown`.

use super::mapping::{self, Mapped, Mappings};
use crate::machine::state::{Machine, UserPointer, aethercl_trace_callback, level, lock, narrator, profile};
use crate::status::{Failure, NetclStatus, Result};
use aethercl::machine::{MachineOptions, Narrator, Schedulers, TraceLevel, scheduling};
use aethercl::{Checks, Program};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// The machine's only queue.
pub(super) const QUEUE: usize = 0;

/// The machine, its trace settings, and pending read-backs.
#[derive(Default)]
struct State {
    machine: Option<Arc<Machine>>,
    mappings: Mappings,
    program: Option<Arc<Program>>,
    told: Option<(TraceLevel, aethercl_trace_callback, Listener)>,
    under_way: usize,
}

/// The listener's user pointer, stored between calls.
#[derive(Clone, Copy)]
struct Listener(*mut c_void);

// SAFETY: the pointer is only passed back to the listener.
unsafe impl Send for Listener {}

static STATE: Mutex<State> =
    Mutex::new(State { machine: None, mappings: Mappings::new(), program: None, told: None, under_way: 0 });
static LESS: Condvar = Condvar::new();

fn state_narrator(state: &State) -> Narrator {
    match &state.told {
        Some((level, sink, user)) => narrator(*level, *sink, UserPointer(user.0)),
        None => Narrator::default(),
    }
}

/// Returns the machine; creates it if necessary.
pub fn machine() -> Result<Arc<Machine>> {
    let mut state = lock(&STATE);
    if let Some(machine) = &state.machine {
        return Ok(Arc::clone(machine));
    }
    // When device memory is full, allocations move to host memory.
    let schedulers = Schedulers { memory: scheduling::memory_by_name("lru"), dispatch: None };
    let narrator = state_narrator(&state);
    let options = MachineOptions { narrator, schedulers, ..MachineOptions::default() };
    let made = Machine::new(profile(None)?, options, Checks { bounds: true, ..Checks::NONE });
    made.with(|gpu| gpu.open_queue())?;
    state.machine = Some(Arc::clone(&made));
    Ok(made)
}

/// Allocates memory of the machine. The program may dereference the host address.
pub fn allocate(machine: &Machine, bytes: usize, tag: &str) -> Result<Mapped> {
    let (at, block) = mapping::allocate(machine, bytes, tag)?;
    lock(&STATE).mappings.insert(at, block);
    Ok(at)
}

/// Frees memory at a host address and returns its device address.
pub fn free(machine: &Machine, host: u64) -> Result<u64> {
    let device = lock(&STATE).mappings.remove(host)?;
    machine.with(|gpu| gpu.free(device))?;
    Ok(device)
}

/// Returns the device address of `bytes` bytes at a host address, which must be within one allocation.
pub fn device_address(host: u64, bytes: u64) -> Result<u64> {
    lock(&STATE).mappings.device(host, bytes)
}

/// Returns the kernels of the commands; builds them at their first use.
pub fn program() -> Result<Arc<Program>> {
    let mut state = lock(&STATE);
    if let Some(program) = &state.program {
        return Ok(Arc::clone(program));
    }
    let source = aethercl::Source { name: "simulated.cl", text: netcl::kernel::cl_file!("simulated.cl") };
    let built = Program::build(&source, "", &aethercl::Includes::none());
    let built = built.map_err(|e| Failure::new(NetclStatus::Build, e.to_string()))?;
    Ok(Arc::clone(state.program.insert(Arc::new(built))))
}

/// Sets the trace level and its sink.
pub fn tell(number: c_int, sink: aethercl_trace_callback, user: *mut c_void) -> Result<()> {
    let level = level(number)?;
    let mut state = lock(&STATE);
    state.told = Some((level, sink, Listener(user)));
    let narrator = state_narrator(&state);
    if let Some(machine) = state.machine.clone() {
        drop(state);
        machine.gpu().set_narrator(narrator);
    }
    Ok(())
}

/// Adds a line about the functions themselves to the machine's trace.
pub fn say(line: impl FnOnce() -> String) {
    let narrator = state_narrator(&lock(&STATE));
    narrator.say(TraceLevel::Commands, 0, line);
}

/// Runs the queue's commands on a new thread.
pub fn run_in_background(machine: Arc<Machine>) {
    lock(&STATE).under_way += 1;
    std::thread::spawn(move || {
        // The callback of each command reports its result.
        let _ = machine.with(|gpu| gpu.doorbell(QUEUE).and_then(|()| gpu.run()));
        drop(machine);
        lock(&STATE).under_way -= 1;
        LESS.notify_all();
    });
}

/// Waits for all pending read-backs, including their callbacks.
pub fn finish() {
    let mut state = lock(&STATE);
    while state.under_way > 0 {
        state = LESS.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Removes the machine and its memory.
pub fn shutdown() {
    finish();
    let mut state = lock(&STATE);
    let (machine, program) = (state.machine.take(), state.program.take());
    let mappings = std::mem::take(&mut state.mappings);
    drop(state);
    drop((machine, program, mappings));
}
