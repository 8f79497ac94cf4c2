//! Opening and closing devices, memory, and transfers.

use super::state::{self, BUFFERS};
use crate::edge::{edge, flag, value};
use crate::pointers;
use crate::status::{Failure, NetclStatus, Result};
use netcl::device::{Buffer, Capabilities};
use std::ffi::{c_char, c_int, c_void};

/// Opens the device with this index: the one set by `netcl_driver_device`, or the OpenCL device with that number, starting at 0. If the
/// number does not exist, the device of index 0 is opened. Without an OpenCL device, the simulated GPU is opened. Builds the kernels of
/// every function of the driver, or loads them from the cache on disk, and compares a small result of each function with known numbers.
/// A kernel whose source depends on a size is built again at the first use of another size. `netcl_driver_describe` reports the result.
/// Call this before all other functions of a GPU. Later calls have no effect.
///
/// Returns 1, or 0 if no device can be opened, or if a kernel does not build or computes a wrong result.
#[unsafe(no_mangle)]
pub extern "C" fn initialize_gpu(gpu_index: c_int) -> c_int {
    flag("initialize_gpu", || state::initialize(gpu_index))
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

/// Allocates an uninitialized buffer of `size` bytes on a GPU. Returns its handle, or NULL on failure.
#[unsafe(no_mangle)]
pub extern "C" fn allocate_gpu_memory(gpu_index: c_int, size: usize) -> *mut c_void {
    value("allocate_gpu_memory", std::ptr::null_mut(), || {
        let device = state::device(gpu_index)?;
        if size == 0 {
            return Err(Failure::argument("cannot allocate a buffer of 0 bytes"));
        }
        BUFFERS.insert(device.allocate(size)?)
    })
}

/// Frees a buffer. NULL is ignored. Freeing a buffer twice only sets `netcl_last_error()`.
#[unsafe(no_mangle)]
pub extern "C" fn free_gpu_memory(_gpu_index: c_int, buffer_handle: *mut c_void) {
    edge("free_gpu_memory", || {
        if !buffer_handle.is_null() {
            BUFFERS.remove(buffer_handle)?;
        }
        Ok(())
    });
}

fn part(handle: *const c_void, offset: usize, size: usize) -> Result<Buffer> {
    let buffer = BUFFERS.get(handle)?;
    if offset.checked_add(size).is_some_and(|end| end <= buffer.bytes()) {
        return Ok(buffer);
    }
    let there = buffer.bytes();
    Err(Failure::argument(format!("{size} bytes at offset {offset} exceed a buffer of {there} bytes")))
}

/// Copies `size` bytes from the host to a buffer, starting at byte `offset`. Returns when the source may be changed.
///
/// # Safety
/// `host_source_ptr` points to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write_host_to_gpu_blocking(
    _gpu_index: c_int,
    gpu_buffer_handle: *mut c_void,
    offset: usize,
    size: usize,
    host_source_ptr: *const c_void,
) -> c_int {
    flag("write_host_to_gpu_blocking", || {
        let buffer = part(gpu_buffer_handle, offset, size)?;
        // SAFETY: guaranteed by this function's caller.
        let source = unsafe { pointers::slice("host_source_ptr", host_source_ptr.cast::<u8>(), size) }?;
        buffer.device().upload(&buffer, offset, source)?;
        Ok(buffer.device().finish()?)
    })
}

/// Copies `size` bytes from a buffer, starting at byte `offset`, to the host. Waits for all earlier operations.
///
/// # Safety
/// `host_destination_ptr` points to room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read_gpu_to_host_blocking(
    _gpu_index: c_int,
    gpu_buffer_handle: *mut c_void,
    offset: usize,
    size: usize,
    host_destination_ptr: *mut c_void,
) -> c_int {
    flag("read_gpu_to_host_blocking", || {
        let buffer = part(gpu_buffer_handle, offset, size)?;
        // SAFETY: guaranteed by this function's caller.
        let room =
            unsafe { pointers::slice_mut("host_destination_ptr", host_destination_ptr.cast::<u8>(), size) }?;
        Ok(buffer.device().download(&buffer, offset, room)?)
    })
}

/// Copies the first `size` bytes of a buffer to the start of another buffer.
#[unsafe(no_mangle)]
pub extern "C" fn execute_clone_on_gpu(
    _gpu_index: c_int,
    src_buffer: *mut c_void,
    dst_buffer: *mut c_void,
    size: usize,
) -> c_int {
    flag("execute_clone_on_gpu", || {
        let (from, to) = (part(src_buffer, 0, size)?, part(dst_buffer, 0, size)?);
        if !from.device().same(to.device()) {
            return Err(Failure::new(NetclStatus::Device, "the buffers are on different devices"));
        }
        if from.same(&to) {
            return Ok(());
        }
        from.device().copy(&from, 0, &to, 0, size)?;
        Ok(from.device().finish()?)
    })
}
