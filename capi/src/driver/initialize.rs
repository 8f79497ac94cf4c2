//! Opening, checking and closing devices.

use super::check::check;
use super::state;
use crate::edge::{edge, flag, value};
use crate::pointers;
use crate::status::NetclStatus;
use netcl::device::Capabilities;
use std::ffi::{c_char, c_int};

/// Opens the device with this index: the one set by `netcl_driver_device`, or the OpenCL device with that number, starting at 0. If the
/// number does not exist, the device of index 0 is opened. Without an OpenCL device, the simulated GPU is opened. Builds the kernels of
/// every function of the driver, or loads them from the cache on disk, and compares a small result of each function with known numbers.
/// A kernel whose source depends on a size is built again at the first use of another size. `netcl_driver_describe` reports the result.
/// Call this before all other functions of a GPU. Later calls have no effect.
///
/// Returns 1, or 0 if no device can be opened, or if a kernel does not build or computes a wrong result.
#[unsafe(no_mangle)]
pub extern "C" fn initialize_gpu(gpu_index: c_int) -> c_int {
    flag("initialize_gpu", || state::initialize(gpu_index, check))
}

/// Sets the device that `initialize_gpu` opens for an index: `auto`, `sim`, `sim:<profile>`, `<platform>:<number>` or a number. Must be
/// called before `initialize_gpu`.
///
/// # Safety
/// `device` is a string that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_driver_device(gpu_index: c_int, device: *const c_char) -> NetclStatus {
    edge("netcl_driver_device", || {
        // SAFETY: guaranteed by this function's caller.
        state::name(gpu_index, unsafe { pointers::text("device", device) }?)
    })
}

/// Writes a report of the GPU to `text`, on one line: its name, the functions that `initialize_gpu` checked, the kernels that it compiled
/// or loaded from the cache, the time, and whether the GPU has FP64 and atomics. `room` is the size of `text` in bytes, including the
/// terminating zero. `length` receives the length without the zero. If `text` is NULL, only the length is returned.
///
/// # Safety
/// `text` points to space for `room` bytes or is NULL; `length` points to space for a number or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_driver_describe(
    gpu_index: c_int,
    text: *mut c_char,
    room: usize,
    length: *mut usize,
) -> NetclStatus {
    edge("netcl_driver_describe", || {
        let (device, report) = state::checked(gpu_index)?;
        let c = device.capabilities();
        let answer = |has: bool| if has { "yes" } else { "no" };
        let line = format!(
            "{}: {}; {} functions checked in {} ms, kernels: {} compiled, {} from the cache; FP64: {}, atomics: {}",
            c.id,
            c.name,
            report.functions,
            report.time.as_millis(),
            report.builds.compiled,
            report.builds.loaded,
            answer(c.fp64),
            answer(has_atomics(c)),
        );
        // SAFETY: guaranteed by this function's caller.
        unsafe { pointers::hand_out(&line, text, room, length) }
    })
}

/// Returns whether a device has 32-bit atomic operations on global memory: part of OpenCL since 1.1, an extension before.
fn has_atomics(c: &Capabilities) -> bool {
    let number = c.version.trim_start_matches("OpenCL ").split(' ').next().unwrap_or_default();
    let mut parts = number.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    version >= (1, 1) || c.extensions.iter().any(|e| e == "cl_khr_global_int32_base_atomics")
}

/// Returns 1 if the GPU computes with doubles, otherwise 0. Without a GPU, returns 0 and sets `netcl_last_error()`.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_driver_has_fp64(gpu_index: c_int) -> c_int {
    value("netcl_driver_has_fp64", 0, || Ok(c_int::from(state::device(gpu_index)?.capabilities().fp64)))
}

/// Returns 1 if the GPU has 32-bit atomic operations, otherwise 0. Without a GPU, returns 0 and sets `netcl_last_error()`. netcl's
/// functions do not need them: their sums are deterministic.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_driver_has_atomics(gpu_index: c_int) -> c_int {
    value("netcl_driver_has_atomics", 0, || {
        Ok(c_int::from(has_atomics(state::device(gpu_index)?.capabilities())))
    })
}

/// Frees all buffers and closes all devices. Handles of buffers become invalid. `initialize_gpu` starts again.
#[unsafe(no_mangle)]
pub extern "C" fn shutdown_driver() {
    edge("shutdown_driver", || {
        state::shutdown();
        Ok(())
    });
}
