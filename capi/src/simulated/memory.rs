//! Memory of the simulated GPU by address, copies, and what is told about it.

use super::machine::{QUEUE, finish, machine, run_beside, say, shutdown, tell};
use crate::edge::{edge, flag, value};
use crate::machine::commands::read_back;
use crate::pointers;
use crate::status::{Failure, NetclStatus};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// Takes a line of the trace.
#[allow(non_camel_case_types)] // its name in C
pub type netcl_simulated_trace_callback =
    Option<unsafe extern "C" fn(line: *const c_char, user: *mut c_void)>;

/// Called when a read-back is done: `status` says how it went.
#[allow(non_camel_case_types)] // its name in C
pub type netcl_simulated_read_callback = Option<unsafe extern "C" fn(status: NetclStatus, user: *mut c_void)>;

/// Compute units where no GPU is initialised.
const UNITS: c_uint = 16;

/// `size` bytes of the simulated GPU's memory. Answers their address on the device, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_kernel_allocate(gpu_index: c_int, size: usize) -> c_ulonglong {
    value("simulated_kernel_allocate", 0, || {
        if size == 0 {
            return Err(Failure::argument("0 bytes"));
        }
        let address = machine()?.with(|gpu| gpu.allocate(size as u64, "simulated"))?;
        say(|| format!("simulated_kernel_allocate: GPU {gpu_index}, {size} bytes at {address:#x}"));
        Ok(address)
    })
}

/// Gives memory of `simulated_kernel_allocate` back. `size` is not needed. An address that is none is only noted in `netcl_last_error()`.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_kernel_free(gpu_index: c_int, address: c_ulonglong, size: usize) {
    edge("simulated_kernel_free", || {
        machine()?.with(|gpu| gpu.free(address))?;
        say(|| format!("simulated_kernel_free: GPU {gpu_index}, {size} bytes at {address:#x}"));
        Ok(())
    });
}

/// Copies `size` bytes at `source` to an address of the simulated GPU: pinned, read by its copy engine, and done on return. What is wrong is only
/// noted in `netcl_last_error()`.
///
/// # Safety
/// `source` points to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simulated_kernel_write(
    gpu_index: c_int,
    address: c_ulonglong,
    size: usize,
    source: *const c_void,
) {
    edge("simulated_kernel_write", || {
        let machine = machine()?;
        machine.check_range(address, size)?;
        // SAFETY: guaranteed by this function's caller.
        let data = unsafe { pointers::slice("source", source.cast::<u8>(), size) }?.to_vec();
        say(|| format!("simulated_kernel_write: GPU {gpu_index}, {size} bytes to {address:#x}"));
        let fence = machine.with(|gpu| gpu.write(QUEUE, address, data, None))?;
        machine.with(|gpu| gpu.wait(fence)).map(|_| ())
    });
}

/// Copies `size` bytes of the simulated GPU to `destination`, and waits for that. Answers 1, or 0.
///
/// # Safety
/// `destination` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simulated_kernel_read(
    gpu_index: c_int,
    address: c_ulonglong,
    size: usize,
    destination: *mut c_void,
) -> c_int {
    flag("simulated_kernel_read", || {
        let machine = machine()?;
        say(|| format!("simulated_kernel_read: GPU {gpu_index}, {size} bytes from {address:#x}"));
        // SAFETY: guaranteed by this function's caller; the command is done before this returns.
        let fence = unsafe {
            read_back(&machine, QUEUE, (address, size), destination, (None, std::ptr::null_mut()))
        }?;
        machine.with(|gpu| gpu.wait(fence)).map(|_| ())
    })
}

/// Begins to copy `size` bytes of the simulated GPU to `destination`, and returns. Once they are there, `callback` is called with how that went and
/// with `user`, from a thread of its own. It may call this library. Answers 1 where it was begun, else 0, and then `callback` is not called.
///
/// # Safety
/// `destination` has room for `size` bytes until `callback` is called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_simulated_read_async(
    gpu_index: c_int,
    address: c_ulonglong,
    size: usize,
    destination: *mut c_void,
    callback: netcl_simulated_read_callback,
    user: *mut c_void,
) -> c_int {
    flag("netcl_simulated_read_async", || {
        let machine = machine()?;
        say(|| {
            format!(
                "netcl_simulated_read_async: GPU {gpu_index}, {size} bytes from {address:#x}, with a callback"
            )
        });
        // SAFETY: guaranteed by this function's caller.
        unsafe { read_back(&machine, QUEUE, (address, size), destination, (callback, user)) }?;
        run_beside(machine);
        Ok(())
    })
}

/// Waits until every read-back of `netcl_simulated_read_async` is done and its callback has returned. Not from a callback.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_simulated_finish(_gpu_index: c_int) {
    edge("netcl_simulated_finish", || {
        finish();
        Ok(())
    });
}

/// Takes the simulated GPU away, with all its memory; the next call has a new one.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_simulated_shutdown() {
    edge("netcl_simulated_shutdown", || {
        shutdown();
        Ok(())
    });
}

/// Tells in words what the simulated GPU does: level 0 nothing, 1 a line a command, 2 each step from the ring to the interrupt, 3 also registers
/// and compute units. Each line goes to `sink` with `user`, or to standard error where `sink` is NULL. `sink` may not call this library.
///
/// # Safety
/// `sink` takes a text and `user` from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_simulated_set_log(
    level: c_int,
    sink: netcl_simulated_trace_callback,
    user: *mut c_void,
) -> NetclStatus {
    edge("netcl_simulated_set_log", || tell(level, sink, user))
}

/// Compute units of the GPU that `initialize_gpu` opened under this index, or 16 where none is open.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_get_compute_unit_count(gpu_index: c_int) -> c_uint {
    value("simulated_get_compute_unit_count", UNITS, || {
        Ok(crate::driver::state::device(gpu_index)
            .map_or(UNITS, |device| device.capabilities().compute_units))
    })
}
