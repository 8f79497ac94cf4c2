//! Machines, their memory, and commands that move bytes.

use super::state::{
    DeferredAction, MACHINES, Machine, UserPointer, aethercl_fence, aethercl_machine,
    aethercl_trace_callback, level, lock, narrator, profile, tell,
};
use crate::edge::edge;
use crate::pointers;
use crate::status::{Failure, NetclStatus, Result};
use aethercl::Checks;
use aethercl::machine::{Callback, Fence, MachineOptions, Packet};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// Options for opening a machine. Zeros are the defaults.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
pub struct aethercl_options {
    /// Size of device memory in bytes; 0 selects the profile's size.
    pub memory: u64,
    /// Checks to run on kernels: names separated by commas, `all`, or NULL for none.
    pub checks: *const c_char,
    /// Detail of the trace: 0 none, 1 one line per command, 2 each step, 3 also registers and the work of each compute unit.
    pub trace_level: c_int,
    /// Callback that receives each line of the trace; NULL selects standard error. It must not call the machine.
    pub trace: aethercl_trace_callback,
    /// Pointer that is passed to `trace`.
    pub trace_user: *mut c_void,
    /// If not 0, a timeline is recorded. `aethercl_timeline` writes it to a file.
    pub timeline: c_int,
}

/// Opens a machine. `profile` is the name of the modeled GPU (`teaching`, `h200`, …) or of a `.toml` file; NULL selects `teaching`.
/// `options` may be NULL.
///
/// # Safety
/// `profile` is NULL or a string; `options` is NULL or points to options; `machine` points to space for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_open(
    profile: *const c_char,
    options: *const aethercl_options,
    machine: *mut *mut aethercl_machine,
) -> NetclStatus {
    edge("aethercl_open", || {
        pointers::check_out("machine", machine)?;
        // SAFETY: guaranteed by this function's caller.
        let name = unsafe { pointers::text_or_none("profile", profile) }?;
        // SAFETY: likewise.
        let given = unsafe { pointers::slice("options", options, usize::from(!options.is_null())) }?;
        let mut opened = MachineOptions { count_all: true, ..MachineOptions::default() };
        let mut checks = Checks::NONE;
        if let [given] = given {
            // SAFETY: likewise.
            let names = unsafe { pointers::text_or_none("checks", given.checks) }?;
            checks = Checks::parse(names.unwrap_or("")).map_err(|e| Failure::argument(e.to_string()))?;
            opened.memory = Some(given.memory).filter(|bytes| *bytes > 0);
            opened.timeline = given.timeline != 0;
            opened.narrator = narrator(level(given.trace_level)?, given.trace, UserPointer(given.trace_user));
        }
        let made = Machine::new(self::profile(name)?, opened, checks);
        // SAFETY: likewise.
        unsafe { pointers::put("machine", machine, MACHINES.insert(made)?) }
    })
}

/// Closes a machine and frees all its resources. Its register window must not be accessed afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn aethercl_close(machine: *mut aethercl_machine) -> NetclStatus {
    edge("aethercl_close", || {
        MACHINES.remove(machine)?.stop_polling();
        Ok(())
    })
}

/// Allocates uninitialized device memory. `tag` is its name in findings and traces; NULL selects `buffer`.
///
/// # Safety
/// `tag` is NULL or a string; `address` points to space for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_allocate(
    machine: *mut aethercl_machine,
    bytes: u64,
    tag: *const c_char,
    address: *mut u64,
) -> NetclStatus {
    edge("aethercl_allocate", || {
        pointers::check_out("address", address)?;
        // SAFETY: guaranteed by this function's caller.
        let tag = unsafe { pointers::text_or_none("tag", tag) }?.unwrap_or("buffer");
        let at = MACHINES.get(machine)?.with(|gpu| gpu.allocate(bytes, tag))?;
        // SAFETY: likewise.
        unsafe { pointers::put("address", address, at) }
    })
}

/// Frees device memory. Commands still in a queue that use it fail.
#[unsafe(no_mangle)]
pub extern "C" fn aethercl_free(machine: *mut aethercl_machine, address: u64) -> NetclStatus {
    edge("aethercl_free", || MACHINES.get(machine)?.with(|gpu| gpu.free(address)))
}

/// Returns the bytes of device memory in use, the peak so far, and the capacity. Each pointer may be NULL.
///
/// # Safety
/// Each points to space for a number or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_memory(
    machine: *mut aethercl_machine,
    used: *mut u64,
    peak: *mut u64,
    capacity: *mut u64,
) -> NetclStatus {
    edge("aethercl_memory", || {
        let machine = MACHINES.get(machine)?;
        let gpu = machine.gpu();
        let vram = gpu.vram();
        for (what, to, value) in [
            ("used", used, vram.used()),
            ("peak", peak, vram.peak()),
            ("capacity", capacity, vram.capacity()),
        ] {
            if !to.is_null() {
                // SAFETY: guaranteed by this function's caller.
                unsafe { pointers::put(what, to, value) }?;
            }
        }
        Ok(())
    })
}

/// Opens a queue. Queues are numbered from 0.
///
/// # Safety
/// `queue` points to space for a number or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_queue_open(machine: *mut aethercl_machine, queue: *mut u32) -> NetclStatus {
    edge("aethercl_queue_open", || {
        let number = MACHINES.get(machine)?.with(|gpu| gpu.open_queue())?;
        if queue.is_null() {
            return Ok(());
        }
        // SAFETY: guaranteed by this function's caller.
        unsafe { pointers::put("queue", queue, number as u32) }
    })
}

/// Enqueues a copy from host memory to device memory. The source may be changed as soon as the call returns. `fence` may be NULL.
///
/// # Safety
/// `source` points to `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_write(
    machine: *mut aethercl_machine,
    queue: u32,
    address: u64,
    source: *const c_void,
    bytes: usize,
    fence: *mut aethercl_fence,
) -> NetclStatus {
    edge("aethercl_write", || {
        let machine = MACHINES.get(machine)?;
        machine.check_range(address, bytes)?;
        // SAFETY: guaranteed by this function's caller.
        let data = unsafe { pointers::slice("source", source.cast::<u8>(), bytes) }?.to_vec();
        let made = machine.with(|gpu| gpu.write(queue as usize, address, data, None))?;
        // SAFETY: likewise.
        unsafe { tell(fence, made) }
    })
}

/// Callback for a completed read-back. `status` is its result.
#[allow(non_camel_case_types)] // its name in C
pub type aethercl_read_callback = Option<unsafe extern "C" fn(status: NetclStatus, user: *mut c_void)>;

/// Destination of a read-back.
struct Destination {
    to: *mut u8,
    bytes: usize,
    callback: aethercl_read_callback,
    user: UserPointer,
}

// SAFETY: the program does not use the memory until the command is complete; the header requires this.
unsafe impl Send for Destination {}

impl Destination {
    fn done(self, status: NetclStatus, data: &[u8]) {
        if status == NetclStatus::Ok && data.len() == self.bytes {
            // SAFETY: the caller of the read guaranteed that the destination is large enough and otherwise unused.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.to, data.len()) };
        }
        if let Some(callback) = self.callback {
            // SAFETY: a function of the program, called as documented in the header.
            unsafe { callback(status, self.user.0) }
        }
    }
}

/// Enqueues a read-back into memory of the program. All checks that are possible now happen before.
///
/// # Safety
/// `to` points to space for `bytes` bytes, which nothing else uses until the command is complete.
pub unsafe fn read_back(
    machine: &Machine,
    queue: usize,
    (address, bytes): (u64, usize),
    to: *mut c_void,
    (callback, user): (aethercl_read_callback, *mut c_void),
) -> Result<Fence> {
    machine.check_range(address, bytes)?;
    if bytes > 0 && to.is_null() {
        return Err(Failure::argument("destination is NULL"));
    }
    let mail = Arc::clone(&machine.mail);
    let destination = Destination { to: to.cast(), bytes, callback, user: UserPointer(user) };
    let arrived: Callback = Box::new(move |done| {
        let later: DeferredAction = Box::new(move || match done.outcome {
            Ok(outcome) => destination.done(NetclStatus::Ok, &outcome.data),
            Err(e) => destination.done(Failure::from(e).status, &[]),
        });
        lock(&mail.later).push(later);
    });
    machine.with(|gpu| gpu.read(queue, address, bytes as u64, Some(arrived)))
}

/// Enqueues a copy from device memory to host memory. When it is complete, the bytes are at `destination`. Then `callback`, which may be
/// NULL, is called with `user` on the thread that waits, rings the doorbell, or polls the register window. The callback may call this
/// library. `fence` may be NULL.
///
/// # Safety
/// `destination` points to space for `bytes` bytes until the command is complete or the machine is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_read(
    machine: *mut aethercl_machine,
    queue: u32,
    address: u64,
    destination: *mut c_void,
    bytes: usize,
    callback: aethercl_read_callback,
    user: *mut c_void,
    fence: *mut aethercl_fence,
) -> NetclStatus {
    edge("aethercl_read", || {
        let machine = MACHINES.get(machine)?;
        // SAFETY: guaranteed by this function's caller.
        let made =
            unsafe { read_back(&machine, queue as usize, (address, bytes), destination, (callback, user)) }?;
        // SAFETY: likewise.
        unsafe { tell(fence, made) }
    })
}

/// Enqueues a copy within device memory. `fence` may be NULL.
///
/// # Safety
/// `fence` points to space for a fence or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_copy(
    machine: *mut aethercl_machine,
    queue: u32,
    to: u64,
    from: u64,
    bytes: u64,
    fence: *mut aethercl_fence,
) -> NetclStatus {
    edge("aethercl_copy", || {
        let packet = Packet::Copy { to, from, bytes };
        let made = MACHINES.get(machine)?.with(|gpu| gpu.submit(queue as usize, packet, None))?;
        // SAFETY: guaranteed by this function's caller.
        unsafe { tell(fence, made) }
    })
}

/// Enqueues a fill: `pattern`, of 1, 2, 4, 8 or 16 bytes, is repeated over `bytes` bytes of device memory. `fence` may be NULL.
///
/// # Safety
/// `pattern` points to `pattern_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_fill(
    machine: *mut aethercl_machine,
    queue: u32,
    to: u64,
    bytes: u64,
    pattern: *const c_void,
    pattern_bytes: usize,
    fence: *mut aethercl_fence,
) -> NetclStatus {
    edge("aethercl_fill", || {
        if ![1, 2, 4, 8, 16].contains(&pattern_bytes) || !bytes.is_multiple_of(pattern_bytes as u64) {
            return Err(Failure::argument(format!(
                "cannot fill {bytes} bytes with a pattern of {pattern_bytes} bytes; use a pattern of 1, 2, 4, 8 or 16 bytes that divides the size"
            )));
        }
        // SAFETY: guaranteed by this function's caller.
        let given = unsafe { pointers::slice("pattern", pattern.cast::<u8>(), pattern_bytes) }?;
        let mut padded = [0; 16];
        padded[..pattern_bytes].copy_from_slice(given);
        let packet = Packet::Fill { to, bytes, pattern: padded, length: pattern_bytes as u32 };
        let made = MACHINES.get(machine)?.with(|gpu| gpu.submit(queue as usize, packet, None))?;
        // SAFETY: likewise.
        unsafe { tell(fence, made) }
    })
}

/// Enqueues a wait: the queue waits until the fence of another queue is reached. `fence` may be NULL.
///
/// # Safety
/// `fence` points to space for a fence or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_wait_for(
    machine: *mut aethercl_machine,
    queue: u32,
    other: aethercl_fence,
    fence: *mut aethercl_fence,
) -> NetclStatus {
    edge("aethercl_wait_for", || {
        let packet = Packet::Wait { queue: other.queue, value: other.value };
        let made = MACHINES.get(machine)?.with(|gpu| gpu.submit(queue as usize, packet, None))?;
        // SAFETY: guaranteed by this function's caller.
        unsafe { tell(fence, made) }
    })
}

/// Rings the doorbell: the command processor may now read the queue's ring. It does so at the next wait or `aethercl_run`.
#[unsafe(no_mangle)]
pub extern "C" fn aethercl_doorbell(machine: *mut aethercl_machine, queue: u32) -> NetclStatus {
    edge("aethercl_doorbell", || MACHINES.get(machine)?.with(|gpu| gpu.doorbell(queue as usize)))
}

/// Runs all announced commands. If all queues wait for each other, the call fails with an error that names them.
#[unsafe(no_mangle)]
pub extern "C" fn aethercl_run(machine: *mut aethercl_machine) -> NetclStatus {
    edge("aethercl_run", || MACHINES.get(machine)?.with(|gpu| gpu.run()))
}

/// Execution times of a command in ns of the simulated clock.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
#[derive(Clone, Copy, Debug)]
pub struct aethercl_times {
    /// Time of the doorbell.
    pub queued_ns: u64,
    /// Start of the execution.
    pub start_ns: u64,
    /// End of the execution.
    pub end_ns: u64,
}

/// Waits for a command. Rings its doorbell first, if this has not been done. The status is the result of the command. `times` receives its
/// execution times and may be NULL.
///
/// # Safety
/// `times` points to space for the times or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aethercl_wait(
    machine: *mut aethercl_machine,
    fence: aethercl_fence,
    times: *mut aethercl_times,
) -> NetclStatus {
    edge("aethercl_wait", || {
        let fence = Fence { queue: fence.queue as usize, value: fence.value };
        let done = MACHINES.get(machine)?.with(|gpu| gpu.wait(fence))?;
        if times.is_null() {
            return Ok(());
        }
        let found =
            aethercl_times { queued_ns: done.queued_ns, start_ns: done.start_ns, end_ns: done.end_ns };
        // SAFETY: guaranteed by this function's caller.
        unsafe { pointers::put("times", times, found) }
    })
}
