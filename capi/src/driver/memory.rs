//! Opening and closing, memory, and transfers.

use super::state::{self, BUFFERS};
use crate::edge::{edge, flag, value};
use crate::pointers;
use crate::status::{Failure, NetclStatus, Result};
use netcl::device::Buffer;
use std::ffi::{c_char, c_int, c_void};

/// Opens the device of this index: the one that `netcl_driver_device` named, else the OpenCL device of that number, counted from 0. An
/// index that does not exist means the first; without any OpenCL device it is the simulated GPU. Kernels are built when they are first
/// used, and kept on disk. Comes before everything else on a GPU; once more does nothing.
///
/// Answers 1, or 0 where no device opens.
#[unsafe(no_mangle)]
pub extern "C" fn initialize_gpu(gpu_index: c_int) -> c_int {
    flag("initialize_gpu", || state::initialize(gpu_index))
}

/// Names the device that `initialize_gpu` opens for an index: `auto`, `sim`, `sim:<profile>`, `<platform>:<number>` or a number. Comes
/// before `initialize_gpu`.
///
/// # Safety
/// `device` is a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_driver_device(gpu_index: c_int, device: *const c_char) -> NetclStatus {
    edge("netcl_driver_device", || {
        // SAFETY: as this function's caller vouches.
        state::name(gpu_index, unsafe { pointers::text("device", device) }?)
    })
}

/// Frees every buffer and closes every device. Handles of buffers are no longer valid; `initialize_gpu` begins anew.
#[unsafe(no_mangle)]
pub extern "C" fn shutdown_driver() {
    edge("shutdown_driver", || {
        state::shutdown();
        Ok(())
    });
}

/// A buffer of `size` bytes on a GPU, uninitialised. Answers its handle, or NULL.
#[unsafe(no_mangle)]
pub extern "C" fn allocate_gpu_memory(gpu_index: c_int, size: usize) -> *mut c_void {
    value("allocate_gpu_memory", std::ptr::null_mut(), || {
        let device = state::device(gpu_index)?;
        if size == 0 {
            return Err(Failure::argument("a buffer of 0 bytes"));
        }
        BUFFERS.insert(device.allocate(size)?)
    })
}

/// Frees a buffer. NULL is ignored; one that was freed before is only noted in `netcl_last_error()`.
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
    Err(Failure::argument(format!("{size} bytes at {offset} leave a buffer of {there} bytes")))
}

/// Copies `size` bytes of the host to a buffer from byte `offset` on. Returns when the source may be changed.
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
        // SAFETY: as this function's caller vouches.
        let source = unsafe { pointers::slice("host_source_ptr", host_source_ptr.cast::<u8>(), size) }?;
        buffer.device().upload(&buffer, offset, source)?;
        Ok(buffer.device().finish()?)
    })
}

/// Copies `size` bytes of a buffer from byte `offset` on to the host. Waits for everything that was begun before.
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
        // SAFETY: as this function's caller vouches.
        let room =
            unsafe { pointers::slice_mut("host_destination_ptr", host_destination_ptr.cast::<u8>(), size) }?;
        Ok(buffer.device().download(&buffer, offset, room)?)
    })
}

/// Copies the first `size` bytes of a buffer to the beginning of another one.
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
            return Err(Failure::new(NetclStatus::Device, "the buffers are on two devices"));
        }
        if from.same(&to) {
            return Ok(());
        }
        from.device().copy(&from, 0, &to, 0, size)?;
        Ok(from.device().finish()?)
    })
}
