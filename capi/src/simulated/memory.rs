//! Memory of the simulated GPU by host address, copies, and the trace.

use super::machine::{
    QUEUE, allocate, device_address, finish, free, machine, run_in_background, say, shutdown, tell,
};
use crate::edge::{edge, flag, value};
use crate::machine::commands::read_back;
use crate::pointers;
use crate::status::{Failure, NetclStatus};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// Callback that receives a line of the trace.
#[allow(non_camel_case_types)] // its name in C
pub type netcl_simulated_trace_callback =
    Option<unsafe extern "C" fn(line: *const c_char, user: *mut c_void)>;

/// Callback for a completed read-back. `status` is its result.
#[allow(non_camel_case_types)] // its name in C
pub type netcl_simulated_read_callback = Option<unsafe extern "C" fn(status: NetclStatus, user: *mut c_void)>;

/// Number of compute units to report if no GPU is initialized.
const UNITS: c_uint = 16;

/// Allocates `size` bytes of the simulated GPU's memory. Returns the address of these bytes in the program's memory, or 0 on failure. The
/// address is aligned like one of `malloc`. The program may read and write the bytes through it while no command uses them, and commands
/// see the same bytes. It is valid until `simulated_kernel_free` or `netcl_simulated_shutdown`. The content is not initialized.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_kernel_allocate(gpu_index: c_int, size: usize) -> c_ulonglong {
    value("simulated_kernel_allocate", 0, || {
        if size == 0 {
            return Err(Failure::argument("cannot allocate 0 bytes"));
        }
        let at = allocate(&*machine()?, size, "simulated")?;
        say(|| {
            format!(
                "simulated_kernel_allocate: GPU {gpu_index}, {size} bytes at {:#x}, device address {:#x}",
                at.host, at.device
            )
        });
        Ok(at.host)
    })
}

/// Frees memory from `simulated_kernel_allocate` or `simulated_matrix_multiply`. `size` is ignored. An invalid address only sets
/// `netcl_last_error()`.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_kernel_free(gpu_index: c_int, address: c_ulonglong, size: usize) {
    edge("simulated_kernel_free", || {
        let device = free(&*machine()?, address)?;
        say(|| {
            format!(
                "simulated_kernel_free: GPU {gpu_index}, {size} bytes at {address:#x}, device address {device:#x}"
            )
        });
        Ok(())
    });
}

/// Copies `size` bytes from `source` to an address of `simulated_kernel_allocate`. The copy engine reads the source from pinned memory, and the copy
/// is complete on return. A failure only sets `netcl_last_error()`.
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
        let to = device_address(address, size as u64)?;
        // SAFETY: guaranteed by this function's caller.
        let data = unsafe { pointers::slice("source", source.cast::<u8>(), size) }?.to_vec();
        say(|| format!("simulated_kernel_write: GPU {gpu_index}, {size} bytes to {address:#x}"));
        let fence = machine.with(|gpu| gpu.write(QUEUE, to, data, None))?;
        machine.with(|gpu| gpu.wait(fence)).map(|_| ())
    });
}

/// Copies `size` bytes at an address of `simulated_kernel_allocate` to `destination`, and waits for the copy. Returns 1, or 0 on failure.
///
/// # Safety
/// `destination` points to space for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simulated_kernel_read(
    gpu_index: c_int,
    address: c_ulonglong,
    size: usize,
    destination: *mut c_void,
) -> c_int {
    flag("simulated_kernel_read", || {
        let machine = machine()?;
        let from = device_address(address, size as u64)?;
        say(|| format!("simulated_kernel_read: GPU {gpu_index}, {size} bytes from {address:#x}"));
        // SAFETY: guaranteed by this function's caller; the command is done before this returns.
        let fence =
            unsafe { read_back(&machine, QUEUE, (from, size), destination, (None, std::ptr::null_mut())) }?;
        machine.with(|gpu| gpu.wait(fence)).map(|_| ())
    })
}

/// Starts copying `size` bytes from the simulated GPU to `destination`, and returns. When the copy is complete, `callback` is called with
/// its status and `user` on another thread. The callback may call this library. Returns 1 if the copy was started. Otherwise returns 0, and
/// `callback` is not called.
///
/// # Safety
/// `destination` points to space for `size` bytes until `callback` is called.
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
        let from = device_address(address, size as u64)?;
        say(|| {
            format!(
                "netcl_simulated_read_async: GPU {gpu_index}, {size} bytes from {address:#x}, with a callback"
            )
        });
        // SAFETY: guaranteed by this function's caller.
        unsafe { read_back(&machine, QUEUE, (from, size), destination, (callback, user)) }?;
        run_in_background(machine);
        Ok(())
    })
}

/// Waits until all read-backs of `netcl_simulated_read_async` are complete and their callbacks have returned. Must not be called from a
/// callback.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_simulated_finish(_gpu_index: c_int) {
    edge("netcl_simulated_finish", || {
        finish();
        Ok(())
    });
}

/// Removes the simulated GPU and all its memory, whose addresses become invalid. The next call creates a new one.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_simulated_shutdown() {
    edge("netcl_simulated_shutdown", || {
        shutdown();
        Ok(())
    });
}

/// Sets the detail of the trace: level 0 none, 1 one line per command, 2 each step from the ring to the interrupt, 3 also registers and
/// compute units. Each line is passed to `sink` with `user`, or written to standard error if `sink` is NULL. `sink` must not call this
/// library.
///
/// # Safety
/// `sink` can be called with a string and `user` from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_simulated_set_log(
    level: c_int,
    sink: netcl_simulated_trace_callback,
    user: *mut c_void,
) -> NetclStatus {
    edge("netcl_simulated_set_log", || tell(level, sink, user))
}

/// Returns the number of compute units of the GPU that `initialize_gpu` opened for this index, or 16 if none is open.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_get_compute_unit_count(gpu_index: c_int) -> c_uint {
    value("simulated_get_compute_unit_count", UNITS, || {
        Ok(crate::driver::state::device(gpu_index)
            .map_or(UNITS, |device| device.capabilities().compute_units))
    })
}
