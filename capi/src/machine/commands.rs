//! A machine, its memory, and commands that move bytes.

use super::state::{
    Later, MACHINES, Machine, User, aethercl_fence, aethercl_machine, aethercl_trace_callback, level, lock,
    narrator, profile, tell,
};
use crate::edge::edge;
use crate::pointers;
use crate::status::{Failure, NetclStatus, Result};
use aethercl::Checks;
use aethercl::machine::{Callback, Fence, Options, Packet};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// How a machine is opened. Zeros are the defaults.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
pub struct aethercl_options {
    /// Bytes of memory; 0 for the profile's.
    pub memory: u64,
    /// What kernels are checked for: names of checks with commas between, `all`, or NULL for nothing.
    pub checks: *const c_char,
    /// What is told in words: 0 nothing, 1 a line a command, 2 each step, 3 also registers and what each compute unit does.
    pub trace_level: c_int,
    /// Takes each line of that; NULL for standard error. It may not call the machine.
    pub trace: aethercl_trace_callback,
    /// Given to `trace`.
    pub trace_user: *mut c_void,
    /// Other than 0: keeps a timeline, which `aethercl_timeline` writes.
    pub timeline: c_int,
}

/// Opens a machine: `profile` names the card that it models (`teaching`, `h200`, …, or a `.toml` file), NULL for `teaching`. `options` may be NULL.
///
/// # Safety
/// `profile` and `options` are NULL or what they say; `machine` has room for a handle.
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
        let mut opened = Options { count_all: true, ..Options::default() };
        let mut checks = Checks::NONE;
        if let [given] = given {
            // SAFETY: likewise.
            let names = unsafe { pointers::text_or_none("checks", given.checks) }?;
            checks = Checks::parse(names.unwrap_or("")).map_err(|e| Failure::argument(e.to_string()))?;
            opened.memory = Some(given.memory).filter(|bytes| *bytes > 0);
            opened.timeline = given.timeline != 0;
            opened.narrator = narrator(level(given.trace_level)?, given.trace, User(given.trace_user));
        }
        let made = Machine::new(self::profile(name)?, opened, checks);
        // SAFETY: likewise.
        unsafe { pointers::put("machine", machine, MACHINES.insert(made)?) }
    })
}

/// Closes a machine: nothing of it is left, and its register window may no longer be touched.
#[unsafe(no_mangle)]
pub extern "C" fn aethercl_close(machine: *mut aethercl_machine) -> NetclStatus {
    edge("aethercl_close", || {
        MACHINES.remove(machine)?.stop_polling();
        Ok(())
    })
}

/// Uninitialised device memory; `tag` names it in findings and traces, NULL for `buffer`.
///
/// # Safety
/// `tag` is NULL or a text; `address` has room for an address.
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

/// Gives memory back. What still waits in a queue and uses it fails.
#[unsafe(no_mangle)]
pub extern "C" fn aethercl_free(machine: *mut aethercl_machine, address: u64) -> NetclStatus {
    edge("aethercl_free", || MACHINES.get(machine)?.with(|gpu| gpu.free(address)))
}

/// Bytes of device memory in use, at most in use so far, and in all. Any may be NULL.
///
/// # Safety
/// Each has room for a number or is NULL.
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

/// Opens a queue; they are numbered from 0.
///
/// # Safety
/// `queue` has room for a number or is NULL.
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

/// Writes a copy of host bytes to device memory into a queue's ring. The source may be changed at once. `fence` may be NULL.
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

/// Called when a read-back is done: `status` says how it went.
#[allow(non_camel_case_types)] // its name in C
pub type aethercl_read_callback = Option<unsafe extern "C" fn(status: NetclStatus, user: *mut c_void)>;

/// Where a read-back goes.
struct Destination {
    to: *mut u8,
    bytes: usize,
    callback: aethercl_read_callback,
    user: User,
}

// SAFETY: the program leaves the memory alone until the command is done, as the header asks.
unsafe impl Send for Destination {}

impl Destination {
    fn done(self, status: NetclStatus, data: &[u8]) {
        if status == NetclStatus::Ok && data.len() == self.bytes {
            // SAFETY: room for as many bytes, which nobody uses meanwhile, as the caller of the read vouched.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.to, data.len()) };
        }
        if let Some(callback) = self.callback {
            // SAFETY: a function of the program, called as the header says.
            unsafe { callback(status, self.user.0) }
        }
    }
}

/// A read-back into memory of the program; enqueued, with everything checked that can be.
///
/// # Safety
/// `to` has room for `bytes` bytes, which nobody else uses until the command is done.
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
    let destination = Destination { to: to.cast(), bytes, callback, user: User(user) };
    let arrived: Callback = Box::new(move |done| {
        let later: Later = Box::new(move || match done.outcome {
            Ok(outcome) => destination.done(NetclStatus::Ok, &outcome.data),
            Err(e) => destination.done(Failure::from(e).status, &[]),
        });
        lock(&mail.later).push(later);
    });
    machine.with(|gpu| gpu.read(queue, address, bytes as u64, Some(arrived)))
}

/// Writes a read-back of device memory into a queue's ring. Once it is done the bytes are at `destination`, then `callback`, which may be NULL, is
/// called with `user`, by the thread that waited, rang or looks at the register window. It may call this library. `fence` may be NULL.
///
/// # Safety
/// `destination` has room for `bytes` bytes until the command is done or the machine is closed.
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

/// Writes a copy within device memory into a queue's ring. `fence` may be NULL.
///
/// # Safety
/// `fence` has room for a fence or is NULL.
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

/// Writes into a queue's ring that `pattern`, of 1, 2, 4, 8 or 16 bytes, is repeated over device memory. `fence` may be NULL.
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
                "{bytes} bytes with a pattern of {pattern_bytes}; it has 1, 2, 4, 8 or 16, and fits a whole number of times"
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

/// Writes into a queue's ring that it waits until the fence of another queue is there. `fence` may be NULL.
///
/// # Safety
/// `fence` has room for a fence or is NULL.
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

/// Rings: the command processor may read what is in the queue's ring. It does when somebody waits, or at `aethercl_run`.
#[unsafe(no_mangle)]
pub extern "C" fn aethercl_doorbell(machine: *mut aethercl_machine, queue: u32) -> NetclStatus {
    edge("aethercl_doorbell", || MACHINES.get(machine)?.with(|gpu| gpu.doorbell(queue as usize)))
}

/// Does everything that was announced. Queues that all wait for each other are an error that names them.
#[unsafe(no_mangle)]
pub extern "C" fn aethercl_run(machine: *mut aethercl_machine) -> NetclStatus {
    edge("aethercl_run", || MACHINES.get(machine)?.with(|gpu| gpu.run()))
}

/// When a command ran, ns of the simulated clock.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
#[derive(Clone, Copy, Debug)]
pub struct aethercl_times {
    /// The doorbell.
    pub queued_ns: u64,
    /// Begin.
    pub start_ns: u64,
    /// End.
    pub end_ns: u64,
}

/// Waits for a command, and rings for it where nobody did. How it went is the status; when it ran is in `times`, which may be NULL.
///
/// # Safety
/// `times` has room for them or is NULL.
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
